"""The findings of an audit, as frozen data and as one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from lowmark.watermark.duration import format_duration_us

from .advice import Advice
from .profile import SplitProfile
from .replay import Moment, Replay, Verdict

QUANTILES = (0.5, 0.9, 0.99, 0.999, 0.9999)
"""The quantiles of the disorder in a report."""


@dataclass(frozen=True, slots=True)
class SplitReport:
    """One split."""

    name: str
    profile: SplitProfile
    empty_for_us: int | None  # time from its newest row to the newest row of all splits, as written; None: unknown
    behind_us: int | None  # how far it was behind the furthest split in the end; None without a good row
    most_behind_us: int | None  # how far it was behind at most, once it had a row

    @property
    def longest_without_row_us(self) -> int:
        """The longest time without a row: the longest silence that ended, or the time since its newest row."""
        return max(self.profile.silence.length_us, self.empty_for_us or 0)

    def to_json(self) -> dict[str, Any]:
        profile = self.profile
        disorder = {f"p{100 * share:g}": profile.disorder.quantile_us(share) for share in QUANTILES}
        return {
            "rows": profile.rows,
            "null_rows": profile.null_rows,
            "unreadable_rows": profile.unreadable_rows,
            "before_1970_rows": profile.before_epoch_rows,
            "future_rows": profile.future_rows,
            "furthest_future_us": profile.furthest_future_us,
            "first_us": profile.first_us,
            "last_us": profile.last_us,
            "out_of_orderness_us": {**disorder, "max": profile.disorder.largest_us},
            "behind_us": self.behind_us,
            "most_behind_us": self.most_behind_us,
            "longest_silence_us": profile.silence.length_us,
            "longest_silence_since_us": profile.silence.since_us if profile.silence.length_us else None,
            "silent_for_us": self.empty_for_us,
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one delay, or bound."""

    delay_us: int
    rows_dropped: int
    splits: dict[str, int]  # late rows by split, without splits that have none
    kept_rows: int | None  # the largest number of rows in state at once; None: not counted for this delay

    def to_json(self) -> dict[str, Any]:
        return {
            "delay": format_duration_us(self.delay_us),
            "delay_us": self.delay_us,
            "rows_dropped": self.rows_dropped,
            "splits": self.splits,
            "rows_kept_at_most": self.kept_rows,
        }


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The report of an audit."""

    what: str  # the rows that were read, in words
    order: str  # the order across splits, and the batches, in words
    event_time: str  # its place, in words
    complete: bool  # whether all wanted rows were read
    window_us: int | None
    rows: int
    batches: int
    splits: tuple[SplitReport, ...]
    native: tuple[Outcome, ...]  # for each delay, growing
    lowmark: tuple[Outcome, ...]
    smallest_delay_us: int  # the smallest delay at which native Spark drops no row from 1970 on
    smallest_kept_rows: int | None  # about the largest number of rows in state with that delay; None: unknown
    before_epoch_rows: int
    advice: Advice
    notes: tuple[str, ...]
    moments: tuple[Moment, ...]  # for pictures

    def to_json(self) -> dict[str, Any]:
        """Convert to one JSON object; a name that ends in ``_us`` is in microseconds."""
        return {
            "what": self.what,
            "order": self.order,
            "event_time": self.event_time,
            "complete": self.complete,
            "window_us": self.window_us,
            "rows": self.rows,
            "batches": self.batches,
            "native": [outcome.to_json() for outcome in self.native],
            "native_smallest_delay_us": self.smallest_delay_us,
            "native_smallest_delay": format_duration_us(self.smallest_delay_us),
            "native_rows_kept_at_smallest_delay": self.smallest_kept_rows,
            "before_1970_rows": self.before_epoch_rows,
            "lowmark": [outcome.to_json() for outcome in self.lowmark],
            "strategy": self.advice.code(),
            "splits": {split.name: split.to_json() for split in self.splits},
            "notes": list(self.notes),
        }


def split_reports(replay: Replay, profiles: Sequence[SplitProfile], *, appended: bool) -> tuple[SplitReport, ...]:
    """Report each split.

    Args:
        appended: whether the times of writing are known; without them a split that is behind would look silent.
    """
    newest_us = max((each.written_us[1] for each in profiles if each.written_us is not None), default=None)
    behind, most_behind = _behind(replay.moments, len(profiles))
    return tuple(
        SplitReport(
            name,
            profile,
            newest_us - profile.written_us[1] if appended and newest_us and profile.written_us else None,
            behind[number],
            most_behind[number],
        )
        for number, (name, profile) in enumerate(zip(replay.names, profiles, strict=True))
    )


def outcomes(verdict: Verdict, names: Sequence[str]) -> tuple[Outcome, ...]:
    """Report each delay of one rule."""
    made = []
    for delay_us, dropped in zip(verdict.delays_us, verdict.dropped.tolist(), strict=True):
        splits = {name: rows for name, rows in zip(names, dropped, strict=True) if rows}
        made.append(Outcome(delay_us, sum(dropped), splits, verdict.kept_at(delay_us)))
    return tuple(made)


def _behind(moments: Sequence[Moment], count: int) -> tuple[list[int | None], list[int | None]]:
    """How far each split was behind the front, in the end and at most."""
    last: list[int | None] = [None] * count
    most: list[int | None] = [None] * count
    for moment in moments:
        if moment.front_us is None:
            continue
        behind = moment.front_us - moment.tops_us
        for number in np.flatnonzero(moment.spoken).tolist():
            here = int(behind[number])
            before = most[number]
            last[number], most[number] = here, here if before is None else max(here, before)
    return last, most
