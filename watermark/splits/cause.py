"""The cause of a low watermark that stands. A person should read the cause before the name of the holder."""

from __future__ import annotations

from lowmark.watermark.moment import format_time_us

from .events import BatchCounts
from .status import Cause, Hold, hold_reasons, is_silent

_YEAR_US = 31_556_952_000_000
_FIRST_YEAR = 1970
_DOUBTED_FROM = 2200
"""No event time of today lies beyond this year, and milliseconds that are taken for seconds lie far beyond it."""


def cause_of(hold: Hold, unusable: str | None = None) -> tuple[Cause | None, str, str]:
    """The cause, why the low watermark stands (the cause first), and what would move it.

    Args:
        unusable: the sentence of ``unusable_times`` about the stream.
    """
    why, what_next = hold_reasons(hold)
    if unusable is not None:
        return Cause.NO_EVENT_TIME, f"{unusable} {why[0].upper()}{why[1:]}", "Rows with a usable event time."
    if hold.wrong_clock is not None:
        return Cause.WRONG_CLOCK, f"{hold.wrong_clock}; {why}", what_next
    return Cause.SILENT_SPLIT if is_silent(hold) else None, why, what_next


def unusable_times(
    counts: BatchCounts, newest_us: int | None, low_us: int | None = None, *, spoken: bool = False
) -> str | None:
    """Describe implausible event times in one sentence, such as seconds taken for milliseconds.

    None means that the event times are plausible.

    Args:
        newest_us: the largest event time so far, microseconds since the epoch; None: there was none.
        low_us: the low watermark. Without a future guard the low watermark follows such times.
        spoken: whether a split delivered rows. Then rows without a split do not count, because null may be the name of
            a split.

    >>> unusable_times(BatchCounts(rows=2, null_time_rows=2), None)
    'all 2 rows so far have no event time: is the JSON path, or the format of the time, right?'
    """
    rows, missing = counts.rows, counts.null_time_rows + (0 if spoken else counts.null_split_rows)
    if rows == 0:
        return None
    if missing >= rows:
        lack = "no event time or no split" if counts.null_split_rows else "no event time"
        return f"all {rows:,} rows so far have {lack}: is the JSON path, or the format of the time, right?"
    if newest_us is None:
        return None
    where = f"the event times of all {rows:,} rows so far lie"
    year = _FIRST_YEAR + newest_us // _YEAR_US
    if newest_us < 0:
        return f"{where} before 1970, where Spark takes every row for late: is the format of the time right?"
    if year == _FIRST_YEAR:
        return f"{where} in 1970 (up to {format_time_us(newest_us)}): are seconds taken for milliseconds?"
    followed = low_us is not None and _FIRST_YEAR + low_us // _YEAR_US > _DOUBTED_FROM
    if counts.future_rows + missing < rows and not followed:
        return None
    if year > _DOUBTED_FROM:
        where = "the event times of every split lie" if followed else where
        return f"{where} in the future, up to the year {year}: are milliseconds taken for seconds?"
    return f"{where} in the future, up to {format_time_us(newest_us)}: is a clock or a time zone wrong?"
