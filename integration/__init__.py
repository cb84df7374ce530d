"""The effects: Spark, gRPC, Prometheus, the command line.

Names are imported at their first use, because executors import the heartbeat and must not need gRPC for it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from lowmark.watermark.first_use import at_first_use
from lowmark.watermark.log_record import escape_record

if TYPE_CHECKING:
    from .audit.table import audit_table
    from .driver.service import LowWatermarkService
    from .spark.adoption import adopt, leave
    from .spark.completion import completion
    from .spark.shipping import ship

__all__ = ["LowWatermarkService", "adopt", "audit_table", "completion", "leave", "ship"]

# Every log line of the package goes through this one logger. The filter escapes foreign names for a terminal.
logging.getLogger("lowmark").addFilter(escape_record)


# driver.service refuses an unsupported Spark at its first import, before it imports a module that such a Spark lacks.
__getattr__ = at_first_use(
    __name__,
    {
        "audit.table": ("audit_table",),
        "driver.service": ("LowWatermarkService",),
        "spark.adoption": ("adopt", "leave"),
        "spark.completion": ("completion",),
        "spark.shipping": ("ship",),
    },
)
