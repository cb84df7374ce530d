"""Batches of a source whose system decides the checkpoints (FLIP-27's `ExternallyInducedSourceReader`).

The reader runs on the driver and reads nothing: it says when a checkpoint is due, and its snapshot says where it ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic

from lowmark.sources.api import ExternallyInducedSourceReader, Source, SourceEvent, SplitPlanner, SplitT
from lowmark.sources.closing import closed_on_error
from lowmark.sources.metric_group import MetricGroup
from lowmark.sources.slicing import NoRowsReason, PlannedSlice, SlicePlan


class InducedBatches(Generic[SplitT]):
    """Plans batches as the reader of a source says."""

    def __init__(
        self, source: Source[SplitT, Any], name: str, live: Sequence[SplitT], planner: SplitPlanner[SplitT]
    ) -> None:
        self._name, self._planner = name, planner
        self._due: dict[int, int] = {}  # checkpoint -> the reader's id for it, until it is committed
        reader = source.create_reader(_DriverContext())
        if not isinstance(reader, ExternallyInducedSourceReader):
            raise TypeError(
                f'source "{name}": {type(source).__name__} says it is externally induced, so create_reader '
                f"has to make an ExternallyInducedSourceReader, got {type(reader).__name__}."
            )
        self._reader: ExternallyInducedSourceReader[SplitT] = reader
        self._given = {split.split_id for split in live}  # given to the reader, and not finished
        with closed_on_error(reader.close):
            reader.use_planner(planner)
            reader.add_splits(live)
            reader.start()

    def plan(self, splits: Sequence[SplitT], checkpoint: int, *, targets: Mapping[str, int] | None) -> SlicePlan:
        """Return a batch that ends at the reader's snapshot; an empty batch until the reader says that one is due.

        `targets` has the position of each split up to which this run reads at least; None: the run does not end.
        """
        fresh = [split for split in splits if split.split_id not in self._given]
        if fresh:
            self._reader.add_splits(fresh)
        self._given = {split.split_id for split in splits}
        short = () if targets is None else tuple(each for each in splits if each.start < targets.get(each.split_id, 0))
        if targets is not None and not short:
            return SlicePlan({}, None, {})
        due = self._reader.should_trigger_checkpoint()
        if due is None:
            return SlicePlan({}, None, {split.split_id: NoRowsReason.CHECKPOINT for split in short})
        self._due[checkpoint] = due
        standing = {split.split_id: split for split in self._reader.snapshot_state(due)}
        slices = {}
        for split in splits:
            after = standing.get(split.split_id)
            finished = after is None or (after.stop is not None and after.start >= after.stop)
            stop = after.start if after is not None else split.stop
            if stop is None:
                raise ValueError(
                    f'source "{self._name}", checkpoint {due}: split {split.split_id} is not in the snapshot of the '
                    "reader, so it is finished, but it has no stop. Expected a snapshot of every split that goes on, "
                    "and of one whose end became known, with its stop."
                )
            rows = self._planner.rows_before(split, stop) if stop > split.start else 0
            slices[split.split_id] = PlannedSlice(split.start, stop, rows, None, 0, finished)
        return SlicePlan(slices, None, {})

    def committed(self, checkpoint: int) -> None:
        if checkpoint in self._due:
            self._reader.notify_checkpoint_complete(self._due[checkpoint])
            self._due = {each: due for each, due in self._due.items() if each > checkpoint}

    def trouble(self) -> str | None:
        return self._reader.trouble()

    def close(self) -> None:
        self._reader.close()


class _DriverContext:
    subtask = 0

    def __init__(self) -> None:
        self.metric_group = MetricGroup()

    def send_split_request(self) -> None:
        """Do nothing, because the planner asks for all splits."""

    def send_source_event_to_coordinator(self, event: SourceEvent) -> None:
        raise NotImplementedError(f"a reader on the driver sends no events, got {event!r}")
