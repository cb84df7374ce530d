"""Which splits were given to which reader since which checkpoint, so that they can be given back.

A split is in a checkpoint of its reader if it was assigned before that checkpoint was taken. When a reader goes back to
checkpoint N, it lacks what was assigned after N: those splits belong to the enumerator again. What was assigned
before a completed checkpoint is never asked for again, and is forgotten.

Source: `org.apache.flink.runtime.source.coordinator.SplitAssignmentTracker`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic

from lowmark.sources.api import SplitsAssignment, SplitT

__all__ = ["SplitAssignmentTracker"]

Assigned = dict[int, list[SplitT]]


class SplitAssignmentTracker(Generic[SplitT]):
    """Remembers assignments by the first checkpoint that has them.

    >>> from lowmark.sources import SourceSplit, SplitsAssignment
    >>> a, b = SourceSplit(split_id="a"), SourceSplit(split_id="b")
    >>> tracker = SplitAssignmentTracker()
    >>> tracker.record(SplitsAssignment({0: [a]}))
    >>> tracker.checkpoint(1)
    >>> tracker.record(SplitsAssignment({0: [b]}))
    >>> [[split.split_id for split in splits] for splits in tracker.take_back(0, 0)]
    [['a'], ['b']]
    """

    def __init__(self) -> None:
        self._by_checkpoint: dict[int, Assigned[SplitT]] = {}
        self._uncheckpointed: Assigned[SplitT] = {}

    def __len__(self) -> int:
        """How many assigned splits may still have to be given back."""
        return sum(
            len(splits) for each in (*self._by_checkpoint.values(), self._uncheckpointed) for splits in each.values()
        )

    @property
    def uncheckpointed(self) -> Mapping[int, Sequence[SplitT]]:
        """What was assigned since the last checkpoint, by reader, in order."""
        return self._uncheckpointed

    @property
    def by_checkpoint(self) -> Mapping[int, Mapping[int, Sequence[SplitT]]]:
        """What was assigned since the last completed checkpoint: first checkpoint that has it -> reader -> splits."""
        return self._by_checkpoint

    def record(self, assignment: SplitsAssignment[SplitT]) -> None:
        """Splits were given to readers."""
        for subtask, splits in assignment.assignment.items():
            self._uncheckpointed.setdefault(subtask, []).extend(splits)

    def checkpoint(self, checkpoint_id: int) -> None:
        """A checkpoint was taken: what was given until now is in it. Ids never go back."""
        taken = self._by_checkpoint.setdefault(checkpoint_id, {})
        for subtask, splits in self._uncheckpointed.items():
            taken.setdefault(subtask, []).extend(splits)
        self._uncheckpointed = {}

    def complete(self, checkpoint_id: int) -> None:
        """A checkpoint was completed, and with it all earlier ones."""
        self._by_checkpoint = {at: given for at, given in self._by_checkpoint.items() if at > checkpoint_id}

    def take_back(self, subtask: int, checkpoint_id: int) -> tuple[list[SplitT], list[SplitT]]:
        """Forget, and return, what a reader that goes back to a checkpoint was given after it.

        Returns:
            What a later checkpoint has as assigned, and what none has; both in the order of assignment.
        """
        later = sorted(at for at in self._by_checkpoint if at > checkpoint_id)
        checkpointed = [split for at in later for split in self._by_checkpoint[at].pop(subtask, [])]
        return checkpointed, self._uncheckpointed.pop(subtask, [])

    def restore(self, checkpoint_id: int | None) -> None:
        """Everything goes back to a checkpoint, or to the beginning: forget what was assigned later."""
        self._uncheckpointed = {}
        self._by_checkpoint = {
            at: given for at, given in self._by_checkpoint.items() if checkpoint_id is not None and at <= checkpoint_id
        }
