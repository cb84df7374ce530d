"""The tasks that are alive, with their leases and the tokens of their runs.

Rule 1: a task speaks with the token of its newest run. An older token is refused for as long as it is remembered,
        also in a registration, so a delayed or repeated message never brings a dead run back.
Rule 2: a task that says nothing for *longer* than its lease is expired. Its reports do not bring it back: the task has
        to register again, with a new token.
Rule 3: silence counts only while the coordinator listens. If a call comes much later than the previous call (the
        process was suspended, or the clock was set forward), messages of tasks may still be next in the queue, so at
        most ``most_gap_us`` of the gap counts as silence.

Source: the sequencers of MillWheel (section 7.2); Numaflow's processor manager (a deleted processor stays deleted);
    FLINK-40505 (an entry that is never pruned).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lowmark.watermark.errors import StaleRun, UnknownTask
from lowmark.watermark.protocol import TaskId

from .agenda import Agenda
from .snapshot import MarkRow, nobody_keeps, to_json

RETIRED_RUNS = 4_096
"""How many tokens of ended runs are remembered, beside the tokens of live tasks; the oldest are dropped first."""


@dataclass(slots=True, eq=False)
class _Lease:
    token: str
    heard_us: int  # on the clock of listening; never decreases


class Leases:
    """The live tasks, with their run tokens and leases. O(log n)."""

    def __init__(self, *, lease_us: int, most_gap_us: int, mark: MarkRow = nobody_keeps) -> None:
        self._lease_us, self._most_gap_us = lease_us, most_gap_us
        self._leases: dict[TaskId, _Lease] = {}
        # When to look at each lease next: at its end, or earlier, because a renewal leaves the planned look.
        self._looks = Agenda[tuple[str, str, str]]()
        # Ended runs in order of their end, numbered in this order. A dict would search longer for each oldest run.
        self._retired = OrderedDict[tuple[TaskId, str], int]()
        self._last_retired = 0
        self._mark = mark
        self._now_us: int | None = None  # of the newest call
        self.listened_us = 0
        """The time that counted as silence since this object was made (rule 3), without steps of the clock."""

    # -- live tasks

    def __contains__(self, task: object) -> bool:
        return task in self._leases

    def __len__(self) -> int:
        return len(self._leases)

    def token(self, task: TaskId) -> str:
        return self._find(task).token

    def lease_left_us(self, task: TaskId, now_us: int) -> int:
        """How long the task may still be silent; less than 0: the lease is over."""
        lease = self._find(task)
        return lease.heard_us + self._lease_us - self._listened_until(now_us)

    # -- messages

    def check(self, task: TaskId, token: str) -> None:
        """Raises `UnknownTask` or `StaleRun` if a message does not come from the newest run of a live task."""
        if self._find(task).token != token:
            raise StaleRun(str(task), token, "was replaced by a newer one")

    def is_over(self, task: TaskId, token: str) -> bool:
        """Whether this run was replaced, has left, or expired. Old runs are forgotten."""
        return (task, token) in self._retired

    def check_registration(self, task: TaskId, token: str) -> bool:
        """Whether the run is new. Raises `StaleRun` if it is over."""
        if self.is_over(task, token):
            raise StaleRun(str(task), token, "is over")
        known = self._leases.get(task)
        return known is None or known.token != token

    def register(self, task: TaskId, token: str, *, now_us: int) -> None:
        """Begin a new run; an earlier run of the task is over."""
        self.leave(task)
        self._listen(now_us)
        self._begin(task, token)

    def renew(self, task: TaskId, token: str, now_us: int) -> None:
        """Check a message as ``check`` does, and renew the lease of its task. O(1)."""
        self.check(task, token)
        self._listen(now_us)
        self._leases[task].heard_us = self.listened_us

    def leave(self, task: TaskId) -> None:
        lease = self._leases.pop(task, None)
        if lease is not None:
            self._looks.put(task.parts, None)
            self._mark("run", *task.parts)
            self._retire(task, lease.token)

    def expired(self, now_us: int) -> list[TaskId]:
        """End the runs that were silent for longer than their lease; name the tasks, sorted, each once."""
        self._listen(now_us)
        named = []
        while (parts := self._looks.take_due(self.listened_us - 1)) is not None:
            task = TaskId(*parts)
            end_us = self._leases[task].heard_us + self._lease_us
            if end_us < self.listened_us:
                named.append(task)
                self.leave(task)
            else:
                self._looks.put(parts, end_us)
        return sorted(named)

    def next_deadline_us(self, now_us: int) -> int | None:
        """When to call ``expired`` next; None without leases. No lease expires before that moment.

        At most ``most_gap_us`` ahead, so that all silence counts.
        """
        look_us = self._looks.next_us
        if look_us is None:
            return None
        since_us = now_us if self._now_us is None else self._now_us
        return since_us + min(look_us + 1 - self.listened_us, self._most_gap_us)

    # -- restart

    def encoded(self, kind: str, task: TaskId, token: str = "") -> str | None:
        """The row of a live run, or of an ended run with this token; None: no such run."""
        if kind == "run":
            lease = self._leases.get(task)
            return None if lease is None else to_json([*task.parts, lease.token])
        number = self._retired.get((task, token))
        return None if number is None else to_json([*task.parts, token, number])

    def restore(self, runs: Iterable[Iterable[Any]], retired: Iterable[Iterable[Any]], now_us: int) -> None:
        """Take in the runs encoded before a restart. Every lease begins anew, with this coordinator's lease."""
        self._listen(now_us)
        for *parts, token in runs:
            self._begin(TaskId(*parts), token)
        for *parts, token, number in retired:
            self._retired[TaskId(*parts), token] = self._last_retired = number

    # -- how

    def _begin(self, task: TaskId, token: str) -> None:
        self._leases[task] = _Lease(token, self.listened_us)
        self._mark("run", *task.parts)
        self._looks.put(task.parts, self.listened_us + self._lease_us)

    def _find(self, task: TaskId) -> _Lease:
        lease = self._leases.get(task)
        if lease is None:
            raise UnknownTask(str(task), "the coordinator", len(self._leases))
        return lease

    def _listened_until(self, now_us: int) -> int:
        passed_us = 0 if self._now_us is None else max(0, now_us - self._now_us)
        return self.listened_us + min(passed_us, self._most_gap_us)

    def _listen(self, now_us: int) -> None:
        self.listened_us = self._listened_until(now_us)
        self._now_us = now_us if self._now_us is None else max(now_us, self._now_us)

    def _retire(self, task: TaskId, token: str) -> None:
        self._last_retired += 1
        self._retired.pop((task, token), None)
        self._retired[task, token] = self._last_retired
        self._mark("retired", *task.parts, token)
        while len(self._retired) > RETIRED_RUNS + len(self._leases):
            (oldest, token), _ = self._retired.popitem(last=False)
            self._mark("retired", *oldest.parts, token)
