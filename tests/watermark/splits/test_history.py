from __future__ import annotations

from lowmark.watermark.splits.history import SPAN_US, Held, History


def test_an_hour_of_rises_is_kept_one_for_each_second_and_no_more() -> None:
    history = History[str]()
    for tenth in range(10 * 2 * 3_600):  # two hours, ten rises a second
        history.rose(tenth * 100_000, tenth, "a")

    now_us = 2 * 3_600_000_000
    rises = history.thinned(now_us, 10_000)

    assert len(rises) == len(history._holders) - 2 <= 3_600
    assert rises[0] == (now_us - 3_600_000_000 + 900_000, 36_009)
    assert rises[-1] == (now_us - 100_000, 71_999)


def test_a_rise_is_told_for_an_hour_and_who_holds_since_the_newest_one_at_any_age() -> None:
    history = History[str]()
    history.rose(0, 0, "a")
    history.rose(1_000_000, 1, "b")

    assert (history.thinned(SPAN_US, 2), history.thinned(SPAN_US + 1_000_001, 2)) == (((0, 0), (1_000_000, 1)), ())
    assert [spell.holder for spell in history.held(SPAN_US + 1_000_000)] == ["b", "a"]
    assert [spell.holder for spell in history.held(SPAN_US + 1_000_001)] == ["b"]
    history.rose(2_000_000, 2, "b")
    assert history.held(5 * SPAN_US) == (Held("b", 1_000_000, 5 * SPAN_US),)


def test_who_held_a_low_watermark_for_hours_is_told_when_it_rises_again() -> None:
    history = History[str]()
    history.rose(0, 0, "a")
    history.rose(3 * SPAN_US, 1, "b")

    assert history.held(3 * SPAN_US) == (Held("b", 3 * SPAN_US, 3 * SPAN_US), Held("a", 0, 3 * SPAN_US))
    assert history.thinned(3 * SPAN_US, 10) == ((3 * SPAN_US, 1),)


def test_spells_of_one_holder_are_one() -> None:
    history = History[str]()
    for second, holder in ((0, "a"), (10, "a"), (20, None), (30, "a")):
        history.rose(second * 1_000_000, second, holder)

    assert history.held(50_000_000) == (
        Held("a", 30_000_000, 50_000_000),
        Held(None, 20_000_000, 30_000_000),
        Held("a", 0, 20_000_000),
    )
    assert History[str]().held(50) == ()
