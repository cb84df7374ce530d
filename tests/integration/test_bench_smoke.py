"""The benchmark's own arithmetic: a table's verdicts on bounds are right. `make bench` runs the benchmark itself."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from tests.bench.compare import compare
from tests.bench.measure import Bound, Row


def row(native: list[float], wrapped: list[float], bound: Bound) -> Row:
    return Row.pairs("section", "what", "ms", native, wrapped, bound=bound)


def test_a_ratio_is_taken_pair_by_pair() -> None:
    """The machine was three times slower in the second pair; the ratio of the medians would be 1.5."""
    seen = row([100, 300, 100], [150, 330, 110], Bound(1.4, "ratio"))

    assert seen.ratio is not None
    assert (seen.ratio.median, seen.ratio.low, seen.ratio.high, seen.ratio.pairs) == (1.1, 1.1, 1.5, 3)


@pytest.mark.parametrize(
    ("wrapped", "bound", "met"),
    [
        ([140, 140, 900], Bound(1.4, "ratio"), True),
        ([141, 141, 100], Bound(1.4, "ratio"), False),
        ([120, 120, 900], Bound(20, "added"), True),
        ([121, 121, 100], Bound(20, "added"), False),
    ],
)
def test_a_bound_is_judged_by_the_median(wrapped: list[float], bound: Bound, met: bool) -> None:
    assert row([100, 100, 100], wrapped, bound).met is met


@pytest.mark.parametrize(("us", "met"), [(10.0, True), (10.1, False)])
def test_a_bound_of_ours_alone(us: float, met: bool) -> None:
    assert Row("core", "one report", "us", None, us, bound=Bound(10, "at most")).met is met


def test_a_lost_split_misses_the_bound() -> None:
    bound = Bound(4096, "wrapped")

    assert Row("many", "splits", "splits", None, 4096, bound=bound).met is True
    assert Row("many", "splits", "splits", None, 4095, bound=bound).met is False


def test_pairs_of_different_number_are_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        row([100, 100], [100], Bound(1.4, "ratio"))


def kept(seen: Row) -> dict[str, Any]:
    return {**asdict(seen), "met": seen.met}


@pytest.mark.parametrize(
    ("before", "after", "worse"),
    [
        ([120, 121, 122], [130, 131, 132], True),
        ([130, 131, 132], [120, 121, 122], False),
        ([120, 121, 132], [130, 131, 135], False),  # the median now is one of the figures of before
        ([120, 121, 122], [119, 131, 132], False),  # the median of before is one of the figures now
        ([120, 121, 122], [140, 141, 151], True),
    ],
)
def test_a_row_got_worse_beyond_its_spread(before: list[float], after: list[float], worse: bool) -> None:
    old, new = (kept(row([100, 100, 100], each, Bound(9, "ratio"))) for each in (before, after))
    lines, rows = compare([old], [new, {**new, "what": "not measured before"}])

    assert (len(lines), rows) == (int(worse), 1)


@pytest.mark.parametrize(("before", "after", "worse"), [(20, 19, 1), (20, 20, 0), (19, 18, 0)])
def test_a_row_without_pairs_got_worse_if_its_bound_was_met(before: float, after: float, worse: int) -> None:
    old, new = (
        kept(Row("many", "begun", "queries", None, each, bound=Bound(20, "wrapped"))) for each in (before, after)
    )

    assert len(compare([old], [new])[0]) == worse


def test_a_single_pair_has_no_spread_to_be_judged_by() -> None:
    old, new = (kept(Row.pairs("start", "20 queries", "ms", [100], [each])) for each in (120, 150))

    assert compare([old], [new]) == ([], 1)
