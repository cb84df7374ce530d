"""A progress event, typed: sources, watermark and metrics of a finished batch.

The event is read from Spark's own JSON, which takes fewer calls into the JVM than reading its fields. Source:
`org.apache.spark.sql.streaming.StreamingQueryProgress`.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import msgspec
from lowmark.integration.errors import UnreadableReport
from lowmark.integration.transport.heartbeat import HeartbeatOffset
from lowmark.sources.spark.versions import TRIED
from lowmark.watermark.moment import us_of

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

RAN = "addBatch"
"""Spark's name of the time in which a batch ran, in `durationMs`. An event without it tells of no batch."""
_PART_CHARS = 7_000  # fits into 8 KiB together with the line ends that py4j escapes
_FOREACH_BATCH = "ForeachBatchSink"  # Spark's name of the sink in a progress event
_LAST_SINGLE = 0xFFFF  # the last character that Java keeps in one piece


class SourceProgress(msgspec.Struct, frozen=True, rename="camel"):
    """One source in one batch, with offsets in its own JSON."""

    start_offset: Any
    end_offset: Any
    latest_offset: Any
    num_input_rows: int


class StateOperator(msgspec.Struct, frozen=True, rename="camel"):
    """One stateful operator in one batch."""

    num_rows_dropped_by_watermark: int
    num_rows_total: int = 0


class Progress(msgspec.Struct, frozen=True, rename="camel"):
    """One batch of one query.

    A field without a default is in every progress event, and the low watermark or what is told of it needs that field.
    The others have a default because Spark leaves some of them out, `eventTime` of a query without a watermark and
    `observedMetrics` where nothing was observed. A Spark that renames such a field raises no error here.
    `tests/integration/spark/version_app.py` looks for each of them on every version. Without `observedMetrics` batches
    count as not measured, the watermark holds, and the log of the run names the cause.

    >>> text = '{"id": "q", "runId": "r", "batchId": 3, "numInputRows": 2, "sources": [], "stateOperators": []}'
    >>> Progress.from_json(text).batch_id
    3
    """

    id: str
    run_id: str
    batch_id: int
    num_input_rows: int
    state_operators: list[StateOperator]
    sources: list[SourceProgress]
    name: str | None = None
    event_time: dict[str, str] = {}
    observed_metrics: dict[str, Any] = {}
    sink: dict[str, Any] = {}
    timestamp: str = ""
    duration_ms: dict[str, int] = {}

    @classmethod
    def from_json(cls, text: str) -> Progress:
        """Decode Spark's JSON. Raises `UnreadableReport`."""
        try:
            return _decode(text)
        except (ValueError, RecursionError) as wrong:
            raise _unreadable(str(wrong)) from wrong

    @classmethod
    def from_java(cls, progress: JavaObject) -> Progress:
        """Read one of Spark's progress objects. Raises `UnreadableReport`."""
        return cls.from_json(java_text(progress))

    @property
    def watermark_us(self) -> int | None:
        """The watermark that Spark used; None for a query without one. Raises `UnreadableReport`."""
        text = self.event_time.get("watermark")
        return None if text is None else self._utc_us(text)

    @property
    def began_us(self) -> int:
        """When the batch began, by the clock of Spark's driver. Raises `UnreadableReport`."""
        return self._utc_us(self.timestamp)

    def _utc_us(self, text: str) -> int:
        try:
            return us_of(dt.datetime.fromisoformat(text.replace("Z", "+00:00")))
        except (ValueError, TypeError) as wrong:  # TypeError: without a time zone
            raise UnreadableReport(f"batch {self.batch_id}", f"expected a time in UTC, got {text!r:.80}") from wrong

    @property
    def in_part(self) -> bool:
        """Whether a user's function may have read only a part of the batch (`foreachBatch`); also if not known."""
        return str(self.sink.get("description", _FOREACH_BATCH)).startswith(_FOREACH_BATCH)

    @property
    def dropped_rows(self) -> int:
        """Rows that stateful operators dropped as late, counted after partial aggregation."""
        return sum(operator.num_rows_dropped_by_watermark for operator in self.state_operators)

    def heartbeats(self) -> list[tuple[int, HeartbeatOffset]]:
        """The heartbeats among the sources: (index of the source, its end offset). Raises `UnreadableReport`."""
        offsets = ((i, HeartbeatOffset.find(source.end_offset)) for i, source in enumerate(self.sources))
        found = [(i, offset) for i, offset in offsets if offset is not None]
        if found and "watermark" not in self.event_time:  # a heartbeat always stands under a withWatermark
            raise _unreadable("Object missing required field `watermark` - at `$.eventTime`")
        return found


_decode = msgspec.json.Decoder(Progress).decode


def _unreadable(wrong: str) -> UnreadableReport:
    import pyspark

    return UnreadableReport(
        f"a batch's progress, as Spark {pyspark.__version__} writes it",
        f"Spark's JSON cannot be read: {wrong}. lowmark was tried with Spark {TRIED}",
    )


def java_text(value: JavaObject) -> str:
    """Return a Java object's `toString`, part by part; that of a progress object is its JSON.

    py4j's JVM writes 8 KiB at a time with Nagle's algorithm on. A longer answer waits for a delayed acknowledgement: 44
    ms in each batch of a query with a few dozen splits, at any length. A part takes 0.3 ms.
    """
    from py4j.java_gateway import JavaClass

    # `_jvm.java.lang.StringBuilder` would look for the classes "java" and "java.lang" in all of Spark's jars: 0.7 ms.
    text = JavaClass("java.lang.StringBuilder", value._gateway_client)()
    text.append(value)
    length, begin, parts = text.length(), 0, []
    while begin < length:
        end = min(begin + _PART_CHARS, length)
        if end < length and text.codePointAt(end - 1) > _LAST_SINGLE:
            end -= 1  # do not cut a surrogate pair, because each half alone would be lost
        parts.append(text.substring(begin, end))
        begin = end
    return "".join(parts)
