from __future__ import annotations

from dataclasses import replace

import pytest
from lowmark.watermark import (
    CorruptSnapshot,
    InvalidReshard,
    InvalidSplitId,
    InvalidWatermark,
    NotifyNewLowWatermark,
    SplitState,
    WatermarkStrategy,
)
from lowmark.watermark.moment import utc
from lowmark.watermark.splits.events import (
    BatchPlanned,
    Polled,
    SplitReturnedLate,
    SplitsDiscovered,
    SplitsFinished,
    SplitsPaused,
    SplitsRemoved,
    SplitsResharded,
    SplitsResumed,
    SplitStateChanged,
    Tick,
)
from lowmark.watermark.splits.low_watermark import ALL_IDLE_STEP_US
from lowmark.watermark.splits.snapshot import decode
from lowmark.watermark.splits.stream import SplitWatermarks

from tests.watermark.splits.history import (
    BY_TIME,
    IDLENESS,
    PLAIN,
    History,
    at,
    batch,
    history_of,
    restored,
    watermarks_of,
)

# -- the low watermark


def test_a_notification_carries_who_and_when() -> None:
    effects = watermarks_of().handle(batch(0, 1, {"a": 0}), at(2))

    assert [
        SplitStateChanged("a", SplitState.PENDING, SplitState.ACTIVE, "delivered rows"),
        NotifyNewLowWatermark("job", "orders", "0", at(2), 0),
    ] == effects


def test_a_discovered_split_holds_until_it_spoke() -> None:
    history = History()

    assert history.on(0, SplitsDiscovered(("a", "b"))) == []
    assert history.on(1, batch(0, 1, {"a": 50})) == [("a", "active")]
    assert history.on(2, batch(1, 2, {"b": 20})) == [("b", "active"), ("low", 20)]


def test_discovering_a_known_split_again_is_a_no_op() -> None:
    history = history_of(a=50)
    epoch = history.watermarks.epoch

    assert history.on(1, SplitsDiscovered(("a", "a"), frozenset({"a"}))) == []
    assert (epoch, "active", None) == (
        history.watermarks.epoch,
        history.state("a"),
        history.status(1).splits["a"].backlog_rows,
    )


def test_a_split_that_is_missing_from_a_batch_keeps_its_value() -> None:
    history = history_of(a=50, b=20)

    assert history.on(1, batch(1, 1, {"a": 90})) == []
    assert (history.low_us, history.status(1).holder) == (20, "b")


def test_a_new_split_does_not_take_back_what_was_published() -> None:
    history = history_of(a=50)

    assert history.on(1, batch(1, 1, {"a": 60, "b": 10}, rows={"b": 3})) == [("b", "active"), ("b late by", 40)]
    assert history.low_us == 50


def test_a_split_is_discovered_by_its_backlog_too() -> None:
    history = history_of(a=50)

    assert history.on(1, batch(1, 1, {"a": 60}, backlog={"b": 7})) == []
    assert (history.state("b"), history.low_us) == ("pending", 50)


# -- repeated, late or wrong reports


def test_a_repeated_batch_has_no_effects_and_is_not_counted_again() -> None:
    history = history_of(a=50)
    report = batch(1, 1, {"a": 40, "b": 60}, rows={"a": 2, "b": 1})
    history.on(1, report)
    before, epoch = history.status(2), history.watermarks.epoch

    assert history.on(2, report) == []
    assert (before, epoch) == (history.status(2), history.watermarks.epoch)
    assert (before.regressions, before.splits["a"].rows, before.batches) == (1, 2, 2)


def test_a_batch_that_comes_late_raises_values_and_is_no_news() -> None:
    history = history_of(a=50)
    history.on(20, batch(2, 20, {"b": 60}))
    assert history.state("a") == "idle"

    assert history.on(21, batch(1, 0, {"a": 55})) == []
    assert (history.state("a"), history.status(21).splits["a"].watermark_us) == ("idle", 55)


def test_a_report_of_a_finished_split_is_ignored() -> None:
    history = history_of(a=50, b=60)
    history.on(1, SplitsFinished(("a",)))

    assert history.on(2, batch(1, 2, {"a": 99, "b": 60})) == []
    assert (
        history.state("a"),
        history.status(2).splits["a"].watermark_us,
        history.low_us,
    ) == ("finished", 50, 60)


def test_a_split_may_finish_before_it_is_heard_of() -> None:
    history = history_of(a=50)

    assert history.on(1, SplitsFinished(("b", "b"))) == [("b", "finished")]
    assert history.on(2, batch(1, 2, {"a": 70, "b": 1})) == [("low", 70)]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("a", 1, "expected a str, as for its other splits"),
        (1, "a", "expected a int, as for its other splits"),
        (True, None, "expected an int or a str"),
        (1.5, None, "expected an int or a str"),
        (-1, None, "expected a number of 0 or more in 64 bits"),
        (2**64, None, "expected a number of 0 or more in 64 bits"),
    ],
)
def test_split_ids_are_of_one_kind(first: int | str, second: int | str | None, expected: str) -> None:
    of_splits = watermarks_of()

    with pytest.raises(InvalidSplitId, match=expected):
        of_splits.handle(SplitsDiscovered((first,) if second is None else (first, second)), at(0))
    assert of_splits.splits == ()


def test_of_a_batch_with_a_split_of_another_kind_nothing_is_learned() -> None:
    history = History(WatermarkStrategy.for_adaptive_out_of_orderness(0.9))
    history.on(0, batch(0, 0, {"a": 50}))
    before = history.watermarks.snapshot()
    wrong = batch(1, 1, {"a": 60}, rows={"a": 300}, backlog={7: 1})

    with pytest.raises(InvalidSplitId):
        history.on(1, replace(wrong, lateness={"a": {0: 300}}))
    assert before == history.watermarks.snapshot()


def test_a_plan_with_a_split_of_another_kind_is_refused_and_nothing_is_applied() -> None:
    history = history_of(a=50)
    beyond_the_guard_us = at(10_000)

    with pytest.raises(InvalidSplitId):
        history.on(1, BatchPlanned(at(1), {"b": beyond_the_guard_us}, {7: 1}))
    assert history.watermarks.splits == ("a",)


@pytest.mark.parametrize("watermark_us", [2**63, -(2**63) - 1])
def test_a_watermark_beyond_64_bits_is_refused_and_nothing_is_applied(watermark_us: int) -> None:
    history = history_of(a=50)

    with pytest.raises(InvalidWatermark):
        history.on(1, batch(1, 1, {"a": 99, "b": watermark_us}))
    assert (50, {"a"}) == (history.low_us, set(history.status(1).splits))


def test_a_stream_begins_with_the_first_event_that_is_not_refused() -> None:
    history = History()
    with pytest.raises(InvalidReshard):
        history.on(1, SplitsResharded({"a": ("a",)}))
    assert history.status(2).since is None
    history.on(3, batch(0, 3, {"a": 5}))
    assert history.status(4).since == utc(at(3))


def test_a_batch_that_comes_late_says_nothing_new_of_the_backlog() -> None:
    history = history_of(a=50)
    history.on(2, batch(2, 2, {"a": 60}, backlog={"a": 5}))
    history.on(3, batch(1, 1, {"a": 55}, backlog={"a": 9}))

    assert history.status(3).splits["a"].backlog_rows == 5


# -- promises


def plan(second: float, **watermarks_us: int) -> BatchPlanned:
    return BatchPlanned(at(second), {str(split): us for split, us in watermarks_us.items()})


def test_a_promise_from_beyond_the_future_guard_moves_nothing() -> None:
    history = History(PLAIN.with_future_guard("5 minutes"))
    year = 365 * 86_400
    history.on(0, batch(0, 0, {"a": at(0), "b": at(0)}))

    assert history.on(1, plan(1, a=at(300), b=at(year))) == []
    assert (history.low_us, history.status(1).splits["b"].watermark_us) == (at(0), at(0))
    assert history.on(2, plan(2, b=at(301.999))) == [("low", at(300))]  # within the guard
    assert history.on(3, plan(3, new=at(year))) == []
    assert history.state("new") == "pending"


def test_a_promise_exactly_at_the_future_guard_is_believed() -> None:
    history = History(PLAIN.with_future_guard("5 minutes"))
    most_us = PLAIN.watermark_of_max(at(301))

    assert history.on(1, plan(1, a=most_us, b=most_us + 1_000)) == [("a", "active")]
    assert history.status(1).splits["b"].watermark_us is None


def test_without_a_guard_a_promise_is_believed() -> None:
    history = History(PLAIN.with_future_guard(None))
    history.on(0, batch(0, 0, {"a": at(0)}))

    assert [("low", at(10**8))] == history.on(1, plan(1, a=at(10**8)))


# -- silence


def test_a_quiet_split_is_left_out_strictly_after_the_timeout() -> None:
    history = history_of(a=50, b=90)
    history.on(9, batch(1, 9, {"b": 100}))

    assert history.on(10, Polled(at(10))) == []
    assert history.on(11, Polled(at(10.000001))) == [("a", "idle"), ("low", 100)]


def test_silence_is_measured_by_what_was_read_not_by_how_long_a_batch_ran() -> None:
    history = history_of(a=50, b=90)

    assert history.on(300, batch(1, 1, {"b": 100})) == []
    assert history.on(301, Tick()) == []
    assert history.state("a") == "active"


@pytest.mark.parametrize("spoke", ["a", None])
def test_a_stream_is_not_silent_while_a_split_that_never_spoke_has_rows_waiting(spoke: str | None) -> None:
    history = History(PLAIN.with_idleness("10 seconds"))
    history.on(0, batch(0, 0, {spoke: 50} if spoke else {}, backlog={"b": 3}))
    history.on(60, Polled(at(60)))
    assert history.status(60).silent_since is None

    history.on(61, batch(1, 0, {}, backlog={"b": 0}))
    history.on(62, Polled(at(62)))
    assert history.status(62).silent_since is not None


def test_a_split_with_backlog_lags_and_is_not_idle() -> None:
    history = history_of(a=50, b=90)
    history.on(60, batch(1, 60, {"b": 100}, backlog={"a": 5, "b": 0}))

    assert (history.state("a"), history.status(60).splits["a"].lagging) == ("active", True)
    assert history.on(61, batch(2, 61, {"b": 101}, backlog={"a": 0})) == [("a", "idle"), ("low", 101)]


def test_reading_a_split_makes_its_old_backlog_unknown() -> None:
    history = history_of(a=50)
    history.on(1, batch(1, 1, {"a": 60}, backlog={"a": 5}))
    history.on(2, batch(2, 2, {"a": 70}))

    assert history.status(2).splits["a"].backlog_rows is None
    assert history.on(13, Polled(at(13))) == [("a", "idle")]


def test_an_idle_split_whose_rows_are_seen_waiting_holds_before_they_are_read() -> None:
    history = history_of(a=50, b=90)
    history.on(12, batch(1, 12, {"b": 100}))
    assert history.state("a") == "idle"

    assert history.on(13, batch(2, 13, {"b": 120}, backlog={"a": 3})) == [("a", "active")]
    assert (history.low_us, history.status(13).holder) == (100, "a")


def test_an_idle_split_whose_waiting_rows_vanish_is_left_out_again_after_the_timeout() -> None:
    history = history_of(a=50, b=90)
    history.on(12, batch(1, 12, {"b": 100}))
    history.on(13, batch(2, 13, {"b": 120}, backlog={"a": 3}))

    assert history.on(23, batch(3, 23, {"b": 130}, backlog={"a": 0})) == []
    assert history.on(24, batch(4, 24, {"b": 140})) == [("a", "idle"), ("low", 140)]


def test_a_split_that_returns_late_is_reported_and_the_low_watermark_stays() -> None:
    history = history_of(a=50, b=90)
    history.on(12, batch(1, 12, {"b": 100}))
    effects = history.watermarks.handle(batch(2, 13, {"a": 60, "b": 110}, rows={"a": 4}), at(14))

    assert [
        SplitStateChanged("a", SplitState.IDLE, SplitState.ACTIVE, "delivered rows"),
        SplitReturnedLate("a", 40, 4),
    ] == effects
    assert (history.low_us, history.status(14).returned_late) == (100, 1)
    assert history.on(15, batch(3, 15, {"a": 70, "b": 120})) == []


def test_a_split_that_returns_exactly_at_the_low_watermark_is_not_late() -> None:
    history = history_of(a=50, b=90)
    history.on(12, batch(1, 12, {"b": 100}))

    assert history.on(13, batch(2, 13, {"a": 100, "b": 110})) == [("a", "active")]


def test_rows_without_a_usable_time_are_activity() -> None:
    history = history_of(a=50, b=90)
    history.on(12, batch(1, 12, {"b": 100}))

    assert history.on(13, batch(2, 13, {"b": 110}, rows={"a": 2, "b": 1})) == [("a", "active")]
    assert history.status(13).holder == "a"


# -- grace


def test_a_new_split_that_is_known_empty_holds_for_a_minute_at_most() -> None:
    history = History(BY_TIME)
    history.on(0, SplitsDiscovered(("a", "b"), frozenset({"b"})))
    history.on(1, batch(0, 1, {"a": 50}))

    assert history.on(60, Polled(at(60))) == []
    assert history.on(60.000001, Polled(at(60.000001))) == [("b", "idle"), ("low", 50)]
    assert history.status(61).left_out == (("b", "new, and silent for more than its grace of 1m"),)
    assert history.on(62, batch(1, 62, {"b": 70})) == [("b", "active")]


def test_a_batch_longer_than_the_grace_of_an_empty_split_does_not_use_it_up() -> None:
    history = History()
    history.on(0, SplitsDiscovered(("a", "b"), frozenset({"b"})))

    # Planned at 1, over at 300: b could not be heard in between.
    assert history.on(300, batch(0, 1, {"a": 50})) == [("a", "active")]
    assert history.on(301, batch(1, 300, {"b": 10})) == [("b", "active"), ("low", 10)]


def test_a_new_split_that_may_have_rows_holds_for_ever() -> None:
    history = History()
    history.on(0, SplitsDiscovered(("a", "b")))
    history.on(1, batch(0, 1, {"a": 50}))

    assert history.on(1e6, Tick()) == []
    assert history.status(1e6).holder == "b"


def test_a_new_split_whose_rows_arrive_during_its_grace_keeps_holding() -> None:
    history = History()
    history.on(0, SplitsDiscovered(("b",), frozenset({"b"})))
    history.on(30, batch(0, 30, {"a": 50}, backlog={"b": 1}))

    assert history.on(1_000, Tick()) == []


def test_a_split_left_out_by_its_grace_holds_again_when_rows_are_seen_waiting() -> None:
    history = History(BY_TIME)
    history.on(0, SplitsDiscovered(("b",), frozenset({"b"})))
    history.on(61, batch(0, 61, {"a": 50}))

    assert history.on(62, batch(1, 62, {"a": 60}, backlog={"b": 1})) == [("b", "pending")]
    assert history.low_us == 50


def test_a_grace_that_is_set_bounds_every_new_split() -> None:
    history = History(PLAIN.with_grace("5 seconds"))
    history.on(0, SplitsDiscovered(("b",)))
    history.on(1, batch(0, 1, {"a": 50}, backlog={"b": 9}))

    assert history.on(6, Tick()) == [("b", "idle"), ("low", 50)]
    assert history.on(7, batch(1, 7, {"a": 50}, backlog={"b": 9})) == []


def test_rows_bring_back_a_split_that_its_silence_left_out_before_its_grace_did() -> None:
    history = History(PLAIN.with_idleness("1 minute").with_grace("10 minutes"))
    history.on(0, SplitsDiscovered(("a", "b")))
    for second in range(0, 90, 10):
        history.on(second, batch(second, second, {"a": second}, backlog={"a": 0, "b": 0}))
    assert history.state("b") == "idle"

    assert history.on(90, batch(90, 90, {"a": 90}, backlog={"b": 500})) == [("b", "pending")]
    assert (history.low_us, history.status(90).holder) == (80, "b")
    assert history.on(690, batch(690, 690, {"a": 91}, backlog={"b": 500})) == []
    assert history.on(691, batch(691, 691, {"a": 92}, backlog={"b": 500})) == [("b", "idle"), ("low", 92)]
    assert history.on(692, batch(692, 692, {"a": 93}, backlog={"b": 500})) == [("low", 93)], "its grace is over"


@pytest.mark.parametrize("batch_id", [0, 1])
def test_a_split_that_returns_without_a_usable_time_has_its_grace_anew_whether_the_batch_is_new_or_not(
    batch_id: int,
) -> None:
    history = History(PLAIN.with_grace("5 seconds"))
    history.on(0, SplitsDiscovered(("b",)))
    history.on(1, batch(0, 1, {"a": 50}))
    assert history.on(6, Tick()) == [("b", "idle"), ("low", 50)]
    assert history.on(8, batch(batch_id, 8, {"a": 60}, rows={"b": 1})) == [("b", "pending")]

    assert history.watermarks.wake_at_us(at(8)) == at(13) + 1
    assert history.on(14, Tick()) == [("b", "idle"), ("low", 60)]


def test_a_paused_new_split_gets_its_grace_when_it_may_be_read() -> None:
    history = History(PLAIN.with_grace("5 seconds"))
    history.on(0, SplitsDiscovered(("b",)))
    history.on(1, SplitsPaused(("b",)))
    assert history.on(100, Tick()) == []
    history.on(100, SplitsResumed(("b",)))

    assert history.on(105, Tick()) == []
    assert history.on(106, Tick()) == [("b", "idle")]


def test_idleness_applies_to_new_splits_too() -> None:
    history = History(IDLENESS)
    history.on(0, SplitsDiscovered(("a",)))

    assert history.on(11, Polled(at(11))) == [("a", "idle")]


# -- the silence of all splits makes no split idle

FLOW = PLAIN.with_idleness("10 seconds")


def flowing(**watermarks_us: int) -> History:
    history = History(FLOW)
    history.on(0, batch(0, 0, {str(split): us for split, us in watermarks_us.items()}))
    return history


def test_in_a_pause_of_all_nobody_becomes_idle_and_the_burst_after_it_may_take_its_time() -> None:
    history = flowing(a=50, b=90)
    assert history.on(600, Polled(at(600))) == []

    assert history.on(601, batch(1, 601, {"b": 100})) == []
    assert history.on(608, batch(2, 608, {"b": 110})) == []
    assert history.on(609, batch(3, 609, {"a": 60, "b": 120})) == [("low", 60)]


def test_a_split_that_is_silent_while_others_deliver_is_left_out_strictly_after_the_timeout() -> None:
    history = flowing(a=50, b=90)
    for second in range(2, 11, 2):
        assert history.on(second, batch(second, second, {"b": 90 + second})) == []

    assert history.on(11, batch(11, 10.000001, {"b": 101})) == [("a", "idle"), ("low", 101)]
    assert history.status(11).left_out == (("a", "silent for more than 10s while others delivered, backlog unknown"),)


def test_rows_without_a_usable_time_and_of_finished_splits_are_flow_too() -> None:
    history = flowing(a=50, b=90, c=99)
    history.on(0, SplitsFinished(("c",)))
    for second in range(2, 9, 2):
        assert history.on(second, batch(second, second, rows={"b": 1})) == []

    assert history.on(10, batch(10, 10, {"c": 99})) == []
    assert history.on(11, batch(11, 10.000001, {"b": 90})) == [("a", "idle"), ("low", 90)]


@pytest.mark.parametrize("clock", ["time", "flow"])
def test_rows_beyond_the_future_guard_are_activity(clock: str) -> None:
    history = History(PLAIN.with_idleness("1 minute", clock=clock))
    history.on(1, batch(0, 1, {"a": 1, "b": 1}))
    for second in range(30, 331, 30):
        history.on(second, batch(second, second, {"a": second}, future_rows={"b": 3, "unknown": 1}))

    assert (history.state("b"), history.low_us, history.status(331).holder) == ("active", 1, "b")
    assert "unknown" not in history.status(331).splits, "it would hold until its clock is right"
    history.on(340, batch(340, 340, {"a": 340}, backlog={"b": 9}))
    history.on(350, batch(350, 350, {"a": 350}, future_rows={"b": 9}))
    assert history.status(350).splits["b"].backlog_rows is None, "it was read since"


def test_a_batch_without_rows_is_no_flow() -> None:
    history = flowing(a=50, b=90)
    for second in range(1, 60):
        assert history.on(second, batch(second, second, backlog={"a": 0, "b": 0})) == []


def test_the_flow_begins_anew_after_a_restart() -> None:
    history = flowing(a=50, b=90)
    history.restart(100)
    history.on(400, Polled(at(400)))
    for number, second in enumerate((401, 410, 420, 430), 1):
        assert history.on(second, batch(number, second, {"b": 90 + number})) == []

    assert history.on(440, batch(9, 440, {"b": 99})) == [("a", "idle"), ("low", 99)]


def test_a_split_that_is_known_to_be_empty_holds_while_nobody_delivers() -> None:
    history = History()
    history.on(0, SplitsDiscovered(("a", "b"), frozenset({"a", "b"})))
    assert history.on(600, Polled(at(600))) == []

    assert history.on(601, batch(0, 601, {"a": 50})) == [("a", "active")]
    assert history.on(602, batch(1, 602, {"b": 20})) == [("b", "active"), ("low", 20)]


def test_a_split_that_stays_empty_while_others_deliver_has_its_minute() -> None:
    history = History()
    history.on(0, SplitsDiscovered(("a", "b"), frozenset({"b"})))
    for second in range(10, 61, 10):
        history.on(second, batch(second, second, {"a": second}))
    assert history.state("b") == "pending"
    assert history.status(60).next == (
        "The first row of split b, or the end of its grace: its grace ends after 0s more in which others deliver."
    )

    assert history.on(61, batch(61, 60.000001, {"a": 61})) == [("b", "idle"), ("low", 61)]


def test_a_stream_is_silent_after_the_timeout_on_the_clock_until_any_of_its_splits_is_heard() -> None:
    history = flowing(a=50, b=90)
    seen = []
    for second, event in (
        (9, Polled(at(10))),
        (11, Polled(at(10.000001))),
        (12, Tick()),
        (13, batch(1, 13, backlog={"a": 3})),
        (14, batch(2, 14, backlog={"a": 0})),
        (15, SplitsPaused(("a",))),
        (16, SplitsResumed(("a",))),
        (26, Polled(at(26))),
        (27, Polled(at(26.000001))),
        (28, SplitsDiscovered(("c",))),
        (39, Polled(at(39))),
        (40, batch(3, 40, {"a": 60})),
        (60, Polled(at(60))),
        (61, SplitsFinished(("a", "b", "c"))),
    ):
        history.on(second, event)
        seen.append(history.watermarks.silent_since_us)
        assert (history.status(second).silent_since is None) == (seen[-1] is None)

    silent = [None if us is None else (us - at(0)) / 1e6 for us in seen]
    assert silent == [None, 0, 0, None, 0, None, None, None, 16, None, 28, None, 40, None]


def test_when_the_stream_would_be_silent_is_a_moment_to_look_at_it() -> None:
    history = flowing(a=50)
    assert history.watermarks.wake_at_us(at(0)) == at(10) + 1
    history.on(11, Polled(at(11)))
    assert history.watermarks.wake_at_us(at(11)) is None
    history.restart(20)
    assert history.watermarks.wake_at_us(at(20)) == at(30) + 1


def test_a_stream_of_new_empty_splits_is_silent_after_their_grace() -> None:
    history = History()
    history.on(0, SplitsDiscovered(("a", "b"), frozenset({"a", "b"})))
    assert history.watermarks.wake_at_us(at(0)) == at(60) + 1
    history.on(61, Polled(at(61)))

    assert history.watermarks.silent_since_us == at(0)
    history.on(62, batch(0, 62, {"a": 50}))
    history.on(500, Polled(at(500)))
    assert history.watermarks.silent_since_us is None  # without idleness a split with a watermark is waited for


# -- all idle


def test_when_all_are_idle_the_low_watermark_holds_by_default() -> None:
    history = history_of(a=50, b=90)

    assert history.on(11, Polled(at(11))) == [("a", "idle"), ("b", "idle")]
    assert (history.low_us, history.status(11).holder) == (50, None)


@pytest.mark.parametrize("waiting", [0, 3])
def test_when_a_split_that_never_spoke_falls_idle_with_or_after_the_others_their_watermarks_count(waiting: int) -> None:
    history = History(IDLENESS)
    history.on(0, batch(0, 0, {"a": 50, "b": 90}, backlog={"silent": waiting}))
    idle = [*history.on(11, Polled(at(11))), *history.on(12, batch(1, 12, {}, backlog={"silent": 0}))]

    assert idle[-2:] == [("silent", "idle"), ("low", 50)]
    assert (history.low_us, history.status(12).holder) == (50, None)


def test_when_all_are_idle_it_may_jump_to_the_largest_watermark() -> None:
    history = History(IDLENESS.with_all_idle("max"))
    history.on(0, batch(0, 0, {"a": 50, "b": 90}))

    assert history.on(11, Polled(at(11))) == [("a", "idle"), ("b", "idle"), ("low", 90)]


def test_when_all_are_idle_it_may_follow_processing_time() -> None:
    history = History(IDLENESS.with_all_idle("advance", delay="1 minute"))
    history.on(0, batch(0, 0, {"a": 50}))

    assert [("a", "idle"), ("low", at(11) - 60_000_000)] == history.on(11, Polled(at(11)))
    assert [("low", at(12) - 60_000_000)] == history.on(13, Polled(at(12)))


def test_while_nothing_is_read_it_does_not_follow_processing_time() -> None:
    history = History(IDLENESS.with_all_idle("advance", delay="1 minute"))
    history.on(0, batch(0, 0, {"a": 50}))
    history.on(11, Polled(at(11)))

    assert history.on(300, Tick()) == []  # during a batch
    assert history.on(300, batch(1, 12, {"a": at(290)})) == [("a", "active"), ("low", at(290))]


def test_after_a_restart_it_waits_until_the_sources_were_asked() -> None:
    """Rows that arrived during the hour of downtime must not be late."""
    history = History(IDLENESS.with_all_idle("advance", delay="1 minute"))
    history.on(0, batch(0, 0, {"a": 50}))
    history.on(11, Polled(at(11)))
    history.restart(3_611)

    assert history.on(3_611, Tick()) == []
    assert history.watermarks.wake_at_us(at(3_611)) == at(11) + ALL_IDLE_STEP_US
    history.on(3_612, batch(1, 3_611, {"a": at(20)}, rows={"a": 3}, backlog={"a": 99}))
    assert (history.low_us, history.status(3_612).returned_late) == (at(20), 0)


def test_after_a_restart_of_idle_splits_it_goes_on_with_the_first_poll() -> None:
    history = History(IDLENESS.with_all_idle("advance", delay="1 minute"))
    history.on(0, batch(0, 0, {"a": 50}))
    history.on(11, Polled(at(11)))
    history.restart(3_611)

    assert [("low", at(3_612) - 60_000_000)] == history.on(3_613, Polled(at(3_612)))


# -- splits that a strategy may pass


def test_without_a_quorum_idle_splits_hold_with_what_they_have() -> None:
    history = History(IDLENESS.with_quorum(0.5))
    history.on(0, batch(0, 0, {"a": 10, "b": 20, "c": 30, "d": 40}))
    assert history.on(9, batch(1, 9, {"c": 50, "d": 60})) == []

    assert history.on(11, batch(2, 11, {"d": 70})) == [("a", "idle"), ("b", "idle"), ("low", 50)]
    assert history.on(20, batch(3, 20, {"d": 90})) == [("c", "idle")]
    assert history.low_us == 50


def test_a_percentile_passes_the_slowest_and_their_rows_are_reported_late_when_they_return() -> None:
    history = History(PLAIN.with_percentile(50))
    history.on(0, SplitsDiscovered(("a", "b")))

    assert history.on(1, batch(0, 1, {"b": 90})) == [("b", "active"), ("low", 90)]
    assert history.on(2, batch(1, 2, {"a": 10})) == [("a", "active"), ("a late by", 80)]


# -- the end of a split


def test_a_finished_split_releases_the_others() -> None:
    history = history_of(a=50, b=90)

    assert history.on(1, SplitsFinished(("a",))) == [("a", "finished"), ("low", 90)]
    assert history.on(2, SplitsFinished(("a",))) == []


def test_a_removed_split_is_forgotten() -> None:
    history = history_of(a=50, b=90)

    assert history.on(1, SplitsRemoved(("a", "x"))) == [("low", 90)]
    assert {"b"} == set(history.status(1).splits)
    assert history.on(11, Polled(at(11))) == [("b", "idle")]


def test_a_removed_split_that_comes_back_is_new_and_what_was_published_stays() -> None:
    history = history_of(a=50, b=90)
    history.on(1, SplitsRemoved(("a",)))

    assert history.on(2, SplitsDiscovered(("a",))) == []
    assert (history.state("a"), history.status(2).splits["a"].watermark_us) == ("pending", None)
    assert history.on(3, batch(1, 3, {"a": 60, "b": 99}, rows={"a": 1})) == [("a", "active"), ("a late by", 30)]
    assert (history.low_us, history.status(3).splits["a"].rows) == (90, 1)


def test_a_finished_split_that_was_removed_comes_back_as_a_new_one() -> None:
    history = history_of(a=50, b=90)
    history.on(1, SplitsFinished(("a",)))
    assert history.on(2, SplitsDiscovered(("a",))) == []
    assert history.state("a") == "finished"  # its id stays finished until it is removed
    history.on(3, SplitsRemoved(("a",)))

    assert history.on(4, SplitsDiscovered(("a",))) == []
    assert (history.state("a"), history.status(4).holder) == ("pending", "a")


def test_what_is_removed_leaves_nothing_behind() -> None:
    history = History(IDLENESS)
    for generation in range(50):
        history.on(generation, batch(generation, generation, {f"s{generation}": generation}, backlog={"x": 1}))
        history.on(generation, SplitsResharded({f"s{generation + 1}": (f"s{generation}",)}))
        history.on(generation, SplitsFinished((f"s{generation}",)))
        history.on(generation, SplitsRemoved((f"s{generation}",)))
    of_splits = history.watermarks

    assert of_splits.splits == ("x", "s50")
    assert len(of_splits.snapshot()) < 120
    states, reports = of_splits._states, of_splits._reports
    kept_of_splits = (states.records, reports.tally.splits, reports.backlog_rows, reports._heard_us)
    assert [len(kept) for kept in kept_of_splits] == [2, 0, 1, 0]


def test_splits_that_only_rows_of_wrong_clocks_name_are_kept_up_to_a_limit() -> None:
    history = History()
    history.on(0, batch(0, 0, {1: 5}, rows={1: 1}))
    for number in range(1, 21):
        history.on(number, batch(number, number, future_rows=dict.fromkeys(range(100 * number, 100 * number + 100), 1)))
    history.on(21, batch(21, 21, future_rows={1: 1}))
    tally = history.watermarks._reports.tally

    assert (len(tally.splits), len(tally.future)) == (1_001, 1_000)
    assert tally.splits[1].last_report_us == at(21)


# -- when to look again


def test_the_next_moment_is_the_earliest_of_idleness_and_grace() -> None:
    history = history_of(a=50)
    assert at(10) + 1 == history.watermarks.wake_at_us(at(0))

    history.on(0, SplitsDiscovered(("b",), frozenset({"b"})))
    history.on(11, Polled(at(11)))
    assert history.watermarks.wake_at_us(at(11)) is None


def test_grace_wakes_the_caller() -> None:
    history = History()
    history.on(5, SplitsDiscovered(("b",), frozenset({"b"})))

    assert at(65) + 1 == history.watermarks.wake_at_us(at(5))
    history.on(65.000001, Polled(at(65.000001)))
    assert history.watermarks.wake_at_us(at(66)) is None


def test_a_deadline_that_passed_while_nothing_was_read_waits_for_the_next_poll() -> None:
    history = history_of(a=50)
    history.on(20, Tick())  # during a batch no rows are read

    assert history.watermarks.wake_at_us(at(20)) == at(10) + 1
    assert history.on(20, Polled(at(20))) == [("a", "idle")]
    assert history.watermarks.wake_at_us(at(20)) is None


def test_the_default_grace_waits_for_the_next_poll_too() -> None:
    history = History(BY_TIME)
    history.on(5, SplitsDiscovered(("b",), frozenset({"b"})))
    history.on(100, Tick())

    assert history.watermarks.wake_at_us(at(100)) == at(65) + 1
    assert history.on(100, Polled(at(100))) == [("b", "idle")]
    assert history.watermarks.wake_at_us(at(100)) is None


def test_following_processing_time_asks_for_a_look_every_second() -> None:
    history = History(IDLENESS.with_all_idle("advance", delay="1 minute"))
    history.on(0, batch(0, 0, {"a": 50}))
    history.on(11, Polled(at(11)))

    assert at(11) + ALL_IDLE_STEP_US == history.watermarks.wake_at_us(at(11))


def test_nothing_to_wait_for() -> None:
    history = History()
    history.on(0, batch(0, 0, {"a": 50}))

    assert history.watermarks.wake_at_us(at(1)) is None


# -- persistence


def test_the_epoch_grows_with_what_a_snapshot_is_for_and_with_nothing_else() -> None:
    history = History(IDLENESS)
    grew = []
    for second, event in (
        (0, SplitsDiscovered(("a",))),
        (0, SplitsDiscovered(("a",))),
        (1, batch(0, 1, {"a": 0})),
        (2, batch(1, 2, {"a": 0})),
        (3, batch(2, 3, {"a": 1})),
        (4, SplitsPaused(("a",))),
        (5, SplitsResumed(("a",))),
        (30, Polled(at(30))),
        (31, Tick()),
        (32, SplitsFinished(("a",))),
        (33, SplitsFinished(("a",))),
        (34, SplitsRemoved(("a",))),
    ):
        before = history.watermarks.epoch
        history.on(second, event)
        grew.append(history.watermarks.epoch - before)

    assert grew == [1, 0, 1, 0, 1, 0, 0, 0, 0, 1, 0, 1]


def test_a_restart_keeps_the_low_watermark_the_splits_and_who_was_idle() -> None:
    history = history_of(a=50, b=90, c=70)
    history.on(9, batch(1, 9, {"b": 100, "c": 70}))
    history.on(11, Polled(at(11)))
    history.on(11, SplitsPaused(("c",)))
    history.on(12, SplitsDiscovered(("d",)))
    history.on(12, SplitsFinished(("b",)))
    before = {split: history.state(split) for split in "abcd"}
    history.restart(20)

    assert before == {"a": "idle", "b": "finished", "c": "paused", "d": "pending"}
    assert (70, before) == (history.low_us, {split: history.state(split) for split in "abcd"})
    assert history.on(21, batch(2, 21, {"c": 999})) == []


def test_idle_and_grace_timers_start_anew_after_a_restart() -> None:
    history = history_of(a=50)
    history.restart(100)

    assert at(110) + 1 == history.watermarks.wake_at_us(at(100))
    assert history.on(110, Polled(at(110))) == []
    assert history.on(111, Polled(at(111))) == [("a", "idle")]


def test_a_restored_low_watermark_of_zero_is_a_low_watermark() -> None:
    history = History()
    history.on(0, batch(0, 0, {"a": 0}))
    history.restart(1)

    assert history.low_us == 0
    assert history.on(2, batch(0, 2, {"a": -5})) == []


def test_the_batch_that_was_running_in_the_crash_is_news_after_it() -> None:
    history = history_of(a=50, b=90)
    history.on(11, batch(1, 11, {"b": 95}))
    history.restart(20)

    assert history.on(21, batch(1, 11, {"a": 97, "b": 95})) == [("a", "active")]
    assert history.on(22, batch(2, 20, {"b": 98})) == [("low", 97)]


def test_names_are_carried_along() -> None:
    of_splits = watermarks_of()
    of_splits.handle(SplitsDiscovered((7,)), at(0))
    data = of_splits.snapshot({7: "orders/7"})
    again = SplitWatermarks.restore(data, PLAIN, job_id="job", source_id="orders", task_id="0", now_us=at(1))

    assert again.names == {7: "orders/7"}
    assert data == again.snapshot()


def test_a_restored_stream_keeps_its_kind_of_ids() -> None:
    of_splits = watermarks_of()
    of_splits.handle(SplitsDiscovered((7,)), at(0))

    with pytest.raises(InvalidSplitId):
        restored(of_splits, 1).handle(SplitsDiscovered(("a",)), at(1))


def test_a_corrupt_snapshot_is_not_restored() -> None:
    with pytest.raises(CorruptSnapshot):
        SplitWatermarks.restore(b"?", PLAIN, job_id="j", source_id="s", task_id="t", now_us=0)


def test_a_snapshot_does_not_depend_on_the_order_of_discovery() -> None:
    snapshots = []
    for splits in (("a", "b"), ("b", "a")):
        of_splits = watermarks_of()
        of_splits.handle(SplitsDiscovered(splits), at(0))
        snapshots.append(of_splits.snapshot())

    assert snapshots[0] == snapshots[1]


# -- progressive idleness


GROWS = PLAIN.with_idleness("100 seconds", clock="time", at_start="10 seconds", over="1000 seconds")


def left_out_after(history: History, begins: int) -> int:
    """Return the seconds of silence, from then on, until a split is left out."""
    history.on(begins, batch(begins, begins, {"a": begins, "b": begins}))
    for second in range(begins + 1, begins + 200):
        if ("b", "idle") in history.on(second, batch(second, second, {"a": second})):
            return second - begins
    raise AssertionError("never")


def test_a_young_stream_leaves_a_silent_split_out_soon_and_an_old_one_late() -> None:
    history = History(GROWS)

    assert [left_out_after(history, begins) for begins in (0, 400, 1_000, 5_000)] == [11, 51, 101, 101]
    assert left_out_after(History(PLAIN.with_idleness("100 seconds", clock="time")), 0) == 101


def test_what_is_told_is_the_timeout_of_the_moment() -> None:
    history = History(GROWS)
    history.on(0, batch(0, 0, {"a": 5, "b": 5}))
    assert "its silence for more than 10s by now" in history.status(0).next
    assert history.watermarks.wake_at_us(at(0)) == at(10_989_011 / 1_000_000)  # 10 s and its growth
    history.on(500, Polled(at(0)))
    history.on(500, batch(1, 500, {"a": 6, "b": 6}))
    assert "its silence for more than 55s by now" in history.status(500).next
    history.on(556, batch(2, 556, {"a": 7, "b": 7}))
    history.on(630, batch(3, 630, {"a": 8}))
    assert history.status(630).splits["b"].why == "silent for more than 1m 6s, backlog unknown"


@pytest.mark.parametrize(("second", "expected"), [(200, 31), (2_000, 101)])
def test_a_restart_makes_no_stream_young(second: int, expected: int) -> None:
    history = History(GROWS)
    history.on(0, batch(0, 0, {"a": 5, "b": 5}))
    history.on(second, batch(1, second, {"a": 6, "b": 6}))
    history.restart(second)
    history.restart(second)

    assert left_out_after(history, second + 1) == expected
    assert (decode(history.watermarks.snapshot()).young_since_us is None) == (second >= 1_000)


def test_a_stream_that_began_by_a_clock_ahead_grows_from_the_restart_on() -> None:
    history = History(GROWS)
    history.on(5_000, batch(0, 5_000, {"a": 5, "b": 5}))
    history.restart(100)

    assert left_out_after(history, 1_100) == 101


def test_a_stream_without_splits_has_no_age_in_its_checkpoint() -> None:
    """Read before the first split was known, or after the last split was gone. Once, the first checkpoint had it."""
    history = History(GROWS)
    history.on(100, Polled(at(100)))
    before = history.watermarks.snapshot()
    history.restart(100)

    assert history.watermarks.snapshot() == before
    assert decode(before).young_since_us is None
    assert left_out_after(history, 100) == 11


def test_a_checkpoint_of_a_stream_without_a_growing_timeout_counts_as_old() -> None:
    history = History(PLAIN.with_idleness("100 seconds", clock="time"))
    history.on(0, batch(0, 0, {"a": 5, "b": 5}))
    history.strategy = GROWS
    history.restart(1)

    assert left_out_after(history, 2) == 101
