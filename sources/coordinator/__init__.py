"""The coordinator of one source: it runs the enumerator on one thread, and keeps it alive."""

from .context import ReaderGateway, RegisteredReaders, SourceCoordinatorContext, UnregisteredReader, WrongThread
from .coordinator import (
    CoordinatorClosed,
    CoordinatorHangs,
    CoordinatorNotStarted,
    InvalidCheckpoint,
    SourceCoordinator,
    SourceFailed,
)
from .failover import FailoverPolicy, SuppressRestarts
from .store import CoordinatorStore

__all__ = [
    "CoordinatorClosed",
    "CoordinatorHangs",
    "CoordinatorNotStarted",
    "CoordinatorStore",
    "FailoverPolicy",
    "InvalidCheckpoint",
    "ReaderGateway",
    "RegisteredReaders",
    "SourceCoordinator",
    "SourceCoordinatorContext",
    "SourceFailed",
    "SuppressRestarts",
    "UnregisteredReader",
    "WrongThread",
]
