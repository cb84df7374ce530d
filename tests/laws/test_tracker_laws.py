"""Merging trackers is commutative, associative and idempotent: tasks may be retried and merged in any way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from lowmark.watermark.splits.tracker import SplitMark, SplitTracker

from tests.laws.strategies import LAWS, splits, watermarks_us

rows = st.lists(st.tuples(st.none() | splits, st.none() | watermarks_us, st.integers(0, 2)), max_size=12)


def tracker_of(observed: list[tuple[str | None, int | None, int]]) -> SplitTracker:
    tracker = SplitTracker()
    for split, ts_us, cell in observed:
        tracker.observe(split, ts_us, cell, latest_us=2**62)
    return tracker


def merged(*trackers: SplitTracker) -> SplitTracker:
    every = SplitTracker()
    for tracker in trackers:
        every.absorb(tracker)
    return every


trackers = rows.map(tracker_of)


@LAWS
@given(trackers, trackers)
def test_merge_is_commutative(left: SplitTracker, right: SplitTracker) -> None:
    assert merged(left, right) == merged(right, left)


@LAWS
@given(trackers, trackers, trackers)
def test_merge_is_associative(one: SplitTracker, two: SplitTracker, three: SplitTracker) -> None:
    assert merged(one, two, three) == merged(one, merged(two, three))


@LAWS
@given(trackers)
def test_merge_is_idempotent_and_the_empty_tracker_adds_nothing(tracker: SplitTracker) -> None:
    assert tracker == merged(tracker) == merged(tracker, tracker) == merged(tracker, SplitTracker())


@LAWS
@given(rows)
def test_the_marks_are_their_definition(observed: list[tuple[str | None, int | None, int]]) -> None:
    good = [(split, ts) for split, ts, _ in observed if split is not None and ts is not None and ts <= 2**62]
    times = {split: [ts for name, ts in good if name == split] for split, _ in good}
    tracker = tracker_of(observed)

    assert {s: SplitMark(max(ts), min(ts), len(ts)) for s, ts in times.items()} == tracker.marks()
    assert len(observed) == tracker.counts().rows


@LAWS
@given(rows, st.integers(0, 12))
def test_a_task_that_was_cut_short_and_retried_counts_once(
    observed: list[tuple[str | None, int | None, int]], cut: int
) -> None:
    whole = tracker_of(observed)

    assert whole == merged(tracker_of(observed[:cut]), whole)
