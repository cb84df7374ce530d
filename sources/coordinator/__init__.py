"""The coordinator of one source: runs the enumerator on one thread, and keeps it alive."""

from .context import ReaderGateway, SourceCoordinatorContext, UnregisteredReader, WrongThread
from .coordinator import SourceCoordinator
from .errors import CoordinatorClosed, CoordinatorHangs, CoordinatorNotStarted, InvalidCheckpoint, SourceFailed
from .failover import FailoverPolicy, SuppressRestarts

__all__ = [
    "CoordinatorClosed",
    "CoordinatorHangs",
    "CoordinatorNotStarted",
    "FailoverPolicy",
    "InvalidCheckpoint",
    "ReaderGateway",
    "SourceCoordinator",
    "SourceCoordinatorContext",
    "SourceFailed",
    "SuppressRestarts",
    "UnregisteredReader",
    "WrongThread",
]
