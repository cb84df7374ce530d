"""The coordinator of all sources: rounds, leases, run tokens and alignment groups. Events in, effects out.

``SplitWatermarks`` makes the low watermark of one task from its splits; this coordinator makes the low watermark of
a source from its tasks, wherever they run: the subtasks of one stream, or several applications of one job.

Rule 1: ``handle`` is the only way in, and the list it returns is the only way out. It never waits, calls out, or reads
        a clock. A refused message raises to its sender and changes nothing.
Rule 2: facts are taken in at once; decisions are made at the end of a round (``rounds.py``), when
        a lease runs out (``leases.py``), or at an announcement (``alignment.py``).
Rule 3: a caller that keeps the state writes the changed rows when ``epoch`` grew, before it carries the effects out.
        Then a restart never publishes less than before, and never passes a known task. The rows may have older values
        of tasks, which delays the low watermark until the next round.
Rule 4: any message may be lost or come twice. In every interval the question is repeated to tasks that have not
        answered; a renewed lease that shows a missed notification is answered with that notification; an announcement
        has the whole cap.

A task without splits is left out, hears every notification, and emits the published low watermark. If the task gets a
split later, rows of the split join at or above the low watermark, or are late by definition; late returns are counted
and told (``TaskReturnedLate``).

Source: FLINK-4576 (rounds), FLIP-182 (groups), MillWheel section 7.2 (the authority and its sequencers).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lowmark.watermark.duration import format_duration_us
from lowmark.watermark.errors import CorruptSnapshot, TaskNotAway, TooManyTasks
from lowmark.watermark.protocol import (
    LeaseRenewed,
    NotifyNewLowWatermark,
    ReplyLowWatermark,
    RetrieveLowWatermark,
    TaskDeregistered,
    TaskForgotten,
    TaskId,
    TaskLost,
    TaskRegistered,
    TaskReturnedLate,
)
from lowmark.watermark.splits.events import Tick

from .cap import CapAnnounced
from .groups import AlignmentGroups
from .leases import Leases
from .message_check import MOST_TASKS, check_registration, check_reply, check_sender, check_task
from .restored import decode
from .snapshot import ChangedRows, Key, RowChanges, to_json
from .sources import Sources
from .status import CoordinatorStatus, source_status

CoordinatorEvent = TaskRegistered | LeaseRenewed | ReplyLowWatermark | TaskDeregistered | TaskForgotten | Tick
CoordinatorEffect = RetrieveLowWatermark | NotifyNewLowWatermark | CapAnnounced | TaskLost | TaskReturnedLate

_ANNOUNCED_AT_ONCE, _ANNOUNCED_BESIDE = 64, 4  # groups announced per call: on a Tick, and on any other event

MOST_LEASE_US = 7 * 86_400_000_000
"""The longest lease: 7 days. A lost task must be given up some day, because it holds the other tasks."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How often a coordinator asks, and how long it waits.

    Attributes:
        interval_us: a round is begun this often, and the coordinator wants to be called this often; more than 0.
        lease_us: how long a task may be silent before it is lost; more than 0, at most ``MOST_LEASE_US``.
        quorum: the share of live tasks that must have answered for a round to end: more than 0, at most 1. A task that
            has not answered holds with its earlier low watermark.
    """

    interval_us: int = 1_000_000
    lease_us: int = 30_000_000
    quorum: float = 1.0


DEFAULTS = Settings()


class LowWatermarkCoordinator:
    """Keeps the low watermarks of all sources, and the alignment groups across them.

    >>> coordinator, task = LowWatermarkCoordinator(), TaskId("job", "orders", "0")
    >>> coordinator.handle(TaskRegistered(task, "run-1"), now_us=0), coordinator.wake_at_us(now_us=0)
    ([], 1000000)
    >>> coordinator.handle(Tick(), now_us=1_000_000)
    [RetrieveLowWatermark(job_id='job', source_id='orders', task_id='0', timestamp=1000000)]
    >>> [told] = coordinator.handle(ReplyLowWatermark("job", "orders", "0", 1_000_000, 42, token="run-1"), 1_000_001)
    >>> told.new_low_watermark, coordinator.low_watermark_us("job", "orders")
    (42, 42)
    """

    def __init__(self, settings: Settings = DEFAULTS) -> None:
        self.settings = settings
        interval_us, lease_us = settings.interval_us, settings.lease_us
        self._changes = RowChanges(self._encoded)
        self._changes.mark("lost")
        # The coordinator asks to be called once in an interval. A call that comes one interval late is no gap.
        self._leases = Leases(lease_us=lease_us, most_gap_us=2 * interval_us, mark=self._changes.mark)
        self._sources = Sources(
            interval_us=interval_us,
            deadline_us=lease_us,
            quorum=settings.quorum,
            leases=self._leases,
            mark=self._changes.mark,
        )
        self._groups = AlignmentGroups(interval_us=interval_us, mark=self._changes.mark)
        self._now_us: int | None = None
        self._lost = 0

    # -- the way in and out

    def handle(self, event: CoordinatorEvent, now_us: int) -> list[CoordinatorEffect]:
        """Take one event in.

        Args:
            now_us: now, microseconds since the epoch, on a clock that does not step. While it is earlier than in an
                earlier call, time stands still here.

        Returns:
            The effects, in an order that depends only on the history of calls.

        Raises:
            UnknownTask: the task never registered, was lost, or deregistered; it has to register with a new token.
            TaskNotAway: the task shall be forgotten, but is not away.
            StaleRun: the message is of a run that was replaced or is over.
            DisagreeingGroup: the task wants other parameters than its alignment group has.
            TooManyTasks: there is no room for another task.
            InvalidMessage: the value of a field is invalid. After any of these errors nothing was changed.
        """
        now_us = self._now_us = self._time(now_us)
        effects: list[CoordinatorEffect] = []
        match event:
            case ReplyLowWatermark():
                effects = self._reply(event, now_us)
            case LeaseRenewed():
                effects = self._renew(event, now_us)
            case TaskRegistered():
                effects = self._register(event, now_us)
            case TaskDeregistered():
                effects = self._deregister(event, now_us)
            case TaskForgotten():
                self._excuse(event)
            case Tick():
                pass
        effects += self._lose(now_us)
        effects += self._sources.look(now_us)
        effects += self._groups.announce(now_us, _ANNOUNCED_AT_ONCE if isinstance(event, Tick) else _ANNOUNCED_BESIDE)
        return effects

    def wake_at_us(self, now_us: int) -> int | None:
        """When to call ``handle(Tick(), ...)`` unless an event comes first; None while there is nothing to do."""
        deadline_us = self._leases.next_deadline_us(self._time(now_us))
        moments = (self._sources.next_us, deadline_us, self._groups.next_us)
        return min((us for us in moments if us is not None), default=None)

    def low_watermark_us(self, job_id: str, source_id: str) -> int | None:
        """The published low watermark of a source; None before the first."""
        rounds = self._sources.find(job_id, source_id)
        return None if rounds is None else rounds.low_us

    def lives(self, task: TaskId) -> bool:
        return task in self._leases

    @property
    def epoch(self) -> int:
        """Grows when a write is due: a low watermark, a task, its run or its state has changed."""
        return self._sources.epoch

    def status(self, now_us: int, *, limit: int | None = None) -> CoordinatorStatus:
        """The status for people. O(n log n); with a limit O(n), without most tasks.

        ``limit`` is the number of tasks of each source and of members of each group, the neediest first; None: all of
        them, sorted.
        """
        now_us = self._time(now_us)
        return CoordinatorStatus(
            sources=tuple(
                source_status(rounds, self._leases, self._groups.group_of, now_us, limit) for rounds in self._sources
            ),
            groups=self._groups.status(limit),
            lost=self._lost,
        )

    # -- restart

    def encode(self, most: int) -> bool:
        """Do a part of the work of ``take_changes`` in advance: up to ``most`` rows. Returns whether more is left."""
        return self._changes.encode(most)

    def take_changes(self) -> ChangedRows:
        """The rows that changed since the last call; None for a row that has gone.

        Open rounds, remaining times of leases and the history are in no row.
        """
        return self._changes.take()

    @classmethod
    def restore(cls, rows: Mapping[Key, str], settings: Settings = DEFAULTS, *, now_us: int) -> LowWatermarkCoordinator:
        """Make a coordinator from its rows. Leases begin anew, and every task is asked at once.

        Raises:
            CorruptSnapshot: the rows are no state that this version can read.
        """
        coordinator = cls(settings)
        try:
            coordinator._load(decode(rows), now_us)
        except CorruptSnapshot:
            raise
        except Exception as error:  # whole rows, and still not what was written
            why = f"{error} is missing" if isinstance(error, KeyError) else type(error).__name__
            raise CorruptSnapshot(f"its contents do not make sense ({why})", sum(map(len, rows.values()))) from error
        return coordinator

    def _load(self, saved: dict[str, Any], now_us: int) -> None:
        self._now_us, self._lost = now_us, saved["lost"]
        self._leases.restore(saved["run"], saved["retired"], now_us)
        self._sources.restore(saved["source"], now_us)
        self._groups.restore(saved, now_us)
        if not all(self._sources.knows(TaskId(*parts)) for *parts, _ in saved["run"]):
            raise ValueError("a task is not known to its source")

    def _encoded(self, key: Key) -> str | None:
        kind, *parts = key
        match kind:
            case "lost":
                return to_json(self._lost)
            case "source" | "task":
                return self._sources.encoded(*parts)
            case "run" | "retired":
                return self._leases.encoded(kind, TaskId(*parts[:3]), *parts[3:])
        return self._groups.encoded(kind, *parts)

    # -- events

    def _reply(self, reply: ReplyLowWatermark, now_us: int) -> list[CoordinatorEffect]:
        check_reply(reply)
        task = reply.task
        self._leases.renew(task, reply.token, now_us)
        rounds = self._sources[task]
        late = self._sources.take(rounds, reply, now_us)
        self._groups.hear(task, rounds, now_us)
        return [*late, *self._sources.end_if_complete(rounds, now_us)]

    def _renew(self, event: LeaseRenewed, now_us: int) -> list[CoordinatorEffect]:
        check_sender(event)
        self._leases.renew(event.task, event.token, now_us)
        heard_us, low_us = event.heard_low_us, self._sources[event.task].low_us
        heard = heard_us is not None and low_us is not None and heard_us >= low_us
        return [] if heard else self._tell(event.task, now_us)

    def _register(self, event: TaskRegistered, now_us: int) -> list[CoordinatorEffect]:
        check_registration(event)
        task = event.task
        if not self._leases.check_registration(task, event.token):
            self._leases.renew(task, event.token, now_us)
            return self._tell(task, now_us)
        if not self._sources.knows(task) and len(self._leases) + self._sources.kept >= MOST_TASKS:
            raise TooManyTasks(str(task), MOST_TASKS)
        self._groups.join(event, now_us)  # before all changes, because the group may refuse the task
        self._leases.register(task, event.token, now_us=now_us)
        late, rounds = self._sources.begin(event, now_us), self._sources[task]
        self._groups.hear(task, rounds, now_us)
        return [*late, *self._tell(task, now_us), *rounds.ask_newcomer(task.task_id)]

    def _deregister(self, event: TaskDeregistered, now_us: int) -> list[CoordinatorEffect]:
        check_sender(event)
        task = event.task
        if self._leases.is_over(task, event.token):
            return []  # a repeated message
        self._leases.check(task, event.token)
        self._leases.leave(task)
        self._groups.leave(task)
        self._sources.leave(task, now_us)
        return [*self._sources.end_if_complete(self._sources[task], now_us)]

    def _excuse(self, event: TaskForgotten) -> None:
        check_task(event)
        task = event.task
        if task in self._leases:
            raise TaskNotAway(str(task), "it is registered, and alive")
        if not self._sources.knows(task):
            raise TaskNotAway(str(task), "the coordinator does not know it")
        self._sources.excuse(task)

    def _tell(self, task: TaskId, now_us: int) -> list[CoordinatorEffect]:
        rounds = self._sources[task]
        return [] if rounds.low_us is None else [rounds.notice(task.task_id, rounds.low_us, now_us)]

    # -- time

    def _lose(self, now_us: int) -> list[CoordinatorEffect]:
        effects: list[CoordinatorEffect] = []
        lost = self._leases.expired(now_us)
        for task in lost:  # first all leave, because a task that is lost too must not complete its source
            lease = format_duration_us(self.settings.lease_us)
            effects.append(TaskLost(task, f"it was silent for more than its lease of {lease}"))
            self._lost += 1
            self._changes.mark("lost")
            self._groups.leave(task)
            self._sources.leave(task, now_us)
        for rounds in dict.fromkeys(self._sources[task] for task in lost):
            effects += self._sources.end_if_complete(rounds, now_us)
        return effects

    def _time(self, now_us: int) -> int:
        return now_us if self._now_us is None else max(now_us, self._now_us)
