"""The relay of a Spark Connect client takes the batches of its queries in order. These tests need no server."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from lowmark.integration.spark import relay
from lowmark.integration.spark.connect import ConnectSession
from lowmark.integration.spark.connect_query import ClientCheckpoint, ClientEvent, ConnectQuery
from lowmark.integration.transport.driver_rpc import HeartbeatReply, HeartbeatRequest
from lowmark.integration.transport.heartbeat import HeartbeatOffset
from lowmark.integration.transport.told import Told
from pyspark.sql.streaming.listener import QueryProgressEvent

FIRST, LATER = HeartbeatOffset("orders"), HeartbeatOffset("orders", token="t")


def batch(batch_id: int, *, second: int | None = None) -> Any:
    """A batch that began at a second of the server's clock, as Spark's client remembers it."""
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
                "startOffset": (LATER if batch_id else FIRST).to_json(),
                "endOffset": LATER.to_json(),
                "latestOffset": None,
                "numInputRows": 1,
            }
        ],
    }
    names = {"id": "q", "runId": "r", "batchId": batch_id, "durationMs": fields["durationMs"]}
    return SimpleNamespace(json=json.dumps(fields), **names)


class Client:
    """A client with one query, and a server that remembers its batches."""

    def __init__(self, recent: list[Any]) -> None:
        self.told: list[Told] = []
        self.asked: list[HeartbeatRequest] = []
        self.failures = 0  # of the next questions
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
        return HeartbeatReply(low_watermark_us=None, epoch=1, state="")

    def _tell(self, stream_id: str, token: str, told: Told | None) -> None:
        assert told is not None
        self.told.append(told)

    def _look(self) -> None:
        if not self.looked.is_set():
            for told in self.first:
                self.hear(told)
            self.session._catch_up(self.query)
        self.looked.set()

    def hear(self, told: Any) -> None:
        self.relay.put("progress", ClientEvent(QueryProgressEvent(told)), self.query)


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
    monkeypatch.setattr(relay, "_TICK_SECONDS", 0.01)
    client = Client([batch(0), batch(1), batch(2)])
    client.first = [batch(2)]
    assert client.looked.wait(5)
    client.relay.close()
    assert [progress.batch_id for progress in client.query.history()] == [0, 1, 2]
    assert client.told[-1].batches == 3


def test_a_reader_whose_first_question_failed_begins_with_a_later_batch() -> None:
    """Otherwise the service would not know its run, and would end its query."""
    client = Client([])
    client.looked.set()
    client.failures = 1
    for number in range(3):
        client.hear(batch(number))
    client.relay.close()
    assert [(asked.first, asked.resumes) for asked in client.asked] == [(True, None), (True, "t"), (False, None)]
    assert client.told


def test_a_server_whose_clock_is_set_back_makes_no_batch_older_than_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise all splits would seem to be silent for as long as the clock was set back."""
    monkeypatch.setattr(relay, "monotonic_us", lambda: 100_000_000)
    client = Client([])
    client.looked.set()
    for number, second in enumerate((50, 20)):
        client.hear(batch(number, second=second))
    client.relay.close()
    assert client.asked[-1].planned_at_us == 100_000_000 - 1_000
