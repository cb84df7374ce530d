"""For authors of connectors: its laws as a function, and a context to run an enumerator in."""

from .check import CheckedSource, SourceBroken, check_source
from .context import ManualEnumeratorContext

__all__ = ["CheckedSource", "ManualEnumeratorContext", "SourceBroken", "check_source"]
