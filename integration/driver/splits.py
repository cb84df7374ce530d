"""The splits of a stream in one run; subclasses know the splits that a source names before their rows come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lowmark.integration.spark.progress import Progress, SourceProgress
from lowmark.integration.transport.measure import Measured
from lowmark.watermark import SplitId
from lowmark.watermark.splits.events import BatchCounts, BatchReported, Event
from lowmark.watermark.splits.stream import SplitWatermarks

from .known_planner import KnownPlanner
from .stream import Stream


@dataclass
class Splits:
    """The splits of a stream in one run, if the source names no split: the first row of a split discovers it.

    Methods that yield events read the watermarks after each event, so handle each event before taking the next.
    """

    stream: Stream
    watermarks: SplitWatermarks  # only read here
    has_backlog: bool = field(default=False, init=False)  # whether the source is known to have unread rows
    ends: bool = field(default=False, init=False)  # whether the query ends once nothing is new
    # The next three are of a source of ours.
    planner: KnownPlanner | None = field(default=None, init=False)  # since a batch showed planner and heartbeat
    observed_us: dict[str, int] = field(default_factory=dict, init=False)  # the largest event time of each split
    source_metrics: Mapping[str, float] = field(default_factory=dict, init=False)  # of enumerator, planner and readers

    def discover(self, sources: Sequence[SourceProgress]) -> Iterator[Event]:  # noqa: ARG002
        """Yield the events that a batch tells of its splits before its rows count."""
        yield from ()

    def report(
        self, measured: Measured, progress: Progress, sources: Sequence[SourceProgress], *, planned_at_us: int
    ) -> BatchReported:
        """Return the event of a batch: what was measured of its rows, and what is known of its splits."""
        return BatchReported(
            batch_id=progress.batch_id,
            planned_at_us=planned_at_us,
            watermarks_us=self._settle(measured),
            first_us=measured.first_us,
            rows=self._rows(sources) if measured.rows is None else measured.rows,
            backlog_rows=self._backlog_rows(sources),
            in_force_us=progress.watermark_us,
            counts=BatchCounts(dropped_rows=progress.dropped_rows) + measured.counts,
            lateness=measured.lateness,
            newest_us=measured.newest_us,
            future_rows=measured.future_rows,
            times=measured.times,
            latest_us=measured.latest_us,
        )

    @property
    def complete(self) -> bool:
        """Whether the source has said that it will have no further splits."""
        return False

    @property
    def next_wanted_us(self) -> int | None:
        """The watermark of the next row, or less, if only alignment keeps the row from being read; else None."""
        return None

    @property
    def unreported_plan(self) -> int | None:
        """The checkpoint of the newest plan with claims whose batch was not reported yet; None: no such plan."""
        return None

    def conclude(self, sources: Sequence[SourceProgress]) -> Iterator[Event]:  # noqa: ARG002
        """Yield the events that follow once the rows of a batch have counted."""
        yield from ()

    def pass_on(self, measured: Measured) -> None:
        """Pass the events and counts of a taken report on to the planner and to the metrics."""

    def go_on_from(self, before: Splits) -> None:
        """Keep what the splits before knew, except the watermarks, which begin again."""
        self.planner, self.ends = before.planner, before.ends

    def _backlog_rows(self, sources: Sequence[SourceProgress]) -> Mapping[SplitId, int]:  # noqa: ARG002
        """Unread rows of each split; splits with an unknown number are missing."""
        return {}

    def _rows(self, sources: Sequence[SourceProgress]) -> Mapping[SplitId, int]:  # noqa: ARG002
        """Rows of each split in the batch if the transport did not count them, else empty."""
        return {}

    def _settle(self, measured: Measured) -> Mapping[SplitId, int]:
        """The watermark of each split that was read."""
        return measured.watermarks_us
