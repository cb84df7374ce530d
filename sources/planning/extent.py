"""How far each batch of a source takes every split, from one restored offset on.

The system of the source decides where a batch ends, or else the limits of a user and an alignment group do
(`slicing/`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Generic

from lowmark.sources.api import EARLIEST_US, Source, SplitPlanner, SplitT
from lowmark.sources.closing import closed_on_error
from lowmark.sources.slicing import NextRow, NoRowsReason, SliceLimits, SlicePlan, next_row, plan_slices

from .induced import InducedBatches
from .offset import BatchOffset
from .options import PlanOptions
from .peer import Guidance

_NOT_OVERRIDDEN = SplitPlanner.notify_checkpoint_complete


class Extent(Generic[SplitT]):
    """Plans the slices of batches, one batch after the other.

    Args:
        live: the splits that go on from the offset.
        time_us: the event time up to which the batch before takes every split; None: it is not cut by time.
    """

    def __init__(
        self, source: Source[SplitT, Any], name: str, options: PlanOptions, live: Sequence[SplitT], time_us: int | None
    ) -> None:
        self.planner: SplitPlanner[SplitT] = source.create_planner()
        self._source, self._options = source, options
        self._targets: dict[str, int] | None = None
        self._unaimed: set[str] = set()  # the splits of the run that have not answered where they end
        self._previous_time_us = time_us
        self._previous_span_us: int | None = None
        with closed_on_error(self.planner.close):
            self._induced = InducedBatches(source, name, live, self.planner) if source.externally_induced else None

    def plan(
        self,
        splits: Sequence[SplitT],
        guidance: Guidance,
        *,
        checkpoint: int,
        max_rows: int | None,
        now_us: int,
        to_present: bool,
    ) -> SlicePlan:
        """Return the plan. `to_present`: whether to take only rows that were present at the first plan that says so."""
        if to_present:
            self._aim(splits)
        if self._induced is not None:
            return self._induced.plan(splits, checkpoint, targets=self._targets)
        limits = SliceLimits(
            rows=max_rows,
            size_bytes=self._options.max_bytes,
            read_before_us=guidance.read_before_us,
            paused=guidance.paused,
            observed_us=guidance.observed_us,
            now_us=now_us,
            future_guard_us=self._options.future_guard_us,
            targets=self._targets,
            by_time=self._options.by_time,
            max_slice_us=self._options.max_slice_us,
            previous_span_us=self._previous_span_us,
        )
        if guidance.hold:
            return self._look_ahead(splits, limits)
        plan = plan_slices(self.planner, splits, limits, previous_time_us=self._previous_time_us)
        if plan.rows or limits.read_before_us is None or NoRowsReason.CAP not in plan.without_rows.values():
            return plan
        held = [split for split in splits if plan.without_rows.get(split.split_id) is NoRowsReason.CAP]
        # Near the cap: then the found time and the cap differ by whole milliseconds, and compare exactly.
        next_us = self._next_row(held, limits, limits.read_before_us).wanted_us
        if next_us is None:  # no held split can be searched by time, so each waits at the largest time that was read
            read_us = (limits.observed_us.get(split.split_id) for split in held)
            next_us = min((us for us in read_us if us is not None), default=None)
        return replace(plan, next_us=next_us)

    def unanswered(self, plan: SlicePlan, splits: Sequence[SplitT]) -> list[str]:
        """Return the splits without an answer in a plan for which this run, although it ends, has to wait.

        They are to be read further, or a split that is to be read further waits for them, because it carries them on.
        """
        silent = {name for name, why in plan.without_rows.items() if why is NoRowsReason.NOT_REACHABLE}
        if not silent:
            return sorted(self._unaimed)
        needed = self.unfinished(splits)
        while ahead := {parent for split in splits if split.split_id in needed for parent in split.parents} - needed:
            needed |= ahead
        return sorted(self._unaimed | silent & needed)

    def unfinished(self, splits: Sequence[SplitT]) -> set[str]:
        """Return the splits that this run has to read further, although it ends."""
        targets = {} if self._targets is None else self._targets
        return self._unaimed | {split.split_id for split in splits if split.start < targets.get(split.split_id, 0)}

    def wrote(self, time_us: int | None) -> None:
        if time_us is not None:
            before_us, self._previous_time_us = self._previous_time_us, time_us
            self._previous_span_us = None if before_us is None else max(0, time_us - before_us)

    def committed(self, end: BatchOffset) -> None:
        if self._induced is not None:
            self._induced.committed(end.checkpoint)
        if type(self.planner).notify_checkpoint_complete is not _NOT_OVERRIDDEN:  # else nobody needs the splits
            live = end.decode(self._source.split_serializer).live
            self.planner.notify_checkpoint_complete([placed.split for placed in live])

    def trouble(self) -> str | None:
        return self.planner.trouble() or (None if self._induced is None else self._induced.trouble())

    def close(self) -> None:
        try:
            if self._induced is not None:
                self._induced.close()
        finally:
            self.planner.close()

    def _aim(self, splits: Sequence[SplitT]) -> None:
        """End the run at the present ends of the splits. A split that does not answer yet gets its end later."""
        if self._targets is None:
            self._targets, self._unaimed = {}, {split.split_id for split in splits}
        if self._unaimed:
            ends = self.planner.latest(splits)
            self._targets |= {name: end.position for name, end in ends.items() if name in self._unaimed}
            self._unaimed &= {split.split_id for split in splits} - ends.keys()  # without those that ended meanwhile

    def _look_ahead(self, splits: Sequence[SplitT], limits: SliceLimits) -> SlicePlan:
        """Plan nothing, but tell where every split goes on, because other members wait for this source, too.

        A split that cannot be searched by time has to be read until it is heard of, if no other split tells.
        """
        near_us = limits.now_us if self._previous_time_us is None else self._previous_time_us
        found = self._next_row(splits, limits, near_us)
        if not found.searchable:
            limits = replace(limits, paused=frozenset(limits.observed_us))
            return plan_slices(self.planner, splits, limits, previous_time_us=None)
        names = frozenset(split.split_id for split in splits)
        if found.time_us is None:
            limits = replace(limits, paused=names)
        else:  # every split counts as read up to there, because a share of an unsearchable one would be read otherwise
            limits = replace(limits, read_before_us=found.time_us, observed_us=dict.fromkeys(names, found.time_us))
        plan = plan_slices(self.planner, splits, limits, previous_time_us=self._previous_time_us)
        return replace(plan, next_us=found.wanted_us)

    def _next_row(self, splits: Sequence[SplitT], limits: SliceLimits, near_us: int) -> NextRow:
        until_us = -EARLIEST_US if limits.believed_until_us is None else limits.believed_until_us
        return next_row(self.planner, splits, near_us=near_us, until_us=until_us)
