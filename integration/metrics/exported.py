"""Exported metrics of a run, its splits and its alignment group: name, help and value of each.

Names of counters stand here without `_total`, because Prometheus' client adds it. `COUNTERS` and `SPLIT_COUNTERS` go on
when a query starts again in its driver (`collector.py` adds up the runs); a count in any other list begins at 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from lowmark.integration.run_status import Alignment, RunStatus
from lowmark.watermark import SplitState, SplitStatus, WrongClock
from lowmark.watermark.state import LEFT_OUT

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Of(Generic[T]):
    """One metric of a run, a split, a wrong clock or an alignment group; no series where the value is None."""

    name: str
    help: str
    value: Callable[[T], float | None]
    is_moment: bool = False  # on the service's clock; an event time, which comes from a row, is none

    def exported(self, of: T, wall_ahead_us: int) -> float | None:
        """Return the value; a moment by the wall clock, `wall_ahead_us` later, which `time()` of Prometheus goes by."""
        value = self.value(of)
        return value + wall_ahead_us / 1e6 if self.is_moment and value is not None else value


COUNTERS: tuple[Of[RunStatus], ...] = (
    Of("lowmark_rows", "Rows measured.", lambda r: r.status.counts.rows),
    Of(
        "lowmark_dropped_rows",
        "Rows that Spark's stateful operators dropped as late. Counted by Spark after partial aggregation: one may "
        "stand for several input rows.",
        lambda r: r.status.counts.dropped_rows,
    ),
    Of(
        "lowmark_late_reports",
        "Batches, at least, in which a split delivered rows at or below the watermark in force, added up over the "
        "splits.",
        lambda r: r.late_reports,
    ),
    Of(
        "lowmark_future_rows",
        "Rows further ahead of the clock than the future guard; they flow on, but do not move the watermark.",
        lambda r: r.status.counts.future_rows,
    ),
    Of("lowmark_null_time_rows", "Rows without an event time.", lambda r: r.status.counts.null_time_rows),
    Of("lowmark_null_split_rows", "Rows without a split.", lambda r: r.status.counts.null_split_rows),
    Of(
        "lowmark_before_epoch_rows",
        "Rows from before 1970, always late in Spark.",
        lambda r: r.status.counts.before_epoch_rows,
    ),
    Of("lowmark_batches", "Batches reported.", lambda r: r.status.batches),
    Of(
        "lowmark_unmeasured_batches",
        "Batches with rows but without a measurement: the watermark holds.",
        lambda r: r.unmeasured_batches,
    ),
    Of(
        "lowmark_missed_batches",
        "Batches whose own report did not come; the next report includes their rows.",
        lambda r: r.gaps.missed_batches,
    ),
    Of(
        "lowmark_lost_reports",
        "Batches whose report a kill took away: the low watermark holds for a grace, in which what was new may speak.",
        lambda r: r.lost_reports,
    ),
    Of(
        "lowmark_returned_late",
        "Times a split that was idle or new came in below the low watermark.",
        lambda r: r.status.returned_late,
    ),
    Of(
        "lowmark_regressions",
        "Reports below their split's own watermark, ignored as values.",
        lambda r: r.status.regressions,
    ),
    Of(
        "lowmark_native_late_rows",
        "Rows, at least, that Spark's one watermark for the whole stream would have judged late: a floor.",
        lambda r: r.status.native_late_rows,
    ),
)

STATES = tuple(state.value for state in SplitState)

GAUGES: tuple[Of[RunStatus], ...] = (
    Of(
        "lowmark_left_out_by_hand_splits",
        "Splits that a person has left out of the low watermark.",
        lambda r: len(r.status.by_hand),
    ),
    Of(
        "lowmark_low_watermark_timestamp_seconds",
        "Low watermark, event time, Unix seconds. Absent while there is none.",
        lambda r: _seconds(r.status.low_watermark_us),
    ),
    Of(
        "lowmark_low_watermark_moved_timestamp_seconds",
        "When the low watermark rose last (or the query started), Unix seconds. Absent where there can be none.",
        lambda r: _at(r.status.since) if r.emits else None,
        is_moment=True,
    ),
    Of(
        "lowmark_native_watermark_timestamp_seconds",
        "Native Spark's watermark for the whole stream, rows beyond the future guard included, Unix seconds.",
        lambda r: _seconds(r.status.native_watermark_us),
    ),
    Of(
        "lowmark_fastest_watermark_timestamp_seconds",
        "The largest watermark of a split, event time, Unix seconds. Absent before the first.",
        lambda r: _seconds(r.status.fastest_us),
    ),
    Of(
        "lowmark_backlog_rows",
        "Unread rows of all splits, as far as known. Absent while unknown.",
        lambda r: r.backlog_rows,
    ),
    Of(
        "lowmark_last_report_timestamp_seconds",
        "When the last batch was reported, Unix seconds. Absent before the first.",
        lambda r: _seconds(r.reported_at_us),
        is_moment=True,
    ),
    Of(
        "lowmark_last_heartbeat_timestamp_seconds",
        "When the query's heartbeat last asked for the low watermark, Unix seconds. It asks when a trigger begins; "
        "without a trigger interval once per batch, and about each second while no row comes.",
        lambda r: _seconds(r.asked_at_us),
        is_moment=True,
    ),
    Of(
        "lowmark_coordinator_connected",
        "1 while the coordinator that the query takes part in answers, 0 while it does not. Absent without one.",
        lambda r: None if r.coordinator is None else r.coordinator.connected,
    ),
    Of(
        "lowmark_coordinator_changed_timestamp_seconds",
        "Since when the coordinator answers, or does not, Unix seconds. Absent without one, and before the first "
        "attempt.",
        lambda r: None if r.coordinator is None else _seconds(r.coordinator.since_us),
        is_moment=True,
    ),
    Of(
        "lowmark_last_seen_timestamp_seconds",
        "When Spark last said that the query lives, Unix seconds: it finished a batch, or found nothing to do.",
        lambda r: _seconds(r.seen_at_us),
        is_moment=True,
    ),
)


CLOCK_GAUGES: tuple[Of[WrongClock], ...] = (
    Of(
        "lowmark_wrong_clock_rows",
        "Rows of a split beyond the future guard since the query began, of the ten splits with most of them. Absent of "
        "splits without such rows.",
        lambda c: c.rows,
    ),
    Of(
        "lowmark_wrong_clock_since_timestamp_seconds",
        "When the first of them was reported, Unix seconds.",
        lambda c: _at(c.since),
        is_moment=True,
    ),
    Of(
        "lowmark_wrong_clock_last_timestamp_seconds",
        "When the last of them was reported, Unix seconds.",
        lambda c: _at(c.last),
        is_moment=True,
    ),
)


ALIGNMENT_GAUGES: tuple[Of[Alignment], ...] = (
    Of(
        "lowmark_alignment_cap_timestamp_seconds",
        "Watermark up to which the alignment group lets the stream be read, event time, Unix seconds. Absent while "
        "there is no limit, or nobody may go on.",
        lambda a: None if a.cap is None else _seconds(a.cap.us),
    ),
    Of(
        "lowmark_alignment_drift_seconds",
        "How far the stream's low watermark is ahead of its group's minimum, seconds of event time. Absent where a "
        "coordinator keeps the group.",
        lambda a: _seconds(a.ahead_us),
    ),
    Of(
        "lowmark_alignment_max_drift_seconds",
        "How far a member may be ahead of the group's minimum, seconds of event time.",
        lambda a: _seconds(a.max_drift_us),
    ),
    Of(
        "lowmark_alignment_waiting",
        "1 while the cap keeps the stream from going on.",
        lambda a: a.waiting,
    ),
)

SPLIT_GAUGES: tuple[Of[SplitStatus], ...] = (
    Of(
        "lowmark_split_watermark_timestamp_seconds",
        "Watermark of a split, event time, Unix seconds. Absent before its first.",
        lambda s: _seconds(s.watermark_us),
    ),
    Of(
        "lowmark_split_live",
        "1 while the low watermark waits for the split (pending, active, paused), 0 otherwise (idle, finished).",
        lambda s: s.state not in LEFT_OUT,
    ),
    Of(
        "lowmark_split_lagging",
        "1 if the split has rows waiting, may be read, and delivered none in the last batch.",
        lambda s: s.lagging,
    ),
    Of("lowmark_split_backlog_rows", "Rows a split still has unread. Absent while unknown.", lambda s: s.backlog_rows),
    Of(
        "lowmark_split_bound_seconds",
        "How late a row of a split may be, where each split's bound follows its rows. Absent otherwise.",
        lambda s: _seconds(s.bound_us),
    ),
    Of(
        "lowmark_split_late_rows",
        "Rows of a split at or below the watermark by which Spark drops rows in their batch, since the query began; an "
        "operator drops only those whose window is over. Absent where they are not counted: see docs/wrap.md.",
        lambda s: s.late_rows,
    ),
    Of(
        "lowmark_split_last_report_timestamp_seconds",
        "When a split last delivered rows, Unix seconds. Absent before its first.",
        lambda s: _at(s.last_report),
        is_moment=True,
    ),
)

SPLIT_COUNTERS: tuple[Of[SplitStatus], ...] = (
    Of(
        "lowmark_split_rows",
        "Rows a split delivered. Absent where they are not counted by split: see docs/metrics.md.",
        lambda s: s.rows,
    ),
    Of(
        "lowmark_split_late_reports",
        "Batches, at least, in which a split delivered rows at or below the watermark in force.",
        lambda s: s.late_reports,
    ),
    Of(
        "lowmark_split_native_late_rows",
        "Rows of a split, at least, that Spark's one watermark for the whole stream judged late, or would have.",
        lambda s: s.native_late_rows,
    ),
    Of(
        "lowmark_split_beyond_bound",
        "Rows of a split that came later than its adaptive bound allowed; for a wrapped stream, batches.",
        lambda s: s.beyond_bound,
    ),
)


def _seconds(us: int | None) -> float | None:
    return None if us is None else us / 1e6


def _at(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()
