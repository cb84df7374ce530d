from __future__ import annotations

import pytest
from lowmark.watermark.splits.history import Held, History


def test_an_hour_of_rises_is_kept_one_for_each_second_and_no_more() -> None:
    history = History[str]()
    for tenth in range(10 * 2 * 3_600):  # two hours, ten rises a second
        history.rose(tenth * 100_000, tenth, "a")

    now_us = 2 * 3_600_000_000
    rises = history.thinned(now_us, 10_000)

    assert len(rises) == len(history) - 1 <= 3_600
    assert rises[0] == (now_us - 3_600_000_000 + 900_000, 36_009)
    assert rises[-1] == (now_us - 100_000, 71_999)


def test_what_is_too_old_by_now_is_not_told_though_nothing_rose_since() -> None:
    history = History[str](span_us=10, step_us=1)
    history.rose(0, 0, "a")

    assert (history.thinned(10, 2), history.thinned(11, 2)) == (((0, 0),), ())
    assert (len(history.held(10)), len(history.held(11))) == (1, 0)


def test_spells_of_one_holder_are_one() -> None:
    history = History[str](span_us=100, step_us=1)
    for at_us, holder in ((0, "a"), (10, "a"), (20, None), (30, "a")):
        history.rose(at_us, at_us, holder)

    assert (Held("a", 30, 50), Held(None, 20, 30), Held("a", 0, 20)) == history.held(50)
    assert History[str]().held(50) == ()


@pytest.mark.parametrize("step_us", [0, -1, 101])
def test_a_step_must_fit(step_us: int) -> None:
    with pytest.raises(ValueError, match="0 < step <= span"):
        History[str](span_us=100, step_us=step_us)
