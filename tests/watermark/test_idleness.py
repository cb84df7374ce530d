from __future__ import annotations

import pytest
from lowmark.watermark import Idleness


def idleness_of(*splits: str, timeout_us: int = 10) -> Idleness:
    idleness = Idleness(timeout_us)
    for split in splits:
        idleness.heard(split, 0)
    return idleness


def test_a_split_is_idle_strictly_after_the_timeout_and_named_once() -> None:
    idleness = idleness_of("b", "a")

    assert [idleness.quiet(at_us, {}) for at_us in (10, 11, 99)] == [[], ["a", "b"], []]


def test_a_split_with_backlog_is_never_idle_until_the_backlog_is_gone() -> None:
    idleness = idleness_of("a")

    assert idleness.quiet(1_000, {"a": 1}) == []
    assert idleness.quiet(1_001, {"a": 0}) == ["a"]


def test_an_unknown_backlog_leaves_it_to_the_timeout() -> None:
    assert idleness_of("a").quiet(11, {"b": 5}) == ["a"]


def test_rows_start_the_timer_anew_and_old_news_does_not() -> None:
    idleness = idleness_of("a")
    idleness.heard("a", 5)
    idleness.heard("a", 2)

    assert [idleness.quiet(at_us, {}) for at_us in (15, 16)] == [[], ["a"]]


def test_an_overdue_split_was_not_yet_idle_at_an_earlier_moment() -> None:
    idleness = idleness_of("a")
    idleness.quiet(20, {"a": 1})

    assert [idleness.quiet(at_us, {"a": 0}) for at_us in (10, 11)] == [[], ["a"]]


def test_rows_of_an_overdue_split_start_its_timer_anew() -> None:
    idleness = idleness_of("a")
    idleness.quiet(20, {"a": 1})
    idleness.heard("a", 20)

    assert [idleness.quiet(at_us, {"a": 0}) for at_us in (30, 31)] == [[], ["a"]]


def test_time_spent_paused_is_no_silence() -> None:
    idleness = idleness_of("a")
    idleness.pause("a", 4)
    assert (idleness.quiet(1_000, {}), idleness.next_deadline_us()) == ([], None)
    idleness.resume("a", 1_000)

    assert idleness.next_deadline_us() == 1_007
    assert [idleness.quiet(at_us, {}) for at_us in (1_006, 1_007)] == [[], ["a"]]


def test_rows_that_arrive_while_paused_count_from_the_end_of_the_pause() -> None:
    idleness = idleness_of("a")
    idleness.pause("a", 4)
    idleness.heard("a", 6)
    idleness.resume("a", 100)

    assert [idleness.quiet(at_us, {}) for at_us in (110, 111)] == [[], ["a"]]


def test_an_overdue_split_can_be_paused_and_resumed() -> None:
    idleness = idleness_of("a")
    idleness.quiet(20, {"a": 1})
    idleness.pause("a", 20)
    assert idleness.quiet(30, {"a": 0}) == []
    idleness.resume("a", 30)

    assert idleness.quiet(30, {"a": 0}) == ["a"]


def test_pausing_twice_or_what_is_unknown_changes_nothing() -> None:
    idleness = idleness_of("a")
    idleness.pause("a", 4)
    idleness.pause("a", 8)
    idleness.resume("a", 10)
    idleness.resume("a", 12)
    idleness.pause("x", 0)
    idleness.resume("x", 9)
    idleness.forget("x")

    assert idleness.next_deadline_us() == 10 + 1 + 6


def test_the_next_deadline_is_the_moment_the_first_split_becomes_idle() -> None:
    idleness = idleness_of("a", "b")
    idleness.heard("a", 7)

    assert idleness.next_deadline_us() == 11
    assert idleness.quiet(11, {}) == ["b"]
    assert idleness.next_deadline_us() == 18
    idleness.forget("a")
    assert idleness.next_deadline_us() is None


def test_a_forgotten_split_is_timed_again_when_it_speaks() -> None:
    idleness = idleness_of("a")
    idleness.forget("a")
    assert (idleness.timed("a"), idleness.quiet(99, {})) == (False, [])
    idleness.heard("a", 99)

    assert (idleness.timed("a"), idleness.quiet(110, {})) == (True, ["a"])


@pytest.mark.parametrize("timeout_us", [0, -1])
def test_a_timeout_is_positive(timeout_us: int) -> None:
    with pytest.raises(ValueError, match="expected more than 0 us"):
        Idleness(timeout_us)
