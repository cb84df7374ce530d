"""Sources of rows: split enumeration and reading (FLIP-27), and the connectors.

pyspark is imported in `sources/spark/` only. Modules that Spark's processes do not need are imported on first use,
because Spark starts a process for each stream and waits for it.
"""

import logging
from typing import TYPE_CHECKING

from lowmark.watermark.first_use import at_first_use
from lowmark.watermark.log_record import escape_record

if TYPE_CHECKING:
    from .api import Boundedness as Boundedness
    from .api import ExternallyInducedSourceReader as ExternallyInducedSourceReader
    from .api import Fetched as Fetched
    from .api import Fetching as Fetching
    from .api import InputStatus as InputStatus
    from .api import ReaderInfo as ReaderInfo
    from .api import ReaderOutput as ReaderOutput
    from .api import Source as Source
    from .api import SourceEvent as SourceEvent
    from .api import SourceReader as SourceReader
    from .api import SourceReaderContext as SourceReaderContext
    from .api import SourceSplit as SourceSplit
    from .api import SplitEnd as SplitEnd
    from .api import SplitEnumerator as SplitEnumerator
    from .api import SplitEnumeratorContext as SplitEnumeratorContext
    from .api import SplitPlanner as SplitPlanner
    from .api import SplitReader as SplitReader
    from .api import SplitRows as SplitRows
    from .api import SplitsAddition as SplitsAddition
    from .api import SplitsAssignment as SplitsAssignment
    from .api import SplitsRemoval as SplitsRemoval
    from .api import VersionedSerializer as VersionedSerializer
    from .coordinator import FailoverPolicy as FailoverPolicy
    from .coordinator import ReaderGateway as ReaderGateway
    from .coordinator import SourceCoordinator as SourceCoordinator
    from .coordinator import SourceFailed as SourceFailed
    from .coordinator import SuppressRestarts as SuppressRestarts
    from .hybrid import DeferredSource as DeferredSource
    from .hybrid import HybridSource as HybridSource
    from .kit.discovery import DiscoveringEnumerator as DiscoveringEnumerator
    from .kit.patience import Patience as Patience
    from .kit.simple import SimpleSource as SimpleSource
    from .kit.unanswered import SourceUnavailable as SourceUnavailable
    from .metric_group import MetricGroup as MetricGroup
    from .planning.rate import RateLimiterStrategy as RateLimiterStrategy
    from .reading.slices import read_slices as read_slices
    from .serializer import DataclassSerializer as DataclassSerializer
    from .testing import SourceBroken as SourceBroken
    from .testing import check_source as check_source

# As in lowmark.integration, because every log line of the package goes through this one logger.
logging.getLogger("lowmark").addFilter(escape_record)

_PLACES = {
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
}
__all__ = [name for names in _PLACES.values() for name in names]
__getattr__ = at_first_use(__name__, _PLACES)
