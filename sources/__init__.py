"""What can be read: split enumeration and reading (FLIP-27), and the connectors.

pyspark is imported in `spark.py` only.
"""

from .api import (
    Boundedness,
    ExternallyInducedSourceReader,
    Fetched,
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
from .coordinator import (
    CoordinatorStore,
    FailoverPolicy,
    ReaderGateway,
    SourceCoordinator,
    SourceFailed,
    SuppressRestarts,
)
from .discovery import DiscoveringEnumerator
from .hybrid import DeferredSource, HybridSource
from .metric_group import MetricGroup
from .rate_limit import RateLimiter, RateLimiterStrategy
from .reader import SplitFetcherReader, read_slices
from .serializer import DataclassSerializer
from .simple import SimpleSource
from .testing import SourceBroken, check_source

__all__ = [
    "Boundedness",
    "CoordinatorStore",
    "DataclassSerializer",
    "DeferredSource",
    "DiscoveringEnumerator",
    "ExternallyInducedSourceReader",
    "FailoverPolicy",
    "Fetched",
    "HybridSource",
    "InputStatus",
    "MetricGroup",
    "RateLimiter",
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
    "SplitFetcherReader",
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
