"""Checks of messages to the coordinator, including their types, because a message may come from anywhere."""

from __future__ import annotations

from lowmark.watermark.errors import InvalidMessage, shown
from lowmark.watermark.moment import LEAST_US, MOST_US
from lowmark.watermark.names import MOST_NAME
from lowmark.watermark.protocol import (
    LeaseRenewed,
    LeftOut,
    ReplyLowWatermark,
    TaskDeregistered,
    TaskForgotten,
    TaskId,
    TaskRegistered,
)
from lowmark.watermark.strategy import AlignmentParams

MOST_LEASE_US = 7 * 86_400_000_000
"""The longest lease: 7 days. A lost task must be given up some day, because it holds the other tasks."""

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
    least = {"silent_us": 0, "patience_us": 1}
    for field in ("current_low_watermark", "next_wanted_us", "complete_until_us", *least):
        if getattr(reply, field) is not None:
            _number(reply, field, getattr(reply, field), least=least.get(field, LEAST_US))
    if reply.left_out is not None and not isinstance(reply.left_out, LeftOut):
        raise _invalid(reply, "left_out", reply.left_out, "a LeftOut or None")


def check_task(message: TaskRegistered | LeaseRenewed | TaskDeregistered | TaskForgotten) -> None:
    """Raises InvalidMessage."""
    if not isinstance(message.task, TaskId):
        raise _invalid(message, "task", message.task, "a TaskId")
    _name(message, "task.job_id", message.task.job_id)
    _name(message, "task.source_id", message.task.source_id)
    _name(message, "task.task_id", message.task.task_id)


def check_sender(message: TaskRegistered | LeaseRenewed | TaskDeregistered) -> None:
    """Raises InvalidMessage."""
    check_task(message)
    _name(message, "token", message.token, least=0)
    if isinstance(message, LeaseRenewed) and message.heard_low_us is not None:
        _number(message, "heard_low_us", message.heard_low_us)


def check_registration(message: TaskRegistered) -> None:
    """Raises InvalidMessage."""
    check_sender(message)
    _number(message, "expected_tasks", message.expected_tasks, least=1, most=MOST_TASKS)
    if message.low_watermark_us is not None:
        _number(message, "low_watermark_us", message.low_watermark_us)
    if message.away_limit_us is not None:
        _number(message, "away_limit_us", message.away_limit_us, least=0)
    if not isinstance(message.throttled, bool):
        raise _invalid(message, "throttled", message.throttled, "True or False")
    if message.alignment is None:
        return
    if not isinstance(message.alignment, AlignmentParams):
        raise _invalid(message, "alignment", message.alignment, "AlignmentParams or None")
    _name(message, "alignment.group", message.alignment.group)
    _number(message, "alignment.max_drift_us", message.alignment.max_drift_us, least=0)
    _number(message, "alignment.update_interval_us", message.alignment.update_interval_us, least=1)


def _name(message: object, field: str, got: object, *, least: int = 1) -> None:
    if not isinstance(got, str) or not least <= len(got) <= MOST_NAME:
        raise _invalid(message, field, got, f"a text of {least} to {MOST_NAME} characters")
    if not got.isascii() and any("\ud800" <= character <= "\udfff" for character in got):
        raise _invalid(message, field, got, "a text that is UTF-8: without halves of surrogate pairs")


def _number(message: object, field: str, got: object, *, least: int = LEAST_US, most: int = MOST_US) -> None:
    if type(got) is not int or not least <= got <= most:
        if most < MOST_US:
            raise _invalid(message, field, got, f"an integer of {least} to {most:,}")
        what = "an integer of 64 bits" if least == LEAST_US else f"an integer of {least} or more, in 64 bits"
        raise _invalid(message, field, got, what)


def _invalid(message: object, field: str, got: object, expected: str) -> InvalidMessage:
    return InvalidMessage(type(message).__name__, field, shown(got), expected)
