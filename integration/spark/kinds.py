"""Chooses the kind of a session: the only place that asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .classic import ClassicSession
from .sessions import Session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["session_of"]


def session_of(spark: SparkSession) -> Session:
    """Return a session of Spark as the service sees it."""
    return ClassicSession(spark)
