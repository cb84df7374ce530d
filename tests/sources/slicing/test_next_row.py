"""The event time of the next unread row, found without reading it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from lowmark.sources import SourceSplit, SplitEnd, SplitPlanner
from lowmark.sources.api import EARLIEST_US
from lowmark.sources.slicing.next_row import NextRow, next_row

YEAR_US = 365 * 86_400 * 1_000_000
NOW_US = 56 * YEAR_US


class Log(SplitPlanner[SourceSplit]):
    """A log of rows' times by split; `mute` splits cannot be searched."""

    def __init__(self, mute: frozenset[str] = frozenset(), **times: Sequence[int]) -> None:
        self.times, self.mute, self.asked = times, mute, 0

    def latest(self, splits: Sequence[SourceSplit]) -> Mapping[str, SplitEnd]:
        return {split.split_id: SplitEnd(len(self.times[split.split_id])) for split in splits}

    def find_time(self, splits: Sequence[SourceSplit], time_us: int) -> Mapping[str, int | None] | None:
        self.asked += 1
        assert EARLIEST_US <= time_us <= -EARLIEST_US
        return {
            split.split_id: next((i for i, at in enumerate(self.times[split.split_id]) if at >= time_us), None)
            for split in splits
            if split.split_id not in self.mute
        }


def splits(log: Log, **starts: int) -> list[SourceSplit]:
    return [SourceSplit(split_id=name, start=starts.get(name, 0)) for name in log.times]


@pytest.mark.parametrize("row_us", [0, 1, 999, 1_000, 123_456_789_000, NOW_US - 7, NOW_US, NOW_US + 5, -3_000_000])
@pytest.mark.parametrize("near_us", [0, NOW_US - 3_600_000_000, NOW_US, EARLIEST_US, -62_135_596_800_000_000])
def test_no_row_is_before_what_is_found_and_one_is_right_behind(row_us: int, near_us: int) -> None:
    log = Log(a=[row_us, row_us + YEAR_US], b=[row_us + 10])
    found = next_row(log, splits(log), near_us=near_us, until_us=2 * NOW_US)

    assert found.time_us is not None
    assert found.time_us <= row_us <= found.time_us + 1_000
    assert (found.time_us - near_us) % 1_000 == 0
    assert log.asked <= 110


def test_rows_that_are_read_do_not_count() -> None:
    log = Log(a=[5_000_000, 9_000_000], b=[])
    found = next_row(log, splits(log, a=1), near_us=NOW_US, until_us=2 * NOW_US)

    assert found.time_us is not None
    assert found.time_us <= 9_000_000 <= found.time_us + 1_000


def test_where_all_is_read_there_is_no_next_row() -> None:
    log = Log(a=[5_000_000])
    assert next_row(log, splits(log, a=1), near_us=0, until_us=NOW_US) == NextRow(searchable=True)


def test_a_row_from_beyond_the_guard_is_not_believed() -> None:
    log = Log(a=[3 * NOW_US])
    assert next_row(log, splits(log), near_us=NOW_US, until_us=NOW_US + 300).time_us is None


def test_splits_that_cannot_be_searched_say_nothing_and_make_nothing_up() -> None:
    log = Log(mute=frozenset("b"), a=[5_000_000], b=[1])
    found = next_row(log, splits(log), near_us=0, until_us=NOW_US)
    assert found.time_us is not None
    assert 4_999_000 <= found.time_us <= 5_000_000
    mute = Log(mute=frozenset("ab"), a=[5_000_000], b=[1])
    assert next_row(mute, splits(mute), near_us=0, until_us=NOW_US) == NextRow(searchable=False)


class Doubtful(Log):
    """A log with answers that are no rows for some splits: they have no claim, or a claim below the searched time."""

    def __init__(self, unsure: Mapping[str, int | None], **times: Sequence[int]) -> None:
        super().__init__(frozenset(), **times)
        self.unsure = unsure

    def claims(self, splits: Sequence[SourceSplit], time_us: int, until_us: int | None = None) -> Mapping[str, int]:
        said = {split.split_id: self.unsure.get(split.split_id, time_us) for split in splits}
        return {name: min(us, time_us) for name, us in said.items() if us is not None}


@pytest.mark.parametrize("unsure_us", [None, EARLIEST_US])
def test_what_is_not_sure_to_be_a_row_says_nothing_of_the_next_one(unsure_us: int | None) -> None:
    log = Doubtful({"b": unsure_us}, a=[5_000_000], b=[2_000_000], c=[7_000_000])
    found = next_row(log, splits(log), near_us=0, until_us=NOW_US)
    assert found.time_us is not None
    assert 4_999_000 <= found.time_us <= 5_000_000, "the next of those that are sure"

    alone = Doubtful({"b": unsure_us}, b=[2_000_000])
    assert next_row(alone, splits(alone), near_us=0, until_us=NOW_US) == NextRow(searchable=False)


def test_rows_beside_the_one_that_was_found_are_not_stepped_over() -> None:
    log = Doubtful({"b": 1_000_000}, a=[5_000_000], b=[4_000_000])
    found = next_row(log, splits(log), near_us=0, until_us=NOW_US)
    assert found == NextRow(searchable=True, time_us=1_000_000, wanted_us=4_000_000)
