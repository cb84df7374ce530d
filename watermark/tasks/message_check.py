"""Checks of the values in messages to the coordinator. Their types are those of the protocol, on every way in."""

from __future__ import annotations

from lowmark.watermark.errors import InvalidMessage, shown
from lowmark.watermark.moment import LEAST_US, MOST_US
from lowmark.watermark.names import MOST_NAME
from lowmark.watermark.protocol import (
    LeaseRenewed,
    ReplyLowWatermark,
    TaskDeregistered,
    TaskForgotten,
    TaskRegistered,
)

MOST_TASKS = 200_000
"""The largest number of tasks of a coordinator, together with tasks that are away and sources without a task."""


def check_reply(reply: ReplyLowWatermark) -> None:
    """Raises InvalidMessage."""
    _name(reply, "job_id", reply.job_id)
    _name(reply, "source_id", reply.source_id)
    _name(reply, "task_id", reply.task_id)
    _name(reply, "token", reply.token, least=0)
    _number(reply, "timestamp", reply.timestamp)
    _number(reply, "sequence", reply.sequence, least=0)
    _number(reply, "current_low_watermark", reply.current_low_watermark)
    _number(reply, "next_wanted_us", reply.next_wanted_us)
    _number(reply, "complete_until_us", reply.complete_until_us)
    _number(reply, "silent_us", reply.silent_us, least=0)
    _number(reply, "patience_us", reply.patience_us, least=1)


def check_task(message: TaskRegistered | LeaseRenewed | TaskDeregistered | TaskForgotten) -> None:
    """Raises InvalidMessage."""
    _name(message, "task.job_id", message.task.job_id)
    _name(message, "task.source_id", message.task.source_id)
    _name(message, "task.task_id", message.task.task_id)


def check_sender(message: TaskRegistered | LeaseRenewed | TaskDeregistered) -> None:
    """Raises InvalidMessage."""
    check_task(message)
    _name(message, "token", message.token, least=0)
    if isinstance(message, LeaseRenewed):
        _number(message, "heard_low_us", message.heard_low_us)


def check_registration(message: TaskRegistered) -> None:
    """Raises InvalidMessage."""
    check_sender(message)
    _number(message, "expected_tasks", message.expected_tasks, least=1, most=MOST_TASKS)
    _number(message, "low_watermark_us", message.low_watermark_us)
    _number(message, "away_limit_us", message.away_limit_us, least=0)
    if message.alignment is not None:
        _name(message, "alignment.group", message.alignment.group)
        _number(message, "alignment.max_drift_us", message.alignment.max_drift_us, least=0)
        _number(message, "alignment.update_interval_us", message.alignment.update_interval_us, least=1)


def _name(message: object, field: str, got: str, *, least: int = 1) -> None:
    if not least <= len(got) <= MOST_NAME:
        raise _invalid(message, field, got, f"a text of {least} to {MOST_NAME} characters")
    if not got.isascii() and any("\ud800" <= character <= "\udfff" for character in got):
        raise _invalid(message, field, got, "a text that is UTF-8: without halves of surrogate pairs")


def _number(message: object, field: str, got: int | None, *, least: int = LEAST_US, most: int = MOST_US) -> None:
    if got is None or least <= got <= most:
        return
    if most < MOST_US:
        expected = f"an integer of {least} to {most:,}"
    elif least == LEAST_US:
        expected = "an integer of 64 bits"
    else:
        expected = f"an integer of {least} or more, in 64 bits"
    raise _invalid(message, field, got, expected)


def _invalid(message: object, field: str, got: object, expected: str) -> InvalidMessage:
    return InvalidMessage(type(message).__name__, field, shown(got), expected)
