"""The generator's laws: rows are a pure function of script, seed, split and position."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowmark.sources.generator import SCHEMA, SplitScript, StreamScript

TICK_US = 1_000_000
PUBLISHED = [708524, 1479936, 343027, 3375528, 3669348, 1800271, 3318861]  # after start_us
TICKS = 30
SHUFFLE_US = 3_500_000
SCRIPT = StreamScript(
    (
        SplitScript("regular", 7, last_us=9 * TICK_US),
        SplitScript("behind", 3, behind_us=5 * TICK_US, last_us=8 * TICK_US),
        SplitScript("silent", 5, silent_from_tick=11),
        SplitScript("stray", 4, stray_tick=20, stray_us=10**12, last_us=9 * TICK_US),
    ),
    start_us=1_700_000_000_000_000,
    ticks=TICKS,
    tick_us=TICK_US,
    shuffle_us=SHUFFLE_US,
)
NAMES = [split.name for split in SCRIPT.splits]
# A law holds however slow the machine is, and the first call also loads Arrow.
untimed = settings(deadline=None)
positions = st.integers(min_value=-1, max_value=SCRIPT.end + 2)
seeds = st.integers()


def times(split: str, start: int = 0, end: int = SCRIPT.end, seed: int = 1) -> list[int]:
    made: list[int] = SCRIPT.times_us(split, start, end, seed=seed).tolist()
    return made


@untimed
@given(split=st.sampled_from(NAMES), cuts=st.lists(positions, max_size=6), seed=seeds)
def test_adjacent_ranges_give_what_the_joined_range_gives(split: str, cuts: list[int], seed: int) -> None:
    edges = [0, *sorted(cut for cut in cuts if 0 <= cut <= SCRIPT.end), SCRIPT.end]
    # Made back to front, so that nothing can depend on what was made before.
    parts = [SCRIPT.rows(split, a, b, seed=seed) for a, b in reversed(list(pairwise(edges)))]
    joined = pa.Table.from_batches(list(reversed(parts)))
    assert joined.equals(pa.Table.from_batches([SCRIPT.rows(split, 0, SCRIPT.end, seed=seed)]))


@untimed
@given(split=st.sampled_from(NAMES), start=positions, end=positions, seed=seeds)
def test_rows_are_as_many_as_counted_and_numbered_without_gaps(split: str, start: int, end: int, seed: int) -> None:
    batch = SCRIPT.rows(split, start, end, seed=seed)
    first = SCRIPT.count_rows(split, 0, start)
    assert batch.schema == SCHEMA
    assert batch["number"].to_pylist() == list(range(first, first + SCRIPT.count_rows(split, start, end)))


def test_seeds_and_splits_differ_and_a_seed_repeats() -> None:
    twins = StreamScript((SplitScript("a", 7), SplitScript("b", 7)), 0, 30, TICK_US, SHUFFLE_US)
    a, b = (twins.times_us(split, 0, 30, seed=1).tolist() for split in "ab")
    assert a != b
    assert times("regular", seed=1) == times("regular", seed=1) != times("regular", seed=2)


def test_the_rows_of_a_seed_are_these_for_ever() -> None:
    # A change of the generator would change every figure that was ever published with a seed.
    assert (np.array(times("regular", 0, 1, seed=42)) - SCRIPT.start_us).tolist() == PUBLISHED


def test_rows_arrive_shuffled_but_never_later_than_the_bound() -> None:
    for split in NAMES:
        arrived = np.array([t for t in times(split) if t < SCRIPT.start_us + 10**11])
        behind_newest = np.maximum.accumulate(arrived) - arrived
        assert 0 < behind_newest.max() <= SHUFFLE_US, split


def test_the_behind_split_is_behind_and_delivers_in_the_end_what_it_owes() -> None:
    first, *_ = times("behind", 0, 1)
    assert SCRIPT.start_us - 5 * TICK_US <= first < SCRIPT.start_us - 5 * TICK_US + SHUFFLE_US
    owed = times("behind", TICKS, SCRIPT.end)
    assert len(owed) == 5 * 3 + 1
    assert owed[-1] == SCRIPT.end_us + 8 * TICK_US == max(owed)


def test_the_silent_split_says_nothing_more_not_even_at_the_end() -> None:
    assert times("silent", 11) == []
    assert len(times("silent", 0, 11)) == 55


def test_one_row_of_the_stray_split_is_far_ahead_and_no_other() -> None:
    far = [t for t in times("stray") if t > SCRIPT.end_us + 10**11]
    assert len(far) == 1
    assert far[0] in times("stray", 20, 21)


def test_a_script_survives_json() -> None:
    assert StreamScript.from_plain(SCRIPT.to_plain()) == SCRIPT


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"splits": ()}, "splits: expected one or more, each name once, got []"),
        ({"ticks": 0}, "ticks: expected 1 or more, got 0"),
        ({"splits": (SplitScript("a", 0),)}, "rows_per_tick of a: expected 1 or more, got 0"),
        ({"splits": (SplitScript("a", 1, behind_us=1),)}, "behind_us of a: expected whole ticks of 1000000, got 1"),
    ],
)
def test_a_script_that_makes_no_sense_is_refused(change: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        replace(SCRIPT, **change)  # type: ignore[arg-type]
    assert str(refused.value) == text


def test_an_unknown_split_is_named() -> None:
    with pytest.raises(LookupError, match="no split 'x'"):
        SCRIPT.rows("x", 0, 1, seed=1)
