"""For whoever writes a connector: its laws as a function, and contexts to run single roles in."""

from .check import CheckedSource, SourceBroken, check_source
from .context import CollectingOutput, ManualEnumeratorContext, ManualReaderContext

__all__ = [
    "CheckedSource",
    "CollectingOutput",
    "ManualEnumeratorContext",
    "ManualReaderContext",
    "SourceBroken",
    "check_source",
]
