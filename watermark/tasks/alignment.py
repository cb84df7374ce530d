"""An alignment group: tasks that keep within a drift of each other. The group decides how far each task may read.

Tasks join, report and leave; every interval the group announces a cap. The cap is the only output.

    cap            = min over the members that take part of what each allows      (saturating at 64 bits)
    a member allows  max(low watermark + max drift, the watermark that it wants next)

A member may read while its watermark is at most the cap; if the member knows its next row, its watermark after that
row must be at most the cap.

Rule 1: a member's newest report counts, by the time of the report. So reports may come twice or in any order, and the
        cap follows a low watermark that regressed: the cap is no low watermark and may go down.
Rule 2: an idle member does not take part, even while others have no rows, because the group holds reading back:
        waiting for one member would stop the other members, and no row is late by a cap. The group waits for a member
        that has not spoken: until that member speaks, the cap stays at most the cap of the moment when it joined.
Rule 3: a member allows at least the watermark of its next row. So no member waits for a gap in the data: when
        the next rows of all members lie beyond the cap, the cap rises to the smallest watermark of these rows.
Rule 4: announcements may be lost, repeated or overtaken, because each has the whole cap and a growing version. The
        receiver keeps the newest announcement.

In every state at least one member may go on: the member that allows no more than the cap.

Example: a drift of 10; member a stands at 100, member b at 130. They allow 110 and 140, so the cap is 110: a reads on,
b waits. Now the data have a gap: the next row of a makes its watermark 500, that of b 400. They allow 500 and 400, so
the cap is 400: b reads its row, and a waits until b stands at 490 (rule 3).

Source: FLIP-182, FLIP-217; FLINK-10887 (the watermark wanted next counts); ``connectors/synchronization.rs`` of Pathway
    (rule 3); FLINK-31632, 35157, 35933 and 40505 show the faults without rules 2 and 4.

One file, because each rule above changes the same cap.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec
from lowmark.watermark.duration import format_duration_us
from lowmark.watermark.errors import DisagreeingGroup, InvalidWatermark
from lowmark.watermark.moment import LEAST_US, MOST_US, none_first
from lowmark.watermark.protocol import TaskId
from lowmark.watermark.splits.status import need
from lowmark.watermark.state import SplitState
from lowmark.watermark.strategy import AlignmentParams

from .cap import Cap, CapAnnounced
from .snapshot import MarkRow, nobody_keeps, to_json


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One member of a group."""

    task: TaskId
    state: SplitState  # PENDING (has not spoken), ACTIVE or IDLE
    low_us: int | None  # also while it is idle
    next_wanted_us: int | None  # its watermark after the next row, if it reported that
    ahead_us: int | None  # how far its low watermark is ahead of the group's minimum
    cap: Cap
    throttled: bool  # whether it obeys the cap; a stream that Spark reads by itself takes part without obeying
    waiting: bool  # whether the cap keeps it from going on
    left_out: bool
    why: str


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """One alignment group."""

    group: str
    params: AlignmentParams | None  # None while it has no members
    cap: Cap
    version: int  # of the newest announcement; 0 before the first
    minimum_us: int | None  # smallest low watermark of the members that take part
    holder: TaskId | None  # the member that allows no more than the cap; None if no member takes part
    why: str
    members: tuple[MemberStatus, ...]  # sorted; with a limit by need of attention
    members_not_shown: int = 0


@dataclass(frozen=True, slots=True)
class _Report:
    at_us: int
    active: bool
    next_wanted_us: int | None

    @property
    def order(self) -> tuple[int, bool, bool, int]:
        """Sort key: the newest report counts; at equal times an active report, then the report that wants most."""
        wanted_us = self.next_wanted_us
        return self.at_us, self.active, *none_first(wanted_us)


@dataclass(slots=True)
class Member:
    """A member as its group knows it; a row has these fields."""

    throttled: bool
    floor_us: int | None  # the cap of the group when the member joined; None: there was no cap
    report: _Report | None = None
    low_us: int | None = None  # from the newest report with a low watermark; other reports keep it (MillWheel)
    low_at_us: int | None = None

    @property
    def state(self) -> SplitState:
        if self.report is not None and not self.report.active:
            return SplitState.IDLE
        return SplitState.PENDING if self.next_us is None else SplitState.ACTIVE

    @property
    def next_wanted_us(self) -> int | None:
        return None if self.report is None else self.report.next_wanted_us

    @property
    def next_us(self) -> int | None:
        """The watermark to compare with the cap: the watermark after the next row if known, else the present one."""
        return self.low_us if self.next_wanted_us is None else self.next_wanted_us

    def allowed_us(self, max_drift_us: int) -> int | None:
        """The watermark up to which the member lets others read; None: it lets no other member read."""
        wanted_us = self.next_wanted_us
        if self.low_us is None:
            return self.floor_us if wanted_us is None else wanted_us
        ahead_us = min(self.low_us + max_drift_us, MOST_US)
        return ahead_us if wanted_us is None else max(ahead_us, wanted_us)


ROW = {"name": str, "params": AlignmentParams | None, "next_us": int | None, "announced_us": int | None, "version": int}
"""The attributes of a group that are in its row, with their types."""


class AlignmentGroup:
    """The members of one group, and how far they may read. A report is O(1), an announcement O(n)."""

    def __init__(self, name: str, mark: MarkRow = nobody_keeps) -> None:
        self.name, self._mark = name, mark
        self.params: AlignmentParams | None = None
        self._members: dict[TaskId, Member] = {}
        self.next_us: int | None = None  # when the next announcement is due; None without members
        self.announced_us: int | None = None  # the newest announced cap, if it has a number
        self.version = 0

    # -- members

    def join(self, task: TaskId, params: AlignmentParams, *, now_us: int, throttled: bool = True) -> None:
        """Add a member; for a present member only ``throttled`` is changed.

        Raises `DisagreeingGroup` if another member joined with other parameters; then nothing was changed.
        """
        assert params.group == self.name, f"{task} was sent to group {self.name!r} and wants {params.group!r}"
        other = next((member for member in self._members if member != task), None)
        if other is not None and self.params is not None and params != self.params:
            raise DisagreeingGroup(self.name, str(task), _in_words(params), str(other), _in_words(self.params))
        if params != self.params:  # the group's only member, which may come back with a shorter interval
            self.next_us = now_us + params.update_interval_us
        self.params = params
        known = self._members.get(task)
        if known is None:
            self._members[task] = Member(throttled, self.announced_us)
        else:
            known.throttled = throttled
        self._changed(task)
        self._mark("group", self.name)

    def leave(self, task: TaskId) -> None:
        """Forget a task that left or whose lease ran out; a task that is no member changes nothing."""
        self._members.pop(task, None)
        self._changed(task)
        if not self._members:
            self.params = self.next_us = self.announced_us = None
            self._mark("group", self.name)

    def __len__(self) -> int:
        return len(self._members)

    # -- reports

    def report(self, task: TaskId, low_us: int | None, *, at_us: int, next_wanted_us: int | None = None) -> None:
        """Take the report of a member by rule 1; the report also ends a spell of idleness.

        At equal times the larger values count. Raises `InvalidWatermark`; then nothing was changed.
        """
        member = self._members[task]
        for us in (low_us, next_wanted_us):
            if us is not None and not LEAST_US <= us <= MOST_US:
                raise InvalidWatermark(str(task), us)
        self._changed(task)
        self._take(member, _Report(at_us, True, next_wanted_us))
        if low_us is None:
            return
        newest = None if member.low_at_us is None or member.low_us is None else (member.low_at_us, member.low_us)
        if newest is None or (at_us, low_us) > newest:
            member.low_at_us, member.low_us = at_us, low_us

    def idle(self, task: TaskId, *, at_us: int) -> None:
        """Leave out a member that is quiet and has caught up, until its next report."""
        member = self._members[task]
        self._changed(task)
        self._take(member, _Report(at_us, False, None))

    # -- caps

    def cap(self) -> Cap:
        return self._decide()[0]

    def announce(self, now_us: int) -> list[CapAnnounced]:
        """Tell every member the cap, sorted, if the interval is over and a member has spoken. O(n).

        Announcements stay at multiples of the interval; missed intervals are skipped.
        """
        if self.params is None or self.next_us is None or now_us < self.next_us:
            return []
        interval_us = self.params.update_interval_us
        self.next_us += interval_us * ((now_us - self.next_us) // interval_us + 1)
        self._mark("group", self.name)
        if all(member.state is SplitState.PENDING for member in self._members.values()):
            return []
        cap = self.cap()
        self.announced_us, self.version = cap.us, max(self.version + 1, now_us)
        members = sorted(self._members, key=attrgetter("parts"))
        return [CapAnnounced(self.name, task, self.version, cap) for task in members]

    def status(self, limit: int | None = None, *, only: TaskId | None = None) -> GroupStatus:
        """The status for people. O(n log n); with a limit, the members that need attention first, or one member, O(n).

        Raises KeyError for a member that is not known.
        """
        cap, holder = self._decide()
        lows = [member.low_us for _, member in self._taking_part() if member.low_us is not None]
        minimum_us = min(lows, default=None)
        if only is not None:
            shown = [only]
        else:
            shown = sorted(self._members) if limit is None else heapq.nsmallest(limit, self._members, key=self._need)
        return GroupStatus(
            group=self.name,
            params=self.params,
            cap=cap,
            version=self.version,
            minimum_us=minimum_us,
            holder=holder,
            why=self._why(cap, holder),
            members=tuple(self._member_status(task, cap, holder, minimum_us) for task in shown),
            members_not_shown=len(self._members) - len(shown),
        )

    # -- restart

    def encoded(self, task: TaskId | None = None) -> str | None:
        """The row of the group, or of a member; None: no such member."""
        if task is not None:
            member = self._members.get(task)
            return None if member is None else to_json({"task": task, **msgspec.to_builtins(member)})
        return to_json({name: getattr(self, name) for name in ROW})

    @classmethod
    def restore(cls, data: Mapping[str, Any], mark: MarkRow) -> AlignmentGroup:
        group = cls(data["name"], mark)
        for name in ROW:
            setattr(group, name, data[name])
        for saved in data["members"]:
            group._members[saved["task"]] = Member(*(saved[name] for name in Member.__match_args__))
        return group

    # -- how

    def _changed(self, task: TaskId) -> None:
        self._mark("member", self.name, *task.parts)

    def _take(self, member: Member, report: _Report) -> None:
        if member.report is None or report.order > member.report.order:
            member.report = report

    def _taking_part(self) -> list[tuple[TaskId, Member]]:
        return [(task, member) for task, member in self._members.items() if member.state is not SplitState.IDLE]

    def _decide(self) -> tuple[Cap, TaskId | None]:
        """The cap by its definition, a function of the members' reports, and its holder."""
        drift_us = 0 if self.params is None else self.params.max_drift_us
        # Plain values, because comparing caps and tasks makes the announcement to a thousand members 1.7 times as slow.
        allowed = [(*none_first(m.allowed_us(drift_us)), *task.parts, task) for task, m in self._taking_part()]
        if not allowed:
            return Cap.free(), None
        known, us, *_, holder = min(allowed)
        return Cap.up_to(us) if known else Cap.hold(), holder

    # -- in words

    def _need(self, task: TaskId) -> tuple[tuple[int, bool, int], tuple[str, str, str]]:
        member = self._members[task]
        return need(member.state, member.low_us), task.parts

    def _why(self, cap: Cap, holder: TaskId | None) -> str:
        if holder is None or self.params is None:
            return "every task is left out, so there is no limit." if self._members else "no task has joined."
        member = self._members[holder]
        if member.state is SplitState.PENDING:
            return f"task {holder} has not reported yet, and the group waits for its first report."
        if cap.us == member.next_wanted_us:
            return f"task {holder} has no row before the cap, so it may read across the gap."
        drift = format_duration_us(self.params.max_drift_us)
        return f"task {holder} has the smallest low watermark, and the others may be {drift} ahead of it."

    def _member_status(self, task: TaskId, cap: Cap, holder: TaskId | None, minimum_us: int | None) -> MemberStatus:
        member = self._members[task]
        takes_part = member.state is not SplitState.IDLE
        beyond = takes_part and not cap.allows(member.next_us)
        return MemberStatus(
            task=task,
            state=member.state,
            low_us=member.low_us,
            next_wanted_us=member.next_wanted_us,
            ahead_us=None if member.low_us is None or minimum_us is None else _within(member.low_us - minimum_us),
            cap=cap,
            throttled=member.throttled,
            waiting=beyond and member.throttled,
            left_out=not takes_part,
            why=_member_why(member, holder, beyond=beyond),
        )


def _member_why(member: Member, holder: TaskId | None, *, beyond: bool) -> str:
    if member.state is SplitState.IDLE:
        return "idle: left out until it reports"
    if not beyond:
        return "has not spoken: waited for" if member.state is SplitState.PENDING else "may go on"
    if not member.throttled:
        return "beyond the cap, and not stopped, because Spark reads this stream"
    return f"waits: it is beyond the cap, which task {holder} holds"


def _within(us: int) -> int:
    """A difference of two times, in the 64 bits that others can read."""
    return max(LEAST_US, min(us, MOST_US))


def _in_words(params: AlignmentParams) -> str:
    drift, interval = format_duration_us(params.max_drift_us), format_duration_us(params.update_interval_us)
    return f"max drift {drift} and update interval {interval}"
