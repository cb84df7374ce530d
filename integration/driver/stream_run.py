"""One wrapped stream in one running query: the coordinator, fed from Spark's progress events.

A run begins when a heartbeat reader attaches, and ends with its query. The first progress event that shows the reader's
token ties it to the query. A batch says three things: which splits its source has (`splits.py`), what was measured of
its rows (`measure.py` of the transport), and which splits end with it. Runs belong to the loop of the service; nothing
here is thread-safe.

A report, a plan or a poll is taken as a whole or not at all. After an error in the middle the run begins again, as a
restart does: from the state that its reader was told last, and from what it took since. Then it takes the same thing
once more. A second error ends the query.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Literal

from lowmark.integration.errors import TooManySplits, UnreadableReport
from lowmark.integration.run_status import ReportGaps
from lowmark.integration.spark.progress import Progress, SourceProgress
from lowmark.integration.transport.heartbeat import HeartbeatOffset
from lowmark.integration.transport.measure import Measure, Measured
from lowmark.sources.planning.peer import Planned
from lowmark.watermark import NotifyNewLowWatermark, StreamStatus, format_duration_us
from lowmark.watermark.splits.events import Effect, Event, ReportLost, SplitsDiscovered
from lowmark.watermark.splits.status import utc
from lowmark.watermark.splits.stream import StreamCoordinator

from .kafka_partitions import KafkaPartitions
from .planned_splits import PlannedSplits
from .run_log import HolderLog, RowsLog, had_rows, log_effect
from .splits import Splits
from .stream import Stream

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["StreamRun"]

log = logging.getLogger("lowmark")

_SINCE_KEPT = 16
"""So many reports and plans are kept to begin again with; then the state after them is."""


@dataclass
class StreamRun:
    """The life of one heartbeat reader.

    Attributes:
        stream: what it is a run of.
        token: the reader's token.
        resumes: the token in the offset it started from.
        coordinator: decides the low watermark.
        query_id, run_id, query_name: Spark's names of the query, None until tied.
        last_batch_id: newest batch whose report was taken as a whole.
        unmeasured_batches: batches with rows but without a measurement.
        refusal: why the query must end, None while all is well.
        broken: something could not be taken twice: nothing more is taken, and nothing of the run is written.
        asked_at_us: when the reader asked last; the batch that runs since was planned then.
        told_epoch: the epoch in the last answer to the reader.
        written: a batch was reported whose offset this run wrote: until then the checkpoint ends with `resumes`.
        checked: the running query's plan was looked at.
        places: number of a heartbeat in the query -> numbers of its sources; empty until the plan was looked at.
        ended, failed: the query has terminated; it has, with an error.
        reported_at_us: when the last report was taken.
        rows_at_us: when a report last brought rows.
        gaps: the times between reports.
        seen_at_us: when Spark last said that the query lives.
        restored_low_us: the low watermark in the offset it started from.
        begun_as: the name, or else the id, of the query that it most likely belongs to, until it is tied; None: of
            several that begin together nobody can tell.
        failure: why its query failed, in short; None: it did not.
        available_now: its query ends when nothing is new, which Spark did not tell its reader.
        lost_reports: batches that were committed, and whose report a kill took away.
        shares: its low watermark is that of a job, which a coordinator publishes; see `cooperation.py`.
        shared_since_us: when the low watermark of its job rose last, or it began.
        measure: reads what was measured of a batch.
        splits: knows what its source says of its splits.
    """

    stream: Stream
    token: str
    resumes: str | None
    coordinator: StreamCoordinator
    query_id: str | None = None
    run_id: str | None = None
    query_name: str | None = None
    last_batch_id: int | None = None
    unmeasured_batches: int = 0
    refusal: str | None = None
    broken: bool = False
    asked_at_us: int = 0
    told_epoch: int = 0
    written: bool = False
    checked: bool = False
    places: Mapping[int, Sequence[int]] = field(default_factory=dict)
    ended: bool = False
    failed: bool = False
    reported_at_us: int | None = None
    rows_at_us: int | None = None
    gaps: ReportGaps = field(default_factory=ReportGaps)
    seen_at_us: int = 0
    restored_low_us: int | None = None
    lost_reports: int = 0
    begun_as: str | None = None
    failure: str | None = None
    shares: bool = False
    shared_since_us: int = 0
    available_now: bool = False
    measure: Measure = field(init=False)
    splits: Splits = field(init=False)
    _encoded: tuple[int, str] | None = None  # epoch, state
    _holder_log: HolderLog = field(default_factory=HolderLog)
    _rows_log: RowsLog = field(default_factory=RowsLog)
    _told_low_us: int | None = None
    _told_plan: int | None = None  # that was not reported when the low watermark was told; None: there was none
    _answered_plan: int | None = None  # the same, once the answer was made
    _sure_low_us: int | None = None
    _news: list[NotifyNewLowWatermark] = field(default_factory=list)  # not told to others yet
    _shared_low_watermark_us: int | None = None
    _shared_rises: int = 0
    _past_epochs: int = 0  # of coordinators that an error left half changed
    _whole: tuple[str | None, int] = (None, 0)  # the state that is begun again from, and when it was so
    _since: list[Callable[[], list[Effect]]] = field(default_factory=list)  # what was taken after it

    def __post_init__(self) -> None:
        self._feed(self.coordinator)

    def _feed(self, coordinator: StreamCoordinator) -> None:
        """Make this coordinator the run's, with all that leads to it."""
        self.coordinator, self.measure, of = coordinator, self.stream.measure(), (self.stream, coordinator)
        if self.stream.reads:
            self.splits = PlannedSplits(*of)
        else:
            self.splits = KafkaPartitions(*of, self.refuse) if self.stream.kafka else Splits(*of)

    @classmethod
    def attach(
        cls,
        stream: Stream,
        *,
        token: str,
        resumes: str | None,
        state: str | None,
        now_us: int,
        restored_low_us: int | None = None,
    ) -> Self:
        """Start a run, from the state and the low watermark in the checkpoint if there are any.

        Raises:
            CorruptSnapshot: the state in the checkpoint cannot be read.
        """
        coordinator = stream.coordinator(token, state, now_us)
        run = cls(stream, token, resumes, coordinator, asked_at_us=now_us, seen_at_us=now_us, _whole=(state, now_us))
        run.restored_low_us = run._shared_low_watermark_us = restored_low_us
        run.shared_since_us = now_us
        run.handle(SplitsDiscovered(tuple(stream.declared)), now_us)
        return run

    def _begin_again(self) -> None:
        """Drop the half-changed state: attach again, then take again everything that was taken since."""
        state, at_us = self._whole
        before, self._past_epochs = self.splits, self.epoch + 1
        self._feed(self.stream.coordinator(self.token, state, at_us))
        self.handle(SplitsDiscovered(tuple(self.stream.declared)), at_us)
        self.splits.go_on_from(before)
        for planned in () if before.planner is None else tuple(before.planner.plans.values()):
            self._plan(planned, at_us)
        for change in self._since:
            change()

    def _take_whole(self, change: Callable[[], list[Effect]], what: str) -> bool:
        """Make a change as a whole, or none of it.

        Args:
            change: what is done; it may be done again later.
            what: what it takes, for a person.

        Returns:
            Whether it was taken: it was not if it failed twice.
        """
        try:
            return self._took_whole(change)
        except BaseException as failed:  # whatever it is, the state may be half changed
            if self.refusal is None:
                log.warning(
                    'stream "%s": %s could not be taken (%s: %s). What it changed is dropped, and it is taken again',
                    self.stream.name,
                    what,
                    type(failed).__name__,
                    failed,
                    exc_info=failed,
                )
        try:
            self._begin_again()
            return self._took_whole(change)
        except BaseException as failed:  # noqa: BLE001
            with suppress(Exception):
                self._begin_again()  # what is shown until the query has ended is whole
            self.give_up(what, failed)
            return False

    def _took_whole(self, change: Callable[[], list[Effect]]) -> Literal[True]:
        effects = change()
        self._since = [*self._since, change]
        if len(self._since) > _SINCE_KEPT:
            self._begin_from(self.stream.state_of(self.coordinator), self.seen_at_us)
        self._news += [effect for effect in effects if isinstance(effect, NotifyNewLowWatermark)]
        return True

    def _begin_from(self, state: str, now_us: int) -> None:
        """After an error, begin again from this state."""
        self._whole, self._since = (state, now_us), []

    def give_up(self, what: str, failed: BaseException) -> None:
        """End the query because something could not be taken twice: nothing of it may be used or written."""
        self.broken = True
        if isinstance(failed, TooManySplits | UnreadableReport):
            self.refuse(str(failed))
            return
        self.refuse(
            f'stream "{self.stream.name}": {what} could not be taken, twice ({type(failed).__name__}: {failed}). The '
            "low watermark stays where it was, and nothing that came of it is written. Hint: start the query again, it "
            "goes on from its checkpoint; if it ends again, report the error, whose stack is in the driver's log."
        )

    @property
    def low_watermark_us(self) -> int | None:
        """What the heartbeat carries."""
        return self._shared_low_watermark_us if self.shares else self.coordinator.low_watermark_us

    @property
    def epoch(self) -> int:
        """Grows when the heartbeat needs a new offset."""
        return self._past_epochs + self.coordinator.epoch + self._shared_rises

    def refuse(self, why: str) -> None:
        """End the query with the next answer to its heartbeat, and say why, once."""
        if self.refusal != why:
            log.error("%s", why)
        self.refusal = why

    def share(self, low_watermark_us: int | None, now_us: int) -> bool:
        """Take in what the coordinator of the job published: it never goes back. Returns whether it rose."""
        known_us = self._shared_low_watermark_us
        if low_watermark_us is None or (known_us is not None and low_watermark_us <= known_us):
            return False
        self._shared_rises += 1  # first: an epoch without news does no harm
        self._shared_low_watermark_us, self.shared_since_us = low_watermark_us, now_us
        return True

    def state(self) -> str:
        """Return what the offset carries to restore this run, base64; encoded once an epoch."""
        if self._encoded is None or self._encoded[0] != self.epoch:
            self._encoded = self.epoch, self.stream.state_of(self.coordinator)
        return self._encoded[1]

    def status(self, now_us: int, limit: int | None = None) -> StreamStatus:
        """Where the stream stands in this query; with a limit, of the splits that need attention first."""
        status = self.coordinator.status(now_us, self.stream.name_of, limit=limit)
        if not self.shares:
            return status
        return replace(status, low_watermark_us=self._shared_low_watermark_us, since=utc(self.shared_since_us))

    @property
    def query(self) -> str | None:
        """The query's name, or its id where it has none; None where it is not known yet."""
        known = self.query_id if self.query_name is None else self.query_name
        return self.begun_as if known is None else known

    @property
    def sure_low_us(self) -> int | None:
        """Its own, without claims of a plan that may not be written: a restart may not plan so far."""
        return self.coordinator.low_watermark_us if self.splits.unreported_plan is None else self._sure_low_us

    def tell(self) -> None:
        """Its reader is to be answered. Where there is another plan, what was told with the one before is written."""
        if self.splits.unreported_plan != self._told_plan:
            self._sure_low_us = self._told_low_us
        self._told_low_us, self._told_plan = self.coordinator.low_watermark_us, self.splits.unreported_plan

    def answer(self, now_us: int) -> str:
        """Its reader is answered with the epoch and the low watermark of now, and this state."""
        state = self.state()
        self._begin_from(state, now_us)
        self.told_epoch, self._answered_plan = self.epoch, self._told_plan
        return state

    @property
    def goes_beyond_its_offset(self) -> bool:
        """It knows of a plan that came after the last answer, so Spark may have written nothing of it."""
        return self.splits.unreported_plan not in (None, self._answered_plan)

    def wrote(self, offset: HeartbeatOffset) -> bool:
        """True for an offset of this run, or of the one it resumes: Spark runs that run's last batch again."""
        return offset.run is not None and offset.run in (self.token, self.resumes)

    def tie(self, query_id: str, run_id: str, query_name: str | None) -> None:
        """Remember which query this run belongs to."""
        self.query_id, self.run_id, self.query_name = query_id, run_id, query_name

    def take_news(self) -> list[NotifyNewLowWatermark]:
        """The low watermarks since the last call, the first one first."""
        news, self._news = self._news, []
        return news

    def report(self, progress: Progress, heartbeat: int, *, planned_at_us: int, now_us: int) -> None:
        """Take the report of one batch, as a whole. A batch that was taken before changes nothing.

        Args:
            progress: the batch's progress event.
            heartbeat: index of this run's heartbeat among the event's sources.
            planned_at_us: when the batch was planned.
            now_us: now, on the service's clock.
        """
        if self.broken or (self.last_batch_id is not None and progress.batch_id <= self.last_batch_id):
            return
        sources = self.sources_in(progress, heartbeat)

        @cache  # what passed through Python is dropped with the next report, and this one may be taken again
        def measured() -> Measured | None:
            return self.measure.report(progress.id, progress.batch_id, progress.observed_metrics)

        def change() -> list[Effect]:
            known = measured()
            return self._report(progress, sources, Measured() if known is None else known, planned_at_us, now_us)

        if self._take_whole(change, f"the report of batch {progress.batch_id}"):
            self._took(progress, sources, measured(), now_us)

    def _report(
        self,
        progress: Progress,
        sources: Sequence[SourceProgress],
        measured: Measured,
        planned_at_us: int,
        now_us: int,
    ) -> list[Effect]:
        effects = self._take(self.splits.discover(sources), now_us)
        self.stream.names.update(measured.names)
        reported = self.splits.report(measured, progress, sources, planned_at_us=planned_at_us)
        effects += self.handle(reported, now_us)
        return effects + self._take(self.splits.conclude(sources), now_us)

    def _took(
        self, progress: Progress, sources: Sequence[SourceProgress], measured: Measured | None, now_us: int
    ) -> None:
        """Count what a report says of the query, and that it was taken."""
        gaps = self.gaps
        if self.last_batch_id is not None and self.reported_at_us is not None:
            missed_batches = progress.batch_id - self.last_batch_id - 1
            gaps = gaps.longer(now_us - self.reported_at_us, missed_batches=missed_batches)
        self._rows_log.look(self.stream, self.coordinator, progress, sources, measured)
        if measured is None:
            # `foreachBatch` read a part, or the plan lost the observation.
            self.unmeasured_batches += had_rows(sources)
        else:
            self.splits.pass_on(measured)  # after all that may raise: what is passed on twice counts twice
        if measured is not None and measured.counts.rows > 0:
            self.rows_at_us = now_us
        self.last_batch_id, self.reported_at_us, self.seen_at_us = progress.batch_id, now_us, now_us
        self.gaps = gaps

    def sources_in(self, progress: Progress, heartbeat: int) -> list[SourceProgress]:
        """Of the query's sources those of its stream; none, where the query was over before its plan was looked at."""
        return [progress.sources[place] for place in self.places.get(heartbeat, ())]

    def plan(self, planned: Planned, now_us: int) -> None:
        """Take what the planner of its source says of a batch that is not read yet, as a whole."""
        if not self.broken:
            self._take_whole(partial(self._plan, planned, now_us), f"plan {planned.checkpoint}")

    def _plan(self, planned: Planned, now_us: int) -> list[Effect]:
        assert isinstance(self.splits, PlannedSplits), "a wrapped stream has no planner of ours"
        return self._take(self.splits.plan(planned, now_us), now_us)

    def hear(self, event: Event, now_us: int) -> None:
        """Take what a question of the reader says by itself, as a whole: the sources had nothing, or time passed."""
        if not self.broken:
            self._take_whole(partial(self.handle, event, now_us), "the question of its heartbeat")

    def handle(self, event: Event, now_us: int) -> list[Effect]:
        """Give the coordinator an event; log what a person should know of."""
        effects = self.coordinator.handle(event, now_us)
        for effect in effects:
            log_effect(self.stream, effect)
        self._holder_log.look(self.stream, self.coordinator, now_us, changed=bool(effects))
        return effects

    def _take(self, events: Iterator[Event], now_us: int) -> list[Effect]:
        return [effect for event in events for effect in self.handle(event, now_us)]

    def lose(self, batch_id: int, now_us: int) -> None:
        """Take it that the report of a batch before this run is lost: splits that were new in it are waited for."""
        self.lost_reports += 1
        log.warning(
            'stream "%s": the report of batch %d was lost when its query was killed right after that batch. Splits '
            "whose first rows were in it are not known, so the low watermark holds for %s, in which they may speak. "
            "Hint: with_grace() sets how long.",
            self.stream.name,
            batch_id,
            format_duration_us(self.coordinator.grace_us),
        )
        self.hear(ReportLost(batch_id), now_us)
