"""Cooperation of runs: alignment groups, and low watermarks shared by applications.

    in a group       the run takes part in the group's minimum. A source of ours obeys the group's cap; Spark cannot be
                     told to read a wrapped stream more slowly, and the group's status says so
    of a named job   all runs of one job and stream name share one low watermark across applications: the heartbeat
                     carries the value that the coordinator published, never the value of this run alone

Groups are kept in the driver, unless the service was given the address of a shared coordinator (`lowmark serve`). A
query stays one task over all its restarts, because Spark's checkpoint keeps the query's id; so a restarted run
replaces the previous run at once. Belongs to the service's loop.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from lowmark.integration.run_status import Alignment, CoordinatorLink
from lowmark.sources.planning.peer import Guidance
from lowmark.watermark import DisagreeingGroup, SplitState, TaskId, format_duration_us, format_time_us
from lowmark.watermark.duration import rough_duration_us
from lowmark.watermark.protocol import LeftOut, ReplyLowWatermark, TaskRegistered
from lowmark.watermark.strategy import AlignmentParams
from lowmark.watermark.tasks.alignment import AlignmentGroup, GroupStatus, MemberStatus
from lowmark.watermark.tasks.cap import Cap, CapKind

from .stream import Stream
from .stream_run import StreamRun

if TYPE_CHECKING:
    from lowmark.integration.coordinator.client import CoordinatorClient

SHARED_STEP_US = 1_000_000
"""How often a heartbeat asks for the low watermark of a job while its own query has nothing to do."""


class Cooperation:
    """Runs as tasks of a coordinator.

    Args:
        client: the link to a coordinator elsewhere; None: groups are kept in this driver.
        job, job_queries: as in `LowWatermarkService`.
        job_away_us: its `job_away`, in microseconds.
    """

    def __init__(
        self,
        now_us: Callable[[], int],
        client: CoordinatorClient | None = None,
        job: str | None = None,
        job_queries: int = 1,
        job_away_us: int | None = None,
    ) -> None:
        assert job is None or client is not None, "a job is shared through a coordinator"
        self._now_us, self.job, self._job_queries, self._job_away_us = now_us, job, job_queries, job_away_us
        self._client, self._own_groups = client, _OwnGroups(now_us)
        self._others: _OwnGroups | CoordinatorClient = self._own_groups if client is None else client
        self._tasks: dict[str, TaskId] = {}  # by the run's token

    def shares(self, stream: Stream) -> bool:
        return self.job is not None and stream.strategy.emits

    def takes_part(self, stream: Stream) -> bool:
        return self.shares(stream) or (stream.strategy.emits and stream.strategy.alignment is not None)

    def report(self, run: StreamRun) -> bool:
        """Report the low watermark of a run, a task from the time on when its query's id is known.

        Returns whether the shared low watermark of the run rose.
        """
        if run.query_id is None or run.ended or not self.takes_part(run.stream):
            return False
        if run.token not in self._tasks:
            self._begin(run, run.query_id)
        task = self._tasks[run.token]
        low_us = run.sure_low_us if run.shares else run.watermarks.low_watermark_us  # a cap makes no rows late
        heard_us, patience_us = run.watermarks.heard_us, run.watermarks.patience_us
        if not run.shares:
            heard_us = patience_us = None  # a group uses neither
        reply = ReplyLowWatermark(
            *(*task.parts, self._now_us(), low_us, run.token, _left_out(run), run.splits.next_wanted_us),
            patience_us=patience_us,
            complete_until_us=run.complete_until_us,
        )
        self._others.report(reply, heard_us)
        client = self._client
        return run.shares and client is not None and run.job_low.rise(client.low_us(task), self._now_us())

    def guidance(self, stream: Stream, run: StreamRun | None) -> Guidance:
        """Return how far a stream may be read now. A stream of a group is held until the run is known as a task."""
        if stream.strategy.alignment is None or not stream.strategy.emits:
            return Guidance()
        if run is None or run.token not in self._tasks:
            return Guidance(hold=True)
        cap = self._others.cap(self._tasks[run.token]) or Cap.hold()
        holds = cap.kind is CapKind.HOLD
        if not stream.claims:
            # While the cap holds, a stream may read a first batch to report where it begins.
            paused = (split for split, _, us in run.watermarks.standings() if not cap.allows(us))
            begun = run.watermarks.low_watermark_us is not None
            return Guidance(hold=holds and begun, paused=frozenset(map(stream.name_of, paused)))
        if cap.us is None:
            return Guidance(hold=holds)  # a claim reports where the stream begins without reading
        return Guidance(read_before_us=stream.strategy.first_time_beyond(cap.us + run.watermarks.extra_bound_us))

    def end(self, run: StreamRun) -> None:
        """End the task of a run whose query has ended: its group stops waiting, its job waits as `job_queries` says."""
        task = self._tasks.pop(run.token, None)
        if task is not None and task not in self._tasks.values():  # otherwise a restart has replaced the run already
            self._others.deregister(task)

    def wake_at_us(self, run: StreamRun, wake_at_us: int | None) -> int | None:
        """When the heartbeat must ask again: other tasks may raise a shared low watermark at any time."""
        alignment = run.stream.strategy.alignment if run.stream.reads else None
        if not run.shares and alignment is None:
            return wake_at_us
        step_us = self._now_us() + (SHARED_STEP_US if alignment is None else alignment.update_interval_us)
        return step_us if wake_at_us is None else min(wake_at_us, step_us)

    def worth_waiting(self, run: StreamRun) -> bool:
        """Whether the newest report of the run may soon raise the low watermark of its job."""
        low_us = run.sure_low_us
        return (
            run.shares
            and self._client is not None
            and self._client.connected
            and low_us is not None
            and not run.splits.has_backlog
            and (run.low_watermark_us is None or run.low_watermark_us < low_us)
        )

    def groups(self) -> tuple[GroupStatus, ...]:
        """Return the groups that are kept in this driver, by name."""
        return self._own_groups.statuses()

    def link(self, run: StreamRun) -> CoordinatorLink | None:
        """The link of this run to a coordinator elsewhere, None without one."""
        client = self._client
        if client is None or not self.takes_part(run.stream):
            return None
        holds = run.shares or (run.stream.reads and run.stream.strategy.alignment is not None)
        return CoordinatorLink(client.address, client.connected, client.since_us, client.why, holds)

    def explain(self, run: StreamRun) -> str | None:
        """Say how other queries affect this run; None: no other query does."""
        if run.token not in self._tasks:
            return None
        client = self._client
        if client is None:
            return self._explain_group(run)
        where = f"the coordinator at {client.address}"
        if not client.connected:
            held = "the low watermark is held" if run.shares else "the group goes on without this stream"
            return f"  others {where} does not answer ({client.why}): {held} meanwhile"
        if not run.shares:
            return f"  group  {where} keeps it: {explained_by(client.address)}"
        alone = format_time_us(run.watermarks.low_watermark_us)
        return (
            f'  shared by all queries of job "{self.job}" through {where}; these splits alone would allow {alone}. '
            f"{explained_by(client.address)} names the query that holds it, even if this query is away"
        )

    def _explain_group(self, run: StreamRun) -> str:
        status, member = self._own_groups.standing(self._tasks[run.token])
        ahead = "" if member.ahead_us is None else f"; this stream is {rough_duration_us(member.ahead_us)} ahead of it"
        obeys = (
            "It is read no further than the group allows"
            if run.stream.reads
            else "A wrapped stream takes part in the minimum, and Spark cannot be told to read it more slowly"
        )
        return f'  group  "{status.group}": its minimum is {format_time_us(status.minimum_us)}{ahead}. {obeys}'

    def alignment(self, run: StreamRun) -> Alignment | None:
        """The alignment of this run, None if the run is in no group."""
        params = run.stream.strategy.alignment
        task = self._tasks.get(run.token)
        if params is None or task is None:
            return None
        if self._client is not None:
            cap = self._client.cap(task)
            return Alignment(params.group, params.max_drift_us, cap, run.stream.reads, kept_at=self._client.address)
        status, member = self._own_groups.standing(task)
        return Alignment(
            group=params.group,
            max_drift_us=params.max_drift_us,
            cap=member.cap,
            throttled=member.throttled,
            minimum_us=status.minimum_us,
            ahead_us=member.ahead_us,
            waiting=member.waiting,
            why=member.why,
        )

    # -- how

    def _begin(self, run: StreamRun, query_id: str) -> None:
        ids = (query_id, run.stream.name, "0") if self.job is None else (self.job, run.stream.name, query_id)
        task = TaskId(*ids)
        registration = TaskRegistered(
            task,
            token=run.token,
            low_watermark_us=run.job_low.low_us,
            alignment=run.stream.strategy.alignment,
            throttled=run.stream.reads,
            expected_tasks=1 if self.job is None else self._job_queries,
            away_limit_us=None if self.job is None else self._job_away_us,
        )
        self._others.register(registration)
        self._tasks[run.token] = task  # last, because a group refuses other parameters until their last member is gone


class _OwnGroups:
    """Groups kept in the driver, with the methods of a `CoordinatorClient` that groups need; no message can be lost."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._groups: dict[str, AlignmentGroup] = {}
        self._group_of: dict[TaskId, AlignmentGroup] = {}

    def register(self, registration: TaskRegistered) -> None:
        """Join the group that the task wants. A restarted task stays the member that it was, or changes its group."""
        task, alignment = registration.task, registration.alignment
        assert alignment is not None, "without a coordinator, only streams of a group take part"
        group = self._groups.setdefault(alignment.group, AlignmentGroup(alignment.group))
        group.join(task, alignment, now_us=self._now_us(), throttled=registration.throttled)
        before = self._group_of.get(task)
        if before is not None and before is not group:
            before.leave(task)
        self._group_of[task] = group

    def report(self, reply: ReplyLowWatermark, _heard_us: int | None) -> None:
        """Count a report at once, and announce a cap when one is due."""
        task, now_us = reply.task, self._now_us()
        group = self._group_of[task]
        if reply.left_out is None:
            group.report(task, reply.current_low_watermark, at_us=now_us, next_wanted_us=reply.next_wanted_us)
        else:
            group.idle(task, at_us=now_us)
        group.announce(now_us)

    def deregister(self, task: TaskId) -> None:
        self._group_of.pop(task).leave(task)

    def cap(self, task: TaskId) -> Cap | None:
        """Return the cap that holds now, which may be newer than the last announced cap."""
        return self._group_of[task].cap()

    def standing(self, task: TaskId) -> tuple[GroupStatus, MemberStatus]:
        status = self._group_of[task].status(only=task)
        return status, status.members[0]

    def statuses(self) -> tuple[GroupStatus, ...]:
        """The status of every group that has ever had a member, by name."""
        return tuple(self._groups[name].status() for name in sorted(self._groups))


def explained_by(address: str) -> str:
    """The command that a hint names for the coordinator at an address.

    >>> explained_by("unix:/run/my jobs/c.sock")
    "`lowmark explain --coordinator 'unix:/run/my jobs/c.sock'`"
    """
    return f"`lowmark explain --coordinator {shlex.quote(address)}`"


def check_group(stream: Stream, others: Iterable[Stream]) -> None:
    """Refuse a stream whose group has other parameters in an earlier stream. Raises `DisagreeingGroup`.

    A stream takes the place of the one with its name, which does not count.
    """
    wanted = stream.strategy.alignment
    for other in others:
        present = None if other.name == stream.name else other.strategy.alignment
        if wanted is not None and present is not None and wanted.group == present.group and wanted != present:
            raise DisagreeingGroup(wanted.group, stream.name, _shown(wanted), other.name, _shown(present))


def _left_out(run: StreamRun) -> LeftOut | None:
    states = run.watermarks.states
    live = sum(states.values()) - states[SplitState.FINISHED]
    if live == 0:
        return LeftOut.FINISHED if run.splits.complete else LeftOut.WITHOUT_SPLITS
    # The splits of a silent stream are not idle, yet the stream says IDLE: its group does not wait for it, and its job
    # waits for it only while all tasks are silent.
    silent = states[SplitState.IDLE] == live or run.watermarks.silent_since_us is not None
    return LeftOut.IDLE if silent else None


def _shown(params: AlignmentParams) -> str:
    drift, interval = format_duration_us(params.max_drift_us), format_duration_us(params.update_interval_us)
    return f"a drift of {drift}, announced every {interval}"
