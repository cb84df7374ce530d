"""Events and effects of `SplitWatermarks`, as frozen data.

Event times and watermarks are microseconds since the epoch, UTC. ``*_at_us`` and ``until_us`` are moments on
the clock that ``handle`` is given: microseconds since the epoch that never step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from lowmark.watermark.protocol import NotifyNewLowWatermark
from lowmark.watermark.state import SplitId, SplitState
from lowmark.watermark.strategy import WatermarkStrategy


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """Counts of the rows of one batch, or of all batches. Every row counts in ``rows``.

    Attributes:
        rows: rows measured.
        future_rows: rows further ahead of the clock than the future guard; they did not move the watermark.
        null_time_rows: rows without an event time.
        null_split_rows: rows without a split.
        before_epoch_rows: rows from before 1970, always late in Spark.
        dropped_rows: rows Spark reported as dropped by the watermark (counted after partial aggregation).

    >>> total = BatchCounts(rows=2) + BatchCounts(rows=3, future_rows=1)
    >>> total.rows, total.future_rows
    (5, 1)
    """

    rows: int = 0
    future_rows: int = 0
    null_time_rows: int = 0
    null_split_rows: int = 0
    before_epoch_rows: int = 0
    dropped_rows: int = 0

    def __add__(self, other: BatchCounts) -> BatchCounts:
        return BatchCounts(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


# -- events


class SplitColumn(Mapping[SplitId, int]):
    """A mapping from many splits to one number each, kept as two arrays.

    While batch after batch has the same splits in the same order, `SplitWatermarks` reads the arrays and
    spends no Python on a single split; the mapping is built only for a look-up of a split.

    Args:
        splits: ids, shape (n,), uint64, each once.
        values_of: their values, shape (n,), int64. The caller must not change the arrays afterwards.

    >>> import numpy as np
    >>> column = SplitColumn(np.array([8, 7], np.uint64), np.array([20, 10]))
    >>> column[7], len(column), column == {7: 10, 8: 20}
    (10, 2, True)
    """

    __slots__ = ("_by_split", "splits", "values_of")

    def __init__(self, splits: npt.NDArray[np.uint64], values_of: npt.NDArray[np.int64]) -> None:
        self.splits, self.values_of = splits, values_of
        self._by_split: dict[SplitId, int] | None = None

    def __getitem__(self, split: SplitId) -> int:
        return self._mapping[split]

    def __iter__(self) -> Iterator[SplitId]:
        return iter(self._mapping)

    def __len__(self) -> int:
        return len(self._mapping)

    def __bool__(self) -> bool:
        return len(self.splits) > 0

    @property
    def _mapping(self) -> dict[SplitId, int]:
        if self._by_split is None:
            self._by_split = dict(zip(self.splits.tolist(), self.values_of.tolist(), strict=True))
        return self._by_split


@dataclass(frozen=True, slots=True)
class SplitsDiscovered:
    """Splits exist. New splits hold the low watermark until their first report; known splits do not change.

    The splits known to be empty have no row to read now; they hold for the grace at most.
    """

    splits: tuple[SplitId, ...]
    known_empty: frozenset[SplitId] = frozenset()


@dataclass(frozen=True, slots=True)
class BatchReported:
    """The measurements of one micro-batch. May come twice, late, or after later batches.

    Mappings by split may be a ``SplitColumn`` each, which is cheaper for many splits, or empty for what was not
    measured.

    Attributes:
        planned_at_us: when the batch was planned, that is, up to when the sources had been asked.
        watermarks_us: watermark of each split that delivered rows, bound already taken off; a missing split
            keeps its value. An unknown split is thereby discovered.
        first_us: smallest event time of each split.
        backlog_rows: rows each split still has unread after this batch.
        in_force_us: the watermark Spark used in this batch; None if unknown.
        judged_by_us: the watermark by which Spark judged the rows, if Spark has a watermark of its own for the stream;
            None: it is estimated from the rows.
        lateness: rows of each split by bucket of lateness (``lateness.py``).
        newest_us: largest event time of the batch, rows beyond the future guard included; None: not measured.
        future_rows: rows of each split beyond the future guard. These rows move no watermark. A known split with such
            rows is not silent; an unknown split stays unknown.
        times: rows of each split by event time, rounded down; empty: only the smallest and the largest are known.
        latest_us: largest event time of each split, where its watermark may be a claim; a missing split's watermark
            tells it.
    """

    batch_id: int
    planned_at_us: int
    watermarks_us: Mapping[SplitId, int]
    first_us: Mapping[SplitId, int] = field(default_factory=dict)
    rows: Mapping[SplitId, int] = field(default_factory=dict)
    backlog_rows: Mapping[SplitId, int] = field(default_factory=dict)
    in_force_us: int | None = None
    counts: BatchCounts = BatchCounts()
    judged_by_us: int | None = None
    lateness: Mapping[SplitId, Mapping[int, int]] = field(default_factory=dict)
    newest_us: int | None = None
    future_rows: Mapping[SplitId, int] = field(default_factory=dict)
    times: Mapping[SplitId, Mapping[int, int]] = field(default_factory=dict)
    latest_us: Mapping[SplitId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BatchPlanned:
    """A micro-batch that is planned but not read, from a source that plans how far to read each split. May come twice.

    The claims hold for every row after the batch, so they may be published with the batch: Spark puts a watermark
    in force one batch later. The measurements of the batch come afterwards, as ``BatchReported``.

    Attributes:
        planned_at_us: when the batch was planned, as in ``BatchReported``.
        watermarks_us: a watermark for each split whose next row is known to be later, bound already taken off.
            An unknown split is thereby discovered. A claim that lies beyond the future guard at ``planned_at_us``
            moves no watermark; the times of the rows do, once the rows are read. A claim that does not raise the
            watermark of a known split is no sign of the split.
        backlog_rows: rows each split will have unread after this batch; missing means not known.
    """

    planned_at_us: int
    watermarks_us: Mapping[SplitId, int]
    backlog_rows: Mapping[SplitId, int] = field(default_factory=dict)
    rows: ClassVar[Mapping[SplitId, int]] = {}  # no row was seen yet
    first_us: ClassVar[Mapping[SplitId, int]] = {}
    future_rows: ClassVar[Mapping[SplitId, int]] = {}


@dataclass(frozen=True, slots=True)
class Polled:
    """The sources were asked up to ``until_us`` and had nothing new."""

    until_us: int


@dataclass(frozen=True, slots=True)
class SplitsFinished:
    """Every row of these splits was processed, and no row will follow. Unknown splits are remembered as finished.

    A finished split is remembered in some 200 bytes while its id may come again: in a late report, in a source's list
    of splits, or as the parent of a reshard. If the split were discovered again, it would hold the stream for ever.
    A source that will not use the id again sends ``SplitsRemoved``; splits are not forgotten in any other way.
    """

    splits: tuple[SplitId, ...]


@dataclass(frozen=True, slots=True)
class SplitsResharded:
    """The rows of splits go on in others: splits were divided or merged.

    The event discovers the children. Until its first report a child has the minimum of the watermarks of its parents:
    the low watermark may rise up to that minimum. With idleness the silence of a child counts once every parent is
    finished or idle: a parent that is left out for its silence does not keep its children in. A silent child that
    was left out before a parent was told takes part again. Parents stay as they are, for their unread rows, until
    ``SplitsFinished``; an unknown parent may be discovered later. The events of a reshard may come in any order and
    any number of times.

    Attributes:
        parents: by child. One event may tell many reshards: it costs O(n) for n silent children.
        known_empty: the children without a row to read now; once their parents are finished, these children hold for
            the grace at most.
    """

    parents: Mapping[SplitId, tuple[SplitId, ...]]
    known_empty: frozenset[SplitId] = frozenset()


@dataclass(frozen=True, slots=True)
class SplitsPaused:
    """These splits are not read, because alignment holds them back, or because their source gives no answer.

    Unknown and finished splits are ignored, because a split may end meanwhile.
    """

    splits: tuple[SplitId, ...]


@dataclass(frozen=True, slots=True)
class SplitsResumed:
    """These splits are read again. Unknown and finished splits are ignored."""

    splits: tuple[SplitId, ...]


@dataclass(frozen=True, slots=True)
class SplitsRemoved:
    """Forget these splits, usually finished, because their ids will not come again. Unknown splits are ignored.

    Silent children keep the watermark that they inherited from them. At the end of the input only the splits that were
    not removed count, so that a restart changes nothing. If an id comes again all the same, it is a new
    split: PENDING, and reported as returned late if it comes in below the low watermark.
    """

    splits: tuple[SplitId, ...]


@dataclass(frozen=True, slots=True)
class SplitsMarkedIdle:
    """A person leaves these splits out of the minimum. Unknown and finished splits are ignored.

    A marked split is IDLE. Rows that wait in it do not bring it back; rows that are read bring it back only if
    ``until_us`` is None. A later mark of a split takes the place of an earlier one.

    Attributes:
        by: the name of the person.
        until_us: when the mark ends by itself, by the wall clock; a moment that is over marks no split. None: with the
            first row of the split in a batch that is planned afterwards.
    """

    splits: tuple[SplitId, ...]
    by: str
    until_us: int | None = None


@dataclass(frozen=True, slots=True)
class SplitsMarkedActive:
    """A person takes the marks of these splits back: they take part again. Splits without a mark are ignored."""

    splits: tuple[SplitId, ...]
    by: str


@dataclass(frozen=True, slots=True)
class StrategySet:
    """A person sets delay and idleness of a running stream: reports and silence count by this strategy from now on.

    The low watermark and the watermarks of splits do not go back for a larger delay. With another idleness all timers
    of silence begin anew, as after a restart, and a split that is idle stays idle until it speaks.
    """

    strategy: WatermarkStrategy  # differs from the present strategy in delay and idleness only


@dataclass(frozen=True, slots=True)
class ReportLost:
    """A batch is over and will never be reported, because its query was killed right after the batch.

    Splits whose first rows were in the batch are unknown, so the low watermark holds until these splits had time to
    report: until the sources were read up to a grace (``with_grace``, else one minute) after this event.
    """

    batch_id: int


@dataclass(frozen=True, slots=True)
class InputEnded:
    """No split will be added in this run: the source is read to its end, or the query ends by itself.

    Once all splits are finished, the low watermark is the largest of theirs. Without this event the low watermark stays
    then, because the next file may be older than the newest one so far.
    """


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed and nothing was read: only decisions that depend on time alone are made."""


Event = (
    SplitsDiscovered
    | SplitsResharded
    | BatchReported
    | BatchPlanned
    | Polled
    | SplitsFinished
    | SplitsPaused
    | SplitsResumed
    | SplitsRemoved
    | SplitsMarkedIdle
    | SplitsMarkedActive
    | StrategySet
    | ReportLost
    | InputEnded
    | Tick
)


# -- effects


@dataclass(frozen=True, slots=True)
class SplitStateChanged:
    """A split changed its state; ``why`` completes the sentence "split x is now <after>: <why>"."""

    split: SplitId
    before: SplitState
    after: SplitState
    why: str


@dataclass(frozen=True, slots=True)
class SplitReturnedLate:
    """A new split, or a split that was left out, came in below the low watermark; Spark may drop rows of the split."""

    split: SplitId
    behind_us: int  # how far its watermark or its earliest row is below the low watermark, more than 0
    rows: int | None  # of the split in that batch; None: not known


Effect = NotifyNewLowWatermark | SplitStateChanged | SplitReturnedLate
