"""What can be read: split enumeration and reading (FLIP-27), and the connectors.

pyspark is imported in `sources/spark/` only.
"""

import logging

from lowmark.watermark.log_record import escape_record

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
from .kit.simple import SimpleSource
from .metric_group import MetricGroup
from .planning.rate import RateLimiterStrategy
from .reading.slices import read_slices
from .serializer import DataclassSerializer
from .testing import SourceBroken, check_source

# As lowmark.integration does: every line of the package goes through this one logger.
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
