"""The heartbeat: a streaming source of one row whose offset is the low watermark.

Spark derives its watermark from the largest event time it sees, minus a delay. So the heartbeat's row carries the
low watermark plus that delay, and it is the only branch of the plan that Spark watches. This module has both ends of
the format: the reader below writes the offset, and `HeartbeatOffset.find` finds it again in progress events.

    offset   {"epoch": 7, "low_us": ..., "lowmark": "<stream name>", "split": "<columns and types>",
              "state": "<base64>", "token": "<token>"}    and "client_silent_since", while a client is away (`told.py`)

The offset holds the state of the splits' watermarks, so that Spark's checkpoint restores it together with the data.
`token` is new in every reader process: the first offset after a (re)start repeats the last low watermark under a new
token, which ties reader, query and run together and lets joined streams agree again on their watermarks.

The reader lives in a process of its own and asks the service once per batch. Spark calls `commit` after it has planned
a batch, so the batch is over when Spark next calls `read`. In between Spark asks every 10 ms, and the reader answers
from memory. Before the query begins, the reader asks once whether it can: the service refuses a checkpoint of another
kind of query in words. When the service is gone, the offset stays as it is: the watermark holds and the query lives.

Functions here import gRPC at their call, because executors import this module. The row is built of buffers, because
pyarrow imports pandas, if it is installed, for every other way to build it: 0.2 s and 30 MB of each reader's process.
"""

from __future__ import annotations

import json
import struct
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from lowmark.integration.errors import QueryRefused, ServiceUnreachable, UnreadableHeartbeat
from lowmark.integration.process.clock import monotonic_us
from lowmark.watermark.errors import shown
from lowmark.watermark.moment import MILLISECOND_US, datetime_of, is_int64
from lowmark.watermark.printable import printable
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, SimpleDataSourceStreamReader
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.types import StructType

# By the version, because a newer Spark that has moved a module must fail here and not pass for 4.1. Executors may be
# unable to import `lowmark.sources.spark.versions`.
_SINCE_4_2 = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)
if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

    from .driver_rpc import Client, HeartbeatReply
    from .told import ToldClient
else:
    if _SINCE_4_2:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    else:
        SupportsTriggerAvailableNow = object

FORMAT = "lowmark_heartbeat"
# `row` is always 0. As a column it keeps the optimizer from folding the nulls in place of the user's columns.
COLUMNS = ("lowmark_time", "lowmark_heartbeat", "lowmark_row")
_SCHEMA = "lowmark_time timestamp_ltz, lowmark_heartbeat boolean, lowmark_row int"
_KINDS: tuple[pa.DataType, ...] = (pa.timestamp("us", tz="UTC"), pa.bool_(), pa.int32())
_ARROW = pa.schema([pa.field(name, kind) for name, kind in zip(COLUMNS, _KINDS, strict=True)])
_RETRY_US = 1_000_000  # from a failed call to the next, because Spark asks every 10 ms
_SILENT = "client_silent_since"

# The fields of an offset in a checkpoint, as `HeartbeatOffset` has them: name, what it holds, whether a value fits.
_FIELDS: tuple[tuple[str, str, Callable[[object], bool]], ...] = (
    ("low_us", "microseconds in 64 bits, or null", lambda value: value is None or is_int64(value)),
    ("token", "a text, or null", lambda value: value is None or isinstance(value, str)),
    ("epoch", "a whole number", is_int64),
    ("state", "a text", lambda value: isinstance(value, str)),
    ("split", "a text, or null", lambda value: value is None or isinstance(value, str)),
)


@dataclass(frozen=True, slots=True)
class HeartbeatOffset:
    """One offset of a heartbeat.

    >>> first = HeartbeatOffset("orders")
    >>> HeartbeatOffset.find(first.to_json()) == first
    True
    """

    stream: str
    low_us: int | None = None  # a multiple of 1,000
    token: str | None = None  # of the reader process that wrote the offset; None in the very first offset of a query
    epoch: int = 0
    state: str = ""  # of the watermarks, base64; empty in the very first offset
    split: str | None = None  # columns that tell its splits; None in the very first offset, and of a source of ours
    client_silent_since: str | None = None  # last sign, in UTC, of a client of Spark Connect that seems gone

    def to_json(self) -> dict[str, Any]:
        """Return the offset with sorted keys: Spark compares offsets as text."""
        silent = {} if self.client_silent_since is None else {_SILENT: self.client_silent_since}
        fields = {name: getattr(self, name) for name, _, _ in _FIELDS}
        return dict(sorted({"lowmark": self.stream, **fields, **silent}.items()))

    @classmethod
    def find(cls, offset: object) -> HeartbeatOffset | None:
        """Read a source's offset, a mapping or JSON; None if it is not a heartbeat's. Raises UnreadableHeartbeat."""
        if isinstance(offset, str) and '"lowmark"' in offset:
            try:
                offset = json.loads(offset)
            except (ValueError, RecursionError):
                return None
        if not isinstance(offset, Mapping) or not isinstance(stream := offset.get("lowmark"), str):
            return None  # a topic may be named "lowmark", but its partitions are no text
        for name, expected, fits in _FIELDS:
            if name not in offset:
                raise UnreadableHeartbeat(stream, name, "nothing", expected)
            if not fits(offset[name]):
                raise UnreadableHeartbeat(stream, name, shown(offset[name]), expected)
        silent = offset.get(_SILENT)
        fields = {name: offset[name] for name, _, _ in _FIELDS}
        return cls(stream, **fields, client_silent_since=silent if isinstance(silent, str) else None)


class HeartbeatSource(DataSource):
    """Spark's handle on the heartbeat. Options: address, stream_id, stream, delay_ms, split."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # Spark before 4.2 asks a reader nothing before it compares the checkpoint's sources with the query's, and hides
        # an error from the making of the reader behind another. So this process looks when it is given the source.
        if not _SINCE_4_2 and _is_planner():
            self.simpleStreamReader(StructType()).look()

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return _SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _FirstLooking(self.simpleStreamReader(schema))

    def simpleStreamReader(self, schema: StructType) -> HeartbeatReader:  # noqa: ARG002  # always the same
        return HeartbeatReader(
            address=self.options["address"],
            stream_id=self.options["stream_id"],
            stream=self.options["stream"],
            delay_ms=int(self.options["delay_ms"]),
            split=self.options.get("split"),
        )


class _FirstLooking(_SimpleStreamReaderWrapper):
    """Spark's wrapper of a simple reader, which looks at the checkpoint when Spark asks for limits.

    Spark asks before it compares the checkpoint's sources with the query's, whose failure no user understands.
    """

    def getDefaultReadLimit(self) -> ReadLimit:
        reader = self.simple_reader
        assert isinstance(reader, HeartbeatReader)
        reader.look()
        return super().getDefaultReadLimit()


class HeartbeatReader(SimpleDataSourceStreamReader, SupportsTriggerAvailableNow):
    """Answers Spark's question for new offsets with the low watermark. Pickled: opens no socket before it asks.

    Args:
        address: address of the service, or the place where a client of Spark Connect leaves its answers (`told.py`).
        delay_ms: the delay that Spark will subtract again.
    """

    def __init__(self, *, address: str, stream_id: str, stream: str, delay_ms: int, split: str | None = None) -> None:
        self._address, self._stream_id, self._stream, self._delay_ms = address, stream_id, stream, delay_ms
        self._split = split
        self._last: HeartbeatOffset | None = None  # None until this process has attached
        self._batch_planned = False
        self._available_now = False
        self._asked_at_us: int | None = None
        self._polled_until_us: int | None = None
        self._planned_at_us: int | None = None
        self._wake_at_us: int | None = None
        self._retry_at_us: int | None = None

    def initialOffset(self) -> dict[str, Any]:
        return HeartbeatOffset(self._stream).to_json()

    def look(self) -> None:
        """Ask the service whether the query can continue from its checkpoint. Raises QueryRefused, which says why."""
        sys.excepthook = _end_quietly
        try:
            reply = self._call("", looks=True)
        except ServiceUnreachable:
            return  # the reader's first regular question reports this
        _check(reply)

    def prepareForTriggerAvailableNow(self) -> None:
        # Nothing to prepare: a heartbeat follows a report, so heartbeats end when the data end.
        self._available_now = True

    def read(self, start: dict[str, Any]) -> tuple[Iterator[Any], dict[str, Any]]:
        now_us = monotonic_us()
        begin = HeartbeatOffset.find(start)
        if self._last is None:
            end = self._attach(begin)
        else:
            if not self._batch_planned:
                self._polled_until_us = self._asked_at_us  # the poll led to no batch, so no source had new data
            end = self._ask(now_us, self._last) if self._has_news(now_us) else self._last
        self._asked_at_us = now_us
        if end == begin:
            return iter([]), start
        self._batch_planned = True  # Spark plans a batch for a new offset, even for one without a row
        self._planned_at_us = now_us
        return iter(self._rows(end)), end.to_json()

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any]:
        # Called on an executor, after a restart or for batch 0: a pure function of the offsets.
        found = HeartbeatOffset.find(end)
        return iter([] if start == end or found is None else self._rows(found))

    def commit(self, end: dict[str, Any]) -> None:  # noqa: ARG002  # the call itself is the message
        # Spark calls this while it plans the next batch, right after asking all sources for their offsets.
        self._batch_planned = True
        self._planned_at_us = self._asked_at_us

    def _rows(self, end: HeartbeatOffset) -> list[pa.RecordBatch]:
        if end.low_us is None or end.low_us < 0:  # Spark's watermark begins at 1970
            return []
        time_us = end.low_us + self._delay_ms * MILLISECOND_US
        try:
            datetime_of(time_us)
        except OverflowError:
            expected = "a time before the year 10000, which is the last of Python's times"
            raise UnreadableHeartbeat(self._stream, "low_us", str(end.low_us), expected) from None
        values = struct.pack("=q", time_us), b"\1", struct.pack("=i", 0)
        columns = [
            pa.Array.from_buffers(field.type, 1, [None, pa.py_buffer(value)])
            for field, value in zip(_ARROW, values, strict=True)
        ]
        return [pa.RecordBatch.from_arrays(columns, schema=_ARROW)]

    def _has_news(self, now_us: int) -> bool:
        if self._retry_at_us is not None:
            return now_us >= self._retry_at_us
        if self._batch_planned:
            return True
        return (
            self._wake_at_us is not None
            and self._polled_until_us is not None
            and self._polled_until_us >= self._wake_at_us
        )

    def _attach(self, start: HeartbeatOffset | None) -> HeartbeatOffset:
        sys.excepthook = _end_quietly
        start = HeartbeatOffset(self._stream) if start is None else start
        token = uuid.uuid4().hex
        try:
            reply = self._call(
                token, first=True, resumes=start.token, epoch=start.epoch, state=start.state, split=start.split,
                low_watermark_us=start.low_us,
            )  # fmt: skip
        except ServiceUnreachable:
            _hide_traceback()
            raise
        return self._take(reply, token)

    def _ask(self, now_us: int, last: HeartbeatOffset) -> HeartbeatOffset:
        assert last.token is not None, "only the very first offset has no token"
        try:
            reply = self._call(last.token)
        except ServiceUnreachable as gone:
            if self._retry_at_us is None:
                self._say(f"the watermark holds. {gone}")
            self._retry_at_us = now_us + _RETRY_US
            return last
        if self._retry_at_us is not None:
            self._say("the service answers again.")
        self._retry_at_us = None
        self._batch_planned = False
        return self._take(reply, last.token)

    def _say(self, what: str) -> None:
        # Logging is not configured in this process; Spark passes its standard error on to the driver's.
        sys.stderr.write(printable(f'lowmark: stream "{self._stream}": {what}') + "\n")
        sys.stderr.flush()

    def _take(self, reply: HeartbeatReply, token: str) -> HeartbeatOffset:
        _check(reply)
        self._wake_at_us = reply.wake_at_us
        silent = self._client.silent_since
        known = None if self._last is None else self._last.client_silent_since
        self._last = HeartbeatOffset(
            self._stream, reply.low_watermark_us, token, reply.epoch, reply.state, self._split, silent
        )
        if silent is not None and known is None:
            self._say(f"the watermark holds, because its client has been silent since {silent}.")
        elif silent is None and known is not None:
            self._say("the client speaks again.")
        return self._last

    def _call(self, token: str, **more: Any) -> HeartbeatReply:
        from .driver_rpc import HeartbeatRequest

        request = HeartbeatRequest(
            self._stream_id, token, planned_at_us=self._planned_at_us, polled_until_us=self._polled_until_us,
            available_now=self._available_now, **more,
        )  # fmt: skip
        return self._client.heartbeat(request)

    @cached_property
    def _client(self) -> Client | ToldClient:
        from .driver_rpc import Client
        from .told import SCHEME, ToldClient

        return (ToldClient if self._address.startswith(SCHEME) else Client)(self._address)


def _is_planner() -> bool:
    """Whether this is the process in which Spark plans the batches of a stream's source.

    Asked only before Spark 4.2, so the name of the module in a newer Spark does not matter here.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == "pyspark.sql.streaming.python_streaming_source_runner"


def _check(reply: HeartbeatReply) -> None:
    if reply.refusal is not None:
        _hide_traceback()
        raise QueryRefused(reply.refusal)


def _hide_traceback() -> None:
    from lowmark.sources.spark.briefly import hide_traceback  # only for an error: it imports much

    hide_traceback()


def _end_quietly(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
    """Hide the error when Spark ends a reader's process by closing its socket, or users would see a traceback."""
    if not issubclass(kind, ConnectionError):
        sys.__excepthook__(kind, error, at)
