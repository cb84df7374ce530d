"""All alignment groups: which group a task is in, the reports of tasks to their groups, and when each group announces.

``alignment.py`` has the rules of one group. A group exists as long as it has members.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lowmark.watermark.protocol import TaskId, TaskRegistered
from lowmark.watermark.state import SplitState

from .agenda import Agenda
from .alignment import AlignmentGroup, GroupStatus
from .cap import CapAnnounced
from .rounds import SourceRounds
from .snapshot import MarkRow, nobody_keeps, to_json

_ANNOUNCEMENTS = 20  # the largest number for one group in an interval


class AlignmentGroups:
    """The groups of a coordinator. A group announces its cap at most 20 times in ``interval_us``.

    >>> from lowmark.watermark.strategy import AlignmentParams
    >>> groups, task = AlignmentGroups(interval_us=1_000_000), TaskId("job", "orders", "0")
    >>> params = AlignmentParams("g", max_drift_us=30, update_interval_us=10)
    >>> groups.join(TaskRegistered(task, "run-1", alignment=params), now_us=0)
    >>> rounds = SourceRounds("job", "orders")
    >>> groups.hear(task, rounds, now_us=1) if rounds.begin("0", 40) is None else None
    >>> [told.cap.us for told in groups.announce(10, most=1)], groups.next_us
    ([70], 50010)
    """

    def __init__(self, *, interval_us: int, mark: MarkRow = nobody_keeps) -> None:
        self._least_gap_us, self._mark = interval_us // _ANNOUNCEMENTS, mark
        self._groups: dict[str, AlignmentGroup] = {}
        self.group_of: dict[TaskId, str] = {}
        """The group of each task that is in a group."""
        self._spoke_us: dict[TaskId, int] = {}  # the time of its newest report to its group
        self._announcements = Agenda[str]()
        self._announced_at_us: dict[str, int] = {}  # when a group last announced its cap

    # -- members

    def join(self, event: TaskRegistered, now_us: int) -> None:
        """Let a task join, change or leave its group, as its registration says.

        Raises `DisagreeingGroup` if the group has other parameters; then nothing was changed.
        """
        task, params = event.task, event.alignment
        if params is None:
            self.leave(task)
            return
        group = self._groups.get(params.group)
        if group is None:
            group = AlignmentGroup(params.group, self._mark)
        group.join(task, params, now_us=now_us, throttled=event.throttled)
        self._groups[params.group] = group
        if self.group_of.get(task) not in (None, params.group):
            self.leave(task)
        self.group_of[task] = params.group
        self._mark("group_of", *task.parts)
        self._plan_announcement(params.group)

    def leave(self, task: TaskId) -> None:
        name = self.group_of.pop(task, None)
        if name is None:
            return
        self._spoke_us.pop(task, None)
        self._mark("group_of", *task.parts)
        self._mark("spoke_us", *task.parts)
        self._groups[name].leave(task)
        if not len(self._groups[name]):
            del self._groups[name]
            self._announced_at_us.pop(name, None)
        self._plan_announcement(name)

    def hear(self, task: TaskId, rounds: SourceRounds, now_us: int) -> None:
        """Report a task to its group, if it is in one, with the task's state in its source."""
        name = self.group_of.get(task)
        if name is None:
            return
        group, before_us = self._groups[name], self._spoke_us.get(task)
        # Each report is dated later than the last, because the newest report counts.
        at_us = self._spoke_us[task] = now_us if before_us is None else max(now_us, before_us + 1)
        self._mark("spoke_us", *task.parts)
        if rounds.state(task.task_id) is SplitState.IDLE:
            group.idle(task, at_us=at_us)
        else:
            wanted_us = rounds.answers[task.task_id].next_wanted_us
            group.report(task, rounds.task_low_us(task.task_id), at_us=at_us, next_wanted_us=wanted_us)

    # -- caps

    @property
    def next_us(self) -> int | None:
        """When a group announces next; None without groups."""
        return self._announcements.next_us

    def announce(self, now_us: int, most: int) -> list[CapAnnounced]:
        """Let up to ``most`` groups announce whose moment has come."""
        effects: list[CapAnnounced] = []
        for _ in range(most):
            if (name := self._announcements.take_due(now_us)) is None:
                break
            effects += self._groups[name].announce(now_us)
            self._announced_at_us[name] = now_us
            self._plan_announcement(name)
        return effects

    def _plan_announcement(self, name: str) -> None:
        """Plan at the group's own time, but not sooner after its last announcement than the least gap."""
        group = self._groups.get(name)
        us = None if group is None else group.next_us
        if us is not None and name in self._announced_at_us:
            us = max(us, self._announced_at_us[name] + self._least_gap_us)
        self._announcements.put(name, us)

    def status(self, limit: int | None = None) -> tuple[GroupStatus, ...]:
        """Sorted by name; ``limit`` bounds the members of each group."""
        return tuple(self._groups[name].status(limit) for name in sorted(self._groups))

    # -- restart

    def encoded(self, kind: str, *parts: str) -> str | None:
        """The row of a group, of a member, or of a member's group or newest report; None if it has gone."""
        if kind in ("group", "member"):
            group = self._groups.get(parts[0])
            return None if group is None else group.encoded(TaskId(*parts[1:]) if kind == "member" else None)
        task = TaskId(*parts)
        value: str | int | None = (self.group_of if kind == "group_of" else self._spoke_us).get(task)
        return None if value is None else to_json([*parts, value])

    def restore(self, saved: Mapping[str, Any], now_us: int) -> None:
        for group in saved["group"]:
            due_us = group["next_us"]
            if due_us is not None:  # at most an interval from now, even if the clock went back meanwhile
                due_us = min(due_us, now_us + group["params"].update_interval_us)
            self._groups[group["name"]] = AlignmentGroup.restore({**group, "next_us": due_us}, self._mark)
        self.group_of = {TaskId(*parts): name for *parts, name in saved["group_of"]}
        self._spoke_us = {TaskId(*parts): at_us for *parts, at_us in saved["spoke_us"]}
        if not self._groups.keys() >= set(self.group_of.values()):
            raise ValueError("a task is in a group that is not there")
        for name in self._groups:
            self._mark("group", name)  # its next announcement may have moved
            self._plan_announcement(name)
