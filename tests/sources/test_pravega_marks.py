"""Marks of time in Pravega's streams: few are kept, and what they say is what all of them say. No Pravega is needed."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from lowmark.sources.pravega import marks
from lowmark.sources.pravega.event_time import NO_TIME
from lowmark.sources.pravega.marks import MarkWindow, Noted
from lowmark.sources.pravega.notes import ENDLESS, Mark
from lowmark.sources.pravega.segment import split_of


class Marked:
    """What a stream's writers have noted, as `PravegaClient.marks` hands it out."""

    def __init__(self) -> None:
        self.all: list[Mark] = []
        self.head = self.read = 0

    def note(self, lower: int, positions: dict[int, int]) -> None:
        place = self.all[-1].after if self.all else 0
        self.all.append(Mark(lower, lower, positions, place, place + 50))

    def marks(self, stream: str, place: int = 0, most: int | None = None) -> list[Mark]:
        first = max(place, self.head) // 50
        found = self.all[first:] if most is None else self.all[first : first + most]
        self.read += len(found)
        return found


def test_marks_that_no_unread_segment_meets_are_not_kept() -> None:
    """A stream of a year, by a mark every ten seconds, that is kept up with; one segment of it has nothing new."""
    marked, noted, window = Marked(), Noted(1_000), MarkWindow()
    client: Any = marked
    busy, idle = split_of("orders", 0), split_of("orders", 1, start=70)
    most = 0
    for n in range(10_000):
        marked.note(n, {0: 100 * n, 1: 70})
        if n % 10 == 0:
            busy = replace(busy, start=max(0, 100 * n - 250))
            noted.read_on(client, "orders", window, [busy, idle])
            most = max(most, len(window.marks))
            assert noted.in_window(window.marks, busy).known == 100 * n
            assert noted.in_window(window.marks, idle).at_us(np.array([70])).tolist() == [n * 1_000]
    assert most < 20
    assert marked.read == 10_000 - 9, "each mark once"
    # A restart goes on where the checkpoint says that marks are needed, instead of at their head.
    standing = [replace(split, noted_from=window.floor_place(split, split.start)) for split in (busy, idle)]
    marked.read, again = 0, MarkWindow()
    noted.read_on(client, "orders", again, standing)
    assert (again.marks[0], marked.read < 20) == (window.marks[0], True)


def test_marks_far_ahead_are_not_kept_before_they_are_near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "MOST_POSITIONS", 5_000)
    marked, noted, window = Marked(), Noted(1_000), MarkWindow()
    client: Any = marked
    for n in range(40_000):
        marked.note(n, {0: 100 * n, 1: 100 * n})
    splits, plans = [split_of("orders", 0), split_of("orders", 1)], 0
    while splits[0].start < 100 * 39_999:
        noted.read_on(client, "orders", window, splits)
        assert len(window.marks) <= 5_000 / 2 + marks.MARKS_AT_ONCE
        known = noted.in_window(window.marks, splits[0]).known
        assert known > splits[0].start, "it goes on"
        splits, plans = [replace(split, start=known) for split in splits], plans + 1
    assert plans < 40


def test_marks_that_were_truncated_are_passed_over_and_a_position_before_reads_again() -> None:
    marked, noted, window = Marked(), Noted(1_000), MarkWindow()
    client: Any = marked
    for n in range(5_000):
        marked.note(n, {0: 100 * n})
    split = split_of("orders", 0, start=450_000)
    noted.read_on(client, "orders", window, [split])
    assert window.begin == 4_500 * 50
    early = replace(split, start=200_000)  # a batch is planned once more
    noted.read_on(client, "orders", window, [early])
    assert noted.in_window(window.marks, early).at_us(np.array([200_050])).tolist() == [2_000_000]
    marked.head = 3_000 * 50
    again = MarkWindow()
    noted.read_on(client, "orders", again, [early])
    left = noted.in_window(again.marks, early)
    assert left.at_us(np.array([200_050, 300_050])).tolist() == [NO_TIME, 3_000_000]
    assert left.known == 499_900
    sliced = noted.of(client, replace(split, stop=460_000, noted_from=4_400 * 50))
    assert sliced.at_us(np.array([450_050, 459_950])).tolist() == [4_500_000, 4_599_000]


@pytest.mark.parametrize("seed", range(10))
def test_what_a_window_of_marks_says_is_what_all_of_them_say(seed: int) -> None:
    """While segments are read and scaled: of every position that is not read yet."""
    rng = random.Random(seed)
    marked, noted, window = Marked(), Noted(1), MarkWindow()
    client: Any = marked
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
            if rng.random() < 0.5:  # of two that carry it on, a mark may know one only
                marked.note(now, {**ends, children[0]: 5, parent: closed})
            ends |= dict.fromkeys(children, 10)
            splits += [split_of("orders", child, parents=(parent,)) for child in children]
        noted.read_on(client, "orders", window, splits)
        for n, split in enumerate(splits):
            here, whole = noted.in_window(window.marks, split), noted.in_window(marked.all, split)
            positions = np.arange(split.start, split.start + 200, 10)
            assert (here.at_us(positions) == whole.at_us(positions)).all(), f"seed {seed}: {split}"
            assert here.known == whole.known, f"seed {seed}: {split}"
            sliced = replace(split, stop=split.start + 50, noted_from=window.floor_place(split, split.start))
            assert (noted.of(client, sliced).at_us(positions[:5]) == whole.at_us(positions[:5])).all(), f"seed {seed}"
            if rng.random() < 0.3 and whole.known != ENDLESS:
                start = rng.randrange(split.start, max(split.start, whole.known) + 1)
                splits[n] = replace(split, start=start, noted_from=window.floor_place(split, start))
        splits = [
            split for split in splits if noted.in_window(marked.all, split).known != ENDLESS or rng.random() < 0.9
        ]


def test_a_mark_that_knows_one_of_two_new_segments_lies_before_the_other() -> None:
    """Writers learn of a scaling segment by segment: what the second one carries on is in the mark yet."""
    left, right = 1 << 32 | 2, 1 << 32 | 3
    seen = [Mark(10, 10, {0: 100, 1: 100}), Mark(20, 20, {left: 5, 1: 130}), Mark(30, 30, {left: 9, right: 40})]
    late = Noted(1).in_window(seen, split_of("orders", right, parents=(1,)))
    assert (late.known, late.at_us(np.array([0, 39, 40])).tolist()) == (40, [20, 20, 30])
    assert Noted(1).in_window(seen, split_of("orders", 1)).known == ENDLESS
