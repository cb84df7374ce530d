"""Chooses the kind of a session, for a service; `adopt` and `ship`, which need no service, ask by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowmark.sources.spark.source import is_connect

from .classic import ClassicSession
from .connect import ConnectSession
from .sessions import Session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session_of(spark: SparkSession) -> Session:
    """Return a session of Spark as the service sees it."""
    return ConnectSession(spark) if is_connect(spark) else ClassicSession(spark)
