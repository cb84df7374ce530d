"""A succession of sources that is read as one source (FLIP-150)."""

from .enumerator import HybridState
from .source import HybridSource
from .split import HybridSplit
from .succession import DeferredSource, InvalidHybrid

__all__ = ["DeferredSource", "HybridSource", "HybridSplit", "HybridState", "InvalidHybrid"]
