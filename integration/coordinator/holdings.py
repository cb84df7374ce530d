"""The application's knowledge of its tasks, from which the client makes a new state after an error."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from random import Random
from threading import Lock

from lowmark.watermark import TaskId
from lowmark.watermark.protocol import ReplyLowWatermark, TaskRegistered

from .client_state import ClientState, Heard, Left, NewLow, TokenRenewed


@dataclass(slots=True)
class _Held:
    registration: TaskRegistered  # what the application said
    token: str  # the newest of the run (`TokenRenewed`)
    report: tuple[ReplyLowWatermark, int | None] | None = None
    low_us: int | None = None
    ending: bool = False  # the run is over, and the coordinator may not know it yet
    refused: bool = False  # by the coordinator, so no further statement about the task is sent


class Holdings:
    """The application's knowledge of its tasks. Safe between threads.

    Args:
        application: the token of the application.
    """

    def __init__(self, application: str, random: Random) -> None:
        self._application, self._random, self._sequences = application, random, count(1)
        self._tasks: dict[TaskId, _Held] = {}
        self._lock = Lock()  # a run may end while it is refused, and then a newer run may begin

    def register(self, registration: TaskRegistered) -> None:
        with self._lock:
            self._tasks[registration.task] = _Held(registration, registration.token)

    def report(self, reply: ReplyLowWatermark, heard_us: int | None) -> None:
        """Keep the newest report of a task; `token` must know the task."""
        self._tasks[reply.task].report = reply, heard_us

    def end(self, task: TaskId) -> None:
        """End the run of a task that `token` knows."""
        with self._lock:
            held = self._tasks[task]
            held.ending = True
            if held.refused:
                del self._tasks[task]

    def token(self, task: TaskId) -> str | None:
        """The token under which the application registered a task that has not ended; None for others."""
        held = self._tasks.get(task)
        return None if held is None or held.ending else held.registration.token

    @property
    def tasks(self) -> list[TaskId]:
        return [task for task, held in tuple(self._tasks.items()) if not held.ending]

    def hear(self, heard: Heard) -> None:
        """Take a state's news before the state sends anything because of it."""
        with self._lock:
            held = self._tasks.get(heard.task)
            if held is None:
                return
            match heard:
                case NewLow():
                    held.low_us = heard.low_us
                case TokenRenewed() if held.token == heard.before:
                    held.token = heard.token
                case Left() if held.token == heard.token:
                    held.refused = True
                    if held.ending:
                        del self._tasks[heard.task]

    def state(self) -> ClientState:
        """Return a new state: the first one, or one in place of a possibly half changed one."""
        state = ClientState(self._application, self._random, self._sequences)
        for task, held in tuple(self._tasks.items()):
            if held.refused:
                continue
            state.resume(held.registration, held.token, held.low_us)
            if held.report is not None:
                state.report(*held.report)
            if held.ending:
                state.end(task)
        return state
