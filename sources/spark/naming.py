"""Names of sources, for queries whose checkpoints may gain and lose sources (Spark 4.2: source evolution)."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from .settings import is_true

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

_EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
_FIT = re.compile("[A-Za-z0-9_]+")


def named_reader(spark: SparkSession, role: str, stream: str) -> DataStreamReader:
    """Return `spark.readStream`, with a name of the source's role and stream if the session requires named sources."""
    reader = spark.readStream
    if not is_true(spark.conf.get(_EVOLUTION, "false")):
        return reader
    return reader.name(source_name(role, stream))


def source_name(role: str, stream: str) -> str:
    """Return the name of a source in checkpoints, in the ASCII letters, digits and underscores that Spark accepts.

    >>> source_name("heartbeat", "orders"), source_name("heartbeat", "the orders")
    ('lowmark_heartbeat_orders', 'lowmark_heartbeat_the_orders_a1375630')
    """
    if _FIT.fullmatch(stream):
        return f"lowmark_{role}_{stream}"
    digest = hashlib.sha256(stream.encode()).hexdigest()[:8]
    return f"lowmark_{role}_{re.sub('[^A-Za-z0-9_]', '_', stream)}_{digest}"
