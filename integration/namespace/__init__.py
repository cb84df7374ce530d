"""Low watermarks for Spark Structured Streaming: what most programs need, by one import.

    from lowmark import LowWatermarkService, WatermarkStrategy

Names are imported at their first use, because executors import the folders below and need no name from here. This file
is installed as `lowmark/__init__.py` beside the folders `lowmark.watermark`, `lowmark.sources`, `lowmark.integration`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowmark.integration import LowWatermarkService, adopt, audit_table, completion, leave, ship
    from lowmark.watermark import LowmarkError, WatermarkStrategy

    __version__: str

__all__ = [
    "LowWatermarkService",
    "LowmarkError",
    "WatermarkStrategy",
    "__version__",
    "adopt",
    "audit_table",
    "completion",
    "leave",
    "ship",
]

_PLACES = {
    "LowWatermarkService": "lowmark.integration",
    "LowmarkError": "lowmark.watermark",
    "WatermarkStrategy": "lowmark.watermark",
    "adopt": "lowmark.integration",
    "audit_table": "lowmark.integration",
    "completion": "lowmark.integration",
    "leave": "lowmark.integration",
    "ship": "lowmark.integration",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name == "__version__":
        import importlib.metadata

        return importlib.metadata.version("lowmark")
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
