"""Alignment groups kept in the driver, with the same interface as a coordinator elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from lowmark.watermark import TaskId
from lowmark.watermark.protocol import LeftOut
from lowmark.watermark.strategy import AlignmentParams
from lowmark.watermark.tasks.alignment import AlignmentGroup, GroupStatus
from lowmark.watermark.tasks.cap import Cap


class Coordinating(Protocol):
    """Takes low watermarks of tasks and gives caps: the groups of this driver, or a `CoordinatorClient`."""

    def register(
        self,
        task: TaskId,
        *,
        token: str | None = None,
        low_watermark_us: int | None = None,
        alignment: AlignmentParams | None = None,
        throttled: bool = True,
        expected_tasks: int = 1,
        away_limit_us: int | None = None,
    ) -> str:
        """Begin a run of a task, and return the run's token; see `TaskRegistered`."""
        ...

    def report(
        self,
        task: TaskId,
        low_watermark_us: int | None,
        *,
        left_out: LeftOut | None = None,
        next_wanted_us: int | None = None,
        heard_us: int | None = None,
        patience_us: int | None = None,
        complete_until_us: int | None = None,
    ) -> None:
        """Report a task's low watermark, and when it had rows; see `ReplyLowWatermark`."""
        ...

    def deregister(self, task: TaskId) -> None:
        """End the run of a task."""
        ...

    def cap(self, task: TaskId) -> Cap | None:
        """The cap of the task; None: not known yet."""
        ...


class OwnGroups:
    """The groups of one driver. Belongs to its loop; no message is sent, so none is lost."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._groups: dict[str, AlignmentGroup] = {}
        self._group_of: dict[TaskId, AlignmentGroup] = {}

    def register(
        self,
        task: TaskId,
        *,
        token: str | None = None,
        low_watermark_us: int | None = None,  # noqa: ARG002  # the first report brings it
        alignment: AlignmentParams | None = None,
        throttled: bool = True,
        expected_tasks: int = 1,  # noqa: ARG002  # concerns a job, which is never kept here
        away_limit_us: int | None = None,  # noqa: ARG002
    ) -> str:
        """Join the group that the task wants, if any. A restarted task stays the member that it was."""
        if alignment is not None:
            group = self._groups.setdefault(alignment.group, AlignmentGroup(alignment.group))
            group.join(task, alignment, now_us=self._now_us(), throttled=throttled)
            self._group_of[task] = group
        return token or ""

    def report(
        self,
        task: TaskId,
        low_watermark_us: int | None,
        *,
        left_out: LeftOut | None = None,
        next_wanted_us: int | None = None,
        heard_us: int | None = None,  # noqa: ARG002  # a group does not wait for a silent member
        patience_us: int | None = None,  # noqa: ARG002
        complete_until_us: int | None = None,  # noqa: ARG002  # the service itself answers for its sinks
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

    def group_status(self, task: TaskId) -> GroupStatus:
        """The status of the task's group."""
        return self._group_of[task].status()

    def statuses(self) -> tuple[GroupStatus, ...]:
        """The status of every group that has ever had a member, by name."""
        return tuple(self._groups[name].status() for name in sorted(self._groups))
