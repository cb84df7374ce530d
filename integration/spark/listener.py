"""Spark's listener, reduced to one duty: put each event into the service's queue and return.

Spark delivers all listeners' events through one bounded queue that task events fill, too; a slow callback would
make Spark drop progress events. So this callback reads no field of an event: the loop reads it later. The base class
would first rebuild the whole event in Python, with some forty calls into the JVM per batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import pyspark
from lowmark.integration.errors import SessionUnfit
from lowmark.sources.spark.versions import NEWEST_TRIED
from pyspark.sql.streaming.listener import StreamingQueryListener

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

log = logging.getLogger("lowmark")

Enqueue = Callable[[str, "JavaObject"], None]
Begin = Callable[["JavaObject"], None]


class QueryEvents(StreamingQueryListener):
    """Passes events on as (kind, Java event); kinds are "started", "progress", "idle" and "terminated".

    Args:
        enqueue: takes an event and returns at once.
        begin: called with the start event of a query in the query's own thread, which waits for the call.
    """

    def __init__(self, enqueue: Enqueue, begin: Begin = lambda _: None) -> None:
        self._enqueue, self._begin = enqueue, begin

    @property
    def _jlistener(self) -> JavaObject:
        if not hasattr(self, "_jlistenerobj"):
            jvm: Any = pyspark.SparkContext._jvm
            events = _JavaEvents(self._enqueue, self._begin)
            try:
                self._jlistenerobj = jvm.PythonStreamingQueryListenerWrapper(events)
            except TypeError as missing:  # py4j takes the name of a class that is not there for a package
                raise SessionUnfit(
                    "LowWatermarkService needs Spark's class PythonStreamingQueryListenerWrapper",
                    f"Spark {pyspark.__version__} without it",
                    f"use a version of Spark that lowmark was tried with, 4.0 to {'.'.join(map(str, NEWEST_TRIED))}.",
                ) from missing
        return self._jlistenerobj

    # Spark calls the methods of _JavaEvents instead; these satisfy the abstract class.
    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None: ...

    def onQueryIdle(self, event: Any) -> None: ...

    def onQueryTerminated(self, event: Any) -> None: ...


class _JavaEvents:
    """Implements Spark's Java interface for Python listeners."""

    def __init__(self, enqueue: Enqueue, begin: Begin = lambda _: None) -> None:
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

    class Java:
        implements: ClassVar = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]
