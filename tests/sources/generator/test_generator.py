"""The laws of the generator (rows are a pure function of script, seed, split and position) and of its source."""

from __future__ import annotations

import json
import pickle
import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowmark.sources import Boundedness, SourceSplit, SplitEnd, check_source, read_slices
from lowmark.sources.generator import SCHEMA, GeneratorSource, InvalidScript, SplitScript, StreamScript

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
RESHARDED = StreamScript(
    (
        SplitScript("parent", 3, behind_us=2 * TICK_US, stray_tick=4, stray_us=-9 * TICK_US),
        SplitScript("other", 2, silent_from_tick=5),
        SplitScript("left", 2, from_tick=12, parents=("parent", "other"), stray_tick=20, stray_us=10**12),
        SplitScript("right", 4, from_tick=12, behind_us=3 * TICK_US, parents=("parent",), last_us=TICK_US),
        SplitScript("late", 1, from_tick=15, silent_from_tick=18),
    ),
    start_us=1_700_000_000_000_000,
    ticks=TICKS,
    tick_us=TICK_US,
    shuffle_us=SHUFFLE_US,
)
NAMES = [split.name for split in SCRIPT.splits]
# No deadline, because the first call also loads Arrow, and machines may be slow.
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
    # Generated backwards, so that no row can depend on earlier calls.
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
    # A change of the generator would change every figure published with a seed.
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
    for script in (SCRIPT, RESHARDED):
        assert StreamScript.from_plain(json.loads(json.dumps(script.to_plain()))) == script


def split(**fields: Any) -> SplitScript:
    return SplitScript(**{"name": "a", "rows_per_tick": 1, **fields})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"splits": ()}, "splits: expected one or more, each name once, got []"),
        ({"ticks": 0}, "ticks: expected 1 or more, got 0"),
        ({"splits": (SplitScript("a", 0),)}, "rows_per_tick of a: expected 1 or more, got 0"),
        ({"splits": (SplitScript("a", 1, from_tick=31),)}, "from_tick of a: expected 0 to 30, got 31"),
        (
            {"splits": (SplitScript("a", 1, from_tick=3, parents=("x",)),)},
            "parents of a: expected splits that begin before it, got 'x'",
        ),
        (
            {"splits": (SplitScript("a", 1, parents=("b",)), SplitScript("b", 1))},
            "parents of a: expected splits that begin before it, got 'b'",
        ),
        (
            {"splits": (SplitScript("p", 1), *(SplitScript(f"c{n}", 1, from_tick=n, parents=("p",)) for n in (4, 5)))},
            "parents of c5: expected all children of 'p' to begin in one tick, got 4 and 5",
        ),
        ({"splits": (SplitScript("a", 1, behind_us=1),)}, "behind_us of a: expected whole ticks of 1000000, got 1"),
        ({"splits": None}, "splits: expected SplitScripts with texts as names, got None"),
        ({"splits": ("a",)}, "splits: expected SplitScripts with texts as names, got 'a'"),
        ({"ticks": None}, "ticks: expected a whole number, got None"),
        ({"tick_us": "1"}, "tick_us: expected a whole number, got '1'"),
        ({"start_us": float("nan")}, "start_us: expected a whole number, got nan"),
        ({"splits": (split(rows_per_tick=None),)}, "rows_per_tick of a: expected a whole number, got None"),
        ({"splits": (split(stray_tick="3"),)}, "stray_tick of a: expected a whole number, got '3'"),
        ({"splits": (split(parents=None),)}, "parents of a: expected a tuple of names, got None"),
        (
            {"splits": (split(), split(name="b", from_tick=3, parents="a"))},
            "parents of b: expected a tuple of names, got 'a'",
        ),
    ],
)
def test_a_script_that_makes_no_sense_is_refused(change: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        replace(SCRIPT, **change)  # type: ignore[arg-type]
    assert str(refused.value) == text


def test_sums_of_the_largest_times_that_are_taken_fit_64_bits() -> None:
    most = 2**60 - 1
    split = SplitScript("a", 1, stray_tick=0, stray_us=most, last_us=most)
    script = StreamScript((split,), start_us=most, ticks=2, tick_us=2**58, shuffle_us=most)
    stray_us, regular_us, last_us = script.times_us("a", 0, script.end, seed=7).tolist()
    assert 2 * most <= stray_us < 3 * most
    assert most + 2**58 <= regular_us < 2 * most + 2**58
    assert last_us == script.end_us + most
    with pytest.raises(InvalidScript, match="split a: expected rows and times in 60 bits, got larger ones"):
        replace(script, splits=(replace(split, last_us=2**60),))
    with pytest.raises(InvalidScript, match="start_us and shuffle_us: expected numbers of 60 bits, got larger ones"):
        replace(script, start_us=-(2**60))


def test_an_unknown_split_is_named() -> None:
    with pytest.raises(LookupError, match="no split 'x'"):
        SCRIPT.rows("x", 0, 1, seed=1)


# -- resharding


class Compared(str):
    """A name that counts its comparisons with other names."""

    __slots__ = ()
    times = 0

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return str.__eq__(self, str(other))

    __hash__ = str.__hash__


def test_each_of_many_splits_is_found_without_a_look_at_the_others() -> None:
    names = [Compared(f"s{n}") for n in range(400)]
    first = SplitScript(names[0], 1)
    children = [SplitScript(name, 1, from_tick=2, parents=(names[0],)) for name in names[1:]]
    source = GeneratorSource(StreamScript((first, *children), 0, 3, TICK_US, SHUFFLE_US), seed=7)
    Compared.times = 0
    splits = source.discover()
    assert len(source.latest(splits)) == len(source.find_time(splits, 0)) == len(names)
    assert Compared.times < 50 * len(names)  # 480 x 400 when each look went through a list
    assert len(pickle.dumps(source)) < 1.2 * len(pickle.dumps(GeneratorSource(replace(source.script), seed=7)))


def test_children_go_on_where_their_parents_end() -> None:
    def rows(split: str, start: int, end: int) -> int:
        return RESHARDED.count_rows(split, start, end)

    assert RESHARDED.ends_at("parent") == RESHARDED.ends_at("other") == 12
    assert RESHARDED.ends_at("left") is None
    assert (rows("parent", 0, RESHARDED.end), rows("parent", 12, RESHARDED.end)) == (36, 0), "and it owes nothing"
    assert (rows("left", 0, 12), rows("left", 12, TICKS), rows("left", TICKS, RESHARDED.end)) == (0, 36, 1)
    assert (rows("right", 0, 13), rows("right", TICKS, RESHARDED.end)) == (4, 13)
    assert rows("late", 0, RESHARDED.end) == 3


def test_a_childs_times_begin_where_it_does() -> None:
    times_us = RESHARDED.times_us("right", 12, 13, seed=1) - RESHARDED.start_us
    assert 9 * TICK_US <= min(times_us) < 9 * TICK_US + SHUFFLE_US
    last = RESHARDED.times_us("right", TICKS, RESHARDED.end, seed=1)[-1]
    assert last == RESHARDED.end_us + TICK_US


def test_a_stray_row_may_be_late_instead() -> None:
    with_stray = RESHARDED.times_us("parent", 0, 12, seed=1)
    assert with_stray[12] < RESHARDED.start_us - 2 * TICK_US
    assert sum(with_stray < RESHARDED.start_us - 2 * TICK_US) == 1


# -- searching by time


@pytest.mark.parametrize("script", [SCRIPT, RESHARDED], ids=["plain", "resharded"])
@pytest.mark.parametrize("seed", range(8))
def test_the_first_row_at_a_time_is_found(script: StreamScript, seed: int) -> None:
    chance = random.Random(seed)
    for split in script.splits:
        by_tick = [script.times_us(split.name, tick, tick + 1, seed=seed).tolist() for tick in range(script.end)]
        times_us = [time_us for times in by_tick for time_us in times]
        near = [chance.choice(times_us) + by for by in (-1, 0, 1)]
        drawn = [script.start_us + chance.randrange(-20 * TICK_US, 50 * TICK_US) for _ in range(20)]
        for time_us in (*near, *drawn, -(2**62), 0, max(times_us), max(times_us) + 1, 2**62):
            expected = next(
                (tick for tick, times in enumerate(by_tick) if any(each >= time_us for each in times)), None
            )
            assert script.first_at(split.name, time_us, seed=seed) == expected, f"seed {seed}, {split.name}, {time_us}"


# -- the source


@pytest.mark.parametrize("script", [SCRIPT, RESHARDED], ids=["plain", "resharded"])
@pytest.mark.parametrize("rows", [1, 7, 40])
def test_the_source_keeps_the_laws(script: StreamScript, rows: int) -> None:
    checked = check_source(GeneratorSource(script, seed=3), rows=rows)
    assert len(checked.splits) == len(script.splits)
    assert checked.rows > 100
    assert checked.found_by_time == 8


def test_it_gives_what_the_script_says() -> None:
    source = GeneratorSource(SCRIPT, seed=9)
    splits = [replace(split, stop=SCRIPT.end) for split in source.discover()]
    for name in NAMES:
        parts = [part.rows for part in read_slices(source, splits) if part.split_id == name]
        assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([SCRIPT.rows(name, 0, SCRIPT.end, seed=9)]))


def test_parents_finish_and_children_name_them() -> None:
    source = GeneratorSource(RESHARDED, seed=1)
    splits = {split.split_id: split for split in source.discover()}
    assert splits["left"] == SourceSplit(split_id="left", start=12, parents=("parent", "other"))
    assert splits["parent"] == SourceSplit(split_id="parent")
    ends = source.create_planner().latest(list(splits.values()))
    assert (ends["parent"].position, ends["parent"].rows, ends["parent"].finished) == (12, 36, True)
    assert (ends["left"].position, ends["left"].rows, ends["left"].finished) == (TICKS + 1, 37, False)


@pytest.mark.parametrize("bounded", [False, True])
def test_the_end_of_the_script_is_the_end_of_a_bounded_source_only(bounded: bool) -> None:
    source = GeneratorSource(SCRIPT, seed=1, bounded=bounded)
    assert (source.boundedness is Boundedness.BOUNDED) == bounded
    ends = source.create_planner().latest(source.discover())
    assert {end.finished for end in ends.values()} == {bounded}


def test_a_stop_is_an_end() -> None:
    planner = GeneratorSource(SCRIPT, seed=1).create_planner()
    a = SourceSplit(split_id="regular", start=2, stop=5)
    assert planner.latest([a])["regular"] == SplitEnd(position=5, rows=21, size_bytes=651, finished=True)
    assert not planner.latest([replace(a, stop=99)])["regular"].finished


def test_rows_are_counted_exactly_and_steps_are_as_large_as_fits() -> None:
    planner = GeneratorSource(SCRIPT, seed=1).create_planner()
    split = SourceSplit(split_id="regular", start=3)
    end = planner.latest([split])["regular"]
    assert planner.rows_before(split, 5) == 14
    assert [planner.after_rows(split, rows, end) for rows in (0, 1, 7, 13, 14, 21, 10**9)] == [4, 4, 4, 4, 5, 6, 31]
    assert planner.after_rows(replace(split, start=30), 1, end) == 31


def test_a_long_range_comes_in_several_batches() -> None:
    script = StreamScript((SplitScript("a", 1_000),), 0, 100, TICK_US, 1)
    split = SourceSplit(split_id="a", stop=101)
    parts = list(read_slices(GeneratorSource(script, seed=1), [split]))
    assert [(part.rows.num_rows, part.position) for part in parts] == [(65_000, 65), (35_001, 101)]


@pytest.mark.parametrize("script", [SCRIPT, RESHARDED], ids=["plain", "resharded"])
def test_a_paced_source_keeps_the_laws(script: StreamScript) -> None:
    checked = check_source(GeneratorSource(script, seed=3, ticks_per_batch=4), rows=10)
    assert len(checked.splits) == len(script.splits)
    assert checked.found_by_time > 0


def test_rows_arrive_as_they_are_read() -> None:
    planner = GeneratorSource(RESHARDED, seed=1, bounded=True, ticks_per_batch=10).create_planner()
    splits = {name: SourceSplit(split_id=name, start=start) for name, start in (("parent", 5), ("left", 25))}
    ends = planner.latest(list(splits.values()))
    assert {name: (end.position, end.finished) for name, end in ends.items()} == {
        "parent": (12, True), "left": (31, True),
    }  # fmt: skip
    right = SourceSplit(split_id="right", start=12)
    end = planner.latest([right])["right"]
    assert (end.position, end.rows, end.finished) == (22, 40, False)
    with pytest.raises(ValueError, match=r"^ticks_per_batch: expected 1 or more, got 0$"):
        GeneratorSource(SCRIPT, seed=1, ticks_per_batch=0)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"script": SCRIPT.to_plain()}, "script: expected a StreamScript, got {"),
        ({"seed": None}, "seed: expected a whole number, got None"),
        ({"ticks_per_batch": "10"}, "ticks_per_batch: expected a whole number, got '10'"),
        ({"ticks_per_batch": float("nan")}, "ticks_per_batch: expected a whole number, got nan"),
    ],
)
def test_arguments_of_another_type_are_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidScript, match=text):
        GeneratorSource(**{"script": SCRIPT, "seed": 1, **change})
