"""A committed batch without a report: its new splits are unknown, so the low watermark waits for their next rows."""

from __future__ import annotations

import pytest
from lowmark.watermark import WatermarkStrategy
from lowmark.watermark.splits.events import BatchReported, Polled, ReportLost, SplitReturnedLate, Tick
from lowmark.watermark.splits.stream import SplitWatermarks

SECOND = 1_000_000
STRATEGY = WatermarkStrategy.for_monotonous_timestamps()


def restarted(strategy: WatermarkStrategy = STRATEGY, *, at_s: int = 100) -> SplitWatermarks:
    """Return a stream with two splits at 10 s, after a kill and a restart."""
    before = SplitWatermarks(strategy, job_id="q", source_id="orders", task_id="t")
    before.handle(BatchReported(0, SECOND, {"a": 10 * SECOND, "b": 10 * SECOND}), SECOND)
    return again(before, strategy, at_s)


def again(before: SplitWatermarks, strategy: WatermarkStrategy, at_s: int) -> SplitWatermarks:
    return SplitWatermarks.restore(
        before.snapshot(), strategy, job_id="q", source_id="orders", task_id="t", now_us=at_s * SECOND
    )


def report(stream: SplitWatermarks, at_s: int, **event_s: int) -> list[object]:
    """Report a batch planned at this second."""
    splits: dict[int | str, int] = {name: s * SECOND for name, s in event_s.items()}
    return [*stream.handle(BatchReported(at_s, at_s * SECOND, splits), at_s * SECOND)]


def low_s(stream: SplitWatermarks) -> float | None:
    return None if stream.low_watermark_us is None else stream.low_watermark_us / SECOND


def test_the_low_watermark_holds_until_what_was_new_had_time_to_speak() -> None:
    stream = restarted()
    stream.handle(ReportLost(7), 100 * SECOND)
    report(stream, 110, a=900, b=900)
    report(stream, 160, a=950, b=950)  # exactly a minute, which is too short
    assert low_s(stream) == 10
    effects = report(stream, 161, a=960, b=970, new=20)

    assert low_s(stream) == 20, "it spoke in time, and holds"
    assert not any(isinstance(effect, SplitReturnedLate) for effect in effects)


def test_without_a_lost_report_the_split_would_be_late() -> None:
    stream = restarted()
    report(stream, 110, a=900, b=900)

    assert any(isinstance(effect, SplitReturnedLate) for effect in report(stream, 120, a=910, b=910, new=20))


@pytest.mark.parametrize(("strategy", "held_s"), [(STRATEGY, 60), (STRATEGY.with_grace("5 minutes"), 300)])
def test_it_ends_by_what_was_read_and_not_by_the_time_a_batch_takes(strategy: WatermarkStrategy, held_s: int) -> None:
    stream = restarted(strategy)
    stream.handle(ReportLost(7), 100 * SECOND)
    report(stream, 101, a=900, b=900)
    stream.handle(Tick(), 10_000 * SECOND)  # during a batch of hours nothing is read
    assert low_s(stream) == 10
    assert stream.wake_at_us(102 * SECOND) == (100 + held_s) * SECOND + 1
    stream.handle(Polled((100 + held_s) * SECOND + 1), 10_000 * SECOND)

    assert low_s(stream) == 900


def test_a_second_kill_meanwhile_does_not_cut_it_short_and_a_later_start_owes_nothing() -> None:
    stream = restarted()
    stream.handle(ReportLost(7), 100 * SECOND)
    report(stream, 120, a=900, b=900)
    second = again(stream, STRATEGY, 130)
    report(second, 131, a=910, b=910)
    assert low_s(second) == 10
    later = again(second, STRATEGY, 3_600)  # an AvailableNow query, an hour later
    report(later, 3_601, a=920, b=920)

    assert low_s(later) == 920
    assert low_s(again(later, STRATEGY, 3_700)) == 920
    assert again(later, STRATEGY, 3_700).snapshot() == later.snapshot()


def test_a_loss_that_a_clock_ahead_noted_holds_for_no_more_than_a_grace_after_the_restart() -> None:
    stream = restarted()
    stream.handle(ReportLost(7), 7_200 * SECOND)
    again_on_time = again(stream, STRATEGY, 3_600)
    report(again_on_time, 3_601, a=900, b=900)
    report(again_on_time, 3_660, a=910, b=910)
    assert low_s(again_on_time) == 10
    report(again_on_time, 3_661, a=920, b=920)

    assert low_s(again_on_time) == 920


def test_a_loss_that_is_told_twice_needs_no_second_snapshot() -> None:
    stream = restarted()
    stream.handle(ReportLost(7), 100 * SECOND)
    epoch = stream.epoch
    stream.handle(ReportLost(7), 100 * SECOND)

    assert stream.epoch == epoch


def test_why_it_stands_is_said_while_it_does() -> None:
    stream = restarted()
    stream.handle(ReportLost(7), 100 * SECOND)
    report(stream, 120, a=900, b=901)
    status = stream.status(120 * SECOND)
    assert status.why == (
        "The report of batch 7 was lost, as when its query is killed: splits that were new in it are given time to "
        "speak. "
        "split a has the smallest watermark of 2 live splits."
    )
    assert status.next.startswith("The sources read for 40s more. Newer rows of split a;")
    report(stream, 161, a=910, b=901)

    assert stream.status(161 * SECOND).why == "split b has the smallest watermark of 2 live splits."
