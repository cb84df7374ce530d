"""One plan by time: the time of the slice, the splits read up to that time, and the splits not chosen by time.

The rules stand in `slicer.py`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from lowmark.sources.api import EARLIEST_US

from .plan import NoRowsReason, SliceLimits
from .search import GRID_US, LATEST_US, Lookup, NotSearchable, TimeSearch
from .shares import share_out
from .table import Booleans, Integers, SliceTable

_ENOUGH = 0.8  # share of the budget: a fuller slice is not worth another lookup
_DAY_US = 86_400 * 1_000_000


@dataclass(slots=True)
class Decision:
    """The stops of the splits of a table, the splits claimed to have reached the time, and the waiting splits."""

    stops: Integers
    time_us: int | None
    claimed: Booleans
    waiting: Booleans
    why: NoRowsReason = NoRowsReason.CAP


def decide(table: SliceTable, limits: SliceLimits, previous_time_us: int | None) -> Decision:
    """Decide where the splits of a table stop."""
    nobody: Booleans = np.zeros(len(table.splits), np.bool_)
    bounded = limits.read_before_us is not None or (limits.by_time and limits.max_slice_us is not None)
    if not len(table.splits) or (not bounded and float((table.rows * table.cost).sum()) <= table.budget):
        return Decision(table.limit.copy(), None, nobody, nobody)
    if limits.by_time:
        with suppress(NotSearchable):
            return _TimeSlice(table, limits, previous_time_us).decide()
    waiting = nobody if limits.read_before_us is None else table.observed_us >= limits.read_before_us
    return Decision(share_out(table, ~waiting, table.budget, table.limit), None, nobody, waiting)


class _TimeSlice:
    def __init__(self, table: SliceTable, limits: SliceLimits, previous_time_us: int | None) -> None:
        self._table, self._limits, self._previous_us = table, limits, previous_time_us
        self._search = TimeSearch(table, now_us=limits.now_us)
        # No row is before `EARLIEST_US`, and no planner is asked for an earlier time, but a cap may be one.
        cap_us = limits.read_before_us
        self._cap_us = None if cap_us is None else max(cap_us, EARLIEST_US + 1)
        until_us = limits.believed_until_us
        self._guard_us = LATEST_US if until_us is None else min(until_us + 1, LATEST_US)
        self._nobody: Booleans = np.zeros(len(table.splits), np.bool_)
        self._bad = self._nobody  # whether the split has a row beyond the guard
        self._bad_at = table.limit  # the position of its first row beyond the guard

    def decide(self) -> Decision:
        """Return the decision. Raises `NotSearchable` if the source cannot search by time."""
        farthest = self._farthest()
        while True:
            before = self._search.unsearchable.copy()
            decision, unfit = self._slice(farthest)
            self._search.unsearchable |= unfit
            # A split that turned out unsearchable needs a share: decide again. Earlier answers are known, so this
            # costs few lookups.
            if (self._search.unsearchable == before).all():
                return decision

    # -- the limit of the slice

    def _farthest(self) -> Lookup:
        """Return the largest allowed time, and mark splits that cannot be searched."""
        search, limits = self._search, self._limits
        farthest = search.look_up(self._guard_us if self._cap_us is None else min(self._cap_us, self._guard_us))
        if self._guard_us < LATEST_US and farthest.there.any():
            guard = search.look_up(self._guard_us)
            self._bad, self._bad_at = guard.there, guard.position
            search.unsearchable |= guard.there & (guard.position <= self._table.start)
        if limits.max_slice_us is not None and search.total(farthest) > 0:
            return self._within_max_slice(farthest, limits.max_slice_us)
        return farthest

    def _within_max_slice(self, farthest: Lookup, max_slice_us: int) -> Lookup:
        search = self._search
        if self._previous_us is not None:
            if self._previous_us + max_slice_us >= farthest.time_us:
                return farthest
            nearer = search.look_up(self._previous_us + max_slice_us)
            if search.total(nearer) > 0:
                return nearer
        # If no row was read before, or a gap is longer than a slice may be, the span begins at the first row.
        before, after = search.enclose(0.0, enough=np.inf, until=farthest, within_us=max(max_slice_us // 2, GRID_US))
        return search.look_up(min(max(before.time_us + max_slice_us, after.time_us), farthest.time_us))

    # -- the slice

    def _slice(self, farthest: Lookup) -> tuple[Decision, Booleans]:
        """Return a decision, and the splits that turned out not to be searchable in it."""
        table, search = self._table, self._search
        shared = self._reserve()
        if shared >= table.budget:
            return self._shares_only(), self._nobody
        budget = table.budget - shared
        at, after, cut = farthest, None, False
        if search.total(farthest) > budget:
            at, after = search.enclose(budget, enough=_ENOUGH * budget, until=farthest, hints_us=self._hints(budget))
        else:
            shared = table.budget - search.total(farthest)
        stops = np.where(search.unsearchable, table.start, at.stop)
        if after is not None and not (stops > table.start).any():
            cut = True
            stops = share_out(table, ~search.unsearchable & (after.stop > table.start), budget, after.stop)
        time_us = at.time_us if EARLIEST_US < at.time_us < self._guard_us else None
        if time_us is not None and not at.there.any() and not search.unsearchable.any():
            time_us = None
        stops, waiting = self._add_shares(stops, shared, time_us)
        if time_us is None:
            return Decision(stops, None, self._nobody, self._nobody), self._nobody
        ahead = search.reached(time_us) & ~(self._bad & (self._bad_at <= table.start))
        unfit = at.there & (at.position < table.start) & ~search.unsearchable & ~ahead & ~(table.observed_us >= time_us)
        if after is not None and (cut or after.time_us - time_us <= GRID_US):
            # A split whose answers at both times lie before its start is unfit. If only the answer at the first time
            # lies before its start, its next row may lie between the times, in the millisecond where the slice ends.
            unfit &= after.there & (after.position < table.start)
        claimed = at.there & (at.position >= table.start) & (at.position <= stops) & (at.position < table.end)
        claimed &= ~(self._bad & (at.position >= self._bad_at))
        claimed = (claimed | ahead) & ~search.unsearchable
        if time_us == self._cap_us:
            return Decision(stops, time_us, claimed, ~search.unsearchable | waiting), unfit
        return Decision(stops, time_us, claimed, waiting, NoRowsReason.AHEAD), unfit

    # -- splits that are not chosen by time

    def _add_shares(self, stops: Integers, budget: float, time_us: int | None) -> tuple[Integers, Booleans]:
        """Give each of these splits its share, unless the split is ahead of the time."""
        table, unsearchable = self._table, self._search.unsearchable
        waiting = self._nobody if time_us is None else unsearchable & (table.observed_us >= time_us)
        among = unsearchable & ~waiting
        nothing_else = not (stops > table.start).any()
        shares = share_out(table, among, budget, table.limit, at_least_one=nothing_else)
        return np.where(among, shares, stops), waiting

    def _shares_only(self) -> Decision:
        """Read only the splits that are not chosen by time: no other splits have rows, or the turn is theirs."""
        others = (~self._search.unsearchable & (self._table.rows > 0)).any()
        wait_us = self._wait_us() if others else self._limits.read_before_us
        stops, waiting = self._add_shares(self._table.start, self._table.budget, wait_us)
        why = NoRowsReason.CAP if wait_us == self._limits.read_before_us else NoRowsReason.AHEAD
        return Decision(stops, self._previous_us, self._nobody, waiting, why)

    def _wait_us(self) -> int | None:
        known = [us for us in (self._previous_us, self._limits.read_before_us) if us is not None]
        return min(known, default=None)

    def _reserve(self) -> float:
        """Return the part of the budget for splits that are not chosen by time.

        The part is proportional to the unread rows of these splits, so that they keep pace. Splits chosen by time keep
        at least an equal share for each split, so that the large backlog of one split does not stop a trickle in many
        splits. If a part is too small for a row, the two kinds take turns: a plan then has the whole budget for one
        kind.
        """
        table, unsearchable, budget = self._table, self._search.unsearchable, self._table.budget
        cost = table.rows * table.cost
        everything, others = float(cost.sum()), float(cost[~unsearchable].sum())
        if others == everything or everything <= budget:
            return 0.0  # the rest of the budget is enough for them
        unread = table.rows > 0
        equal = budget * int((unread & ~unsearchable).sum()) / int(unread.sum())
        of_others = max(budget * others / everything, min(others, equal))
        row = float(table.cost.max())
        if budget - of_others >= row and of_others >= min(row, others):
            return budget - of_others
        wait_us = self._wait_us()
        if wait_us is not None and not (unsearchable & unread & (table.observed_us < wait_us)).any():
            return 0.0
        return budget if table.seed % 2**16 * budget < (budget - of_others) * 2**16 else 0.0

    def _hints(self, budget: float) -> list[int]:
        """Return times to look up first."""
        now_us, previous_us, span_us = self._limits.now_us, self._previous_us, self._limits.previous_span_us
        if previous_us is None:
            return [now_us - _DAY_US]
        if span_us is None:
            everything = float((self._table.rows * self._table.cost).sum())
            span_us = int((now_us - previous_us) * min(1.0, 0.9 * budget / everything))
        return [previous_us + max(span_us, GRID_US), previous_us]
