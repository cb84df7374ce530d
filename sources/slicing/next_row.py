"""Finds the event time of the next unread row without reading it.

Alignment needs the time twice: a waiting source reports it without reading; and if all members wait before a gap, the
group may step over the gap only if it knows the end of the gap (Kinesis' "next record"; in Flink's FLIP-217 the reason
for a deadlock over one record).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lowmark.sources.api import EARLIEST_US, SourceSplit, SplitPlanner, SplitT
from lowmark.watermark.moment import MILLISECOND_US

_FIRST_STEP_US = 1_000_000


@dataclass(frozen=True, slots=True)
class NextRow:
    """The event time where a source goes on.

    Attributes:
        searchable: whether the source can search at least one unread split by time.
        time_us: a time before which no searchable split has an unread row. The next row is less than a
            millisecond later, or in the same step of a source with several rows in a step; None if all rows are read.
        wanted_us: a row can be read once the cap is a millisecond later than this: `time_us`, or, if a step has to be
            read as a whole, its last time, to the millisecond.
    """

    searchable: bool
    time_us: int | None = None
    wanted_us: int | None = None


def next_row(planner: SplitPlanner[SplitT], splits: Sequence[SplitT], *, near_us: int, until_us: int) -> NextRow:
    """Find the event time of the first unread row of all splits.

    The planner is asked where times begin some 20 times for a row near `near_us`, 50 times for a row years away. The
    found time is whole milliseconds away from `near_us`. Rows from `until_us` on come from bad clocks, which are not
    trusted.

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
        return _any_before(unread, planner.find_time(unread, time_us))

    if not unread:
        return NextRow(searchable=True)
    near_us = max(near_us, EARLIEST_US + (near_us - EARLIEST_US) % MILLISECOND_US)
    answered = planner.find_time(unread, near_us)
    unread = [split for split in unread if answered is not None and split.split_id in answered]
    if not unread:
        return NextRow(searchable=False)
    step_us = _FIRST_STEP_US
    if _any_before(unread, answered):
        low_us, high_us = max(near_us - step_us, EARLIEST_US), near_us
        while is_behind(low_us) and low_us > EARLIEST_US:
            step_us *= 2
            low_us, high_us = max(low_us - step_us, EARLIEST_US), low_us
    else:
        low_us, high_us = near_us, near_us + step_us
        while not is_behind(min(high_us, until_us)):
            if high_us >= until_us:  # a row of a bad clock is the first of each, and hides the rows behind it
                return NextRow(searchable=False)
            step_us *= 2
            low_us, high_us = high_us, high_us + step_us
        high_us = min(high_us, until_us)
    while high_us - low_us > MILLISECOND_US:
        middle_us = low_us + max(1, (high_us - low_us) // (2 * MILLISECOND_US)) * MILLISECOND_US
        if is_behind(middle_us):
            high_us = middle_us
        else:
            low_us = middle_us
    # The found position may have no row, and older rows may follow it: such a split cannot be searched here.
    known = {name: us for name, us in planner.claims(unread, low_us, until_us).items() if us > EARLIEST_US}
    if len(known) < len(unread):
        sure = [split for split in unread if split.split_id in known]
        return next_row(planner, sure, near_us=low_us, until_us=until_us) if sure else NextRow(searchable=False)
    return NextRow(searchable=True, time_us=min(low_us, *known.values()), wanted_us=low_us)


def _any_before(unread: Sequence[SourceSplit], found: Mapping[str, int | None] | None) -> bool:
    """Whether an unread row is before the time that was looked up."""
    assert found is not None, "asked of searchable sources only"
    there = ((split, found[split.split_id]) for split in unread if split.split_id in found)
    return any(at is None or at > split.start for split, at in there)
