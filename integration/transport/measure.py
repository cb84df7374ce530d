"""What a transport says of the rows of one batch, whichever way it came.

observed.py      Spark's own aggregates measure the rows of the user, and the result is in the progress event
mapped.py        where they cannot, and for timestamp assigners: Arrow batches are reduced, into an accumulator
accumulated.py   a generator in Python sees every row on the executors, and leaves what it saw in an accumulator
recorder.py      a source of ours is measured where it is read, and leaves it in an accumulator, too
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from lowmark.watermark import SplitId
from lowmark.watermark.splits.events import BatchCounts

__all__ = ["Measure", "Measured", "added_up"]


@dataclass(frozen=True, slots=True)
class Measured:
    """The rows of one batch. Everything is by split id; a split without rows is missing.

    Attributes:
        watermarks_us: watermark of each split, bound already taken off.
        first_us: smallest event time of each split; may be empty.
        rows: rows of each split; None where this transport does not count them by split.
        counts: totals of the batch.
        names: id -> name of the splits whose names showed.
        latest_us: largest event time of each split; empty unless a source of ours was read.
        events: what readers sent to their enumerator, by task: (subtask, serializer's version, event).
        newest_us: largest event time, rows beyond the future guard included; None: there was none.
        future_rows: rows of each split beyond the future guard; may be empty.
        lateness: rows of each split by bucket of how late they are; empty where rows are not seen, or not asked for.
        counted: what the readers of a source of ours counted, by name, such as losses that they passed.
        times: rows of each split by event time, rounded down; empty where `lateness` is.
    """

    watermarks_us: Mapping[SplitId, int] = field(default_factory=dict)
    first_us: Mapping[SplitId, int] = field(default_factory=dict)
    rows: Mapping[SplitId, int] | None = field(default_factory=dict)
    counts: BatchCounts = field(default_factory=BatchCounts)
    names: Mapping[int, str] = field(default_factory=dict)
    latest_us: Mapping[SplitId, int] = field(default_factory=dict)
    events: tuple[tuple[int, int, bytes], ...] = ()
    lateness: Mapping[SplitId, Mapping[int, int]] = field(default_factory=dict)
    counted: Mapping[str, float] = field(default_factory=dict)
    newest_us: int | None = None
    future_rows: Mapping[SplitId, int] = field(default_factory=dict)
    times: Mapping[SplitId, Mapping[int, int]] = field(default_factory=dict)


def added_up(counted: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Add up counts by name.

    >>> added_up([{"data_losses": 1, "lost_offsets": 0}, {"data_losses": 2}])
    {'data_losses': 3, 'lost_offsets': 0}
    """
    sums: dict[str, float] = {}
    for each in counted:
        for name, count in each.items():
            sums[name] = sums.get(name, 0) + count
    return sums


class Measure(Protocol):
    """The driver's end of one transport, for one stream."""

    def report(self, query_id: str, batch_id: int, metrics: Mapping[str, Any]) -> Measured | None:
        """Return what was measured of a batch that is over; None if nothing was.

        Args:
            query_id: the query, as Spark calls it.
            batch_id: the batch. An older one is not asked for any more.
            metrics: what the batch's progress event holds of observed metrics, by name.

        Raises:
            TooManySplits: the batch held more splits than can be told apart.
            UnreadableReport: what arrived is no measurement.
        """
        ...
