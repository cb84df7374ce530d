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
from .metric_group import MetricGroup
from .serializer import DataclassSerializer

__all__ = [
    "Boundedness",
    "DataclassSerializer",
    "ExternallyInducedSourceReader",
    "Fetched",
    "InputStatus",
    "MetricGroup",
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
]
