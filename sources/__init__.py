"""Sources of rows: split enumeration and reading (FLIP-27), and the connectors.

pyspark is imported in `sources/spark/` only. Modules that Spark's processes do not need are imported on first use,
because Spark starts a process for each stream and waits for it.
"""

import logging
from typing import TYPE_CHECKING

from lowmark.watermark.first_use import at_first_use
from lowmark.watermark.log_record import escape_record

if TYPE_CHECKING:
    from .api import (
        Boundedness,
        ExternallyInducedSourceReader,
        Fetched,
        Fetching,
        InputStatus,
        ReaderInfo,
        ReaderOutput,
        Source,
        SourceEvent,
        SourceReader,
        SourceReaderContext,
        SourceSplit,
        SplitEnd,
        SplitEnumerator,
        SplitEnumeratorContext,
        SplitPlanner,
        SplitReader,
        SplitRows,
        SplitsAddition,
        SplitsAssignment,
        SplitsRemoval,
        VersionedSerializer,
    )
    from .coordinator import FailoverPolicy, ReaderGateway, SourceCoordinator, SourceFailed, SuppressRestarts
    from .hybrid import DeferredSource, HybridSource
    from .kit.discovery import DiscoveringEnumerator
    from .kit.patience import Patience
    from .kit.simple import SimpleSource
    from .kit.unanswered import SourceUnavailable
    from .metric_group import MetricGroup
    from .planning.rate import RateLimiterStrategy
    from .reading.slices import read_slices
    from .serializer import DataclassSerializer
    from .testing import SourceBroken, check_source

# As in lowmark.integration, because every log line of the package goes through this one logger.
logging.getLogger("lowmark").addFilter(escape_record)

__all__ = [
    "Boundedness",
    "DataclassSerializer",
    "DeferredSource",
    "DiscoveringEnumerator",
    "ExternallyInducedSourceReader",
    "FailoverPolicy",
    "Fetched",
    "Fetching",
    "HybridSource",
    "InputStatus",
    "MetricGroup",
    "Patience",
    "RateLimiterStrategy",
    "ReaderGateway",
    "ReaderInfo",
    "ReaderOutput",
    "SimpleSource",
    "Source",
    "SourceBroken",
    "SourceCoordinator",
    "SourceEvent",
    "SourceFailed",
    "SourceReader",
    "SourceReaderContext",
    "SourceSplit",
    "SourceUnavailable",
    "SplitEnd",
    "SplitEnumerator",
    "SplitEnumeratorContext",
    "SplitPlanner",
    "SplitReader",
    "SplitRows",
    "SplitsAddition",
    "SplitsAssignment",
    "SplitsRemoval",
    "SuppressRestarts",
    "VersionedSerializer",
    "check_source",
    "read_slices",
]

__getattr__ = at_first_use(
    __name__,
    {
        "api": (
            "Boundedness",
            "ExternallyInducedSourceReader",
            "Fetched",
            "Fetching",
            "InputStatus",
            "ReaderInfo",
            "ReaderOutput",
            "Source",
            "SourceEvent",
            "SourceReader",
            "SourceReaderContext",
            "SourceSplit",
            "SplitEnd",
            "SplitEnumerator",
            "SplitEnumeratorContext",
            "SplitPlanner",
            "SplitReader",
            "SplitRows",
            "SplitsAddition",
            "SplitsAssignment",
            "SplitsRemoval",
            "VersionedSerializer",
        ),
        "coordinator": ("FailoverPolicy", "ReaderGateway", "SourceCoordinator", "SourceFailed", "SuppressRestarts"),
        "hybrid": ("DeferredSource", "HybridSource"),
        "kit.discovery": ("DiscoveringEnumerator",),
        "kit.patience": ("Patience",),
        "kit.simple": ("SimpleSource",),
        "kit.unanswered": ("SourceUnavailable",),
        "metric_group": ("MetricGroup",),
        "planning.rate": ("RateLimiterStrategy",),
        "reading.slices": ("read_slices",),
        "serializer": ("DataclassSerializer",),
        "testing": ("SourceBroken", "check_source"),
    },
)
