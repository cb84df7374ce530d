"""The splits of a source of ours: its planner lists them, plans what is read of each, and says when a split ends.

A plan comes before its batch is read, the report after the next plan. A plan's claim about a split (no row up to that
time is left) counts as the split's watermark at once, if the planner knows event times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from lowmark.integration.spark.progress import SourceProgress
from lowmark.integration.transport.measure import Measured
from lowmark.sources.metric_group import added_up
from lowmark.sources.planning.offset import BatchOffset
from lowmark.sources.planning.peer import Planned
from lowmark.watermark import SplitId, SplitState
from lowmark.watermark.moment import none_first
from lowmark.watermark.splits.events import (
    BatchPlanned,
    Event,
    InputEnded,
    SplitsDiscovered,
    SplitsFinished,
    SplitsPaused,
    SplitsRemoved,
    SplitsResharded,
    SplitsResumed,
)

from .splits import Splits

FINISHED_KEPT = 100
"""How many finished splits of a source of ours are remembered; older ones are forgotten."""


@dataclass
class PlannedSplits(Splits):
    """Splits of a source of ours, see `Splits`."""

    _claimed_us: dict[SplitId, int] = field(default_factory=dict, init=False)  # watermarks
    _paused: frozenset[SplitId] = field(init=False)
    _finished: dict[SplitId, None] = field(default_factory=dict, init=False)  # not forgotten yet, oldest first
    _planner_counts: Mapping[str, float] = field(default_factory=dict, init=False)
    _reader_counts: dict[str, float] = field(default_factory=dict, init=False)  # over all batches of the run
    _swept_checkpoint: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._paused = self.watermarks.held_back  # by an old plan

    @property
    def complete(self) -> bool:
        newest = self._newest_plan
        return newest is not None and newest.complete

    @property
    def unreported_plan(self) -> int | None:
        unreported = self.planner.unreported if self.planner is not None and self.stream.claims else None
        return None if unreported is None else unreported.checkpoint

    @property
    def next_wanted_us(self) -> int | None:
        # Without claims, the next row of a split has the split's own watermark at least.
        planned = self._newest_plan
        if planned is None:
            return None
        if self.stream.claims:
            of_max, next_us = self.stream.strategy.watermark_of_max, planned.next_us
            return None if next_us is None else of_max(next_us - self.watermarks.extra_bound_us)
        if not planned.paused or any(planned.rows.values()):
            return None
        paused = frozenset(map(self._id, planned.paused))
        own_us = (us for split, _, us in self.watermarks.standings() if split in paused)
        return min((us for us in own_us if us is not None), default=None)

    def discover(self, sources: Sequence[SourceProgress]) -> Iterator[Event]:
        """Wait for the splits in the offset of a batch whose plan did not come, as of a batch that runs again.

        Only the planner of an earlier run told the plan, and rows would show some of the splits only.
        """
        offset = planned_to(sources)
        if offset is None or (self.planner is not None and offset.checkpoint in self.planner.plans):
            return
        live = list(map(self._id, offset.positions))
        yield from self._begin_again(live)
        known = frozenset(self.watermarks.splits)
        new = [split for split in live if split not in known]
        if new:
            yield SplitsDiscovered(tuple(new))

    def plan(self, planned: Planned, now_us: int) -> Iterator[Event]:
        """Yield the events that follow from a plan, before its batch is read."""
        ids = {name: self._id(name) for name in planned.splits}
        self._planner_counts = planned.metrics
        self.source_metrics = added_up([self._planner_counts, self._reader_counts])
        self.has_backlog = any(rows > 0 for rows in planned.backlog_rows.values())
        yield from self._begin_again([split for name, split in ids.items() if name not in planned.finished])
        known = frozenset(self.watermarks.splits)
        new = [split for split in ids.values() if split not in known]
        lacking = {name: of for name, of in planned.splits.items() if of and self.watermarks.lacks_parents(ids[name])}
        # First those that a batch made known, because until then the silence of such a child counts.
        yield from self._resharded({name: of for name, of in lacking.items() if ids[name] in known})
        if new:
            empty = {
                ids[name] for name, rows in planned.backlog_rows.items() if not rows and not planned.rows.get(name)
            }
            yield SplitsDiscovered(tuple(new), frozenset(empty))
        yield from self._resharded({name: of for name, of in lacking.items() if ids[name] not in known})
        claimed_us: dict[SplitId, int] = {}
        if self.stream.claims:
            of_max = self.stream.strategy.watermark_of_max
            claimed_us = {ids[name]: of_max(us) for name, us in planned.claims_us.items()}
        self._claimed_us.update(claimed_us)
        yield BatchPlanned(now_us, claimed_us, {ids[name]: rows for name, rows in planned.backlog_rows.items()})
        yield from self._pause(planned.paused)
        if planned.complete:
            yield InputEnded()

    def _begin_again(self, live: Sequence[SplitId]) -> Iterator[Event]:
        """Forget live splits that have ended, such as the partitions of a topic that is subscribed again.

        The rows of such a split come from its beginning on, so the split is new, and is waited for.
        """
        if not self.watermarks.states[SplitState.FINISHED]:
            return
        ended = {split for split, state, _ in self.watermarks.standings() if state is SplitState.FINISHED}
        if again := tuple(split for split in live if split in ended):
            for split in again:
                self._finished.pop(split, None)
            yield SplitsRemoved(again)

    def _resharded(self, parents_of: Mapping[str, Sequence[str]]) -> Iterator[Event]:
        if parents_of:
            yield SplitsResharded({self._id(name): tuple(map(self._id, of)) for name, of in parents_of.items()})

    def _pause(self, names: frozenset[str]) -> Iterator[Event]:
        held = frozenset(map(self._id, names))
        paused, resumed = held - self._paused, self._paused - held
        self._paused = held
        if paused:
            yield SplitsPaused(tuple(paused))
        if resumed:
            yield SplitsResumed(tuple(resumed))

    def _backlog_rows(self, sources: Sequence[SourceProgress]) -> Mapping[SplitId, int]:  # noqa: ARG002
        newest = self._newest_plan  # which is of the next batch already
        return {} if newest is None else {self._id(name): rows for name, rows in newest.backlog_rows.items()}

    @property
    def _newest_plan(self) -> Planned | None:
        return None if self.planner is None else self.planner.newest

    def _settle(self, measured: Measured) -> Mapping[SplitId, int]:
        """The larger of the measured watermark and the newest claim."""
        for split, latest_us in measured.latest_us.items():
            name = self.stream.name_of(split)
            self.observed_us[name] = max(latest_us, self.observed_us.get(name, latest_us))
        if not self._claimed_us:
            return measured.watermarks_us
        return {split: max(us, self._claimed_us.get(split, us)) for split, us in measured.watermarks_us.items()}

    def pass_on(self, measured: Measured) -> None:
        counts = added_up([self._reader_counts, measured.counted])
        metrics = added_up([self._planner_counts, counts])
        if self.planner is not None:
            self.planner.events.extend(measured.events)
        self._reader_counts, self.source_metrics = counts, metrics

    def go_on_from(self, before: Splits) -> None:
        super().go_on_from(before)
        if isinstance(before, PlannedSplits):
            self._reader_counts = before._reader_counts

    def conclude(self, sources: Sequence[SourceProgress]) -> Iterator[Event]:
        """Finish the splits that end with a batch. O(1) a batch and finished split; O(n) if older ones are forgotten.

        Also finishes splits that ended before a restart, or while no plan arrived: such splits are in no plan.
        """
        offset = planned_to(sources)
        if self.planner is None or offset is None:
            return
        self.planner.reported = offset.checkpoint
        plan = self.planner.plans.get(offset.checkpoint)
        if plan is None:
            return
        if self.ends:
            yield InputEnded()
        newer = [each for each in self.planner.plans.values() if each.checkpoint > plan.checkpoint]
        over: list[SplitId]
        if self._swept_checkpoint == plan.checkpoint - 1:
            over = [self._id(name) for name in plan.finished if not any(name in each.splits for each in newer)]
        else:
            live = {self._id(name) for name in plan.splits.keys() - set(plan.finished)}
            live |= {self._id(name) for each in newer for name in each.splits}
            over = [split for split in self.watermarks.splits if split not in live]
        self._swept_checkpoint = plan.checkpoint
        over = [split for split in over if split not in self._finished]
        if not over:
            return
        self._finished.update(dict.fromkeys(over))
        for split in over:
            self._claimed_us.pop(split, None)
            self.observed_us.pop(self.stream.name_of(split), None)
        yield SplitsFinished(tuple(over))
        yield from self._forget_finished()

    def _forget_finished(self) -> Iterator[Event]:
        """Forget the oldest finished splits, whose rows are committed; the newest may still get children.

        The furthest one stays, because its watermark stands at the end of the input, also after a restart.
        """
        too_many = len(self._finished) - FINISHED_KEPT
        if too_many <= 0:
            return
        own_us = {split: us for split, _, us in self.watermarks.standings() if split in self._finished}
        furthest = max(own_us, key=lambda split: none_first(own_us[split]))
        forgotten = tuple(split for split in islice(self._finished, too_many + 1) if split != furthest)[:too_many]
        for split in forgotten:
            assert isinstance(split, int), "ids of a source's splits are made of their names"
            del self._finished[split]
            self.stream.names.pop(split, None)
        yield SplitsRemoved(forgotten)

    def _id(self, name: str) -> int:
        split = self.stream.key.split_id((name,))
        self.stream.names.setdefault(split, name)
        return split


def planned_to(sources: Sequence[SourceProgress]) -> BatchOffset | None:
    """Return the offset that a planner of ours wrote, among the sources of one stream, None without one."""
    found = (BatchOffset.find(source.end_offset) for source in sources)
    return next((offset for offset in found if offset is not None), None)
