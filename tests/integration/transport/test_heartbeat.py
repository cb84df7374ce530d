"""The heartbeat reader's conversation, with a scripted service at the other end of the socket."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from lowmark.integration.errors import QueryRefused, ServiceFailed, ServiceUnreachable, UnreadableHeartbeat
from lowmark.integration.transport import heartbeat
from lowmark.integration.transport.driver_rpc import (
    HEARTBEAT,
    STATUS,
    Client,
    HeartbeatReply,
    HeartbeatRequest,
    Server,
    StatusReply,
    StatusRequest,
    handler,
    why_silent,
)
from lowmark.integration.transport.heartbeat import COLUMNS, HeartbeatOffset, HeartbeatReader

from tests.integration.feed import ZERO, us
from tests.servers.local import no_thread_stays


@dataclass
class Script:
    """Answers from a list, and repeats the last answer; keeps the questions."""

    replies: list[HeartbeatReply]
    asked: list[HeartbeatRequest] = field(default_factory=list)

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatReply:
        self.asked.append(request)
        return self.replies[min(len(self.asked), len(self.replies)) - 1]

    def status(self, request: StatusRequest) -> StatusReply:
        return StatusReply("app", 1, [], [])


def at(seconds: float, epoch: int, **more: Any) -> HeartbeatReply:
    return HeartbeatReply(us(seconds), epoch, f"state-{epoch}", **more)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The reader's monotonic time, in microseconds."""
    now = [1_000_000]
    monkeypatch.setattr(heartbeat, "monotonic_us", lambda: now[0])
    return now


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"unix:{tmp_path}/s.sock"


@pytest.fixture
def reader(address: str, monkeypatch: pytest.MonkeyPatch) -> HeartbeatReader:
    monkeypatch.setattr("sys.excepthook", lambda *_: None)  # the reader sets the hook of its own process
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")  # likewise
    return HeartbeatReader(address=address, stream_id="id", stream="orders", delay_ms=10_000, split="split string")


def serve(address: str, *replies: HeartbeatReply) -> tuple[Script, Server]:
    script = Script(list(replies))
    return script, Server(address, handler(HEARTBEAT, script.heartbeat), handler(STATUS, script.status))


def test_the_first_offset_is_new_and_repeats_the_low_watermark(
    reader: HeartbeatReader, address: str, clock: list[int]
) -> None:
    script, server = serve(address, at(5, 8))
    start = HeartbeatOffset("orders", us(5), "before", 7, "old", "other int").to_json()
    rows, end = reader.read(start)
    server.stop()

    (row,) = [row for batch in rows for row in batch.to_pylist()]
    assert tuple(row.values()) == (ZERO + dt.timedelta(seconds=5 + 10), True, 0), "Spark takes the delay off again"
    assert (end["low_us"], end["state"], end["epoch"]) == (us(5), "state-8", 8)
    assert end["token"] not in ("before", None)
    (asked,) = script.asked
    assert (asked.first, asked.resumes, asked.epoch, asked.state) == (True, "before", 7, "old")
    assert (asked.split, end["split"]) == ("other int", "split string")
    assert asked.token == end["token"]


def test_it_asks_once_a_batch_and_answers_polls_from_memory(
    reader: HeartbeatReader, address: str, clock: list[int]
) -> None:
    script, server = serve(address, at(5, 1), at(6, 2), at(6, 2))
    _, first = reader.read(reader.initialOffset())
    _, second = reader.read(first)  # the batch of the first offset is over
    _, third = reader.read(second)  # so is the batch of the second offset
    for _ in range(100):
        clock[0] += 10_000
        rows, again = reader.read(third)
        assert ([*rows], again) == ([], third)
    reader.commit(third)  # a batch with rows only was planned
    reader.read(third)
    server.stop()

    assert (first != second, second == third) == (True, True)
    assert len(script.asked) == 4


def test_silence_is_measured_up_to_a_poll_that_found_nothing(
    reader: HeartbeatReader, address: str, clock: list[int]
) -> None:
    """Attached at 1.0 s, planned at 2.0 s, over at 9.0 s, polled at 9.5 and 9.7 s; the service wakes at 9.4 s."""
    script, server = serve(address, at(5, 1), at(5, 1, wake_at_us=9_400_000))
    _, offset = reader.read(reader.initialOffset())
    clock[0] = 2_000_000
    reader.read(offset)
    reader.commit(offset)
    for clock[0] in (9_000_000, 9_500_000, 9_700_000):
        reader.read(offset)
    server.stop()
    asked = [(r.planned_at_us, r.polled_until_us) for r in script.asked]

    assert asked == [(None, None), (1_000_000, None), (2_000_000, None), (2_000_000, 9_500_000)]


def test_without_a_service_it_holds_and_asks_again_after_a_while(
    reader: HeartbeatReader, address: str, clock: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    _, server = serve(address, at(5, 1))
    _, offset = reader.read(reader.initialOffset())
    server.stop()
    for _ in range(3):
        reader.commit(offset)
        rows, held = reader.read(offset)
        assert ([*rows], held) == ([], offset)
    script, server = serve(address, at(9, 4))
    reader.read(offset)
    assert script.asked == [], "it waits a second between tries"
    clock[0] += 30_000_000
    _, moved = reader.read(offset)
    server.stop()

    assert moved["low_us"] == us(9)
    said = capfd.readouterr().err
    assert said.count("the watermark holds") == 1, "once, not on every poll"
    assert said.count("the service answers again") == 1


def test_attaching_to_nobody_is_an_error(reader: HeartbeatReader, clock: list[int]) -> None:
    with pytest.raises(ServiceUnreachable, match="no lowmark service answers at unix:"):
        reader.read(reader.initialOffset())


def test_a_service_that_answers_with_an_error_is_not_called_absent(
    reader: HeartbeatReader, address: str, clock: list[int]
) -> None:
    script, server = serve(address)
    try:
        with pytest.raises(ServiceFailed, match=r"the lowmark service at unix:.* answers with an error \(.*index"):
            reader.read(reader.initialOffset())
        script.replies.append(at(5, 1))
        _, offset = reader.read(reader.initialOffset())
        script.replies.clear()
        reader.commit(offset)
        assert reader.read(offset)[1] == offset, "it holds, as it does without a service"
    finally:
        server.stop()


def test_an_offset_without_the_field_of_the_split_columns_is_refused() -> None:
    whole = HeartbeatOffset("orders", 5_000, "token", 7, "state").to_json()
    assert HeartbeatOffset.find(whole) == HeartbeatOffset("orders", 5_000, "token", 7, "state")
    del whole["split"]
    with pytest.raises(UnreadableHeartbeat, match="split"):
        HeartbeatOffset.find(whole)


def test_a_server_that_is_stopped_leaves_no_thread(reader: HeartbeatReader, address: str) -> None:
    with no_thread_stays("lowmark-rpc"):
        _, server = serve(address, at(5, 8))
        reader.read(reader.initialOffset())
        server.stop()
    del server  # held until here, because gRPC ends the threads of a server without references


def test_a_refusal_ends_the_query(reader: HeartbeatReader, address: str, clock: list[int]) -> None:
    _, server = serve(address, HeartbeatReply(None, 0, "", refusal="because"))
    try:
        with pytest.raises(QueryRefused, match="because"):
            reader.read(reader.initialOffset())
    finally:
        server.stop()


def test_before_there_is_a_low_watermark_the_heartbeat_has_no_row(
    reader: HeartbeatReader, address: str, clock: list[int]
) -> None:
    _, server = serve(address, HeartbeatReply(None, 1, "state"))
    rows, end = reader.read(reader.initialOffset())
    server.stop()

    assert ([*rows], end["low_us"]) == ([], None)


@pytest.mark.parametrize("low_us", [-(2**63), -1_000])
def test_a_low_watermark_from_before_1970_has_no_row(
    low_us: int, reader: HeartbeatReader, address: str, clock: list[int]
) -> None:
    _, server = serve(address, HeartbeatReply(low_us, 1, "state"))
    rows, end = reader.read(reader.initialOffset())
    server.stop()

    assert ([*rows], end["low_us"]) == ([], low_us)


def test_pitfall_39_rows_can_be_copied(reader: HeartbeatReader, address: str, clock: list[int]) -> None:
    import copy

    _, server = serve(address, at(5, 1))
    rows, _ = reader.read(reader.initialOffset())
    server.stop()

    assert [*copy.copy(rows)] == [*rows]


@pytest.mark.parametrize("offset", [{"logOffset": 3}, '{"orders": {"0": 5}}', "no json", None, 7, '{"lowmark'])
def test_offsets_of_other_sources_are_not_taken_for_heartbeats(offset: object) -> None:
    assert HeartbeatOffset.find(offset) is None


def test_an_offset_is_found_again_as_mapping_and_as_text() -> None:
    offset = HeartbeatOffset('or"ders', us(5), "run", 3, "state")

    assert HeartbeatOffset.find(offset.to_json()) == offset
    assert HeartbeatOffset.find(json.dumps(offset.to_json())) == offset


def test_a_message_of_another_shape_is_refused(address: str) -> None:
    import grpc
    import msgspec

    _, server = serve(address, at(5, 1))
    channel = grpc.insecure_channel(address)
    call: Any = channel.unary_unary(HEARTBEAT.path)
    for data, fact in (
        (msgspec.msgpack.encode({"stream_id": 5}), "HeartbeatRequest: Expected `str`, got `int` - at `$.stream_id`"),
        (b"\x80\x04junk", "HeartbeatRequest: "),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            call(data, timeout=5)
        answer: Any = refused.value
        assert (answer.code(), fact in answer.details()) == (grpc.StatusCode.INVALID_ARGUMENT, True), answer.details()
    client = Client(address)
    assert client.status(StatusRequest()).pid == 1, "nothing else is disturbed"
    client.close()
    channel.close()
    server.stop()


def test_a_field_of_another_version_is_named_at_both_ends_and_no_service_counts_as_failed(address: str) -> None:
    class NewerRequest(StatusRequest, frozen=True):
        newer: int = 0

    class NewerReply(StatusReply, frozen=True):
        newer: int = 0

    def answer(_: StatusRequest) -> StatusReply:
        return NewerReply("app", 1, [], [])

    server, client = Server(address, handler(STATUS, answer)), Client(address)
    try:
        for asked, message in ((NewerRequest(), "StatusRequest"), (StatusRequest(), "StatusReply")):
            with pytest.raises(ServiceFailed) as failed:
                client.status(asked)
            why = str(why_silent(failed.value))
            assert why.startswith(f"the service at {address} answers with an error: ")
            assert f"{message}: Object contains unknown field `newer`" in why
            assert "both ends must run one version of lowmark" in why
    finally:
        client.close()
        server.stop()


def test_a_service_that_is_too_slow_says_so_in_a_line_and_not_by_a_traceback(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(_: StatusRequest) -> StatusReply:
        raise TimeoutError("cannot give the status: the service's loop is busy, tried for 5 seconds")

    server, client = Server(address, handler(STATUS, answer)), Client(address)
    try:
        with pytest.raises(ServiceFailed, match=r"error \(ABORTED: cannot give the status: the service's loop is busy"):
            client.status(StatusRequest())
    finally:
        client.close()
        server.stop()
    [told] = caplog.records
    assert (told.name, told.exc_info) == ("lowmark", None)
    assert told.getMessage() == "cannot give the status: the service's loop is busy, tried for 5 seconds"


def test_its_row_is_the_row_that_spark_makes_of_a_tuple(reader: HeartbeatReader) -> None:
    from pyspark.sql.types import BooleanType, IntegerType, StructField, StructType, TimestampType
    from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches

    kinds = (TimestampType(), BooleanType(), IntegerType())
    schema = StructType([StructField(name, kind) for name, kind in zip(COLUMNS, kinds, strict=True)])
    source: Any = None  # Spark names it in errors
    rows = reader.readBetweenOffsets(reader.initialOffset(), HeartbeatOffset("orders", us(5)).to_json())
    (ours,) = records_to_arrow_batches(rows, 10, schema, source)
    ours.validate(full=True)

    assert [ours] == [*records_to_arrow_batches(iter([(ZERO + dt.timedelta(seconds=15), True, 0)]), 10, schema, source)]


IN_ITS_PROCESS = """
import sys
import lowmark.integration.transport.driver_rpc
from lowmark.integration.transport.heartbeat import HeartbeatOffset, HeartbeatReader

reader = HeartbeatReader(address="unix:/none", stream_id="1", stream="orders", delay_ms=0)
assert [*reader.readBetweenOffsets(reader.initialOffset(), HeartbeatOffset("orders", 1_000).to_json())]
print(*sys.modules)
"""


def test_a_heartbeats_process_imports_nothing_that_it_has_no_use_for() -> None:
    """Spark starts a process for each stream, and waits for its start for at most ten seconds."""
    done = subprocess.run([sys.executable, "-c", IN_ITS_PROCESS], capture_output=True, text=True, check=True)
    modules = done.stdout.split()
    rooms = {name.split(".")[2] for name in modules if name.startswith("lowmark.sources.")}

    assert rooms == {"planning", "worker"}, done.stdout
    assert not {"pandas", "lowmark.watermark.tasks", "lowmark.watermark.splits"} & {*modules}
