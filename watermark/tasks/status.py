"""The status of the coordinator of all sources: frozen data, with the reasons in words."""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from lowmark.watermark.duration import format_duration_us, rough_duration_us
from lowmark.watermark.moment import format_time_us
from lowmark.watermark.printable import and_others
from lowmark.watermark.protocol import LeftOut, TaskId
from lowmark.watermark.splits.history import Held
from lowmark.watermark.splits.status import need
from lowmark.watermark.state import SplitState

from .alignment import GroupStatus
from .leases import Leases
from .rounds import SourceRounds


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """One task of a source.

    The state is PENDING (has not reported a low watermark), ACTIVE, IDLE (is left out, or is silent as all others are,
    and waited for) or FINISHED (is away and excused). A task that is away is PENDING or ACTIVE while it counts.
    """

    task: TaskId
    mark: str  # of its run, 12 characters; not the token, because a token would let others speak for the task
    state: SplitState
    low_watermark_us: int | None  # the largest that it reported, also while it is left out
    lease_left_us: int | None  # how long it may still be silent; None once it is away
    waited_for: bool  # whether the open round waits for its answer
    group: str | None
    why: str  # completes "task x is <state>: <why>"
    away_since_us: int | None = None  # when it deregistered or was lost; None: it lives
    complete_until_us: int | None = None  # the sink of its query has everything up to this time; None: not known


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """One source."""

    job_id: str
    source_id: str
    low_watermark_us: int | None
    holder: TaskId | None  # the task that keeps the low watermark from rising
    why: str  # why the low watermark stands, one sentence
    since_us: int | None  # when the low watermark last rose
    round_since_us: int | None  # when the open round began; None between rounds
    returned_late: int  # how often a task came in below the low watermark
    held: tuple[Held[str], ...]  # the holders of the last hour, newest first, by task id
    tasks: tuple[TaskStatus, ...]  # sorted; with a limit by need of attention
    tasks_not_shown: int = 0
    states: dict[str, int] = field(default_factory=dict)  # number of all tasks by state; every state is there
    expected: int = 1
    missing: int = 0  # expected tasks that never came
    away: int = 0  # tasks that are away and waited for
    # The sinks of all tasks have everything up to this time; None: not known for a task, or an expected one never came.
    complete_until_us: int | None = None
    least_complete: TaskId | None = None  # the task whose sink is complete the least far


@dataclass(frozen=True, slots=True)
class CoordinatorStatus:
    """The status of all sources and groups, sorted."""

    sources: tuple[SourceStatus, ...]
    groups: tuple[GroupStatus, ...]
    lost: int  # tasks given up since the first start


def run_mark(token: str) -> str:
    """Make a mark of a run token for people: equal for equal tokens, and useless for speaking as the task.

    >>> run_mark("run-1")
    '4e65d3fbe8ad'
    """
    # A journal may hold text that no message can have.
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def source_status(
    rounds: SourceRounds, leases: Leases, group_of: Mapping[TaskId, str], now_us: int, limit: int | None
) -> SourceStatus:
    """The status of one source. O(n log n), with a limit O(n)."""
    complete = rounds.live >= rounds.expected  # O(n), so not for each task

    def task_status(task: TaskId) -> TaskStatus:
        alive = task in leases
        return TaskStatus(
            task=task,
            mark=run_mark(leases.token(task)) if alive else "",
            state=rounds.state(task.task_id),
            low_watermark_us=rounds.task_low_us(task.task_id),
            lease_left_us=leases.lease_left_us(task, now_us) if alive else None,
            waited_for=task.task_id in rounds.unanswered,
            group=group_of.get(task),
            why=_task_why(rounds, task.task_id, complete=complete),
            away_since_us=rounds.answers[task.task_id].away_since_us,
            complete_until_us=rounds.answers[task.task_id].complete_until_us,
        )

    states = {task_id: rounds.state(task_id) for task_id in rounds.answers}
    away = rounds.waited_for  # first, because a person may have to end the wait
    needs = ((each not in away, need(state, rounds.task_low_us(each)), each) for each, state in states.items())
    shown = sorted(states) if limit is None else [task_id for *_, task_id in heapq.nsmallest(limit, needs)]
    tasks = [TaskId(rounds.job_id, rounds.source_id, task_id) for task_id in shown]
    counts = Counter(states.values())
    least = rounds.least_complete
    until_us = None if least is None or rounds.missing else rounds.answers[least].complete_until_us
    return SourceStatus(
        job_id=rounds.job_id,
        source_id=rounds.source_id,
        low_watermark_us=rounds.low_us,
        holder=None if rounds.holder is None else TaskId(rounds.job_id, rounds.source_id, rounds.holder),
        why=_source_why(rounds, counts),
        since_us=rounds.rose_at_us,
        round_since_us=rounds.asked_at_us,
        returned_late=rounds.returned_late,
        held=rounds.history.held(now_us),
        tasks=tuple(map(task_status, tasks)),
        tasks_not_shown=len(states) - len(tasks),
        states={state.value: counts[state] for state in SplitState},
        expected=rounds.expected,
        missing=rounds.missing,
        away=len(away),
        complete_until_us=until_us,
        least_complete=None if least is None else TaskId(rounds.job_id, rounds.source_id, least),
    )


def _source_why(rounds: SourceRounds, states: Counter[SplitState]) -> str:
    holder = rounds.holder
    if rounds.missing:
        return f"{rounds.missing} of {rounds.expected} expected tasks did not register yet."
    if holder is not None and not rounds.live:
        held = f"task {holder} has been away since {_since(rounds, holder)}, and held it last"
        return f"no task lives, and the low watermark stays; {held}."
    if holder is not None and holder in rounds.waited_for:
        missed = f"{rounds.expected} tasks are expected and {rounds.live} live"
        return f"task {holder} has been away since {_since(rounds, holder)} and is waited for: {missed}."
    if holder is None:
        return f"every task ({states.total()}) is left out, and the low watermark stays."
    low_us = rounds.task_low_us(holder)
    if low_us is None:
        return f"task {holder} has not said a low watermark yet{and_others(states[SplitState.PENDING] - 1)}."
    if rounds.waits_for_flow(holder):
        return f"task {holder} has the smallest low watermark, and {_silence(rounds, holder)}."
    if rounds.low_us is not None and low_us < rounds.low_us:
        behind = rough_duration_us(rounds.low_us - low_us)
        return f"task {holder} came in {behind} below the low watermark, which does not go back."
    return f"task {holder} has the smallest low watermark of {states[SplitState.ACTIVE]} tasks that take part."


def _since(rounds: SourceRounds, task_id: str) -> str:
    return format_time_us(rounds.answers[task_id].away_since_us)


def _silence(rounds: SourceRounds, task_id: str) -> str:
    patience_us = rounds.answers[task_id].patience_us
    while_us = "long enough" if patience_us is None else format_duration_us(patience_us)
    return f"its stream is silent; it counts until others have delivered for {while_us}"


def _task_why(rounds: SourceRounds, task_id: str, *, complete: bool) -> str:
    answer = rounds.answers[task_id]
    if answer.excused:
        why = "nobody waits for it any more" if answer.given_up else "all its splits had ended"
        return f"it has been away since {_since(rounds, task_id)}, and {why}"
    if not answer.live:
        if not rounds.live:
            return f"it has been away since {_since(rounds, task_id)}; no task lives that would wait for it"
        until = "until it is back"
        if answer.away_limit_us is not None:
            left_us = max(0, answer.away_limit_us - answer.waited_us)
            until = f"{until}, and for {rough_duration_us(left_us)} more at most"
        waits = "the source is complete without it" if complete else f"the others wait for it {until}"
        return f"it has been away since {_since(rounds, task_id)}; {waits}"
    if answer.left_out is LeftOut.WITHOUT_SPLITS:
        return "it has no splits"
    if answer.left_out is LeftOut.FINISHED:
        return "all its splits have ended"
    if rounds.waits_for_flow(task_id):
        return _silence(rounds, task_id)
    if answer.left_out is LeftOut.IDLE:
        return "its splits are quiet and caught up"
    return "it takes part" if rounds.task_low_us(task_id) is not None else "it has not said a low watermark yet"
