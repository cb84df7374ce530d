"""What status, `explain` and `lowmark check` say of a failed query, a coordinator that is away, and impossible times.

No Spark here; `tests/live/test_bad_day.py` compares all views of one cause.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import replace
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from lowmark.integration.cli.check import _because
from lowmark.integration.driver.audited import AuditedRun, Audits
from lowmark.integration.driver.desks import Desks
from lowmark.integration.driver.failures import brief, explain
from lowmark.integration.driver.standing import Standing, in_words
from lowmark.integration.driver.stream_run import StreamRun
from lowmark.integration.errors import ByHandRefused
from lowmark.integration.metrics.collector import StreamCollector
from lowmark.integration.process.loop import LoopTimes
from lowmark.integration.run_status import RunStatus, run_json
from lowmark.integration.transport.driver_rpc import HeartbeatRequest, MarkRequest
from lowmark.integration.transport.measure import Measured
from lowmark.integration.verdict import verdict
from lowmark.sources.planning.peer import Planned
from lowmark.watermark import Cause
from lowmark.watermark.splits.events import BatchCounts, BatchReported

from tests.integration.driver.reported import answer_of, desks_of
from tests.integration.driver.test_cooperation_rules import GROUPED, FakeClient, World
from tests.integration.driver.test_runs import Queries, Query, progress, report, stream, terminated

if TYPE_CHECKING:
    from lowmark.integration.coordinator.client import CoordinatorClient

S = 1_000_000
MINUTE_US = 60 * S
T0_US = 1_760_000_000 * S


class Clock:
    def __init__(self) -> None:
        self.us = T0_US

    def now_us(self) -> int:
        return self.us

    def wall_ahead_us(self) -> int:
        return 0


class Shared:
    """A run of a job whose coordinator can go away."""

    def __init__(self, job: str | None = "billing") -> None:
        self.world, self.clock = World(job), Clock()
        self.client: FakeClient = self.world.client
        queries: Any = Queries([])
        self.desks = desks_of(queries, lambda _: None, cast("CoordinatorClient", self.client), job)
        self.desks.runs.clock = cast("Any", self.clock)
        self.desks.runs.cooperation._now_us = self.clock.now_us
        self.standing = Standing(self.desks.runs, Audits(self.desks.runs.clock))

    def run(self, **settings: Any) -> StreamRun:
        self.world.now_us = self.clock.us
        run = self.world.run(**settings)
        run.tie("query-1", "r", "nightly")
        self.desks.runs._runs[run.token] = run
        return run

    def reach(self, run: StreamRun, us: int) -> None:
        batch_id = 0 if run.last_batch_id is None else run.last_batch_id + 1
        run.last_batch_id = batch_id
        run.handle(BatchReported(batch_id, self.clock.us, {1: us}), self.clock.us)
        self.desks.runs.cooperation.report(run)

    def shown(self) -> RunStatus:
        [run] = self.standing.run_statuses()
        return run


def word_of(run: RunStatus, clock: Clock) -> str:
    return verdict(run_json(run), datetime.fromtimestamp(clock.us / 1e6, timezone.utc))


def test_a_coordinator_that_is_away_is_the_cause_before_any_split() -> None:
    shared = Shared()
    run = shared.run()
    shared.reach(run, T0_US)
    shared.client.lows_us = dict.fromkeys(shared.desks.runs.cooperation._tasks.values(), T0_US - S)
    shared.reach(run, T0_US)
    assert shared.shown().status.low_watermark_us == T0_US - S
    shared.clock.us += MINUTE_US
    shared.client.connected, shared.client.why, shared.client.since_us = False, "connection refused", shared.clock.us
    shared.clock.us += 33 * MINUTE_US
    shared.reach(run, T0_US + 33 * MINUTE_US)
    seen = shared.shown()
    status = seen.status

    assert (status.cause, status.holder) == (Cause.COORDINATOR_AWAY, None)
    assert status.why == (
        "the coordinator at unix:/c.sock has not answered for 33m (connection refused), so the low watermark of job "
        '"billing" is held; these splits alone would allow 2025-10-09 09:26:20.000 UTC.'
    )
    assert status.next == "The coordinator answers again."
    assert "  why    the coordinator at unix:/c.sock has not answered for 33m" in in_words(status, seen.others)
    assert status.since == datetime.fromtimestamp(T0_US / 1e6, timezone.utc), "since it rose, not since the splits did"
    assert word_of(seen, shared.clock) == "stuck"
    assert seen.coordinator is not None
    assert (seen.coordinator.connected, seen.coordinator.holds) == (False, True)
    said: dict[str, Any] = json.loads(json.dumps(run_json(seen)))
    assert said["run"]["coordinator"]["why"] == "connection refused"
    now = datetime.fromtimestamp(shared.clock.us / 1e6, timezone.utc)
    assert "for 34m, the coordinator at unix:/c.sock has not answered for 33m" in _because(said, "stuck", now)


def test_a_coordinator_that_went_away_a_moment_ago_holds_and_does_not_move() -> None:
    shared = Shared()
    run = shared.run()
    shared.reach(run, T0_US)
    shared.client.lows_us = dict.fromkeys(shared.desks.runs.cooperation._tasks.values(), T0_US)
    shared.reach(run, T0_US)
    shared.client.connected = False

    assert word_of(shared.shown(), shared.clock) == "standing"


def test_a_low_watermark_that_other_queries_hold_is_held_by_no_split_of_this_one() -> None:
    shared = Shared()
    run = shared.run()
    shared.reach(run, T0_US)
    shared.client.lows_us = dict.fromkeys(shared.desks.runs.cooperation._tasks.values(), T0_US - 60 * S)
    shared.reach(run, T0_US)
    assert shared.shown().status.holder is not None, "a round takes a moment"
    shared.clock.us += 10 * S
    status = shared.shown().status

    assert (status.cause, status.holder) == (None, None)
    assert status.why.startswith('other queries of job "billing" hold it; these splits alone would allow 2025-10-09')
    assert "`lowmark explain --coordinator unix:/c.sock` names the query that holds it" in status.why


@pytest.mark.parametrize(("behind_seconds", "others_hold"), [(60, True), (2, False)])
def test_a_low_watermark_that_rises_behind_a_slower_query_is_held_by_no_split_of_this_one(
    behind_seconds: int, others_hold: bool
) -> None:
    """A round behind is no other query's doing, because the job takes this query's value a moment later."""
    shared = Shared()
    run = shared.run()
    for second in range(0, 20, 2):
        shared.clock.us = T0_US + second * S
        shared.reach(run, shared.clock.us)
        tasks = shared.desks.runs.cooperation._tasks.values()
        shared.client.lows_us = dict.fromkeys(tasks, shared.clock.us - behind_seconds * S)
        shared.desks.runs.cooperation.report(run)
    status = shared.shown().status

    assert status.low_watermark_us == shared.clock.us - behind_seconds * S
    assert (status.holder is None) is others_hold
    assert status.why.startswith('other queries of job "billing" hold it') is others_hold


def test_a_wrapped_stream_of_a_group_goes_on_without_its_coordinator_and_says_who_holds() -> None:
    shared = Shared(None)
    run = shared.run(strategy=GROUPED)
    shared.reach(run, T0_US)
    shared.client.connected = False
    seen = shared.shown()

    assert (seen.status.cause, seen.status.holder) == (None, "#0000000000000001")
    assert seen.coordinator is not None
    assert (seen.coordinator.connected, seen.coordinator.holds) == (False, False)
    assert word_of(seen, shared.clock) == "moving"
    said = json.loads(json.dumps(run_json(seen)))
    assert _because(said, "moving", datetime.now(timezone.utc)) == (
        "; the coordinator at unix:/c.sock does not answer (gone): its group goes on without this stream"
    )


# -- queries that fail, and their names


def begun(query: Query) -> tuple[Desks, Standing]:
    queries: Any = Queries([query])
    desks = desks_of(queries, notify=lambda _: None)
    desks.runs.streams.add(stream())
    return desks, Standing(desks.runs, Audits(desks.runs.clock))


def test_a_query_that_fails_before_its_heartbeat_asks_is_shown_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desks, standing = begun(Query(name="nightly"))
    desks.events.take_event(
        "terminated",
        terminated(
            "org.apache.spark.sql.streaming.StreamingQueryException: [STREAM_FAILED] Query [id = q, runId = r] "
            "terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST\n\tat java.lang..."
        ),
    )
    [seen] = standing.run_statuses()

    assert [each.getMessage()[:35] for each in caplog.records] == ['query q on "orders": a Python proce']
    assert (seen.query, seen.failed, seen.ended) == ("nightly", True, True)
    assert seen.status.cause is Cause.QUERY_FAILED
    assert seen.status.why.startswith(
        "the query failed: a Python process of the query did not start within the 10 seconds that Spark waits for it"
    )
    assert "No setting of Spark's changes that, spark.python.authenticate.socketTimeout neither." in seen.status.why
    assert "start queries one after the other" in seen.status.why
    assert verdict(run_json(seen), datetime.now(timezone.utc)) == "failed"
    [shown] = standing.shown(stream=None, limit=0)
    said = json.loads(json.dumps(run_json(shown)))
    assert "the query failed: a Python process" in _because(said, "failed", datetime.now(timezone.utc))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            "org.postgresql.util.PSQLException: An I/O error occurred while sending to the backend.",
            "Caused by: java.net.SocketException: Connection reset",
        ),
        (
            "java.io.EOFException: End of File Exception between local host is: a and destination host is: b:8020",
            "\tat org.apache.hadoop.ipc.Client.call(Client.java:1389)",
        ),
    ],
    ids=["JDBC", "HDFS"],
)
def test_a_connection_that_a_sink_lost_is_not_taken_for_a_python_process_that_is_gone(
    first: str, second: str, caplog: pytest.LogCaptureFixture
) -> None:
    failure = f"{first}\n{second}\n"
    explain(failure, None, query_id="q", names=["orders"], streams={})

    assert (brief(failure), caplog.text) == (first, "")


@pytest.mark.parametrize("lost", ["java.net.SocketException: Connection reset", "java.io.EOFException"])
def test_a_python_process_of_a_streams_reader_that_is_gone_is_told_by_the_place_where_spark_reads_from_it(
    lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    failure = (
        f"{lost}\n\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:386)\n"
        "\tat org.apache.spark.sql.execution.python.streaming.PythonStreamingSourceRunner.latestOffset("
        "PythonStreamingSourceRunner.scala)\n"
    )
    explain(failure, None, query_id="q", names=["orders"], streams={})
    said = brief(failure)

    assert said is not None
    assert said.startswith("a Python process that Spark reads from is gone: the heartbeat, or the planner of a source.")
    assert f'query q on "orders": {said}' in caplog.text


@pytest.mark.parametrize(
    "begun",
    [
        "py4j.Py4JException: An exception was raised by the Python Proxy. Return Message: ",
        "PythonException: [PYTHON_EXCEPTION] An exception was thrown from the Python worker: ",
    ],
    ids=["foreachBatch", "UDF"],
)
def test_an_error_in_a_users_python_function_is_shown_and_not_the_beginning_of_its_traceback(begun: str) -> None:
    failure = (
        f'{begun}Traceback (most recent call last):\n  File "app.py", line 11, in write\n    int("x")\n    ^^^^^^^^\n'
        "ValueError: invalid literal for int() with base 10: 'x'\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        'Traceback (most recent call last):\n  File "app.py", line 13, in write\n    raise OSError("disk full")\n'
        "OSError: disk full\n SQLSTATE: 38000\n\tat py4j.Protocol.getReturnValue(Protocol.java:476)\n"
    )
    assert brief(failure) == "OSError: disk full"


def test_an_error_of_lowmark_is_shown_with_its_hint_and_without_sparks_words_before_it() -> None:
    """The texts of Spark 4.2 for an error in a planner, in a task, and in a task of a `foreachBatch` function."""
    said = (
        "source 'orders': cannot plan batch 9: KafkaDataLost: Kafka split 'orders/0' (topic 'orders', partition 0): "
        "offsets from 620 on are lost: the topic was deleted and created anew: the records were of the topic with id "
        "VRcYVKoiTPaaatoLvDQ0ww, and the topic of this name has id g8IFmH5qQIyoNOC3afZUvw now. Hint: to go on with "
        'what is left, use on_data_loss="go_on" (failOnDataLoss=false); to lose nothing next time, delete a topic only '
        "after the query has committed its last batch, or stop the query before."
    )
    planned = (
        "org.apache.spark.SparkException: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming "
        "data source perform latestOffset: lowmark.sources.planning.planner.PlanningFailed: "
    )
    read = (
        "org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown from the Python "
        "worker: lowmark.sources.kafka.errors.KafkaDataLost: "
    )
    in_foreach_batch = (
        "An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):\n"
        '  File "app.py", line 11, in write\n    batch.write.parquet(path)\n    ^^^^^^^^^^^^^^^^^^^^^^^^^\n'
        "pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:\n"
        "lowmark.sources.kafka.errors.KafkaDataLost: "
    )
    texts = [f"{words}{said}\n SQLSTATE: 38000\n" for words in (planned, read, in_foreach_batch)]
    assert [brief(text) for text in texts] == [said, said, said]


def test_a_traceback_that_spark_cut_is_shown_from_its_beginning() -> None:
    failure = 'PythonException: Traceback (most recent call last):\n  File "app.py", line 11, in write'
    assert brief(failure) == "PythonException: Traceback (most recent call last):"


def test_a_python_process_of_a_task_has_more_time_to_start() -> None:
    """The text of Spark since 4.2."""
    said = brief("SocketTimeoutException: Timed out while waiting for the Python worker to connect back after 60000 ms")
    assert said is not None
    assert "(60 for one of a task, since Spark 4.2)" in said


def test_a_query_that_is_started_again_after_a_failed_start_is_not_shown_as_failed() -> None:
    desks, standing = begun(Query(name="nightly"))
    desks.events.take_event("terminated", terminated("no disk"))
    cast("Any", desks.runs.queries).running = [Query(run_id="r2", name="nightly")]
    answer_of(desks, HeartbeatRequest("s", "t", first=True))
    [shown] = standing.shown(stream=None, limit=0)

    assert (shown.query, shown.failed) == ("nightly", False)


def test_a_query_has_its_name_before_its_first_batch() -> None:
    desks, standing = begun(Query(name="nightly"))
    answer_of(desks, HeartbeatRequest("s", "t", first=True))
    [seen] = standing.run_statuses()

    assert (seen.query, seen.reported_at_us) == ("nightly", None)


def test_a_query_that_fails_before_its_first_split_is_not_shown_as_waiting_too() -> None:
    """The planner of the query told that it looks for splits; nobody says that the planner is gone."""
    desks, standing = begun(Query(name="nightly"))
    looking = Planned(0, {}, missing="the enumerator has not said what there is.")
    desks.plans.take("s", "reader", looking)
    assert [(run.query, run.failed) for run in standing.shown(stream=None, limit=0)] == [(None, False)]
    desks.events.take_event("terminated", terminated("no broker answers"))

    assert [(run.query, run.failed) for run in standing.shown(stream=None, limit=0)] == [("nightly", True)]
    assert standing.status_of("orders", None).why == "the query failed: no broker answers"
    desks.plans.take("s", "another reader", looking)
    assert [(run.query, run.failed) for run in standing.shown(stream=None, limit=0)] == [
        ("nightly", True),
        (None, False),
    ]
    assert standing.status_of("orders", None).why.startswith("no split is known yet: the enumerator")


def test_of_two_queries_that_begin_together_none_has_a_name_before_its_first_batch() -> None:
    queries: Any = Queries([Query(name="one"), Query(run_id="r2", name="two")])
    desks = desks_of(queries, notify=lambda _: None)
    desks.runs.streams.add(stream())
    answer_of(desks, HeartbeatRequest("s", "t", first=True))
    [seen] = Standing(desks.runs, Audits(desks.runs.clock)).run_statuses()

    assert seen.query is None


def test_a_query_that_failed_in_its_first_batch_is_told_from_another_that_begins() -> None:
    """Two queries began in turn, and neither has reported a batch. Their names identify the failed one."""
    first = Query(name="one")
    desks, standing = begun(first)
    answer_of(desks, HeartbeatRequest("s", "t1", first=True))
    other = Query(run_id="r2", query_id="q2", name="two")
    cast("Any", desks.runs.queries).running.append(other)
    desks.events.take_event("terminated", terminated("no disk"))
    ended = {run.query: run.failed for run in standing.run_statuses()}

    assert ended == {"one": True}


# -- log lines that come once


def measured_by(rows: int, **more: Any) -> Any:
    """A transport that measures this number of rows of one split, in every batch."""
    counts = BatchCounts(rows=rows, **more)
    return SimpleNamespace(report=lambda *_: Measured(rows=None, counts=counts))


def test_event_times_that_cannot_be_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    run = StreamRun.attach(stream(), token="t", resumes=None, state=None, now_us=T0_US)
    run.stream = replace(run.stream, measure=measured_by(200, null_time_rows=200))
    with caplog.at_level(logging.WARNING, "lowmark"):
        for batch_id in range(3):
            report(run, batch_id, {"a": {"0": 100 * batch_id}})

    assert [record.getMessage() for record in caplog.records] == [
        'stream "orders": all 200 rows so far have no event time: is the JSON path, or the format of the time, right?'
    ]


@pytest.mark.parametrize(("keeps_rows", "rows", "warned"), [(True, 1, 1), (True, 990, 0), (False, 1, 0)])
def test_a_batch_that_was_read_in_part_is_warned_of_once(
    caplog: pytest.LogCaptureFixture, keeps_rows: bool, rows: int, warned: int
) -> None:
    run = StreamRun.attach(replace(stream(), keeps_rows=keeps_rows), token="t", resumes=None, state=None, now_us=T0_US)
    run.stream, run.places = replace(run.stream, measure=measured_by(rows)), {1: [0]}
    with caplog.at_level(logging.WARNING, "lowmark"):
        for batch_id in range(1, 4):
            taken = progress(batch_id, {"a": {"0": 1_000 * batch_id}}, start={"a": {"0": 1_000 * (batch_id - 1)}})
            run.report(taken, 1, planned_at_us=T0_US, now_us=T0_US + batch_id)

    said = [record.getMessage() for record in caplog.records]
    assert len(said) == warned
    assert all("1 rows were measured of a batch of 1,000 Kafka offsets" in each for each in said)


def test_an_audited_query_that_fails_says_why() -> None:
    queries: Any = Queries([])
    audits = Audits(desks_of(queries, notify=lambda _: None).runs.clock)
    run = AuditedRun.attach(stream(), token="t", resumes=None, state=None, now_us=T0_US)
    run.tie("q", "r", "nightly")
    audits.streams.add(run.stream)
    audits.keep(run)
    audits.take_event("terminated", terminated("Query [id = q] terminated with exception: no disk"))
    [seen] = Standing(desks_of(queries, notify=lambda _: None).runs, audits).run_statuses()

    assert (seen.failed, seen.status.cause, seen.status.why) == (True, Cause.QUERY_FAILED, "the query failed: no disk")


# -- a host that slept, or whose clock was set


@pytest.fixture
def slept() -> tuple[Desks, Standing, StreamRun]:
    """A query that asked and reported before its host slept for three hours, in which only the wall clock went on."""
    desks, standing = begun(Query(name="nightly"))
    answer_of(desks, HeartbeatRequest("s", "t", first=True))
    [run] = desks.runs
    run.places = {1: [0]}
    report(run, 0, {"a": {"0": 1}})
    return desks, standing, run


@pytest.fixture
def wall_us(slept: object, monkeypatch: pytest.MonkeyPatch) -> int:  # it sleeps after it began
    """The time of the wall clock after it."""
    read = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: read() + 3 * 60 * MINUTE_US * 1_000)
    return time.time_ns() // 1_000


def test_prometheus_gets_the_times_of_the_wall_clock(slept: tuple[Desks, Standing, StreamRun], wall_us: int) -> None:
    _, standing, _ = slept

    def run_statuses(**_: object) -> list[RunStatus]:
        return standing.run_statuses()

    service: Any = SimpleNamespace(run_statuses=run_statuses, loop_times=LoopTimes)
    families = {family.name: family.samples for family in StreamCollector(service).collect()}
    for name in ("last_heartbeat", "low_watermark_moved"):
        [sample] = families[f"lowmark_{name}_timestamp_seconds"]
        assert wall_us / 1e6 - 60 < sample.value <= wall_us / 1e6 + 60, f"an alert on time() - {name} would fire"


def test_a_mark_until_a_time_goes_by_the_wall_clock(slept: tuple[Desks, Standing, StreamRun], wall_us: int) -> None:
    desks, _, run = slept
    desks.by_hand.take(MarkRequest("orders", ["a/0"], "anna", idle=True, until_us=wall_us + MINUTE_US))
    [mark] = run.watermarks.by_hand.values()
    assert mark.until_us == wall_us + MINUTE_US
    with pytest.raises(ByHandRefused, match="the time is over already"):
        desks.by_hand.take(MarkRequest("orders", ["a/0"], "anna", idle=True, until_us=wall_us - MINUTE_US))
