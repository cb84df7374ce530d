"""The measurements of one batch's rows, the same for every transport.

observed.py      Spark's own aggregates measure the user's rows, and the result is in the progress event
mapped.py        without such aggregates, and for strategies with code in Python: Python reduces Arrow batches
recorder.py      rows of a source of ours are measured by their reader
accumulated.py   brings the results of the last two to the driver
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lowmark.watermark import SplitId, WatermarkStrategy
from lowmark.watermark.splits.events import BatchCounts
from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Measured:
    """The rows of one batch. Every mapping but `counted` is by split id and leaves out splits without rows."""

    watermarks_us: Mapping[SplitId, int] = field(default_factory=dict)  # with the bound subtracted
    first_us: Mapping[SplitId, int] = field(default_factory=dict)  # smallest event time; may be empty
    rows: Mapping[SplitId, int] | None = field(default_factory=dict)  # None: the transport does not count by split
    counts: BatchCounts = field(default_factory=BatchCounts)  # over all splits
    names: Mapping[int, str] = field(default_factory=dict)  # of splits that the rows showed
    latest_us: Mapping[SplitId, int] = field(default_factory=dict)  # event time; empty unless a source of ours was read
    events: tuple[tuple[int, int, bytes], ...] = ()  # of readers, by task: (subtask, serializer's version, event)
    # Rows by bucket of lateness; empty if the transport sees no rows, or if not requested.
    lateness: Mapping[SplitId, Mapping[int, int]] = field(default_factory=dict)
    counted: Mapping[str, float] = field(default_factory=dict)  # by readers of a source of ours, such as losses
    newest_us: int | None = None  # largest event time, including rows beyond the future guard; None without one
    future_rows: Mapping[SplitId, int] = field(default_factory=dict)  # beyond the future guard; may be empty
    times: Mapping[SplitId, Mapping[int, int]] = field(default_factory=dict)  # rows by rounded time, with `lateness`
    late_rows: Mapping[SplitId, int] | None = None  # that Spark judges late, see `late.py`; None: not counted


class Measure(ABC):
    """The driver's end of one transport, for one stream and all of its queries."""

    def observe(self, df: DataFrame) -> DataFrame:
        """Return the stream's rows with the aggregates that Spark shall evaluate over them, if any."""
        return df

    @abstractmethod
    def report(
        self, query_id: str, batch_id: int, metrics: Mapping[str, Any], strategy: WatermarkStrategy
    ) -> Measured | None:
        """Return the measurements of a finished batch; None without any.

        Args:
            batch_id: the batch; older batches are no longer asked for.
            metrics: the observed metrics in the batch's progress event, by name.
            strategy: the strategy of the query, which may not be the code's since a person set delay or idleness.

        Raises:
            TooManySplits: the batch held more splits than the transport tells apart.
            UnreadableReport: the content is no measurement.
        """

    def forget(self, query_id: str, batch_id: int) -> None:  # noqa: B027  # by default nothing is kept
        """Drop what was measured of a query up to a batch; the query has ended and may run again."""

    def close(self) -> None:  # noqa: B027  # the same
        """Drop all measurements, also of queries that still run."""
