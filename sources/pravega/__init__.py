"""Streams of Pravega as a source: one split for each segment."""

from .errors import (
    InvalidPravegaOption,
    PravegaAccessDenied,
    PravegaClientMissing,
    PravegaDataLost,
    PravegaEventBroken,
    PravegaGroupTaken,
    PravegaStreamMissing,
    PravegaUnavailable,
)
from .event_time import EventTime
from .notes import NotedBound
from .segment import PravegaSplit
from .source import PravegaSource

__all__ = [
    "EventTime",
    "InvalidPravegaOption",
    "NotedBound",
    "PravegaAccessDenied",
    "PravegaClientMissing",
    "PravegaDataLost",
    "PravegaEventBroken",
    "PravegaGroupTaken",
    "PravegaSource",
    "PravegaSplit",
    "PravegaStreamMissing",
    "PravegaUnavailable",
]
