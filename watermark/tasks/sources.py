"""All sources of a coordinator: the rounds of each, the moment to look at each, and how long an empty source is kept.

``rounds.py`` has the rules of one source. A source is there from the registration of its first task, until no task
lives in it, it waits for no task, and an hour has passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any

from lowmark.watermark.protocol import (
    NotifyNewLowWatermark,
    ReplyLowWatermark,
    RetrieveLowWatermark,
    TaskId,
    TaskRegistered,
    TaskReturnedLate,
)

from .agenda import Agenda
from .leases import Leases
from .rounds import Answer, SourceRounds
from .snapshot import MarkRow, nobody_keeps

EMPTY_SOURCE_KEPT_US = 3_600_000_000
"""One hour in which the coordinator was called; rule 5 of ``rounds.py`` says which tasks a source waits for."""

# The eighths of an interval, in the order in which sources get them: 0 to 7 with their three bits reversed, so that the
# moments of few sources, too, lie evenly.
_EIGHTHS = (0, 4, 2, 6, 1, 5, 3, 7)


class Sources:
    """The sources of a coordinator. A message of a task is O(log n), a round of one source O(n).

    A round of each source is begun once in ``interval_us``, at the source's own moment, to spread the questions, and
    ends after ``deadline_us`` at the latest.

    >>> leases, task = Leases(lease_us=30, most_gap_us=20), TaskId("job", "orders", "0")
    >>> sources = Sources(interval_us=10, deadline_us=30, quorum=1.0, leases=leases)
    >>> sources.begin(TaskRegistered(task, "run-1"), now_us=0), sources.next_us
    ([], 10)
    >>> [question.timestamp for question in sources.look(now_us=10)]
    [10]
    >>> sources.take(sources[task], ReplyLowWatermark("job", "orders", "0", 10, 42, token="run-1"), now_us=11)
    []
    >>> [told.new_low_watermark for told in sources.end_if_complete(sources[task], now_us=11)]
    [42]
    """

    def __init__(
        self, *, interval_us: int, deadline_us: int, quorum: float, leases: Leases, mark: MarkRow = nobody_keeps
    ) -> None:
        self._interval_us, self._deadline_us, self._quorum = interval_us, deadline_us, quorum
        self._leases, self._mark = leases, mark
        self._sources: dict[tuple[str, str], SourceRounds] = {}
        self._beats_us: dict[tuple[str, str], int] = {}  # when each source that has a task begins its next round
        self._zero_us = self._next_eighth = 0  # when the first of these sources came, and the next one's moment
        self._looks = Agenda[tuple[str, str]]()  # when to look at a source: at its beat, or its round's deadline
        self._emptied_us: dict[tuple[str, str], int] = {}  # for each source that is over: time listened at its end
        self._kept_in: dict[tuple[str, str], int] = {}
        self.kept = 0
        """How many places are kept by tasks that are away; a source that is over keeps at least one."""
        self.epoch = 0  # see `LowWatermarkCoordinator.epoch`

    def __getitem__(self, task: TaskId) -> SourceRounds:
        return self._sources[task.job_id, task.source_id]

    def __iter__(self) -> Iterator[SourceRounds]:
        """All sources, sorted. O(n log n)."""
        return iter(sorted(self._sources.values(), key=attrgetter("key")))

    def find(self, job_id: str, source_id: str) -> SourceRounds | None:
        return self._sources.get((job_id, source_id))

    def knows(self, task: TaskId) -> bool:
        """Whether the task is in its source, alive or away."""
        rounds = self.find(task.job_id, task.source_id)
        return rounds is not None and task.task_id in rounds.answers

    # -- messages

    def begin(self, event: TaskRegistered, now_us: int) -> list[TaskReturnedLate]:
        """Begin a run of a task, and its source with its first task. Tell if the task is below the low watermark."""
        task = event.task
        key = task.job_id, task.source_id
        rounds = self._sources.get(key)
        if rounds is None:
            rounds = self._sources[key] = SourceRounds(*key, quorum=self._quorum, mark=self._mark)
        if key not in self._beats_us:
            self._begin_beats(key, now_us)
        self._plan_look(rounds)
        self._emptied_us.pop(key, None)
        why = _why_passed(rounds.answers.get(task.task_id))
        behind_us = rounds.begin(task.task_id, event.low_watermark_us, event.expected_tasks, event.away_limit_us)
        self._tasks_changed(rounds)
        return [] if behind_us is None else [TaskReturnedLate(task, behind_us, why)]

    def take(self, rounds: SourceRounds, reply: ReplyLowWatermark, now_us: int) -> list[TaskReturnedLate]:
        """Take in the reply of a live task of a source. Tell if the task comes in below the low watermark."""
        task_id = reply.task_id
        before = rounds.state(task_id)
        behind_us = rounds.take(reply, now_us)
        self.epoch += rounds.state(task_id) is not before
        if behind_us is None:
            return []
        return [TaskReturnedLate(reply.task, behind_us, "it had no rows while the others delivered")]

    def leave(self, task: TaskId, now_us: int) -> None:
        rounds = self[task]
        rounds.leave(task.task_id, now_us)
        self._tasks_changed(rounds)

    def excuse(self, task: TaskId) -> None:
        """Stop waiting for a task that is away. Repeated calls change nothing."""
        rounds = self[task]
        if not rounds.answers[task.task_id].given_up:
            rounds.excuse(task.task_id)
            self._tasks_changed(rounds)

    # -- time

    @property
    def next_us(self) -> int | None:
        return self._looks.next_us

    def look(self, now_us: int) -> list[RetrieveLowWatermark | NotifyNewLowWatermark]:
        """Look at the sources whose moment has come, and forget the sources that were empty for long enough."""
        effects: list[RetrieveLowWatermark | NotifyNewLowWatermark] = []
        while (key := self._looks.take_due(now_us)) is not None:
            effects += self._look_at(self._sources[key], now_us)
        self._forget_empty()
        return effects

    def end_if_complete(self, rounds: SourceRounds, now_us: int) -> list[NotifyNewLowWatermark]:
        return self._end(rounds, now_us) if rounds.complete else []

    def _look_at(self, rounds: SourceRounds, now_us: int) -> list[RetrieveLowWatermark | NotifyNewLowWatermark]:
        """End the round of a source if its deadline is over; at its beat begin a round, or repeat open questions."""
        effects: list[RetrieveLowWatermark | NotifyNewLowWatermark] = []
        if rounds.deadline_us is not None and now_us >= rounds.deadline_us:
            effects += self._end(rounds, now_us)
        if (beat_us := self._beats_us[rounds.key]) <= now_us:
            if not rounds.needs_no_round:
                effects += rounds.ask(now_us, now_us + self._deadline_us)
                effects += self.end_if_complete(rounds, now_us)  # if all tasks have left, no task is asked
            if rounds.needs_no_round:
                del self._beats_us[rounds.key]
                return effects
            self._beats_us[rounds.key] = now_us + self._interval_us - (now_us - beat_us) % self._interval_us
        self._plan_look(rounds)
        return effects

    def _plan_look(self, rounds: SourceRounds) -> None:
        deadline_us, beat_us = rounds.deadline_us, self._beats_us[rounds.key]
        self._looks.put_earlier(rounds.key, beat_us if deadline_us is None else min(beat_us, deadline_us))

    def _begin_beats(self, key: tuple[str, str], now_us: int) -> None:
        """Give a source its moment in the interval. The first source begins a whole interval from now."""
        if not self._beats_us:
            self._zero_us, self._next_eighth = now_us, 0
        own_us = self._zero_us + _EIGHTHS[self._next_eighth] * self._interval_us // len(_EIGHTHS)
        self._next_eighth = (self._next_eighth + 1) % len(_EIGHTHS)
        self._beats_us[key] = now_us + self._interval_us - (now_us - own_us) % self._interval_us

    def _end(self, rounds: SourceRounds, now_us: int) -> list[NotifyNewLowWatermark]:
        before = rounds.low_us, rounds.waited_minutes
        notices = rounds.end(now_us, self._leases.listened_us)
        self.epoch += before != (rounds.low_us, rounds.waited_minutes)
        self._count_kept(rounds)
        return notices

    def _forget_empty(self) -> None:
        while self._emptied_us:
            key, since_us = next(iter(self._emptied_us.items()))
            if self._leases.listened_us - since_us <= EMPTY_SOURCE_KEPT_US:
                return
            for task_id in self._sources[key].answers:
                self._mark("task", *key, task_id)
            self._mark("source", *key)
            del self._emptied_us[key], self._sources[key]
            self.kept -= self._kept_in.pop(key)
            self._beats_us.pop(key, None)
            self._looks.put(key, None)
            self.epoch += 1

    def _tasks_changed(self, rounds: SourceRounds) -> None:
        self._count_kept(rounds)
        self.epoch += 1

    def _count_kept(self, rounds: SourceRounds) -> None:
        """Note when a source ended, and how many places it keeps."""
        key = rounds.key
        if rounds.is_over:
            self._emptied_us.setdefault(key, self._leases.listened_us)
        kept = max(len(rounds.answers) - rounds.live, key in self._emptied_us)
        self.kept += kept - self._kept_in.get(key, 0)
        self._kept_in[key] = kept

    # -- restart

    def encoded(self, job_id: str, source_id: str, *task_id: str) -> str | None:
        """The row of a source, or of one of its tasks; None if it has gone."""
        rounds = self.find(job_id, source_id)
        return None if rounds is None else rounds.encoded(*task_id)

    def restore(self, saved: Iterable[Mapping[str, Any]], now_us: int) -> None:
        """Take in the sources of a state. Every source is looked at at once."""
        for source in saved:
            rounds = SourceRounds.restore(source, quorum=self._quorum, mark=self._mark)
            self._sources[rounds.key] = rounds
            self._count_kept(rounds)
            self._begin_beats(rounds.key, now_us - self._interval_us)  # so that its first beat is not ahead of now
            self._plan_look(rounds)


def _why_passed(before: Answer | None) -> str:
    """Say why a task may begin below the low watermark, from its earlier answer."""
    if before is None:
        return "its source had all expected tasks without it"
    return "nobody waited for it any more" if before.excused else "it begins below what it had said"
