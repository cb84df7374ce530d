"""Finds the largest event time whose rows fit a budget, in few lookups.

Every lookup asks all splits at once where a time begins, and costs a round trip. Two lookups enclose the wanted time,
at first `EARLIEST_US`, before all rows, and `LATEST_US`, after all rows. The next time to look up comes from, in this
order:

    hints      the caller's expectation: the time of the last slice, moved on
    a model    every split's rows grow evenly between two lookups; if a split has no rows at the lower time, they
               grow as after the upper time, which shows where they begin
    the middle while the growth of rows is unknown, and when the model did not halve the span. The middle is taken
               by age: halfway between an hour and a year lies about a week, so a first search works for logs of
               hours and of decades

The search ends when the rows fill the budget well, at one millisecond, or after `LOOKUPS` lookups (`MOST_LOOKUPS` while
nearly no rows were found). A plan from the lookups up to then is correct, only coarser.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import asinh, sinh

import numpy as np
from lowmark.sources.api import EARLIEST_US
from lowmark.watermark import LowmarkError

from .table import Booleans, Floats, Integers, InvalidPosition, SliceTable, is_position

GRID_US = 1_000  # the unit of Kafka's timestamps and of Spark's watermarks
LOOKUPS = 24
MOST_LOOKUPS = 64  # enough to tell milliseconds apart between the earliest and the latest time
LATEST_US = -EARLIEST_US  # the years 1684 and 2255: a float holds every microsecond between these
_AIM = 0.9  # share of the budget to aim at, when 0.8 is enough
_NEAR_US = 600 * 1_000_000  # the middle of ages below this is linear, of larger ages logarithmic


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    """The positions where a time begins in every split of a table."""

    time_us: int
    there: Booleans  # whether the split has a row at or after the time
    position: Integers  # of the first such row; the split's limit without such a row
    stop: Integers  # of a slice up to the time: the position, between start and limit
    cost: Floats  # of the rows up to the stop, in units of the budget


class NotSearchable(LowmarkError):
    """The source cannot search by time; caught where slices are planned."""


class TimeSearch:
    """The lookups of one plan. Guesses of times are based on their ages at `now_us`.

    Attributes:
        unsearchable: splits that are not chosen by time, so that their rows are not counted: splits without an answer
            in a lookup, and splits added by the caller.
    """

    def __init__(self, table: SliceTable, *, now_us: int) -> None:
        self._table, self._now_us = table, now_us
        self._ids = [split.split_id for split in table.splits]
        self.unsearchable: Booleans = np.zeros(len(self._ids), np.bool_)
        nobody = np.zeros(len(self._ids), np.bool_)
        self._known = {
            EARLIEST_US: Lookup(EARLIEST_US, nobody, table.start, table.start, 0.0 * table.cost),
            LATEST_US: Lookup(LATEST_US, nobody, table.limit, table.limit, table.rows * table.cost),
        }

    def look_up(self, time_us: int) -> Lookup:
        """Return where a time begins. Raises `NotSearchable` if the source cannot search by time."""
        if time_us in self._known:
            return self._known[time_us]
        table = self._table
        answers = table.planner.find_time(table.splits, time_us)
        if answers is None:
            raise NotSearchable
        found = [answers.get(name) for name in self._ids]
        there: Booleans = np.array([at is not None for at in found], np.bool_)
        for name, at in zip(self._ids, found, strict=True):
            if at is not None and not is_position(at, 0):
                raise InvalidPosition(name, f"find_time({time_us})", at, "0 or more, less than 2**63, or None")
        position = table.limit.copy()
        position[there] = [at for at in found if at is not None]
        if not answers.keys() >= set(self._ids):
            self.unsearchable |= np.array([name not in answers for name in self._ids])
        stop = np.clip(position, table.start, table.limit)
        lookup = Lookup(time_us, there, position, stop, table.rows_to(stop) * table.cost)
        self._known[time_us] = lookup
        return lookup

    def total(self, lookup: Lookup) -> float:
        return float(lookup.cost[~self.unsearchable].sum())

    def reached(self, time_us: int) -> Booleans:
        """Return the splits that are known to be read up to a time: their next row is at or after the time.

        An earlier slice read these splits up to this time or later, so their part of a slice up to the time is empty.
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
        """Return two times: rows up to the first time fit the budget, and rows up to the second do not.

        Args:
            enough: the search ends when the rows up to the first time cost at least this.
            until: a time whose rows do not fit.
            within_us: the search ends when the times are at most this far apart.
        """
        hints = list(hints_us)
        width, modelled = float("inf"), False
        while True:
            known = [self._known[time_us] for time_us in sorted(self._known) if time_us <= until.time_us]
            place = next((i for i, at in enumerate(known) if self.total(at) > budget), None)
            if place is None:  # the split with many rows got no answer in a lookup
                return until, until
            low, high = known[place - 1], known[place]
            gap_us = high.time_us - low.time_us
            # With nearly no rows so far, giving up would mean tiny slices, or shares that let splits drift apart. This
            # happens in the first search of a dense old log, and only once.
            lookups = len(self._known) - 2  # the planner was not asked for the first two
            little = self.total(low) <= budget / 4 and lookups < MOST_LOOKUPS
            if self.total(low) >= enough or gap_us <= within_us or (lookups >= LOOKUPS and not little):
                return low, high
            behind = self._known_after(high)
            before_width, width = width, self._age(high.time_us) - self._age(low.time_us)
            hint = next((us for us in hints if low.time_us < us < high.time_us), None)
            if hint is not None:
                hints.remove(hint)
                self.look_up(hint)
                continue
            # The growth of rows is known only if rows lie on both sides.
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
