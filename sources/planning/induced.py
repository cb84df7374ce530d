"""Batches of a source whose system decides when a checkpoint is (FLIP-27's `ExternallyInducedSourceReader`).

The reader runs on the driver and reads nothing: it says when a checkpoint is due, and its snapshot where it ends.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Generic

from lowmark.sources.api import ExternallyInducedSourceReader, Source, SourceEvent, SplitT
from lowmark.sources.metric_group import MetricGroup
from lowmark.sources.slicing import PlannedSlice, SlicePlan

__all__ = ["InducedBatches"]


class InducedBatches(Generic[SplitT]):
    """Plans what the reader of a source says.

    Args:
        source: it is externally induced.
        name: of the stream, for errors.
        live: the splits that go on from the checkpoint.
    """

    def __init__(self, source: Source[SplitT, Any], name: str, live: Sequence[SplitT]) -> None:
        self._name = name
        self._due: dict[int, int] = {}  # checkpoint -> what the reader calls it, until it is committed
        reader = source.create_reader(_DriverContext())
        if not isinstance(reader, ExternallyInducedSourceReader):
            raise TypeError(
                f'source "{name}": {type(source).__name__} says it is externally induced, so create_reader '
                f"has to make an ExternallyInducedSourceReader, got {type(reader).__name__}."
            )
        self._reader: ExternallyInducedSourceReader[SplitT] = reader
        reader.add_splits(live)
        reader.start()

    def plan(self, splits: Sequence[SplitT], known: Collection[str], checkpoint: int) -> SlicePlan:
        """Return a batch that ends where the reader's snapshot says; an empty one until it says that one is due.

        Args:
            splits: what there is to read.
            known: ids of those that the reader was given before.
            checkpoint: the batch's.

        Raises:
            ValueError: a split without an end is missing in the snapshot.
        """
        fresh = [split for split in splits if split.split_id not in known]
        if fresh:
            self._reader.add_splits(fresh)
        due = self._reader.should_trigger_checkpoint()
        if due is None:
            return SlicePlan({}, None, {}, 0)
        self._due[checkpoint] = due
        standing = {split.split_id: split for split in self._reader.snapshot_state(due)}
        slices = {}
        for split in splits:
            after = standing.get(split.split_id)
            stop = after.start if after is not None else split.stop
            if stop is None:
                raise ValueError(
                    f'source "{self._name}", checkpoint {due}: split {split.split_id} is not in the snapshot of the '
                    "reader, so it is finished, but it has no stop. Expected a snapshot of every split that goes on."
                )
            slices[split.split_id] = PlannedSlice(split.start, stop, stop - split.start, None, 0, after is None)
        return SlicePlan(slices, None, {}, 0)

    def committed(self, checkpoint: int) -> None:
        """The batch of a checkpoint was committed."""
        if checkpoint in self._due:
            self._reader.notify_checkpoint_complete(self._due[checkpoint])
            self._due = {each: due for each, due in self._due.items() if each > checkpoint}

    def close(self) -> None:
        self._reader.close()


class _DriverContext:
    """The context of a reader on the driver."""

    subtask = 0

    def __init__(self) -> None:
        self.metric_group = MetricGroup()

    def send_split_request(self) -> None:
        """The planner asks for all splits anyway."""

    def send_source_event_to_coordinator(self, event: SourceEvent) -> None:
        raise NotImplementedError(f"a reader on the driver sends no events, got {event!r}")
