"""The readers around a split reader: slices without a thread, and a source reader with one."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from lowmark.sources import (
    Fetched,
    InputStatus,
    SimpleSource,
    SourceSplit,
    SplitEnd,
    SplitFetcherReader,
    SplitReader,
    SplitRows,
    read_slices,
)
from lowmark.sources.reader import BrokenSplitReader, SplitPauseUnsupported, SplitReadFailed
from lowmark.sources.testing_context import ManualReaderContext
from lowmark.watermark import DuplicateSplit, LowmarkError

from tests.live.servers import wait_until
from tests.sources.stepping import SCHEMA, SECONDS, Polling, SteppingReader, rows

A, B = SourceSplit(split_id="a"), SourceSplit(split_id="b")


class Given(SimpleSource[SourceSplit]):
    """A source whose split reader gives what it was told."""

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


def part(split: str, position: int, *values: int) -> Fetched:
    return Fetched((SplitRows(split, rows(*values), position),))


def end(*splits: str) -> Fetched:
    return Fetched(finished_splits=frozenset(splits))


# -- read_slices


def slices(source: Given, *splits: SourceSplit, **options: Any) -> list[tuple[str, list[Any], int]]:
    return [
        (each.split_id, each.rows["value"].to_pylist(), each.position)
        for each in read_slices(source, splits, **options)
    ]


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
    if text is None:  # the first alone: what follows its end is not asked for
        assert slices(source, TO_5) == []
        return
    with pytest.raises(BrokenSplitReader) as broken:
        slices(source, TO_5, replace(B, stop=1))
    assert f"Given: split {text}" in str(broken.value)
    assert source.closed == 1


def test_an_error_names_source_split_and_action_and_keeps_its_cause() -> None:
    source = Given(part("a", 3, 2), OSError("disk gone"))
    read = read_slices(source, [TO_5])
    assert next(read).position == 3
    with pytest.raises(SplitReadFailed) as failed:
        next(read)
    assert str(failed.value) == (
        "Given: cannot fetch of 'a': OSError: disk gone. Hint: no row is lost; the same rows are read again when the "
        "query goes on from its checkpoint, once the cause is gone."
    )
    assert isinstance(failed.value.__cause__, OSError)
    assert source.closed == 1


def test_an_error_of_the_library_is_passed_on() -> None:
    own = DuplicateSplit("a")
    with pytest.raises(LowmarkError) as failed:
        slices(Given(own), TO_5)
    assert failed.value is own


def test_the_reader_is_closed_when_the_consumer_stops_early() -> None:
    source = Given(part("a", 3, 2), part("a", 4, 3))
    read = read_slices(source, [TO_5])
    next(read)
    read.close()  # type: ignore[attr-defined]  # it is a generator
    assert source.closed == 1


def test_the_reader_is_closed_when_the_consumer_fails() -> None:
    source = Given(part("a", 3, 2), end("a"))

    def consume() -> None:
        for _ in read_slices(source, [TO_5]):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        consume()
    assert source.closed == 1


def test_a_reader_that_brings_nothing_is_an_error_in_the_end() -> None:
    seconds = iter(range(0, 1_000, 60))
    with pytest.raises(SplitReadFailed, match="cannot fetch of 'a': nothing came for 100 seconds, and no end either"):
        slices(Given(), TO_5, stalled_seconds=100, now_seconds=lambda: next(seconds))


@pytest.mark.parametrize(
    ("splits", "text"),
    [([A], "split 'a' has no stop"), ([TO_5, TO_5], "split 'a' is to be read twice at once")],
)
def test_what_cannot_be_read_to_an_end_is_refused_at_once(splits: list[SourceSplit], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        read_slices(Given(), splits)


@pytest.mark.parametrize(
    "error",
    [SplitReadFailed("S", ("a", "b"), "fetch", "OSError: x"), SplitPauseUnsupported("S", ("a",)),
     BrokenSplitReader("S", "a", "went back", "positions that grow")],
)  # fmt: skip
def test_errors_survive_pickling(error: LowmarkError) -> None:
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: TID251  # our own


# -- SplitFetcherReader


class Run:
    """A fetcher reader on a stepping reader."""

    def __init__(self, stepping: SteppingReader, **options: Any) -> None:
        self.stepping, self.context = stepping, ManualReaderContext()
        self.reader = SplitFetcherReader(lambda: stepping, self.context, source="Steps", **options)
        self.polling = Polling(self.reader)

    def close(self) -> None:
        self.reader.close()

    def begin(self, *splits: SourceSplit) -> None:
        self.reader.add_splits(splits)
        self.reader.notify_no_more_splits()
        self.reader.start()

    def starts(self) -> dict[str, int]:
        return {split.split_id: split.start for split in self.reader.snapshot_state(1)}


def test_rows_come_in_order_and_every_split_is_released_once() -> None:
    with closing(Run(SteppingReader({"a": [1, 2, 3], "b": [10]}))) as run:
        run.begin(A, B)
        run.polling.to_the_end()

        assert run.polling.values("a") == [1, 2, 3]
        assert run.polling.values("b") == [10]
        assert run.polling.output.released == ["b", "a"]
        assert run.starts() == {}
        assert run.stepping.thread == "lowmark-fetcher-Steps-0"
        assert run.context.metric_group.values() == {
            "assigned_splits": 0,
            "bytes_in": 32,
            "finished_splits": 2,
            "records_in": 4,
        }


def test_a_snapshot_is_of_what_was_put_out_not_of_what_was_fetched() -> None:
    with closing(Run(SteppingReader({"a": [1, 2, 3, 4, 5]}))) as run:
        run.begin(replace(A, start=1))
        assert run.starts() == {"a": 1}
        wait_until(lambda: run.stepping.fetched == 2, "two fetches wait in the queue")
        assert run.starts() == {"a": 1}
        run.polling.until(lambda: len(run.polling.values()) == 1)

        assert run.starts() == {"a": 2}
        assert run.polling.values() == [2]


def test_fetching_runs_ahead_by_the_queue_and_no_further() -> None:
    with closing(Run(SteppingReader({"a": list(range(100))}), queue_capacity=2)) as run:
        run.begin(A)
        wait_until(lambda: run.stepping.fetched == 2, "the queue is full")
        run.reader.pause_or_resume_splits([], ["a"])  # a task that the thread does between two fetches
        wait_until(lambda: not run.reader._fetcher._tasks, "the task is done")
        assert run.stepping.fetched == 2
        run.polling.until(lambda: len(run.polling.values()) == 1)
        wait_until(lambda: run.stepping.fetched == 3, "there is room for one more")
        assert run.polling.values() == [0]


def test_the_input_ends_only_after_it_was_said() -> None:
    with closing(Run(SteppingReader({"a": [1]}))) as run:
        run.reader.add_splits([A])
        run.reader.start()
        run.polling.until(lambda: run.polling.output.released == ["a"])
        assert run.polling.status is InputStatus.NOTHING_AVAILABLE
        available = run.reader.is_available()
        assert not available.done()

        run.reader.notify_no_more_splits()
        assert available.done()
        assert run.reader.poll_next(run.polling.output) is InputStatus.END_OF_INPUT


def test_a_reader_without_splits_ends_at_once() -> None:
    with closing(Run(SteppingReader({}))) as run:
        run.reader.start()
        assert run.reader.poll_next(run.polling.output) is InputStatus.NOTHING_AVAILABLE
        run.reader.notify_no_more_splits()
        run.polling.to_the_end()


def test_splits_may_be_added_while_a_fetch_waits() -> None:
    with closing(Run(SteppingReader({"a": [1], "b": [2]}, steps=0))) as run:
        run.begin(A)
        wait_until(lambda: run.stepping.thread is not None, "a fetch waits")
        run.reader.add_splits([B])
        wait_until(lambda: "add b" in run.stepping.calls, "the fetch was woken up")
        run.stepping.allow(5)
        run.polling.to_the_end()
        assert sorted(run.polling.values()) == [1, 2]


def test_a_split_is_added_once() -> None:
    with closing(Run(SteppingReader({"a": [1]}))) as run:
        run.reader.add_splits([A])
        with pytest.raises(DuplicateSplit):
            run.reader.add_splits([A])


def test_an_error_comes_after_the_rows_before_it_and_again() -> None:
    with closing(Run(SteppingReader({"a": [1, 2, 3]}))) as run:
        run.stepping.fail.extend([None, OSError("disk gone")])
        run.begin(A)
        with pytest.raises(SplitReadFailed, match=r"Steps: cannot fetch of 'a': OSError: disk gone") as failed:
            run.polling.to_the_end()
        assert run.polling.values() == [1]
        assert isinstance(failed.value.__cause__, OSError)
        assert run.reader.is_available().done()
        with pytest.raises(SplitReadFailed):
            run.reader.poll_next(run.polling.output)
        assert run.starts() == {"a": 1}
        assert run.stepping.closed.wait(SECONDS)


def test_a_failure_makes_the_reader_available_to_whom_waits() -> None:
    with closing(Run(SteppingReader({"a": [1]}, steps=0))) as run:
        run.begin(A)
        available = run.reader.is_available()
        assert not available.done()
        run.stepping.fail.append(OSError("disk gone"))
        run.stepping.allow(1)
        available.result(timeout=SECONDS)
        with pytest.raises(SplitReadFailed):
            run.reader.poll_next(run.polling.output)


def test_a_split_reader_that_cannot_be_made_is_an_error() -> None:
    def refuse() -> SplitReader[SourceSplit]:
        raise PermissionError("no")

    reader = SplitFetcherReader(refuse, ManualReaderContext(), source="Steps")
    reader.start()
    with pytest.raises(SplitReadFailed, match="Steps: cannot make the split reader: PermissionError: no"):
        Polling(reader).to_the_end()
    reader.close()


def test_positions_are_held_to_the_splits_range() -> None:
    with closing(Run(SteppingReader({"a": [1, 2, 3]}))) as run:
        run.begin(replace(A, stop=1))
        with pytest.raises(BrokenSplitReader, match="was read to position 2; expected at most its stop, 1"):
            run.polling.to_the_end()


@pytest.mark.parametrize("steps", [None, 0])
def test_close_wakes_a_fetch_up_and_closes_the_split_reader_once(steps: int | None) -> None:
    run = Run(SteppingReader({"a": list(range(100))}, steps=steps))
    run.begin(A)
    run.reader.close()
    assert run.stepping.closed.is_set()
    run.reader.close()
    assert run.stepping.calls.count("close") == 1


def test_close_before_start_is_fine() -> None:
    run = Run(SteppingReader({}))
    run.reader.close()
    assert run.stepping.calls == []


class Deaf(SteppingReader):
    """Does not wake up, until it is let go."""

    def __init__(self) -> None:
        super().__init__({"a": [1]})
        self.inside, self.let_go, self.wakes = threading.Event(), threading.Event(), 0

    def fetch(self) -> Fetched:
        self.inside.set()
        assert self.let_go.wait(SECONDS)
        return Fetched()

    def wake_up(self) -> None:
        self.wakes += 1
        raise OSError("deaf")


def test_close_leaves_a_fetch_behind_that_does_not_wake_up_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    deaf = Deaf()
    run = Run(deaf, close_seconds=0.25)
    run.begin(A)
    assert deaf.inside.wait(SECONDS)
    run.reader.close()
    deaf.let_go.set()

    assert deaf.wakes >= 2, "a wake-up that came too early is repeated"
    assert "Steps: fetch did not end within 0.25 seconds after wake_up" in caplog.text
    assert "let_go.wait" in caplog.text
    assert deaf.closed.wait(SECONDS)


def test_a_split_that_just_finished_may_be_paused() -> None:
    with closing(Run(SteppingReader({"a": [1], "b": [1, 2]}, no_pause=["a"]))) as run:  # FLINK-39728
        run.begin(A, B)
        run.polling.until(lambda: "a" in run.polling.output.released)
        run.reader.pause_or_resume_splits(["a", "nobody's"], ["a"])
        run.polling.to_the_end()
        assert run.polling.values("b") == [1, 2]


def test_when_all_splits_are_paused_nothing_is_fetched() -> None:
    with closing(Run(SteppingReader({"a": [1, 2]}))) as run:
        run.reader.add_splits([A])
        run.reader.pause_or_resume_splits(["a"], [])
        run.reader.start()
        wait_until(lambda: run.stepping.paused == {"a"}, "it is paused")
        run.reader.add_splits([B])
        run.stepping.values["b"] = [7]
        run.polling.until(lambda: run.polling.output.released == ["b"])
        fetched = run.stepping.fetched
        assert fetched == 1
        run.reader.pause_or_resume_splits([], ["a"])
        run.reader.notify_no_more_splits()
        run.polling.to_the_end()
        assert run.polling.values("a") == [1, 2]


def test_rows_after_the_row_that_ends_a_split_are_left_out_of_its_batch_too() -> None:
    class AllAtOnce(SteppingReader):
        def fetch(self) -> Fetched:
            if not self.splits:
                return Fetched()
            return Fetched((SplitRows("a", rows(1, 2, 3, 4), 4), SplitRows("a", rows(5), 5)), frozenset())

    def evaluator(split: str, batch: pa.RecordBatch) -> int | None:
        values = batch["value"].to_pylist()
        return values.index(3) if 3 in values else None

    with closing(Run(AllAtOnce({"a": [1]}), record_evaluator=evaluator)) as run:
        run.begin(A)
        run.polling.to_the_end()
        assert run.polling.values() == [1, 2]
        assert run.polling.output.released == ["a"]
        wait_until(lambda: "remove a" in run.stepping.calls, "the split reader need not read on")


def test_a_queue_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="queue_capacity: expected 1 or more, got 0"):
        Run(SteppingReader({}), queue_capacity=0)
