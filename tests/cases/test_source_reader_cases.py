"""Flink's cases about the reader of a source (SRC); test_split_cases has the cases about event time (EVT)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from lowmark.sources import Fetching, SourceSplit, read_slices

from tests.cases.deviations import DEVIATIONS
from tests.cases.reader import Case, case_id, family
from tests.sources.numbered import Numbered


def opened() -> None:
    """SRC-01, without reassignment on recovery: a restored split continues at the position in the offset."""
    read = read_slices(Numbered(), [SourceSplit(split_id="a", start=1, stop=3)])
    assert [part.position for part in read][-1] == 3


def stopped() -> None:
    """SRC-02: a drain does not exist; without splits no reader is made."""
    assert list(read_slices(Numbered(), [])) == []


def ended_by_a_position() -> None:
    """SRC-10: a split ends at its stop, and no later row comes, even while other splits continue."""
    splits = [SourceSplit(split_id=name, start=0, stop=stop) for name, stop in (("a", 7), ("b", 5))]
    for fetching in (Fetching.multiplexed(), Fetching.one_by_one(), Fetching.side_by_side(2)):
        source = Numbered()
        source.fetching = fetching
        read = Counter[str]()
        for part in read_slices(source, splits):
            read[part.split_id] += part.rows.num_rows
        assert read == {"a": 7, "b": 5}
        rest = read_slices(source, [replace(splits[0], start=7, stop=9)])
        assert sum(part.rows.num_rows for part in rest) == 2


SRC: dict[str, Callable[[], None]] = {"SRC-01": opened, "SRC-02": stopped, "SRC-10": ended_by_a_position}


@pytest.mark.parametrize("case", [case for case in family("SRC") if case["id"] in SRC], ids=case_id)
def test_source_reader(case: Case) -> None:
    SRC[case["id"]]()


def test_every_case_is_tried_or_decided_otherwise() -> None:
    ids = {case["id"] for case in family("SRC")}
    assert ids == SRC.keys() | (DEVIATIONS.keys() & ids)
    assert not SRC.keys() & DEVIATIONS.keys() - {"SRC-01", "SRC-02"}
