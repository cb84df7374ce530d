"""The low watermark of a set of splits.

``watermark/state.py`` says what each state does to the minimum. Reports commute and repeats change nothing, so a batch
of reports is applied in any order before one ``advance()``; nothing is published in between.

Why columns. The usual work is a micro-batch: all splits report, then the minimum is taken. With columns this is a
handful of numpy calls, and no Python for a single split as long as the same splits report in the same order as the
last time. A new set or a new order of splits costs one look-up for each split. Between batches the smallest watermark
is remembered, and searched again only after the split with that watermark moved; for this search a heap is faster.
Measured at 100,000 splits on a busy machine: a batch 3 ns a split, in a new order 300 to 900; one report 2 us;
``advance`` 0.5 us, 25 us after the holder moved (a heap: 0.3); 170 bytes a split. `make bench` prints all of it beside
Flink's on the JVM.

Rows. Each split has a row, 0 to n - 1 without holes, the same in every column. A row that takes no part in
the minimum has the largest number in the column of watermarks, the identity of the minimum. That number is never
read back, because a separate column says whether a row takes part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from lowmark.watermark.errors import InvalidWatermark
from lowmark.watermark.moment import LEAST_US, MILLISECOND_US, MOST_US, none_first
from lowmark.watermark.state import LEFT_OUT, TAKES_PART, AllIdle, Signal, SplitId, SplitState, next_state, split_order

_IDENTITY = np.iinfo(np.int64).max
_FEW = 16  # so many equal watermarks are compared by their ids; beyond, the ids are ranked once

Rows = slice | npt.NDArray[np.intp]


class Coalescer:
    """The minimum over splits, latched.

    Args:
        low_us: a low watermark published before, microseconds since the epoch; the minimum never goes below it.
        all_idle_delay_us: how far ``ADVANCE`` stays behind processing time; needed for ``ADVANCE``.
        percentile: the slowest ``floor(n * (100 - percentile) / 100)`` of the ``n`` splits that are neither idle nor
            finished are passed, silent splits first; ``stripped`` names them. None: the true minimum.
        quorum: the share of the unfinished splits that must take part before idle splits are left out; until then an
            idle split counts with its watermark. Only with ``HOLD``. None: an idle split is left out at once. Source:
            Samza's ``WatermarkStates`` (pull request 1707).
    """

    def __init__(
        self,
        low_us: int | None = None,
        all_idle: AllIdle = AllIdle.HOLD,
        *,
        all_idle_delay_us: int | None = None,
        percentile: float | None = None,
        quorum: float | None = None,
    ) -> None:
        self.low_us = low_us
        """The low watermark: never decreases; None until every assigned split has reported or is left out."""
        self._policy, self._delay_us = all_idle, all_idle_delay_us
        # Fractions of the decimal text: 0.1 % of 1,000 splits is one split.
        self._passed_share = None if percentile is None else 1 - Fraction(str(percentile)) / 100
        self._quorum = None if quorum is None else Fraction(str(quorum))
        self._plain = percentile is None and quorum is None

        self._row_of: dict[SplitId, int] = {}
        self._ids: list[SplitId] = []  # columns: ids,
        self._state: list[SplitState] = []  # states,
        self._takes_part = bytearray()  # whether the split takes part: its state allows it and it has a watermark,
        self._watermarks_us = np.full(16, _IDENTITY, np.int64)  # watermarks in the minimum; longer than n,
        self._aside_us: list[int | None] = []  # watermarks outside the minimum, kept while a split is idle
        self._taking_part = 0
        self._holding: set[SplitId] = set()  # splits that absorb: they have no watermark and are not left out
        self.states = dict.fromkeys(SplitState, 0)
        """How many splits are in each state; every state is there."""

        self._ended = False  # whether no split will be added any more
        self._found = False  # whether the next three are up to date
        self._aside_low_us: int | None = None  # the low watermark of idle splits only, or of finished splits only
        self._lowest_us = 0  # the smallest watermark that counts, if a row has it
        self._lowest_row: int | None = None
        self._last_splits: bytes | None = None  # splits of the last report in bulk, in its order,
        self._last_rows: Rows = slice(0)  # and their rows
        self._rank: npt.NDArray[np.intp] | None = None  # rank of each row's id in ``split_order``
        self.regressions = 0
        """How many reports were below their split's own watermark; their values are ignored."""

    # -- queries

    @property
    def holder(self) -> SplitId | None:
        """The split that keeps the low watermark from rising; None if none does.

        A silent split comes before a split with a watermark, then the smallest watermark counts, then the smallest
        id. A passed split (``stripped``) is no holder. O(1), or O(n) after the holder moved or while splits are silent.
        """
        silent = self._silent()
        if len(silent) > self._passable():
            return min(silent, key=split_order)
        row = self._lowest()
        return None if row is None else self._ids[row]

    @property
    def pending(self) -> frozenset[SplitId]:
        """The splits that hold because they have no watermark yet."""
        return frozenset(self._holding)

    @property
    def stripped(self) -> frozenset[SplitId]:
        """The splits that a ``percentile`` passes now, whose rows may be late; none while too many are silent. O(n)."""
        silent = self._silent()
        if self._passed_share is None or len(silent) > self._passable() or self._lowest() is None:
            return frozenset()
        below = np.flatnonzero(self._counted_us() < self._lowest_us)
        return frozenset(silent).union(self._ids[row] for row in below.tolist())

    @property
    def all_idle(self) -> bool:
        """Whether at least one split is idle, and all other splits are idle or finished."""
        idle, finished = self.states[SplitState.IDLE], self.states[SplitState.FINISHED]
        return idle > 0 and idle + finished == len(self._ids)

    @property
    def splits(self) -> tuple[SplitId, ...]:
        """Every known split, finished ones too, in the order of assignment. O(n)."""
        return tuple(self._row_of)

    def __contains__(self, split: object) -> bool:
        return split in self._row_of

    def state(self, split: SplitId) -> SplitState:
        return self._state[self._row_of[split]]

    def watermark_us(self, split: SplitId) -> int | None:
        """The largest watermark a split reported, also while it is idle; None before the first. Raises KeyError."""
        return self._own_us(self._row_of[split])

    def standings(self) -> Iterator[tuple[SplitId, SplitState, int | None]]:
        """Id, ``state`` and ``watermark_us`` of every split, in no particular order. O(n), some 100 ns each."""
        watermarks_us = self._watermarks_us[: len(self._ids)].tolist()
        for row, split in enumerate(self._ids):
            yield split, self._state[row], watermarks_us[row] if self._takes_part[row] else self._aside_us[row]

    # -- changes

    def assign(
        self, split: SplitId, *, state: SplitState = SplitState.PENDING, watermark_us: int | None = None
    ) -> None:
        """Make a split known: PENDING, so that it holds, or restored with its earlier state and watermark.

        Raises:
            ValueError: the split is known.
            InvalidWatermark: the watermark does not fit 64 bits.
        """
        if split in self._row_of:
            raise ValueError(f"split {split!r} is assigned already")
        if watermark_us is not None and not LEAST_US <= watermark_us <= MOST_US:
            raise InvalidWatermark(split, watermark_us)
        row = self._row_of[split] = len(self._ids)
        if row == len(self._watermarks_us):
            self._watermarks_us = np.concatenate((self._watermarks_us, np.full(row, _IDENTITY, np.int64)))
        self._ids.append(split)
        self._state.append(SplitState.PENDING)
        self._takes_part.append(False)
        self._aside_us.append(watermark_us)
        self.states[SplitState.PENDING] += 1
        self._rank = None
        self._enter(row, state)

    def report(self, split: SplitId, watermark_us: int) -> None:
        """Take the watermark of a split that delivered rows. O(1).

        A value below the split's own watermark is ignored and counted, but the split becomes active all the same. A
        value below the low watermark is accepted: the low watermark does not go back, and waits for this split.

        Raises:
            KeyError: the split was never assigned.
            ValueError: the split had finished.
        """
        row = self._row_of[split]
        if not self._takes_part[row]:
            self._bring_in(row, watermark_us)
        seen_us = self._watermarks_us.item(row)
        if watermark_us > seen_us:
            self._watermarks_us[row] = watermark_us
            if row == self._lowest_row or not self._plain:
                self._found = False
        elif watermark_us < seen_us:
            self.regressions += 1

    def report_array(self, splits: npt.NDArray[np.uint64], watermarks_us: npt.NDArray[np.int64]) -> None:
        """Do ``report`` for many splits that take part, each of them once. O(n).

        A few nanoseconds for each split, if the same splits come in the same order as in the last call; otherwise each
        split is looked up. The arrays, of one shape (n,), n > 0, are not kept.

        Raises:
            KeyError: a split was never assigned; nothing was changed.
        """
        rows = self._rows(splits)
        assert np.frombuffer(self._takes_part, np.bool_)[rows].all(), "a split that takes no part reports by itself"
        own_us = self._watermarks_us[rows]
        lower = watermarks_us < own_us
        if lower[lower.argmax()]:  # argmax of booleans stops at the first True, so it is cheaper than any()
            self.regressions += int(np.count_nonzero(lower))
            watermarks_us = np.maximum(own_us, watermarks_us)
        self._watermarks_us[rows] = watermarks_us
        self._found = False

    def signal(self, split: SplitId, signal: Signal) -> bool:
        """Take a signal other than REPORT. Returns whether the state changed. Raises KeyError."""
        row = self._row_of[split]
        state = self._state[row]
        after = next_state(state, signal, spoken=self._own_us(row) is not None)
        if after is None or after is state:
            return False
        self._enter(row, after)
        return True

    def end(self) -> None:
        """Take that no split will be added: once all are finished, the largest watermark of theirs stands."""
        if not self._ended:  # each plan of a complete source says it again
            self._ended, self._found = True, False

    def remove(self, split: SplitId) -> bool:
        """Forget a split. Returns whether it was known. Nothing is published before ``advance``."""
        row = self._row_of.get(split)
        if row is None:
            return False
        self._enter(row, SplitState.FINISHED)  # it leaves the minimum
        self.states[SplitState.FINISHED] -= 1
        last = len(self._ids) - 1
        self._row_of[self._ids[last]] = row  # the last row fills the hole
        del self._row_of[split]
        self._watermarks_us[row], self._watermarks_us[last] = self._watermarks_us[last], _IDENTITY
        self._ids[row], self._state[row] = self._ids[last], self._state[last]
        self._takes_part[row], self._aside_us[row] = self._takes_part[last], self._aside_us[last]
        del self._ids[last], self._state[last], self._takes_part[last], self._aside_us[last]
        self._found, self._last_splits, self._rank = False, None, None
        return True

    def advance(self, now_us: int | None = None) -> int | None:
        """Publish the minimum if it rose; None if not. O(1), or O(n) after a report in bulk or a report of the holder.

        Args:
            now_us: processing time for ``AllIdle.ADVANCE``, which holds if it is None.
        """
        after_us = self._minimum_us(now_us)
        if after_us is None or (self.low_us is not None and after_us <= self.low_us):
            return None
        self.low_us = after_us  # the only place where the low watermark changes
        return after_us

    # -- how

    def _minimum_us(self, now_us: int | None) -> int | None:
        """The minimum by its definition: a function of states and values, and of the time with ``ADVANCE``."""
        if len(self._silent()) > self._passable():
            return None
        if self._lowest() is not None:
            return self._lowest_us
        if not self.all_idle or self._policy is not AllIdle.ADVANCE:
            return self._aside_low_us
        assert self._delay_us is not None
        return None if now_us is None else (now_us - self._delay_us) // MILLISECOND_US * MILLISECOND_US

    def _lowest(self) -> int | None:
        """The row of the smallest watermark that counts; the row of the smallest id, if several are equal."""
        if not self._found:
            self._lowest_row, self._found = self._look(), True
        return self._lowest_row

    def _look(self) -> int | None:
        """Find ``_lowest_us`` and return its row."""
        if self._taking_part == 0 and not self._counts_idle():
            self._aside_low_us = self._aside_low()
            return None
        counted_us = self._counted_us()
        passed = self._passable() - len(self._silent())
        if passed > 0:
            self._lowest_us = np.partition(counted_us, passed).item(passed)
        else:
            row = int(counted_us.argmin())
            self._lowest_us, rest_us = counted_us.item(row), counted_us[row + 1 :]
            if self._lowest_us < _IDENTITY and (not rest_us.size or rest_us.item(rest_us.argmin()) > self._lowest_us):
                return row  # nearly always: no other split has that watermark
        return self._smallest_id(np.flatnonzero(counted_us == self._lowest_us))

    def _aside_low(self) -> int | None:
        """The low watermark without a split that takes part; None if splits hold, or with ``ADVANCE``."""
        if self.all_idle:
            aside = (own_us for _, own_us in self._idle_rows() if own_us is not None)
            choose = {AllIdle.HOLD: min, AllIdle.MAX: max}.get(self._policy)
            return None if choose is None else choose(aside, default=None)
        if not self._ended or self.states[SplitState.FINISHED] < len(self._ids):
            return None
        # Splits that finish one after the other, the furthest behind first, leave the largest watermark.
        return max(self._aside_us, key=none_first, default=None)

    def _smallest_id(self, rows: npt.NDArray[np.intp]) -> int | None:
        if self._lowest_us == _IDENTITY:
            rows = np.array([row for row in rows.tolist() if self._counts(row)], np.intp)
        if len(rows) <= _FEW:
            return min(rows.tolist(), key=lambda row: split_order(self._ids[row]), default=None)
        if self._rank is None:
            in_order = np.array([self._row_of[split] for split in sorted(self._ids, key=split_order)])
            self._rank = np.empty(len(in_order), np.intp)
            self._rank[in_order] = np.arange(len(in_order))
        return int(rows[self._rank[rows].argmin()])

    # -- splits that count: those that take part; below the quorum also idle splits

    def _counts_idle(self) -> bool:
        if self._quorum is None:
            return False
        live = len(self._ids) - self.states[SplitState.FINISHED]
        return self.states[SplitState.IDLE] > 0 and self._taking_part < self._quorum * live

    def _counts(self, row: int) -> bool:
        idle = self._state[row] is SplitState.IDLE and self._aside_us[row] is not None
        return bool(self._takes_part[row]) or (idle and self._counts_idle())

    def _counted_us(self) -> npt.NDArray[np.int64]:
        """Watermarks by row; the identity for splits that do not count."""
        counted_us = self._watermarks_us[: len(self._ids)]
        if self._counts_idle():
            counted_us = counted_us.copy()
            for row, own_us in self._idle_rows():
                counted_us[row] = _IDENTITY if own_us is None else own_us
        return counted_us

    def _silent(self) -> set[SplitId]:
        if not self._counts_idle():
            return self._holding
        return self._holding | {self._ids[row] for row, own_us in self._idle_rows() if own_us is None}

    def _passable(self) -> int:
        """How many of the splits that count, silent splits included, a percentile passes."""
        if self._passed_share is None:
            return 0
        idle = self.states[SplitState.IDLE] if self._counts_idle() else 0
        return math.floor((self._taking_part + len(self._holding) + idle) * self._passed_share)

    def _idle_rows(self) -> Iterator[tuple[int, int | None]]:
        return ((row, self._aside_us[row]) for row, state in enumerate(self._state) if state is SplitState.IDLE)

    # -- rows

    def _rows(self, splits: npt.NDArray[np.uint64]) -> Rows:
        """The rows of these splits, in this order. Raises KeyError."""
        same = splits.tobytes()
        if same != self._last_splits:
            rows = np.fromiter(map(self._row_of.__getitem__, splits.tolist()), np.intp, len(splits))
            first, last = rows.item(0), rows.item(-1)
            adjacent = last - first == len(rows) - 1 and bool((np.diff(rows) == 1).all())
            self._last_splits, self._last_rows = same, slice(first, last + 1) if adjacent else rows
        return self._last_rows

    def _own_us(self, row: int) -> int | None:
        return self._watermarks_us.item(row) if self._takes_part[row] else self._aside_us[row]

    def _bring_in(self, row: int, watermark_us: int) -> None:
        """Let a split that reports take part again, with its earlier watermark, or else with the given one."""
        after = next_state(self._state[row], Signal.REPORT, spoken=True)
        if after is None:
            raise ValueError(f"split {self._ids[row]!r} reported after it finished")
        if self._aside_us[row] is None:
            self._aside_us[row] = watermark_us
        self._enter(row, after)

    def _enter(self, row: int, state: SplitState) -> None:
        """Set the state, and change the columns as the state says."""
        own_us = self._own_us(row)
        self.states[self._state[row]] -= 1
        self.states[state] += 1
        self._state[row] = state
        takes_part = state in TAKES_PART and own_us is not None
        self._taking_part += takes_part - self._takes_part[row]
        self._takes_part[row] = takes_part
        self._aside_us[row] = None if takes_part else own_us
        self._watermarks_us[row] = own_us if takes_part and own_us is not None else _IDENTITY
        if takes_part or state in LEFT_OUT:
            self._holding.discard(self._ids[row])
        else:
            self._holding.add(self._ids[row])
        self._found = False
