"""A coordinator answers any bytes with a status or an answer, and no other application is disturbed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import grpc
import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from lowmark.integration.coordinator import messages
from lowmark.integration.coordinator.access import Caller, Door
from lowmark.integration.coordinator.client import CoordinatorClient
from lowmark.integration.coordinator.messages import Say
from lowmark.integration.errors import MalformedMessage
from lowmark.watermark import (
    InvalidMessage,
    InvalidStrategy,
    LowmarkError,
    NotifyNewLowWatermark,
    TaskId,
)
from lowmark.watermark.protocol import (
    LeaseRenewed,
    LeftOut,
    ReplyLowWatermark,
    RetrieveLowWatermark,
    TaskDeregistered,
    TaskForgotten,
    TaskRegistered,
)
from lowmark.watermark.strategy import AlignmentParams
from lowmark.watermark.tasks.cap import Cap, CapAnnounced

from tests.integration.coordinator.serving import beginning, private_folder, report, serving, task
from tests.laws.strategies import draws
from tests.servers.local import wait_until

EXTREMES = st.sampled_from([-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 1])
ANY_INT = EXTREMES | st.sampled_from([2**63, 2**64 - 1])
NAMES = st.sampled_from(["", "a", "orders", "é" * 500, "x" * 1_001, "\0", "0"])
# Messages as the wire carries them. Tasks of the fuzz may do anything, because they have their own job; all jobs share
# the groups.
IDS = {"job_id": st.just("fuzz"), "source_id": st.sampled_from(["s", "t"]), "task_id": st.sampled_from(["0", "1", ""])}
TASK = {"task": st.fixed_dictionaries(IDS)}
RUNS = st.sampled_from(["", "run-1", "run-2"])
ALIGNMENTS = st.fixed_dictionaries(
    {"group": st.sampled_from(["g", "h", ""]), "max_drift_us": ANY_INT, "update_interval_us": ANY_INT}
)


def statements(tag: str, **more: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"type": st.just(tag), "token": RUNS, **more})


STATEMENTS = st.one_of(
    statements(
        "Register",
        **TASK,
        low_watermark_us=st.none() | ANY_INT,
        alignment=st.none() | ALIGNMENTS,
        throttled=st.booleans(),
    ),
    statements(
        "Reply",
        **IDS,
        timestamp=ANY_INT,
        current_low_watermark=st.none() | ANY_INT,
        left_out=st.none() | st.sampled_from([each.value for each in LeftOut]),
        next_wanted_us=st.none() | ANY_INT,
        sequence=ANY_INT,
    ),
    statements("Renew", **TASK, heard_low_us=st.none() | ANY_INT),
    statements("Deregister", **TASK),
)
MESSAGES = st.fixed_dictionaries({"application": st.just("fuzz"), "statements": st.lists(STATEMENTS, max_size=8)})
TIGHT = messages.CODEC.encode(
    Say("fuzz", [TaskRegistered(TaskId("fuzz", "s", "0"), "r", None, AlignmentParams("tight", 0, 1))])
)
JUNK = st.recursive(
    st.none() | st.booleans() | ANY_INT | st.floats() | NAMES | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
FIELDS = ["application", "statements", "type", "task", "token", "timestamp", "alignment", "sequence", "lease_us"]
METHODS = st.sampled_from([messages.SAY.path, messages.WATCH.path, messages.STATUS.path])
QUICK = settings(max_examples=draws(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

OK_OR = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}


class Target:
    """A coordinator, a bystander whose tasks must not notice anything, and a way to send bytes."""

    def __init__(self, channel: grpc.Channel, bystander: CoordinatorClient) -> None:
        self.channel, self.bystander, self.low_us = channel, bystander, 0

    def send(self, data: bytes, path: str = messages.SAY.path) -> Any:
        """Return the answers, or the status of a failed call."""
        if path == messages.WATCH.path:
            begin: Any = self.channel.unary_stream(path)
            watch = begin(data, timeout=20)
            try:
                return next(watch)
            except grpc.RpcError as failed:
                return failed.code()
            finally:
                watch.cancel()
        call: Any = self.channel.unary_unary(path)
        try:
            return call(data, timeout=20)
        except grpc.RpcError as failed:
            return failed.code()

    def check(self, answer: Any) -> None:
        assert isinstance(answer, bytes) or answer in OK_OR, answer
        assert self.bystander.connected

    def check_bystander(self) -> None:
        """Report for the bystander, and wait until its low watermark has risen."""
        self.low_us += 1
        for n in range(2):
            report(self.bystander, task(n), self.low_us)
        wait_until(partial(self.heard, self.low_us), f"the bystander's low watermark rises to {self.low_us}")

    def heard(self, low_us: int) -> bool:
        return self.bystander.low_us(task(1)) == low_us


@pytest.fixture(scope="module")
def server() -> Iterator[Target]:
    with (
        private_folder() as folder,
        serving(Door(f"unix:{folder}/c.sock"), journal=folder / "journal") as address,
        CoordinatorClient(Caller(address)) as bystander,
        Caller(address).channel() as channel,
    ):
        for n in range(2):
            bystander.register(beginning(task(n)))
        made = Target(channel, bystander)
        made.check_bystander()
        yield made


@pytest.fixture
def target(server: Target) -> Iterator[Target]:
    yield server
    server.check_bystander()


@QUICK
@given(data=st.binary(max_size=300), path=METHODS)
def test_random_bytes(target: Target, data: bytes, path: str) -> None:
    target.check(target.send(data, path))


@QUICK
@given(value=JUNK, path=METHODS)
def test_well_formed_bytes_of_the_wrong_shape(target: Target, value: Any, path: str) -> None:
    target.check(target.send(msgspec.msgpack.encode(value), path))


@QUICK
@given(message=MESSAGES)
@example(message=msgspec.msgpack.decode(TIGHT))
def test_valid_shapes_with_any_values_are_answered_one_by_one(target: Target, message: dict[str, Any]) -> None:
    answer = target.send(messages.encode(message))
    target.check(answer)
    assert isinstance(answer, bytes)
    assert len(messages.SAY.decode_answer(answer).answers) == len(message["statements"])


@QUICK
@given(message=MESSAGES, cut=st.integers(0, 400))
def test_truncated_messages(target: Target, message: dict[str, Any], cut: int) -> None:
    whole = messages.encode(message)
    answer = target.send(whole[: min(cut, len(whole) - 1)])
    target.check(answer)
    assert answer is grpc.StatusCode.INVALID_ARGUMENT


@QUICK
@given(message=MESSAGES, at=st.integers(0, 2_000), byte=st.integers(0, 255))
def test_messages_with_a_byte_changed(target: Target, message: dict[str, Any], at: int, byte: int) -> None:
    data = bytearray(messages.encode(message).replace(b"job", b"fuzz"))
    data[at % len(data)] = byte
    target.check(target.send(bytes(data)))


@QUICK
@given(message=MESSAGES, field=st.sampled_from(FIELDS), value=JUNK)
def test_messages_with_a_field_of_the_wrong_type(
    target: Target, message: dict[str, Any], field: str, value: Any
) -> None:
    target.check(target.send(msgspec.msgpack.encode(swapped(message, field, value))))


def swapped(data: Any, field: str, value: Any) -> Any:
    """Replace every value of one field; applications of ours do not occur."""
    if isinstance(data, list):
        return [swapped(each, field, value) for each in data]
    if isinstance(data, dict):
        return {key: value if key == field else swapped(each, field, value) for key, each in data.items()}
    return data


@pytest.mark.slow
@QUICK
@given(said=st.lists(MESSAGES, min_size=2, max_size=6), data=st.data())
def test_replayed_and_reordered_messages(target: Target, said: list[dict[str, Any]], data: st.DataObject) -> None:
    order = data.draw(st.permutations([*said, *said]))
    for message in order:
        target.check(target.send(messages.encode(message)))


@pytest.mark.parametrize("size", [messages.MOST_BYTES + 1, 3 * messages.MOST_BYTES])
def test_oversized_messages(target: Target, size: int) -> None:
    assert target.send(b"\0" * size) is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_nesting_without_end(target: Target) -> None:
    assert target.send(b"\x91" * 100_000) is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.slow
def test_more_statements_than_anybody_has(target: Target) -> None:
    answer = target.send(messages.encode(Say("fuzz", [LeaseRenewed(TaskId("fuzz", "s", "0"), "r")] * 10_000)))
    target.check(answer)
    assert len(messages.SAY.decode_answer(answer).answers) == 10_000


@QUICK
@given(message=MESSAGES)
def test_what_is_encoded_is_decoded(message: dict[str, Any]) -> None:
    read = messages.SAY.decode_question(messages.encode(message))
    said = Say(read.application, [each for each in read.statements if not isinstance(each, LowmarkError)])
    assert messages.SAY.decode_question(messages.encode(said)) == said


@QUICK
@given(data=st.binary(max_size=300))
def test_decoding_raises_nothing_but_its_own_error(data: bytes) -> None:
    with suppress(MalformedMessage):
        messages.SAY.decode_question(data)


WHO = TaskId("job", "orders", "0")


ON_THE_WIRE = {"job_id": "job", "source_id": "orders", "task_id": "0"}


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        (
            TaskRegistered(WHO, "run", 1, AlignmentParams("g", 2, 3), False, 6, 7),
            {
                "type": "Register",
                "task": ON_THE_WIRE,
                "token": "run",
                "low_watermark_us": 1,
                "alignment": {"group": "g", "max_drift_us": 2, "update_interval_us": 3},
                "throttled": False,
                "expected_tasks": 6,
                "away_limit_us": 7,
            },
        ),
        (
            ReplyLowWatermark("job", "orders", "0", 1, 2, "run", LeftOut.IDLE, 3, 4, 5, 6),
            {
                "type": "Reply",
                **ON_THE_WIRE,
                "token": "run",
                "timestamp": 1,
                "current_low_watermark": 2,
                "left_out": "idle",
                "next_wanted_us": 3,
                "sequence": 4,
                "silent_us": 5,
                "patience_us": 6,
            },
        ),
        (LeaseRenewed(WHO, "run", 0), {"type": "Renew", "task": ON_THE_WIRE, "token": "run", "heard_low_us": 0}),
        (TaskDeregistered(WHO, "run"), {"type": "Deregister", "task": ON_THE_WIRE, "token": "run"}),
        (TaskForgotten(WHO), {"type": "Forget", "task": ON_THE_WIRE}),
        (RetrieveLowWatermark("job", "orders", "0", 1), {"type": "Asked", **ON_THE_WIRE, "timestamp": 1}),
        (
            NotifyNewLowWatermark("job", "orders", "0", 1, 0),
            {"type": "NewLowWatermark", **ON_THE_WIRE, "timestamp": 1, "new_low_watermark": 0},
        ),
        (
            CapAnnounced("g", WHO, 7, Cap.up_to(0)),
            {"type": "Capped", "group": "g", "task": ON_THE_WIRE, "version": 7, "cap": {"kind": 1, "us": 0}},
        ),
        (
            CapAnnounced("g", WHO, 7, Cap.hold()),
            {"type": "Capped", "group": "g", "task": ON_THE_WIRE, "version": 7, "cap": {"kind": 0}},
        ),
        (
            CapAnnounced("g", WHO, 7, Cap.free()),
            {"type": "Capped", "group": "g", "task": ON_THE_WIRE, "version": 7, "cap": {"kind": 2}},
        ),
    ],
)
def test_every_field_goes_over_the_wire_by_the_name_it_has_there(message: Any, wire: dict[str, Any]) -> None:
    told = type(message) in (RetrieveLowWatermark, NotifyNewLowWatermark, CapAnnounced)
    whole = messages.WatchNews([message]) if told else Say("a", [message])
    sent = msgspec.msgpack.decode(messages.encode(whole))
    assert sent["messages" if told else "statements"] == [wire]
    decode: Any = messages.WATCH.decode_answer if told else messages.SAY.decode_question
    assert decode(messages.encode(whole)) == whole


def test_a_statement_that_cannot_be_stands_as_its_error_beside_the_others() -> None:
    register = {"type": "Register", "task": ON_THE_WIRE, "token": "r"}
    drift = {"group": "g", "max_drift_us": -1, "update_interval_us": 1}
    said = messages.encode({"application": "a", "statements": [{**register, "alignment": drift}, register]})
    refused, taken = messages.SAY.decode_question(said).statements
    assert isinstance(refused, InvalidStrategy)
    assert taken == TaskRegistered(WHO, "r")


def test_a_cap_that_cannot_be_is_refused_where_it_is_read() -> None:
    capped = {"type": "Capped", "group": "g", "task": ON_THE_WIRE, "version": 1, "cap": {"kind": 1}}
    with pytest.raises(InvalidMessage, match=r"Cap\.us"):
        messages.WATCH.decode_answer(messages.encode({"messages": [capped]}))
    for number in (2**63, 2**64 - 1):
        with pytest.raises(MalformedMessage, match=r"\.us"):
            messages.WATCH.decode_answer(messages.encode({"messages": [{**capped, "cap": {"kind": 1, "us": number}}]}))


def test_a_limit_below_0_is_malformed_and_none_is_left_out_of_the_bytes() -> None:
    with pytest.raises(MalformedMessage, match="limit"):
        messages.STATUS.decode_question(messages.encode({"limit": -1}))
    assert messages.encode(messages.StatusQuestion()) == messages.encode({})
    assert messages.STATUS.decode_question(messages.encode(messages.StatusQuestion(0))).limit == 0


@pytest.mark.parametrize("at", ["Register", "Reply", "Renew", "Deregister", "alignment", "task"])
def test_a_field_that_nobody_knows_is_malformed_wherever_it_stands(at: str) -> None:
    tag = "Register" if at.islower() else at
    statement: dict[str, Any] = {"type": tag, "token": "r"}
    if tag == "Reply":
        statement |= {**ON_THE_WIRE, "timestamp": 1, "current_low_watermark": 1}
    else:
        statement["task"] = dict(ON_THE_WIRE)
    if at == "alignment":
        statement["alignment"] = {"group": "g", "max_drift_us": 1, "update_interval_us": 1}
    said = {"application": "a", "statements": [statement]}
    messages.SAY.decode_question(messages.encode(said))
    (statement[at] if at.islower() else statement)["more"] = 1
    with pytest.raises(MalformedMessage, match="unknown field `more`"):
        messages.SAY.decode_question(messages.encode(said))


def test_text_that_is_not_utf_8_is_malformed() -> None:
    for data in (
        messages.encode(Say("a", [])).replace(b"\xa1a", b"\xa1\xff"),
        messages.encode({"application": "a", "statements": [], "x": 1}).replace(b"\xa1x", b"\xa1\xff"),
    ):
        assert b"\xff" in data
        with pytest.raises(MalformedMessage):
            messages.SAY.decode_question(data)
