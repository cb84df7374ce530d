"""For authors of connectors: a check of the laws of sources, and a context to run an enumerator in."""

from .check import CheckedSource, SourceBroken, check_source
from .context import ManualEnumeratorContext

__all__ = ["CheckedSource", "ManualEnumeratorContext", "SourceBroken", "check_source"]
