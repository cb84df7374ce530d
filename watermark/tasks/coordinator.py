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

One file, because rounds, leases and groups of a source are decided by one event.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lowmark.watermark.duration import format_duration_us
from lowmark.watermark.errors import CorruptSnapshot, InvalidMessage, TaskNotAway, TooManyTasks
from lowmark.watermark.moment import INT64
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
from lowmark.watermark.state import SplitState

from .agenda import Agenda
from .alignment import AlignmentGroup
from .beats import Beats
from .cap import CapAnnounced
from .leases import Leases
from .message_check import MOST_LEASE_US, MOST_TASKS, check_registration, check_reply, check_sender, check_task
from .rounds import Answer, SourceRounds
from .snapshot import ChangedRows, Changes, Key, Rows, decode, to_json
from .status import CoordinatorStatus, source_status

CoordinatorEvent = TaskRegistered | LeaseRenewed | ReplyLowWatermark | TaskDeregistered | TaskForgotten | Tick
CoordinatorEffect = RetrieveLowWatermark | NotifyNewLowWatermark | CapAnnounced | TaskLost | TaskReturnedLate

EMPTY_SOURCE_KEPT_US = 3_600_000_000
"""How long a source without tasks is remembered, if it waits for no task (rule 5 of ``rounds.py``): 1 hour in which the
coordinator was called.
"""

_ANNOUNCEMENTS = 20  # the largest number for one group in an interval
_ANNOUNCED_AT_ONCE, _ANNOUNCED_BESIDE = 64, 4  # groups announced per call: on a Tick, and on any other event


class LowWatermarkCoordinator:
    """Keeps the low watermarks of all sources, and the alignment groups across them.

    Args:
        interval_us: a round is begun this often, and the coordinator wants to be called this often.
        lease_us: how long a task may be silent before it is lost.
        quorum: the share of live tasks that must have answered for a round to end: more than 0, at most 1. A task that
            has not answered holds with its earlier low watermark.

    Raises:
        ValueError: a value is out of range.

    >>> coordinator, task = LowWatermarkCoordinator(), TaskId("job", "orders", "0")
    >>> coordinator.handle(TaskRegistered(task, "run-1"), now_us=0), coordinator.wake_at_us(now_us=0)
    ([], 1000000)
    >>> coordinator.handle(Tick(), now_us=1_000_000)
    [RetrieveLowWatermark(job_id='job', source_id='orders', task_id='0', timestamp=1000000)]
    >>> [told] = coordinator.handle(ReplyLowWatermark("job", "orders", "0", 1_000_000, 42, token="run-1"), 1_000_001)
    >>> told.new_low_watermark, coordinator.low_watermark_us("job", "orders")
    (42, 42)
    """

    def __init__(
        self,
        *,
        interval_us: int = 1_000_000,
        lease_us: int = 30_000_000,
        quorum: float = 1.0,
    ) -> None:
        for what, us in (("interval", interval_us), ("lease", lease_us)):
            if us <= 0:
                raise ValueError(f"coordinator: expected a {what} of more than 0 us, got {us}")
        if lease_us > MOST_LEASE_US:
            raise ValueError(f"coordinator: expected a lease of at most {MOST_LEASE_US} us (7 days), got {lease_us}")
        if not 0 < quorum <= 1:
            raise ValueError(f"coordinator: expected a quorum of more than 0 and at most 1, got {quorum}")
        self._interval_us, self._lease_us, self._quorum = interval_us, lease_us, quorum
        # The coordinator asks to be called once in an interval. A call that comes one interval late is no gap.
        self._changes = Changes(self._encoded)
        self._changes.mark("lost")
        self._leases = Leases(lease_us=lease_us, most_gap_us=2 * interval_us, mark=self._changes.mark)
        self._sources: dict[tuple[str, str], SourceRounds] = {}
        # For each source that is over: the time listened when it ended.
        self._emptied_us: dict[tuple[str, str], int] = {}
        # The places kept by tasks that are away; a source that is over keeps at least one.
        self._kept_in: dict[tuple[str, str], int] = {}
        self._kept = 0  # in all sources
        self._groups: dict[str, AlignmentGroup] = {}
        self._group_of: dict[TaskId, str] = {}
        self._spoke_us: dict[TaskId, int] = {}  # the time of its newest report to its group
        self._announcements = Agenda[str]()  # of the caps of groups
        self._announced_us: dict[str, int] = {}  # when a group last announced its cap
        self._beats = Beats(interval_us=interval_us)
        self._looks = Agenda[tuple[str, str]]()  # when to look at a source: at its beat, or its round's deadline
        self._now_us: int | None = None
        self._lost = 0
        self._clock_steps_back = 0
        self._epoch = 0

    # -- the way in and out

    def handle(self, event: CoordinatorEvent, now_us: int) -> list[CoordinatorEffect]:
        """Take one event in.

        Args:
            event: the event.
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
        now_us = self._forward(now_us)
        effects: list[CoordinatorEffect]
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
                effects = self._excuse(event)
            case Tick():
                effects = []
            case _:
                raise InvalidMessage(type(event).__name__, "type", repr(event)[:80], "an event of this coordinator")
        effects += self._lose(now_us)
        effects += self._look(now_us)
        self._forget_empty()
        effects += self._announce(now_us, _ANNOUNCED_AT_ONCE if isinstance(event, Tick) else _ANNOUNCED_BESIDE)
        return effects

    def wake_at_us(self, now_us: int) -> int | None:
        """When to call ``handle(Tick(), ...)`` unless an event comes first; None while there is nothing to do."""
        deadline_us = self._leases.next_deadline_us(self._time(now_us))
        moments = (self._looks.next_us, deadline_us, self._announcements.next_us)
        return min((us for us in moments if us is not None), default=None)

    def low_watermark_us(self, job_id: str, source_id: str) -> int | None:
        """The published low watermark of a source, microseconds since the epoch; None before the first."""
        rounds = self._sources.get((job_id, source_id))
        return None if rounds is None else rounds.low_us

    @property
    def epoch(self) -> int:
        """Grows when a write is due: a low watermark, a task, its run or its state has changed."""
        return self._epoch

    def status(self, now_us: int, *, limit: int | None = None) -> CoordinatorStatus:
        """The status for people. O(n log n); with a limit O(n), without most tasks.

        Args:
            now_us: now, microseconds since the epoch.
            limit: the number of tasks of each source and of members of each group, those that need attention first;
                None: all tasks and members, sorted.

        Raises:
            ValueError: the limit is negative.
        """
        if limit is not None and limit < 0:
            raise ValueError(f"status of the coordinator: expected a limit of 0 or more, got {limit}")
        now_us = self._time(now_us)
        return CoordinatorStatus(
            sources=tuple(
                source_status(self._sources[key], self._leases, self._group_of, now_us, limit)
                for key in sorted(self._sources)
            ),
            groups=tuple(self._groups[name].status(limit) for name in sorted(self._groups)),
            lost=self._lost,
            clock_steps_back=self._clock_steps_back,
        )

    # -- restart

    def encode(self, most: int) -> bool:
        """Do a part of the work of ``take_changes`` in advance: up to ``most`` rows. Returns whether more is left."""
        return self._changes.encode(most)

    def take_changes(self) -> ChangedRows:
        """The rows that changed since the last call; None for a row that has gone.

        A caller that keeps them in one transaction has the state for ``restore``: without open rounds, remaining times
        of leases, and the history.
        """
        return self._changes.take()

    def snapshot(self) -> Rows:
        """All rows: the state for ``restore``, equal to all changes that were taken. O(n)."""
        rows = {key: self._encoded(key) for key in self._keys()}
        return {key: text for key, text in rows.items() if text is not None}

    @classmethod
    def restore(
        cls,
        rows: Mapping[Key, str],
        *,
        now_us: int,
        interval_us: int = 1_000_000,
        lease_us: int = 30_000_000,
        quorum: float = 1.0,
    ) -> LowWatermarkCoordinator:
        """Make a coordinator from its rows. Leases begin anew, and every task is asked at once.

        Raises:
            CorruptSnapshot: the rows are no state that this version can read.
        """
        coordinator = cls(interval_us=interval_us, lease_us=lease_us, quorum=quorum)
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
        self._leases.restore(saved["runs"], saved["retired"], now_us)
        for source in saved["sources"]:
            key = source["job_id"], source["source_id"]
            rounds = SourceRounds.restore(source, quorum=self._quorum, mark=self._changes.mark)
            self._sources[key] = rounds
            self._note(key)
            self._beats.begin(key, now_us - self._interval_us)  # so that its first beat is not ahead of now
            self._plan_look(key)
        for group in saved["groups"]:
            due_us = group["next_us"]
            if due_us is not None:  # at most an interval from now, even if the clock went back meanwhile
                due_us = min(due_us, now_us + group["params"]["update_interval_us"])
            self._groups[group["name"]] = AlignmentGroup.restore({**group, "next_us": due_us}, self._changes.mark)
        self._group_of = {_task(parts): name for *parts, name in saved["group_of"]}
        self._spoke_us = {_task(parts): at_us for *parts, at_us in saved["spoke_us"]}
        if not self._groups.keys() >= set(self._group_of.values()):
            raise ValueError("a task is in a group that is not there")
        known = {(*key, task_id) for key, rounds in self._sources.items() for task_id in rounds.answers}
        if not known >= {tuple(parts) for *parts, _ in saved["runs"]}:
            raise ValueError("a task is not known to its source")
        for name in self._groups:
            self._changes.mark("group", name)  # its next announcement may have moved
            self._plan_announcement(name)

    # -- events

    def _reply(self, reply: ReplyLowWatermark, now_us: int) -> list[CoordinatorEffect]:
        check_reply(reply)
        task = reply.task
        self._leases.renew(task, reply.token, now_us)
        rounds = self._sources[_key(task)]
        before = rounds.state(task.task_id)
        behind_us = rounds.take(reply, now_us)
        self._epoch += rounds.state(task.task_id) is not before
        self._tell_group(task, now_us)
        late = _late(task, behind_us, "it had no rows while the others delivered")
        return [*late, *self._end_if_complete(_key(task), now_us)]

    def _renew(self, event: LeaseRenewed, now_us: int) -> list[CoordinatorEffect]:
        check_sender(event)
        self._leases.renew(event.task, event.token, now_us)
        heard_us, low_us = event.heard_low_us, self._sources[_key(event.task)].low_us
        heard = heard_us is not None and low_us is not None and heard_us >= low_us
        return [] if heard else self._tell(event.task, now_us)

    def _register(self, event: TaskRegistered, now_us: int) -> list[CoordinatorEffect]:
        check_registration(event)
        task = event.task
        if not self._leases.check_registration(task, event.token):
            self._leases.renew(task, event.token, now_us)
            return self._tell(task, now_us)
        self._check_room(task)
        self._join_group(event, now_us)  # before all changes, because the group may refuse the task
        self._leases.register(task, event.token, now_us=now_us)
        key = _key(task)
        if key not in self._sources:
            self._sources[key] = SourceRounds(*key, quorum=self._quorum, mark=self._changes.mark)
        self._emptied_us.pop(key, None)
        rounds = self._sources[key]
        why = _why_passed(rounds.answers.get(task.task_id))
        behind_us = rounds.begin(task.task_id, event.low_watermark_us, event.expected_tasks, event.away_limit_us)
        self._note(key)
        self._tell_group(task, now_us)
        self._epoch += 1
        if key not in self._beats:
            self._beats.begin(key, now_us)
        questions = rounds.ask_newcomer(task.task_id)
        self._plan_look(key)
        return [*_late(task, behind_us, why), *self._tell(task, now_us), *questions]

    def _deregister(self, event: TaskDeregistered, now_us: int) -> list[CoordinatorEffect]:
        check_sender(event)
        task = event.task
        if self._leases.is_over(task, event.token):
            return []  # a repeated message
        self._leases.check(task, event.token)
        self._leases.leave(task)
        self._leave_group(task)
        self._sources[_key(task)].leave(task.task_id, now_us)
        self._note(_key(task))
        self._epoch += 1
        return self._end_if_complete(_key(task), now_us)

    def _excuse(self, event: TaskForgotten) -> list[CoordinatorEffect]:
        check_task(event)
        task, rounds = event.task, self._sources.get(_key(event.task))
        if task in self._leases:
            raise TaskNotAway(str(task), "it is registered, and alive")
        if rounds is None or task.task_id not in rounds.answers:
            raise TaskNotAway(str(task), "the coordinator does not know it")
        if not rounds.answers[task.task_id].given_up:
            rounds.excuse(task.task_id)
            self._note(_key(task))
            self._epoch += 1
        return []

    # -- groups

    def _join_group(self, event: TaskRegistered, now_us: int) -> None:
        """Join or change the group of a task. Raises DisagreeingGroup; then nothing was changed."""
        task, params = event.task, event.alignment
        if params is not None:
            group = self._groups.get(params.group)
            if group is None:
                group = AlignmentGroup(params.group, self._changes.mark)
            group.join(task, params, now_us=now_us, throttled=event.throttled)
            self._groups[params.group] = group
        if task in self._group_of and (params is None or params.group != self._group_of[task]):
            self._leave_group(task)
        if params is not None:
            self._group_of[task] = params.group
            self._changes.mark("group_of", *task.parts)
            self._plan_announcement(params.group)

    def _leave_group(self, task: TaskId) -> None:
        name = self._group_of.pop(task, None)
        self._spoke_us.pop(task, None)
        self._changes.mark("group_of", *task.parts)
        self._changes.mark("spoke_us", *task.parts)
        if name is not None:
            self._groups[name].leave(task)
            if not len(self._groups[name]):
                del self._groups[name]
                self._announced_us.pop(name, None)
            self._plan_announcement(name)

    def _tell_group(self, task: TaskId, now_us: int) -> None:
        """Report a task to its group. Each report is dated later than the last, because the newest report counts."""
        name = self._group_of.get(task)
        if name is None:
            return
        rounds, group = self._sources[_key(task)], self._groups[name]
        at_us = now_us if task not in self._spoke_us else max(now_us, self._spoke_us[task] + 1)
        self._spoke_us[task] = at_us
        self._changes.mark("spoke_us", *task.parts)
        if rounds.state(task.task_id) is SplitState.IDLE:
            group.idle(task, at_us=at_us)
        else:
            wanted_us = rounds.answers[task.task_id].next_wanted_us
            group.report(task, rounds.task_low_us(task.task_id), at_us=at_us, next_wanted_us=wanted_us)

    def _announce(self, now_us: int, most: int) -> list[CoordinatorEffect]:
        """Let up to ``most`` groups announce whose moment has come. The limit keeps calls about other events short."""
        effects: list[CoordinatorEffect] = []
        for _ in range(most):
            if (name := self._announcements.take_due(now_us)) is None:
                break
            effects += self._groups[name].announce(now_us)
            self._announced_us[name] = now_us
            self._plan_announcement(name)
        return effects

    def _plan_announcement(self, name: str) -> None:
        """Note when a group announces next: at its own time, but at most ``_ANNOUNCEMENTS`` times in an interval."""
        group = self._groups.get(name)
        us = None if group is None else group.wake_at_us
        if us is not None and name in self._announced_us:
            us = max(us, self._announced_us[name] + self._interval_us // _ANNOUNCEMENTS)
        self._announcements.put(name, us)

    def _check_room(self, task: TaskId) -> None:
        """Raises TooManyTasks."""
        rounds = self._sources.get(_key(task))
        known = rounds is not None and task.task_id in rounds.answers
        if not known and len(self._leases) + self._kept >= MOST_TASKS:
            raise TooManyTasks(str(task), MOST_TASKS)

    # -- time

    def _lose(self, now_us: int) -> list[CoordinatorEffect]:
        effects: list[CoordinatorEffect] = []
        lost = self._leases.expired(now_us)
        for task in lost:  # first all leave, because a task that is lost too must not complete its source
            lease = format_duration_us(self._lease_us)
            effects.append(TaskLost(task, f"it was silent for more than its lease of {lease}"))
            self._lost += 1
            self._changes.mark("lost")
            self._epoch += 1
            self._leave_group(task)
            self._sources[_key(task)].leave(task.task_id, now_us)
        for key in dict.fromkeys(map(_key, lost)):
            self._note(key)
            effects += self._end_if_complete(key, now_us)
        return effects

    def _look(self, now_us: int) -> list[CoordinatorEffect]:
        """Look at the sources whose moment has come."""
        effects: list[CoordinatorEffect] = []
        while (key := self._looks.take_due(now_us)) is not None:
            effects += self._look_at(key, now_us)
        return effects

    def _look_at(self, key: tuple[str, str], now_us: int) -> list[CoordinatorEffect]:
        """End the round of a source if its deadline is over; at its beat begin a round, or repeat open questions."""
        effects: list[CoordinatorEffect] = []
        rounds, beat_us = self._sources[key], self._beats[key]
        if rounds.deadline_us is not None and now_us >= rounds.deadline_us:
            effects += self._end(rounds, now_us)
        if now_us >= beat_us and not rounds.idles:
            effects += rounds.ask(now_us, now_us + self._lease_us)
            if rounds.complete:  # all tasks have left, so no task is asked
                effects += self._end(rounds, now_us)
        if now_us >= beat_us:
            if rounds.idles:
                self._beats.end(key)
                return effects
            self._beats.go_on(key, now_us)
        self._plan_look(key)
        return effects

    def _plan_look(self, key: tuple[str, str]) -> None:
        deadline_us, beat_us = self._sources[key].deadline_us, self._beats[key]
        self._looks.put_earlier(key, beat_us if deadline_us is None else min(beat_us, deadline_us))

    def _forget_empty(self) -> None:
        """Forget the sources that have had no task for long enough."""
        while self._emptied_us:
            key, since_us = next(iter(self._emptied_us.items()))
            if self._leases.listened_us - since_us <= EMPTY_SOURCE_KEPT_US:
                return
            for task_id in self._sources[key].answers:
                self._changes.mark("task", *key, task_id)
            self._changes.mark("source", *key)
            del self._emptied_us[key], self._sources[key]
            self._kept -= self._kept_in.pop(key)
            self._beats.end(key)
            self._looks.put(key, None)
            self._epoch += 1

    def _end_if_complete(self, key: tuple[str, str], now_us: int) -> list[CoordinatorEffect]:
        rounds = self._sources[key]
        return self._end(rounds, now_us) if rounds.complete else []

    def _end(self, rounds: SourceRounds, now_us: int) -> list[CoordinatorEffect]:
        before = rounds.low_us, rounds.waited_minutes
        notices = rounds.end(now_us, self._leases.listened_us)
        self._epoch += before != (rounds.low_us, rounds.waited_minutes)
        self._note((rounds.job_id, rounds.source_id))
        return [*notices]

    def _note(self, key: tuple[str, str]) -> None:
        """Note when a source ended, and how many places it keeps."""
        rounds = self._sources[key]
        if rounds.is_over:
            self._emptied_us.setdefault(key, self._leases.listened_us)
        kept = max(len(rounds.answers) - rounds.live, key in self._emptied_us)
        self._kept += kept - self._kept_in.pop(key, 0)
        if kept:
            self._kept_in[key] = kept

    def _tell(self, task: TaskId, now_us: int) -> list[CoordinatorEffect]:
        """Tell the published low watermark to one task."""
        rounds = self._sources[_key(task)]
        return [] if rounds.low_us is None else [rounds.notice(task.task_id, rounds.low_us, now_us)]

    def _encoded(self, key: Key) -> str | None:
        """The row of a key as JSON; None if it has gone."""
        kind, *parts = key
        match kind:
            case "lost":
                return to_json(self._lost)
            case "source" | "task":
                rounds = self._sources.get((parts[0], parts[1]))
                return None if rounds is None else rounds.encoded(*parts[2:])
            case "run" | "retired":
                return self._leases.encoded(kind, TaskId(*parts[:3]), *parts[3:])
            case "group" | "member":
                group = self._groups.get(parts[0])
                return None if group is None else group.encoded(TaskId(*parts[1:]) if kind == "member" else None)
        task = TaskId(*parts)
        value: str | int | None = (self._group_of if kind == "group_of" else self._spoke_us).get(task)
        return None if value is None else to_json([*parts, value])

    def _keys(self) -> Iterator[Key]:
        yield ("lost",)
        yield from self._leases.keys
        for key, rounds in self._sources.items():
            yield ("source", *key)
            yield from (("task", *key, task_id) for task_id in rounds.answers)
        for name in self._groups:
            yield ("group", name)
        for task, name in self._group_of.items():
            yield from (("member", name, *task.parts), ("group_of", *task.parts), ("spoke_us", *task.parts))

    def _forward(self, now_us: int) -> int:
        if now_us not in INT64:
            raise ValueError(f"coordinator: expected now_us in microseconds since the epoch, got {now_us!r}")
        self._clock_steps_back += self._now_us is not None and now_us < self._now_us
        self._now_us = self._time(now_us)
        return self._now_us

    def _time(self, now_us: int) -> int:
        return now_us if self._now_us is None else max(now_us, self._now_us)


def _late(task: TaskId, behind_us: int | None, why: str) -> list[CoordinatorEffect]:
    return [] if behind_us is None else [TaskReturnedLate(task, behind_us, why)]


def _why_passed(before: Answer | None) -> str:
    """Say why a task may begin below the low watermark, from its earlier answer."""
    if before is None:
        return "its source had all expected tasks without it"
    return "nobody waited for it any more" if before.excused else "it begins below what it had said"


def _key(task: TaskId) -> tuple[str, str]:
    return task.job_id, task.source_id


def _task(parts: Iterable[str]) -> TaskId:
    return TaskId(*parts)
