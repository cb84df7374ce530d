"""Single questions to `lowmark serve`, each over its own connection: the status, and the end of waiting for a task."""

from __future__ import annotations

import uuid

import grpc
from lowmark.integration.errors import CoordinatorUnreachable, RefusedByCoordinator
from lowmark.watermark import TaskId
from lowmark.watermark.protocol import TaskForgotten

from .access import Caller, cause_of
from .messages import SAY, STATUS, Refused, Say, StatusAnswer, StatusQuestion, encode

_DEADLINE_SECONDS = 10.0


def ask_status(
    caller: Caller, *, deadline_seconds: float = _DEADLINE_SECONDS, limit: int | None = None
) -> StatusAnswer:
    """Ask a coordinator for the status of all sources, tasks and groups.

    Args:
        limit: number of tasks of each source and of members of each group, those that need attention first; None: all.

    Raises:
        AddressRefused, TokenRefused: a file of the caller cannot be used.
        CoordinatorUnreachable: no answer came in time, or the caller has no access.
    """
    with caller.channel() as channel:
        ask = channel.unary_unary(STATUS.path, request_serializer=encode, response_deserializer=STATUS.decode_answer)
        try:
            answer: StatusAnswer = ask(StatusQuestion(limit), timeout=deadline_seconds, metadata=caller.metadata())
        except grpc.RpcError as failed:
            raise CoordinatorUnreachable(caller.address, "ask for the status", cause_of(failed)) from failed
    return answer


def forget_task(caller: Caller, task: TaskId) -> None:
    """Tell a coordinator that an absent task is gone for good, which ends the waiting for the task.

    Raises as `ask_status`, and:
        RefusedByCoordinator: the coordinator does not know the task, or the task lives.
    """
    with caller.channel() as channel:
        say = channel.unary_unary(SAY.path, request_serializer=encode, response_deserializer=SAY.decode_answer)
        said = Say(uuid.uuid4().hex, [TaskForgotten(task)])
        try:
            [answer] = say(said, timeout=_DEADLINE_SECONDS, metadata=caller.metadata()).answers
        except grpc.RpcError as failed:
            raise CoordinatorUnreachable(caller.address, f"forget task {task}", cause_of(failed)) from failed
    if isinstance(answer, Refused):
        raise RefusedByCoordinator(str(task), answer.error, answer.text)
