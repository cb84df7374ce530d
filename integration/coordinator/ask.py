"""Single questions to `lowmark serve`, each over its own connection: the status, and the end of waiting for a task."""

from __future__ import annotations

import uuid
from pathlib import Path

import grpc
from lowmark.integration.errors import CoordinatorUnreachable, RefusedByCoordinator
from lowmark.watermark import TaskId
from lowmark.watermark.protocol import TaskForgotten

from .access import Caller, cause_of
from .messages import SAY, STATUS, Refused, Say, StatusAnswer, StatusQuestion, encode


def ask_status(
    address: str,
    *,
    tls_ca: Path | None = None,
    token_file: Path | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    deadline_seconds: float = 10.0,
    limit: int | None = None,
) -> StatusAnswer:
    """Ask a coordinator for the status of all sources, tasks and groups.

    Args:
        address: ``unix:/path`` or ``host:port``.
        tls_ca: as for `CoordinatorClient`.
        token_file: as for `CoordinatorClient`.
        tls_cert: as for `CoordinatorClient`.
        tls_key: as for `CoordinatorClient`.
        deadline_seconds: how long to wait.
        limit: number of tasks of each source and of members of each group, those that need attention first; None: all.

    Raises:
        AddressRefused, TokenRefused: an argument that the address needs is missing, or a file cannot be used.
        CoordinatorUnreachable: no answer came in time, or the caller has no access.
    """
    caller = Caller(address, tls_ca, token_file, tls_cert, tls_key)
    with caller.channel() as channel:
        ask = channel.unary_unary(STATUS.path, request_serializer=encode, response_deserializer=STATUS.decode_answer)
        try:
            answer: StatusAnswer = ask(StatusQuestion(limit), timeout=deadline_seconds, metadata=caller.metadata())
        except grpc.RpcError as failed:
            raise CoordinatorUnreachable(address, "ask for the status", cause_of(failed)) from failed
    return answer


def forget_task(
    address: str,
    task: TaskId,
    *,
    tls_ca: Path | None = None,
    token_file: Path | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    deadline_seconds: float = 10.0,
) -> None:
    """Tell a coordinator that an absent task is gone for good, which ends the waiting for the task.

    Args:
        address: ``unix:/path`` or ``host:port``.
        task: the absent task.
        tls_ca: as for `CoordinatorClient`.
        token_file: as for `CoordinatorClient`.
        tls_cert: as for `CoordinatorClient`.
        tls_key: as for `CoordinatorClient`.
        deadline_seconds: how long to wait.

    Raises:
        AddressRefused, TokenRefused: an argument that the address needs is missing, or a file cannot be used.
        CoordinatorUnreachable: no answer came in time, or the caller has no access.
        RefusedByCoordinator: the coordinator does not know the task, or the task lives.
    """
    caller = Caller(address, tls_ca, token_file, tls_cert, tls_key)
    with caller.channel() as channel:
        say = channel.unary_unary(SAY.path, request_serializer=encode, response_deserializer=SAY.decode_answer)
        said = Say(uuid.uuid4().hex, [TaskForgotten(task)])
        try:
            [answer] = say(said, timeout=deadline_seconds, metadata=caller.metadata()).answers
        except grpc.RpcError as failed:
            raise CoordinatorUnreachable(address, f"forget task {task}", cause_of(failed)) from failed
    if isinstance(answer, Refused):
        raise RefusedByCoordinator(str(task), answer.error, answer.text)
