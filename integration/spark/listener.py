"""Spark's listener, reduced to one duty: put each event into the service's queue and return.

Spark delivers all listeners' events through one bounded queue that task events fill, too; a slow callback would
make Spark drop progress events. So this callback reads no field of an event: the loop reads it later. pyspark's own
listener would first rebuild the whole event in Python, with some forty calls into the JVM per batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from lowmark.integration.errors import SessionUnfit
from lowmark.sources.spark.versions import TRIED

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession

log = logging.getLogger("lowmark")


class QueryEvents:
    """Implements Spark's Java interface for Python listeners.

    Args:
        enqueue: takes an event with its kind, "started", "progress", "idle" or "terminated", and returns at once.
        begin: called with the start event of a query in the query's own thread, which waits for the call.
    """

    def __init__(self, enqueue: Callable[[str, JavaObject], None], begin: Callable[[JavaObject], None]) -> None:
        self._enqueue, self._begin = enqueue, begin

    def onQueryStarted(self, event: JavaObject) -> None:
        try:
            self._begin(event)
        except Exception:
            log.exception("could not look at a query that starts; it goes on as Spark would have it")
        self._enqueue("started", event)

    def onQueryProgress(self, event: JavaObject) -> None:
        self._enqueue("progress", event)

    def onQueryIdle(self, event: JavaObject) -> None:
        self._enqueue("idle", event)

    def onQueryTerminated(self, event: JavaObject) -> None:
        self._enqueue("terminated", event)

    class Java:  # noqa: D106  # read by py4j
        implements: ClassVar = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]


def listen(spark: SparkSession, events: QueryEvents) -> JavaObject:
    """Pass the events of a session's queries on, and return Spark's listener, by which they are removed again."""
    from pyspark.java_gateway import ensure_callback_server_started

    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    jvm: Any = spark._jvm
    try:
        listener = jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(events)
    except TypeError as missing:  # py4j takes the name of a class that is not there for a package
        raise SessionUnfit(
            "LowWatermarkService needs Spark's class PythonStreamingQueryListenerWrapper",
            f"Spark {spark.version} without it",
            f"use a version of Spark that lowmark was tried with, {TRIED}.",
        ) from missing
    spark._jsparkSession.streams().addListener(listener)
    return listener
