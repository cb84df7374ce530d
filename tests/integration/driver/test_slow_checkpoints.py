"""A file system that does not answer when a query begins or ends holds that query, and nothing else of the driver."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest
from lowmark.integration.driver import aside, reports
from lowmark.integration.driver.answers import Answers
from lowmark.integration.driver.audited import Audits
from lowmark.integration.driver.marking import Marking
from lowmark.integration.driver.standing import Standing
from lowmark.integration.driver.stream import Stream
from lowmark.integration.errors import WrapRefused
from lowmark.integration.process.loop import Loop
from lowmark.integration.spark import checkpoint
from lowmark.integration.spark.checkpoint import Farewell, FarewellFiles
from lowmark.integration.spark.progress import Progress
from lowmark.integration.transport.driver_rpc import HeartbeatReply, HeartbeatRequest, StatusRequest

from tests.integration.driver.reported import desks_of, report_of
from tests.integration.driver.test_runs import state_of, stream

Result = TypeVar("Result")

WAIT_SECONDS = 5.0  # for work that takes milliseconds
METRIC = "lowmark:done:x:slow"


@dataclass
class Slow:
    """A checkpoint, and the one call that hangs until it may go on."""

    hangs: str = ""
    began: threading.Event = field(default_factory=threading.Event)
    goes_on: threading.Event = field(default_factory=threading.Event)
    checkpoint = "/checkpoint"

    def _answer(self, call: str, answer: Result) -> Result:
        if call == self.hangs:
            self.began.set()
            self.goes_on.wait(30)
        return answer

    def read(self, token: str) -> Farewell | None:
        return self._answer("read", Farewell(token, 3, 7, state_of("a", "left")) if token == "old" else None)

    def lost_batch(self, *_: Any, **__: Any) -> int | None:
        return self._answer("lost_batch", 8)

    def kafka_start(self, _: int) -> dict[str, Any]:
        return self._answer("kafka_start", {"a": {"0": 10}})

    def newest_entry(self) -> None:
        return self._answer("newest_entry", None)

    def read_done(self, _: str) -> None:
        return self._answer("read_done", None)

    def newest_commit(self) -> tuple[int, None]:
        return self._answer("newest_commit", (-1, None))

    def write_done(self, *_: str) -> None:
        return self._answer("write_done", None)


@dataclass
class Query:
    """A running query on one stream."""

    stream_id: str
    farewells: Slow
    progress: Progress | None = None
    name: str | None = None
    active: bool = True

    @property
    def run_id(self) -> str:
        return f"run of {self.stream_id}"

    @property
    def query_id(self) -> str:
        return f"query on {self.stream_id}"

    @property
    def trouble(self) -> None: ...

    def newest(self, _after: int | None = None) -> Progress | None:
        return self.progress

    def history(self) -> list[Progress]:
        return []

    def streams(self) -> list[str]:
        return [self.stream_id]

    @property
    def heartbeats(self) -> list[tuple[str, list[int]]]:
        return [(self.stream_id, [0])]

    def source_kinds(self) -> list[bool]:
        return [False, True]

    def stream_sources(self) -> dict[int, list[int]]:
        return {1: [0]}

    def observed(self) -> set[str]:
        return {METRIC}

    def fault(self, *, tells_late: bool) -> None: ...


def hourly() -> Marking:
    marking = Marking("slow", "ts", 3_600_000_000, 0, "%H", lambda _: None)
    marking.metric = METRIC
    return marking


class Queries(list[Query]):
    def find(self) -> None: ...

    def get(self, run_id: str | None) -> Query | None:
        return next((query for query in self if query.run_id == run_id), None)

    def forget(self, run_id: str) -> None:
        self[:] = [query for query in self if query.run_id != run_id]


class Service:
    """A loop with the desks of a service: stream "slow" with a checkpoint that hangs, and stream "fast"."""

    def __init__(self, hangs: str, **of_slow: Any) -> None:
        self.slow = Slow(hangs)
        self.queries = Queries([Query("slow", self.slow), Query("fast", Slow())])
        self.loop = Loop("loop of a test")
        self.desks = desks_of(self.queries, lambda _: None, beside=self._beside)
        standing = Standing(self.desks.runs, Audits(self.desks.runs.clock))
        self.answers = Answers(self._call, self.desks, standing, "app", threading.Event())
        for name, more in (("slow", of_slow), ("fast", {})):
            of: Stream = replace(stream(), name=name, stream_id=name, **more)
            self.desks.runs.streams.add(of)
        self.reply: Any = None  # an answer or an error

    def _call(self, work: Callable[[], Result], action: str) -> Result:
        return self.loop.call(work, action, seconds=WAIT_SECONDS)

    def _beside(self, read: Callable[[], Result], then: Callable[[Result], object]) -> None:
        threading.Thread(target=lambda: self.loop.post(partial(then, read()))).start()

    def begin_slow(self, **more: Any) -> threading.Thread:
        """The reader on the slow checkpoint asks for the first time; return when the checkpoint is read."""
        asked: dict[str, Any] = {"resumes": "old", "first": True, "epoch": 3, "state": state_of("a"), **more}

        def ask() -> None:
            try:
                self.reply = self.answers.heartbeat(HeartbeatRequest("slow", "new", **asked))
            except Exception as failed:  # noqa: BLE001  # the test looks at it
                self.reply = failed

        thread = threading.Thread(target=ask)
        thread.start()
        assert self.slow.began.wait(WAIT_SECONDS)
        return thread

    def end(self, stream_id: str, failure: str | None) -> None:
        query = next(query for query in self.queries if query.stream_id == stream_id)
        event = SimpleNamespace(run_id=query.run_id, query_id=query.query_id, failure=failure)
        self.loop.post(lambda: self.desks.events.take_event("terminated", cast("Any", event)))

    def ask_fast(self) -> HeartbeatReply:
        return self.answers.heartbeat(HeartbeatRequest("fast", "f", first=self.desks.runs.get("f") is None))

    def streams(self) -> list[str]:
        return [run["name"] for run in self.answers.status(StatusRequest()).streams]


@pytest.fixture
def made() -> Iterator[list[Service]]:
    services: list[Service] = []
    yield services
    for service in services:
        service.slow.goes_on.set()
        service.loop.stop()


@pytest.mark.parametrize(
    ("hangs", "of_slow"),
    [
        ("read", {}),
        ("lost_batch", {"kafka": False}),
        ("read_done", {}),
        ("newest_commit", {}),
        ("write_done", {}),
    ],
)
def test_a_checkpoint_that_hangs_when_its_query_begins_holds_no_other_query(
    made: list[Service], hangs: str, of_slow: dict[str, Any]
) -> None:
    made.append(service := Service(hangs, **of_slow))
    marking = hourly()
    service.desks.runs.markings["slow"] = marking
    thread = service.begin_slow()
    for _ in range(2):
        assert service.ask_fast().refusal is None
    assert "fast" in service.streams()
    assert thread.is_alive()
    assert service.desks.runs.get("new") is None, "a run has begun without what its checkpoint has"

    service.slow.goes_on.set()
    thread.join(WAIT_SECONDS)
    marking.stop()
    run = service.desks.runs.get("new")
    assert run is not None
    assert (service.reply.refusal, service.reply.state) == (None, run.state())
    assert set(run.status(9).splits) == {"a/0", "left/0"}
    assert run.lost_reports == (0 if run.stream.kafka else 1)
    assert sorted(service.streams()) == ["fast", "slow"]


def test_a_checkpoint_that_hangs_when_a_reader_looks_at_it_holds_no_other_query(made: list[Service]) -> None:
    made.append(service := Service("newest_entry"))
    thread = service.begin_slow(looks=True)
    assert service.ask_fast().refusal is None
    service.slow.goes_on.set()
    thread.join(WAIT_SECONDS)
    assert service.reply.refusal is None


def test_a_checkpoint_that_hangs_when_its_query_has_failed_holds_no_other_query(made: list[Service]) -> None:
    made.append(service := Service("newest_entry"))
    service.end("slow", "no disk")
    assert service.slow.began.wait(WAIT_SECONDS)
    assert service.ask_fast().refusal is None
    assert sorted(service.streams()) == ["fast", "slow"], "the failed query is shown before its checkpoint was read"


def test_a_query_that_ends_while_its_checkpoint_is_read_leaves_no_run_that_nothing_ends(made: list[Service]) -> None:
    made.append(service := Service("read"))
    thread = service.begin_slow()
    service.end("slow", None)
    service.slow.goes_on.set()
    thread.join(WAIT_SECONDS)
    assert [run for run in service.desks.runs if not run.ended] == []


@pytest.mark.parametrize("looks", [True, False])
def test_a_reader_hears_after_a_bounded_time_that_its_checkpoint_does_not_answer(
    made: list[Service], monkeypatch: pytest.MonkeyPatch, *, looks: bool
) -> None:
    monkeypatch.setattr(aside, "READ_SECONDS", 0.05)
    made.append(service := Service("newest_entry" if looks else "read"))
    service.begin_slow(looks=looks).join(WAIT_SECONDS)
    if looks:
        assert service.reply.refusal is None
    else:
        assert str(service.reply) == (
            "cannot answer a heartbeat: the file system of its checkpoint has not answered for 0.05 seconds"
        )
    assert service.desks.runs.get("new") is None


def test_a_query_whose_open_partitions_cannot_be_read_ends_and_begins_again(
    made: list[Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    made.append(service := Service(""))
    marking = service.desks.runs.markings["slow"] = hourly()
    monkeypatch.setattr(service.slow, "read_done", lambda _: 1 / 0)
    request = partial(HeartbeatRequest, "slow", resumes="old", first=True, epoch=3, state=state_of("a"))
    with pytest.raises(ValueError, match=r'checkpoint "/checkpoint": lowmark/done-.* cannot be read or begun'):
        service.answers.heartbeat(request(token="new"))
    assert service.ask_fast().refusal is None
    assert service.desks.runs.get("new") is None
    monkeypatch.undo()
    assert service.answers.heartbeat(request(token="newer")).refusal is None
    marking.stop()


def test_a_second_mark_done_beside_its_running_query_is_refused(made: list[Service]) -> None:
    """The query would be marked by the first one no more, and by the second one only from its next start on."""
    made.append(service := Service(""))
    marking = service.desks.runs.markings["slow"] = hourly()
    service.answers.heartbeat(HeartbeatRequest("slow", "new", first=True))
    [query, _] = service.queries
    with pytest.raises(
        WrapRefused, match=r'"slow": query query on slow runs with an earlier mark_done, .* stop it fir'
    ):
        service.desks.reports.end_marking("slow")
    assert service.desks.runs.markings == {"slow": marking}
    query.active = False
    heartbeat = {"epoch": 1, "low_us": None, "lowmark": "slow", "token": "new", "state": "", "split": None}
    query.progress = report_of(0, [{"endOffset": {"a": {"0": 12}}}, {"endOffset": heartbeat}], runId="run of slow")
    run = service.desks.runs.get("new")
    assert run is not None
    run.tie(query.query_id, query.run_id, None)
    assert service.desks.reports.end_marking("slow") is marking
    assert service.desks.runs.markings == {}
    assert service.desks.reports.end_marking("slow") is None
    assert run.last_batch_id == 0, "its last report came before the news of its end"
    marking.stop()


def test_a_checkpoint_that_does_not_say_where_kafka_begins_holds_the_loop_a_bounded_time(
    made: list[Service], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reports, "_START_SECONDS", 0.05)
    made.append(service := Service("kafka_start"))
    service.answers.heartbeat(HeartbeatRequest("slow", "new", first=True))
    heartbeat = {"epoch": 1, "low_us": None, "lowmark": "slow", "token": "new", "state": "", "split": None}
    batch = report_of(0, [{"endOffset": {"a": {"0": 12}}}, {"endOffset": heartbeat}], runId="run of slow")
    service.queries[0].progress = batch
    with caplog.at_level(logging.WARNING, "lowmark"):
        service.answers.heartbeat(HeartbeatRequest("slow", "new"))
    run = service.desks.runs.get("new")
    assert run is not None
    assert run.last_batch_id == 0
    assert "rows of the first batch are not counted (cannot read where its rows begin: the file system" in caplog.text


def test_a_file_system_that_is_reached_slowly_holds_no_checkpoint_on_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Python 3.12, the computation of one `cached_property` locks that property of all objects of the class."""
    slow = Slow("open")

    def opened(_: object, place: str) -> Any:
        slow._answer("open" if place == "slow:/q" else "", None)
        return SimpleNamespace(read=lambda _: None)

    monkeypatch.setattr(checkpoint, "open_store", opened)
    hanging = threading.Thread(target=FarewellFiles(cast("Any", None), "slow:/q").read, args=("t",))
    hanging.start()
    assert slow.began.wait(WAIT_SECONDS)
    other = threading.Thread(target=FarewellFiles(cast("Any", None), "fast:/q").read, args=("t",))
    other.start()
    other.join(WAIT_SECONDS)
    free = not other.is_alive()
    slow.goes_on.set()
    for each in (hanging, other):
        each.join(WAIT_SECONDS)
    assert free


def test_a_read_that_is_done_at_the_end_of_the_time_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(Future[Any]):
        def result(self, timeout: float | None = None) -> Any:
            found = super().result(WAIT_SECONDS)
            if timeout:
                raise FutureTimeout
            return found

    monkeypatch.setattr(aside, "Future", Late)

    assert aside.aside(lambda: 42, "read a checkpoint", seconds=aside.READ_SECONDS) == 42


def test_the_reads_of_a_question_have_together_no_longer_than_its_reader_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the reader hears that no service answers, and not that a file system is slow."""
    monkeypatch.setattr(aside, "READ_SECONDS", 0.2)

    def talk() -> aside.Talk[None]:
        for _ in range(4):
            yield partial(threading.Event().wait, 0.1)

    with pytest.raises(TimeoutError, match=r"cannot ask: the file system of its checkpoint has not answered for 0\.2 "):
        aside.hold(talk(), lambda work, _: work(), "ask")
