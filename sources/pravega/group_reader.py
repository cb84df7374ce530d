"""Batches that end at a reader group's checkpoints (FLIP-27's `ExternallyInducedSourceReader`).

    first plan, restart   the group is set to the position of Spark's offset
    a batch               a checkpoint of the group is taken; the batch ends at its StreamCut, and tasks read segments
                          exactly up to that StreamCut
    a split ends          its segment is sealed and read to its end, so the group's checkpoint has no position for it

The driver has a reader in the group, because only readers complete a checkpoint. That reader throws its events away.
Other applications may read in the same group.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from lowmark.sources.api import (
    ExternallyInducedSourceReader,
    InputStatus,
    ReaderOutput,
    Source,
    SplitEnd,
    SplitPlanner,
    SplitRows,
)
from lowmark.sources.metric_group import MetricGroup, added_up
from lowmark.sources.reading.slices import read_slices

from .group import GroupReset, PravegaGroup
from .segment import PravegaSplit, segment_epoch

log = logging.getLogger("lowmark")

WAIT_SECONDS = 2.0
"""How long one plan waits for a checkpoint; the next plan goes on waiting."""
SAY_AFTER_SECONDS = 15.0


class GroupReader(ExternallyInducedSourceReader[PravegaSplit]):
    """Takes the group's checkpoints on the driver; reads the given slices in a task."""

    def __init__(
        self,
        source: Source[PravegaSplit, Any],
        *,
        name: str,
        group: Callable[[], PravegaGroup],
        metrics: MetricGroup,
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._name, self._now_seconds = source, name, now_seconds
        self._make_group, self._metrics = group, metrics
        self._group: PravegaGroup | None = None
        self._going: list[PravegaSplit] = []  # the splits that have not ended; a stream that is left out has
        self._joined: frozenset[str] = frozenset()  # the streams with which the group was joined
        self._planner: SplitPlanner[PravegaSplit] | None = None
        self._splits: dict[str, PravegaSplit] = {}
        self._after: dict[str, PravegaSplit] = {}
        self._last = 0
        self._waits_since: float | None = None
        self._trouble: str | None = None
        self._reading: Generator[SplitRows] | None = None
        self._counted: list[Mapping[str, float]] = []  # by each split reader, in its thread

    # -- on the driver

    def start(self) -> None:
        """Do nothing: the group is joined when there is something to read."""

    def use_planner(self, planner: SplitPlanner[PravegaSplit]) -> None:
        self._planner = planner

    def add_splits(self, splits: Sequence[PravegaSplit]) -> None:
        self._splits |= {split.split_id: split for split in splits}

    def should_trigger_checkpoint(self) -> int | None:
        if not self._splits:
            return None
        assert self._planner is not None, "it is given before the start"
        splits = list(self._splits.values())
        ends = self._planner.latest(splits)
        self._going = [split for split in splits if not _has_ended(split, ends.get(split.split_id))]
        if self._group is None:
            self._group = self._make_group()  # known before the join, so that it is closed if the join fails
        if not self._streams() <= self._joined:
            self._join(self._group)
        if not any(_goes_on(split, ends.get(split.split_id)) for split in splits):
            return None
        reached = self._checkpoint(self._group) if self._going else {}
        if reached is None:
            return None
        ends = self._planner.latest(splits)  # segments that the group has read to their ends are sealed by now
        after = standing_after(splits, reached, ends)
        if after is None or after == self._splits:
            return None
        self._after, self._last = after, self._last + 1
        return self._last

    def snapshot_state(self, checkpoint_id: int) -> Sequence[PravegaSplit]:
        assert checkpoint_id == self._last, "asked for the checkpoint that is due"
        after, self._after = self._after, {}
        self._splits = {name: split for name, split in after.items() if not _is_over(split)}
        return list(after.values())

    def trouble(self) -> str | None:
        return self._trouble

    def close(self) -> None:
        if self._reading is not None:
            self._reading.close()
        if self._group is not None:
            self._group.close()

    def _join(self, group: PravegaGroup) -> None:
        self._joined = frozenset()  # the next plan joins again if this join fails
        group.join(self._going)
        self._joined = self._streams()

    def _streams(self) -> frozenset[str]:
        return frozenset(split.stream for split in self._going)

    def _checkpoint(self, group: PravegaGroup) -> Mapping[tuple[str, int], int] | None:
        try:
            reached = group.checkpoint(WAIT_SECONDS)
            self._tell_wait(group, waits=reached is None)
        except GroupReset as reset:
            log.warning(
                "reader group %s: its checkpoint cannot be taken (%s), so the group is set to where the query stands. "
                "Hint: only one query may have the group.", self._name, reset,
            )  # fmt: skip
            self._waits_since = self._trouble = None  # the reset ends the checkpoint that waited
            self._join(group)
            return None
        return reached

    def _tell_wait(self, group: PravegaGroup, *, waits: bool) -> None:
        """Say for which readers a checkpoint waits, if it waits for long. Raises GroupReset."""
        if not waits:
            self._waits_since = self._trouble = None
        elif self._waits_since is None:
            self._waits_since = self._now_seconds()
        elif (waited := self._now_seconds() - self._waits_since) > SAY_AFTER_SECONDS:
            others = [name for name in group.readers() if not name.startswith("lowmark-")]
            told = (
                f"reader group {self._name}: a checkpoint waits since {waited:.0f} seconds for its readers "
                f"{', '.join(others) or '(none but the own one)'}. Hint: say readerOffline for readers that have died."
            )
            if self._trouble is None:
                log.warning("%s", told)
            self._trouble = told

    # -- in a task

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        if self._reading is None:
            self._reading = read_slices(self._source, list(self._splits.values()), count=self._counted.append)
        part = next(self._reading, None)
        if part is None:
            for name, count in added_up(self._counted).items():
                self._metrics.counter(name).inc(int(count))
            return InputStatus.END_OF_INPUT
        output.collect(part.split_id, part.rows)
        return InputStatus.MORE_AVAILABLE

    def is_available(self) -> Future[None]:
        raise AssertionError("there is always more, or an end")

    def notify_no_more_splits(self) -> None:
        """Do nothing, because a task gets all its slices before."""


def standing_after(
    splits: Sequence[PravegaSplit], reached: Mapping[tuple[str, int], int], ends: Mapping[str, SplitEnd]
) -> dict[str, PravegaSplit] | None:
    """Return the splits at a checkpoint that has `reached` some bytes; None: the length of a segment is unknown.

    For a finished split `start` is its `stop`. A segment without a position in the checkpoint was read to its end, or
    waits for a predecessor.
    """
    after: dict[str, PravegaSplit] = {}
    for split in sorted(splits, key=lambda each: (segment_epoch(each.segment), each.split_id)):
        at = reached.get((split.stream, split.segment))
        if at is not None:
            after[split.split_id] = replace(split, start=max(split.start, at))
        elif any(parent in after and not _is_over(after[parent]) for parent in split.parents):
            after[split.split_id] = split
        else:
            end = ends.get(split.split_id)
            if end is None:
                return None
            stop = end.position if end.finished else None
            after[split.split_id] = replace(split, start=end.position, stop=stop)
    return after


def _goes_on(split: PravegaSplit, end: SplitEnd | None) -> bool:
    return end is not None and (end.position > split.start or end.finished)


def _has_ended(split: PravegaSplit, end: SplitEnd | None) -> bool:
    return end is not None and end.finished and end.position == split.start


def _is_over(split: PravegaSplit) -> bool:
    return split.stop is not None and split.start >= split.stop
