"""`Marking` without a query: measurements in, marks out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from lowmark.integration.driver.done_partition import DonePartition, success_files_in
from lowmark.integration.driver.marking import Marking
from lowmark.integration.driver.marking import marking_of as marking_with
from lowmark.integration.driver.partitions import Kept
from lowmark.integration.errors import CheckpointUnreadable, WrapRefused
from lowmark.integration.spark.progress import Progress, SourceProgress
from lowmark.integration.transport.heartbeat import HeartbeatOffset
from lowmark.watermark.moment import datetime_of

from tests.servers.local import wait_until

HOUR_US = 3_600_000_000
METRIC = "lowmark:done:x:orders"
IN_UTC: Any = SimpleNamespace(conf={"spark.sql.session.timeZone": "UTC"})
"""A session whose file systems nobody uses."""
BEFORE_YEAR_1 = -62_200_000_000_000_000 // HOUR_US
"""An hour that a broken time of a row may have: Spark has the year, Python has not."""


def batch(batch_id: int, *numbers: int, until_us: int) -> Progress:
    """A batch with rows of these partitions, or of none, after which the sink is complete until this time."""
    metrics = {METRIC: {"numbers": list(numbers)}}
    heartbeat = SourceProgress(None, HeartbeatOffset("orders", until_us, "token", 1).to_json(), None, 1)
    rows, in_force = max(1, len(numbers)), {"watermark": "1970-01-01T00:00:00.000Z"}
    return Progress("q", "r", batch_id, rows, [], [heartbeat], event_time=in_force, observed_metrics=metrics)


def marking_of(act: Callable[[DonePartition], None], committed: tuple[int, int | None]) -> tuple[Marking, Any]:
    """A marking by the hour and its query, whose newest commit is of this batch, complete until this time."""
    marking = Marking("orders", "ts", HOUR_US, 0, "hour=%H", act)
    marking.metric = METRIC
    files = SimpleNamespace(read_done=lambda _: None, write_done=lambda *_: None, newest_commit=lambda: committed)
    files.checkpoint = "/checkpoint"
    query = SimpleNamespace(query_id="q", name="orders", farewells=files, observed=lambda: {marking.metric})
    return marking, query


def test_a_row_of_before_the_year_1_does_not_end_the_marks_of_all_other_hours() -> None:
    marked, is_marked = list[str](), threading.Event()

    def act(partition: DonePartition) -> None:
        marked.append(partition.name)
        is_marked.set()

    marking, query = marking_of(act, (-1, None))
    marking.begin(query)
    marking.take(batch(0, BEFORE_YEAR_1, 1, until_us=2 * HOUR_US), query)
    assert is_marked.wait(5), "the marks have ended"
    marking.stop()
    assert marked == ["hour=01"]


def test_a_mark_of_many_hours_begins_with_the_first_of_pythons_times() -> None:
    """The sink was complete until before the year 1 when mark_done was added: a split had unset times only."""
    marked, are_marked = list[DonePartition](), threading.Event()

    def act(partition: DonePartition) -> None:
        marked.append(partition)
        if partition.has_rows:
            are_marked.set()

    marking, query = marking_of(act, (5, BEFORE_YEAR_1 * HOUR_US))
    marking.begin(query)
    marking.take(batch(6, 3, until_us=4 * HOUR_US), query)
    assert are_marked.wait(20), "the marks have ended"
    marking.stop()
    assert (marked[0].start, marked[-1].name) == (datetime.min.replace(tzinfo=timezone.utc), "hour=03")


def test_a_marking_of_a_query_that_ran_without_a_low_watermark_knows_that_hours_may_have_rows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As after `adopt`; the log must not speak of a crash."""
    marked, are_marked = list[tuple[str, bool]](), threading.Event()

    def act(partition: DonePartition) -> None:
        marked.append((partition.name, partition.has_rows))
        if len(marked) == 2:
            are_marked.set()

    marking, query = marking_of(act, (5, None))
    marking.begin(query)
    marking.take(batch(6, 3, until_us=5 * HOUR_US), query)
    are_marked.wait(2)
    marking.stop()
    assert marked == [("hour=03", True), ("hour=04", False)]
    assert 'stream "orders": nothing tells which rows came before batch 6. A partition that is older' in caplog.text


def test_a_marking_that_is_added_while_the_clock_is_set_back_knows_that_an_hour_may_have_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sink is complete until 05:30, so hour 5 may have rows, and the clock says 02:00."""
    monkeypatch.setattr("lowmark.integration.driver.marking.time.time_ns", lambda: 2 * HOUR_US * 1_000)
    marked = list[tuple[str, bool]]()
    marking, query = marking_of(lambda done: marked.append((done.name, done.has_rows)), (5, 11 * HOUR_US // 2))
    marking.begin(query)
    marking.take(batch(6, 7, until_us=8 * HOUR_US), query)
    marking.stop()  # makes all marks that are due
    assert marked == [("hour=05", False), ("hour=07", True)]


def test_a_query_of_an_earlier_mark_done_is_refused_because_the_later_one_would_mark_another_table() -> None:
    def act(partition: DonePartition) -> None:
        raise AssertionError(partition)

    first, second = (Marking("eu:orders", "ts", HOUR_US, 0, "hour=%H", act) for _ in range(2))
    query: Any = SimpleNamespace(query_id="q", observed=lambda: {first.metric, "lowmark:eu:orders"})
    with pytest.raises(WrapRefused, match=r'"eu:orders".* a later call of mark_done replaced .*Hint: wrap the source'):
        second.begin(query)
    query.observed = lambda: {first.metric, second.metric}  # as of two services
    with pytest.raises(WrapRefused, match=r'"eu:orders".* mark_done twice, under one name.*Hint: wrap the source'):
        second.begin(query)

    other = Marking("orders", "ts", HOUR_US, 0, "hour=%H", act)
    other.begin(query)
    assert other.query_id is None


def test_a_file_that_cannot_be_read_once_loses_no_mark() -> None:
    """The query ends before its first batch; without the file, hours 8 and 9 would never be marked."""
    marked, are_marked = list[str](), threading.Event()
    kept = msgspec.json.encode(Kept(HOUR_US, 100, (8, 9), 8, 17 * HOUR_US // 2)).decode()
    answers: list[str | Exception] = [OSError("503 Slow Down"), "{", "[]", kept]
    reads, written = iter(answers), list[str]()

    def act(partition: DonePartition) -> None:
        marked.append(partition.name)
        if partition.name == "hour=11":
            are_marked.set()

    def read(_: str) -> str:
        if isinstance(found := next(reads), Exception):
            raise found
        return found

    marking, query = marking_of(act, (100, 17 * HOUR_US // 2))
    query.farewells.read_done, query.farewells.write_done = read, lambda *_: written.append("written")
    for text in (
        r"lowmark/done-\w{16}, which has the partitions .* cannot be read or begun \(503 Slow Down\). Hint: start",
        r"lowmark/done-\w{16} is not as mark_done has written it \(.*\). Hint: bring the file back; or remove it, and",
        r"lowmark/done-\w{16} is not as mark_done has written it",
    ):
        with pytest.raises(CheckpointUnreadable, match=f'checkpoint "/checkpoint": {text}'):
            marking.begin(query)
    assert not written
    marking.begin(query)
    marking.take(batch(101, 10, 11, until_us=12 * HOUR_US), query)
    assert are_marked.wait(5)
    marking.stop()
    assert marked == [f"hour={hour:02}" for hour in (8, 9, 10, 11)]


def test_a_batch_with_other_rows_that_comes_again_because_the_checkpoint_was_set_back_loses_no_mark() -> None:
    """The file is of batch 9, and Spark goes on behind batch 4: batch 5 comes again, with rows of another hour."""
    marked, are_marked = list[tuple[str, tuple[str, ...]]](), threading.Event()

    def act(partition: DonePartition) -> None:
        marked.append((partition.name, partition.empty_before))
        if partition.name == "hour=11":
            are_marked.set()

    marking, query = marking_of(act, (4, 8 * HOUR_US))
    query.farewells.read_done = lambda _: msgspec.json.encode(Kept(HOUR_US, 9, (), 8, 8 * HOUR_US)).decode()
    marking.begin(query)
    marking.take(batch(5, 10, until_us=9 * HOUR_US), query)
    marking.take(batch(6, 11, until_us=12 * HOUR_US), query)
    are_marked.wait(2)
    marking.stop()
    assert marked == [("hour=10", ("hour=08", "hour=09")), ("hour=11", ())]


def test_an_hour_whose_mark_waits_is_not_marked_before_its_rows_come_again_on_a_checkpoint_that_was_set_back() -> None:
    """The marks of hours 10 and 11 have failed so far, and the backup has no row of them."""
    marked = list[tuple[str, datetime]]()
    marking, query = marking_of(lambda done: marked.append((done.name, done.complete_until)), (4, 8 * HOUR_US))
    query.farewells.read_done = lambda _: msgspec.json.encode(Kept(HOUR_US, 9, (10, 11), 8, 12 * HOUR_US)).decode()
    marking.begin(query)
    marking.take(batch(5, 10, until_us=11 * HOUR_US), query)
    marking.stop()  # makes all marks that are due
    assert marked == [("hour=10", datetime_of(11 * HOUR_US))]


def test_hours_are_marked_by_their_rows_after_a_checkpoint_was_set_back_below_the_marks_of_the_same_driver() -> None:
    """The marking ignored batches that ran again, because it knew their numbers, and named hour 10 as empty."""
    marked = list[tuple[str, tuple[str, ...]]]()
    marking, query = marking_of(lambda done: marked.append((done.name, done.empty_before)), (9, 8 * HOUR_US))
    query.farewells.read_done = lambda _: msgspec.json.encode(Kept(HOUR_US, 9, (), 8, 8 * HOUR_US)).decode()
    marking.begin(query)
    query.farewells.newest_commit = lambda: (4, 8 * HOUR_US)
    marking.begin(query)
    marking.take(batch(5, 10, until_us=9 * HOUR_US), query)
    marking.take(batch(6, 11, until_us=12 * HOUR_US), query)
    marking.stop()  # makes all marks that are due
    assert marked == [("hour=10", ("hour=08", "hour=09")), ("hour=11", ())]


def test_partitions_of_another_length_are_refused_because_the_checkpoint_has_their_numbers() -> None:
    """Hour 480,000 would be a day of the year 3284, so every day of now would count as marked already."""
    written = list[str]()

    def act(_: DonePartition) -> None: ...

    hours, query = marking_of(act, (-1, None))
    query.farewells.write_done = lambda _, text: written.append(text)
    hours.begin(query)
    hours.take(batch(0, 480_000, until_us=480_001 * HOUR_US), query)
    hours.stop()
    query.farewells.read_done = lambda _: written[-1]
    days = Marking("orders", "ts", 24 * HOUR_US, 0, "dt=%F", act)
    days.metric = METRIC
    with pytest.raises(WrapRefused, match=r"has partitions of 1d, and .* of 1h. Hint: pass partition= as before; or"):
        days.begin(query)
    again, _ = marking_of(act, (-1, None))
    again.begin(query)
    again.stop()


@pytest.mark.parametrize("mark", ["fails", "stops the service", "ended with its thread"])
def test_a_stop_waits_for_no_mark_that_will_not_be_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mark: str
) -> None:
    stopped, is_tried = list[float](), threading.Event()

    def stop() -> None:
        began = time.monotonic()
        marking.stop()
        stopped.append(time.monotonic() - began)

    def act(_: DonePartition) -> None:
        if mark == "stops the service":
            stop()
        is_tried.set()
        if mark == "fails":
            raise ZeroDivisionError("on purpose")

    def shown(_: object) -> DonePartition:
        is_tried.set()
        raise MemoryError("on purpose")

    marking, query = marking_of(act, (-1, None))
    if mark == "ended with its thread":
        monkeypatch.setattr(marking, "_shown", shown)
    marking.begin(query)
    marking.take(batch(0, 1, until_us=5 * HOUR_US), query)
    assert is_tried.wait(5)
    if mark != "stops the service":
        stop()
    assert max(stopped) < 5
    assert 'stream "orders": mark_done stops before partition hour=01 is marked' in caplog.text


def test_a_stop_tells_of_the_mark_that_hangs(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A job with AvailableNow ended without a word, and its hour got no file until the next day."""
    monkeypatch.setattr("lowmark.integration.driver.marking._STOP_SECONDS", 0.1)
    goes_on, marked = threading.Event(), list[str]()

    def act(partition: DonePartition) -> None:
        if partition.name == "hour=02":
            goes_on.wait(20)
        marked.append(partition.name)

    marking, query = marking_of(act, (-1, None))
    marking.begin(query)
    marking.take(batch(0, 1, 2, until_us=5 * HOUR_US), query)
    wait_until(lambda: marked == ["hour=01"], "the first mark")
    marking.stop()
    goes_on.set()
    assert caplog.text.count("mark_done stops") == 1
    assert (
        'stream "orders": mark_done stops before partition hour=02 is marked; a new start of the query marks it'
        in caplog.text
    )


def test_after_an_error_has_ended_the_thread_of_the_marks_the_next_batch_begins_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    marked, are_marked, died = list[str](), threading.Event(), threading.Event()

    def act(partition: DonePartition) -> None:
        marked.append(partition.name)
        if len(marked) == 2:
            are_marked.set()

    def shown(_: object) -> DonePartition:
        died.set()
        raise MemoryError("on purpose")

    marking, query = marking_of(act, (-1, None))
    with monkeypatch.context() as patched:
        patched.setattr(marking, "_shown", shown)
        marking.begin(query)
        marking.take(batch(0, 1, until_us=5 * HOUR_US), query)
        assert died.wait(5)
        assert marking._actor is not None
        assert marking._actor.join(5)
    marking.take(batch(1, 6, until_us=9 * HOUR_US), query)
    assert are_marked.wait(5), "the marks have ended"
    marking.stop()
    assert marked == ["hour=01", "hour=06"]
    marking.take(batch(2, 10, until_us=12 * HOUR_US), query)
    assert marked == ["hour=01", "hour=06"], "a stopped marking marks no more"


def test_a_store_that_is_slow_is_written_once_for_all_marks_of_meanwhile() -> None:
    first, free, written, marked = threading.Event(), threading.Event(), list[str](), list[str]()

    def write(_: str, text: str) -> None:
        written.append(text)
        if len(written) == 2:  # the first one is that of the beginning
            first.set()
            assert free.wait(20)

    def act(partition: DonePartition) -> None:
        assert first.wait(20)
        marked.append(partition.name)
        if len(marked) == 200:
            free.set()

    marking, query = marking_of(act, (-1, None))
    query.farewells.write_done = write
    marking.begin(query)
    marking.take(batch(0, *range(200), until_us=500 * HOUR_US), query)
    marking.stop()
    assert len(marked) == 200
    assert len(written) < 10
    assert msgspec.json.decode(written[-1], type=Kept) == Kept(HOUR_US, 0, (), 200, 500 * HOUR_US)


@pytest.mark.parametrize(
    ("partition", "layout", "fits"),
    [
        ("10 minutes", "dt=%Y-%m-%d/hour=%H", False),
        ("59 minutes", "hour=%H", False),
        ("12 hours", "dt=%F", False),
        ("20 days", "month=%Y-%m", False),
        ("1 hour", "dt=%Y-%m-%d/hour=%H", True),
        ("10 minutes", "%F/%H%M", True),
        ("10 minutes", "%H%M", False),
        ("1 hour", "dt=%F/hour=%I", False),
        ("1 hour", "%a/%H", False),
        ("1 hour", "%d/%H", False),
        ("1 day", "%m-%d", False),
        ("7 days", "%F", True),
        ("1 day", "dt=%F", True),
        ("5000000 days", "dt=%F", True),  # beyond Python's times
    ],
)
def test_a_folder_of_several_partitions_is_refused_because_its_success_file_would_be_early(
    partition: str, layout: str, fits: bool
) -> None:
    def made(**way: Any) -> Marking:
        ways = {"success_files": None, "call": None, "post": None, **way}
        return marking_with(IN_UTC, "orders", "ts", partition, layout, "0 seconds", **ways)

    made(call=print)  # a function is given the times of each partition
    if fits:
        made(success_files="/table")
        return
    with pytest.raises(
        WrapRefused, match=r'"orders": layout .* has one folder for several partitions of .*Hint: pass a'
    ):
        made(success_files="/table")


@pytest.mark.parametrize("layout", ["/dt=%F", "../dt=%F", "dt=%F/../hour=%H"])
def test_a_folder_outside_of_the_table_is_refused_because_no_try_could_write_into_it(layout: str) -> None:
    with pytest.raises(WrapRefused, match=r'"orders": layout .* leads out of the table\. Hint: pass layout="dt='):
        marking_with(IN_UTC, "orders", "ts", "1 day", layout, "0s", success_files="/table", call=None, post=None)
    marking_with(IN_UTC, "orders", "ts", "1 day", layout, "0s", success_files=None, call=print, post=None)


def test_one_mark_of_many_hours_says_from_when_to_when_and_writes_no_success_file(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("lowmark.integration.driver.partitions._MOST_ONE_BY_ONE", 100)
    marked, is_marked = list[DonePartition](), threading.Event()

    def act(partition: DonePartition) -> None:
        marked.append(partition)
        is_marked.set()

    marking, query = marking_of(act, (5, 0))  # complete until 1970, so all hours since then may have rows
    marking.begin(query)
    marking.take(batch(6, until_us=400_000 * HOUR_US), query)
    assert is_marked.wait(20)
    marking.stop()
    first = marked[0]
    assert (first.start, first.end) == (datetime_of(0), datetime_of(399_900 * HOUR_US))
    assert not first.has_rows
    success_files_in(IN_UTC, "/table", HOUR_US)(first)  # looks at no file
    assert f"partitions from {first.start} to {first.end} may have rows" in caplog.text
