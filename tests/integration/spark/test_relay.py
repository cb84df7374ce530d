"""The relay of a Spark Connect client takes the batches of its queries in order. These tests need no server."""

from __future__ import annotations

import json
import logging
import threading
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from lowmark.integration.driver.desks import Desks
from lowmark.integration.spark import connect, relay
from lowmark.integration.spark.client_checkpoint import ClientCheckpoint
from lowmark.integration.spark.connect import ConnectSession
from lowmark.integration.spark.connect_query import ClientEvent, ConnectQuery, progress_of
from lowmark.integration.spark.relay import Answer
from lowmark.integration.transport.driver_rpc import HeartbeatReply, HeartbeatRequest
from lowmark.integration.transport.heartbeat import HeartbeatOffset
from lowmark.integration.transport.told import Told
from lowmark.sources.worker import Worker
from pyspark.errors import StreamingQueryException
from pyspark.sql.connect.streaming.query import StreamingQuery
from pyspark.sql.streaming.listener import QueryProgressEvent

from tests.integration.driver.reported import answer_of, desks_of
from tests.integration.driver.test_cooperation_rules import FakeClient
from tests.integration.driver.test_runs import stream as wrapped_stream
from tests.servers.local import no_thread_begins, wait_until

ID = "00000000-0000-0000-0000-000000000001"
FIRST, LATER = HeartbeatOffset("orders"), HeartbeatOffset("orders", token="t")


def batch(
    batch_id: int,
    *,
    second: int | None = None,
    start: HeartbeatOffset | None = None,
    end: HeartbeatOffset = LATER,
    end_lacks: str = "",
) -> Any:
    """A batch that began at a second of the server's clock, as Spark's client remembers it."""
    begins = start or (LATER if batch_id else FIRST)
    fields = {
        "id": "q",
        "runId": "r",
        "batchId": batch_id,
        "timestamp": f"2026-01-01T00:00:{batch_id if second is None else second:02}.000Z",
        "durationMs": {"addBatch": 1, "triggerExecution": 1},
        "eventTime": {"watermark": "1970-01-01T00:00:00.000Z"},
        "stateOperators": [],
        "observedMetrics": {"lowmark:s:heartbeat": {}},
        "sources": [
            {
                "startOffset": begins.to_json(),
                "endOffset": {name: value for name, value in end.to_json().items() if name != end_lacks},
                "latestOffset": None,
                "numInputRows": 1,
            }
        ],
    }
    names = {"id": "q", "runId": "r", "batchId": batch_id, "durationMs": fields["durationMs"]}
    return SimpleNamespace(json=json.dumps(fields), **names)


class Client:
    """A client with one query, and a server that remembers its batches."""

    def __init__(self, recent: list[Any], answer: Answer | None = None) -> None:
        self.told: list[Told] = []
        self.removed: list[str] = []  # tokens
        self.answer = answer
        self.asked: list[HeartbeatRequest] = []
        self.failures = 0  # of the next questions
        self.refuses = False  # whether the server takes no answer
        self.looked = threading.Event()
        running = SimpleNamespace(runId="r", recentProgress=recent)
        spark: Any = SimpleNamespace(streams=SimpleNamespace(get=lambda _: running))
        self.session = ConnectSession(spark)
        self.query = ConnectQuery(lambda _: "", lambda *_: None, "q", "r", None, ClientCheckpoint({}), lambda: None)
        self.first = list[Any]()  # of the listener, when it listens again
        self.relay = self.session._relay = relay.Relay(
            self._answer, lambda *_: None, self._tell, self._look, lambda: None, {"s": "orders"}
        )

    def _answer(self, request: HeartbeatRequest) -> HeartbeatReply:
        self.asked.append(request)
        if self.failures:
            self.failures -= 1
            raise TimeoutError("the loop is busy")
        if self.answer is not None:
            return self.answer(request)
        return HeartbeatReply(low_watermark_us=None, epoch=1, state="")

    def _tell(self, stream_id: str, token: str, told: Told | None) -> None:
        if self.refuses:
            raise OSError("disk full")
        if told is None:
            self.removed.append(token)
        else:
            self.told.append(told)

    def _look(self) -> None:
        if not self.looked.is_set():
            for told in self.first:
                self.hear(told)
            self.session._catch_up(self.query)
        self.looked.set()

    def hear(self, told: Any) -> None:
        self.relay.put("progress", ClientEvent(QueryProgressEvent(told)), self.query)


def test_a_session_that_cannot_listen_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "register_class", lambda *_: None)

    def gone(_: object) -> None:
        raise OSError("the server is gone")

    streams = SimpleNamespace(_sqlb=SimpleNamespace(_listener_bus=[]))
    analyzed = SimpleNamespace(schema=None)
    read = SimpleNamespace(format=lambda _: SimpleNamespace(load=lambda: analyzed))
    spark: Any = SimpleNamespace(version="4.2.0", is_stopped=False, streams=streams, read=read)
    spark.client = SimpleNamespace(execute_command=gone)
    session = ConnectSession(spark)
    unused: Any = None
    with pytest.raises(OSError, match="the server is gone"):
        session.listen(unused, unused, unused, unused)

    assert session._relay._loop._worker.ended


def test_a_client_that_ends_with_its_process_logs_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark's client releases the answer to a command on a thread, and Python begins no thread then."""
    bus = SimpleNamespace(_listener_bus=[None])
    session = ConnectSession(cast("Any", SimpleNamespace(is_stopped=False, streams=SimpleNamespace(_sqlb=bus))))
    asked = list[str]()

    def refused() -> None:
        asked.append("the server")
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(session, "_remove_from_server", refused)
    session._leave()

    assert asked == ["the server"]
    assert [record.message for record in caplog.records if record.levelno > logging.DEBUG] == []


class Known(list[ConnectQuery]):
    """The queries that a service knows."""

    def find(self) -> None: ...

    def get(self, run_id: str | None) -> ConnectQuery | None:
        return next((query for query in self if query.run_id == run_id), None)


def served() -> tuple[Desks, Client, FakeClient]:
    """A service in a job, the client that asks it, and the service's link to the coordinator."""
    queries, coordinator = Known(), FakeClient()
    desks = desks_of(cast("Any", queries), lambda _: None, cast("Any", coordinator), job="billing")
    desks.runs.streams.add(wrapped_stream())
    client = Client([], partial(answer_of, desks))
    queries.append(client.query)
    return desks, client, coordinator


def test_a_client_that_ends_and_begins_no_thread_any_more_leaves_at_once() -> None:
    """As Python since 3.12; Spark's thread of events keeps a process alive while the listener is there."""

    mine: Any = object()
    listeners = [mine, object()]
    bus = SimpleNamespace(_listener_bus=listeners, remove=listeners.remove)
    spark: Any = SimpleNamespace(streams=SimpleNamespace(_sqlb=bus), is_stopped=False)
    session = ConnectSession(spark)
    session._listener = mine
    with no_thread_begins():
        session._leave()
    assert mine not in listeners


def test_a_batch_that_is_told_twice_counts_once() -> None:
    """Otherwise a query that ends by itself would end with the answer to the batch before its last."""
    client = Client([])
    for told in (0, 1, 1):
        client.hear(batch(told))
    client.relay.close()
    assert client.told[-1].batches == 2


def test_batches_of_a_break_are_taken_before_a_later_one_that_the_listener_tells_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay, "_TICK_US", 10_000)
    client = Client([batch(0), batch(1), batch(2)])
    client.first = [batch(2)]
    assert client.looked.wait(5)
    client.relay.close()
    assert [progress.batch_id for progress in client.query.history()] == [0, 1, 2]
    assert client.told[-1].batches == 3


def test_a_batch_that_a_query_remembers_has_the_measurements_that_the_listener_would_have_told() -> None:
    """Otherwise a query would end with the batches of a break, because their reports could not be read."""

    def row(**values: object) -> dict[str, Any]:
        return {
            "values": [*values.values()],
            "schema": {"type": "struct", "fields": [{"name": each} for each in values]},
        }

    told = batch(0)
    fields = json.loads(told.json)
    fields["observedMetrics"] = {"lowmark:s": row(latest="AgMJ", rows=2, names=[row(topic="a", partition=None)])}
    told.json = json.dumps(fields)
    names = [{"topic": "a", "partition": None}]
    assert progress_of(told).observed_metrics == {"lowmark:s": {"latest": "AgMJ", "rows": 2, "names": names}}


def test_a_reader_whose_first_question_failed_begins_with_a_later_batch(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise the service would not know its run, and would end its query."""
    desks, client, _ = served()
    client.looked.set()
    client.failures = 1
    for number in range(3):
        client.hear(batch(number))
    client.relay.close()
    said = [(record.getMessage(), record.exc_info) for record in caplog.records]
    assert said == [("the loop is busy; the watermark holds until the next batch", None)]
    begun = [(asked.first, asked.resumes) for asked in client.asked if asked.first]
    assert begun == [(True, None), (True, "t")]
    assert [(run.token, run.ended) for run in desks.runs] == [("t", False)]
    assert client.told[-1].batches == 3, "a query that ends by itself would wait in vain for the answer to its third"


def test_a_server_whose_clock_is_set_back_makes_no_batch_older_than_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise all splits would seem to be silent for as long as the clock was set back."""
    monkeypatch.setattr(relay, "monotonic_us", lambda: 100_000_000)
    client = Client([])
    client.looked.set()
    for number, second in enumerate((50, 20)):
        client.hear(batch(number, second=second))
    client.relay.close()
    *_, of_the_batch, _of_the_end = client.asked
    assert of_the_batch.planned_at_us == 100_000_000 - 1_000


def test_a_query_that_is_started_again_in_its_first_batch_leaves_one_run(caplog: pytest.LogCaptureFixture) -> None:
    """The new run runs the batch again which the reader before had planned; then the new reader resumes that one."""
    gone, live = HeartbeatOffset("orders", token="gone"), HeartbeatOffset("orders", token="live")
    desks, client, coordinator = served()
    client.looked.set()
    client.hear(batch(0, end=gone))
    client.hear(batch(1, start=gone, end=live))
    client.hear(batch(2, start=live, end=live))
    client.relay.close()
    assert [(run.token, run.ended, run.failure) for run in desks.runs] == [("gone", True, None), ("live", False, None)]
    assert client.removed == ["gone"]
    assert [asked.token for asked in client.asked if not asked.first] == ["gone", "live", "live", "live"]
    assert [said[2].token for said in coordinator.said if said[0] == "register"] == ["gone", "live"]
    assert "deregister" not in [said[0] for said in coordinator.said], "the task goes on under the new reader"
    assert caplog.text == ""


@pytest.mark.parametrize("known", [False, True], ids=["the first", "a later one"])
def test_a_report_that_cannot_be_read_ends_its_query_and_says_why(
    *, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "_TICK_US", 10_000)
    client = Client([])
    if known:
        client.hear(batch(0))
    client.hear(batch(1, end_lacks="split"))
    wait_until(lambda: client.told and client.told[-1].reply.refusal, "the reader is told")
    client.looked.clear()
    assert client.looked.wait(5), "the relay asks once a second"
    client.relay.close()
    refusal = client.told[-1].reply.refusal
    assert refusal is not None, "no later answer takes the refusal back"
    assert refusal.startswith('stream "orders": the report of batch 1 cannot be read. ')
    assert "expected a text, or null as split, got nothing" in refusal


def test_a_batch_that_began_at_no_time_cannot_be_read() -> None:
    client = Client([])
    client.hear(batch(0, second=61))
    client.relay.close()
    assert "expected a time in UTC, got '2026-01-01T00:00:61.000Z'" in str(client.told[-1].reply.refusal)


def test_a_server_that_is_slow_when_a_client_begins_to_listen_tells_it_each_event_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The relay looks once a second whether the session listens still."""
    monkeypatch.setattr(relay, "_TICK_US", 10_000)
    answers, asked, looks = threading.Event(), list[str](), list[str]()

    class Streams:
        _sqlb = SimpleNamespace(_listener_bus=list[Any]())

        def addListener(self, listener: object) -> None:
            self._sqlb._listener_bus.append(listener)

    def ask(_: object) -> None:
        asked.append("remove")
        assert len(asked) > 1 or answers.wait(30)

    read = SimpleNamespace(format=lambda _: SimpleNamespace(load=lambda: SimpleNamespace(schema=None)))
    spark: Any = SimpleNamespace(version="4.2.0", is_stopped=False, streams=Streams(), read=read)
    spark.client = SimpleNamespace(execute_command=ask)
    monkeypatch.setattr(connect, "register_class", lambda *_: None)
    session = ConnectSession(spark)
    monkeypatch.setattr(session, "_program_is_over", lambda: looks.append("over"))
    unused: Any = lambda *_: None  # noqa: E731
    begins = Worker("begins", lambda: session.listen(unused, unused, unused, unused))
    begins.start()
    try:
        wait_until(lambda: len(looks) > 2, "the relay has looked")
    finally:
        answers.set()
        begins.join(30)
        session._relay.close()
    assert len(Streams._sqlb._listener_bus) == 1


def test_a_session_is_listened_to_though_its_server_has_a_listener_of_before() -> None:
    """Spark's server never answers a second listener of a session, of a killed client or of a bus that has ended."""
    at_server, bus = ["of before"], list[Any]()

    def add(listener: object) -> None:
        assert at_server == [], "the server would never answer"
        at_server.append("new")
        bus.append(listener)

    session = ConnectSession(cast("Any", SimpleNamespace()))
    session.spark.streams = SimpleNamespace(_sqlb=SimpleNamespace(_listener_bus=bus), addListener=add, active=[])
    session.spark.client = SimpleNamespace(execute_command=lambda _: at_server.clear())
    listener: Any = object()
    assert session._add(listener)
    assert (at_server, bus) == (["new"], [listener])


def test_a_server_that_does_not_answer_while_the_client_listens_again_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "_LONG_SECONDS", 1e-6)
    hangs, answers = threading.Event(), threading.Event()

    class Streams:
        _sqlb = SimpleNamespace(_listener_bus=[], _execution_thread=None)

        def addListener(self, listener: object) -> None:
            self._sqlb._listener_bus.append(listener)

    def hang(_: object) -> None:
        hangs.set()
        assert answers.wait(30)

    client = Client([])
    client.looked.set()
    server = SimpleNamespace(execute_command=hang)
    client.session.spark = cast("Any", SimpleNamespace(streams=Streams(), client=server, is_stopped=False))
    client.session._listener = cast("Any", object())
    listens = Worker("listens", client.session._listen_again)
    listens.start()
    try:
        assert hangs.wait(30)
        assert client.relay.silence() is not None
    finally:
        answers.set()
        listens.join(30)
    assert client.relay.silence() is None
    client.relay.close()


def test_a_server_that_answers_with_errors_is_named_with_its_newest_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "_TICK_US", 10_000)
    monkeypatch.setattr(relay, "_LONG_SECONDS", 1e-6)
    client = Client([])
    client.refuses = True
    client.hear(batch(0))
    wait_until(lambda: "The newest error: disk full" in (client.relay.silence() or ""), "the error is told")
    client.refuses = False
    wait_until(lambda: client.told, "the server takes answers again")
    client.relay.close()
    assert client.relay.silence() is None


@pytest.mark.parametrize(
    ("raised", "failure"),
    [
        (None, None),
        (StreamingQueryException("boom"), "boom"),
        (KeyError("Streaming query q is not found"), "its server does not say how it ended: 'Streaming query q is not"),
    ],
    ids=["stopped", "failed", "forgotten"],
)
def test_a_query_that_ended_during_a_break_has_failed_if_its_server_says_so(
    raised: Exception | None, failure: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exception(query: StreamingQuery) -> Exception | None:
        assert (query.id, query.runId) == (ID, ID)
        if isinstance(raised, KeyError):
            raise raised
        return raised

    monkeypatch.setattr(StreamingQuery, "exception", exception)
    client, ended = Client([]), []
    client.looked.set()
    client.query = ConnectQuery(lambda _: "", lambda *_: None, ID, ID, None, ClientCheckpoint({}), lambda: None)
    client.session.spark = cast("Any", SimpleNamespace(streams=SimpleNamespace(get=lambda _: None)))
    monkeypatch.setattr(client.session, "_put", lambda kind, event: ended.append((kind, event.exception)))
    client.session._catch_up(client.query)
    client.relay.close()
    [(kind, told)] = ended
    assert kind == "terminated"
    assert told is None if failure is None else str(told).startswith(failure)
