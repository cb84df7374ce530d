"""Low watermarks for Spark Structured Streaming: what most programs need, by one import.

    from lowmark import LowWatermarkService, WatermarkStrategy

Names are imported at their first use, because executors import the folders below and need no name from here. This file
is installed as `lowmark/__init__.py` beside the folders `lowmark.watermark`, `lowmark.sources`, `lowmark.integration`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lowmark.watermark.first_use import at_first_use

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

_find = at_first_use(
    __name__,
    {
        "integration": ("LowWatermarkService", "adopt", "audit_table", "completion", "leave", "ship"),
        "watermark": ("LowmarkError", "WatermarkStrategy"),
    },
)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        import importlib.metadata

        return importlib.metadata.version("lowmark")
    return _find(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
