"""The benchmark's own arithmetic: a table's verdicts on bounds are right. `make bench` runs the benchmark itself."""

from __future__ import annotations

import pytest

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
