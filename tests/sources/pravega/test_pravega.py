"""The parts of the Pravega source that need no Pravega: events in bytes, their times, indexes, options."""

from __future__ import annotations

import base64
import gzip
import os
import pickle
import random
import struct
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from lowmark.sources.api import SplitEnd
from lowmark.sources.coordinator import FailoverPolicy, SourceFailed
from lowmark.sources.formats import FormatOptions
from lowmark.sources.kit.discovery import DiscoveredSplits
from lowmark.sources.kit.subscription import Subscription
from lowmark.sources.planning.options import PlanOptions
from lowmark.sources.planning.planner import BatchPlanner
from lowmark.sources.pravega import (
    EventTime,
    InvalidPravegaOption,
    NotedBound,
    PravegaClientMissing,
    PravegaDataLost,
    PravegaSource,
    PravegaStreamMissing,
    PravegaUnavailable,
)
from lowmark.sources.pravega import client as client_module
from lowmark.sources.pravega import index as index_module
from lowmark.sources.pravega import jvm as jvm_module
from lowmark.sources.pravega import planner as planner_module
from lowmark.sources.pravega import source as source_module
from lowmark.sources.pravega.chunks import Chunk
from lowmark.sources.pravega.client import PravegaClient, SegmentState, Silent, StreamCut
from lowmark.sources.pravega.enumerator import Positions, SegmentWalk
from lowmark.sources.pravega.event_time import NO_TIME
from lowmark.sources.pravega.events import NotAnEvent, ends_of_events, payloads
from lowmark.sources.pravega.index import BLOCK_ROWS, SegmentIndex
from lowmark.sources.pravega.jvm import JARS_VARIABLE, resolve_jars, start_java
from lowmark.sources.pravega.notes import Mark, Marks, notes_of
from lowmark.sources.pravega.planner import PravegaPlanner
from lowmark.sources.pravega.segment import PravegaSplit, split_of
from lowmark.sources.pravega.segment_bytes import Truncated
from lowmark.sources.pravega.settings import PravegaSettings
from lowmark.sources.reading.slices import read_slices
from lowmark.sources.serializer import UnreadableState
from lowmark.sources.slicing import SliceLimits, plan_slices
from lowmark.sources.testing import ManualEnumeratorContext

GIVEN: dict[str, Any] = {"controller": "tcp://pravega:9090", "scope": "shop", "streams": ["orders"]}


def cut_text(stream: str, at: int = 7) -> str:
    """Return a StreamCut at a byte of the stream's first segment, in Pravega's text."""
    return base64.b64encode(gzip.compress(f"0:{stream}:0:0:{at}".encode())).decode()


def framed(events: list[bytes]) -> bytes:
    return b"".join(struct.pack(">ii", 0, len(event)) + event for event in events)


@pytest.mark.parametrize("seed", range(20))
def test_events_come_out_as_they_went_in(seed: int) -> None:
    rng = random.Random(seed)
    events = [rng.randbytes(rng.randrange(30)) for _ in range(rng.randrange(1, 50))]
    data = framed(events)
    size = rng.randrange(len(data) + 1)
    whole, at = [], 0
    for event in events:
        at += 8 + len(event)
        if at <= size:
            whole.append(event)
    found = ends_of_events(bytearray(data), size)
    assert payloads(bytearray(data), found).to_pylist() == whole, f"seed {seed}"


@pytest.mark.parametrize(("data", "at"), [(b"\0\0\0\1\0\0\0\0", 0), (framed([b"ab"]) + b"\0\0\0\0\xff\0\0\0", 10)])
def test_what_is_no_event_is_named(data: bytes, at: int) -> None:
    with pytest.raises(NotAnEvent) as wrong:
        ends_of_events(bytearray(data), len(data))
    assert wrong.value.at == at


class Segment:
    """Events in memory, each with a time, and the number of bytes read."""

    def __init__(self, rng: random.Random, count: int) -> None:
        sizes = [rng.randrange(40) for _ in range(count)]
        self.data = framed([bytes(size) for size in sizes])
        self.begins = np.concatenate(([0], np.cumsum([size + 8 for size in sizes]))).astype(np.int64)
        self.times = [NO_TIME if rng.random() < 0.05 else n * 10 - rng.randrange(60) for n in range(count)]
        self.read_bytes = 0
        self._rng = rng

    def read(self, start: int, stop: int) -> Iterator[Chunk]:
        while start < stop:
            first = int(np.searchsorted(self.begins, start))
            last = min(first + self._rng.randrange(1, 900), int(np.searchsorted(self.begins, stop)))
            ends = self.begins[first + 1 : last + 1] - start
            self.read_bytes += int(ends[-1])
            yield Chunk(start, bytearray(self.data[start : start + int(ends[-1])]), ends)
            start += int(ends[-1])

    def times_us(self, chunk: Chunk) -> np.ndarray[Any, np.dtype[np.int64]]:
        first = int(np.searchsorted(self.begins, chunk.position))
        return np.array(self.times[first : first + len(chunk.ends)], np.int64)


@pytest.mark.parametrize("seed", range(12))
def test_an_index_answers_as_who_looks_at_every_event(seed: int) -> None:
    rng = random.Random(seed)
    segment = Segment(rng, rng.choice([1, 255, 256, 257, 3_000]))
    count = len(segment.times)
    first = rng.randrange(max(1, count // 3))
    index = SegmentIndex(int(segment.begins[first]), segment.read, segment.times_us)
    for _ in range(60):
        index.extend(
            int(segment.begins[rng.randrange(first, count + 1)]), rows=rng.choice([None, rng.randrange(2_000)])
        )
        known = first + index.rows
        assert index.end == segment.begins[known]
        number = rng.randrange(first, known + 1)
        assert index.rows_before(int(segment.begins[number])) == number - first, f"seed {seed}"
        assert index.after_rows(number - first) == segment.begins[number], f"seed {seed}"
        time_us = rng.randrange(-100, count * 10 + 100)
        there = [int(segment.begins[n]) for n in range(first, known) if segment.times[n] >= time_us]
        assert index.find_time(time_us) == (there[0] if there else None), f"seed {seed}"
        beyond = int(segment.begins[count])
        assert index.rows_before(beyond) >= count - first, "an upper bound where nothing is known"


@pytest.mark.parametrize("seed", range(4))
def test_an_index_that_forgets_answers_the_same_and_is_as_large_as_what_waits(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "BLOCKS_BEHIND", 2)
    rng = random.Random(seed)
    segment = Segment(rng, 40 * BLOCK_ROWS + rng.randrange(BLOCK_ROWS))
    whole = SegmentIndex(0, segment.read, segment.times_us)
    index = SegmentIndex(0, segment.read, segment.times_us)
    count, first = len(segment.times), 0
    while first < count:
        ahead = min(count, first + rng.randrange(1, 3 * BLOCK_ROWS))
        for each in (whole, index):
            each.extend(int(segment.begins[ahead]))
        first = rng.randrange(first, ahead + 1) if ahead < count else count
        index.forget(int(segment.begins[first]))
        kept_rows = index.rows - index.rows_before(index.begin)
        assert kept_rows <= ahead - first + 6 * BLOCK_ROWS, f"seed {seed}: what was read is kept"
        assert index.begin <= segment.begins[first], f"seed {seed}"
        for _ in range(5):
            number = rng.randrange(int(np.searchsorted(segment.begins, index.begin)), ahead + 1)
            position = int(segment.begins[number])
            assert index.rows_before(position) == whole.rows_before(position) == number, f"seed {seed}"
            assert index.after_rows(number) == whole.after_rows(number) == position, f"seed {seed}"
            time_us = rng.randrange(-100, count * 10 + 100)
            found, expected = index.find_time(time_us), whole.find_time(time_us)
            assert found == (expected if expected is None else max(expected, index.begin)), f"seed {seed}"
    assert index.begin > segment.begins[30 * BLOCK_ROWS], "it forgot most"


def test_an_index_reads_every_byte_once() -> None:
    segment = Segment(random.Random(7), 10 * BLOCK_ROWS)
    index = SegmentIndex(0, segment.read, segment.times_us)
    for stop in range(100, len(segment.begins), 100):
        index.extend(int(segment.begins[stop]))
        index.find_time(stop * 10)
    assert segment.read_bytes == index.end


def test_times_are_found_in_json_and_by_functions() -> None:
    events: pa.BinaryArray = pa.array(
        [b'{"a": {"at": 1.5}}', b'{"a": {"at": "1970-01-01T01:00:00+01:00"}}', b'{"a": null}', b'{"a": 3}', b"\xff",
         b"",
         b'{"a": {"at": 1e300}}', b'{"a": {"at": "yesterday"}}', None,
         b'{"deep": ' + b"[" * 5_000 + b"]" * 5_000 + b', "a": {"at": 1}}'], pa.binary()
    )  # fmt: skip
    numbers: pa.BinaryArray = pa.array([b'{"at": "1700000000000"}', b'{"at": "1.5"}', b'{"at": "-3"}'], pa.binary())
    assert EventTime("$.at").times_us(numbers).tolist() == [1_700_000_000_000_000, 1_500, -3_000], "numbers as text"
    texts: pa.BinaryArray = pa.array([b'{"at": "1970-01-01T00:00:01.123456789Z"}', b'{"at": "19700101T000000.5Z"}'])
    assert EventTime("$.at").times_us(texts).tolist() == [1_123_456, 500_000], "also by Python 3.10"
    found = EventTime("$.a.at", "s").times_us(events).tolist()
    assert found == [1_500_000, 0, *[NO_TIME] * 8]
    assert pickle.loads(pickle.dumps(EventTime("$.a.at", "s"))).times_us(events).tolist() == found  # noqa: TID251
    odd: pa.BinaryArray = pa.array([b'{"__init__": 7, "__class__": {"field": 8}}'], pa.binary())
    named = [EventTime(path).times_us(odd).tolist() for path in ("$.__init__", "$.__class__.field", "$.field")]
    assert named == [[7_000], [8_000], [NO_TIME]], "any name of JSON"
    naive = EventTime.of(lambda given: pa.array([7] * len(given), pa.timestamp("ms")))
    assert naive.times_us(events).tolist() == [7_000] * 10


@pytest.mark.parametrize(
    ("times", "us"),
    [
        (pa.nulls(1), NO_TIME),
        (pa.array([7], pa.uint32()), 7),
        (pa.array([1_999], pa.timestamp("ns", "UTC")), 1),
        (pa.chunked_array([pa.array([7], pa.timestamp("s"))]), 7_000_000),
    ],
)
def test_a_function_returns_timestamps_or_whole_microseconds(times: Any, us: int) -> None:
    events: pa.BinaryArray = pa.array([b"{}"], pa.binary())
    assert EventTime.of(lambda _: times).times_us(events).tolist() == [us]


@pytest.mark.parametrize(
    ("times", "got"),
    [
        (pa.array([7, 8]), "Int64Array for 1 events"),
        ([7], "list for 1 events"),
        (pa.array(["1700000000000000"]), "an array of string"),
        (pa.array(["yesterday"]), "an array of string"),
        (pa.array([1.5]), "an array of double"),
        (pa.array([True]), "an array of bool"),
        (pa.array([date(2026, 11, 28)]), "an array of date32"),
        (pa.array([date(2026, 11, 28)], pa.date64()), "an array of date64"),
        (pa.array([timedelta(seconds=1)]), "an array of duration"),
        (pa.array([2**62], pa.timestamp("s")), "an array of timestamp.*out of bounds.*null is for"),
        (pa.array([2**64 - 1], pa.uint64()), "an array of uint64.*null is for"),
    ],
)
def test_what_a_function_returns_instead_of_times_is_refused(times: Any, got: str) -> None:
    events: pa.BinaryArray = pa.array([b"{}"], pa.binary())
    expected = "an array with a time for each: timestamps, or whole microseconds"
    with pytest.raises(InvalidPravegaOption, match=f"event_time: expected {expected}, got {got}"):
        EventTime.of(lambda _: times).times(events)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"controller": "pravega:9090"}, "controller: expected"),
        ({"controller": None}, "controller: expected .*, got None"),
        ({"jvm_options": "-Xmx1g"}, "jvm_options: expected a list of options, got a text"),
        ({"streams": "orders"}, "streams: expected a list of names"),
        ({"stream_pattern": "o.*"}, "exactly one of them, got streams and stream_pattern"),
        ({"streams": None}, "exactly one of them, got none"),
        ({"streams": None, "stream_pattern": "("}, "stream_pattern: expected a regular expression"),
        ({"streams": ["a/b"]}, "streams: expected names"),
        ({"stop": "head"}, "stop: expected"),
        ({"event_time": "at"}, "event_time: expected a path"),
        ({"event_time": 5}, "event_time: expected a path such as .*, or a function, got 5"),
        ({"event_time": "$.at", "event_time_unit": "h"}, "event_time_unit: expected s, ms or us"),
        ({"columns": ["event_time"]}, "columns: expected some of"),
        ({"columns": 5}, "columns: expected some of .* got 5"),
        ({"columns": "event"}, r"columns: expected some of .* Hint: write \['event'\]"),
        ({"on_data_loss": "cry"}, "on_data_loss: expected"),
        ({"username": "me"}, "username, password: expected both or none, got one of them"),
        ({"give_up_after": "soon"}, "give_up_after: expected a duration"),
        ({"discover_every": timedelta(0)}, "discover_every: expected a duration above 0"),
        ({"fetchers": 0}, "fetchers: expected a whole number, 1 or more"),
        ({"scope": ""}, "scope: expected the name"),
        ({"noted_time": True, "event_time_unit": "h"}, "event_time_unit: expected s, ms or us"),
        ({"fetchers": "3"}, "fetchers: expected a whole number, 1 or more, got '3'"),
        ({"start": "nonsense"}, "start: expected .* the text of a StreamCut, got 'nonsense'"),
        ({"stop": ["bm90IGd6aXA="]}, "stop: expected .* the text of a StreamCut"),
        ({"start": {"orders": cut_text("shop/returns")}}, "start: expected one of shop/orders, got a StreamCut of"),
        ({"start": cut_text("shop/returns")}, "start: expected one of orders, got a position of returns"),
        ({"start": {"returns": "tail"}}, "start: expected one of orders, got a position of returns"),
        ({"start": [cut_text("shop/orders")] * 2}, "start: expected one StreamCut for each stream"),
        ({"start": ["tail"]}, r'start: expected only StreamCuts in a list, got .* Hint: write start="tail"'),
        ({"noted_time": "false"}, "noted_time: expected True or False, got 'false'"),
        ({"streams": None, "stream_pattern": "o.*", "start": {"returns": "tail"}}, r"expected a name like o\.\*, got"),
        ({"start": 5}, "start: expected .* the text of a StreamCut, got 5"),
        ({"start": None}, "start: expected .* the text of a StreamCut, got None"),
        ({"start": [5]}, "start: expected .* the text of a StreamCut, got 5"),
        ({"start": {"orders": None}}, "start: expected .* the text of a StreamCut, got None"),
        ({"start": {"orders": ["tail"]}}, r"start: expected .* the text of a StreamCut, got \['tail'\]"),
        ({"stop": {"orders": cut_text("shop/orders").encode()}}, "stop: expected .* the text of a StreamCut, got b'"),
        ({"stop": {"orders": "head"}}, 'stop: expected "tail" or StreamCuts, got head'),
        ({"stop": []}, r"stop: expected one StreamCut for each stream, got \[\]"),
        ({"start": {}}, "start: expected one StreamCut for each stream, got {}"),
        ({"start": cut_text("elsewhere/orders")}, "start: expected one of scope shop, got a StreamCut of elsewhere"),
    ],
)
def test_a_wrong_option_is_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidPravegaOption, match=said):
        PravegaSource(**{**GIVEN, **change})


@pytest.mark.parametrize("jars", ["x", Path("x"), ["x"], [Path("x")]])
def test_the_place_of_the_jars_is_a_text_or_a_path(jars: Any) -> None:
    assert PravegaSource(**{**GIVEN, "jars": jars}).settings.jars == ("x",)


@pytest.mark.parametrize(("given", "kept"), [(Path("/tls/ca.pem"), "/tls/ca.pem"), ("ca.pem", "ca.pem"), (None, "")])
def test_the_place_of_the_trust_store_is_a_text_or_a_path(given: Any, kept: str) -> None:
    """Java takes a text only."""
    assert PravegaSource(**{**GIVEN, "trust_store": given}).settings.trust_store == kept


def test_the_format_takes_the_same_options() -> None:
    options = {"controller": "tcp://h:9090", "scope": "shop", "streams": "orders,returns", "eventTime": "$.at",
               "password": "s3cret", "username": "me", "fetchers": "3", "validateHostName": "false", "tasks": "2",
               "columns": "event_time,event", "notedTime": "true",
               "jvmOptions": "-Xmx512m -Xlog:gc,safepoint"}  # fmt: skip
    source = FormatOptions.read("lowmark_pravega", options).source
    assert isinstance(source, PravegaSource)
    assert repr(source) == "PravegaSource(tcp://h:9090, shop/orders,shop/returns)"
    assert (source.schema.names, source.fetching.threads) == (["event_time", "event"], 3)
    assert source.settings.jvm_options == ("-Xmx512m", "-Xlog:gc,safepoint")
    assert "s3cret" not in repr(source.settings)
    for wrong, said in [
        ({"strams": "x"}, "strams"),
        ({"fetchers": "many"}, "fetchers"),
        ({"fetchers": "9" * 5_000}, "fetchers: expected a whole number, 1 or more"),
        ({"validateHostName": "1"}, "true"),
    ]:
        with pytest.raises(InvalidPravegaOption, match=said):
            FormatOptions.read("lowmark_pravega", {**options, **wrong})
    with pytest.raises(InvalidPravegaOption, match="scope"):
        FormatOptions.read("lowmark_pravega", {"controller": "tcp://h:9090"})


def test_a_watermark_stays_within_what_writers_have_noted() -> None:
    told: list[int] = []
    output: Any = type("Output", (), {"emit_watermark": lambda _, watermark_us: told.append(watermark_us)})()
    generator = NotedBound(1_000_000)
    noted = datetime(1970, 1, 1, 0, 0, 5, tzinfo=timezone.utc)
    for at_us, column in [(9_000_000, None), (9_000_000, noted), (5_500_000, noted), (20_000_000, noted)]:
        generator.on_event({"noted_time": column}, at_us, output)
        generator.on_periodic_emit(output)
    assert told == [4_999_000, 4_999_000, 4_999_000]
    late = NotedBound(10_000_000)
    late.on_event({"noted_time": noted}, 9_000_000, output)
    late.on_periodic_emit(output)
    assert told[-1] == -1_001_000


@pytest.mark.parametrize("seed", range(10))
def test_notes_never_say_more_of_a_segment_than_its_marks(seed: int) -> None:
    """Events are written to one segment, then to its two successors; a mark has the writers' positions and time."""
    rng = random.Random(seed)
    left, right = 1 << 32 | 1, 1 << 32 | 2
    ends, now, times = {0: 0}, 0, {0: list[tuple[int, int]](), left: [], right: []}
    marks: list[Mark] = []
    for step in range(120):
        if step == 60:
            ends = {left: 0, right: 0}
        segment = rng.choice(sorted(ends))
        now += rng.randrange(3)
        times[segment].append((ends[segment], now))
        ends[segment] += 10
        if rng.random() < 0.2 and (not marks or marks[-1].lower < now):
            marks.append(Mark(now, dict(ends)))
    for segment, written in times.items():
        notes = notes_of(marks, split_of("orders", segment), 1)
        positions = np.array([byte for byte, _ in written], np.int64)
        noted = notes.at_us(positions)
        assert all(at >= us for us, (_, at) in zip(noted.tolist(), written, strict=True)), f"seed {seed}"
        assert (noted[1:] >= noted[:-1]).all()
        for mark in marks:  # knowledge from fewer marks stays valid
            before = notes_of(marks[: marks.index(mark) + 1], split_of("orders", segment), 1)
            final = positions < before.known
            assert (before.at_us(positions)[final] == noted[final]).all(), f"seed {seed}"


class Uncounted(PravegaPlanner):
    """A planner that counts bytes and reads no event."""

    def rows_before(self, split: PravegaSplit, position: int) -> int:
        return position - split.start

    def _index_small(self, splits: Sequence[PravegaSplit]) -> None: ...


class Halves(PravegaClient):
    """Two successive segments; the first gives no answer, or is gone."""

    def __init__(self, states: Mapping[tuple[str, int], SegmentState | None]) -> None:
        self.settings = PravegaSettings("tcp://pravega:9090", "shop", (), None, 7.0)
        self.states_of, self.forgotten = states, list[tuple[str, int]]()

    def head(self, stream: str) -> StreamCut:
        return StreamCut(stream, {0: 100})

    def tail(self, stream: str) -> StreamCut:
        return StreamCut(stream, {NEXT: 0})

    def between(self, start: StreamCut, stop: StreamCut) -> list[int]:
        return [0, NEXT]

    def successors(self, stream: str, segments: Sequence[int]) -> dict[int, dict[int, tuple[int, ...]]]:
        return {segment: {NEXT: (0,)} if segment == 0 else {} for segment in segments}

    def states(
        self, segments: Iterable[tuple[str, int]], *, patience_seconds: float
    ) -> dict[tuple[str, int], SegmentState | None]:
        found = {key: self.states_of[key] for key in segments if key in self.states_of}
        if not found:
            raise Silent("nobody there")
        return found

    def open_segments(self, stream: str) -> frozenset[int]:
        return frozenset()

    def exists(self, stream: str) -> bool:
        return True

    def forget(self, stream: str, segment: int) -> None:
        self.forgotten.append((stream, segment))


NEXT = 1 << 32 | 1


def bounded(client: PravegaClient) -> Sequence[PravegaSplit]:
    return SegmentWalk(
        lambda: client,
        Subscription({"orders": "orders"}),
        Positions("head", {}),
        Positions("tail", {}),
        DiscoveredSplits(),
    )()


class Sealed(Halves):
    """Streams of a pattern: `orders` is sealed, with its second segment as the last one; `returns` comes later."""

    def __init__(self) -> None:
        halves = {("orders", 0): SegmentState(0, 100, sealed=True), ("orders", NEXT): SegmentState(0, 70, sealed=True)}
        super().__init__(halves)
        self.there = ["orders"]

    def streams(self) -> list[str]:
        return self.there

    def head(self, stream: str) -> StreamCut:
        return StreamCut(stream, {0: 0})

    def tail(self, stream: str) -> StreamCut:
        return StreamCut(stream, {})

    def between(self, start: StreamCut, stop: StreamCut) -> list[int]:
        assert start.positions, "Pravega answers with an internal error"
        return [segment for segment in super().between(start, stop) if segment >= min(start.positions)]


@pytest.mark.parametrize("stop", [None, Positions("tail", {})])
def test_of_a_stream_that_is_sealed_before_the_start_at_the_tail_no_event_is_read(stop: Positions | None) -> None:
    client = Sealed()
    streams, tail = Subscription(pattern=".*"), Positions("tail", {})
    begun = SegmentWalk(lambda: client, streams, tail, stop, DiscoveredSplits())()
    planner = PravegaPlanner(client.settings, event_time=None, go_on=False, client=lambda: client)
    assert {name: (end.position, end.finished) for name, end in planner.latest(begun).items()} == {
        "orders/1.#epoch.1": (70, True)
    }
    assert [split.start for split in begun] == [70]


def test_another_end_is_refused_because_known_segments_keep_theirs() -> None:
    made = partial(PravegaSource, controller="tcp://pravega:9090", scope="shop", streams=["orders"])
    stops: list[Any] = [None, "tail", cut_text("shop/orders", 1), cut_text("shop/orders", 2)]
    states = [
        made(stop=stop).create_enumerator(ManualEnumeratorContext[PravegaSplit]()).snapshot_state(1) for stop in stops
    ]
    for before, state in enumerate(states):
        for now, stop in enumerate(stops):
            again = partial(made(stop=stop).restore_enumerator, ManualEnumeratorContext[PravegaSplit]())
            known = replace(state, discovered=True)
            if now == before:
                assert again(known).snapshot_state(2).end == known.end
            else:
                with pytest.raises(UnreadableState, match="the checkpoint has the end"):
                    again(known)
    assert states[2].end == "orders: 0:shop/orders:0:0:1, otherwise tail"


def test_a_restart_takes_no_stream_that_was_sealed_before_the_start_for_a_new_one() -> None:
    """A stream that comes later begins at its head."""
    client = Sealed()
    walk = partial(SegmentWalk, lambda: client, Subscription(pattern=".*"), Positions("tail", {}), None)
    ids = [split.split_id for split in walk(DiscoveredSplits())()]
    again = walk(DiscoveredSplits(discovered=True, assigned=tuple(ids)))
    assert not again()
    client.there = ["orders", "returns"]
    assert {split.split_id: split.start for split in again()} == {"returns/0.#epoch.0": 0, "returns/1.#epoch.1": 0}


def test_a_stream_that_is_left_out_is_read_no_further_and_again_when_it_is_named_again() -> None:
    """The query read the stream until it scaled, missed its successors, and held the watermark for ever."""
    client = Halves(
        {("orders", 0): SegmentState(0, 900, sealed=False), ("returns", 0): SegmentState(0, 900, sealed=True)}
    )
    streams = Subscription({"orders": "orders"})
    planner = Uncounted(client.settings, event_time=None, go_on=False, client=lambda: client, subscribes=streams.wants)
    ends = planner.latest([split_of("orders", 0, 100), split_of("returns", 0, 200)])
    assert {name: (end.position, end.finished) for name, end in ends.items()} == {
        "orders/0.#epoch.0": (900, False),
        "returns/0.#epoch.0": (200, True),
    }
    state = DiscoveredSplits[PravegaSplit](discovered=True, assigned=("orders/0.#epoch.0", "returns/0.#epoch.0"))
    source = PravegaSource(controller="tcp://h:9090", scope="shop", streams=["orders"])
    restored = source.restore_enumerator(ManualEnumeratorContext[PravegaSplit](), state)
    assert restored.snapshot_state(1).assigned == ("orders/0.#epoch.0",)


def test_a_sealed_stream_that_is_deleted_while_its_tail_is_looked_up_is_not_there() -> None:
    client = Sealed()
    client.states_of = dict.fromkeys(client.states_of)
    with pytest.raises(PravegaStreamMissing, match="stream shop/orders is not there"):
        Positions("tail", {}).resolve(client, "orders")


@pytest.mark.parametrize("go_on", [False, True])
def test_a_stream_that_was_made_anew_is_told_and_not_taken_for_a_truncated_one(go_on: bool) -> None:
    """With "go_on", which the error recommended, the query read nothing of the new stream and held the watermark."""

    class Anew(Halves):
        def successors(self, stream: str, segments: Sequence[int]) -> dict[int, dict[int, tuple[int, ...]]]:
            return {segment: {} for segment in segments}

        def open_segments(self, stream: str) -> frozenset[int]:
            return frozenset([7])

    client = Anew({("orders", 0): None})
    planner = PravegaPlanner(client.settings, event_time=None, go_on=go_on, client=lambda: client)
    with pytest.raises(
        PravegaStreamMissing, match=r"made anew; orders/0.#epoch.0 was read up to byte 100.*new checkpoint"
    ):
        planner.latest([split_of("orders", 0, 100)])


@pytest.mark.parametrize(
    ("start", "stop", "later"),
    [
        ({0: 100}, {0: 99}, True),
        ({0: 100}, {0: 100}, False),
        ({NEXT: 0}, {0: 100}, True),
        ({0: 100}, {NEXT: 0}, False),
        ({0: 100, NEXT: 0}, {0: 90, NEXT: 7}, True),
        ({0: 100, NEXT + 1: 0}, {0: 100, 1: 50}, True),
        ({0: 100, 1: 50}, {0: 100, NEXT + 1: 0}, False),
    ],
)
def test_a_stop_before_the_start_is_refused(start: dict[int, int], stop: dict[int, int], later: bool) -> None:
    """Retention had passed the stop: after a minute, Pravega was called away, and its address doubted."""

    class Cuts(Halves):
        def head(self, stream: str) -> StreamCut:
            return StreamCut(stream, start)

        def tail(self, stream: str) -> StreamCut:
            return StreamCut(stream, stop)

    client = Cuts({("orders", segment): SegmentState(0, 100, sealed=True) for segment in (0, NEXT)})
    if later:
        with pytest.raises(
            InvalidPravegaOption, match=r"a position of orders before its start.*truncated beyond the stop"
        ):
            bounded(client)
    else:
        assert {split.segment for split in bounded(client)} == {0, NEXT}


def test_a_bounded_segment_that_nobody_answers_for_is_not_taken_for_an_empty_one() -> None:
    with pytest.raises(PravegaUnavailable, match=r"where segments of orders end, tried for 7 s: nobody there"):
        bounded(Halves({}))


def test_a_bounded_segment_that_is_gone_is_a_loss_and_not_an_empty_one() -> None:
    client = Halves({("orders", 0): None, ("orders", NEXT): SegmentState(0, 0, sealed=False)})
    splits = bounded(client)
    for go_on in (False, True):
        planner = PravegaPlanner(client.settings, event_time=None, go_on=go_on, client=lambda: client)
        if go_on:
            assert planner.latest(splits)["orders/0.#epoch.0"].finished
            assert planner.metric_values()["data_losses"] == 1
        else:
            with pytest.raises(PravegaDataLost, match=r"orders/0.#epoch.0.*up to byte 100.*whole segment is gone"):
                planner.latest(splits)


def test_a_segment_with_a_stop_that_is_gone_is_finished() -> None:
    """The segment held the watermark for ever, and the bounded query did not end."""
    client = Halves({("orders", 0): None})
    planner = PravegaPlanner(client.settings, event_time=None, go_on=True, client=lambda: client)
    assert planner.latest([split_of("orders", 0, 100, 500)])["orders/0.#epoch.0"].finished
    assert planner.metric_values()["lost_bytes"] == 400
    assert not planner.latest([split_of("orders", 0, 100)])["orders/0.#epoch.0"].finished, "without a stop they count"


@pytest.mark.parametrize("stop", [None, 80])
def test_a_segment_that_ends_before_what_was_read_of_it_is_a_loss(stop: int | None) -> None:
    """A Pravega that was set up anew gives its first segments the same numbers."""
    client = Halves({("orders", 0): SegmentState(0, 50, sealed=False)})
    split = split_of("orders", 0, 60, stop)
    strict = PravegaPlanner(client.settings, event_time=None, go_on=False, client=lambda: client)
    with pytest.raises(PravegaDataLost, match=r"read up to byte 60, and it ends at byte 50 now.*a new checkpoint"):
        strict.latest([split])
    bearing = PravegaPlanner(client.settings, event_time=None, go_on=True, client=lambda: client)
    ends = [bearing.latest([split])["orders/0.#epoch.0"] for _ in range(2)]

    assert ends == [SplitEnd(60, rows=0, size_bytes=0, finished=stop is not None)] * 2
    assert bearing.metric_values()["data_losses"] == 1
    assert bearing.metric_values()["lost_bytes"] == (0 if stop is None else 20)


def test_a_planner_that_nobody_tells_the_head_calls_nothing_lost() -> None:
    client = Halves({("orders", 0): SegmentState(0, 50, sealed=False)})

    def truncated_meanwhile(stream: str, segment: int, position: int) -> Any:
        client.states_of = {}
        raise Truncated

    client.open = truncated_meanwhile  # type: ignore[method-assign]
    planner = PravegaPlanner(client.settings, event_time=None, go_on=True, client=lambda: client)
    with pytest.raises(PravegaUnavailable, match=r"the head of orders/0.#epoch.0"):
        planner.latest([split_of("orders", 0)])
    assert planner.metric_values()["data_losses"] == 0


class Truncating(Halves):
    """One segment of events of ten bytes, which is truncated in the moment of the next read, if asked for."""

    def __init__(self, tail: int) -> None:
        super().__init__({})
        self.grow(tail)
        self.truncated_next: int | None = None

    def grow(self, tail: int, head: int = 0) -> None:
        self.head_now, self.tail_now = head, tail
        self.states_of = {("orders", 0): SegmentState(head, tail, sealed=False)}

    def open(self, stream: str, segment: int, position: int) -> Any:
        return SimpleNamespace(read_into=partial(self._read_into, [position]), close=lambda: None)

    def open_ahead(self, stream: str, segment: int, position: int) -> Any:
        return self.open(stream, segment, position)

    def _read_into(self, at: list[int], data: memoryview) -> None:
        if self.truncated_next is not None:
            self.grow(self.tail_now, self.truncated_next)
            self.truncated_next = None
        if at[0] < self.head_now:
            raise Truncated
        data[:] = (framed([b"ab"]) * (self.tail_now // 10))[at[0] : at[0] + len(data)]
        at[0] += len(data)


def test_of_bytes_that_are_truncated_before_they_are_read_those_with_an_index_are_counted_too() -> None:
    client = Truncating(1_000)
    planner = PravegaPlanner(client.settings, event_time=None, go_on=True, client=lambda: client)
    planner.latest([split_of("orders", 0)])
    assert planner.metric_values()["indexed_events"] == 100
    client.grow(2_000)
    client.truncated_next = 1_500
    for _ in range(2):
        planner.latest([split_of("orders", 0, 300)])
    assert planner.metric_values()["lost_bytes"] == 1_200, "bytes 300 to 1500"
    assert planner.metric_values()["data_losses"] == 1


@pytest.mark.parametrize("go_on", [False, True])
def test_bytes_truncated_after_they_were_read_are_no_loss(go_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention by consumption truncates up to the read position, in the midst of a block."""
    monkeypatch.setattr(index_module, "KEPT_BLOCKS", 1)
    client, standing = Truncating(40 * BLOCK_ROWS), split_of("orders", 0, 3_000)
    planner = PravegaPlanner(client.settings, event_time=None, go_on=go_on, client=lambda: client)
    planner.latest([split_of("orders", 0)])
    end = planner.latest([standing])[standing.split_id]
    planner.after_rows(standing, 700, end)  # now the block of the start is not kept
    client.grow(40 * BLOCK_ROWS, head=3_000)
    assert planner.after_rows(standing, 10, end) > 3_000
    assert planner.latest([standing])[standing.split_id] == replace(end, rows=724)
    assert planner.after_rows(standing, 10, end) == 3_100
    assert planner.metric_values()["data_losses"] == planner.metric_values()["lost_bytes"] == 0


@pytest.mark.parametrize("asked", ["rows", "time"])
def test_an_index_that_is_behind_truncated_bytes_begins_anew(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches below their limits need no index, so the index stays behind while retention truncates the stream."""
    monkeypatch.setattr(planner_module, "EXACT_BYTES", 100)
    client, standing = Truncating(1_000), split_of("orders", 0, 1_500)
    times = EventTime.of(lambda events: pa.array([7] * len(events), pa.int64()))
    planner = PravegaPlanner(client.settings, event_time=times, go_on=False, client=lambda: client)
    planner.latest([split_of("orders", 0)])
    client.grow(2_000, head=1_200)
    end = planner.latest([standing])[standing.split_id]
    if asked == "rows":
        assert planner.after_rows(standing, 5, end) == 1_550
    else:
        assert planner.find_time([standing], 7) == {standing.split_id: 1_500}
    assert planner.metric_values()["data_losses"] == 0


def test_bytes_that_are_truncated_while_a_batch_is_planned_are_left_to_its_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planner_module, "EXACT_BYTES", 100)
    client, split = Truncating(1_000), split_of("orders", 0)
    planner = PravegaPlanner(client.settings, event_time=None, go_on=True, client=lambda: client)
    end = planner.latest([split])[split.split_id]
    client.truncated_next = 500
    assert planner.after_rows(split, 5, end) == 1_000
    assert planner.metric_values()["lost_bytes"] == 500


def test_of_segments_that_are_read_no_more_nothing_is_kept() -> None:
    now = [0.0]
    client = Halves({("orders", at): SegmentState(0, 50, sealed=at == 0) for at in (0, NEXT)})
    planner = PravegaPlanner(
        client.settings, event_time=None, go_on=False, client=lambda: client, now_seconds=lambda: now[0]
    )
    first, second = split_of("orders", 0, 50), split_of("orders", NEXT, 50, parents=(0,))
    planner.latest([first, second])
    for now[0] in (500.0, 1_000.0):
        planner.latest([second])
    assert client.forgotten == [("orders", 0)], "Java's clients of it are let go, too"


def test_a_segment_that_is_sealed_before_its_successors_are_known_holds() -> None:
    class Scaling(Halves):
        known = False

        def successors(self, stream: str, segments: Sequence[int]) -> dict[int, dict[int, tuple[int, ...]]]:
            return super().successors(stream, segments) if self.known else {segment: {} for segment in segments}

        def open_segments(self, stream: str) -> frozenset[int]:
            return frozenset({NEXT})

    states = {0: SegmentState(0, 50, sealed=True), NEXT: SegmentState(0, 0, sealed=False)}
    client = Scaling({("orders", segment): state for segment, state in states.items()})
    planner = PravegaPlanner(client.settings, event_time=None, go_on=False, client=lambda: client)
    parent, child = split_of("orders", 0, 50), split_of("orders", NEXT, parents=(0,))
    assert not planner.latest([parent])["orders/0.#epoch.0"].finished, "the stream goes on, so something follows it"
    client.known = True
    assert not planner.latest([parent])["orders/0.#epoch.0"].finished, "its successor is not found yet"
    assert planner.latest([parent, child])["orders/0.#epoch.0"].finished


def test_missing_jars_are_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.delenv(JARS_VARIABLE, raising=False)
    with pytest.raises(PravegaClientMissing, match=f"nobody says where its jars are.*{JARS_VARIABLE}"):
        resolve_jars([])
    with pytest.raises(PravegaClientMissing, match="there is no jar at"):
        resolve_jars([str(tmp_path)])
    (tmp_path / "a.txt").touch()
    with pytest.raises(PravegaClientMissing, match=r"there is no jar at .*a\.txt"):
        resolve_jars([str(tmp_path / "a.txt")])
    (tmp_path / "a.jar").touch()
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path))
    assert resolve_jars([]) == [str(tmp_path / "a.jar")] == resolve_jars([str(tmp_path / "*.jar")])


def test_jars_that_do_not_exist_are_refused_also_where_java_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(jvm_module, "_started_by", os.getpid())
    start_java([], None)
    for _ in range(2):
        with pytest.raises(PravegaClientMissing, match="there is no jar at"):
            start_java([str(tmp_path / "missing.jar")], None)


def test_options_that_java_refuses_are_named_without_their_values(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def start(*options: str, **_: Any) -> None:
        raise RuntimeError("Unable to start JVM")

    java = SimpleNamespace(isJVMStarted=lambda: False, startJVM=start, JVMNotFoundException=FileNotFoundError)
    monkeypatch.setitem(sys.modules, "jpype", java)
    monkeypatch.setattr(jvm_module, "_started_by", None)
    (tmp_path / "a.jar").touch()
    with pytest.raises(InvalidPravegaOption, match=r"got -Xbogus -Djavax.* Java names the option") as no:
        start_java([str(tmp_path)], ["-Xbogus", "-Djavax.net.ssl.trustStorePassword=hunter2"])
    assert "hunter2" not in str(no.value)


@pytest.mark.parametrize("cause", [None, OSError("the error of the client")], ids=["ours", "of a client"])
def test_a_failed_discovery_begins_with_the_reason_and_shows_no_stack(
    cause: OSError | None, caplog: pytest.LogCaptureFixture
) -> None:
    class Missing(PravegaSource):
        def _walk(self, known: Any) -> Any:
            def fail() -> Any:
                missing = PravegaStreamMissing("shop", "orders", "tcp://pravega:9090", "look up the head of")
                raise missing from cause

            return fail

        def create_planner(self) -> Any:
            return SimpleNamespace(close=lambda: None)

    options = PlanOptions(failover=FailoverPolicy(backoff="1 millisecond"))
    planner = BatchPlanner(Missing(**GIVEN), name="orders", options=options, now_us=lambda: 0)
    with pytest.raises(SourceFailed) as failed:
        planner.plan(planner.initial(), None)
    planner.close()
    told = "source 'orders': Pravega at tcp://pravega:9090: stream shop/orders is not there"
    assert str(failed.value).startswith(told)
    [line] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert (line.getMessage().startswith(told), line.exc_info) == (True, None)


def test_segments_of_a_task_are_opened_together_before_the_first_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Bytes:
        def __init__(self, name: str) -> None:
            self.name = name

        def read_into(self, data: memoryview) -> None:
            told.append(f"read {self.name}")
            data[:] = framed([b"ab"])

        def close(self) -> None:
            told.append(f"close {self.name}")

    class Opening(Halves):
        def open_ahead(self, stream: str, segment: int, position: int) -> Any:
            told.append(f"open {segment}")
            return Bytes(str(segment))

    monkeypatch.setattr(source_module, "client_of", lambda _: Opening({}))
    slices = [replace(split_of("orders", n), stop=10) for n in range(20)]
    assert sum(len(part.rows) for part in read_slices(PravegaSource(**GIVEN), slices)) == 20
    assert told[:17] == [*(f"open {n}" for n in range(16)), "read 0"], "sixteen at once"
    assert {f"close {n}" for n in range(20)} <= set(told)


def test_opened_segments_are_closed_also_if_the_marks_of_time_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []

    class Opening(Halves):
        def open_ahead(self, stream: str, segment: int, position: int) -> Any:
            return SimpleNamespace(close=lambda: closed.append(segment))

        def marks(self, stream: str, place: int = 0, most: int | None = None, origin: str = "") -> Marks:
            raise PravegaUnavailable("tcp://pravega:9090", "read the marks of time", 7.0, "no answer")

    client = Opening({})
    monkeypatch.setattr(source_module, "client_of", lambda _: client)
    slices = [replace(split_of("orders", n), stop=10) for n in range(3)]
    with pytest.raises(PravegaUnavailable):
        list(read_slices(PravegaSource(**GIVEN, noted_time=True), slices))
    assert sorted(closed) == [0, 1, 2]


def test_a_stream_has_one_token_however_many_segments_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    class Factory:
        READ = None

        @staticmethod
        def create(controller: Any, scope: str, stream: str, access: Any) -> str:
            made.append(stream)
            return f"token of {stream}"

    monkeypatch.setattr(client_module, "java_class", lambda name: Factory)
    client = Halves({})
    client._tokens, client._lock, client._controller = {}, threading.RLock(), None
    assert {client._token(stream) for stream in ("orders", "orders", "returns")} == {
        "token of orders",
        "token of returns",
    }
    assert made == ["orders", "returns"]


def test_a_segment_that_is_read_to_its_end_has_reached_the_newest_mark() -> None:
    """Pravega's own TimeWindow has the same meaning: no event after the mark is before its time."""

    class Noting(Halves):
        def marks(self, stream: str, place: int = 0, most: int | None = None, origin: str = "") -> Marks:
            there = [Mark(90_000, {0: 20}, 0, 1), Mark(100_000, {0: 50}, 1, 2)]
            return Marks("origin", [mark for mark in there if mark.place >= place])

    client = Noting({("orders", 0): SegmentState(0, 60, sealed=False)})
    planner = Uncounted(client.settings, event_time=None, noted_unit_us=1_000, go_on=False, client=lambda: client)
    for start, known_until_us in [(50, 10**12), (20, 10**12), (50, 95_000_000), (0, None)]:
        guard_us = None if known_until_us is None else 0
        limits = SliceLimits(now_us=known_until_us or 0, future_guard_us=guard_us)
        plan = plan_slices(planner, [split_of("orders", 0, start)], limits, previous_time_us=None)
        cut = plan.slices["orders/0.#epoch.0"]
        believed = known_until_us != 95_000_000
        assert (cut.stop, cut.claim_us) == (50, 100_000_000 if believed else None), "bytes 50 to 60 are not settled"


@pytest.mark.parametrize("watched", [True, False])
def test_events_behind_the_last_mark_of_a_sealed_stream_are_read(watched: bool) -> None:
    """Writers had noted no time after them, so they were never read, and the stream never ended."""

    class Noting(Halves):
        def marks(self, stream: str, place: int = 0, most: int | None = None, origin: str = "") -> Marks:
            there = [Mark(90_000, {NEXT: 20}, 0, 1)]
            return Marks("origin", [mark for mark in there if mark.place >= place])

    client, now = Noting({}), [0.0]
    planner = Uncounted(
        client.settings, event_time=None, noted_unit_us=1_000, go_on=False, client=lambda: client,
        now_seconds=lambda: now[0],
    )  # fmt: skip
    split, ends = split_of("orders", NEXT, 20), []
    for now[0], sealed in [(0.0, False), (1.0, True), (29.0, True), (30.0, True)][0 if watched else 3 :]:
        client.states_of = {("orders", NEXT): SegmentState(0, 60, sealed=sealed)}
        end = planner.latest([split])[split.split_id]
        ends.append((end.position, end.finished))
    assert ends == [*([(20, False)] * 3 if watched else []), (60, True)], "its last mark may come later"
