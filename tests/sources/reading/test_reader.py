"""Reading of slices: in the task's thread one by one, and ahead by parallel threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from lowmark.sources import Fetched, Fetching, SimpleSource, SourceSplit, SplitEnd, SplitReader, SplitRows, read_slices
from lowmark.sources.reading.checked_reader import BrokenSplitReader, CheckedReader, SplitReadFailed
from lowmark.sources.reading.side_by_side import read_ahead
from lowmark.watermark import InvalidTime, LowmarkError

from tests.servers.local import wait_until
from tests.sources.reading.stepping import SCHEMA, SECONDS, SteppingReader, rows

A, B = SourceSplit(split_id="a"), SourceSplit(split_id="b")


class Given(SimpleSource[SourceSplit]):
    """A source whose split reader gives scripted fetches."""

    schema = SCHEMA

    def __init__(self, *fetches: Fetched | Exception) -> None:
        self.fetches, self.closed = fetches, 0

    def discover(self) -> Sequence[SourceSplit]:
        return [A]

    def latest(self, splits: Sequence[SourceSplit]) -> dict[str, SplitEnd]:
        return {}

    def read(self, split: SourceSplit) -> Iterator[pa.RecordBatch]:
        raise AssertionError

    def create_split_reader(self) -> SplitReader[SourceSplit]:
        return GivenReader(self)


class GivenReader(SplitReader[SourceSplit]):
    def __init__(self, source: Given) -> None:
        self.source, self.left = source, iter(source.fetches)

    def fetch(self) -> Fetched:
        fetched = next(self.left, Fetched())
        if isinstance(fetched, Exception):
            raise fetched
        return fetched

    def handle_splits_changes(self, change: object) -> None:
        self.change = change

    def wake_up(self) -> None:
        pass

    def close(self) -> None:
        self.source.closed += 1


def part(split: str, position: Any, *values: int) -> Fetched:
    return Fetched((SplitRows(split, rows(*values), position),))


def end(*splits: str) -> Fetched:
    return Fetched(finished_splits=frozenset(splits))


# -- read_slices


def slices(source: Given, *splits: SourceSplit, **options: Any) -> list[tuple[str, list[Any], int]]:
    return [
        (each.split_id, each.rows["value"].to_pylist(), each.position)
        for each in read_slices(source, splits, **options)
    ]


@pytest.mark.parametrize("threads", [0, 2])
def test_what_each_reader_counted_is_handed_on(threads: int) -> None:
    class Counting(Given):
        fetching = Fetching.side_by_side(threads) if threads else Fetching()

        def create_split_reader(self) -> SplitReader[SourceSplit]:
            return CountingReader(self)

    class CountingReader(GivenReader):
        def __init__(self, source: Given) -> None:
            super().__init__(source)
            made.append(self)

        def fetch(self) -> Fetched:
            return end(*(split.split_id for split in self.change.splits))  # type: ignore[attr-defined]

        def metric_values(self) -> Mapping[str, float]:
            return {"data_losses": 1}

    counted: list[Mapping[str, float]] = []
    made: list[CountingReader] = []
    two = (replace(A, start=0, stop=5), replace(B, start=0, stop=5))
    assert slices(Counting(), *two, count=counted.append) == []
    assert counted == [{"data_losses": 1}] * len(made)
    assert made


TO_5 = replace(A, start=2, stop=5)


def test_rows_of_slices_come_in_order_and_the_reader_is_closed() -> None:
    both = Fetched((SplitRows("a", rows(2, 3), 4), SplitRows("b", rows(), 1)), frozenset(["b"]))
    source = Given(both, part("a", 5, 4), end("a"))

    assert slices(source, TO_5, replace(B, stop=1)) == [("a", [2, 3], 4), ("a", [4], 5)]
    assert source.closed == 1


def test_a_slice_without_rows_ends() -> None:
    assert slices(Given(end("a")), replace(A, start=5, stop=5)) == []


def test_no_slices_make_no_reader() -> None:
    source = Given()
    assert slices(source) == []
    assert source.closed == 0


@pytest.mark.parametrize(
    ("fetches", "text"),
    [
        ((part("a", None, 1),), "'a' gave rows with position None; expected a whole number"),
        ((part("a", 1, 1),), "'a' went back from position 2 to 1; expected positions that grow"),
        ((part("a", 4, 1), part("a", 3, 1)), "'a' went back from position 4 to 3"),
        ((part("a", 6, 1),), "'a' was read to position 6; expected at most its stop, 5"),
        ((part("x", 3, 1),), "'x' gave 1 rows; expected rows of splits that were added and not finished"),
        ((end("a"), part("a", 5, 1)), None),
        ((Fetched((SplitRows("b", rows(1), 1),), frozenset(["b"])), part("b", 1, 1)), "'b' gave 1 rows"),
        ((end("b"), end("b")), "'b' finished; expected splits that were added to finish, each once"),
        ((end("x"),), "'x' finished"),
        (
            (Fetched((SplitRows("a", pa.record_batch({"value": ["1"]}), 3),)),),
            "'a' gave rows of another schema, (value string); expected (value int64)",
        ),
    ],
)
def test_a_reader_that_breaks_its_contract_is_named(fetches: tuple[Fetched, ...], text: str | None) -> None:
    source = Given(*fetches, end("a", "b"))
    if text is None:  # the first alone: the reader stops at its end
        assert slices(source, TO_5) == []
        return
    with pytest.raises(BrokenSplitReader) as broken:
        slices(source, TO_5, replace(B, stop=1))
    assert f"Given: split {text}" in str(broken.value)
    assert source.closed == 1


def test_an_error_names_source_split_and_action_and_keeps_its_cause() -> None:
    """The hint does not say that no row is lost, because the cause may be that entries were deleted."""
    source = Given(part("a", 3, 2), OSError("disk gone"))
    read = read_slices(source, [TO_5])
    assert next(read).position == 3
    with pytest.raises(SplitReadFailed) as failed:
        next(read)
    assert str(failed.value) == (
        "Given: cannot fetch of 'a': OSError: disk gone. Hint: remove the cause and start the query again; it goes on "
        "from its checkpoint."
    )
    assert isinstance(failed.value.__cause__, OSError)
    assert source.closed == 1


def test_an_error_of_the_library_is_passed_on() -> None:
    own = InvalidTime("--past", "'noon'", "no date")
    with pytest.raises(LowmarkError) as failed:
        slices(Given(own), TO_5)
    assert failed.value is own


def test_the_reader_is_closed_when_the_consumer_stops_early() -> None:
    source = Given(part("a", 3, 2), part("a", 4, 3))
    read = read_slices(source, [TO_5])
    next(read)
    read.close()
    assert source.closed == 1


def test_the_reader_is_closed_when_the_consumer_fails() -> None:
    source = Given(part("a", 3, 2), end("a"))

    def consume() -> None:
        for _ in read_slices(source, [TO_5]):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        consume()
    assert source.closed == 1


@pytest.mark.parametrize("batches", [[], [part("a", 3)] * 99], ids=["nothing", "batches without a row"])
def test_a_reader_that_brings_nothing_is_an_error_in_the_end(batches: list[Fetched]) -> None:
    seconds = iter(range(0, 1_000, 60))
    with pytest.raises(SplitReadFailed, match="cannot fetch of 'a': nothing came for 100 seconds, and no end either"):
        slices(Given(*batches), TO_5, stalled_seconds=100, now_seconds=lambda: next(seconds))


def test_a_position_that_grows_without_rows_is_progress() -> None:
    seconds = iter(range(0, 1_000, 60))
    given = Given(part("a", 4), part("a", 5), end("a"))
    assert slices(given, TO_5, stalled_seconds=70, now_seconds=lambda: next(seconds)) == []


@pytest.mark.parametrize(
    ("splits", "text"),
    [([A], "split 'a' has no stop"), ([TO_5, TO_5], "split 'a' is to be read twice at once")],
)
def test_what_cannot_be_read_to_an_end_is_refused_at_once(splits: list[SourceSplit], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        read_slices(Given(), splits)


def test_splits_are_read_one_by_one_where_the_source_says_so() -> None:
    stepping = Stepping({"a": [1, 2], "b": [10, 20]}, Fetching.one_by_one())

    assert values(stepping, "b", "a") == [("b", 10), ("b", 20), ("a", 1), ("a", 2)]
    assert [reader.calls for reader in stepping.readers] == [["add b", "add a", "close"]]


# -- in parallel


class Stepping(Given):
    """A source of stepping readers."""

    def __init__(self, rows_of: Mapping[str, Sequence[int]], fetching: Fetching, *, steps: int | None = None) -> None:
        super().__init__()
        self.rows_of, self.fetching, self.steps = rows_of, fetching, steps
        self.readers: list[SteppingReader] = []

    def create_split_reader(self) -> SplitReader[SourceSplit]:
        self.readers.append(SteppingReader(self.rows_of, steps=self.steps))
        return self.readers[-1]

    def reader_of(self, split: str) -> SteppingReader:
        wait_until(lambda: any(f"add {split}" in reader.calls for reader in self.readers), f"{split} is being read")
        return next(reader for reader in self.readers if f"add {split}" in reader.calls)


def to_the_end(stepping: Stepping, *names: str) -> list[SourceSplit]:
    return [SourceSplit(split_id=name, start=0, stop=len(stepping.rows_of[name])) for name in names]


def values(stepping: Stepping, *names: str) -> list[tuple[str, Any]]:
    parts = read_slices(stepping, to_the_end(stepping, *names), stalled_seconds=SECONDS)
    return [(part.split_id, value) for part in parts for value in part.rows["value"].to_pylist()]


def test_what_comes_out_is_in_the_order_of_the_splits_however_they_are_read() -> None:
    rows_of = {name: [1, 2, 3] for name in "abcdefg"}
    expected = [(name, value) for name in "cabdgfe" for value in (1, 2, 3)]

    for fetching in (Fetching.one_by_one(), *map(Fetching.side_by_side, (1, 2, 3, 16))):
        stepping = Stepping(rows_of, fetching)
        assert values(stepping, *"cabdgfe") == expected, fetching
        assert 1 <= len(stepping.readers) <= max(1, fetching.threads), "a thread has one, and keeps it"
        assert all(reader.calls.count("close") == 1 for reader in stepping.readers)


def test_splits_are_read_at_the_same_time() -> None:
    """No split gives a row until all are being read, so sequential reading would never end."""
    together = threading.Barrier(3)

    class Together(SteppingReader):
        def fetch(self) -> Fetched:
            together.wait(SECONDS)
            return super().fetch()

    class Source(Stepping):
        def create_split_reader(self) -> SplitReader[SourceSplit]:
            self.readers.append(Together(self.rows_of))
            return self.readers[-1]

    source = Source({name: [1] for name in "abc"}, Fetching.side_by_side(3))
    assert values(source, *"abc") == [("a", 1), ("b", 1), ("c", 1)]


def test_a_split_whose_turn_has_not_come_is_read_ahead_by_so_many_bytes_and_no_further() -> None:
    row_bytes = rows(1).nbytes
    fetching = Fetching(threads=2, splits_at_once=1, ahead_bytes=3 * row_bytes)
    stepping = Stepping({"a": [0], "b": list(range(10))}, fetching, steps=0)
    read = read_slices(stepping, to_the_end(stepping, "a", "b"))
    came: list[tuple[str, int]] = []
    taking = threading.Thread(
        target=lambda: came.extend((part.split_id, part.rows["value"][0].as_py()) for part in read), daemon=True
    )
    taking.start()
    a, b = stepping.reader_of("a"), stepping.reader_of("b")
    b.allow(10)
    wait_until(lambda: b.fetched == 4, "three wait for their turn, and one for room")
    a.allow(1)
    taking.join(SECONDS)

    assert came == [("a", 0), *(("b", value) for value in range(10))]


def test_what_is_larger_than_the_bound_comes_all_the_same() -> None:
    stepping = Stepping({"a": [1, 2], "b": [3, 4]}, Fetching(threads=2, splits_at_once=1, ahead_bytes=1))
    assert values(stepping, "a", "b") == [("a", 1), ("a", 2), ("b", 3), ("b", 4)]


def test_an_error_is_raised_at_once_and_ends_all_threads() -> None:
    stepping = Stepping({"a": [1, 2], "b": [3]}, Fetching.side_by_side(2), steps=0)
    stepped = to_the_end(stepping, "a", "b")
    failed: list[BaseException] = []

    def take() -> None:
        try:
            list(read_slices(stepping, stepped))
        except SplitReadFailed as error:
            failed.append(error)

    taking = threading.Thread(target=take, daemon=True)
    taking.start()
    b = stepping.reader_of("b")
    stepping.reader_of("a")
    b.fail.append(OSError("shard gone"))
    b.allow(1)
    taking.join(SECONDS)

    assert "cannot fetch of 'b': OSError: shard gone" in str(failed[0])
    assert all(reader.closed.is_set() for reader in stepping.readers)


def test_threads_that_were_started_end_when_the_system_has_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    stepping = Stepping({"a": [1, 2], "b": [1]}, Fetching(threads=2, splits_at_once=1, ahead_bytes=1))
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def only_one(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        start(thread)
        started.append(thread)

    monkeypatch.setattr(threading.Thread, "start", only_one)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        values(stepping, "a", "b")

    assert not started[0].is_alive()
    assert all(reader.closed.is_set() for reader in stepping.readers)


def test_a_split_reader_that_cannot_be_made_is_an_error() -> None:
    class Refuses(Stepping):
        def create_split_reader(self) -> SplitReader[SourceSplit]:
            raise PermissionError("no")

    for fetching in (Fetching.multiplexed(), Fetching.side_by_side(2)):
        with pytest.raises(SplitReadFailed, match="Refuses: cannot make the split reader of 'a': PermissionError: no"):
            values(Refuses({"a": [1]}, fetching), "a")


def test_a_split_reader_that_cannot_be_closed_is_an_error() -> None:
    class Sticks(SteppingReader):
        def close(self) -> None:
            raise OSError("stuck")

    class Source(Stepping):
        def create_split_reader(self) -> SplitReader[SourceSplit]:
            return Sticks(self.rows_of)

    for fetching in (Fetching.multiplexed(), Fetching.side_by_side(2)):
        with pytest.raises(SplitReadFailed, match="cannot close: OSError: stuck"):
            values(Source({"a": [1]}, fetching), "a")


def test_a_split_reader_whose_counts_fail_is_closed_all_the_same() -> None:
    class Uncounted(SteppingReader):
        def metric_values(self) -> Mapping[str, float]:
            raise OSError("no counts")

    class Source(Stepping):
        def create_split_reader(self) -> SplitReader[SourceSplit]:
            self.readers.append(Uncounted(self.rows_of))
            return self.readers[-1]

    for fetching in (Fetching.multiplexed(), Fetching.side_by_side(2)):
        source = Source({"a": [1]}, fetching)
        with pytest.raises(SplitReadFailed, match="cannot count: OSError: no counts"):
            values(source, "a")
        assert [reader.closed.is_set() for reader in source.readers] == [True]


def test_positions_are_held_to_the_splits_range_in_threads_too() -> None:
    stepping = Stepping({"a": [1, 2, 3]}, Fetching.side_by_side(2))
    with pytest.raises(BrokenSplitReader, match="was read to position 2; expected at most its stop, 1"):
        list(read_slices(stepping, [SourceSplit(split_id="a", start=0, stop=1)]))


@pytest.mark.parametrize("steps", [None, 1])
def test_who_stops_early_wakes_fetches_up_and_closes_every_reader_once(steps: int | None) -> None:
    stepping = Stepping({name: list(range(100)) for name in "ab"}, Fetching.side_by_side(2), steps=steps)
    read = read_slices(stepping, to_the_end(stepping, "a", "b"))
    next(read)
    read.close()

    assert all(reader.calls.count("close") == 1 for reader in stepping.readers)


class Deaf(SteppingReader):
    """A reader that gives a row, and then ignores `wake_up` until the test releases it."""

    def __init__(self, rows_of: Mapping[str, Sequence[int]]) -> None:
        super().__init__(rows_of)
        self.inside, self.let_go, self.wakes = threading.Event(), threading.Event(), 0

    def fetch(self) -> Fetched:
        if self.fetched == 0:
            return super().fetch()
        self.inside.set()
        assert self.let_go.wait(SECONDS)
        return Fetched()

    def wake_up(self) -> None:
        self.wakes += 1
        raise OSError("deaf")


def test_a_fetch_that_does_not_wake_up_is_left_behind_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    source = Stepping({"a": [1, 2]}, Fetching.side_by_side(1))
    deaf = Deaf(source.rows_of)
    source.create_split_reader = lambda: deaf  # type: ignore[method-assign]
    read = read_ahead(
        "Steps",
        lambda: CheckedReader(source, SECONDS, time.monotonic),
        [to_the_end(source, "a")],
        source.fetching,
        close_seconds=0.25,
    )
    next(read)
    assert deaf.inside.wait(SECONDS)
    read.close()
    deaf.let_go.set()

    assert deaf.wakes >= 2, "a wake-up that came too early is repeated"
    assert "Steps: a fetch did not end within 0.25 seconds after wake_up" in caplog.text
    assert "let_go.wait" in caplog.text
    assert deaf.closed.wait(SECONDS)


def test_who_does_not_wake_up_takes_no_time_from_the_others() -> None:
    source = Stepping({"a": [1, 2], "b": [3, 4]}, Fetching.side_by_side(2))
    deaf, waits = Deaf(source.rows_of), SteppingReader(source.rows_of, steps=1)
    source.create_split_reader = lambda: deaf if threading.current_thread().name.endswith("-0") else waits  # type: ignore[method-assign]
    read = read_ahead(
        "Steps",
        lambda: CheckedReader(source, SECONDS, time.monotonic),
        [to_the_end(source, "a"), to_the_end(source, "b")],
        source.fetching,
        close_seconds=0.25,
    )
    next(read)
    assert deaf.inside.wait(SECONDS)
    wait_until(lambda: waits.fetched == 1, "the other is asked, too")
    read.close()
    ended = waits.closed.is_set()
    deaf.let_go.set()

    assert ended, "it was woken up, and closed, before the time was over"


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ({"threads": -1}, "threads of 0 or more, got -1"),
        ({"splits_at_once": 0}, "splits_at_once of 1 or more, got 0"),
        ({"ahead_bytes": 0}, "ahead_bytes of 1 or more, got 0"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(numbers: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError, match=f"fetching: expected {text}"):
        Fetching(**numbers)
