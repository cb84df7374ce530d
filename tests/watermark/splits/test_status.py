from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
from lowmark.watermark import (
    AllIdle,
    NotifyNewLowWatermark,
    SplitId,
    SplitState,
    SplitStatus,
    WatermarkStrategy,
    WrongClock,
    explain,
    format_time_us,
    to_json,
)
from lowmark.watermark.moment import utc
from lowmark.watermark.replay.rules import Rule
from lowmark.watermark.splits.events import (
    BatchCounts,
    BatchReported,
    Polled,
    SplitColumn,
    SplitsDiscovered,
    SplitsFinished,
    SplitsPaused,
    Tick,
)
from lowmark.watermark.splits.status import Explanation, Hold, as_html, hold_reasons
from lowmark.watermark.state import IdleClock

from tests.laws.strategies import draws
from tests.watermark.splits.history import PLAIN, START_US, History, at, batch, watermarks_of

IDLENESS = PLAIN.with_idleness("10 seconds", clock="time")
YEAR_US = 365 * 86_400 * 1_000_000
START = datetime(2023, 11, 14, 22, 13, 20, tzinfo=timezone.utc)


def test_a_stream_without_splits_says_so() -> None:
    status = watermarks_of().status(at(0))

    assert (status.why, status.next) == ("no split is known yet.", "The first split that is discovered and speaks.")
    assert (status.low_watermark_us, status.holder, status.since, status.splits) == (None, None, None, {})
    assert status.states == {"pending": 0, "active": 0, "paused": 0, "idle": 0, "finished": 0}


def test_no_split_hides_another_one_whatever_their_names_are() -> None:
    of_splits = watermarks_of()
    of_splits.handle(BatchReported(0, at(1), {1: 10, 2: 20, 3: 30}), at(1))
    names = {1: "a (3)", 2: "a", 3: "a"}
    status = of_splits.status(at(1), lambda split: names[split])  # type: ignore[index]

    shown = {name: split.watermark_us for name, split in status.splits.items()}
    assert shown == {"a (3)": 10, "a": 20, "a (3) (3)": 30}


def test_what_is_counted_begins_anew_with_each_start_of_the_query_as_the_words_say() -> None:
    history = History()
    history.on(1, batch(0, 1, {"a": 50}, rows={"a": 3}, future_rows={"b": 2}))
    before = history.status(1)
    assert (before.splits["a"].rows, before.wrong_clocks[0].rows) == (3, 2)
    history.restart(2)  # the same process, or a later one
    again = history.status(2)
    assert (again.splits["a"].rows, again.splits["a"].last_report, again.wrong_clocks) == (0, None, ())
    for words in (SplitStatus.__doc__, WrongClock.__doc__):
        assert "process" not in str(words)
        assert "query started" in str(words)


def test_who_holds_why_since_when_and_what_would_move_it() -> None:
    history = History(IDLENESS)
    history.on(0, SplitsDiscovered(("a", "b")))
    history.on(1, batch(0, 1, {"a": 50, "b": 90}))
    history.on(5, batch(1, 5, {"b": 100}))
    status = history.status(6)

    assert (status.name, status.low_watermark_us, status.holder) == ("orders", 50, "a")
    assert status.why == "split a has the smallest watermark of 2 live splits."
    assert status.next == "Newer rows of split a; or its silence for more than 10s."
    assert START + timedelta(seconds=1) == status.since


def test_a_notebook_shows_a_line_or_the_whole_text_and_obeys_no_name() -> None:
    history = History()
    history.on(0, SplitsDiscovered(tuple(f"<b>{n}" for n in range(5_000))))
    history.on(1, batch(0, 1, {"<b>7": 50}))
    status = history.status(2)

    assert repr(status) == "<StreamStatus orders: low watermark none, held by <b>0; splits: 4999 pending, 1 active>"
    shown = status._repr_html_()
    assert shown == as_html(explain(status))
    assert "<b>" not in shown
    assert "split &lt;b&gt;0 has not spoken yet" in shown
    said = Explanation("split <b>: idle")
    assert (str(said), repr(said), said._repr_html_()) == ("split <b>: idle", "split <b>: idle", as_html(str(said)))


def test_a_status_counts_per_split_and_in_all() -> None:
    history = History()
    counts = BatchCounts(rows=9, future_rows=1)
    history.on(1, batch(0, 1, {"a": 50_000, "b": 90_000}, rows={"a": 2, "b": 6}, counts=counts))
    history.on(
        2,
        batch(
            1,
            2,
            {"b": 80_000},
            first_us={"b": 20_000},
            rows={"b": 1},
            backlog={"a": 4},
            in_force_us=20_000,
            counts=counts,
        ),
    )
    status = history.status(3)
    a, b = status.splits["a"], status.splits["b"]

    assert (a.rows, b.rows, a.first_us, a.backlog_rows, b.backlog_rows) == (2, 6 + 1, None, 4, None)
    assert (a.late_reports, b.late_reports, b.first_us) == (0, 1, 20_000)
    assert (a.lagging, b.lagging) == (True, False)
    assert START + timedelta(seconds=2) == b.last_report
    assert (BatchCounts(rows=18, future_rows=2), 1, 2, 1) == (
        status.counts,
        status.regressions,
        status.batches,
        status.last_batch_id,
    )


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("detail", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_no_more_rows_are_counted_than_native_spark_judges_late_in_a_stream_without_pauses(
    seed: int, detail: bool, together: bool
) -> None:
    rng, bound_us = random.Random(seed), 10_000_000
    strategy = PLAIN.for_bounded_out_of_orderness("10 seconds")
    history, rule = History(strategy), Rule(2)
    late: dict[SplitId, int] = dict.fromkeys(range(3), 0)
    for n in range(30):
        splits = [split for split in late if together or rng.random() < 0.7]
        times = {
            split: [START_US + rng.randrange(60) * 5_000_000 + rng.randrange(2_000) for _ in range(rng.randint(1, 3))]
            for split in splits
        }
        rule.begin()
        native_us = None if rule.late is None else rule.late - rule.late % 1_000 - bound_us
        for split, of_split in times.items():
            late[split] += sum(native_us is not None and us <= native_us for us in of_split)
        newest_us = max((max(of_split) for of_split in times.values()), default=None)
        rule.end(newest_us)
        made_us = {split: strategy.watermark_of_max(max(of_split)) for split, of_split in times.items()}
        column = SplitColumn(np.array(splits, np.uint64), np.array([*made_us.values()], np.int64))
        event = batch(
            n, n, column if together else made_us,
            first_us={split: min(of_split) for split, of_split in times.items()} if detail else None,
            rows={split: len(of_split) for split, of_split in times.items()} if detail else None,
            newest_us=newest_us if seed % 2 else None,
            counts=BatchCounts(rows=sum(map(len, times.values()))),
        )  # fmt: skip
        history.on(n, event)
        status = history.status(n)
        assert status.native_late_rows <= sum(late.values()), f"seed {seed}, batch {n}"
        for split, most in late.items():
            known = status.splits.get(str(split))
            assert known is None or known.native_late_rows <= most, f"seed {seed}, batch {n}, split {split}"
    assert (history.watermarks._reports.cohort is not None) is together
    assert history.status(30).native_late_rows > 0, f"seed {seed}: nothing was counted"


def test_rows_that_are_counted_for_the_stream_only_are_of_no_split() -> None:
    history = History()
    history.on(0, batch(0, 0, {"a": 60, "b": 50}))
    assert [split.rows for split in history.status(1).splits.values()] == [None, None]
    history.on(1, batch(1, 1, {}))
    assert history.status(2).splits["a"].rows is None
    history.on(2, batch(2, 2, {"a": 70}, rows={"a": 3}))
    assert [split.rows for split in history.status(3).splits.values()] == [3, 0]


def test_native_spark_judges_a_batch_by_the_watermark_of_the_batch_before_the_last() -> None:
    strategy = PLAIN.for_bounded_out_of_orderness("0 seconds")
    history = History(strategy)
    for n, second in enumerate((100, 50, 100, 50, 200, 150, 300, 250)):
        made_us: dict[SplitId, int] = {"a": strategy.watermark_of_max(at(second))}
        history.on(n, batch(n, n, made_us, first_us={"a": at(second)}, rows={"a": 1}, newest_us=at(second)))

    assert history.status(9).native_late_rows == 2, "the third and the fourth row; the sixth and the last are in time"


def test_what_native_spark_would_have_dropped_is_counted_at_least() -> None:
    history = History(PLAIN.for_bounded_out_of_orderness("10 seconds"))
    second = 1_000_000
    history.on(1, batch(0, 1, {"fast": 99 * second, "slow": 0}, rows={"fast": 5, "slow": 5}))
    history.on(2, batch(1, 2, {"slow": second}, first_us={"slow": 9 * second}, rows={"slow": 7}))
    assert history.status(2).native_late_rows == 0  # native Spark had no watermark to judge these two batches by
    history.on(3, batch(2, 3, {"slow": second}, first_us={"slow": 9 * second}, rows={"slow": 7}))
    history.on(4, batch(3, 4, {"slow": 95 * second}, first_us={"slow": 99 * second}, rows={"slow": 4}))
    history.on(5, batch(4, 5, {"slow": 96 * second}, first_us={"slow": 100 * second}, rows={"slow": 4}))
    status = history.status(6)

    assert 99 * second + 1_000 == status.native_watermark_us
    assert status.native_late_rows == 7 + 1 + 0  # all rows; one row for sure; none


@pytest.mark.parametrize("detail", [False, True])
@pytest.mark.parametrize("seed", range(draws(5)))
def test_what_native_spark_would_have_dropped_is_counted_whole_where_no_row_of_a_batch_is_ahead(
    seed: int, detail: bool
) -> None:
    """A replay: the clock of one of 400 devices jumps a year ahead, and native Spark drops all rows of the others."""
    second_us, bound_us, rng = 1_000_000, 10_000_000, random.Random(seed)
    history = History(PLAIN.for_bounded_out_of_orderness("10 seconds"))
    rule = Rule(2)
    dropped = ahead = 0
    for n in range(10):
        lag_us = [rng.randrange(600) * second_us for _ in range(400)]
        rows_us = [
            (f"device-{at:03}", START_US + n * second_us - lag_us[at] + rng.randrange(5) * second_us)
            for at in (rng.randrange(400) for _ in range(5_000))
        ]
        wrong = n in (3, 4, 5, 8)
        newest_us = max(time_us for _, time_us in rows_us) + (YEAR_US if wrong else 0)
        rule.begin()
        late = sum(rule.late is not None and time_us <= rule.late - bound_us for _, time_us in rows_us)
        dropped += late
        rule.end(newest_us)
        by_split: dict[SplitId, list[int]] = {}
        for split, time_us in rows_us:
            by_split.setdefault(split, []).append(time_us)
        event = batch(
            n, n, {split: max(times) - bound_us - 1_000 for split, times in by_split.items()},
            first_us={split: min(times) for split, times in by_split.items()} if detail else None,
            rows={split: len(times) for split, times in by_split.items()} if detail else None,
            newest_us=newest_us, future_rows={"device-007": 1} if wrong else None,
            counts=BatchCounts(rows=5_003 + wrong, null_time_rows=2, null_split_rows=1, future_rows=int(wrong)),
        )  # fmt: skip
        before = history.status(n).native_late_rows
        history.on(n, event)
        counted = history.status(n).native_late_rows - before
        if n > 4:
            assert counted == late == 5_000, f"seed {seed}, batch {n}"
            ahead += 1
        assert counted <= late, f"seed {seed}, batch {n}: more than native Spark drops"
    assert ahead == 5
    assert 5 * 5_000 <= history.status(10).native_late_rows <= dropped, f"seed {seed}"


@pytest.mark.parametrize(("behind_us", "late"), [(999, 0), (1_000, 7)])
def test_all_rows_are_late_for_native_spark_where_the_newest_is_exactly_at_its_watermark(
    behind_us: int, late: int
) -> None:
    """Rounding puts the newest row up to 1 ms ahead of its watermark's time, so a lag of 1 ms is enough."""
    history = History()
    history.on(1, batch(0, 1, {"fast": 100_000}))
    history.on(2, batch(1, 2))
    history.on(3, batch(2, 3, {"slow": 100_000 - behind_us}, rows={"slow": 7}))

    assert history.status(3).native_late_rows == late


@pytest.mark.parametrize(("ahead_us", "late"), [(0, 1), (1, 0)])
def test_a_row_exactly_at_native_sparks_watermark_is_late(ahead_us: int, late: int) -> None:
    history = History()
    history.on(1, batch(0, 1, {"fast": 100_000}))
    history.on(2, batch(1, 2))
    history.on(3, batch(2, 3, {"slow": 200_000}, first_us={"slow": 101_000 + ahead_us}, rows={"slow": 7}))

    assert history.status(3).native_late_rows == late


def test_rows_are_late_by_the_watermark_that_a_watched_query_has_itself() -> None:
    history = History()
    history.on(1, batch(0, 1, {"fast": 100_000}))
    history.on(2, replace(batch(1, 2, {"slow": 60_000}, rows={"slow": 7}), judged_by_us=61_999))
    history.on(3, replace(batch(2, 3, {"slow": 60_000}, rows={"slow": 7}), judged_by_us=62_000))

    assert history.status(3).native_late_rows == 0 + 7


def test_native_sparks_watermark_goes_on_after_a_restart_from_what_splits_stood_at() -> None:
    history = History()
    history.on(1, batch(0, 1, {"fast": 100_000, "slow": 50_000}))
    history.restart(2)

    assert history.status(2).native_watermark_us == 101_000


@pytest.mark.parametrize("together", [False, True])
def test_rows_in_order_are_not_late_for_native_spark_where_lowmark_gives_the_split_a_larger_bound(
    together: bool,
) -> None:
    strategy = WatermarkStrategy.for_adaptive_out_of_orderness()
    history = History(strategy)
    for n in range(20):
        newest_us = at(n) + 900_000  # ten rows a second, in order
        watermark_us = strategy.watermark_of_max(newest_us)
        watermarks_us: Mapping[SplitId, int] = {7: watermark_us}
        if together:
            watermarks_us = SplitColumn(np.array([7], np.uint64), np.array([watermark_us]))
        history.on(n, batch(n, n, watermarks_us, first_us={7: at(n)}, rows={7: 10}, newest_us=newest_us))
    status = history.status(20)

    assert (history.watermarks._reports.cohort is not None) is together
    assert (status.native_late_rows, status.splits["7"].native_late_rows) == (0, 0)
    own_us = status.splits["7"].watermark_us
    assert own_us is not None
    assert own_us == status.fastest_us
    assert own_us < strategy.watermark_of_max(at(19) + 900_000), "lowmark takes off more than native Spark"


def test_names_are_for_display_only() -> None:
    watermarks = watermarks_of()
    watermarks.handle(batch(0, 0, {1: 50, 2: 60, 3: 70}), at(0))
    status = watermarks.status(at(1), lambda split: "orders" if split != 3 else "clicks")

    assert (list(status.splits), status.holder) == (["orders", "orders (2)", "clicks"], "orders")


@pytest.mark.parametrize("limit", [None, 1])
def test_late_rows_are_those_of_the_split_and_not_of_another_with_its_name(limit: int | None) -> None:
    watermarks = watermarks_of()
    watermarks.handle(batch(0, 0, {1: 60, 2: 50}), at(0))
    status = watermarks.status(at(1), lambda _: "orders", limit=limit, late_rows={1: 4, 2: 7})

    late = {name: split.late_rows for name, split in status.splits.items()}
    assert late == ({"orders": 4, "orders (2)": 7} if limit is None else {"orders": 7})


@pytest.mark.parametrize(
    ("hold", "why", "what_next"),
    [
        (Hold(None, known=2), "every split is finished.", "A new split."),
        (
            Hold(None, known=2, idle=2),
            "every live split (2) is idle, and the low watermark stays (all idle: hold).",
            "The next row of any split.",
        ),
        (
            Hold(None, known=2, idle=1, all_idle=AllIdle.MAX),
            "every live split (1) is idle, and it stands at the largest watermark seen (all idle: max).",
            "The next row of any split.",
        ),
        (
            Hold(SplitState.PENDING, "a", silent=1),
            "split a has not spoken yet.",
            (
                "The first row of split a, or the end of its grace: with_grace() would bound this wait, which has no "
                "end now."
            ),
        ),
        (
            Hold(SplitState.PENDING, "a", silent=2, backlog_rows=5, grace_left_us=2_000_000),
            "split a has not spoken yet, as has 1 other.",
            "The first row of split a (5 rows are waiting in it), or the end of its grace: its grace ends in 2s.",
        ),
        (
            Hold(SplitState.PENDING, "a", silent=3, backlog_rows=5, grace_left_us=2_000_000),
            "split a has not spoken yet, as have 2 others.",
            "The first row of split a (5 rows are waiting in it), or the end of its grace: its grace ends in 2s.",
        ),
        (
            Hold(SplitState.PENDING, "a", silent=1, idle_timeout_us=9_000_000, clock=IdleClock.FLOW),
            "split a has not spoken yet.",
            "The first row of split a; or its silence for more than 9s while others deliver.",
        ),
        (
            Hold(SplitState.PENDING, "a", silent=1, idle_timeout_us=9_000_000, backlog_rows=5),
            "split a has not spoken yet.",
            "The first row of split a; it cannot become idle, for 5 rows are waiting in it.",
        ),
        (
            Hold(SplitState.PENDING, "a", silent=1, idle_timeout_us=9_000_000, grace_left_us=2_000_000),
            "split a has not spoken yet.",
            "The first row of split a, or the end of its grace: its grace ends in 2s; or its silence for more than 9s.",
        ),
        (
            Hold(SplitState.PAUSED, "a", 5, live=2),
            "split a has the smallest watermark of 2 live splits, and alignment or a silent source holds it back.",
            "split a is read again.",
        ),
        (
            Hold(SplitState.ACTIVE, "a", 0, 1_500_000, 2),
            "split a came back 1.5s behind the low watermark, which does not go back.",
            "Newer rows of split a; it is waited for even if it falls silent, as no idleness is set (with_idleness()).",
        ),
        (
            Hold(SplitState.ACTIVE, "a", 0, 0, 2, backlog_rows=9, idle_timeout_us=1),
            "split a has the smallest watermark of 2 live splits.",
            "Newer rows of split a; it cannot become idle, for 9 rows are waiting in it.",
        ),
    ],
)
def test_every_reason_is_a_sentence(hold: Hold, why: str, what_next: str) -> None:
    assert (why, what_next) == hold_reasons(hold)


def test_an_idle_split_that_holds_because_of_a_quorum_is_called_idle() -> None:
    history = History(PLAIN.with_idleness("1 minute").with_quorum(1.0))
    history.on(0, SplitsDiscovered(("a", "b", "c")))
    history.on(1, batch(0, 1, {"a": 10, "b": 5, "c": 20}))
    for second in (30, 60, 90):
        history.on(second, batch(second, second, {"a": second, "c": second}))
    status = history.status(91)

    assert (history.state("b"), status.holder, status.low_watermark_us) == ("idle", "b", 5)
    assert status.why == (
        "split b is idle, but fewer splits take part than with_quorum() asks, so idle splits hold; no row of it was "
        "reported for 1m 30s."
    )
    assert status.next == "Rows of split b, or of enough other idle splits for with_quorum()."


def test_an_idle_split_that_never_spoke_and_holds_because_of_a_quorum_is_called_idle() -> None:
    history = History(PLAIN.with_idleness("1 minute").with_quorum(0.5))
    history.on(0, SplitsDiscovered(("a", "b", "c", "d")))
    for second in (30, 60, 90):
        history.on(second, batch(second, second, {"a": second}))
    status = history.status(91)

    assert (history.state("b"), status.holder, status.low_watermark_us) == ("idle", "b", None)
    assert status.why == (
        "split b is idle, but fewer splits take part than with_quorum() asks, so idle splits hold; no row of it was "
        "reported for 1m 31s."
    )
    assert status.next == "Rows of split b, or of enough other idle splits for with_quorum()."


def test_an_idle_split_behind_the_low_watermark_did_not_come_back() -> None:
    history = History(PLAIN.with_idleness("1 minute").with_quorum(0.5))
    history.on(1, batch(0, 1, {"a": 10, "b": 5, "c": 20}))
    for second in (30, 60, 90):
        history.on(second, batch(second, second, {"a": second, "c": second}))
    assert history.low_us == 90  # two of three take part, so b is left out
    for second in (120, 150, 180):
        history.on(second, batch(second, second, {"a": second}))
    status = history.status(181)

    assert (history.state("b"), history.state("c"), status.holder, status.low_watermark_us) == ("idle", "idle", "b", 90)
    assert status.why.startswith("split b is idle, but fewer splits take part than with_quorum() asks")


def test_explain_reads_like_a_report() -> None:
    history = History(IDLENESS)
    history.on(0, batch(0, 0, {"a": START_US, "b": START_US + 90_000}, rows={"a": 2, "b": 1}))
    history.on(11, batch(1, 11, {"b": START_US + 95_000}, rows={"b": 1}, counts=BatchCounts(rows=1)))
    history.on(12, batch(2, 12, {"a": START_US, "b": START_US + 1_000_000}, rows={"a": 1, "b": 1}))
    history.on(13, SplitsDiscovered(("c",)))
    history.on(30, Polled(at(30)))

    assert (
        explain(history.status(31))
        == """\
Stream orders: low watermark 2023-11-14 22:13:20.095 UTC
  why    every live split (3) is idle, and the low watermark stays (all idle: hold).
  since  2023-11-14 22:13:31.000 UTC
  next   The next row of any split.
  held   for 1s by nobody; before that for 17s by c; before that for 1s by a
  splits 0 pending, 0 active, 0 paused, 3 idle, 0 finished
    c: idle, watermark none, backlog unknown
    a: idle, watermark 2023-11-14 22:13:20.000 UTC, backlog unknown, 1 late report, natively 1 row late at least
    b: idle, watermark 2023-11-14 22:13:21.000 UTC, backlog unknown
  left out: a, silent for more than 10s, backlog unknown
  left out: b, silent for more than 10s, backlog unknown
  left out: c, silent for more than 10s, backlog unknown
  batches 3 (1 row)
  late   1 return below the low watermark, 0 regressing reports
  native Spark, with one watermark at 2023-11-14 22:13:21.001 UTC, \
would have judged at least 1 row late: a floor that may lie \
far below the truth, because a batch tells the first and the last event time of a split at most, \
and without `detail=True` not how many rows it had"""
    )


@pytest.mark.parametrize("limit", [None, 50, 10])
def test_explain_says_how_many_splits_are_left_out_however_few_its_service_named(limit: int | None) -> None:
    history = History(PLAIN.with_idleness("1 minute"))
    history.on(0, batch(0, 0, {f"s{n}": START_US for n in range(100)}))
    for second in (30, 60, 90):
        history.on(second, batch(second, second, {"s0": START_US + second}))
    said = explain(history.status(91, limit))

    assert said.count("  left out: s") == 10
    assert "  left out: 89 more" in said


def test_explain_names_the_first_splits_that_a_percentile_passes_as_the_first() -> None:
    history = History(PLAIN.with_percentile(50))
    history.on(0, batch(0, 0, {f"s{n:02}": 10 + n for n in range(40)}))

    for limit in (None, 10):
        said = explain(history.status(1, limit))
        assert "  passed over by with_percentile(), the first 10: s00, s01, s02," in said


def test_a_silent_stream_is_called_silent_and_its_splits_are_not_idle() -> None:
    history = History(PLAIN.with_idleness("10 seconds"))
    history.on(0, batch(0, 0, {"a": START_US, "b": START_US + 90_000}))
    assert history.status(1).next == "Newer rows of split a; or its silence for more than 10s while others deliver."
    history.on(30, Polled(at(30)))
    status = history.status(31)

    assert (status.silent_since, status.states["idle"], status.left_out) == (START, 0, ())
    assert status.why == (
        "the stream is silent: nothing of any split for 31s, which is no evidence against any; split a has the "
        "smallest watermark of 2 live splits."
    )
    assert "  why    the stream is silent" in explain(status)
    assert to_json(status)["silent_since"] == "2023-11-14T22:13:20+00:00"


def test_what_is_said_of_a_split_that_never_spoke_comes_true_with_idleness() -> None:
    history = History(IDLENESS)
    history.on(0, batch(0, 0, {"a": START_US}))
    history.on(1, SplitsDiscovered(("b",)))
    said = history.status(2).next
    history.on(12, batch(1, 12, {"a": START_US}))

    assert said == "The first row of split b; or its silence for more than 10s."
    assert history.status(12).left_out == (("b", "silent for more than 10s, backlog unknown"),)


def test_measured_times_are_told_as_a_person_reads_them() -> None:
    late = Hold(SplitState.ACTIVE, "a", 0, 26_035_738, 2)
    silent = Hold(SplitState.PENDING, "a", live=2, grace_left_us=3_723_456_789)
    assert hold_reasons(late)[0] == "split a came back 26s behind the low watermark, which does not go back."
    assert "in 1h 2m" in hold_reasons(silent)[1]
    history = History()
    history.on(0, batch(0, 0, {"a": 10, "b": 20}))
    history.on(26.035738, batch(1, 26.035738, {"a": 30}))
    assert "  held   for 33s by b; before that for 26s by a" in explain(history.status(60.0))


def test_explain_names_the_few_that_matter() -> None:
    history = History()
    history.on(0, SplitsDiscovered(tuple(f"s{n:02}" for n in range(30))))
    text = explain(history.status(1))

    assert "and 20 more" in text
    assert len(text.splitlines()) < 30


def test_who_held_in_the_last_hour_is_told_newest_first() -> None:
    history = History()
    history.on(0, batch(0, 0, {"a": 10, "b": 20}))
    history.on(60, batch(1, 60, {"a": 30}))  # b holds
    history.on(120, SplitsDiscovered(("c",)))  # silent, so c holds
    history.on(180, batch(2, 180, {"c": 25, "b": 40}))
    seen = [(spell.holder, spell.since, spell.until) for spell in history.status(900).held]

    def minute(minutes: int) -> datetime:
        return START + timedelta(minutes=minutes)

    assert [
        ("c", minute(2), minute(15)),
        ("b", minute(1), minute(2)),
        ("a", minute(0), minute(1)),
    ] == seen
    assert "  held   for 13m by c; before that for 1m by b; before that for 1m by a" in explain(history.status(900))
    assert "  held   for 2h 58m by c" in explain(history.status(3 * 3_600)).splitlines()


def test_a_status_with_a_limit_shows_who_needs_attention_first() -> None:
    history = History(IDLENESS)
    history.on(0, batch(0, 0, {"e": 1, "f": 2}))
    history.on(20, batch(1, 20, {"c": 30, "b": 20, "a": 40}))
    history.on(21, SplitsDiscovered(("z", "y")))
    whole, most = history.status(22), history.status(22, limit=4)

    assert list(most.splits) == ["y", "z", "b", "c"]
    assert [(name, whole.splits[name]) for name in most.splits] == list(most.splits.items())
    assert (whole.states, whole.holder, whole.why, whole.low_watermark_us) == (
        most.states,
        most.holder,
        most.why,
        most.low_watermark_us,
    )
    assert [name for name, _ in whole.left_out] == ["e", "f"]
    assert [name for name, _ in history.status(22, limit=1).left_out] == ["e"]
    assert "and 3 more" in explain(most)
    assert (history.status(22, limit=0).splits, history.status(22, limit=0).holder) == ({}, "y")
    assert list(history.status(22, limit=99).splits) == ["y", "z", "b", "c", "a", "e", "f"]


def test_a_status_with_a_limit_always_shows_the_holder() -> None:
    history = History(PLAIN.with_percentile(50))
    history.on(0, batch(0, 0, {"a": 1, "b": 2, "c": 3, "d": 4}))
    whole = history.status(1)

    assert whole.holder == "c", "a and b are passed over"
    assert list(history.status(1, limit=1).splits) == ["c"]
    assert list(history.status(1, limit=2).splits) == ["a", "c"]
    assert list(history.status(1, limit=3).splits) == ["a", "b", "c"]


def test_a_limit_is_not_negative() -> None:
    with pytest.raises(ValueError, match="expected a limit of 0 or more, got -1"):
        History().status(0, limit=-1)


def test_the_status_names_the_splits_that_a_percentile_passes() -> None:
    history = History(PLAIN.with_percentile(75))
    history.on(0, batch(0, 0, {"a": 10, "b": 20, "c": 30, "d": 40}))
    status = history.status(1)

    assert (history.low_us, status.holder, status.passed_over) == (20, "b", ("a",))
    assert "  passed over by with_percentile(): a" in explain(status)
    assert history.status(1, limit=0).passed_over == ()


def test_what_a_name_holds_does_nothing_to_a_terminal() -> None:
    history = History(PLAIN)
    history.on(0, batch(0, 0, {"a\x1b[2J\nb\u202e": 10}))
    lines = explain(history.status(1)).splitlines()

    assert all(line.isprintable() for line in lines)
    assert any(line.startswith(r"    a\x1b[2J\nb\u202e: active") for line in lines)


def test_the_status_is_plain_json() -> None:
    history = History(IDLENESS)
    history.on(1, SplitsDiscovered(("p",)))
    history.on(1, batch(0, 1, {"a": 0}, rows={"a": 1}, backlog={"a": 3}))
    history.on(2, SplitsPaused(("a",)))
    history.on(3, SplitsFinished(("f",)))
    history.on(4, Tick())
    plain = json.loads(json.dumps(to_json(history.status(5))))

    assert plain["splits"]["p"]["pending_since"] == "2023-11-14T22:13:21+00:00"
    assert plain["states"] == {"pending": 1, "active": 0, "paused": 1, "idle": 0, "finished": 1}
    assert tuple(plain["splits"]["a"][key] for key in ("state", "watermark_us", "backlog_rows")) == ("paused", 0, 3)
    assert plain["left_out"] == []


def test_times_that_no_datetime_can_hold_are_shown_as_numbers() -> None:
    assert (None, f"{2**62} us") == (utc(2**62), format_time_us(2**62))


def test_data_of_a_message_to_a_listener_have_the_fields_that_all_messages_share() -> None:
    told: Any = NotifyNewLowWatermark("job", "orders", "0", 7, 5)
    assert to_json(told) == {
        "job_id": "job", "source_id": "orders", "task_id": "0", "timestamp": 7, "new_low_watermark": 5,
    }  # fmt: skip
