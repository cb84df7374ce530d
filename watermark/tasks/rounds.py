"""The rounds of one source: its tasks are asked, they answer, and the minimum of their answers is published.

Rule 1: A round ends when every live task has answered (or a quorum of them), or at its deadline.
        The low watermark may rise only at the end of a round.
Rule 2: The low watermark is the minimum over the counted tasks. A task counts with its largest reported low watermark,
        from this round or an earlier round. While a counted task has never reported one, nothing is published
        (MillWheel: a missing value is never "ignore"). So a quorum or a deadline gives up freshness, never correctness.
Rule 3: The low watermark never falls. When a task comes in below it, it stays until the task has passed it.
Rule 4: A task leaves when it reports that it is idle or has no splits, and when rule 5 lets it go. At the
        end of that round the minimum is taken twice: with the task, so that its last value is published, and without
        the task, so that it holds nothing back. If a task that has left reports a larger value, it is counted once more
        in this way. While rule 2 stops publishing, leaving tasks stay counted, unless rule 5 lets them go.
        When no task is counted any more, the minimum over the idle tasks is published, because no idle task has rows
        below that minimum. So the last values of a draining source are published, and the order of the answers within a
        round changes nothing.
Rule 5: A source expects a number of tasks: the largest number given by a live task; without live tasks, the largest
        number given by a task that is away. A task is away once it has deregistered or was lost. While fewer tasks live
        than are expected, every task that is away counts with its largest low watermark, also if it was idle.
        While live tasks and tasks that are away are together fewer than expected, nothing is published, because
        rows of a task that never came may have any time. Once the expected number of tasks lives, tasks that are away
        are let go and forgotten: the source is complete without them. A task that is away is *excused* when its splits
        had all ended, when a person says so, or when others waited for it for longer than it asked for. An excused task
        is let go, too, and is not missed.
Rule 6: A restart may lose the newest report of a task, and an older message may arrive after the restart. So, until a
        task has answered a question asked since the restart, its low watermark counts, but its wish to be left out
        does not; and while this applies to a task that was left out, no quorum ends a round, and a deadline lets the
        task take part again.
Rule 7: A task that reports idleness and a patience leaves once other tasks delivered for longer than the patience
        since the task last had rows (``silence.py``). Until then the task counts, even if it was left out before
        without splits. So when the rows of all tasks stay away, the first task with new rows passes no other task.

Example: tasks a and b; their reports in a round, and the low watermark published at its end.

    round  a says    b says    published
    1      10                  nothing: b has never reported a low watermark (rule 2)
    2      12        5         5
    3      30        20, idle  30: b counts with 20, which gives 20, and is left out, which gives 30 (rule 4)
    4      40, idle            40: no task is counted any more; b is idle, and no longer counts with 20
    5                60, idle  60: b reports more than before, so it is counted once more; a is idle and holds nothing
    6      90        55        60: both are counted again, b with 60, its largest report; now b holds

Source: FLINK-4576; section 7.2 of the MillWheel paper.

One file, because each rule above changes the same minimum.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from lowmark.watermark.protocol import LeftOut, NotifyNewLowWatermark, ReplyLowWatermark, RetrieveLowWatermark
from lowmark.watermark.splits.coalescer import Coalescer
from lowmark.watermark.splits.history import History
from lowmark.watermark.state import Signal, SplitState

from .silence import SourceSilence
from .snapshot import MarkRow, nobody_keeps, to_json

_QUESTIONS = 64  # questions since the start whose times are kept, to recognize answers to them
_MINUTE_US = 60_000_000


@dataclass(slots=True)
class Answer:
    """The facts about one task, beside its low watermark. Moments are by the coordinator's clock."""

    # Sequence and time of the newest reply, and a rule for replies with equal numbers; None before any reply.
    order: tuple[int | bool, ...] | None = None
    left_out: LeftOut | None = None  # by its newest reply
    next_wanted_us: int | None = None  # likewise
    counted: bool = True  # whether it is in the minimum or holds it; after it left, as rules 4 and 5 say
    passed: bool = False  # whether it was left out as idle, and is still left out at the end of the last round
    expected: int = 1
    heard_us: int | None = None  # when it last had rows; None: unknown
    patience_us: int | None = None  # by its newest reply
    away_since_us: int | None = None  # when it deregistered or was lost; None: it lives
    away_limit_us: int | None = None  # how long others wait for it while it is away; None: until it is back
    waited_us: int = 0  # how long others have waited; only time with a live task in the source counts
    excused: bool = False  # whether it is away, holds nothing back, and is not missed
    complete_until_us: int | None = None  # of its sink; stays when a new run begins, because the sink stays

    @property
    def live(self) -> bool:
        return self.away_since_us is None

    @property
    def given_up(self) -> bool:
        """Whether it is excused by a person or a time limit. Otherwise its last rows may not be in its sink yet."""
        return self.excused and self.left_out is not LeftOut.FINISHED


_SAVED = [each.name for each in fields(Answer) if each.name != "heard_us"]  # a restart begins the time of silence anew

ROW = {
    "job_id": str,
    "source_id": str,
    "low_us": int | None,
    "rose_at_us": int | None,
    "last_asked_us": int | None,
    "returned_late": int,
}
"""The attributes of a source that are in its row, with their types."""


class SourceRounds:
    """The tasks of one source. A message costs O(1), a round O(n)."""

    def __init__(
        self,
        job_id: str,
        source_id: str,
        *,
        quorum: float = 1.0,
        low_us: int | None = None,
        mark: MarkRow = nobody_keeps,
    ) -> None:
        self.job_id, self.source_id, self._quorum = job_id, source_id, quorum
        self.key = job_id, source_id
        self._coalescer = Coalescer(low_us)
        self.answers: dict[str, Answer] = {}
        """Every task by its id, in the order of arrival."""
        self._leaving: set[str] = set()  # tasks that are counted for the last time
        self.live = 0  # how many tasks live
        self.unanswered: set[str] = set()
        """The tasks that the open round still waits for."""
        self.asked_at_us: int | None = None
        """The timestamp of the open round; None between rounds."""
        self.deadline_us: int | None = None
        """When the open round ends at the latest; None between rounds."""
        self.last_asked_us: int | None = None
        self._waited_until_us: int | None = None  # up to when waiting was counted, by ``Leases.listened_us``
        self._unconfirmed: set[str] = set()  # restored tasks without an answer since the restart (rule 6)
        self._doubtful: set[str] = set()  # unconfirmed tasks that were left out
        self._questions_us: deque[int] = deque(maxlen=_QUESTIONS)
        self._silence = SourceSilence()
        self.rose_at_us: int | None = None
        self.returned_late = 0
        """How often a task came in below the low watermark."""
        self.history: History[str] = History()
        self._mark = mark

    # -- queries

    @property
    def low_us(self) -> int | None:
        """The published low watermark, microseconds of event time; never decreases."""
        return self._coalescer.low_us

    @property
    def holder(self) -> str | None:
        """The task that keeps the low watermark from rising; None if no task does."""
        holder = self._coalescer.holder
        return None if holder is None else str(holder)

    @property
    def expected(self) -> int:
        """How many tasks the source has (rule 5). O(n)."""
        live = [answer.expected for answer in self.answers.values() if answer.live]
        return max(live or (answer.expected for answer in self.answers.values()), default=1)

    @property
    def missing(self) -> int:
        """How many expected tasks never came. O(n)."""
        return max(0, self.expected - len(self.answers))

    @property
    def waited_for(self) -> set[str]:
        """The tasks that are away and count. O(n)."""
        if self.live >= self.expected:
            return set()
        return {task_id for task_id, answer in self.answers.items() if not answer.live and not answer.excused}

    @property
    def is_over(self) -> bool:
        """Whether no task lives, and the source expects only one task or all its tasks are excused. O(n)."""
        return not self.live and (self.expected == 1 or all(answer.excused for answer in self.answers.values()))

    @property
    def waited_minutes(self) -> int:
        """The whole minutes of waiting for absent tasks with a limit, added up. O(n)."""
        return sum(answer.waited_us // _MINUTE_US for answer in self.answers.values())

    @property
    def least_complete(self) -> str | None:
        """The task whose sink is complete the least far, one of unknown completeness first; None without tasks. O(n).

        A task that was given up does not count.
        """
        kept = (task_id for task_id, answer in self.answers.items() if not answer.given_up)
        return min(kept, key=self._completeness, default=None)

    @property
    def needs_no_round(self) -> bool:
        """Whether a round would have nothing to do, because no task lives and none is counted for the last time."""
        return not self.live and not self._leaving

    @property
    def complete(self) -> bool:
        """Whether the open round may end."""
        if self.asked_at_us is None:
            return False
        if not self.unanswered:
            return True
        return not self._doubtful and (self.live - len(self.unanswered)) / self.live >= self._quorum

    def task_low_us(self, task_id: str) -> int | None:
        """The largest low watermark that this run of the task reported."""
        return self._coalescer.watermark_us(task_id)

    def waits_for_flow(self, task_id: str) -> bool:
        """Whether an idle task still counts (rule 7)."""
        answer = self.answers[task_id]
        idle = answer.live and answer.left_out is LeftOut.IDLE and answer.patience_us is not None
        return idle and answer.counted and not self._silence.runs_out(answer.heard_us)

    def state(self, task_id: str) -> SplitState:
        """PENDING (without a low watermark so far), ACTIVE, IDLE (left out, or asks to be) or FINISHED (excused)."""
        answer = self.answers[task_id]
        if answer.excused:
            return SplitState.FINISHED
        if answer.live and answer.left_out is not None:
            return SplitState.IDLE
        return SplitState.PENDING if self.task_low_us(task_id) is None else SplitState.ACTIVE

    # -- changes

    def begin(
        self, task_id: str, low_us: int | None, expected: int = 1, away_limit_us: int | None = None
    ) -> int | None:
        """Begin a run of a task, in place of its earlier run.

        Returns how far the task comes in below the low watermark; None if it does not.
        """
        before = self.answers.get(task_id)
        self._forget(task_id)
        answer = self.answers[task_id] = Answer(expected=expected, away_limit_us=away_limit_us)
        answer.complete_until_us = None if before is None else before.complete_until_us
        self.live += 1
        state = SplitState.PENDING if low_us is None else SplitState.ACTIVE
        self._coalescer.assign(task_id, state=state, watermark_us=low_us)
        self._source_changed()  # it may be new
        self._changed(task_id)
        return self._behind(low_us)

    def take(self, reply: ReplyLowWatermark, now_us: int) -> int | None:
        """Take in any reply, even a late or repeated reply.

        Returns how far a new task, or a task that was left out, comes in below the low watermark; None if it does not.
        """
        task_id, low_us = reply.task_id, reply.current_low_watermark
        answer, before = self.answers[task_id], self.state(task_id)
        self._changed(task_id)
        if reply.timestamp in self._questions_us:
            self._confirm(task_id)
        confirmed = task_id not in self._unconfirmed
        if confirmed and self.asked_at_us is not None and reply.timestamp >= self.asked_at_us:
            self.unanswered.discard(task_id)
        order = _order(reply)
        news = confirmed and (answer.order is None or order > answer.order)
        if news:
            answer.order, answer.left_out, answer.next_wanted_us = order, reply.left_out, reply.next_wanted_us
            answer.patience_us = reply.patience_us
        if reply.silent_us is not None or reply.left_out is None:
            heard_us = now_us - (reply.silent_us or 0)
            answer.heard_us = heard_us if answer.heard_us is None else max(answer.heard_us, heard_us)
            self._silence.delivered(heard_us)
        until_us = reply.complete_until_us
        if until_us is not None and (answer.complete_until_us is None or until_us > answer.complete_until_us):
            answer.complete_until_us = until_us
        if low_us is not None:
            seen_us = self.task_low_us(task_id)
            answer.counted |= seen_us is None or low_us > seen_us  # rule 4, also for a task already left out
            self._coalescer.report(task_id, low_us)  # makes the task active
        elif answer.left_out is None:
            self._coalescer.signal(task_id, Signal.WAKE)
        self._place(task_id, answer)
        came_in = before in (SplitState.PENDING, SplitState.IDLE) and self.state(task_id) is SplitState.ACTIVE
        return self._behind(self.task_low_us(task_id)) if came_in and news else None

    def leave(self, task_id: str, now_us: int) -> None:
        """End the run of a live task that has deregistered or was lost: from now on it is away (rule 5)."""
        answer = self.answers[task_id]
        self._changed(task_id)
        self.live -= 1
        if not self.live:  # there may be no further round before a task comes back
            self._waited_until_us = None
        answer.away_since_us, answer.excused = now_us, answer.left_out is LeftOut.FINISHED
        self._confirm(task_id)
        self.unanswered.discard(task_id)
        if not answer.excused:
            self._count(task_id)
        if answer.counted:
            self._leaving.add(task_id)

    def excuse(self, task_id: str) -> None:
        """Stop waiting for a task that is away, because a person says so."""
        self._changed(task_id)
        answer = self.answers[task_id]
        answer.excused = True
        if answer.left_out is LeftOut.FINISHED:
            answer.left_out = None  # from now on a person is the reason

    # -- rounds

    def ask(self, now_us: int, deadline_us: int) -> list[RetrieveLowWatermark]:
        """Begin a round, or repeat the questions of the open round to tasks that have not answered.

        All questions of a round have one timestamp, larger than those of earlier rounds.
        """
        if self.asked_at_us is None:
            self.asked_at_us = now_us if self.last_asked_us is None else max(now_us, self.last_asked_us + 1)
            self.last_asked_us, self.deadline_us = self.asked_at_us, deadline_us
            self._questions_us.append(self.asked_at_us)
            self._source_changed()
            self.unanswered = {task_id for task_id, answer in self.answers.items() if answer.live}
        return [self._question(task_id, self.asked_at_us) for task_id in sorted(self.unanswered)]

    def ask_newcomer(self, task_id: str) -> list[RetrieveLowWatermark]:
        """Let the open round, if any, wait for a new task."""
        if self.asked_at_us is None:
            return []
        self.unanswered.add(task_id)
        return [self._question(task_id, self.asked_at_us)]

    def end(self, now_us: int, listened_us: int) -> list[NotifyNewLowWatermark]:
        """End the open round: publish the minimum if it rose. Returns the notices to live tasks, sorted by id."""
        self.asked_at_us = self.deadline_us = None
        self.unanswered = set()
        self._silence.be_as_patient_as(answer.patience_us for answer in self.answers.values())
        self._wait_for_those_away(listened_us)
        away = {task_id for task_id, answer in self.answers.items() if not answer.live}
        self._leaving -= away  # below, tasks that are away are let go only by rule 5
        if self.missing:
            return []
        self._count_those_with_splits_again()
        for task_id in self._doubtful:  # only at a deadline
            self._count(task_id)
        leaving = {t for t in self._leaving - self._doubtful if not self.waits_for_flow(t)}
        complete = self.live >= self.expected
        over = {task_id for task_id in away if complete or self.answers[task_id].excused}
        before_us = self.low_us
        self._let_go({task_id for task_id in leaving | over if self.task_low_us(task_id) is None})
        self._coalescer.advance()
        blocked = bool(self._coalescer.pending)  # a silent task blocks the minimum: leaving tasks stay counted
        self._let_go((over if blocked else leaving | over) & self.answers.keys())
        self._coalescer.advance()
        if self._coalescer.holder is None:
            self._advance_over_idle()
        if self.low_us is None or self.low_us == before_us:
            return []
        self._source_changed()
        self.rose_at_us = now_us
        self.history.rose(now_us, self.low_us, self.holder)
        live = sorted(task_id for task_id, answer in self.answers.items() if answer.live)
        return [self.notice(task_id, self.low_us, now_us) for task_id in live]

    def notice(self, task_id: str, low_us: int, now_us: int) -> NotifyNewLowWatermark:
        return NotifyNewLowWatermark(self.job_id, self.source_id, task_id, now_us, low_us)

    # -- restart

    def encoded(self, task_id: str | None = None) -> str | None:
        """The row of the source, or of a task; None: no such task."""
        if task_id is None:
            return to_json({name: getattr(self, name) for name in ROW})
        answer = self.answers.get(task_id)
        if answer is None:
            return None
        saved = {name: getattr(answer, name) for name in _SAVED}
        return to_json({"task_id": task_id, "low_us": self.task_low_us(task_id), **saved})

    @classmethod
    def restore(cls, data: Mapping[str, Any], *, quorum: float, mark: MarkRow) -> SourceRounds:
        """Make the rounds from their rows. No round is open, so the tasks are asked anew."""
        rounds = cls(data["job_id"], data["source_id"], quorum=quorum, low_us=data["low_us"], mark=mark)
        rounds.rose_at_us, rounds.returned_late = data["rose_at_us"], data["returned_late"]
        rounds.last_asked_us = data["last_asked_us"]
        for saved in data["tasks"]:
            task_id = saved["task_id"]
            answer = rounds.answers[task_id] = Answer(**{name: saved[name] for name in _SAVED})
            if answer.live:
                rounds._unconfirmed.add(task_id)
                if answer.left_out is not None:
                    rounds._doubtful.add(task_id)
            rounds.live += answer.live
            if not answer.counted:
                state = SplitState.IDLE
            else:
                state = SplitState.PENDING if saved["low_us"] is None else SplitState.ACTIVE
                if not answer.live or answer.left_out is not None:
                    rounds._leaving.add(task_id)
            rounds._coalescer.assign(task_id, state=state, watermark_us=saved["low_us"])
        return rounds

    # -- how

    def _changed(self, task_id: str) -> None:
        self._mark("task", self.job_id, self.source_id, task_id)

    def _source_changed(self) -> None:
        self._mark("source", self.job_id, self.source_id)

    def _completeness(self, task_id: str) -> tuple[bool, int, str]:
        until_us = self.answers[task_id].complete_until_us
        return until_us is not None, until_us or 0, task_id

    def _confirm(self, task_id: str) -> None:
        """Note that the newest report of a task is known again (rule 6)."""
        self._unconfirmed.discard(task_id)
        self._doubtful.discard(task_id)

    def _advance_over_idle(self) -> None:
        """Publish the minimum over the idle live tasks, because no task takes part."""
        idle = (task_id for task_id in self.answers if self.state(task_id) is SplitState.IDLE)
        lows_us = {task_id: low_us for task_id in idle if (low_us := self.task_low_us(task_id)) is not None}
        if lows_us and (self.low_us is None or min(lows_us.values()) > self.low_us):
            for task_id in lows_us:
                self._coalescer.signal(task_id, Signal.WAKE)
            self._coalescer.advance()
            for task_id in lows_us:
                self._coalescer.signal(task_id, Signal.IDLE)

    def _wait_for_those_away(self, listened_us: int) -> None:
        """Add the time since the last round to the waiting for absent tasks; excuse tasks beyond their limit."""
        since_us, self._waited_until_us = self._waited_until_us, listened_us if self.live else None
        if since_us is None:
            return
        for task_id, answer in self.answers.items():
            limit_us = answer.away_limit_us
            if answer.live or answer.excused or limit_us is None or task_id in self._leaving:
                continue
            answer.waited_us += listened_us - since_us
            answer.excused = answer.waited_us > limit_us
            self._changed(task_id)

    def _count_those_with_splits_again(self) -> None:
        """Count tasks that were left out without splits and now report silent splits (rule 7)."""
        for task_id, answer in self.answers.items():
            if answer.passed and answer.left_out is not LeftOut.IDLE:
                answer.passed = False
                self._changed(task_id)
            elif answer.live and answer.left_out is LeftOut.IDLE and not answer.passed and not answer.counted:
                self._count(task_id)
                self._leaving.add(task_id)

    def _count(self, task_id: str) -> None:
        """Take a task that was left out into the minimum again, with its last low watermark."""
        answer = self.answers[task_id]
        if not answer.counted:
            answer.counted = True
            self._changed(task_id)
            self._coalescer.signal(task_id, Signal.WAKE)

    def _let_go(self, task_ids: set[str]) -> None:
        """Leave tasks out of the minimum; if the source is complete, forget those among them that are away."""
        complete = self.live >= self.expected
        for task_id in sorted(task_ids):
            answer = self.answers[task_id]
            if not answer.live and complete:
                self._forget(task_id)
            elif answer.counted:
                answer.counted, answer.passed = False, answer.left_out is LeftOut.IDLE
                self._changed(task_id)
                self._coalescer.signal(task_id, Signal.IDLE)
        self._leaving -= task_ids

    def _forget(self, task_id: str) -> None:
        answer = self.answers.pop(task_id, None)
        if answer is None:
            return
        self._changed(task_id)
        self.live -= answer.live
        self._leaving.discard(task_id)
        self._confirm(task_id)
        self.unanswered.discard(task_id)
        self._coalescer.remove(task_id)

    def _place(self, task_id: str, answer: Answer) -> None:
        """Count the task, or let it leave, as its newest reply says."""
        if answer.left_out is None:
            answer.counted = True
            self._leaving.discard(task_id)
        elif answer.counted:
            self._leaving.add(task_id)
        else:
            self._coalescer.signal(task_id, Signal.IDLE)  # undoes that old news woke the task in the coalescer

    def _behind(self, low_us: int | None) -> int | None:
        if low_us is None or self.low_us is None or low_us >= self.low_us:
            return None
        self.returned_late += 1
        self._source_changed()
        return self.low_us - low_us

    def _question(self, task_id: str, asked_at_us: int) -> RetrieveLowWatermark:
        return RetrieveLowWatermark(self.job_id, self.source_id, task_id, asked_at_us)


def _order(reply: ReplyLowWatermark) -> tuple[int | bool, ...]:
    """Sort key of replies, the newest last. At equal numbers a fixed rule decides: the reply that holds back more."""
    wanted_us = reply.next_wanted_us
    return (
        reply.sequence,
        reply.timestamp,
        reply.left_out is None,
        reply.left_out is LeftOut.IDLE,
        reply.left_out is LeftOut.WITHOUT_SPLITS,
        wanted_us is None,
        0 if wanted_us is None else -wanted_us,
        0 if reply.patience_us is None else reply.patience_us,
    )
