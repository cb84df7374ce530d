"""Reasons for a standing low watermark on a bad day: the cause comes first, and its numbers are current."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from lowmark.watermark import Cause, WatermarkStrategy, explain, to_json
from lowmark.watermark.splits.cause import unusable_times
from lowmark.watermark.splits.events import BatchCounts, BatchPlanned, Polled, SplitsDiscovered, SplitsRemoved

from tests.watermark.splits.history import PLAIN, START_US, History, at, batch, restored

START = datetime(2023, 11, 14, 22, 13, 20, tzinfo=timezone.utc)
IDLENESS = PLAIN.with_idleness("10 seconds")
YEAR_US = 365 * 86_400 * 1_000_000


def test_a_split_without_a_row_in_a_batch_has_not_reported() -> None:
    """Kafka's offsets include every partition, also those without a row in the batch."""
    history = History()
    history.on(1, batch(0, 1, {"dead": 50, "live": 50}, rows={"dead": 3, "live": 3}))
    for n in range(1, 61):
        history.on(60 * n, batch(n, 60 * n, {"live": 50 + n}, rows={"dead": 0, "live": 3}))
    status = history.status(3_605)

    assert START + timedelta(seconds=1) == status.splits["dead"].last_report
    assert START + timedelta(seconds=3_600) == status.splits["live"].last_report
    assert status.why == ("split dead has the smallest watermark of 2 live splits; no row of it was reported for 1h.")
    assert (status.cause, status.holder) == (Cause.SILENT_SPLIT, "dead")


def test_a_split_that_never_spoke_is_told_with_how_long_it_is_waited_for() -> None:
    history = History()
    history.on(0, SplitsDiscovered(("dead", "live")))
    history.on(300, batch(0, 300, {"live": 50}, rows={"dead": 0, "live": 3}))
    status = history.status(300)

    assert status.why == "split dead has not spoken yet; no row of it was reported for 5m."
    assert status.cause is Cause.SILENT_SPLIT


def test_after_a_restart_silence_counts_from_the_restart() -> None:
    history = History()
    history.on(1, batch(0, 1, {"dead": 50, "live": 60}))
    of_splits = restored(history.watermarks, 100)
    of_splits.handle(batch(1, 130, {"live": 70}), at(130))

    assert "no row of it was reported for 40s" in of_splits.status(at(140)).why


def test_a_split_whose_rows_do_not_rise_is_told_so_however_many_come() -> None:
    """As of a producer that sends old rows again, or whose clock went back."""
    history = History()
    history.on(1, batch(0, 1, {"back": 50, "live": 60}))
    history.on(9, batch(1, 9, {"back": 40, "live": 70}))
    assert history.status(9).why == "split back has the smallest watermark of 2 live splits."
    for n in range(2, 6):
        history.on(60 * n + 1, batch(n, 60 * n + 1, {"back": 50 - n, "live": 70 + n}))
    assert history.status(301).why == (
        "split back has the smallest watermark of 2 live splits; for 5m rows of it were reported, and none raised its "
        "watermark."
    )
    history.on(302, batch(6, 302, {"back": 51, "live": 80}))
    assert history.status(302).why == "split back has the smallest watermark of 2 live splits."


def test_rows_of_a_batch_that_was_planned_before_the_low_watermark_rose_need_not_raise_it() -> None:
    """A planner says what follows a batch before the batch is read, and the batch may take long."""
    history = History()
    history.on(1, BatchPlanned(at(1), {"slow": 50, "fast": 60}))
    history.on(31, batch(0, 1, {"slow": 40, "fast": 55}))
    assert history.status(31).low_watermark_us == 50
    assert history.status(31).why == "split slow has the smallest watermark of 2 live splits."


def test_a_split_that_is_merely_behind_is_not_called_silent() -> None:
    history = History()
    history.on(1, batch(0, 1, {"slow": 50, "fast": 90}))
    status = history.status(4_000)  # no split has had a row since

    assert (status.why, status.cause) == ("split slow has the smallest watermark of 2 live splits.", None)


@pytest.mark.parametrize("strategy", [PLAIN, IDLENESS])
def test_in_a_stream_without_rows_no_split_is_called_silent(strategy: WatermarkStrategy) -> None:
    """Batches without a row continue, because they have the heartbeat."""
    history = History(strategy)
    for n in range(3):
        history.on(n, batch(n, n, {"slow": 50 + n, "fast": 90 + n}, rows={"slow": 1, "fast": 1}))
    for n in range(3, 10):
        history.on(60 * n, Polled(at(60 * n)))
        history.on(60 * n, batch(n, 60 * n, rows={"slow": 0, "fast": 0}))
    status = history.status(600)

    assert (status.cause, status.holder) == (None, "slow")
    assert "no row of it" not in status.why
    history.on(700, batch(10, 700, {"fast": 200}, rows={"slow": 0, "fast": 1}))
    assert history.status(700).cause is Cause.SILENT_SPLIT, "now another has rows"


def test_the_silence_of_a_stream_goes_on_while_nothing_is_read() -> None:
    """No poll comes after the silence is known; once, the shown duration was frozen at that moment."""
    history = History(IDLENESS)
    history.on(1, batch(0, 1, {"a": 50}))
    history.on(12, Polled(at(12)))

    assert "nothing of any split for 11s" in history.status(12).why
    assert "nothing of any split for 1h 6m" in history.status(4_001).why


def test_native_spark_goes_by_guarded_rows_too() -> None:
    history = History(PLAIN.for_bounded_out_of_orderness("10 seconds"))
    ahead_us = START_US + YEAR_US
    history.on(1, batch(0, 1, {"a": START_US}, rows={"a": 4}, newest_us=ahead_us, future_rows={"a": 1}))
    for n in (1, 2):
        history.on(n + 1, batch(n, n + 1, {"a": START_US + n}, rows={"a": 7}, newest_us=START_US + 12_000_000))
    status = history.status(4)

    assert status.native_watermark_us == ahead_us - 10_000_000
    assert status.native_late_rows == 7, "native Spark is a year ahead, and drops everything"


def test_the_split_whose_clock_is_wrong_is_named_with_since_when_and_how_many_rows() -> None:
    history = History()
    ahead_us = START_US + YEAR_US
    history.on(1, batch(0, 1, {"bad": 50, "good": 50}))
    for n in (1, 2, 3):
        history.on(n + 1, batch(n, n + 1, {"good": 50 + n}, newest_us=ahead_us, future_rows={"bad": 10}))
    status = history.status(30)
    (clock,) = status.wrong_clocks

    assert (clock.split, clock.rows) == ("bad", 30)
    assert (START + timedelta(seconds=2), START + timedelta(seconds=4)) == (clock.since, clock.last)
    assert (status.cause, status.holder) == (Cause.WRONG_CLOCK, "bad")
    assert status.why.startswith(
        "the clock of split bad is wrong: 30 rows since 2023-11-14 22:13:22 UTC (the last at 2023-11-14 22:13:24 "
        "UTC) lie further ahead of the clock than the future guard allows, and move nothing; split bad has the "
        "smallest watermark of 2 live splits"
    )
    assert "no row of it" not in status.why, "it delivers"
    assert status.newest_us == ahead_us
    assert START + timedelta(seconds=4) == status.splits["bad"].last_report


def test_a_wrong_clock_that_holds_nothing_has_a_line_of_its_own() -> None:
    history = History()
    history.on(1, batch(0, 1, {"mixed": 50, "good": 60}))
    history.on(2, batch(1, 2, {"mixed": 70, "good": 80}, future_rows={"mixed": 1_234}, newest_us=START_US + YEAR_US))
    history.on(3, batch(2, 3, {"mixed": 90, "good": 81}))
    status = history.status(4)

    assert status.cause is None
    assert (
        "  clock  the clock of split mixed is wrong: 1,234 rows since 2023-11-14 22:13:22 UTC (the last at "
        "2023-11-14 22:13:22 UTC) lie further ahead of the clock than the future guard allows, and move nothing; the "
        "largest event time of the stream is 2024-11-13 22:13:20.000 UTC"
    ) in explain(status)
    assert to_json(status)["wrong_clocks"] == [
        {"split": "mixed", "rows": 1_234, "since": "2023-11-14T22:13:22+00:00", "last": "2023-11-14T22:13:22+00:00"}
    ]


def test_one_row_of_a_wrong_clock_is_told_as_one() -> None:
    history = History()
    counts = BatchCounts(rows=2, future_rows=1)
    history.on(1, batch(0, 1, {"a": 50}, future_rows={"a": 1}, newest_us=START_US + YEAR_US, counts=counts))
    status = history.status(2)

    assert "is wrong: 1 row since" in str(status.wrong_clocks[0])
    assert ") lies further ahead of the clock than the future guard allows, and moves nothing" in str(
        status.wrong_clocks[0]
    )
    assert "batches 1 (2 rows, 1 future row)" in explain(status)


def test_a_split_that_is_gone_has_no_clock_any_more() -> None:
    history = History()
    history.on(1, batch(0, 1, {"a": 50, "b": 60}, future_rows={"a": 1}))
    history.on(2, SplitsRemoved(("a",)))

    assert history.status(3).wrong_clocks == ()


SECOND_US = 1_000_000
ALL_LIE = "the event times of all 5 rows so far lie"


@pytest.mark.parametrize(
    ("counts", "newest_us", "said"),
    [
        (BatchCounts(), None, None),
        (BatchCounts(rows=5), START_US, None),
        (BatchCounts(rows=5, null_time_rows=4), START_US, None),
        (
            BatchCounts(rows=26_401, null_time_rows=26_401),
            None,
            "all 26,401 rows so far have no event time: is the JSON path, or the format of the time, right?",
        ),
        (
            BatchCounts(rows=5, null_time_rows=3, null_split_rows=2),
            None,
            "all 5 rows so far have no event time or no split: is the JSON path, or the format of the time, right?",
        ),
        (
            BatchCounts(rows=5),
            START_US // 1_000,  # seconds, taken as milliseconds
            f"{ALL_LIE} in 1970 (up to 1970-01-20 16:13:20.000 UTC): are seconds taken for milliseconds?",
        ),
        (
            BatchCounts(rows=5, before_epoch_rows=5),
            -SECOND_US,
            f"{ALL_LIE} before 1970, where Spark takes every row for late: is the format of the time right?",
        ),
        (
            BatchCounts(rows=5, future_rows=5),
            START_US * 1_000,  # milliseconds, taken as seconds
            f"{ALL_LIE} in the future, up to the year 55840: are milliseconds taken for seconds?",
        ),
        (
            BatchCounts(rows=5, future_rows=5),
            START_US + 7_200 * SECOND_US,
            f"{ALL_LIE} in the future, up to 2023-11-15 00:13:20.000 UTC: is a clock or a time zone wrong?",
        ),
    ],
)
def test_times_that_cannot_be_are_told_in_one_sentence(
    counts: BatchCounts, newest_us: int | None, said: str | None
) -> None:
    assert unusable_times(counts, newest_us) == said


def test_unusable_times_come_before_who_holds() -> None:
    history = History()
    history.on(0, SplitsDiscovered(("a", "b")))
    history.on(1, batch(0, 1, rows={"a": 3, "b": 4}, counts=BatchCounts(rows=7, null_time_rows=7)))
    status = history.status(40)

    assert status.cause is Cause.NO_EVENT_TIME
    assert status.why.startswith("all 7 rows so far have no event time: is the JSON path, or the format of")
    assert "Split a has not spoken yet" in status.why


def test_null_that_names_a_split_is_no_lack_of_times() -> None:
    """As in split=["region", "device"] where no row has a region: every row has a split, and moves the watermark."""
    history = History()
    counts = BatchCounts(rows=2, null_split_rows=2, future_rows=1)
    history.on(
        1,
        batch(
            0, 1, {"null/x": 50, "null/y": 60}, counts=counts, newest_us=START_US + YEAR_US, future_rows={"null/x": 1}
        ),
    )
    status = history.status(2)

    assert status.cause is not Cause.NO_EVENT_TIME
    assert "event time" not in status.why


def test_without_a_guard_the_year_58_000_is_told() -> None:
    history = History(WatermarkStrategy.for_monotonous_timestamps().with_future_guard(None))
    us = START_US * 1_000
    history.on(1, batch(0, 1, {"a": us, "b": us}, rows={"a": 2, "b": 3}, counts=BatchCounts(rows=5), newest_us=us))
    status = history.status(2)

    assert "up to the year 55840: are milliseconds taken for seconds?" in status.why


def test_what_native_spark_would_drop_is_called_a_floor() -> None:
    history = History()
    history.on(1, batch(0, 1, {"fast": START_US, "slow": 0}))
    history.on(2, batch(1, 2))
    history.on(3, batch(2, 3, {"slow": 5}))

    assert (
        "would have judged at least 1 row late: a floor that may lie far below the truth, because a batch tells "
        "the first and the last event time of a split at most, and without `detail=True` not how many rows it had"
    ) in explain(history.status(3))
