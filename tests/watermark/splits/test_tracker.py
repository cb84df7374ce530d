from __future__ import annotations

from lowmark.watermark.splits.tracker import SplitMark, SplitTracker


def test_marks_fold_the_cells_of_a_split() -> None:
    tracker = SplitTracker()
    tracker.observe("b", 7, cell=0)
    tracker.observe("a", 30, cell=0)
    tracker.observe("a", 10, cell=1)

    assert [("a", SplitMark(30, 10, 2)), ("b", SplitMark(7, 7, 1))] == list(tracker.marks().items())


def test_a_retried_task_overwrites_itself() -> None:
    first, retried = SplitTracker(), SplitTracker()
    for tracker in (first, retried):
        tracker.observe("a", 0, cell=3)
        tracker.observe("a", 5, cell=3)

    first.absorb(retried)
    assert {"a": SplitMark(5, 0, 2)} == first.marks()
    assert first.counts().rows == 2


def test_a_task_that_failed_half_way_counts_as_the_one_that_succeeded() -> None:
    half, whole = SplitTracker(), SplitTracker()
    half.observe("a", 5)
    for ts_us in (5, -1, 9):
        whole.observe("a", ts_us)

    half.absorb(whole)
    assert half == whole
    whole.absorb(half)
    assert half == whole


def test_merging_leaves_the_other_side_as_it_was() -> None:
    left, right = SplitTracker(), SplitTracker()
    left.observe("a", 1)
    right.observe("a", 2)
    left.absorb(right)

    assert (SplitMark(2, 1, 1), SplitMark(2, 2, 1)) == (left.marks()["a"], right.marks()["a"])


def test_rows_that_cannot_move_the_watermark_are_counted() -> None:
    tracker = SplitTracker()
    tracker.observe("a", 100, latest_us=100)
    tracker.observe("a", 101, latest_us=100)
    tracker.observe("a", None)
    tracker.observe(None, 50)
    tracker.observe("a", -1)
    counts = tracker.counts()

    assert (
        counts.rows,
        counts.future_rows,
        counts.null_time_rows,
        counts.null_split_rows,
        counts.before_epoch_rows,
        counts.dropped_rows,
    ) == (5, 1, 1, 1, 1, 0)
    assert {"a": SplitMark(100, -1, 2)} == tracker.marks()
    assert {"a": SplitMark(101, 101, 1)} == tracker.future_marks()
    assert tracker.newest_us() == 101


def test_many_rows_at_once_are_as_many_rows_one_by_one() -> None:
    one_by_one, at_once = SplitTracker(), SplitTracker()
    for ts_us in (3, 1, 2):
        one_by_one.observe("a", ts_us, cell=2)
    at_once.observe_many("a", SplitMark(3, 1, 3), cell=2)

    assert one_by_one == at_once
