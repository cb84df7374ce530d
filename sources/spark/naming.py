"""Names of sources, for queries whose checkpoints may gain and lose some (Spark 4.2: source evolution)."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

__all__ = ["named_reader", "source_name"]

_EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
_FIT = re.compile("[A-Za-z0-9_]+")


def named_reader(spark: SparkSession, role: str, stream: str) -> DataStreamReader:
    """Return `spark.readStream`, under a name where the session wants every source to have one.

    Args:
        spark: the session.
        role: what the source is to its stream.
        stream: the stream's name.
    """
    reader = spark.readStream
    if spark.conf.get(_EVOLUTION, "false") != "true":
        return reader
    return reader.name(source_name(role, stream))


def source_name(role: str, stream: str) -> str:
    """Return the name of a source in checkpoints: Spark takes ASCII letters, digits and underscores only.

    >>> source_name("heartbeat", "orders"), source_name("heartbeat", "the orders")
    ('lowmark_heartbeat_orders', 'lowmark_heartbeat_the_orders_a1375630')
    """
    if _FIT.fullmatch(stream):
        return f"lowmark_{role}_{stream}"
    digest = hashlib.sha256(stream.encode()).hexdigest()[:8]
    return f"lowmark_{role}_{re.sub('[^A-Za-z0-9_]', '_', stream)}_{digest}"
