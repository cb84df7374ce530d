"""Whether a split that was left out or new came in below the low watermark: its first rows decide, however it came."""

from __future__ import annotations

import pytest
from lowmark.watermark import SplitId
from lowmark.watermark.splits.events import BatchPlanned, Event, SplitReturnedLate

from tests.watermark.splits.history import BY_TIME, PLAIN, History, at, batch

IDLENESS = PLAIN.with_idleness("10 seconds")


def without(split: str = "a") -> History:
    """Return a stream whose split a was left out, with a low watermark of 100."""
    history = History(IDLENESS)
    history.on(0, batch(0, 0, {split: 50, "b": 90}))
    for second in (4, 8, 11):
        history.on(second, batch(second, second, {"b": 100}))
    assert (history.state(split), history.low_us) == ("idle", 100)
    return history


def planned(second: float, claims: dict[SplitId, int], backlog: dict[SplitId, int]) -> Event:
    return BatchPlanned(at(second), claims, backlog)


def test_the_first_rows_of_a_split_that_waiting_rows_brought_back_are_late() -> None:
    history = without()
    assert history.on(13, planned(13, {}, {"a": 5})) == [("a", "active")]

    late = history.watermarks.handle(batch(13, 13, {"a": 60, "b": 110}, rows={"a": 4}), at(14))
    assert late == [SplitReturnedLate("a", 40, 4)]
    assert history.on(15, batch(15, 15, {"a": 70, "b": 120}, rows={"a": 4})) == []
    assert history.status(15).returned_late == 1


def test_the_first_rows_are_late_although_the_claim_behind_them_is_beyond_the_low_watermark() -> None:
    """As our sources read: the slice has all old rows of the split, and the claim is of the row after the slice."""
    history = without()
    assert history.on(13, planned(13, {"a": 104, "b": 104}, {"a": 5})) == [("a", "active"), ("low", 104)]

    late = history.watermarks.handle(batch(13, 13, {"a": 104, "b": 110}, first_us={"a": 60}, rows={"a": 4}), at(14))
    assert late == [SplitReturnedLate("a", 40, 4)]
    assert history.status(15).returned_late == 1


@pytest.mark.parametrize("first_us", [100, 103])
def test_rows_are_judged_by_the_low_watermark_at_which_their_split_came_in(first_us: int) -> None:
    history = without()
    history.on(13, planned(13, {"a": 104, "b": 104}, {"a": 5}))
    history.on(14, batch(13, 13, {"a": 104, "b": 110}, first_us={"a": first_us}, rows={"a": 4}))

    assert history.status(15).returned_late == 0


def test_a_claim_below_the_low_watermark_is_late_and_the_rows_before_it_are_the_same_return() -> None:
    history = without()
    assert history.on(13, planned(13, {"a": 60}, {"a": 5})) == [("a", "active"), ("a late by", 40)]
    assert history.on(14, batch(13, 13, {"a": 60, "b": 110}, first_us={"a": 51}, rows={"a": 4})) == []


def test_waiting_rows_that_vanish_do_not_make_the_next_return_late() -> None:
    history = without()
    history.on(13, planned(13, {}, {"a": 5}))
    for second in (17, 21, 25):
        history.on(second, batch(second, second, {"b": 120}, backlog={"a": 0}))
    assert history.state("a") == "idle"

    assert history.on(26, batch(26, 26, {"a": 130, "b": 130}, rows={"a": 1})) == [("a", "active"), ("low", 130)]


def test_a_new_split_whose_earliest_row_is_below_the_low_watermark_came_in_late() -> None:
    history = History(BY_TIME)
    history.on(0, batch(0, 0, {"b": 100}))

    effects = history.on(1, batch(1, 1, {"n": 120, "b": 120}, first_us={"n": 90, "b": 101}, rows={"n": 2}))
    assert ("n late by", 10) in effects
