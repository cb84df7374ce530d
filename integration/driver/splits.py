"""The splits that are known before their rows come: none, or those that the source names (see the subclasses)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lowmark.integration.spark.progress import Progress, SourceProgress
from lowmark.integration.transport.measure import Measured
from lowmark.watermark import SplitId
from lowmark.watermark.splits.events import BatchCounts, BatchReported, Event
from lowmark.watermark.splits.stream import StreamCoordinator

from .known_planner import KnownPlanner
from .stream import Stream

__all__ = ["Splits"]


@dataclass
class Splits:
    """The splits of a stream in one run, where a split is found by its first row: its source says nothing of them.

    What yields events looks at the stream as it is after each of them, so each is handled before the next is taken.

    Attributes:
        stream: whose splits.
        coordinator: of the run; it is read here, and never told anything.
        planner: of a source of ours, what is known of it; None until a batch showed it and the heartbeat together.
        has_backlog: the source is known to have rows that are not read yet.
        observed_us: largest event time seen of each split, by name; only of a source of ours.
        next_us: event time of the next row, where alignment alone keeps it from being read.
        source_metrics: what the enumerator, the planner and the readers of a source of ours count.
    """

    stream: Stream
    coordinator: StreamCoordinator
    planner: KnownPlanner | None = field(default=None, init=False)
    has_backlog: bool = field(default=False, init=False)
    observed_us: dict[str, int] = field(default_factory=dict, init=False)
    next_us: int | None = field(default=None, init=False)
    source_metrics: Mapping[str, float] = field(default_factory=dict, init=False)

    def discover(self, sources: Sequence[SourceProgress]) -> Iterator[Event]:  # noqa: ARG002
        """What a batch says of its splits before its rows count.

        Args:
            sources: the stream's own, in the batch's progress event.
        """
        yield from ()

    def report(
        self, measured: Measured, progress: Progress, sources: Sequence[SourceProgress], *, planned_at_us: int
    ) -> BatchReported:
        """Return the report of a batch: what was measured of its rows, and what is known of the splits besides.

        Args:
            measured: what the transport says.
            progress: the batch's progress event.
            sources: the stream's own in it.
            planned_at_us: when the batch was planned, on the service's clock.
        """
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
        )

    @property
    def complete(self) -> bool:
        """Whether the source has said that no other splits will come."""
        return False

    @property
    def unreported_plan(self) -> int | None:
        """The newest plan that claims something, by its checkpoint, if its batch was not reported yet; else None."""
        return None

    def conclude(self, sources: Sequence[SourceProgress]) -> Iterator[Event]:  # noqa: ARG002
        """What follows for the splits once the rows of a batch have counted; arguments as in `discover`."""
        yield from ()

    def pass_on(self, measured: Measured) -> None:
        """What a report that was taken has for others than the coordinator."""

    def go_on_from(self, before: Splits) -> None:
        """Keep what is known besides the coordinator's state, which is begun again."""
        self.planner = before.planner

    def _backlog_rows(self, sources: Sequence[SourceProgress]) -> Mapping[SplitId, int]:  # noqa: ARG002
        """Rows that each split still has unread; a split of which that is not known is missing."""
        return {}

    def _rows(self, sources: Sequence[SourceProgress]) -> Mapping[SplitId, int]:  # noqa: ARG002
        """Rows that the batch took of each split, where the transport did not count them; may be empty."""
        return {}

    def _settle(self, measured: Measured) -> Mapping[SplitId, int]:
        """Return the watermark of each split that was read, after all that is known of it."""
        return measured.watermarks_us
