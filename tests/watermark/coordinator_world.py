"""A coordinator on a virtual clock, for tests of its behaviour."""

from __future__ import annotations

from typing import TypeVar

from lowmark.watermark import NotifyNewLowWatermark, SplitState, TaskId
from lowmark.watermark.protocol import LeftOut, ReplyLowWatermark, TaskRegistered
from lowmark.watermark.splits.events import Tick
from lowmark.watermark.tasks.coordinator import CoordinatorEffect, CoordinatorEvent, LowWatermarkCoordinator
from lowmark.watermark.tasks.status import SourceStatus

S = 1_000_000
LEASE_US = 10 * S
A, B, C = (TaskId("job", "orders", name) for name in "abc")
Kind = TypeVar("Kind")


class World:
    """A coordinator and a clock; tasks answer only by order of a test."""

    def __init__(self, *tasks: TaskId, quorum: float = 1.0) -> None:
        self.now_us = 0
        self.coordinator = LowWatermarkCoordinator(interval_us=S, lease_us=LEASE_US, quorum=quorum)
        for task in tasks:
            self.register(task)

    def handle(self, event: CoordinatorEvent) -> list[CoordinatorEffect]:
        return self.coordinator.handle(event, self.now_us)

    def register(self, task: TaskId, token: str = "1", low_us: int | None = None) -> list[CoordinatorEffect]:
        return self.handle(TaskRegistered(task, token, low_us))

    def tick(self, us: int = S) -> list[CoordinatorEffect]:
        """Let time pass, with a Tick at each wake-up time of the coordinator."""
        effects, until_us = [], self.now_us + us
        while (wake_us := self.coordinator.wake_at_us(self.now_us)) is not None and wake_us <= until_us:
            self.now_us = max(self.now_us, wake_us)
            effects += self.handle(Tick())
        self.now_us = until_us
        return effects + self.handle(Tick())

    def reply(
        self,
        task: TaskId,
        low_us: int | None,
        left_out: LeftOut | None = None,
        *,
        at_us: int | None = None,
        token: str = "1",
    ) -> list[CoordinatorEffect]:
        at_us = self.now_us if at_us is None else at_us
        return self.handle(ReplyLowWatermark(task.job_id, task.source_id, task.task_id, at_us, low_us, token, left_out))

    def round(self, **lows_us: int | None) -> list[int]:
        """Run a round in which these tasks of "orders" answer; return the published low watermarks."""
        self.tick()
        effects = [e for name, low_us in lows_us.items() for e in self.reply(TaskId("job", "orders", name), low_us)]
        return sorted({notice.new_low_watermark for notice in of(NotifyNewLowWatermark, effects)})

    @property
    def low_us(self) -> int | None:
        return self.coordinator.low_watermark_us("job", "orders")

    @property
    def source(self) -> SourceStatus:
        return self.coordinator.status(self.now_us).sources[0]

    def states(self) -> list[SplitState]:
        return [task.state for task in self.source.tasks]

    def restart(self) -> None:
        self.coordinator = LowWatermarkCoordinator.restore(
            self.coordinator.snapshot(), now_us=self.now_us, interval_us=S, lease_us=LEASE_US
        )


def encoded_anew(coordinator: LowWatermarkCoordinator) -> bytes:
    """Return the snapshot with every part encoded anew, which ``snapshot`` must equal."""
    for key, rounds in coordinator._sources.items():
        coordinator._encoded_sources.changed(key)
        for task_id in rounds.answers:
            rounds._encoded_tasks.changed(task_id)
    for group in coordinator._groups.values():
        for task in group._members:
            group._encoded_members.changed(task)
    for task in coordinator._leases._leases:
        coordinator._leases._encoded_runs.changed(task)
    for task in coordinator._group_of:
        coordinator._encoded_group_of.changed(task)
    for task in coordinator._spoke_us:
        coordinator._encoded_spoke_us.changed(task)
    return coordinator.snapshot()


def of(kind: type[Kind], effects: list[CoordinatorEffect]) -> list[Kind]:
    return [effect for effect in effects if isinstance(effect, kind)]
