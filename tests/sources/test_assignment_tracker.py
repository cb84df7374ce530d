"""What a reader must give back, and no more."""

from __future__ import annotations

from lowmark.sources import SourceSplit, SplitsAssignment
from lowmark.sources.coordinator.assignment_tracker import SplitAssignmentTracker

from tests.sources.coordinating import split


def record(tracker: SplitAssignmentTracker[SourceSplit], subtask: int, *numbers: int) -> None:
    tracker.record(SplitsAssignment({subtask: [split(number) for number in numbers]}))


def numbers(splits: list[SourceSplit]) -> list[int]:
    return [int(each.split_id) for each in splits]


def tracked() -> SplitAssignmentTracker[SourceSplit]:
    """Reader 0: split 0 in checkpoint 0, 1 in 1, 2 in 2, 3 in none. Reader 1: split 9 in 1."""
    tracker = SplitAssignmentTracker[SourceSplit]()
    for checkpoint_id in range(3):
        record(tracker, 0, checkpoint_id)
        if checkpoint_id == 1:
            record(tracker, 1, 9)
        tracker.checkpoint(checkpoint_id)
    record(tracker, 0, 3)
    return tracker


def test_a_reader_gives_back_what_it_was_assigned_after_its_checkpoint_in_order() -> None:
    for checkpoint_id, expected in ((-1, [0, 1, 2]), (0, [1, 2]), (1, [2]), (2, []), (3, [])):
        checkpointed, recent = tracked().take_back(0, checkpoint_id)
        assert (expected, [3]) == (numbers(checkpointed), numbers(recent)), checkpoint_id


def test_what_was_given_back_is_forgotten_and_the_others_keep_theirs() -> None:
    tracker = tracked()
    tracker.take_back(0, 0)

    assert tracker.take_back(0, -1) == ([split(0)], [])
    assert tracker.take_back(1, 0) == ([split(9)], [])


def test_a_completed_checkpoint_and_the_earlier_ones_need_not_be_remembered() -> None:
    tracker = tracked()
    tracker.complete(1)

    assert list(tracker.by_checkpoint) == [2]
    assert len(tracker) == 2
    assert numbers(tracker.take_back(0, -1)[0]) == [2]


def test_a_checkpoint_that_is_taken_twice_has_both_parts() -> None:
    tracker = tracked()
    tracker.checkpoint(2)

    assert tracker.take_back(0, 1) == ([split(2), split(3)], [])
    assert tracker.uncheckpointed == {}


def test_going_back_to_a_checkpoint_forgets_what_came_later() -> None:
    tracker, fresh = tracked(), tracked()
    tracker.restore(1)
    fresh.restore(None)

    assert list(tracker.by_checkpoint) == [0, 1]
    assert tracker.uncheckpointed == {}
    assert len(fresh) == 0


def test_checkpoint_zero_is_a_checkpoint() -> None:
    tracker = tracked()
    tracker.restore(0)

    assert list(tracker.by_checkpoint) == [0]
