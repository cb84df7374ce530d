"""A report that no heartbeat carried yet is left beside the checkpoint, and a restart reads it; no Spark here."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from lowmark.integration.coordinator.client import CoordinatorClient
from lowmark.integration.driver.audited import Audits
from lowmark.integration.driver.known_planner import KnownPlanner
from lowmark.integration.driver.standing import Standing
from lowmark.integration.driver.stream import Stream
from lowmark.integration.driver.stream_run import StreamRun
from lowmark.integration.spark.checkpoint import Farewell, FarewellFiles
from lowmark.integration.spark.offset_log import OffsetEntry
from lowmark.integration.spark.progress import Progress
from lowmark.integration.transport.accumulated import BatchTrack, Tracks
from lowmark.integration.transport.driver_rpc import HeartbeatReply, HeartbeatRequest
from lowmark.integration.transport.heartbeat import HeartbeatOffset
from lowmark.integration.transport.split_key import SplitKey
from lowmark.sources.planning.peer import Planned
from lowmark.watermark import WatermarkStrategy
from lowmark.watermark.splits.tracker import SplitMark, SplitTracker

from tests.integration.driver.reported import GivenMeasure, accumulated, answer_of, desks_of, report_of
from tests.integration.driver.test_cooperation_rules import FakeClient
from tests.servers.local import no_thread_begins, wait_until

SECOND = 1_000_000
KEY = SplitKey(("device",), ("string",))


@dataclass
class Checkpoint(FarewellFiles):
    """The parts of a checkpoint that runs look at; also the query's `farewells`."""

    offsets: list[HeartbeatOffset] = field(default_factory=list)
    without_rows: set[int] = field(default_factory=set)  # batches without rows of the source
    commits: int = -1
    left: dict[str, Farewell] = field(default_factory=dict)
    slow: threading.Event | None = None
    fails: int = 0  # number of the write that fails
    writes: int = 0
    writing: threading.Event = field(default_factory=threading.Event)  # the first write has begun

    def write(self, farewell: Farewell) -> None:
        self.writing.set()
        if self.slow is not None:
            self.slow.wait(30)
        self.writes += 1
        if self.writes == self.fails:
            raise OSError("no space left on device")
        self.left[farewell.token] = farewell

    def read(self, token: str) -> Farewell | None:
        return self.left.get(token)

    def forget(self, token: str) -> None:
        self.left.pop(token, None)

    def newest_batch(self) -> int | None:
        return len(self.offsets) - 1 if self.offsets else None

    def entry(self, batch_id: int) -> OffsetEntry | None:
        if batch_id < 0:
            return None
        files = sum(batch not in self.without_rows for batch in range(batch_id + 1))
        heartbeat = json.dumps(self.offsets[batch_id].to_json())
        return OffsetEntry.parse("\n".join(["v1", "{}", f'{{"logOffset": {files - 1}}}', heartbeat]))

    def committed(self, batch_id: int) -> bool:
        return batch_id <= self.commits


class Driver:
    """One life of a driver on a checkpoint; also the only query that the driver's service finds."""

    def __init__(self, checkpoint: Checkpoint, **of_stream: Any) -> None:
        self.farewells, self.run_id, self.query_id, self.name, self.active = checkpoint, f"r{id(self)}", "q", None, True
        self.token, self.tracks, self.progress = f"t{id(self)}", cast("Tracks", {}), list[Progress]()
        settings: dict[str, Any] = {"kafka": False, "declared": {}, "names": {}, "strategy": WatermarkStrategy()}
        self.stream = Stream(
            name="orders", stream_id="s", key=KEY, sources=1, **(settings | of_stream),
            measure=GivenMeasure(accumulated(self.tracks)),
        )  # fmt: skip
        self.desks = desks_of(cast("Any", self), notify=lambda _: None)
        self.desks.runs.streams.add(self.stream)
        self.asked = False
        self.running = [self]

    def restarted(self) -> Driver:
        """The query is started again in this driver, and the service has not heard of its end."""
        again = Driver(self.farewells)
        again.stream, again.tracks, again.desks = self.stream, self.tracks, self.desks
        self.running.append(again)
        return again

    # the interface of Queries
    def find(self) -> None: ...

    def get(self, run_id: str | None) -> Any:
        return next((each for each in self.running if each.run_id == run_id), None)

    def forget(self, run_id: str) -> None: ...

    def __iter__(self) -> Any:
        return iter(self.running)

    # the interface of RunningQuery
    def newest(self, after: int | None = None) -> Progress | None:
        return self.progress[-1] if self.progress and self.progress[-1].batch_id != after else None

    def history(self) -> list[Progress]:
        return self.progress

    def streams(self) -> list[str]:
        return ["s"]

    def stream_sources(self) -> dict[int, list[int]]:
        return {1: [0]}

    def fault(self, *, tells_late: bool) -> None: ...

    @property
    def trouble(self) -> None: ...

    # the events
    def end(self) -> None:
        """Spark's listener brings the end of the query."""
        event = SimpleNamespace(run_id=self.run_id, query_id=self.query_id, failure=None)
        self.desks.events.take_event("terminated", cast("Any", event))

    @property
    def run(self) -> StreamRun:
        return self.desks.runs._runs[self.token]

    def ask(self) -> HeartbeatReply:
        """The heartbeat asks for the next batch."""
        resumes = self.farewells.offsets[-1] if self.farewells.offsets and not self.asked else None
        first: dict[str, Any] = {} if self.asked else {"first": True}
        if resumes is not None:
            first |= {
                "resumes": resumes.token, "epoch": resumes.epoch, "state": resumes.state,
                "low_watermark_us": resumes.low_us,
            }  # fmt: skip
        self.asked = True
        self.reply = answer_of(self.desks, HeartbeatRequest("s", self.token, **first))
        return self.reply

    def plan(self) -> int:
        """Spark writes the heartbeat's answer."""
        reply = self.ask()
        assert reply.refusal is None
        offset = HeartbeatOffset("orders", reply.low_watermark_us, self.token, reply.epoch, reply.state)
        self.farewells.offsets.append(offset)
        return len(self.farewells.offsets) - 1

    def commit(self, batch_id: int, **at_s: int) -> None:
        """The batch is over, and its progress is in the query's buffer only."""
        track = BatchTrack(SplitTracker(), {KEY.split_id((name,)): s * SECOND for name, s in at_s.items()})
        for name, s in at_s.items():
            track.tracker.observe_many(KEY.split_id((name,)), SplitMark(s * SECOND, s * SECOND, 1))
            track.names[KEY.split_id((name,))] = name
        self.tracks["q", batch_id] = track
        self.farewells.commits = batch_id
        sources = [{"endOffset": {"logOffset": 0}}, {"endOffset": self.farewells.offsets[batch_id].to_json()}]
        self.progress.append(report_of(batch_id, sources, runId=self.run_id))

    def batch(self, **at_s: int) -> int:
        batch_id = self.plan()
        self.commit(batch_id, **at_s)
        return batch_id

    def stop_service(self) -> None:
        self.desks.reports.say_farewells()
        self.desks.reports.farewells.close()

    def hear(self) -> None:
        """Spark's listener brings the newest batch."""
        newest = self.progress[-1]
        event = SimpleNamespace(run_id=self.run_id, batch_id=newest.batch_id, progress=lambda: newest)
        self.desks.events.take_event("progress", cast("Any", event))

    def splits(self) -> set[str]:
        return set(self.run.status(self.desks.runs.clock.now_us()).splits)


@pytest.fixture
def checkpoint() -> Checkpoint:
    return Checkpoint()


@pytest.mark.parametrize("active", [False, True])
def test_a_group_waits_for_no_query_that_ended_right_before_its_service(
    checkpoint: Checkpoint, *, active: bool
) -> None:
    """A query that runs on stays a member, because another service may come back for it."""
    driver = Driver(checkpoint, strategy=WatermarkStrategy().with_watermark_alignment(group="g", max_drift="1 minute"))
    driver.batch(a=100)
    driver.ask()
    [group] = driver.desks.runs.cooperation.groups()
    assert len(group.members) == 1
    driver.active = active  # Spark's listener has not brought the end
    driver.stop_service()
    [group] = driver.desks.runs.cooperation.groups()
    assert len(group.members) == active


def test_a_report_that_spark_brings_is_left_before_the_next_heartbeat_asks(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver(checkpoint)
    driver.batch(a=10, b=10)
    driver.batch(a=20, b=20, new=15)
    driver.hear()
    wait_until(lambda: [left.batch_id for left in checkpoint.left.values()] == [1], "the report is left")

    again = Driver(checkpoint)  # the driver was killed
    again.ask()
    assert again.splits() == {"a", "b", "new"}
    assert again.run.low_watermark_us == 15 * SECOND
    assert again.run.lost_reports == 0
    assert "was lost" not in caplog.text


def test_a_report_that_spark_brings_tells_of_when_its_batch_was_planned(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that ran for five minutes read no rows after its plan."""
    driver, now_us = Driver(checkpoint), [1_000 * SECOND]
    monkeypatch.setattr(driver.desks.runs.clock, "now_us", lambda: now_us[0])
    batch_id = driver.plan()
    now_us[0] += 300 * SECOND
    driver.commit(batch_id, a=10)
    driver.hear()

    assert (driver.run.last_batch_id, driver.run.watermarks.heard_us) == (0, 1_000 * SECOND)


def test_a_report_that_spark_brings_is_left_also_where_no_split_is_new(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(checkpoint)
    driver.batch(a=10)
    driver.batch(a=20)
    driver.hear()
    driver.desks.reports.farewells.close()  # waits until the report is left

    assert [left.batch_id for left in checkpoint.left.values()] == [1]


def test_the_report_of_an_input_with_an_end_is_left_because_no_row_comes_that_would_make_it_good(
    checkpoint: Checkpoint,
) -> None:
    driver = Driver(checkpoint, reads=True)
    batch_id = driver.plan()
    planner = KnownPlanner("s", run_token=driver.token)
    planner.keep(Planned(1, {"a": ()}, complete=True))
    driver.run.splits.planner = planner
    driver.commit(batch_id, a=20)
    driver.hear()
    driver.desks.reports.farewells.close()

    again = Driver(checkpoint, reads=True)  # the driver was killed before the next heartbeat
    again.ask()
    assert again.run.low_watermark_us == 20 * SECOND


@pytest.mark.parametrize("over", [Driver.stop_service, Driver.end])
def test_the_job_hears_of_a_last_batch_that_spark_has_not_brought(
    checkpoint: Checkpoint, over: Callable[[Driver], None]
) -> None:
    """With Trigger.Once, and where a program ends right after its query, no heartbeat asks after the last batch."""
    driver, client = Driver(checkpoint), FakeClient()
    driver.desks = desks_of(cast("Any", driver), lambda _: None, cast("CoordinatorClient", client), "billing")
    driver.desks.runs.streams.add(driver.stream)
    for at_s in (10, 20):
        driver.batch(a=at_s)
    over(driver)

    reported = [said[2] for said in client.said if said[0] == "report"]
    assert reported == [10 * SECOND, 20 * SECOND]


@pytest.mark.parametrize(("withholds", "read_until_us"), [(False, 1_300 * SECOND), (True, 1_000 * SECOND)])
def test_a_question_shows_nothing_of_a_source_that_may_keep_rows_back(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, withholds: bool, read_until_us: int
) -> None:
    driver, now_us = Driver(checkpoint, withholds=withholds), [1_000 * SECOND]
    monkeypatch.setattr(driver.desks.runs.clock, "now_us", lambda: now_us[0])
    driver.batch(a=10)
    driver.ask()
    now_us[0] += 300 * SECOND
    polled_us = driver.desks.runs.clock.to_monotonic_us(now_us[0])
    answer_of(driver.desks, HeartbeatRequest("s", driver.token, polled_until_us=polled_us))

    assert driver.run.watermarks._reports.read_until_us == pytest.approx(read_until_us, abs=SECOND)


def test_a_report_without_news_leaves_only_that_nothing_is_missing(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(checkpoint)
    driver.batch(a=10)
    last = driver.batch(a=10)
    driver.ask()  # takes the report of the batch before; the next one has no news
    driver.run.told_epoch = driver.run.epoch
    driver.commit(last, a=10)
    driver.desks.reports.farewells.keep(cast("Any", driver), driver.run)
    driver.desks.reports.farewells.close()  # waits until the report is left
    [left] = checkpoint.left.values()
    assert (left.batch_id, left.state) == (last, "")
    checkpoint.offsets[-1] = HeartbeatOffset("orders", 10 * SECOND, driver.token, left.epoch, driver.run.state())

    again = Driver(checkpoint)
    again.ask()
    assert (again.splits(), again.run.lost_reports) == ({"a"}, 0)


def test_a_heartbeat_that_asks_first_leaves_a_batch_with_a_new_split_and_no_other(checkpoint: Checkpoint) -> None:
    """Spark may list files for seconds before it writes the heartbeat's answer."""
    driver = Driver(checkpoint)
    driver.batch(a=10)
    driver.batch(a=20)
    driver.ask()
    assert [left.batch_id for left in checkpoint.left.values()] in ([], [0])
    driver.commit(driver.plan(), a=30, new=25)
    driver.ask()
    wait_until(lambda: any(left.batch_id == 2 for left in checkpoint.left.values()), "the report is left")

    again = Driver(checkpoint)
    again.ask()
    assert again.splits() == {"a", "new"}
    assert again.run.lost_reports == 0


def test_a_report_that_the_heartbeat_took_before_spark_brings_it_is_not_left_again(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(checkpoint)
    driver.batch(a=10)
    driver.batch(a=20)
    driver.ask()
    driver.hear()
    driver.desks.reports.farewells.close()  # waits until all reports are left

    assert [left.batch_id for left in checkpoint.left.values()] == [0]  # the batch with a new split


def test_a_file_system_that_hangs_delays_no_heartbeat_and_the_newest_report_is_what_is_left(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.slow = threading.Event()
    driver = Driver(checkpoint)
    for n in range(5):
        driver.batch(**{"a": n, f"new-{n}": n})
        driver.hear()  # returns before the report is left
    checkpoint.slow.set()
    wait_until(lambda: [left.batch_id for left in checkpoint.left.values()] == [4], "the newest is left")


def test_a_file_system_that_hangs_at_the_end_of_a_query_delays_no_other_and_a_restart_finds_the_report(
    checkpoint: Checkpoint,
) -> None:
    checkpoint.slow = threading.Event()
    driver = Driver(checkpoint)
    driver.batch(a=10)
    driver.batch(a=20, new=15)
    ended = threading.Thread(target=driver.end)  # as the loop of the service, which serves all queries
    ended.start()
    ended.join(10)
    assert not ended.is_alive()
    again = driver.restarted()
    again.ask()
    assert (again.splits(), again.run.lost_reports) == ({"a", "new"}, 0)
    assert checkpoint.left == {}
    checkpoint.slow.set()
    driver.desks.reports.farewells.close()  # as the service does before `stop` returns
    assert [*checkpoint.left] == [driver.token]


def test_a_last_report_that_cannot_be_written_before_the_service_stops_is_told(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("lowmark.integration.driver.farewells._WRITE_SECONDS", 0.1)
    checkpoint.slow = threading.Event()
    driver = Driver(checkpoint)
    driver.batch(a=10)
    driver.stop_service()
    checkpoint.slow.set()

    assert 'stream "orders": the last report could not be left in the checkpoint (cannot leave the' in caplog.text
    assert "tried for 0.1 seconds" in caplog.text


def test_a_last_report_whose_write_fails_is_written_when_the_service_stops(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_: Checkpoint, farewell: Farewell) -> None:
        raise OSError(28, f"no space for {farewell.token}")

    driver = Driver(checkpoint)
    driver.batch(a=10)
    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "write", full)
        driver.end()
        wait_until(lambda: "the last report could not be left" in caplog.text, "the write that fails")
    driver.stop_service()
    assert [*checkpoint.left] == [driver.token]


def test_a_last_report_is_left_by_a_process_that_ends_and_begins_no_thread_any_more(
    checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    """As Python since 3.12, which stops the service of a program that ends without `stop`."""

    driver = Driver(checkpoint)
    driver.batch(a=10)
    with no_thread_begins():
        driver.stop_service()
    assert [*checkpoint.left] == [driver.token]
    assert "could not be left" not in caplog.text


@pytest.mark.parametrize("last", [True, False], ids=["of an ended run", "of a running run"])
def test_a_write_that_fails_takes_no_newer_report_with_it(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, last: bool
) -> None:
    """Two reports wait for the file system when the last one comes; the write in the turn of the second fails."""
    checkpoint.slow, checkpoint.fails = threading.Event(), 2
    driver = Driver(checkpoint)
    driver.batch(a=10)
    driver.hear()
    assert checkpoint.writing.wait(20)
    driver.batch(a=20, new=15)
    driver.hear()
    driver.batch(a=30, newer=25)
    if last:
        driver.end()
    else:
        driver.hear()
    checkpoint.slow.set()
    driver.desks.reports.farewells.close()
    assert [left.batch_id for left in checkpoint.left.values()] == [2]

    again = Driver(checkpoint)
    again.ask()
    assert again.splits() == {"a", "new", "newer"}


@pytest.mark.parametrize(
    ("of_stream", "held"), [({}, True), ({"kafka": True}, False), ({"declared": {1: "a"}}, False)],
    ids=["known by rows", "partitions", "declared"],
)  # fmt: skip
def test_a_batch_that_was_committed_and_never_heard_of_holds_where_its_splits_have_no_other_name(
    checkpoint: Checkpoint, of_stream: dict[str, Any], held: bool, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver(checkpoint)
    driver.batch(a=10)
    driver.plan()
    checkpoint.commits = 1  # and the driver is killed before it hears of it
    again = Driver(checkpoint, **of_stream)
    with caplog.at_level(logging.WARNING, "lowmark"):
        again.ask()
    standing = Standing(again.desks.runs, Audits(again.desks.runs.clock))
    [status] = standing.run_statuses()
    said = "The report of batch 1 was lost, as when its query is killed"

    assert again.run.lost_reports == status.lost_reports == held
    assert (said in standing.explain("orders", None)) is held
    assert ("the report of batch 1 was lost, as when its query ends right after that batch" in caplog.text) is held
    if held:
        again.batch(a=100)
        again.ask()
        assert again.run.low_watermark_us == 10 * SECOND


@pytest.mark.parametrize(("without_rows", "held"), [({1, 2}, False), ({2}, True), (set(), True)])
def test_a_lost_report_of_batches_in_which_no_source_went_on_brings_no_split_so_nothing_is_held(
    checkpoint: Checkpoint, without_rows: set[int], *, held: bool
) -> None:
    checkpoint.without_rows = without_rows
    driver = Driver(checkpoint)
    driver.batch(a=10)
    driver.stop_service()  # and the query continues without a service
    checkpoint.offsets += [checkpoint.offsets[-1]] * 2
    checkpoint.commits = 2
    again = Driver(checkpoint)
    again.ask()

    assert again.run.lost_reports == held


def test_a_batch_that_was_planned_and_is_not_over_is_none_that_was_lost(checkpoint: Checkpoint) -> None:
    driver = Driver(checkpoint)
    driver.batch(a=10)
    driver.plan()
    again = Driver(checkpoint)
    again.ask()

    assert again.run.lost_reports == 0


@pytest.mark.parametrize("missed", [1, 2])
def test_reports_that_nobody_brought_are_taken_from_the_history_each_once(checkpoint: Checkpoint, missed: int) -> None:
    driver = Driver(checkpoint)
    driver.batch(a=10)
    driver.ask()
    offset = checkpoint.offsets[-1]
    for n in range(1, missed + 2):  # its questions got no answer meanwhile
        checkpoint.offsets.append(offset)
        driver.commit(n, **{"a": 10 + n, f"new-{n}": 5 + n})
    driver.ask()
    driver.run.report(driver.progress[-1], 1, planned_at_us=0, now_us=driver.desks.runs.clock.now_us())

    assert driver.splits() == {"a", *(f"new-{n}" for n in range(1, missed + 2))}
    assert driver.run.status(0).batches == missed + 2
    assert driver.run._since == [], "the report that came again is not taken"


def test_a_report_of_another_heartbeat_of_the_stream_ties_nobody(checkpoint: Checkpoint) -> None:
    driver = Driver(checkpoint)
    driver.plan()
    checkpoint.offsets[0] = HeartbeatOffset("orders", None, "another", 1, "")  # the stream feeds two queries
    driver.commit(0, a=10)
    driver.ask()

    assert (driver.run.run_id, driver.run.last_batch_id) == (None, None)


def test_after_an_end_in_order_nothing_is_missing(checkpoint: Checkpoint) -> None:
    driver = Driver(checkpoint)
    driver.batch(a=10)
    driver.batch(a=20, new=15)
    driver.stop_service()
    again = Driver(checkpoint)
    again.ask()

    assert (again.splits(), again.run.lost_reports) == ({"a", "new"}, 0)


def test_a_service_stops_in_order_though_spark_is_gone(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The error of the JVM that was killed, not that of the stop, is what a `with` block should end with."""

    def gone(*_: object) -> Any:
        raise ConnectionRefusedError("the JVM was killed")

    driver = Driver(checkpoint)
    driver.batch(a=10)
    driver.plan()
    monkeypatch.setattr(Driver, "active", property(gone, lambda *_: None), raising=False)
    monkeypatch.setattr(driver, "newest", gone)
    driver.stop_service()
    assert "the last report could not be left in the checkpoint (the JVM was killed)" in caplog.text


def test_after_an_answer_that_spark_never_wrote_and_an_end_in_order_nothing_is_missing(checkpoint: Checkpoint) -> None:
    driver = Driver(checkpoint)
    driver.batch(a=10)
    driver.batch(a=20, new=15)
    driver.ask()  # takes the report; the query stops before the answer's offset is in the checkpoint
    driver.stop_service()
    again = Driver(checkpoint)
    again.ask()

    assert (again.splits(), again.run.lost_reports) == ({"a", "new"}, 0)


def test_a_record_without_state_is_not_taken_over_another_offset_than_its_own(checkpoint: Checkpoint) -> None:
    driver = Driver(checkpoint)
    driver.batch(a=10)
    driver.batch(a=20, new=15)
    checkpoint.left[driver.token] = Farewell(driver.token, driver.run.told_epoch + 1, 1, "")
    again = Driver(checkpoint)
    again.ask()

    assert again.run.lost_reports == 1  # rows of batch 1 may be missing, so the run holds


def test_a_batch_that_a_restart_runs_again_was_not_lost(checkpoint: Checkpoint) -> None:
    driver = Driver(checkpoint)
    driver.batch(a=10)
    driver.plan()  # killed while it runs
    again = Driver(checkpoint)
    again.commit(1, a=20, new=15)  # Spark runs it again before it asks
    again.ask()

    assert (again.splits(), again.run.lost_reports) == ({"a", "new"}, 0)


def test_what_was_not_heard_while_no_service_ran_is_missing(checkpoint: Checkpoint) -> None:
    driver = Driver(checkpoint)
    driver.batch(a=10)
    driver.batch(a=20)
    driver.stop_service()  # the service stops, and the query continues with its present watermark
    for _ in range(2):
        checkpoint.offsets.append(checkpoint.offsets[-1])
    checkpoint.commits = 2
    again = Driver(checkpoint)
    again.commit(3, a=50)
    again.ask()

    assert again.run.lost_reports == 1


def test_a_run_that_wrote_no_offset_leaves_what_the_one_before_left(checkpoint: Checkpoint) -> None:
    driver = Driver(checkpoint)
    driver.batch(a=10)
    driver.batch(a=20, new=15)
    driver.stop_service()
    between = Driver(checkpoint)
    between.ask()
    between.run.tie("q", between.run_id, None)
    between.run.last_batch_id = 1  # as after a batch that ran again: the offset is still the previous one
    between.stop_service()
    assert [*checkpoint.left] == [driver.token]
    again = Driver(checkpoint)
    again.ask()

    assert (again.splits(), again.run.lost_reports) == ({"a", "new"}, 0)


def test_a_run_that_only_ran_a_batch_again_leaves_nothing_under_a_name_that_no_offset_has(
    checkpoint: Checkpoint,
) -> None:
    driver = Driver(checkpoint)
    driver.batch(a=10)
    driver.plan()  # killed while it runs
    again = Driver(checkpoint)
    again.commit(1, a=20, new=15)
    again.ask()
    again.stop_service()

    assert again.run.last_batch_id == 1
    assert again.token not in checkpoint.left


def test_what_the_run_before_left_stays_until_the_next_one_has_left_its_own(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(checkpoint)
    driver.batch(a=10)
    driver.stop_service()
    again = Driver(checkpoint)
    again.batch(a=20)

    def full(_: Checkpoint, farewell: Farewell) -> None:
        raise OSError(28, f"no space for {farewell.token}")

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "write", full)
        again.stop_service()
    assert [*checkpoint.left] == [driver.token]
    again.stop_service()
    assert [*checkpoint.left] == [again.token]


def test_a_restart_in_the_same_driver_that_comes_before_the_news_of_the_end_finds_all(checkpoint: Checkpoint) -> None:
    driver = Driver(checkpoint)
    driver.batch(a=10)
    driver.batch(a=20, new=15)
    before, driver.token, driver.asked = driver.run, "another", False
    driver.progress, newest = [], driver.progress[-1]
    driver.progress.append(newest)
    driver.ask()

    assert driver.splits() == {"a", "new"}
    assert (before.last_batch_id, driver.run.lost_reports) == (1, 0)


@pytest.mark.parametrize("late", ["the end", "the last batch and the end"])
def test_a_restart_takes_its_own_reports_though_news_of_the_run_before_come_later(
    checkpoint: Checkpoint, late: str
) -> None:
    before = Driver(checkpoint)
    before.batch(a=10)
    before.batch(a=20)
    if late == "the end":
        before.hear()
    after = before.restarted()
    after.ask()
    if late != "the end":
        before.hear()
    before.end()

    assert [(run.token, run.ended) for run in before.desks.runs] == [(before.token, True), (after.token, False)]
    after.batch(a=30)
    assert after.ask().low_watermark_us == 30 * SECOND
    assert (after.run.run_id, after.run.last_batch_id, before.run.run_id) == (after.run_id, 2, before.run_id)


@pytest.mark.parametrize("is_set_back", [False, True])
def test_a_restart_in_the_same_driver_is_complete_as_before_unless_its_checkpoint_was_set_back(
    checkpoint: Checkpoint, *, is_set_back: bool
) -> None:
    before = Driver(checkpoint)
    before.batch(a=10)
    before.batch(a=20)
    before.hear()
    before.end()
    before.run.complete_until_us = 20 * SECOND
    if is_set_back:  # the table, too
        checkpoint.commits, checkpoint.offsets = 0, checkpoint.offsets[:1]
    after = before.restarted()
    after.ask()
    assert after.run.complete_until_us == (None if is_set_back else 20 * SECOND)
