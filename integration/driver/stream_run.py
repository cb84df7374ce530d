"""One wrapped stream in one running query: the watermarks of its splits, fed from Spark's progress events.

A run begins when a heartbeat reader attaches, and ends with its query. The first progress event with the reader's
token ties the run to the query. A batch tells which splits its source has (`splits.py`), the measurements of its rows
(`measure.py` of the transport), and which splits end with it. Runs belong to the loop of the service and are not
thread-safe.

A run takes a report, a plan or a poll as a whole or not at all. After an error in the middle the run begins again as
after a restart, from the state in its last answer and the changes taken since. Then it takes the same change once more.
A second error ends the query.
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
from lowmark.integration.spark.completion import complete_until
from lowmark.integration.spark.progress import Progress, SourceProgress
from lowmark.integration.transport.heartbeat import HeartbeatOffset
from lowmark.integration.transport.measure import Measured
from lowmark.sources.metric_group import added_up
from lowmark.sources.planning.peer import Planned
from lowmark.watermark import (
    NotifyNewLowWatermark,
    SetByHand,
    SplitId,
    StreamStatus,
    WatermarkStrategy,
    format_duration_us,
)
from lowmark.watermark.moment import none_first, utc
from lowmark.watermark.splits.events import Effect, Event, ReportLost, SplitsDiscovered, StrategySet
from lowmark.watermark.splits.stream import SplitWatermarks
from lowmark.watermark.splits.view import names_of

from .job_low import JobLow
from .kafka_partitions import KafkaPartitions
from .planned_splits import PlannedSplits
from .run_log import HolderLog, RowsLog, log_effect
from .splits import Splits
from .stream import Stream

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger("lowmark")

_SINCE_KEPT = 16
"""A run keeps so many reports and plans to begin again with, and then keeps the state after them instead."""


@dataclass
class StreamRun:
    """The life of one heartbeat reader."""

    stream: Stream  # with the strategy that is in force
    token: str
    resumes: str | None  # the token in the offset that the run started from
    watermarks: SplitWatermarks
    query_id: str | None = None  # this and the next two as Spark has them; None until tied
    run_id: str | None = None
    query_name: str | None = None
    last_batch_id: int | None = None  # the newest batch whose report was taken as a whole
    unmeasured_batches: int = 0  # batches with rows but without a measurement
    refusal: str | None = None  # why the query must end
    broken: bool = False  # a change failed twice, so nothing more is taken, and nothing of the run is written
    wall_ahead_us: Callable[[], int] = int  # how far the wall clock is ahead of the service's; not at all by default
    began_us: int = 0
    asked_at_us: int = 0  # the reader's last question, when the running batch was planned
    told_epoch: int = 0  # the epoch in the last answer to the reader
    written: bool = False  # this run wrote the offset of a reported batch; before, the checkpoint ends with `resumes`
    # Number of a heartbeat -> those of its sources; None: the running query's plan was not looked at.
    places: Mapping[int, Sequence[int]] | None = None
    set_by_hand: tuple[SetByHand, ...] = ()  # what a person set in this run
    ended: bool = False
    failure: str | None = None  # why its query failed, in short; None: the query did not fail
    reported_at_us: int | None = None  # when the last report was taken
    rows_at_us: int | None = None  # when a report last brought rows
    gaps: ReportGaps = field(default_factory=ReportGaps)
    seen_at_us: int = 0  # when Spark last showed that the query lives
    lost_reports: int = 0  # committed batches whose report a kill took away
    complete_until_us: int | None = None  # as `spark/completion.py` has it; None: nothing is sure yet
    begun_as: str | None = None  # until the run is tied, name or else id of its likely query; None: several are likely
    begun_run_id: str | None = None  # until the run is tied, Spark's id of its likely run; None: several are likely
    shares: bool = False  # its low watermark is the job's, which a coordinator publishes; see `cooperation.py`
    job_low: JobLow = field(default_factory=lambda: JobLow(None, 0))
    available_now: bool = False  # its query ends when nothing is new, and Spark has not told the reader so
    splits: Splits = field(init=False)
    _encoded: tuple[int, str] | None = None  # epoch, state
    _holder_log: HolderLog = field(default_factory=HolderLog)
    _rows_log: RowsLog = field(default_factory=RowsLog)
    _late_rows: Mapping[SplitId, int] | None = None  # None: not counted so far
    _news: list[NotifyNewLowWatermark] = field(default_factory=list)  # not passed to others yet
    _past_epochs: int = 0  # of watermarks that an error left half changed
    _whole: tuple[str | None, int] = (None, 0)  # the state to begin again from, and its time
    _since: list[Callable[[], list[Effect]]] = field(default_factory=list)  # changes taken after that state

    def __post_init__(self) -> None:
        self._feed(self.watermarks)

    def _feed(self, watermarks: SplitWatermarks) -> None:
        """Give the run watermarks, and new objects that feed them."""
        self.watermarks, of = watermarks, (self.stream, watermarks)
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
        now_us: int,
        resumes: str | None = None,
        state: str | None = None,
        restored_low_us: int | None = None,
        wall_ahead_us: Callable[[], int] = int,
    ) -> Self:
        """Start a run, from state and low watermark of a checkpoint if it has them. Raises `CorruptSnapshot`."""
        watermarks = stream.watermarks(token, state, now_us)
        run = cls(stream, token, resumes, watermarks, asked_at_us=now_us, seen_at_us=now_us, _whole=(state, now_us))
        run.began_us, run.wall_ahead_us = now_us, wall_ahead_us
        run.job_low = JobLow(restored_low_us, now_us)
        run.handle(SplitsDiscovered(tuple(stream.declared)), now_us)
        return run

    def _begin_again(self) -> None:
        state, at_us = self._whole
        before, self._past_epochs = self.splits, self.epoch + 1
        self._feed(self.stream.watermarks(self.token, state, at_us))
        self.handle(SplitsDiscovered(tuple(self.stream.declared)), at_us)
        self.splits.go_on_from(before)
        for planned in () if before.planner is None else tuple(before.planner.plans.values()):
            self._plan(planned, at_us)
        for change in self._since:
            change()

    def _take_whole(self, change: Callable[[], list[Effect]], what: str) -> bool:
        """Make a change, which may be called again, as a whole or not at all; return whether it was taken."""
        try:
            return self._took_whole(change)
        except BaseException as failed:  # any error may leave the state half changed
            if self.refusal is None:
                log.warning(
                    'stream "%s": %s failed (%s: %s). Its changes are dropped, and it is handled again',
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
                self._begin_again()  # so the status shows whole state until the query has ended
            self.give_up(what, failed)
            return False

    def _took_whole(self, change: Callable[[], list[Effect]]) -> Literal[True]:
        effects = change()
        self._since = [*self._since, change]
        if len(self._since) > _SINCE_KEPT:
            self._whole, self._since = (self.stream.state_of(self.watermarks), self.seen_at_us), []
        self._news += [effect for effect in effects if isinstance(effect, NotifyNewLowWatermark)]
        return True

    def give_up(self, what: str, failed: BaseException) -> None:
        """End the query because a change failed twice: nothing of the run may be used or written."""
        self.broken = True
        if isinstance(failed, TooManySplits | UnreadableReport):
            self.refuse(str(failed))
            return
        self.refuse(
            f'stream "{self.stream.name}": {what} failed twice ({type(failed).__name__}: {failed}). The low '
            "watermark stays where it was, and no change is written. Hint: start the query again, it goes on from its "
            "checkpoint; if it ends again, report the error with its stack, which is in the driver's log."
        )

    @property
    def low_watermark_us(self) -> int | None:
        """The low watermark that the heartbeat carries."""
        return self.job_low.low_us if self.shares else self.watermarks.low_watermark_us

    @property
    def epoch(self) -> int:
        """Grows when the heartbeat needs a new offset."""
        return self._past_epochs + self.watermarks.epoch + self.job_low.rises

    def refuse(self, why: str) -> None:
        """End the query with the next answer to its heartbeat, and log the reason once."""
        if self.refusal != why:
            log.error("%s", why)
        self.refusal = why

    def state(self) -> str:
        """Return the state for the offset that restores this run, base64; encoded once an epoch."""
        if self._encoded is None or self._encoded[0] != self.epoch:
            self._encoded = self.epoch, self.stream.state_of(self.watermarks)
        return self._encoded[1]

    def status(self, now_us: int, limit: int | None = None) -> StreamStatus:
        """The status of the stream in this query; `limit` bounds the splits, those that need attention first."""
        status = self.watermarks.status(now_us, self.stream.name_of, limit=limit, late_rows=self._late_rows)
        status = replace(status, set_by_hand=self.set_by_hand)
        if not self.shares:
            return status
        return replace(status, low_watermark_us=self.job_low.low_us, since=utc(self.job_low.since_us))

    def named_splits(self) -> Mapping[str, SplitId]:
        """All known splits by the names that a status gives them. O(n log n)."""
        return {name: split for split, name in names_of(self.watermarks.splits, self.stream.name_of).items()}

    @property
    def query(self) -> str | None:
        """The query's name, else its id; None until known."""
        known = self.query_id if self.query_name is None else self.query_name
        return self.begun_as if known is None else known

    @property
    def of_nobody(self) -> bool:
        """Whether the run ended before a batch showed its query, so no newer run takes its place."""
        return self.ended and self.query_id is None

    @property
    def sure_low_us(self) -> int | None:
        """See `JobLow.sure_us`."""
        return self.job_low.sure_us(self.watermarks.low_watermark_us, self.splits.unreported_plan)

    def tell(self) -> None:
        """See `JobLow.tell`."""
        self.job_low.tell(self.watermarks.low_watermark_us, self.splits.unreported_plan)

    def answer(self, now_us: int) -> str:
        """Return the state for an answer with the current epoch and low watermark, and remember that both were told."""
        state = self.state()
        self._whole, self._since, self.told_epoch = (state, now_us), [], self.epoch
        return state

    def wrote(self, offset: HeartbeatOffset) -> bool:
        """Whether this run wrote an offset, or the resumed run, whose last batch Spark runs again."""
        return offset.token is not None and offset.token in (self.token, self.resumes)

    def tie(self, query_id: str, run_id: str, query_name: str | None) -> None:
        self.query_id, self.run_id, self.query_name = query_id, run_id, query_name

    def take_news(self) -> list[NotifyNewLowWatermark]:
        news, self._news = self._news, []
        return news

    def report(
        self, progress: Progress, heartbeat: int, *, planned_at_us: int, now_us: int, low_us: int | None = None
    ) -> None:
        """Take the report of one batch as a whole. A repeated batch changes nothing.

        Args:
            heartbeat: index of this run's heartbeat among the event's sources.
            low_us: the low watermark in the heartbeat's offset of the batch; None: the batch makes nothing complete.
        """
        if self.broken or (self.last_batch_id is not None and progress.batch_id <= self.last_batch_id):
            return
        sources = self.sources_in(progress, heartbeat)

        @cache  # a measure drops Python's measurements at the next report, but a retry needs them
        def measured() -> Measured | None:
            return self.stream.measure.report(
                progress.id, progress.batch_id, progress.observed_metrics, self.stream.strategy
            )

        def change() -> list[Effect]:
            known = measured() or Measured()
            effects = self._take(self.splits.discover(sources), now_us)
            names = self.stream.names
            new = known.names.keys() - names.keys()
            names.update(known.names)
            reported = self.splits.report(known, progress, sources, planned_at_us=planned_at_us)
            effects += self.handle(reported, now_us)
            for split in new:
                if not self.watermarks.tells_of(split):  # a broken device may send ever new names
                    names.pop(split, None)
            return effects + self._take(self.splits.conclude(sources), now_us)

        if self._take_whole(change, f"the report of batch {progress.batch_id}"):
            self._took(progress, sources, measured(), now_us)
            # Spark tells of a batch after it has recorded the batch as committed.
            until_us = complete_until(low_us, progress.watermark_us, with_state=bool(progress.state_operators))
            self.complete_until_us = max(self.complete_until_us, until_us, key=none_first)

    def _took(
        self, progress: Progress, sources: Sequence[SourceProgress], measured: Measured | None, now_us: int
    ) -> None:
        gaps = self.gaps
        if self.last_batch_id is not None and self.reported_at_us is not None:
            missed_batches = progress.batch_id - self.last_batch_id - 1
            gaps = gaps.longer(now_us - self.reported_at_us, missed_batches=missed_batches)
        unseen = self._rows_log.look(self.stream, self.watermarks, progress, sources, measured)
        late_rows = self._late_rows
        if measured is not None:
            if measured.late_rows is not None:
                counted = added_up((late_rows or {}, measured.late_rows))
                # Without forgotten splits, such as files that were read.
                late_rows = {split: rows for split, rows in counted.items() if self.watermarks.tells_of(split)}
            self.splits.pass_on(measured)  # the last step that may fail, because a repeated call would count twice
        self._late_rows = late_rows
        self.unmeasured_batches += unseen
        if unseen or (measured is not None and measured.counts.rows > 0):
            self.rows_at_us = now_us
        self.gaps, self.last_batch_id = gaps, progress.batch_id
        self.reported_at_us = self.seen_at_us = now_us

    def sources_in(self, progress: Progress, heartbeat: int) -> list[SourceProgress]:
        """Return the sources of this run's stream; none if the query was over before its plan was looked at."""
        return [progress.sources[place] for place in (self.places or {}).get(heartbeat, ())]

    def plan(self, planned: Planned, now_us: int) -> None:
        """Take a plan of the source's planner for a batch that is not read yet, as a whole."""
        if not self.broken:
            self._take_whole(partial(self._plan, planned, now_us), f"plan {planned.checkpoint}")

    def _plan(self, planned: Planned, now_us: int) -> list[Effect]:
        assert isinstance(self.splits, PlannedSplits), "a wrapped stream has no planner of ours"
        return self._take(self.splits.plan(planned, now_us), now_us)

    def hear(self, event: Event, now_us: int, what: str = "the question of its heartbeat") -> None:
        """Take an event as a whole that comes between batches: an empty poll, passed time, a person's mark."""
        if not self.broken:
            self._take_whole(partial(self.handle, event, now_us), what)

    def set(self, strategy: WatermarkStrategy, settings: Sequence[SetByHand], now_us: int) -> None:
        """Measure later reports and plans by this strategy, until the run ends."""
        if not self.broken:
            self.stream = self.splits.stream = replace(self.stream, strategy=strategy)
            self.set_by_hand = tuple(settings)
            self.hear(StrategySet(strategy), now_us, "what a person said")

    def handle(self, event: Event, now_us: int) -> list[Effect]:
        """Give the watermarks an event, and log effects that people should know of."""
        effects = self.watermarks.handle(event, now_us, self.wall_ahead_us())
        for effect in effects:
            log_effect(self.stream, effect)
        self._holder_log.look(self.stream, self.watermarks, now_us, changed=bool(effects))
        if self.shares:
            self.job_low.note_own(self.watermarks.low_watermark_us, now_us)
        return effects

    def _take(self, events: Iterator[Event], now_us: int) -> list[Effect]:
        return [effect for event in events for effect in self.handle(event, now_us)]

    def lose(self, batch_id: int, now_us: int) -> None:
        """Record that the report of a batch before this run is lost, and wait for splits that were new in the batch."""
        self.lost_reports += 1
        log.warning(
            'stream "%s": the report of batch %d was lost, as when its query ends right after that batch, or its '
            "checkpoint is set back. Splits whose first rows were in it are not known, so the low watermark holds for "
            "%s, in which they may speak. Hint: with_grace() sets how long.",
            self.stream.name,
            batch_id,
            format_duration_us(self.watermarks.grace_us),
        )
        self.hear(ReportLost(batch_id), now_us)
