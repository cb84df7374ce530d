"""Who is alive, and which run of it speaks: leases and run tokens.

Rule 1: a task speaks with the token of its newest run. An older token is refused for as long as it is remembered,
        also where it comes with a registration: a delayed or repeated message never brings a dead run back.
Rule 2: a task that says nothing for *longer* than its lease is expired. Its reports do not bring it back: it has to
        register again, with a new token.
Rule 3: silence counts only while somebody listens. A call that comes much later than the one before it (a process
        that was suspended, a clock that was set forward) proves nothing about the tasks, whose messages may be next
        in the queue: of such a gap no more than ``most_gap_us`` is counted.

Source: the sequencers of MillWheel (section 7.2); Numaflow's processor manager (a deleted one stays deleted);
    FLINK-40505 (an entry that is never pruned).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from lowmark.watermark.errors import StaleRun, UnknownTask
from lowmark.watermark.protocol import TaskId
from sortedcontainers import SortedList

from .snapshot import EncodedParts, to_json

RETIRED_RUNS = 4_096
"""How many tokens of runs that are over are remembered, beside one for every member; the oldest go first."""


@dataclass(slots=True, eq=False)
class _Lease:
    run: str
    heard_us: int  # on the clock of listening; never decreases
    look_us: int = 0  # when it is looked at next: not after it ends


class Membership:
    """The tasks that are alive, each with its run token and its lease. O(log n).

    Args:
        lease_us: how long a task may be silent.
        most_gap_us: the longest time between two calls in which silence counts.

    Raises:
        ValueError: the gap is not positive.

    >>> members, task = Membership(lease_us=10, most_gap_us=100), TaskId("job", "orders", "0")
    >>> members.register(task, "run-1", now_us=0), members.register(task, "run-1", now_us=1)
    (True, False)
    >>> members.expired(now_us=11), members.expired(now_us=12)     # exactly the lease is in time
    ([], [TaskId(job_id='job', source_id='orders', task_id='0')])
    >>> members.is_over(task, "run-1")
    True
    """

    def __init__(self, *, lease_us: int, most_gap_us: int) -> None:
        if most_gap_us <= 0:
            raise ValueError(f"membership: expected a gap of more than 0 us, got {most_gap_us}")
        self._lease_us, self._most_gap_us = lease_us, most_gap_us
        self._leases: dict[TaskId, _Lease] = {}
        self._looks: SortedList[tuple[int, tuple[str, str, str]]] = SortedList()  # of every lease; see `_look`
        self._retired: dict[tuple[TaskId, str], str] = {}  # in the order in which they ended, with the text of each
        self._encoded_runs: EncodedParts[TaskId] = EncodedParts(self._encoded_run, attrgetter("parts"))
        self._now_us: int | None = None  # of the newest call
        self._listened_us = 0  # time that counts as silence

    # -- who is there

    def __contains__(self, task: object) -> bool:
        return task in self._leases

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def listened_us(self) -> int:
        """Time that has counted since this object was made (rule 3): no step of a clock is in it."""
        return self._listened_us

    def run(self, task: TaskId) -> str:
        """The token of the task's run. Raises UnknownTask."""
        return self._find(task).run

    def lease_left_us(self, task: TaskId, now_us: int) -> int:
        """How long the task may still be silent; less than 0: it is expired. Raises UnknownTask."""
        lease = self._find(task)
        return lease.heard_us + self._lease_us - self._listened_until(now_us)

    # -- what they do

    def check(self, task: TaskId, run: str) -> None:
        """Refuse a message that does not come from the newest run of a member.

        Raises:
            UnknownTask: the task is no member.
            StaleRun: it is one with another token.
        """
        if self._find(task).run != run:
            raise StaleRun(str(task), run, "was replaced by a newer one")

    def is_over(self, task: TaskId, run: str) -> bool:
        """Whether this run of the task was replaced, has left, or expired; as far as that is remembered."""
        return (task, run) in self._retired

    def check_registration(self, task: TaskId, run: str) -> bool:
        """Refuse a token whose run is over. Returns whether the run is new: not the one that is registered.

        Raises:
            StaleRun: the run is over.
        """
        if self.is_over(task, run):
            raise StaleRun(str(task), run, "is over")
        known = self._leases.get(task)
        return known is None or known.run != run

    def register(self, task: TaskId, run: str, *, now_us: int) -> bool:
        """Begin a run; the one before it is over.

        Returns:
            Whether it is a new run: False for the same registration again, which only renews the lease.

        Raises:
            StaleRun: the token is of a run that is over; nothing was changed.
        """
        if not self.check_registration(task, run):
            self.renew(task, run, now_us)
            return False
        self.leave(task)
        self._listen(now_us)
        self._begin(task, _Lease(run, self._listened_us))
        return True

    def renew(self, task: TaskId, run: str, now_us: int) -> None:
        """A member is alive. O(1).

        Raises:
            UnknownTask, StaleRun: see ``check``; nothing was changed.
        """
        self.check(task, run)
        self._listen(now_us)
        self._leases[task].heard_us = self._listened_us

    def leave(self, task: TaskId) -> bool:
        """End the run of a member. Returns whether it was one."""
        lease = self._leases.pop(task, None)
        if lease is None:
            return False
        self._looks.remove((lease.look_us, task.parts))
        self._encoded_runs.changed(task)
        self._retire(task, lease.run)
        return True

    def expired(self, now_us: int) -> list[TaskId]:
        """End the runs that were silent for longer than their lease; name the tasks, sorted, each once."""
        self._listen(now_us)
        named = []
        while (first := self._first()) is not None and first[1].look_us < self._listened_us:
            named.append(first[0])
            self.leave(first[0])
        return sorted(named)

    def next_deadline_us(self, now_us: int) -> int | None:
        """When silence alone could make a member expire; None without members.

        At the latest after the gap in which silence counts: so that no silence is lost, call ``expired`` then.
        """
        first = self._first()
        if first is None:
            return None
        since_us = now_us if self._now_us is None else self._now_us
        return since_us + min(first[1].look_us + 1 - self._listened_us, self._most_gap_us)

    # -- restart

    def encoded_runs(self) -> str:
        """As JSON the parts of the id, the run token and the lease (microseconds) of every member, sorted.

        Encodes only what was changed since the last time.
        """
        return self._encoded_runs.text()

    def encoded_retired(self) -> str:
        """As JSON the parts of the id and the token of the runs that are over, as far as they are remembered, oldest
        first; each was encoded when it ended.
        """
        return f"[{','.join(self._retired.values())}]"

    def restore(self, runs: Iterable[Iterable[Any]], retired: Iterable[Iterable[str]], now_us: int) -> None:
        """Take in what was encoded before a restart. Every lease begins anew, and is what this coordinator gives."""
        self._listen(now_us)
        for *parts, run in runs:
            task = TaskId(*parts)
            self._begin(task, _Lease(run, self._listened_us))
        for *parts, run in retired:
            self._retire(TaskId(*parts), run)

    # -- how

    def _begin(self, task: TaskId, lease: _Lease) -> None:
        self._leases[task] = lease
        self._encoded_runs.changed(task)
        self._look(task, lease)

    def _encoded_run(self, task: TaskId) -> str | None:
        lease = self._leases.get(task)
        return None if lease is None else to_json([*task.parts, lease.run])

    def _find(self, task: TaskId) -> _Lease:
        lease = self._leases.get(task)
        if lease is None:
            raise UnknownTask(str(task), "the coordinator", len(self._leases))
        return lease

    def _listened_until(self, now_us: int) -> int:
        passed_us = 0 if self._now_us is None else max(0, now_us - self._now_us)
        return self._listened_us + min(passed_us, self._most_gap_us)

    def _listen(self, now_us: int) -> None:
        self._listened_us = self._listened_until(now_us)
        self._now_us = now_us if self._now_us is None else max(now_us, self._now_us)

    def _look(self, task: TaskId, lease: _Lease) -> None:
        """Look at a lease when it ends, if it is not renewed: a renewal moves nothing here, so it is O(1)."""
        lease.look_us = lease.heard_us + self._lease_us
        self._looks.add((lease.look_us, task.parts))

    def _first(self) -> tuple[TaskId, _Lease] | None:
        """The lease that ends first, its ``look_us`` exact."""
        while self._looks:
            look_us, parts = self._looks[0]
            task = TaskId(*parts)
            lease = self._leases[task]
            if look_us == lease.heard_us + self._lease_us:
                return task, lease
            del self._looks[0]
            self._look(task, lease)
        return None

    def _retire(self, task: TaskId, run: str) -> None:
        self._retired.pop((task, run), None)
        self._retired[task, run] = to_json([*task.parts, run])
        while len(self._retired) > RETIRED_RUNS + len(self._leases):
            del self._retired[next(iter(self._retired))]
