from __future__ import annotations

import pytest
from lowmark.watermark.splits.idleness import Idleness
from lowmark.watermark.state import IdleClock
from lowmark.watermark.strategy import ProgressiveIdleness


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

    assert idleness.next_deadline_us() == 31
    assert [idleness.quiet(at_us, {"a": 0}) for at_us in (30, 31)] == [[], ["a"]]


def test_old_news_of_an_overdue_split_sets_no_deadline() -> None:
    idleness = idleness_of("a")
    idleness.quiet(20, {"a": 1})
    idleness.heard("a", 0)

    assert idleness.next_deadline_us() is None
    idleness.forget("a")
    assert len(idleness._queue) == 0


def test_an_overdue_split_that_is_forgotten_with_others_is_timed_anew() -> None:
    idleness = idleness_of("a", "b")
    idleness.quiet(20, {"a": 1, "b": 1})
    idleness.forget_all(["a", "b"])
    idleness.heard("a", 20)

    assert idleness.next_deadline_us() == 31
    assert [idleness.quiet(at_us, {}) for at_us in (30, 31)] == [[], ["a"]]


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


@pytest.mark.parametrize("forgotten", [["b"], ["b", "c", "d"]])  # one by one, and all at once
def test_the_splits_that_are_not_forgotten_are_timed_on(forgotten: list[str]) -> None:
    idleness = idleness_of("a", "b", "c", "d", "e")
    idleness.forget_all(forgotten)

    assert idleness.quiet(11, {}) == sorted({"a", "b", "c", "d", "e"}.difference(forgotten))
    assert len(idleness) == 0


def test_a_forgotten_split_is_timed_again_when_it_speaks() -> None:
    idleness = idleness_of("a")
    idleness.forget("a")
    assert idleness.quiet(99, {}) == []
    idleness.heard("a", 99)

    assert idleness.quiet(110, {}) == ["a"]


# -- silence while others deliver


def flowing(*splits: str, timeout_us: int = 40) -> Idleness:
    """Idleness of splits heard at 0; with the timeout of 40 a gap between deliveries of more than 20 counts for 10."""
    idleness = Idleness(timeout_us, IdleClock.FLOW)
    idleness.delivered(0)
    for split in splits:
        idleness.heard(split, 0)
    return idleness


def test_time_in_which_nobody_delivers_makes_nobody_idle() -> None:
    idleness = flowing("a", "b")

    assert (idleness.quiet(10**9, {}), idleness.next_deadline_us()) == ([], None)


@pytest.mark.parametrize(
    "moments_us",
    [
        (1_000, 2_000, 3_000, 4_000, 4_001),  # gaps longer than half the timeout: a quarter of the timeout each
        (21, 42, 63, 84, 85),
        (20, 40, 41),  # gaps up to half the timeout: counted wholly
        (15, 30, 45),
        (20, 41, 51, 52),
    ],
)
def test_a_gap_of_half_the_timeout_counts_wholly_and_a_longer_one_for_a_quarter(moments_us: tuple[int, ...]) -> None:
    idleness = flowing("a", "b")
    named = []
    for at_us in moments_us:
        idleness.delivered(at_us)
        idleness.heard("b", at_us)
        named.append(idleness.quiet(at_us, {}))

    assert named == [[]] * (len(moments_us) - 1) + [["a"]]


def test_a_delivery_told_twice_or_late_is_no_time() -> None:
    idleness = flowing("a")
    for at_us in (1_000, 1_000, 500, 1_000):
        idleness.delivered(at_us)

    assert idleness.left_us("a", 0) == 30


def test_the_silence_of_a_split_that_becomes_known_in_a_gap_counts_from_there() -> None:
    idleness = flowing()
    idleness.heard("new", 995)
    idleness.delivered(1_000)

    assert idleness.left_us("new", 0) == 35


def test_flow_while_a_split_is_paused_is_no_silence_of_it() -> None:
    idleness = flowing("a")
    idleness.delivered(8)
    idleness.pause("a", 8)
    for at_us in range(8, 200, 5):
        idleness.delivered(at_us)
    assert idleness.quiet(200, {}) == []
    idleness.resume("a", 198)
    idleness.delivered(205)

    assert idleness.left_us("a", 0) == 40 - 8 - 7


def test_a_pause_in_which_nobody_delivered_is_as_long_as_what_counted_of_it() -> None:
    idleness = flowing("a")
    idleness.pause("a", 0)
    idleness.resume("a", 1_000)
    idleness.delivered(1_005)  # the last 10 count, half of it in the pause

    assert idleness.left_us("a", 1_005) == 40 - 5


def test_spans_of_long_ago_are_dropped_and_what_was_heard_there_is_overdue() -> None:
    idleness = flowing("a")
    for minute in range(1, 2_000):
        idleness.delivered(minute * 1_000)
        idleness.heard("b", minute * 1_000)
    assert idleness._flow is not None
    assert len(idleness._flow._starts_us) == 1_000

    assert idleness.quiet(0, {}) == ["a"]


# -- pauses, reported late


def test_a_report_planned_in_a_pause_that_arrives_after_it_does_not_count_the_rest_of_the_pause() -> None:
    idleness = idleness_of("a", timeout_us=60)
    idleness.pause("a", 50)
    idleness.resume("a", 100)
    idleness.heard("a", 60)

    assert [idleness.quiet(at_us, {}) for at_us in (121, 160, 161)] == [[], [], ["a"]]


def test_a_pause_that_is_over_before_the_newest_report_was_planned_changes_nothing() -> None:
    idleness = idleness_of("a", timeout_us=60)
    idleness.pause("a", 50)
    idleness.heard("a", 100)
    idleness.resume("a", 90)

    assert (idleness.next_deadline_us(), idleness.counts_from("a", 100)) == (161, True)


def test_a_report_planned_before_a_pause_that_arrives_after_it_is_news() -> None:
    idleness = idleness_of("a", timeout_us=60)
    idleness.pause("a", 50)
    idleness.resume("a", 100)
    idleness.heard("a", 40)

    assert [idleness.quiet(at_us, {}) for at_us in (150, 151)] == [[], ["a"]]


def test_many_pauses_of_a_silent_split_add_up_and_are_few() -> None:
    idleness = idleness_of("a", timeout_us=60)
    for at_us in range(1, 100, 2):
        idleness.pause("a", at_us)
        idleness.resume("a", at_us + 1)

    assert len(idleness._timers["a"].pauses) == 16
    assert idleness.next_deadline_us() == 61 + 50


def test_what_is_a_short_gap_grows_with_the_timeout() -> None:
    idleness = Idleness(80, IdleClock.FLOW, grows=ProgressiveIdleness(at_start_us=8, over_us=80))
    for at_us in (0, 100, 130):  # a gap of 30 counts wholly for a timeout of 80, and as 2 for a timeout of 8
        idleness.read(at_us)
        idleness.delivered(at_us)
        if at_us == 100:
            idleness.heard("a", at_us)

    assert (idleness.timeout_us, idleness.left_us("a", 130)) == (80, 50)


# -- memory


def test_what_is_forgotten_leaves_nothing_behind_a_split_that_stays() -> None:
    """A thousand splits come and go; one split is always silent, at the head of the queue."""
    idleness = Idleness(10**9)
    idleness.heard("silent", 0)
    for second in range(40):
        for number in range(1_000):
            if second % 2:
                idleness.forget(f"s{number}")
            idleness.heard(f"s{number}", second)

    assert (len(idleness), len(idleness._queue)) == (1_001, 1_001)
    idleness.forget_all([f"s{number}" for number in range(1_000)])
    assert (len(idleness), len(idleness._queue)) == (1, 1)
    idleness.heard_all((f"s{number}", 400) for number in range(1_000))
    idleness.pause("s7", 400)
    assert (len(idleness), len(idleness._queue)) == (1_001, 1_000)


def test_old_news_makes_no_stream_younger() -> None:
    idleness = Idleness(60, grows=ProgressiveIdleness(at_start_us=10, over_us=100), began_us=0)
    idleness.read(50)
    idleness.read(20)

    assert idleness.timeout_us == 35
