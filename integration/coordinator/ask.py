"""Single questions to `lowmark serve`, each over its own connection: the status, and the end of waiting for a task."""

from __future__ import annotations

import uuid

import grpc
from lowmark.integration.errors import CoordinatorUnreachable, RefusedByCoordinator
from lowmark.integration.process.codec import Answer, Method, Question
from lowmark.watermark import LowmarkError, TaskId
from lowmark.watermark.protocol import TaskForgotten

from .access import Caller, cause_of
from .messages import SAY, STATUS, Refused, Say, StatusAnswer, StatusQuestion, encode

_DEADLINE_SECONDS = 10.0


def ask_status(caller: Caller, *, limit: int | None = None) -> StatusAnswer:
    """Ask a coordinator for the status of all sources, tasks and groups.

    Args:
        limit: number of tasks of each source and of members of each group, those that need attention first; None: all.

    Raises:
        AddressRefused, TokenRefused: a file of the caller cannot be used.
        CoordinatorUnreachable: no answer came in time, or the caller has no access.
    """
    return _ask(caller, STATUS, StatusQuestion(limit), "ask for the status")


def forget_task(caller: Caller, task: TaskId) -> None:
    """Tell a coordinator that an absent task is gone for good, which ends the waiting for the task.

    Raises as `ask_status`, and:
        RefusedByCoordinator: the coordinator does not know the task, or the task lives.
    """
    said = Say(uuid.uuid4().hex, [TaskForgotten(task)])
    [answer] = _ask(caller, SAY, said, f"forget task {task}").answers
    if isinstance(answer, Refused):
        raise RefusedByCoordinator(str(task), answer.error, answer.text)


def _ask(caller: Caller, method: Method[Question, Answer], question: Question, action: str) -> Answer:
    metadata = caller.metadata()
    with caller.channel() as channel:
        ask = channel.unary_unary(method.path, request_serializer=encode, response_deserializer=bytes)
        try:
            return method.decode_answer(ask(question, timeout=_DEADLINE_SECONDS, metadata=metadata))
        except (grpc.RpcError, LowmarkError) as failed:
            raise CoordinatorUnreachable(caller.address, action, cause_of(failed)) from failed
