"""What goes into the coordinator and what comes out: all of it frozen data.

Event times and watermarks are microseconds since the epoch, UTC. ``*_at_us`` and ``until_us`` are moments on
the clock that ``handle`` is given: microseconds since the epoch that never step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt
from lowmark.watermark.protocol import NotifyNewLowWatermark
from lowmark.watermark.state import SplitId, SplitState


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """Rows of a batch, or of all batches, by what happened to them. Every row is in ``rows``.

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
    """One number of each of many splits, as two arrays: a mapping where one is asked for.

    The coordinator reads the arrays themselves when batch after batch has the same splits in the same order, and
    then spends no Python on a single split; the mapping is built only if somebody looks a split up.

    Args:
        splits: ids, shape (n,), uint64, each once.
        values_of: their values, shape (n,), int64. Neither array may be changed afterwards.

    Raises:
        ValueError: an array has another type, or the two differ in shape.

    >>> import numpy as np
    >>> column = SplitColumn(np.array([8, 7], np.uint64), np.array([20, 10]))
    >>> column[7], len(column), column == {7: 10, 8: 20}
    (10, 2, True)
    """

    __slots__ = ("_by_split", "splits", "values_of")

    def __init__(self, splits: npt.NDArray[np.uint64], values_of: npt.NDArray[np.int64]) -> None:
        if splits.dtype != np.uint64 or values_of.dtype != np.int64 or splits.ndim != 1:
            raise ValueError(
                f"column of splits: expected uint64 ids and int64 values in one dimension, got {splits.dtype} and "
                f"{values_of.dtype} of shape {splits.shape}"
            )
        if splits.shape != values_of.shape:
            raise ValueError(f"column of splits: expected one value each, got {splits.shape} and {values_of.shape}")
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
    """Splits exist. New ones hold the low watermark until they speak; known ones are not touched.

    Attributes:
        splits: their ids.
        known_empty: those of them that have no row to read now; they hold for the grace at most.
    """

    splits: tuple[SplitId, ...]
    known_empty: frozenset[SplitId] = frozenset()


@dataclass(frozen=True, slots=True)
class BatchReported:
    """One micro-batch, as it was measured. May come twice, late, or after later ones.

    Attributes:
        batch_id: Spark's batch id.
        planned_at_us: when the batch was planned, that is, up to when the sources had been asked.
        watermarks_us: watermark of each split that delivered rows, bound already taken off; a split that is
            missing keeps the value it had. Unknown splits are discovered by being here.
        first_us: smallest event time of each split in this batch; may be empty.
        rows: rows of each split in this batch; may be empty.
        backlog_rows: rows each split still has unread after this batch; missing means not known.
        in_force_us: the watermark Spark used in this batch; None if unknown.
        counts: totals of the batch.
        judged_by_us: the one watermark of the stream that Spark judged the rows by, where it has its own; None: what it
            would be is worked out from the rows.
        newest_us: largest event time of the batch, rows beyond the future guard included; None: not measured.
        future_rows: rows of each split beyond the future guard; may be empty. They move nothing.
        lateness: rows of each split by bucket of how late they are (``lateness.py``), where rows are seen; may be
            empty.
        times: rows of each split by event time, rounded down; may be empty: nothing is known between the smallest and
            the largest.

    Mappings by split may be a ``SplitColumn`` each, which is cheaper for many splits.
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


@dataclass(frozen=True, slots=True)
class BatchPlanned:
    """A micro-batch that is not read yet, of a source that knows how far it will take each split. May come twice.

    What it claims holds for every row after the batch, so it may be published with the batch: Spark puts a watermark
    in force one batch later. What was in the batch comes afterwards, as ``BatchReported``.

    Attributes:
        planned_at_us: when the batch was planned, that is, up to when the sources had been asked.
        watermarks_us: watermark of each split whose next row is known to be beyond it, bound already taken off.
            Unknown splits are discovered by being here. A claim beyond the future guard, from ``planned_at_us`` on,
            moves nothing: the time of the rows themselves does, once they are read.
        backlog_rows: rows each split will have unread after this batch; missing means not known.
    """

    planned_at_us: int
    watermarks_us: Mapping[SplitId, int]
    backlog_rows: Mapping[SplitId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Polled:
    """The sources were asked until ``until_us`` and had nothing new."""

    until_us: int


@dataclass(frozen=True, slots=True)
class SplitsFinished:
    """Every row of these splits was processed, and none will come. Unknown ones are remembered as finished.

    A finished split is remembered, some 200 bytes of it, as long as its id may be seen again: in a report that
    comes late, in a source's list of splits, as the parent of a reshard. Discovering it again would let it hold
    the stream for ever. A source that knows that the id is over says so with ``SplitsRemoved``; nothing is forgotten
    otherwise, and nothing by its age.
    """

    splits: tuple[SplitId, ...]


@dataclass(frozen=True, slots=True)
class SplitsResharded:
    """The rows of ``parents`` go on in ``children``: a split was split up, or some were merged.

    Children are discovered by being here. Until a child speaks it stands at the minimum of what its parents stand
    at: the low watermark may rise to that and not beyond. With idleness its silence counts once every parent is
    finished or idle: a parent that is left out for its silence does not keep its children in. Parents go on as they
    are, for the rows they still have, until ``SplitsFinished``; one that is not known yet may be discovered later. The
    events of a reshard may come in any order and any number of times.

    Attributes:
        parents: the splits that end.
        children: the splits that carry on.
        known_empty: those children that have no row to read now; once their parents are done, they hold for the
            grace at most.
    """

    parents: tuple[SplitId, ...]
    children: tuple[SplitId, ...]
    known_empty: frozenset[SplitId] = frozenset()


@dataclass(frozen=True, slots=True)
class SplitsPaused:
    """Alignment holds these splits back. Unknown and finished ones are ignored: requests race with ends."""

    splits: tuple[SplitId, ...]


@dataclass(frozen=True, slots=True)
class SplitsResumed:
    """Alignment lets these splits go on. Unknown and finished ones are ignored."""

    splits: tuple[SplitId, ...]


@dataclass(frozen=True, slots=True)
class SplitsRemoved:
    """Forget these splits, whose ids will not be seen again: finished ones as a rule. Unknown: ignored.

    What silent children inherit from them stays. An id that is seen again all the same is a new split: PENDING,
    and below the low watermark it is reported as returned late.
    """

    splits: tuple[SplitId, ...]


@dataclass(frozen=True, slots=True)
class ReportLost:
    """A batch is over, and what was in it will never be reported: its query was killed right after it.

    Splits whose first rows were in it are not known, so the low watermark holds until they had time to speak again:
    until the sources were read up to a grace (``with_grace``, else one minute) after this.
    """

    batch_id: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed and nothing was read: only what depends on time alone is looked at."""


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
    | ReportLost
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
    """A split that was left out, or is new, came in below the low watermark; Spark may drop rows of it.

    Attributes:
        split: its id.
        behind_us: how far its watermark is below the low watermark, event time, more than 0.
        rows: rows it delivered in that batch, or None if not known.
    """

    split: SplitId
    behind_us: int
    rows: int | None


Effect = NotifyNewLowWatermark | SplitStateChanged | SplitReturnedLate
