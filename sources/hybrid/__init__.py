"""Several sources, read one after the other as if they were one (FLIP-150)."""

from .reader import HybridSplit
from .source import DeferredSource, HybridSource, HybridState, InvalidHybrid

__all__ = ["DeferredSource", "HybridSource", "HybridSplit", "HybridState", "InvalidHybrid"]
