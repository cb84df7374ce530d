"""A caller who waits for a time hears of it, whatever happened to other queries of the stream; no Spark here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from lowmark.integration.driver import insist as insisting
from lowmark.integration.driver import passing, runs
from lowmark.integration.driver.audited import Audits
from lowmark.integration.driver.passing import Passing, Wait
from lowmark.integration.driver.standing import Standing
from lowmark.integration.spark.progress import Progress
from lowmark.integration.transport.driver_rpc import HeartbeatRequest
from lowmark.sources.worker import Worker
from lowmark.watermark.moment import least_us

from tests.integration.driver.reported import answer_of, desks_of, report_of
from tests.integration.driver.test_runs import Queries, Query, begun, stream, terminated


def test_a_function_for_which_there_is_no_thread_is_called_at_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(_: str, __: Callable[[], object]) -> Worker:
        raise RuntimeError("can't start new thread")

    called, waits, run = threading.Event(), Passing(), begun(stream())
    waits.add(Wait("orders", None, 4, lambda _: called.set()), [run])
    run.complete_until_us = 5
    with monkeypatch.context() as patched:
        patched.setattr(passing, "Worker", exhausted)
        with pytest.raises(RuntimeError):
            waits.look([run], "orders")
    waits.look([run], "orders")
    assert called.wait(5)
    waits.look([run], "orders")
    assert waits._waits == [], "a wait that was told of is not told again"


def test_a_function_beside_which_there_is_no_thread_for_its_clock_is_called_at_the_next_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started, tries = threading.Timer.start, list[str]()

    def exhausted_once(timer: threading.Timer) -> None:
        tries.append("a try")
        if len(tries) == 1:
            raise RuntimeError("can't start new thread")
        started(timer)

    monkeypatch.setattr(threading.Timer, "start", exhausted_once)
    monkeypatch.setattr(insisting, "_FIRST_SECONDS", 0.0)
    assert insisting.insist(lambda: tries.append("called"), "the function", threading.Event())
    assert tries == ["a try", "a try", "called"]


def passed(call: Callable[[int], object]) -> Passing:
    """A function whose time is passed, as by the last batch of a query that ends by itself."""
    waits, run = Passing(), begun(stream())
    run.complete_until_us = 5
    waits.add(Wait("orders", None, 4, call), [run])
    return waits


def test_a_service_that_stops_behind_the_last_batch_waits_for_the_function_that_the_batch_calls() -> None:
    """Its thread is a daemon, so the end of the program would cut the function off."""
    free, done = threading.Event(), list[bool]()
    waits = passed(lambda _: done.append(free.wait(20)))
    stop = Worker("stop", waits.stop)
    stop.start()
    assert not stop.join(0.2), "the function has not returned"
    free.set()
    assert stop.join(5)
    assert done == [True]


def test_a_function_whose_thread_begins_behind_a_stop_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    begun_later, called = list[Worker](), list[int]()

    def start(worker: Worker) -> None:
        begun_later.append(worker)

    with monkeypatch.context() as patched:
        patched.setattr(Worker, "start", start)
        waits = passed(called.append)
    waits.stop()
    for worker in begun_later:
        worker.start()
        assert worker.join(5)
    assert called == [5]


def test_a_function_that_fails_until_the_service_stops_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: int) -> None:
        raise ZeroDivisionError("on purpose")

    passed(fail).stop()
    assert 'UTC of stream "orders" has returned: it is not called again' in caplog.text


@dataclass
class OfStream(Query):
    """A running query. Its run id is also the token of its heartbeat."""

    reads: str | None = "s"
    trouble: None = None

    def streams(self) -> list[str]:
        return [] if self.reads is None else [self.reads]

    def stream_sources(self) -> dict[int, list[int]]:
        return {}

    def fault(self, *, tells_late: bool) -> None: ...


class Spark:
    """Queries as Spark and their heartbeats tell of them to the desks of a service, which knows the stream "orders"."""

    def __init__(self) -> None:
        self.queries = cast("Any", Queries())
        self.desks = desks_of(self.queries, notify=lambda _: None)
        self.standing = Standing(self.desks.runs, Audits(self.desks.runs.clock))
        self.desks.runs.streams.add(stream())

    def begin(self, *queries: OfStream) -> None:
        """Start queries together; then the heartbeat of each asks."""
        self.queries.running += queries
        for query in queries:
            if query.reads is not None and query.reads in self.desks.runs.streams:
                answer_of(self.desks, HeartbeatRequest(query.reads, query.run_id, first=True))

    def commit(self, query: OfStream, until_us: int) -> None:
        """Commit the first batch of a query."""
        run = self.desks.runs.get(query.run_id)
        assert run is not None
        run.tie(query.query_id, query.run_id, query.name)
        run.complete_until_us = until_us
        self.take(query, report_of(0, []))

    def take(self, query: OfStream, report: Progress) -> None:
        batch: Any = SimpleNamespace(run_id=query.run_id, batch_id=report.batch_id, progress=lambda: report)
        self.desks.events.take_event("progress", batch)

    def end(self, query: OfStream, failure: str | None = "no disk") -> None:
        self.desks.events.take_event("terminated", terminated(failure, query.run_id, query.query_id))

    def ends(self) -> dict[str, tuple[bool, str | None]]:
        """Whether each run has ended, and its query, by the token."""
        return {run.token: (run.ended, run.query_id) for run in self.desks.runs}

    def until_us(self) -> int | None:
        """The time until which the sinks are complete, which the service and the command line find alike."""
        until_us = passing.complete_until(self.desks.runs.known(), "orders", None)
        shown = self.standing.shown(stream="orders", limit=0)
        assert until_us == least_us(run.complete_until_us for run in shown)
        return until_us


def test_two_queries_that_failed_together_in_their_first_batch_hold_up_nobody_once_they_are_back() -> None:
    spark, first, second = Spark(), OfStream(run_id="r1", query_id="q1"), OfStream(run_id="r2", query_id="q2")
    spark.begin(first, second)
    spark.end(first)
    spark.end(second)
    assert spark.ends() == {"r1": (True, None), "r2": (True, None), "s-r1": (True, "q1"), "s-r2": (True, "q2")}
    assert {run.query for run in spark.standing.run_statuses()} == {"q1", "q2"}, "an alert for no query would not end"
    first, second = OfStream(run_id="r3", query_id="q1"), OfStream(run_id="r4", query_id="q2")
    spark.begin(first, second)
    spark.commit(first, 7)
    assert spark.until_us() is None
    spark.commit(second, 5)
    assert spark.until_us() == 5


@pytest.mark.parametrize("committed", ["before", "after"])
@pytest.mark.parametrize("reads", ["another service's", None])
def test_a_query_that_failed_in_its_first_batch_has_ended_whatever_else_runs(committed: str, reads: str | None) -> None:
    spark, first, second = Spark(), OfStream(run_id="r1", query_id="q1"), OfStream(run_id="r2", query_id="q2")
    spark.begin(OfStream(run_id="r9", query_id="q9", reads=reads), first, second)
    if committed == "before":
        spark.commit(first, 5)
    spark.end(second)
    if committed == "after":  # until then the two runs cannot be told apart
        spark.commit(first, 5)

    assert spark.ends()["r2"] == (True, "q2")
    [failed] = [run for run in spark.desks.runs if run.token == "r2"]
    assert failed.failure == "no disk"


def test_a_first_batch_of_another_stream_keeps_no_failed_query_running() -> None:
    spark, first, other = Spark(), OfStream(run_id="r1", query_id="q1"), OfStream(run_id="r3", reads="other")
    spark.desks.runs.streams.add(replace(stream(), name="returns", stream_id="other"))
    second = OfStream(run_id="r2", query_id="q2")
    spark.begin(first, second, other)
    spark.commit(first, 5)
    spark.end(second)

    assert spark.ends()["r2"] == (True, "q2")
    assert spark.ends()["r3"] == (False, None)


def test_a_query_of_a_dataframe_whose_name_another_has_now_does_not_count() -> None:
    spark, query = Spark(), OfStream(run_id="r1", query_id="q1")
    spark.begin(query)
    spark.commit(query, 5)
    spark.end(query, None)
    assert spark.until_us() == 5, "the sink stays as it is"
    spark.desks.runs.streams.release("orders")
    spark.desks.runs.streams.add(replace(stream(), stream_id="again"))
    assert spark.until_us() is None
    assert passing.why_not(spark.desks.runs.known(), "orders", None) is None, "a query may begin yet"
    query = OfStream(run_id="r2", query_id="q2", reads="again")
    spark.begin(query)
    spark.commit(query, 9)
    assert spark.until_us() == 9


def test_a_query_that_ended_counts_however_often_another_query_has_ended_since(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver runs a query each night and a second query each minute, and both end when nothing is new."""
    monkeypatch.setattr(runs, "_ENDED_RUNS_KEPT", 2)
    spark, nightly = Spark(), OfStream(run_id="r", query_id="nightly")
    spark.begin(nightly)
    spark.commit(nightly, 5)
    spark.end(nightly, None)
    for n in range(4):
        often = OfStream(run_id=f"r{n}", query_id="often")
        spark.begin(often)
        spark.commit(often, 6 + n)
        spark.end(often, None)
        assert spark.until_us() == 5
    assert set(spark.ends()) == {"r", "r2", "r3"}, "the newest, and as many that have ended"


def test_a_query_that_has_another_name_since_it_failed_is_one_query() -> None:
    """The earlier name would be shown as failed for ever, and nobody would hear of a time that it has not passed."""
    spark, failed = Spark(), OfStream(run_id="r1", query_id="q1", name="first name")
    spark.begin(failed)
    spark.commit(failed, 5)
    spark.end(failed)
    again = OfStream(run_id="r2", query_id="q1")
    spark.begin(again)
    heartbeat = {"epoch": 1, "low_us": 9, "lowmark": "orders", "token": "r2", "state": "", "split": None}
    spark.take(again, report_of(0, [{"endOffset": heartbeat}], id="q1", runId="r2", name="another name"))
    assert spark.until_us() == 9
    assert [run.query for run in spark.standing.shown(stream=None, limit=0)] == ["another name"]
