"""Whatever bytes come, a coordinator answers with a status or an answer, and nobody else is disturbed."""

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
from lowmark.integration.coordinator import messages as wire
from lowmark.integration.coordinator.access import Caller, Door
from lowmark.integration.coordinator.client import Member
from lowmark.integration.coordinator.messages import Alignment, Deregister, Finished, Register, Renew, Reply, Say
from lowmark.integration.errors import MalformedMessage
from lowmark.watermark import (
    AlignmentParams,
    Cap,
    CapAnnounced,
    DisagreeingGroup,
    InvalidMessage,
    LeaseRenewed,
    LeftOut,
    LowmarkError,
    NotifyNewLowWatermark,
    ReplyLowWatermark,
    RetrieveLowWatermark,
    StaleRun,
    TaskDeregistered,
    TaskRegistered,
    UnknownTask,
)

from tests.integration.serving import private_folder, serving, task
from tests.live.servers import wait_until

EXTREMES = st.sampled_from([-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 1])
ANY_INT = EXTREMES | st.sampled_from([2**63, 2**64 - 1])
NAMES = st.sampled_from(["", "a", "orders", "é" * 500, "x" * 1_001, "\0", "0"])
# Tasks of the fuzz are in a job of their own, so that they may do what they like; groups are shared with everybody.
TASKS = st.builds(wire.Task, st.just("fuzz"), st.sampled_from(["s", "t"]), st.sampled_from(["0", "1", ""]))
RUNS = st.sampled_from(["", "run-1", "run-2"])
ALIGNMENTS = st.builds(Alignment, st.sampled_from(["g", "h", ""]), ANY_INT, ANY_INT)
STATEMENTS = st.one_of(
    st.builds(
        Register,
        TASKS,
        RUNS,
        st.none() | ANY_INT,
        st.none() | ALIGNMENTS,
        st.booleans(),
        ANY_INT,
        st.none() | ANY_INT,
    ),
    st.builds(
        Reply,
        TASKS,
        RUNS,
        ANY_INT,
        st.none() | ANY_INT,
        st.none() | st.sampled_from(LeftOut),
        st.none() | ANY_INT,
        ANY_INT,
    ),
    st.builds(Renew, TASKS, RUNS, st.none() | ANY_INT),
    st.builds(Finished, TASKS, RUNS),
    st.builds(Deregister, TASKS, RUNS),
)
MESSAGES = st.builds(Say, st.just("fuzz"), st.lists(STATEMENTS, max_size=8))
JUNK = st.recursive(
    st.none() | st.booleans() | ANY_INT | st.floats() | NAMES | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
FIELDS = ["application", "statements", "type", "task", "run", "timestamp", "alignment", "sequence", "lease_us"]
METHODS = st.sampled_from([wire.SAY.path, wire.WATCH.path, wire.STATUS.path])
QUICK = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

OK_OR = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}


class Target:
    """A coordinator, a bystander whose tasks must not notice anything, and a way to send bytes."""

    def __init__(self, channel: grpc.Channel, bystander: Member) -> None:
        self.channel, self.bystander, self.low_us = channel, bystander, 0

    def send(self, data: bytes, path: str = wire.SAY.path) -> Any:
        """Answers, or the status there was instead of them."""
        if path == wire.WATCH.path:
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
        """It reports, and hears a low watermark that rose."""
        self.low_us += 1
        for n in range(2):
            self.bystander.report(task(n), self.low_us)
        wait_until(partial(self.heard, self.low_us), f"the bystander's low watermark rises to {self.low_us}")

    def heard(self, low_us: int) -> bool:
        return self.bystander.low_us(task(1)) == low_us


@pytest.fixture(scope="module")
def server() -> Iterator[Target]:
    with (
        private_folder() as folder,
        serving(Door(f"unix:{folder}/c.sock"), journal=folder / "journal") as address,
        Member(address) as bystander,
        Caller(address).channel() as channel,
    ):
        for n in range(2):
            bystander.register(task(n))
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
@example(message=Say("fuzz", [Register(wire.Task("fuzz", "s", "0"), "r", alignment=Alignment("tight", 0, 1))]))
def test_valid_shapes_with_any_values_are_answered_one_by_one(target: Target, message: Say) -> None:
    answer = target.send(wire.encode(message))
    target.check(answer)
    assert isinstance(answer, bytes)
    assert len(wire.SAY.decode_answer(answer).answers) == len(message.statements)


@QUICK
@given(message=MESSAGES, cut=st.integers(0, 400))
def test_truncated_messages(target: Target, message: Say, cut: int) -> None:
    whole = wire.encode(message)
    answer = target.send(whole[: min(cut, len(whole) - 1)])
    target.check(answer)
    assert answer is grpc.StatusCode.INVALID_ARGUMENT


@QUICK
@given(message=MESSAGES, at=st.integers(0, 2_000), byte=st.integers(0, 255))
def test_messages_with_a_byte_changed(target: Target, message: Say, at: int, byte: int) -> None:
    data = bytearray(wire.encode(message).replace(b"job", b"fuzz"))
    data[at % len(data)] = byte
    target.check(target.send(bytes(data)))


@QUICK
@given(message=MESSAGES, field=st.sampled_from(FIELDS), value=JUNK)
def test_messages_with_a_field_of_the_wrong_type(target: Target, message: Say, field: str, value: Any) -> None:
    target.check(target.send(msgspec.msgpack.encode(swapped(msgspec.to_builtins(message), field, value))))


def swapped(data: Any, field: str, value: Any) -> Any:
    """The same with one field's value replaced, wherever it stands; an application of ours is never named."""
    if isinstance(data, list):
        return [swapped(each, field, value) for each in data]
    if isinstance(data, dict):
        return {key: value if key == field else swapped(each, field, value) for key, each in data.items()}
    return data


@QUICK
@given(messages=st.lists(MESSAGES, min_size=2, max_size=6), data=st.data())
def test_replayed_and_reordered_messages(target: Target, messages: list[Say], data: st.DataObject) -> None:
    order = data.draw(st.permutations([*messages, *messages]))
    for message in order:
        target.check(target.send(wire.encode(message)))


@pytest.mark.parametrize("size", [wire.MOST_BYTES + 1, 3 * wire.MOST_BYTES])
def test_oversized_messages(target: Target, size: int) -> None:
    assert target.send(b"\0" * size) is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_nesting_without_end(target: Target) -> None:
    assert target.send(b"\x91" * 100_000) is grpc.StatusCode.INVALID_ARGUMENT


def test_more_statements_than_anybody_has(target: Target) -> None:
    many: list[wire.Statement] = [Renew(wire.Task("fuzz", "s", "0"), "r")] * 10_000
    answer = target.send(wire.encode(Say("fuzz", many)))
    target.check(answer)
    assert len(wire.SAY.decode_answer(answer).answers) == 10_000


@QUICK
@given(message=MESSAGES)
def test_what_is_encoded_is_decoded(message: Say) -> None:
    assert wire.SAY.decode_question(wire.encode(message)) == message


@QUICK
@given(data=st.binary(max_size=300))
def test_decoding_raises_nothing_but_its_own_error(data: bytes) -> None:
    with suppress(MalformedMessage):
        wire.SAY.decode_question(data)


WHO = wire.Task("job", "orders", "0")


@pytest.mark.parametrize(
    ("said", "means"),
    [
        (
            Register(WHO, "run", 1, Alignment("g", 2, 3), False, 4, 5, 6),
            TaskRegistered(WHO.id(), "run", 1, AlignmentParams("g", 2, 3), False, 6),
        ),
        (Register(WHO, "run"), TaskRegistered(WHO.id(), "run")),
        (
            Reply(WHO, "run", 1, 2, LeftOut.IDLE, 3, 4, 5, 6),
            ReplyLowWatermark("job", "orders", "0", 1, 2, "run", LeftOut.IDLE, 3, 4, 5, 6),
        ),
        (Renew(WHO, "run", 0), LeaseRenewed(WHO.id(), "run", 0)),
        (Finished(WHO, "run"), TaskDeregistered(WHO.id(), "run")),
        (Deregister(WHO, "run"), TaskDeregistered(WHO.id(), "run")),
    ],
)
def test_every_field_of_a_statement_arrives(said: wire.Statement, means: wire.Event) -> None:
    [arrived] = wire.SAY.decode_question(wire.encode(Say("a", [said]))).statements
    assert means == wire.to_event(arrived)


@pytest.mark.parametrize(
    "told",
    [
        RetrieveLowWatermark("job", "orders", "0", 1),
        NotifyNewLowWatermark("job", "orders", "0", 1, 0),
        CapAnnounced("g", WHO.id(), 7, Cap.up_to(0)),
        CapAnnounced("g", WHO.id(), 7, Cap.hold()),
        CapAnnounced("g", WHO.id(), 7, Cap.free()),
    ],
)
def test_every_field_of_an_effect_arrives(told: RetrieveLowWatermark | NotifyNewLowWatermark | CapAnnounced) -> None:
    [arrived] = wire.WATCH.decode_answer(wire.encode(wire.Told([wire.to_message(told)]))).messages
    assert arrived == wire.to_message(told)
    sent = msgspec.to_builtins(told)
    sent |= {"task": sent.pop("task", None) or {name: sent.pop(name) for name in ("job_id", "source_id", "task_id")}}
    sent |= sent.pop("cap", {})
    assert msgspec.to_builtins(arrived) == {"type": type(arrived).__struct_config__.tag, **sent}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UnknownTask("job/orders/0", "the coordinator", 3), "NOT_FOUND"),
        (StaleRun("job/orders/0", "run", "is over"), "FAILED_PRECONDITION"),
        (DisagreeingGroup("g", "a", "this", "b", "that"), "FAILED_PRECONDITION"),
        (InvalidMessage("Reply", "timestamp", "x", "a number"), "INVALID_ARGUMENT"),
    ],
)
def test_a_refusal_carries_status_name_and_sentence(error: LowmarkError, status: str) -> None:
    assert wire.Refused(status, type(error).__name__, str(error)) == wire.refusal(error)


def test_a_limit_below_0_is_malformed_and_none_is_left_out_of_the_bytes() -> None:
    with pytest.raises(MalformedMessage, match="limit"):
        wire.STATUS.decode_question(wire.encode({"limit": -1}))
    assert wire.encode(wire.StatusQuestion()) == wire.encode({})  # which a coordinator of before understands
    assert wire.STATUS.decode_question(wire.encode(wire.StatusQuestion(0))).limit == 0


@pytest.mark.parametrize("kind", [Register, Reply, Renew, Finished, Deregister, Alignment, wire.Task])
def test_a_field_that_nobody_knows_is_malformed_wherever_it_stands(kind: type[msgspec.Struct]) -> None:
    task, group = msgspec.to_builtins(WHO), {"group": "g", "max_drift_us": 1, "update_interval_us": 1}
    more = {"Alignment": {"alignment": {**group, "more": 1}}, "Task": {"task": {**task, "more": 1}}}
    name = kind.__name__ if kind.__name__ not in more else "Register"
    fields = {"type": name, "task": task, "run": "r"} | more.get(kind.__name__, {"more": 1})
    if name == "Reply":
        fields |= {"timestamp": 1, "current_low_watermark": 1}
    with pytest.raises(MalformedMessage, match="unknown field `more`"):
        wire.SAY.decode_question(wire.encode({"application": "a", "statements": [fields]}))
    del fields["more" if name == kind.__name__ else kind.__name__.lower()]
    if kind is not wire.Task:
        wire.SAY.decode_question(wire.encode({"application": "a", "statements": [fields]}))


def test_text_that_is_not_utf_8_is_malformed() -> None:
    for data in (
        wire.encode(Say("a", [])).replace(b"\xa1a", b"\xa1\xff"),
        wire.encode({"application": "a", "statements": [], "x": 1}).replace(b"\xa1x", b"\xa1\xff"),
    ):
        assert b"\xff" in data
        with pytest.raises(MalformedMessage):
            wire.SAY.decode_question(data)
