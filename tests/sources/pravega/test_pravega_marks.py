"""Marks of time in Pravega's streams: the few kept marks give the same times as all marks. No Pravega is needed."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from lowmark.sources.pravega import marks
from lowmark.sources.pravega.event_time import NO_TIME
from lowmark.sources.pravega.marks import MARKS_AT_ONCE, MarkWindow, notes_of_slice
from lowmark.sources.pravega.notes import ENDLESS, Mark, Marks, notes_of
from lowmark.sources.pravega.segment import split_of

from tests.laws.strategies import draws


class Marked:
    """The notes of a stream's writers, in the form of `PravegaClient.marks`."""

    def __init__(self) -> None:
        self.all: list[Mark] = []
        self.head = self.read = self.asked = 0
        self.origin = "marks/0"

    def note(self, lower: int, positions: dict[int, int]) -> None:
        place = self.all[-1].after if self.all else 0
        self.all.append(Mark(lower, positions, place, place + 50))

    def marks(self, stream: str, place: int = 0, most: int | None = None, origin: str = "") -> Marks:
        place = place if origin in {"", self.origin} else 0
        first = max(place, self.head) // 50
        found = self.all[first:] if most is None else self.all[first : first + most]
        self.read, self.asked = self.read + len(found), self.asked + 1
        return Marks(self.origin, found)


def test_marks_that_no_unread_segment_meets_are_not_kept() -> None:
    """A year of a stream with a mark every ten seconds, read without lag; one segment gets no more events."""
    client: Any = (marked := Marked())
    window = MarkWindow(client, "orders")
    busy, idle = split_of("orders", 0), split_of("orders", 1, start=70)
    most = 0
    for n in range(10_000):
        marked.note(n, {0: 100 * n, 1: 70})
        if n % 10 == 0:
            busy = replace(busy, start=max(0, 100 * n - 250))
            window.read_on([busy, idle])
            most = max(most, len(window.marks))
            assert notes_of(window.marks, busy, 1_000).known == 100 * n
            assert notes_of(window.marks, idle, 1_000).at_us(np.array([70])).tolist() == [n * 1_000]
    assert most < 20
    assert marked.read == 10_000 - 9, "each mark once"
    # A restart reads marks from the checkpoint's place instead of their head.
    standing = [replace(split, noted_from=window.floor_place(split, split.start)) for split in (busy, idle)]
    marked.read, again = 0, MarkWindow(client, "orders")
    again.read_on(standing)
    assert (again.marks[0], marked.read < 20) == (window.marks[0], True)


def test_marks_far_ahead_are_not_kept_before_they_are_near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "MOST_POSITIONS", 5_000)
    client: Any = (marked := Marked())
    window = MarkWindow(client, "orders")
    for n in range(40_000):
        marked.note(n, {0: 100 * n, 1: 100 * n})
    splits, plans = [split_of("orders", 0), split_of("orders", 1)], 0
    while splits[0].start < 100 * 39_999:
        window.read_on(splits)
        assert len(window.marks) <= 5_000 / 2 + MARKS_AT_ONCE
        known = notes_of(window.marks, splits[0], 1_000).known
        assert known > splits[0].start, "it goes on"
        splits, plans = [replace(split, start=known) for split in splits], plans + 1
    assert plans < 40


def test_marks_that_were_truncated_are_passed_over_and_a_position_before_reads_again() -> None:
    client: Any = (marked := Marked())
    window = MarkWindow(client, "orders")
    for n in range(5_000):
        marked.note(n, {0: 100 * n})
    split = split_of("orders", 0, start=450_000)
    window.read_on([split])
    assert window.begin == 4_500 * 50
    early = replace(split, start=200_000)  # a batch is planned again
    window.read_on([early])
    assert notes_of(window.marks, early, 1_000).at_us(np.array([200_050])).tolist() == [2_000_000]
    marked.head = 3_000 * 50
    again = MarkWindow(client, "orders")
    again.read_on([early])
    left = notes_of(again.marks, early, 1_000)
    assert left.at_us(np.array([200_050, 300_050])).tolist() == [NO_TIME, 3_000_000]
    assert left.known == 499_900
    sliced = notes_of_slice(client, replace(split, stop=460_000, noted_from=4_400 * 50), 1_000)
    assert sliced.at_us(np.array([450_050, 459_950])).tolist() == [4_500_000, 4_599_000]


def test_slices_that_lie_near_each_other_ask_for_marks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "MOST_POSITIONS", 3_000)
    client: Any = (marked := Marked())
    for n in range(4_000):
        marked.note(n, dict.fromkeys(range(8), 10 * n))
    slices = [split_of("orders", segment, 10_000 + 7 * segment, 10_500) for segment in range(8)]
    slices = [replace(each, noted_from=each.start // 10 * 50) for each in slices]
    for each in slices:
        positions = np.arange(each.start, 10_500)
        assert (notes_of_slice(client, each, 1).at_us(positions) == positions // 10).all()
    assert marked.asked == 1, "the first of them asked for all"
    early = replace(slices[3], start=100, noted_from=10 * 50, stop=39_990)
    positions = np.arange(100, 39_990)
    assert (notes_of_slice(client, early, 1).at_us(positions) == positions // 10).all(), "as many as it takes"
    late = replace(slices[5], start=39_000, noted_from=3_900 * 50, stop=39_500)
    assert notes_of_slice(client, late, 1).at_us(np.array([39_005])).tolist() == [3_900]
    notes_of_slice(client, slices[0], 1)
    assert len(marks._windows[client, "orders"][1].marks) <= 3_000 / 8 + 2 * MARKS_AT_ONCE, "and then few again"


def test_a_stream_that_is_made_anew_is_not_read_by_the_marks_of_the_one_before() -> None:
    client: Any = (marked := Marked())
    window = MarkWindow(client, "orders")
    for n in range(100):
        marked.note(1_000 + n, {0: 10 * n})
    before = split_of("orders", 0, 500, 600)
    assert notes_of_slice(client, before, 1).at_us(np.array([500])).tolist() == [1_050]
    window.read_on([before])
    marked.all.clear()
    for n in range(100):
        marked.note(n, {1: 10 * n})  # not of a later epoch, but with another number
    after = split_of("orders", 1, 500, 600)
    marked.origin = "marks/1"
    assert notes_of_slice(client, after, 1).at_us(np.array([500])).tolist() == [50]
    window.read_on([after])
    assert notes_of(window.marks, after, 1).at_us(np.array([500])).tolist() == [50]


@pytest.mark.parametrize("seed", range(draws(10)))
def test_what_a_window_of_marks_says_is_what_all_of_them_say(seed: int) -> None:
    """While segments are read and scaled, the times of all unread positions agree."""
    rng = random.Random(seed)
    client: Any = (marked := Marked())
    window = MarkWindow(client, "orders")
    splits, ends, epoch = [split_of("orders", 0)], {0: 0}, 0
    for now in range(1, 120):
        for segment in ends:
            ends[segment] += 10 * rng.randrange(3)
        if rng.random() < 0.5:
            marked.note(now, dict(ends))
        if rng.random() < 0.05:
            epoch += 1
            parent = rng.choice(sorted(ends))
            closed = ends.pop(parent)
            children = [epoch << 32 | number for number in (2 * epoch, 2 * epoch + 1)]
            if rng.random() < 0.5:  # a mark may know only one of two successors
                marked.note(now, {**ends, children[0]: 5, parent: closed})
            ends |= dict.fromkeys(children, 10)
            splits += [split_of("orders", child, parents=(parent,)) for child in children]
        window.read_on(splits)
        for n, split in enumerate(splits):
            here, whole = notes_of(window.marks, split, 1), notes_of(marked.all, split, 1)
            positions = np.arange(split.start, split.start + 200, 10)
            assert (here.at_us(positions) == whole.at_us(positions)).all(), f"seed {seed}: {split}"
            assert here.known == whole.known, f"seed {seed}: {split}"
            sliced = replace(split, stop=split.start + 50, noted_from=window.floor_place(split, split.start))
            assert (notes_of_slice(client, sliced, 1).at_us(positions[:5]) == whole.at_us(positions[:5])).all(), (
                f"seed {seed}"
            )
            if rng.random() < 0.3 and whole.known != ENDLESS:
                start = rng.randrange(split.start, max(split.start, whole.known) + 1)
                splits[n] = replace(split, start=start, noted_from=window.floor_place(split, start))
        splits = [split for split in splits if notes_of(marked.all, split, 1).known != ENDLESS or rng.random() < 0.9]


def test_a_mark_that_knows_one_of_two_new_segments_lies_before_the_other() -> None:
    """Writers learn of a scaling segment by segment: the mark still has the predecessor of the second segment."""
    left, right = 1 << 32 | 2, 1 << 32 | 3
    seen = [Mark(10, {0: 100, 1: 100}), Mark(20, {left: 5, 1: 130}), Mark(30, {left: 9, right: 40})]
    late = notes_of(seen, split_of("orders", right, parents=(1,)), 1)
    assert (late.known, late.at_us(np.array([0, 39, 40])).tolist()) == (40, [20, 20, 30])
    assert notes_of(seen, split_of("orders", 1), 1).known == ENDLESS
