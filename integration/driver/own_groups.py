"""Alignment groups kept in the driver, with the methods of a `CoordinatorClient` that groups need."""

from __future__ import annotations

from collections.abc import Callable

from lowmark.watermark import TaskId
from lowmark.watermark.protocol import LeftOut
from lowmark.watermark.strategy import AlignmentParams
from lowmark.watermark.tasks.alignment import AlignmentGroup, GroupStatus, MemberStatus
from lowmark.watermark.tasks.cap import Cap


class OwnGroups:
    """The groups of one driver. Belongs to its loop; no message is sent, so none is lost."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._groups: dict[str, AlignmentGroup] = {}
        self._group_of: dict[TaskId, AlignmentGroup] = {}

    def register(
        self, task: TaskId, *, alignment: AlignmentParams | None, throttled: bool, **_of_a_job: object
    ) -> None:
        """Join the group that the task wants. A restarted task stays the member that it was, or changes its group."""
        assert alignment is not None, "without a coordinator, only streams of a group take part"
        group = self._groups.setdefault(alignment.group, AlignmentGroup(alignment.group))
        group.join(task, alignment, now_us=self._now_us(), throttled=throttled)
        before = self._group_of.get(task)
        if before is not None and before is not group:
            before.leave(task)
        self._group_of[task] = group

    def report(
        self,
        task: TaskId,
        low_watermark_us: int | None,
        *,
        left_out: LeftOut | None,
        next_wanted_us: int | None,
        **_of_a_job: object,
    ) -> None:
        """Count a report at once, and announce a cap when one is due."""
        group, now_us = self._group_of[task], self._now_us()
        if left_out is None:
            group.report(task, low_watermark_us, at_us=now_us, next_wanted_us=next_wanted_us)
        else:
            group.idle(task, at_us=now_us)
        group.announce(now_us)

    def deregister(self, task: TaskId) -> None:
        """Remove the task from its group, which stops waiting for it."""
        self._group_of.pop(task).leave(task)

    def cap(self, task: TaskId) -> Cap | None:
        """Return the cap that holds now, which may be newer than the last announced cap."""
        return self._group_of[task].cap()

    def standing(self, task: TaskId) -> tuple[GroupStatus, MemberStatus]:
        """Return the status of the task's group, and that of the task in it."""
        status = self._group_of[task].status()
        (member,) = (member for member in status.members if member.task == task)
        return status, member

    def statuses(self) -> tuple[GroupStatus, ...]:
        """The status of every group that has ever had a member, by name."""
        return tuple(self._groups[name].status() for name in sorted(self._groups))
