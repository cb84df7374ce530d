"""Time-sliced admission: a batch takes every split up to one event time, instead of a number of rows of each split.

The time, T, is the largest time whose rows fit the budget of a batch. It is found before rows are read, by asking
the source where in every split a time begins. After the batch every split, even a split without a row in it, has
reached T: the watermark is known when the batch is planned, no split can run ahead of another by more than a slice
for any skew, and a backfill keeps little state.

Rule 1: a split is claimed to have reached T only if a row at or after T is known to lie at or before its stop, and if
        its planner confirms the stop (`SplitPlanner.claims`), because a search may find a position without a row. At
        the end of a live split the next time is unknown, so nothing is claimed there, unless the system promises a
        time for all following rows (`SplitPlanner.passed_us`).
Rule 2: one bad clock must not be trusted. A row beyond the future guard is found for every time, so no row after it
        can be found by time. The split is read up to that row by time, and from there on by a share of the budget. The
        same is done with a split whose answer lies before its start, because rows before the start say nothing about
        later rows. If the rows of such a split are known to be ahead of T, the split waits instead.
Rule 3: while rows may be read, some rows are read. If one millisecond has more rows than the budget, they are cut by
        number; hours without a row are stepped over; splits chosen by time and other splits take turns when the
        budget is too small to be shared.
Rule 4: a split that has rows but gets none is named, with the reason.
Rule 5: nothing is kept from plan to plan. The same answers give the same plan, in any process. The values that the
        caller carries over (the previous time, the observed times) save lookups and keep splits nearer together;
        without them the same rows are read.

Source: Flink's FLIP-182 caps rows that were read already, and limits throughput by drift / interval (FLINK-37399);
    Kafka's `offsetsForTimes` lets a batch engine choose beforehand.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from lowmark.sources.api import EARLIEST_US, SourceSplit, SplitEnd, SplitPlanner, SplitT

from .plan import InvalidSliceLimits, NoRowsReason, PlannedSlice, SliceLimits, SlicePlan
from .table import InvalidPosition, SliceTable, is_position
from .time_slice import Decision, decide


def plan_slices(
    planner: SplitPlanner[SplitT], splits: Sequence[SplitT], limits: SliceLimits, *, previous_time_us: int | None
) -> SlicePlan:
    """Choose the slices of the next batch, with at least one row if the limits allow a row.

    The planner is asked once for the ends of the splits, and as seldom as possible where times begin.

    Raises:
        InvalidPosition: the planner answered an impossible position, such as an end before a start.
        InvalidSliceLimits: two splits have the same id.

    Two splits with a row every second, the second of which begins a minute later. The slice takes 40 rows up to 40
    seconds, and the second split has reached that time without a row of it:

    >>> from lowmark.sources import SourceSplit, SplitEnd, SplitPlanner
    >>> class EverySecond(SplitPlanner):
    ...     begin_us = {"a": 0, "b": 60_000_000}
    ...     def latest(self, splits):
    ...         return {split.split_id: SplitEnd(3600) for split in splits}
    ...     def find_time(self, splits, time_us):
    ...         second = {name: max(0, -((begin - time_us) // 1_000_000)) for name, begin in self.begin_us.items()}
    ...         return {name: at if at < 3600 else None for name, at in second.items()}
    >>> splits = [SourceSplit(split_id="a"), SourceSplit(split_id="b")]
    >>> plan = plan_slices(EverySecond(), splits, SliceLimits(now_us=7_200_000_000, rows=40), previous_time_us=0)
    >>> plan.rows <= 40, plan.slices["b"].stop, plan.slices["b"].claim_us == plan.time_us
    (True, 0, True)
    """
    ends = planner.latest(splits)
    _check(splits, ends)
    without_rows: dict[str, NoRowsReason] = {}
    parts: list[tuple[SourceSplit, SplitEnd, int]] = []
    unfinished = _unfinished(splits, ends)
    for split in splits:
        name, end = split.split_id, ends.get(split.split_id)
        if end is None:
            without_rows[name] = NoRowsReason.NOT_REACHABLE
            continue
        if split.start == end.position:
            continue
        limit = _limit(split, end, limits.targets)
        if not unfinished.isdisjoint(split.parents):
            without_rows[name] = NoRowsReason.PARENTS
        elif name in limits.paused:
            without_rows[name] = NoRowsReason.TARGET if limit == split.start else NoRowsReason.CAP
        else:
            parts.append((split, end, limit))
    table = SliceTable(planner, parts, limits)  # type: ignore[arg-type]  # of SplitT, and the table's splits are its own
    return _plan(splits, ends, table, decide(table, limits, previous_time_us), without_rows, unfinished)


def _check(splits: Sequence[SourceSplit], ends: Mapping[str, SplitEnd]) -> None:
    seen: set[str] = set()
    for split in splits:
        if split.split_id in seen:
            raise InvalidSliceLimits("splits", f"one with {split.split_id!r} twice", "every split once")
        seen.add(split.split_id)
        end = ends.get(split.split_id)
        if end is not None and not is_position(end.position, split.start):
            expected = f"its start, {split.start}, or more, and less than 2**63"
            raise InvalidPosition(split.split_id, "latest()", end.position, expected)


def _done(split: SourceSplit, end: SplitEnd | None) -> bool:
    return end is not None and end.finished and split.start >= end.position


def _unfinished(splits: Sequence[SourceSplit], ends: Mapping[str, SplitEnd]) -> set[str]:
    """The splits with unread rows or without an end, and all their descendants."""
    found = {split.split_id for split in splits if not _done(split, ends.get(split.split_id))}
    over = [split for split in splits if split.split_id not in found]
    while waiting := [split.split_id for split in over if not found.isdisjoint(split.parents)]:
        found.update(waiting)
        over = [split for split in over if split.split_id not in found]
    return found


def _limit(split: SourceSplit, end: SplitEnd, targets: Mapping[str, int] | None) -> int:
    limit = end.position if split.stop is None else min(end.position, split.stop)
    if targets is not None:
        limit = min(limit, targets.get(split.split_id, split.start))
    return max(limit, split.start)


def _plan(
    splits: Sequence[SourceSplit],
    ends: Mapping[str, SplitEnd],
    table: SliceTable,
    decision: Decision,
    without_rows: dict[str, NoRowsReason],
    unfinished: Collection[str],
) -> SlicePlan:
    claim_us = _claims_us(table, decision)
    carried_on = {parent for split in splits for parent in split.parents}
    rows = table.rows_to(decision.stops)
    left_rows = table.rows_to(table.end) - rows
    columns = zip(decision.stops.tolist(), rows.tolist(), left_rows.tolist(), strict=True)
    parts = dict(zip((split.split_id for split in table.splits), columns, strict=True))
    for i in np.flatnonzero(
        (decision.stops == table.start) & ((table.limit == table.start) | decision.waiting)
    ).tolist():
        ends_here = table.limit[i] == table.start[i]
        without_rows[table.splits[i].split_id] = NoRowsReason.TARGET if ends_here else decision.why
    slices: dict[str, PlannedSlice] = {}
    for split in splits:
        name, end = split.split_id, ends.get(split.split_id)
        if end is None:
            continue
        if name in parts:
            stop, taken, left = parts[name]
        else:
            stop, taken, left = split.start, 0, 0
            if split.start < end.position:
                left = table.planner.rows_before(split, end.position) if end.rows is None else end.rows
        # A split without rows is finished only after its parents, because its children continue their rows, too.
        finished = end.finished and stop == end.position and not any(parent in unfinished for parent in split.parents)
        # A finished split has passed every time. If children continue it, they begin at its claim, with older rows.
        time_us = decision.time_us if finished and name not in carried_on else claim_us.get(name)
        if time_us is None and not finished:
            time_us = _passed_us(table, replace(split, start=stop), decision.time_us)
        slices[name] = PlannedSlice(split.start, stop, taken, time_us, left, finished)
    return SlicePlan(slices, decision.time_us, without_rows)


def _passed_us(table: SliceTable, split: SourceSplit, time_us: int | None) -> int | None:
    """The time that the system promises for following rows, at most the plan's time; not that of a bad clock."""
    passed_us, until_us = table.planner.passed_us(split), table.believed_until_us
    if passed_us is None or (until_us is not None and passed_us > until_us):
        return None
    return passed_us if time_us is None else min(passed_us, time_us)


def _claims_us(table: SliceTable, decision: Decision) -> dict[str, int]:
    """Ask for the claims of splits that seem to have reached the time; splits that end with the plan need no claim."""
    if decision.time_us is None:
        return {}
    over = np.array([end.finished for end in table.ends], np.bool_) & (decision.stops == table.end)
    stops = decision.stops.tolist()
    asked = [replace(table.splits[i], start=stops[i]) for i in np.flatnonzero(decision.claimed & ~over).tolist()]
    if not asked:
        return {}
    said = table.planner.claims(asked, decision.time_us, table.believed_until_us)
    return {name: us for name, us in said.items() if us > EARLIEST_US}
