"""The effects: Spark, gRPC, Prometheus, the command line.

Names are imported at their first use, because executors import the heartbeat and must not need gRPC for it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from lowmark.watermark.log_record import escape_record

if TYPE_CHECKING:
    from .audit.table import audit_table
    from .driver.service import LowWatermarkService
    from .spark.adoption import adopt, leave
    from .spark.completion import completion
    from .spark.shipping import ship

__all__ = ["LowWatermarkService", "adopt", "audit_table", "completion", "leave", "ship"]

# Every line of the package goes through this one logger. The filter escapes foreign names for the reader's terminal.
logging.getLogger("lowmark").addFilter(escape_record)


def __getattr__(name: str) -> Any:
    if name == "LowWatermarkService":
        import lowmark.sources.spark.versions  # noqa: F401  # refuses an unsupported Spark before its first use

        from .driver.service import LowWatermarkService

        return LowWatermarkService
    if name == "audit_table":
        from .audit.table import audit_table

        return audit_table
    if name in ("adopt", "leave"):
        from .spark import adoption

        return getattr(adoption, name)
    if name == "completion":
        from .spark.completion import completion

        return completion
    if name == "ship":
        from .spark.shipping import ship

        return ship
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
