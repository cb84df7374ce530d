"""The rounds of one source: its tasks are asked, they answer, and the minimum of what they said is published.

Rule 1: A round ends when every live task has answered (or the share of them that makes a quorum), or at its deadline.
        The low watermark may rise at the end of a round, and at no other time.
Rule 2: The low watermark is the minimum over the tasks that are counted. A task counts with the largest low watermark
        that it has said, in this round or in any before. While a counted task has never said one, nothing is published
        (MillWheel: a missing value is never "ignore"). So a quorum or a deadline gives up freshness, never correctness.
Rule 3: The low watermark never falls. When a task comes in below it, it stays until that task has passed it.
Rule 4: A task leaves when it says that it is idle or has no splits, and when rule 5 lets it go. At the
        end of that round the minimum is taken twice: with the task, so that its last value is published, and without
        it, so that it holds nobody. A task that has left and says more than before is counted once more in this way.
        While rule 2 keeps everything from being published, those who leave stay counted, unless rule 5 lets them go.
        When nobody is counted any more, the minimum over the idle tasks is published: none of them has rows below it.
        So the last values of a source that drains are published, and the order of the answers within a round changes
        nothing.
Rule 5: A source expects a number of tasks: the largest that a live task says; where none lives, the largest that one
        of those said that are away. A task is away once it has deregistered or was lost. While fewer live than are
        expected, every task that is away counts with the largest low watermark that it has said, also if it was idle;
        and while live tasks and tasks that are away are together fewer than expected, nothing is published, because
        rows of a task that never came may be anywhere. Once as many live as are expected, those that are away are let
        go and forgotten: the source is complete without them. A task that is away is *excused* when its splits had all
        ended, when a person says so, or when others waited for it for longer than it asked for. It is let go, too, and
        is not missed.
Rule 6: A restart may lose the newest that a task has said, and an older message may arrive after it. So, until a task
        has answered a question that was asked since the restart, its low watermark counts, and its wish to be left out
        does not; and while this holds for a task that was left out, no quorum ends a round.
Rule 7: A task that says it is idle, and how patient it is, leaves once others delivered for longer than that since it
        had rows (``silence.py``). Until then it counts, also if it had no split before, and was left out for that. So
        when the rows of all tasks stay away, nobody is passed by the first that has some again.

Example: tasks a and b; what each says in a round, and what is published at its end.

    round  a says    b says    published
    1      10                  nothing: b has never said a low watermark (rule 2)
    2      12        5         5
    3      30        20, idle  30: b counts with 20, which gives 20, and is left out, which gives 30 (rule 4)
    4      40, idle            40: nobody is counted any more; b has said that it is idle, and counts no more with 20
    5                60, idle  60: b says more than before, so it is counted once more; a is idle and holds nobody
    6      90        55        60: both are counted again, b with 60, the largest it has said; now b holds

Source: FLINK-4576; section 7.2 of the MillWheel paper.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lowmark.watermark.protocol import LeftOut, NotifyNewLowWatermark, ReplyLowWatermark, RetrieveLowWatermark
from lowmark.watermark.splits.coalescer import Advance, Coalescer
from lowmark.watermark.splits.history import History
from lowmark.watermark.state import SplitState

from .silence import SourceSilence
from .snapshot import EncodedParts, json_object, to_json

_QUESTIONS = 64  # of this life, by whose time an answer is known
_MINUTE_US = 60_000_000


def _nobody_asks() -> None: ...


@dataclass(slots=True)
class Answer:
    """What is known of one task, beside its low watermark.

    Attributes:
        order: sequence and time of the newest reply, and what decides between two of the same; None before any.
        left_out: why it asked to be left out, by its newest reply.
        next_wanted_us: by its newest reply.
        counted: in the minimum, or holding it; after it left, for as long as rules 4 and 5 say.
        passed: it was left out as idle, and still is by the end of the last round.
        expected: how many tasks its source has, by its registration.
        heard_us: when it last had rows, by the coordinator's clock; None: nobody knows.
        patience_us: by its newest reply.
        away_since_us: when it deregistered or was lost, by the coordinator's clock; None: it lives.
        away_limit_us: how long others wait for it while it is away, by its registration; None: until it is back.
        waited_us: how long they have waited; time in which nobody asked is not counted.
        excused: it is away, holds nobody, and is not missed.
    """

    order: tuple[int, ...] | None = None
    left_out: LeftOut | None = None
    next_wanted_us: int | None = None
    counted: bool = True
    passed: bool = False
    expected: int = 1
    heard_us: int | None = None
    patience_us: int | None = None
    away_since_us: int | None = None
    away_limit_us: int | None = None
    waited_us: int = 0
    excused: bool = False

    @property
    def live(self) -> bool:
        """Whether it is asked."""
        return self.away_since_us is None


class SourceRounds:
    """The tasks of one source. A message costs O(1), a round O(n).

    Args:
        job_id: the job; goes into messages.
        source_id: the source; goes into messages.
        quorum: the share of live tasks that must have answered for a round to end, more than 0, at most 1.
        low_us: a low watermark published before; never gone below.
        on_change: called when a snapshot would be another than before.

    >>> rounds = SourceRounds("job", "orders")
    >>> rounds.begin("0", None), rounds.begin("1", 40)
    (None, None)
    >>> [question.task_id for question in rounds.ask(now_us=7, deadline_us=30)]
    ['0', '1']
    >>> rounds.take(ReplyLowWatermark("job", "orders", "1", 7, 50), now_us=7), rounds.complete
    (None, False)
    >>> rounds.take(ReplyLowWatermark("job", "orders", "0", 7, 30), now_us=7), rounds.complete
    (None, True)
    >>> [(told.task_id, told.new_low_watermark) for told in rounds.end(now_us=8, listened_us=8)]
    [('0', 30), ('1', 30)]
    """

    def __init__(
        self,
        job_id: str,
        source_id: str,
        *,
        quorum: float = 1.0,
        low_us: int | None = None,
        on_change: Callable[[], None] = _nobody_asks,
    ) -> None:
        self.job_id, self.source_id, self._quorum = job_id, source_id, quorum
        self._coalescer = Coalescer(low_us)
        self._answers: dict[str, Answer] = {}
        self._leaving: set[str] = set()  # counted for the last time
        self._live = 0
        self._unanswered: set[str] = set()
        self.asked_at_us: int | None = None
        """The timestamp of the open round, larger than that of any before; None between rounds."""
        self.deadline_us: int | None = None
        """When the open round ends at the latest; None between rounds."""
        self._last_asked_us: int | None = None
        self._waited_until_us: int | None = None  # for those that are away, by the clock of listening
        self._unconfirmed: set[str] = set()  # restored, and have not answered a question since (rule 6)
        self._doubtful: set[str] = set()  # those of them that were left out
        self._questions_us: deque[int] = deque(maxlen=_QUESTIONS)
        self._silence = SourceSilence()
        self.rose_at_us: int | None = None
        """When the low watermark rose last."""
        self.returned_late = 0
        """Times a task came in below the low watermark."""
        self.history: History[str] = History()
        """The low watermark of the last hour, and the tasks that held it."""
        self._on_change = on_change
        self._encoded_tasks: EncodedParts[str] = EncodedParts(self._encoded_task)

    # -- what is known

    @property
    def low_us(self) -> int | None:
        """The published low watermark, microseconds of event time; never decreases."""
        return self._coalescer.low_us

    @property
    def holder(self) -> str | None:
        """The task that keeps it from rising; None if none does."""
        holder = self._coalescer.holder
        return None if holder is None else str(holder)

    @property
    def expected(self) -> int:
        """How many tasks the source has (rule 5). O(n)."""
        live = [answer.expected for answer in self._answers.values() if answer.live]
        return max(live or (answer.expected for answer in self._answers.values()), default=1)

    @property
    def missing(self) -> int:
        """How many of them never came. O(n)."""
        return max(0, self.expected - len(self._answers))

    @property
    def live(self) -> int:
        """How many tasks live."""
        return self._live

    @property
    def waited_for(self) -> int:
        """How many tasks count that are away. O(n)."""
        if self._live >= self.expected:
            return 0
        return sum(not answer.live and not answer.excused for answer in self._answers.values())

    @property
    def is_over(self) -> bool:
        """Whether nobody is there, and nobody is waited for who said that the source has several tasks. O(n)."""
        return not self._live and (self.expected == 1 or all(answer.excused for answer in self._answers.values()))

    @property
    def waited_minutes(self) -> int:
        """For how many whole minutes others have waited for tasks that set a limit, summed up. O(n)."""
        return sum(answer.waited_us // _MINUTE_US for answer in self._answers.values())

    @property
    def answers(self) -> Mapping[str, Answer]:
        """Every task by its id, in the order in which they came."""
        return self._answers

    @property
    def unanswered(self) -> frozenset[str]:
        """The tasks that the open round still waits for."""
        return frozenset(self._unanswered)

    @property
    def idles(self) -> bool:
        """Whether a round would have nothing to do: nobody is there to be asked, nobody leaves."""
        return not self._live and not self._leaving

    @property
    def complete(self) -> bool:
        """Whether the open round may end."""
        if self.asked_at_us is None:
            return False
        if not self._unanswered:
            return True
        return not self._doubtful and (self._live - len(self._unanswered)) / self._live >= self._quorum

    def task_low_us(self, task_id: str) -> int | None:
        """The largest low watermark this run of the task said."""
        return self._coalescer.watermark_us(task_id)

    def waits_for_flow(self, task_id: str) -> bool:
        """Whether a task counts that says it is idle, for others did not deliver for long enough meanwhile."""
        answer = self._answers[task_id]
        idle = answer.live and answer.left_out is LeftOut.IDLE and answer.patience_us is not None
        return idle and answer.counted and not self._silence.runs_out(answer.heard_us)

    def waits_for(self, task_id: str) -> bool:
        """Whether a task counts that is away. O(n)."""
        answer = self._answers[task_id]
        return not answer.live and not answer.excused and self._live < self.expected

    def state(self, task_id: str) -> SplitState:
        """PENDING (has not said a low watermark), ACTIVE, IDLE (is left out, or asks to be) or FINISHED (excused)."""
        answer = self._answers[task_id]
        if answer.excused:
            return SplitState.FINISHED
        if answer.live and answer.left_out is not None:
            return SplitState.IDLE
        return SplitState.PENDING if self.task_low_us(task_id) is None else SplitState.ACTIVE

    # -- what happens

    def begin(
        self, task_id: str, low_us: int | None, expected: int = 1, away_limit_us: int | None = None
    ) -> int | None:
        """A run of a task begins; of the one before nothing is kept.

        Args:
            task_id: which.
            low_us: the low watermark it begins with, or None.
            expected: how many tasks the source has.
            away_limit_us: how long others wait for it once it is away; None: until it is back.

        Returns:
            How far it comes in below the low watermark; None if it does not.
        """
        self._forget(task_id)
        self._answers[task_id] = Answer(expected=expected, away_limit_us=away_limit_us)
        self._live += 1
        state = SplitState.PENDING if low_us is None else SplitState.ACTIVE
        self._coalescer.assign(task_id, state=state, watermark_us=low_us)
        self._changed(task_id)
        return self._behind(low_us)

    def take(self, reply: ReplyLowWatermark, now_us: int) -> int | None:
        """Take a reply in: any, late ones and repeated ones too.

        Returns:
            How far a task that was left out, or is new, comes in below the low watermark; None if it does not.
        """
        task_id, low_us = reply.task_id, reply.current_low_watermark
        answer, before = self._answers[task_id], self.state(task_id)
        self._changed(task_id)
        if reply.timestamp in self._questions_us:
            self._confirm(task_id)
        confirmed = task_id not in self._unconfirmed
        if confirmed and self.asked_at_us is not None and reply.timestamp >= self.asked_at_us:
            self._unanswered.discard(task_id)
        order = _order(reply)
        news = confirmed and (answer.order is None or order > answer.order)
        if news:
            answer.order, answer.left_out, answer.next_wanted_us = order, reply.left_out, reply.next_wanted_us
            answer.patience_us = reply.patience_us
        if reply.silent_us is not None or reply.left_out is None:
            heard_us = now_us - (reply.silent_us or 0)
            answer.heard_us = heard_us if answer.heard_us is None else max(answer.heard_us, heard_us)
            self._silence.delivered(heard_us)
        if low_us is not None:
            seen_us = self.task_low_us(task_id)
            answer.counted |= seen_us is None or low_us > seen_us  # rule 4, also if it is left out already
            self._coalescer.report(task_id, low_us)  # which makes it active
        elif answer.left_out is None:
            self._coalescer.wake(task_id)
        self._place(task_id, answer)
        came_in = before in (SplitState.PENDING, SplitState.IDLE) and self.state(task_id) is SplitState.ACTIVE
        return self._behind(self.task_low_us(task_id)) if came_in and news else None

    def leave(self, task_id: str, now_us: int) -> None:
        """The run of a live task is over: it has deregistered, or was lost. From now on it is away (rule 5)."""
        answer = self._answers[task_id]
        self._changed(task_id)
        self._live -= 1
        answer.away_since_us, answer.excused = now_us, answer.left_out is LeftOut.FINISHED
        self._confirm(task_id)
        self._unanswered.discard(task_id)
        if not answer.excused:
            self._count(task_id)
        if answer.counted:
            self._leaving.add(task_id)

    def excuse(self, task_id: str) -> None:
        """A task that is away is not waited for any more, because a person says so."""
        self._changed(task_id)
        self._answers[task_id].excused = True

    # -- rounds

    def ask(self, now_us: int, deadline_us: int) -> list[RetrieveLowWatermark]:
        """Begin a round, or ask those again who have not answered the open one: questions may be lost.

        The question of a round has one timestamp, however often it is asked: now, or a little later where the
        clock went back over a restart.
        """
        if self.asked_at_us is None:
            self.asked_at_us = now_us if self._last_asked_us is None else max(now_us, self._last_asked_us + 1)
            self._last_asked_us, self.deadline_us = self.asked_at_us, deadline_us
            self._questions_us.append(self.asked_at_us)
            self._changed()
            self._unanswered = {task_id for task_id, answer in self._answers.items() if answer.live}
        return [self._question(task_id, self.asked_at_us) for task_id in sorted(self._unanswered)]

    def ask_newcomer(self, task_id: str) -> list[RetrieveLowWatermark]:
        """The open round, if there is one, waits for a task that came after it began."""
        if self.asked_at_us is None:
            return []
        self._unanswered.add(task_id)
        return [self._question(task_id, self.asked_at_us)]

    def end(self, now_us: int, listened_us: int) -> list[NotifyNewLowWatermark]:
        """End the open round: publish the minimum if it rose. Every live task is told, in the order of their ids.

        Args:
            now_us: now, by the coordinator's clock.
            listened_us: now, by the clock of listening (``Membership.listened_us``).
        """
        self.asked_at_us = self.deadline_us = None
        self._unanswered = set()
        self._silence.be_as_patient_as(answer.patience_us for answer in self._answers.values())
        self._wait_for_those_away(listened_us)
        away = {task_id for task_id, answer in self._answers.items() if not answer.live}
        self._leaving -= away  # they counted until here, or do so for as long as they are waited for
        if self.missing:
            return []
        self._count_those_with_splits_again()
        leaving = {task_id for task_id in self._leaving if not self.waits_for_flow(task_id)}
        complete = self._live >= self.expected
        over = {task_id for task_id in away if complete or self._answers[task_id].excused}
        self._let_go({task_id for task_id in leaving | over if self.task_low_us(task_id) is None})
        advance = self._coalescer.advance()
        blocked = bool(self._coalescer.pending)  # then nobody who spoke is in the way, and its value may be needed
        self._let_go((over if blocked else leaving | over) & self._answers.keys())
        advance = self._coalescer.advance() or advance
        if self._coalescer.holder is None:
            advance = self._advance_over_idle() or advance
        if advance is None:
            return []
        self._changed()
        self.rose_at_us = now_us
        self.history.rose(now_us, advance.after_us, self.holder)
        live = sorted(task_id for task_id, answer in self._answers.items() if answer.live)
        return [self.notice(task_id, advance.after_us, now_us) for task_id in live]

    def notice(self, task_id: str, low_us: int, now_us: int) -> NotifyNewLowWatermark:
        """What a task is told of the low watermark."""
        return NotifyNewLowWatermark(self.job_id, self.source_id, task_id, now_us, low_us)

    # -- restart

    def encode(self, most: int) -> int:
        """Do a part of the work of ``encoded``: up to so many tasks. Returns how many it were."""
        tasks = len(self._encoded_tasks.waiting(most))
        self._encoded_tasks.encode(tasks)
        return tasks

    def encoded(self) -> str:
        """All but the open round and the history, as JSON. Deterministic.

        Encodes only the tasks that were changed since the last time.
        """
        return json_object(self._own_snapshot(), tasks=self._encoded_tasks.text())

    @classmethod
    def restore(
        cls, data: Mapping[str, Any], *, quorum: float, on_change: Callable[[], None] = _nobody_asks
    ) -> SourceRounds:
        """The rounds that ``encoded`` was called on, between two rounds: who was asked is asked anew.

        Raises:
            KeyError, TypeError, ValueError: the data is not what ``encoded`` gives.
        """
        rounds = cls(data["job_id"], data["source_id"], quorum=quorum, low_us=data["low_us"], on_change=on_change)
        rounds.rose_at_us, rounds.returned_late = data["rose_at_us"], data["returned_late"]
        rounds._last_asked_us = data["last_asked_us"]
        for saved in data["tasks"]:
            task_id = saved["task_id"]
            answer = rounds._answers[task_id] = Answer(
                order=None if saved["order"] is None else tuple(saved["order"]),
                left_out=None if saved["left_out"] is None else LeftOut(saved["left_out"]),
                next_wanted_us=saved["next_wanted_us"],
                counted=saved["counted"],
                passed=saved["passed"],
                expected=saved["expected"],
                patience_us=saved["patience_us"],
                away_since_us=saved["away_since_us"],
                away_limit_us=saved["away_limit_us"],
                waited_us=saved["waited_us"],
                excused=saved["excused"],
            )
            if answer.live:
                rounds._unconfirmed.add(task_id)
                if answer.left_out is not None:
                    rounds._doubtful.add(task_id)
            rounds._live += answer.live
            if not answer.counted:
                state = SplitState.IDLE
            else:
                state = SplitState.PENDING if saved["low_us"] is None else SplitState.ACTIVE
                if not answer.live or answer.left_out is not None:
                    rounds._leaving.add(task_id)
            rounds._coalescer.assign(task_id, state=state, watermark_us=saved["low_us"])
            rounds._encoded_tasks.changed(task_id)
        rounds._changed()
        return rounds

    # -- how

    def _own_snapshot(self) -> dict[str, Any]:
        return {
            "job_id": self.job_id,
            "source_id": self.source_id,
            "low_us": self.low_us,
            "rose_at_us": self.rose_at_us,
            "last_asked_us": self._last_asked_us,
            "returned_late": self.returned_late,
        }

    def _task_snapshot(self, task_id: str) -> dict[str, Any]:
        answer = self._answers[task_id]
        return {
            "task_id": task_id,
            "low_us": self.task_low_us(task_id),
            "order": answer.order,
            "left_out": None if answer.left_out is None else answer.left_out.value,
            "next_wanted_us": answer.next_wanted_us,
            "counted": answer.counted,
            "passed": answer.passed,
            "expected": answer.expected,
            "patience_us": answer.patience_us,
            "away_since_us": answer.away_since_us,
            "away_limit_us": answer.away_limit_us,
            "waited_us": answer.waited_us,
            "excused": answer.excused,
        }

    def _encoded_task(self, task_id: str) -> str | None:
        return to_json(self._task_snapshot(task_id)) if task_id in self._answers else None

    def _changed(self, task_id: str | None = None) -> None:
        """A snapshot would be another now: of this task, and in any case of the source."""
        if task_id is not None:
            self._encoded_tasks.changed(task_id)
        self._on_change()

    def _confirm(self, task_id: str) -> None:
        """What it says is from now on what it says last."""
        self._unconfirmed.discard(task_id)
        self._doubtful.discard(task_id)

    def _advance_over_idle(self) -> Advance | None:
        """Nobody takes part: publish what all who are left out, and live, have said."""
        idle = [task_id for task_id in self._answers if self.state(task_id) is SplitState.IDLE]
        lows = [low_us for task_id in idle if (low_us := self.task_low_us(task_id)) is not None]
        if not lows or (self.low_us is not None and min(lows) <= self.low_us):
            return None
        for task_id in idle:
            if self.task_low_us(task_id) is not None:
                self._coalescer.wake(task_id)
        advance = self._coalescer.advance()
        for task_id in idle:
            self._coalescer.idle(task_id)
        return advance

    def _wait_for_those_away(self, listened_us: int) -> None:
        """Others have waited since the last round for those who were away then; one who asked for less is excused."""
        since_us, self._waited_until_us = self._waited_until_us, listened_us if self._live else None
        if since_us is None:
            return
        for task_id, answer in self._answers.items():
            limit_us = answer.away_limit_us
            if answer.live or answer.excused or limit_us is None or task_id in self._leaving:
                continue
            answer.waited_us += listened_us - since_us
            answer.excused = answer.waited_us > limit_us
            self._changed(task_id)

    def _count_those_with_splits_again(self) -> None:
        """A task that was left out without splits says now that its splits are silent: it has some (rule 7)."""
        for task_id, answer in self._answers.items():
            if answer.passed and answer.left_out is not LeftOut.IDLE:
                answer.passed = False
                self._changed(task_id)
            elif answer.live and answer.left_out is LeftOut.IDLE and not answer.passed and not answer.counted:
                self._count(task_id)
                self._leaving.add(task_id)

    def _count(self, task_id: str) -> None:
        """Take a task that was left out into the minimum again, with what it has said."""
        answer = self._answers[task_id]
        if not answer.counted:
            answer.counted = True
            self._changed(task_id)
            self._coalescer.wake(task_id)

    def _let_go(self, task_ids: set[str]) -> None:
        """Leave these out of the minimum from now on; forget those that are away, unless they would be missed."""
        complete = self._live >= self.expected
        for task_id in sorted(task_ids):
            answer = self._answers[task_id]
            if not answer.live and complete:
                self._forget(task_id)
            elif answer.counted:
                answer.counted, answer.passed = False, answer.left_out is LeftOut.IDLE
                self._changed(task_id)
                self._coalescer.idle(task_id)
        self._leaving -= task_ids

    def _forget(self, task_id: str) -> None:
        answer = self._answers.pop(task_id, None)
        if answer is None:
            return
        self._changed(task_id)
        self._live -= answer.live
        self._leaving.discard(task_id)
        self._confirm(task_id)
        self._unanswered.discard(task_id)
        self._coalescer.remove(task_id)

    def _place(self, task_id: str, answer: Answer) -> None:
        """Count the task, or let it leave, as its newest reply says. The coalescer may have woken it meanwhile."""
        if answer.left_out is None:
            answer.counted = True
            self._leaving.discard(task_id)
        elif answer.counted:
            self._leaving.add(task_id)
        else:
            self._coalescer.idle(task_id)  # old news of it

    def _behind(self, low_us: int | None) -> int | None:
        if low_us is None or self.low_us is None or low_us >= self.low_us:
            return None
        self.returned_late += 1
        return self.low_us - low_us

    def _question(self, task_id: str, asked_at_us: int) -> RetrieveLowWatermark:
        return RetrieveLowWatermark(self.job_id, self.source_id, task_id, asked_at_us)


def _order(reply: ReplyLowWatermark) -> tuple[int, ...]:
    """Newest last. Of two replies of the same number the one that holds more counts: any rule does, if it is one."""
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
