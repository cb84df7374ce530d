"""Streams of Pravega as a source: one split for each segment, read by Pravega's Java client into Arrow batches.

Rows have the stream, the segment, the offset (the byte of the segment where the event begins), the event's bytes
and, with `event_time=`, its time. Positions are bytes, so a batch can be read again; successors of segments
begin when their predecessors are read, at the lowest watermark of the predecessors.

Source: Pravega's client, and the plan of its Flink connector for FLIP-27 ("Pravega segment as the unit of a split").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from lowmark.sources.api import (
    Fetching,
    SourceReaderContext,
    SplitChange,
    SplitEnd,
    SplitEnumerator,
    SplitEnumeratorContext,
    SplitsAddition,
)
from lowmark.sources.kit.discovery import DiscoveredSplits, DiscoveringEnumerator, still_wanted
from lowmark.sources.kit.options import check_count, check_flags, goes_on, listed, seconds_of
from lowmark.sources.kit.simple import SimpleSource, SimpleSplitReader
from lowmark.sources.kit.subscription import Subscription
from lowmark.watermark.errors import shown

from .chunks import chunks
from .client import OPENED_TOGETHER, client_of
from .columns import EVENT_TIME, PravegaColumns
from .cuts import check_stream_cut, stream_cuts
from .enumerator import Positions, SegmentWalk
from .errors import InvalidPravegaOption, PravegaEventBroken
from .event_time import EventTime, unit_us
from .group import PravegaGroup
from .group_reader import GroupReader
from .jvm import leave_java, start_java
from .marks import notes_of_slice
from .notes import NOTED_TIME
from .planner import PravegaPlanner
from .retention import Retention
from .segment import PravegaLosses, PravegaSplit, segment_of
from .segment_bytes import SegmentBytes, Truncated
from .settings import PravegaSettings

Position = str | Sequence[str] | Mapping[str, str]


_ENDS = ("head", "tail")
_NAME = re.compile(r"[0-9A-Za-z.-]+")
_seconds = partial(seconds_of, refusal=InvalidPravegaOption)


class PravegaSplitReader(SimpleSplitReader[PravegaSplit]):
    """Opens all its segments before it reads the first. Its thread may end together with it."""

    def __init__(
        self, source: PravegaSource, columns: PravegaColumns, noted_unit_us: int | None, *, go_on: bool
    ) -> None:
        super().__init__(source)
        self._settings, self._columns, self._noted_unit_us = source.settings, columns, noted_unit_us
        self._loss = PravegaLosses(go_on=go_on, metrics=self.metrics)
        self._opened: dict[str, SegmentBytes] = {}  # each at the start of its split

    def handle_splits_changes(self, change: SplitChange[PravegaSplit]) -> None:
        super().handle_splits_changes(change)
        if isinstance(change, SplitsAddition) and len(change.splits) > 1:
            client = client_of(self._settings)
            for split in change.splits:
                with suppress(Truncated):  # reported when the segment is read
                    self._opened[split.split_id] = client.open_ahead(split.stream, split.segment, split.start)

    def close(self) -> None:
        try:
            super().close()
            for opened in self._opened.values():
                opened.close()
        finally:
            leave_java()

    def read(self, split: PravegaSplit) -> Iterator[tuple[pa.RecordBatch, int]]:
        assert split.stop is not None, "slices have one"
        client, position = client_of(self._settings), split.start
        notes = None if self._noted_unit_us is None else notes_of_slice(client, split, self._noted_unit_us)
        while position < split.stop:
            try:
                opened = self._opened.pop(split.split_id, None)
                for chunk in chunks(client, split, position, split.stop, opened=opened):
                    yield self._columns.rows(split, chunk, notes), chunk.after
                    position = chunk.after
            except Truncated:
                position = self._lost(split, position, split.stop)
                yield pa.RecordBatch.from_pylist([], self._columns.schema), position

    def _lost(self, split: PravegaSplit, position: int, stop: int) -> int:
        """Return where a slice goes on if some of its events were lost after it was planned."""
        state = client_of(self._settings).segment_state(split.stream, split.segment)
        if state is None or state.tail < stop:
            self._loss.found(split, position, None, None if state is None else state.tail)
            return stop
        if state.head <= position:
            what = f"nothing, although the segment has bytes {state.head} to {state.tail - 1}"
            raise PravegaEventBroken(split.split_id, position, what)
        self._loss.found(split, position, state.head)
        return min(state.head, stop)


class PravegaSource(SimpleSource[PravegaSplit]):
    """A source that reads streams of one scope. Give exactly one of `streams` and `stream_pattern`.

    Args:
        controller: "tcp://host:port" of Pravega's controller, "tls://host:port" with TLS.
        scope: the scope.
        streams: names of streams.
        stream_pattern: a regular expression for whole names of streams, also of streams that are made later, which
            begin at their head.
        start: where streams begin when they are first read: "head", "tail", the text of a StreamCut
            (`StreamCut.asText()`) or several, or {stream: one of these}.
        stop: None: the source never ends. Otherwise as `start`: where each stream ends; "tail" is its present end.
            Segments keep their end in the checkpoint, so another `stop` at a restart is refused.
        event_time: the place of the time in an event: a field of JSON such as "$.order.at", or a picklable function
            from Arrow's binary array to an array of times. Rows get a column `event_time`, and batches are cut by it;
            for this the driver reads every event once, too. None: batches are cut by numbers of events.
        event_time_unit: unit of numbers in JSON, and of noted times: "s", "ms" or "us".
        noted_time: whether to read Pravega's own time, which writers note (`noteTime`): rows get a column `noted_time`,
            a time such that no later event of the segment is earlier, null before the first. Without `event_time` it is
            the source's event time, at no cost for the driver. Segments are read only up to the newest mark, which
            Pravega makes every ten seconds; if writers note no time, no event is read.
        columns: the columns of rows, some of stream, segment, offset, event, event_time, noted_time; by default all.
        discover_every: how often to look for scalings and new streams, a duration. A sealed segment holds the watermark
            until its successors are found.
        on_data_loss: for events that were truncated before they were read: "error", or "go_on" without these events.
        give_up_after: how long Pravega may be away before an error, a duration.
        reader_group: the name of a reader group of Pravega whose checkpoints end the batches, so that its position is
            Spark's; docs/pravega.md tells the cost. The group is made, and reset to Spark's offset whenever
            the query starts. It is a `subscriber`, too. With `streams`, and without `stop` and `noted_time`.
        subscriber: the name of a reader group that is only told the read positions, so that retention by
            consumption keeps unread events; no reader reads in it. With `streams`.
        fetchers: how many segments a task reads side by side, 1 or more. Java reads ahead by itself, so more than one
            helps only if Pravega is far away; otherwise they slow each other down.
        jars: the places of pravega-client and its dependencies: a folder, a jar, a pattern, or several. By default
            the environment variable LOWMARK_PRAVEGA_JARS, of the driver and of each executor.
        jvm_options: options of the Java in each process that reads; by default a heap of 256 MB.
        username: for Pravega's basic authentication. Without it, Pravega's client looks into the environment
            itself (`pravega_client_auth_method`, `pravega_client_auth_token`).
        password: likewise.
        trust_store: a PEM file with the authority of Pravega's certificates, on every host that reads.
        validate_host_name: whether a certificate must name the host.

    Raises:
        InvalidPravegaOption: an option is invalid.

    >>> source = PravegaSource(controller="tcp://pravega:9090", scope="shop", streams=["orders"], event_time="$.at")
    >>> source.schema.names, source.event_time
    (['stream', 'segment', 'offset', 'event', 'event_time'], 'event_time')
    >>> source
    PravegaSource(tcp://pravega:9090, shop/orders)
    """

    split_type = PravegaSplit

    requires = ("jpype",)

    def __init__(
        self,
        *,
        controller: str,
        scope: str,
        streams: Sequence[str] | None = None,
        stream_pattern: str | None = None,
        start: Position = "head",
        stop: Position | None = None,
        event_time: str | Callable[[pa.BinaryArray], pa.Array[Any]] | EventTime | None = None,
        event_time_unit: str = "ms",
        noted_time: bool = False,
        columns: Sequence[str] | None = None,
        discover_every: str | timedelta = "1 second",
        on_data_loss: str = "error",
        give_up_after: str | timedelta = "1 minute",
        reader_group: str = "",
        subscriber: str = "",
        fetchers: int = 1,
        jars: str | Path | Sequence[str | Path] = (),
        jvm_options: Sequence[str] | None = None,
        username: str = "",
        password: str = "",
        trust_store: str | Path = "",
        validate_host_name: bool = True,
    ) -> None:
        if not re.fullmatch(r"(tcp|tls)://[^/\s]+:\d+", str(controller)):  # None: a variable that is not set
            raise InvalidPravegaOption(
                "controller", repr(controller), '"tcp://host:port" or "tls://host:port"', "9090 is usual."
            )
        if not scope:
            raise InvalidPravegaOption("scope", "nothing", "the name of a scope", "name the scope of the streams.")
        if bool(username) != bool(password):
            raise InvalidPravegaOption("username, password", "one of them", "both or none", "give both.")
        if isinstance(jvm_options, str):  # not shown, because an option may be a password
            raise InvalidPravegaOption("jvm_options", "a text", "a list of options", 'write ["-Xmx512m"].')
        check_flags({"noted_time": noted_time, "validate_host_name": validate_host_name}, InvalidPravegaOption)
        check_count(fetchers, "fetchers", InvalidPravegaOption, "each is a thread of a task.")
        self._streams = Subscription.of(
            streams,
            stream_pattern,
            InvalidPravegaOption,
            name_of=lambda name: name if _NAME.fullmatch(name) else None,
            expected="names, each once, of letters, digits, dots and hyphens",
            hint="say what to read.",
        )
        self._group_name = reader_group or subscriber
        if self._group_name:
            unfit = {"stop": stop is not None, "noted_time": noted_time} if reader_group else {}
            _check_group(reader_group, subscriber, {**unfit, "stream_pattern": stream_pattern is not None})
        self.externally_induced = bool(reader_group)
        self._start = _positions("start", start, scope, self._streams)
        self._stop = None if stop is None else _positions("stop", stop, scope, self._streams)
        self.bounded = stop is not None
        self._period_seconds = _seconds(discover_every, "discover_every")
        self._event_time = None if event_time is None else EventTime.of(event_time, event_time_unit)
        noted_unit_us = unit_us(event_time_unit)  # refuses an unknown unit, even if it is not needed
        self._noted_unit_us = noted_unit_us if noted_time else None
        self._columns = PravegaColumns(columns, self._event_time, noted=noted_time)
        self._go_on = goes_on(on_data_loss, InvalidPravegaOption)
        self.fetching = Fetching(splits_at_once=OPENED_TOGETHER) if fetchers == 1 else Fetching.side_by_side(fetchers)
        self.settings = PravegaSettings(
            controller,
            scope,
            tuple(map(str, listed(jars))),
            None if jvm_options is None else tuple(jvm_options),
            _seconds(give_up_after, "give_up_after"),
            username,
            password,
            str(trust_store or ""),
            validate_host_name,
        )

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> PravegaSource:
        """Make a source from options of `format("lowmark_pravega")`, or raise InvalidPravegaOption."""
        from .spark_options import arguments

        return cls(**arguments(options))

    def __repr__(self) -> str:
        each, scope = self._streams, self.settings.scope
        what = ",".join(f"{scope}/{name}" for name in each.named) if each.pattern is None else each.pattern
        return f"PravegaSource({self.settings.place}, {what})"

    @property
    def schema(self) -> pa.Schema:
        return self._columns.schema

    @property
    def event_time(self) -> str | None:
        return next((name for name in (EVENT_TIME, NOTED_TIME) if name in self._columns.names), None)

    def stream_cuts(self, positions: Mapping[str, int]) -> dict[str, str]:
        """Return the position of a query, from its checkpoint, as texts of StreamCuts, for `start=` or for Flink.

        Args:
            positions: the positions in the offset of a batch: split id -> the byte where it goes on.

        Returns:
            stream -> the text of its StreamCut.

        Raises:
            PravegaUnavailable, PravegaAccessDenied, PravegaStreamMissing: see their docstrings.
        """
        client = client_of(self.settings)
        return {stream: client.text_of(cut) for stream, cut in stream_cuts(client, positions).items()}

    def discover(self) -> Sequence[PravegaSplit]:
        return self._walk(DiscoveredSplits())()

    def create_planner(self) -> PravegaPlanner:
        """Make the planner, and start Java on the calling thread instead of on a short-lived thread."""
        start_java(self.settings.jars, self.settings.jvm_options)
        retention = None
        if self._group_name:
            retention = Retention(self._group, subscribes=not self.externally_induced)
        searched = self._event_time if self.event_time == EVENT_TIME else None
        return PravegaPlanner(
            self.settings,
            event_time=searched,
            noted_unit_us=self._noted_unit_us,
            go_on=self._go_on,
            retention=retention,
            subscribes=self._streams.wants,
            client=partial(client_of, self.settings),
        )

    def create_reader(self, context: SourceReaderContext) -> GroupReader | None:
        """Make a reader only for a reader group; start Java here, on the task's own thread."""
        start_java(self.settings.jars, self.settings.jvm_options)
        if not self.externally_induced:
            return None
        return GroupReader(self, name=self._group_name, group=self._group, metrics=context.metric_group)

    def _group(self) -> PravegaGroup:
        return PravegaGroup(client_of(self.settings), self._group_name, list(self._streams.named))

    def create_split_reader(self) -> PravegaSplitReader:
        return PravegaSplitReader(self, self._columns, self._noted_unit_us, go_on=self._go_on)

    def latest(self, splits: Sequence[PravegaSplit]) -> Mapping[str, SplitEnd]:
        return self.create_planner().latest(splits)

    def read(self, split: PravegaSplit) -> Iterator[tuple[pa.RecordBatch, int]]:
        return self.create_split_reader().read(split)

    def _walk(self, known: DiscoveredSplits[PravegaSplit]) -> SegmentWalk:
        return SegmentWalk(partial(client_of, self.settings), self._streams, self._start, self._stop, known)

    def restore_enumerator(
        self, context: SplitEnumeratorContext[PravegaSplit], state: DiscoveredSplits[PravegaSplit]
    ) -> SplitEnumerator[PravegaSplit, DiscoveredSplits[PravegaSplit]]:
        known = still_wanted(state, lambda name: self._streams.wants(segment_of(name)[0]))
        return DiscoveringEnumerator(
            context,
            self._walk(known),
            period_seconds=self._period_seconds,
            bounded=self.bounded,
            known=known,
            end=str(self._stop),
            max_failures=1,  # the client has tried for `give_up_after`
            source=repr(self),
        )


def _check_group(reader_group: str, subscriber: str, unfit: Mapping[str, bool]) -> None:
    option, name = ("reader_group", reader_group) if reader_group else ("subscriber", subscriber)
    if reader_group and subscriber:
        raise InvalidPravegaOption(
            "reader_group, subscriber", "both", "one of them", "a reader group is a subscriber, too."
        )
    if not _NAME.fullmatch(name):
        raise InvalidPravegaOption(option, repr(name), "a name of letters, digits, dots and hyphens", "rename it.")
    given = ", ".join(each for each, is_given in unfit.items() if is_given)
    if given:
        raise InvalidPravegaOption(
            option, f"{name!r} beside {given}", f"no {given} beside it", "a group is of named streams, and goes on."
        )


def _positions(option: str, given: object, scope: str, streams: Subscription) -> Positions:
    if isinstance(given, str) and given in _ENDS:
        found = Positions(given, {})
    else:
        found = Positions("head" if option == "start" else "tail", _cuts_by_stream(option, given, scope))
    for stream in found.cuts:
        if not streams.wants(stream):  # the position would have no effect
            wanted = f"one of {', '.join(streams.named)}" if streams.named else f"a name like {streams.pattern}"
            raise InvalidPravegaOption(option, f"a position of {stream}", wanted, "name the stream, or leave it out.")
    if option == "stop" and "head" in {found.otherwise, *found.cuts.values()}:
        raise InvalidPravegaOption("stop", "head", '"tail" or StreamCuts', "nothing would be read.")
    return found


def _cuts_by_stream(option: str, given: object, scope: str) -> dict[str, str]:
    if isinstance(given, Mapping):
        for stream, text in given.items():
            if text not in _ENDS:
                check_stream_cut(text, option, scope, stream)
        cuts, count = dict(given), len(given)
    else:
        texts = listed(given)
        if ends := [text for text in texts if text in _ENDS]:
            hint = f'write {option}="{ends[0]}", or {{stream: position}}.'
            raise InvalidPravegaOption(option, shown(given), "only StreamCuts in a list", hint)
        cuts, count = {check_stream_cut(text, option, scope): text for text in texts}, len(texts)
    if not cuts or len(cuts) < count:
        hint = "name each stream once, or leave the option out."
        raise InvalidPravegaOption(option, shown(given), "one StreamCut for each stream", hint)
    return cuts
