"""Finds the event time of the next unread row without reading it.

Alignment needs it twice: a source that has to wait says where it would begin, instead of reading to find out; and where
everybody waits before a gap, the group may step over it only if it knows how wide it is (Kinesis' "next record", in
Flink's FLIP-217 the reason for a deadlock over one record).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowmark.sources.api import EARLIEST_US, SplitPlanner, SplitT
from lowmark.watermark.moment import MILLISECOND_US

__all__ = ["NextRow", "next_row"]

_FIRST_STEP_US = 1_000_000


@dataclass(frozen=True, slots=True)
class NextRow:
    """Where a source goes on.

    Attributes:
        searchable: whether the source can search by time, some unread split at least.
        time_us: no unread row of the splits that can be searched is before it, and the next one is less than a
            millisecond behind it, or in the step of a source that has several rows in one; None where all is read.
        wanted_us: what a cap must be a millisecond behind for a row to be read: `time_us`, or the last time in the
            step that has to be read as a whole, to the millisecond.
    """

    searchable: bool
    time_us: int | None = None
    wanted_us: int | None = None


def next_row(planner: SplitPlanner[SplitT], splits: Sequence[SplitT], *, near_us: int, until_us: int) -> NextRow:
    """Find the event time of the first unread row of all splits.

    Args:
        planner: asked where times begin, some 20 times for a row near `near_us`, 50 for one that is years away.
        splits: each from where it goes on.
        near_us: a time to begin the search at, microseconds. What is found is whole milliseconds away from it.
        until_us: rows from this time on are not believed: bad clocks.

    >>> from lowmark.sources import SourceSplit, SplitEnd
    >>> class OneRow(SplitPlanner):
    ...     def latest(self, splits):
    ...         return {"a": SplitEnd(1)}
    ...     def find_time(self, splits, time_us):
    ...         return {"a": 0 if time_us <= 5_000_000 else None}
    >>> next_row(OneRow(), [SourceSplit(split_id="a")], near_us=0, until_us=10**12)
    NextRow(searchable=True, time_us=5000000, wanted_us=5000000)
    """
    ends = planner.latest(splits)
    unread = [split for split in splits if split.split_id in ends and ends[split.split_id].position > split.start]

    def is_behind(time_us: int) -> bool:
        """Whether an unread row is before the time."""
        found = planner.find_time(unread, time_us)
        assert found is not None, "asked of searchable sources only"
        there = ((split, found[split.split_id]) for split in unread if split.split_id in found)
        return any(at is None or at > split.start for split, at in there)

    if not unread:
        return NextRow(searchable=True)
    answered = planner.find_time(unread, near_us)
    unread = [split for split in unread if answered is not None and split.split_id in answered]
    if not unread:
        return NextRow(searchable=False)
    step_us = _FIRST_STEP_US
    if is_behind(near_us):
        low_us, high_us = near_us - step_us, near_us
        while is_behind(low_us) and low_us > EARLIEST_US:
            step_us *= 2
            low_us, high_us = max(low_us - step_us, EARLIEST_US), low_us
    else:
        low_us, high_us = near_us, near_us + step_us
        while not is_behind(min(high_us, until_us)):
            if high_us >= until_us:
                return NextRow(searchable=True)
            step_us *= 2
            low_us, high_us = high_us, high_us + step_us
        high_us = min(high_us, until_us)
    while high_us - low_us > MILLISECOND_US:
        middle_us = low_us + (high_us - low_us) // (2 * MILLISECOND_US) * MILLISECOND_US
        if middle_us == low_us:
            middle_us = low_us + MILLISECOND_US
        if is_behind(middle_us):
            high_us = middle_us
        else:
            low_us = middle_us
    # What was found may be no row, and older ones may lie behind it: such a split cannot be searched here.
    known = {name: us for name, us in planner.claims(unread, low_us, until_us).items() if us > EARLIEST_US}
    if len(known) < len(unread):
        sure = [split for split in unread if split.split_id in known]
        return next_row(planner, sure, near_us=low_us, until_us=until_us) if sure else NextRow(searchable=False)
    return NextRow(searchable=True, time_us=min(low_us, *known.values()), wanted_us=low_us)
