"""A coordinator on a virtual clock, for tests of its behaviour."""

from __future__ import annotations

from typing import Any, TypeVar

from lowmark.watermark import NotifyNewLowWatermark, SplitState, TaskId
from lowmark.watermark.protocol import LeftOut, ReplyLowWatermark, TaskRegistered
from lowmark.watermark.splits.events import Tick
from lowmark.watermark.tasks.alignment import AlignmentGroup
from lowmark.watermark.tasks.coordinator import CoordinatorEffect, CoordinatorEvent, LowWatermarkCoordinator, Settings
from lowmark.watermark.tasks.restored import decode
from lowmark.watermark.tasks.snapshot import Key, Rows
from lowmark.watermark.tasks.status import SourceStatus

S = 1_000_000
LEASE_US = 10 * S
A, B, C = (TaskId("job", "orders", name) for name in "abc")
Kind = TypeVar("Kind")


class World:
    """A coordinator and a clock; tasks answer only by order of a test."""

    def __init__(self, *tasks: TaskId, quorum: float = 1.0) -> None:
        self.now_us, self._rows = 0, Rows()
        self.coordinator = LowWatermarkCoordinator(Settings(interval_us=S, lease_us=LEASE_US, quorum=quorum))
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

    def rows(self) -> Rows:
        """Return the rows of a journal that took every change."""
        self._rows = taken(self._rows, self.coordinator)
        assert self._rows == snapshot_of(self.coordinator)
        return self._rows

    def restart(self) -> None:
        self.coordinator = LowWatermarkCoordinator.restore(
            self.rows(), Settings(interval_us=S, lease_us=LEASE_US), now_us=self.now_us
        )


def snapshot_of(coordinator: LowWatermarkCoordinator) -> Rows:
    """Return all rows of a coordinator, marked as changed or not."""
    leases, sources, groups = coordinator._leases, coordinator._sources, coordinator._groups
    keys: list[Key] = [("lost",), *(("run", *task.parts) for task in leases._leases)]
    keys += [("retired", *task.parts, token) for task, token in leases._retired]
    for rounds in sources:
        keys += [("source", *rounds.key), *(("task", *rounds.key, task_id) for task_id in rounds.answers)]
    keys += [("group", name) for name in groups._groups]
    for task, name in groups.group_of.items():
        keys += [("member", name, *task.parts), ("group_of", *task.parts), ("spoke_us", *task.parts)]
    rows = {key: coordinator._encoded(key) for key in keys}
    return {key: text for key, text in rows.items() if text is not None}


def taken(rows: Rows, coordinator: LowWatermarkCoordinator) -> Rows:
    """Return the rows after the coordinator's changes, as a journal has them; they must equal ``snapshot_of``."""
    changes = coordinator.take_changes()
    return {key: state for key, state in {**rows, **changes}.items() if state is not None}


def rows_of(group: AlignmentGroup) -> dict[str, Any]:
    """Return the rows of a group, put together as ``AlignmentGroup.restore`` takes them."""
    rows: Rows = {("member", group.name, *task.parts): group.encoded(task) or "" for task in group._members}
    rows["group", group.name] = group.encoded() or ""
    together: dict[str, Any] = decode(rows)["group"][0]
    return together


def of(kind: type[Kind], effects: list[CoordinatorEffect]) -> list[Kind]:
    return [effect for effect in effects if isinstance(effect, kind)]
