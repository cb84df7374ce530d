"""Finds the largest event time whose rows fit a budget, in few lookups.

Every lookup asks all splits at once where a time begins, and costs a round trip. Two lookups enclose the time that is
sought, and everything lies between the two that need none: `EARLIEST_US`, before all rows, and `LATEST_US`, behind
them. The next time is taken from, in this order:

    hints      where the caller expects it: the last slice, moved on
    a model    every split's rows grow evenly between what was found; where a split had none at the lower time, they
               grow as they do behind the upper one, which tells where they begin
    the middle while nothing is known of how rows grow, and when the model did not halve what was left. Middle by how
               long ago: halfway between an hour and a year lies a week or so, so a first search need not know
               whether a log holds hours or decades

The search ends when the rows fill the budget well, at one millisecond, or after `LOOKUPS` in all, `MOST_LOOKUPS` while
next to nothing was found: a plan made from what was found by then is right too, only coarser.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import asinh, sinh

import numpy as np
from lowmark.sources.api import EARLIEST_US
from lowmark.watermark import LowmarkError

from .table import Booleans, Floats, Integers, InvalidPosition, SliceTable

__all__ = ["EARLIEST_US", "GRID_US", "LATEST_US", "Lookup", "NotSearchable", "TimeSearch"]

GRID_US = 1_000  # what Kafka keeps, and Spark's watermarks count
LOOKUPS = 24
MOST_LOOKUPS = 64  # enough to tell milliseconds apart between the earliest and the latest time
LATEST_US = -EARLIEST_US  # the years 1684 and 2255: a float holds every microsecond between
_AIM = 0.9  # of the budget, when 0.8 is enough
_NEAR_US = 600 * 1_000_000  # ages below this are halved as they are, larger ones by their logarithm


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    """Where a time begins in every split of a table.

    Attributes:
        time_us: the time.
        there: whether it has a row at or after the time.
        position: of the first such row; the split's limit where there is none.
        stop: where a slice up to the time stops: the position, not before the start, not behind the limit.
        cost: what the rows from the start to the stop take of the budget.
    """

    time_us: int
    there: Booleans
    position: Integers
    stop: Integers
    cost: Floats


class NotSearchable(LowmarkError):
    """The source cannot search by time; caught where slices are planned."""


class TimeSearch:
    """The lookups of one plan.

    Args:
        table: the splits.
        now_us: the time; times are guessed by how long ago they are.

    Attributes:
        lookups: how often the planner was asked.
        unsearchable: splits that are not chosen by time, so their rows are not counted: those that a lookup did not
            answer for, and those that the caller adds.
    """

    def __init__(self, table: SliceTable, *, now_us: int) -> None:
        self._table, self._now_us = table, now_us
        self._ids = [split.split_id for split in table.splits]
        self.lookups = 0
        self.unsearchable: Booleans = np.zeros(len(self._ids), np.bool_)
        nobody = np.zeros(len(self._ids), np.bool_)
        self._known = {
            EARLIEST_US: Lookup(EARLIEST_US, nobody, table.start, table.start, 0.0 * table.cost),
            LATEST_US: Lookup(LATEST_US, nobody, table.limit, table.limit, table.rows * table.cost),
        }

    def look_up(self, time_us: int) -> Lookup:
        """Return where a time begins.

        Raises:
            InvalidPosition: the planner answered a position below 0.
            NotSearchable: the source cannot tell.
        """
        if time_us in self._known:
            return self._known[time_us]
        table = self._table
        self.lookups += 1
        answers = table.planner.find_time(table.splits, time_us)
        if answers is None:
            raise NotSearchable
        found = [answers.get(name) for name in self._ids]
        there: Booleans = np.array([at is not None for at in found], np.bool_)
        position = table.limit.copy()
        position[there] = [at for at in found if at is not None]
        for i in np.flatnonzero(position < 0).tolist():
            raise InvalidPosition(self._ids[i], f"find_time({time_us})", int(position[i]), "0 or more, or None")
        if not answers.keys() >= set(self._ids):
            self.unsearchable |= np.array([name not in answers for name in self._ids])
        stop = np.clip(position, table.start, table.limit)
        lookup = Lookup(time_us, there, position, stop, table.rows_to(stop) * table.cost)
        self._known[time_us] = lookup
        return lookup

    def total(self, lookup: Lookup) -> float:
        """Return what the rows before a time cost."""
        return float(lookup.cost[~self.unsearchable].sum())

    def reached(self, time_us: int) -> Booleans:
        """Return which splits are known to go on with a row at or after a time, all rows before which are read.

        They were read up to this time or a later one by an earlier slice, so that a slice up to it is empty for them.
        """
        table = self._table
        known: Booleans = np.zeros(len(self._ids), np.bool_)
        for lookup in self._known.values():
            if lookup.time_us >= time_us:
                known |= lookup.there & (lookup.position == table.start)
        return known

    def enclose(
        self, budget: float, *, enough: float, until: Lookup, hints_us: Iterable[int] = (), within_us: int = GRID_US
    ) -> tuple[Lookup, Lookup]:
        """Return two times, the rows up to the first of which fit the budget while those up to the second do not.

        Args:
            budget: what rows may cost together.
            enough: the search ends when the rows up to the first time cost that much.
            until: a time with rows that do not fit.
            hints_us: times to try first.
            within_us: the search ends when the two times are so near each other.
        """
        hints = list(hints_us)
        width, modelled = float("inf"), False
        while True:
            known = [self._known[time_us] for time_us in sorted(self._known) if time_us <= until.time_us]
            place = next((i for i, at in enumerate(known) if self.total(at) > budget), None)
            if place is None:  # a lookup did not answer for the split that had so many
                return until, until
            low, high = known[place - 1], known[place]
            gap_us = high.time_us - low.time_us
            # With next to nothing so far, to give up would mean tiny slices, or to cut by shares and let splits drift
            # apart. That is so where a search knows nothing of a dense log of long ago, and once in its life.
            little = self.total(low) <= budget / 4 and self.lookups < MOST_LOOKUPS
            if self.total(low) >= enough or gap_us <= within_us or (self.lookups >= LOOKUPS and not little):
                return low, high
            behind = self._known_after(high)
            before_width, width = width, self._age(high.time_us) - self._age(low.time_us)
            hint = next((us for us in hints if low.time_us < us < high.time_us), None)
            if hint is not None:
                hints.remove(hint)
                self.look_up(hint)
                continue
            # Only where some rows lie on one side and some on the other is anything known of how they grow.
            informed = self.total(low) > 0 or (behind is not None and self.total(behind) > self.total(high))
            if informed and (not modelled or width <= before_width / 2):
                time_us, modelled = self._by_model(low, high, behind, _AIM * budget), True
            else:
                time_us, modelled = self._middle(low.time_us, high.time_us), False
            time_us -= time_us % GRID_US
            self.look_up(min(max(time_us, low.time_us + GRID_US), high.time_us - 1))

    def _known_after(self, high: Lookup) -> Lookup | None:
        later = [at for us, at in self._known.items() if high.time_us < us < LATEST_US]
        return min(later, key=lambda at: at.time_us, default=None)

    def _age(self, time_us: int) -> float:
        return asinh((time_us - self._now_us) / _NEAR_US)

    def _middle(self, low_us: int, high_us: int) -> int:
        return self._now_us + round(sinh((self._age(low_us) + self._age(high_us)) / 2) * _NEAR_US)

    def _by_model(self, low: Lookup, high: Lookup, behind: Lookup | None, aim: float) -> int:
        """Return the time up to which rows cost `aim` if they grow evenly."""
        counted = ~self.unsearchable
        few, many = low.cost[counted], high.cost[counted]
        slope = (many - few) / (high.time_us - low.time_us)
        if behind is not None:
            steep = (behind.cost[counted] - many) / (behind.time_us - high.time_us)
            slope = np.where(few > 0, slope, np.maximum(slope, steep))
        least_us, most_us = 0, high.time_us - low.time_us  # before the upper time
        while most_us - least_us > GRID_US:
            back_us = (least_us + most_us) // 2
            if np.maximum(few, many - slope * back_us).sum() > aim:
                least_us = back_us
            else:
                most_us = back_us
        return high.time_us - most_us
