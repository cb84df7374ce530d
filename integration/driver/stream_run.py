"""One wrapped stream in one running query: the coordinator, fed from Spark's progress events.

A run is one heartbeat reader's life. It is born when a reader attaches, and it is tied to a query by the first
progress event that shows the reader's token. Runs belong to the service's loop; nothing here is thread-safe.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from lowmark.integration.errors import TooManySplits, UnreadableReport
from lowmark.integration.run_status import RunStatus
from lowmark.integration.spark.kafka_offsets import backlog_rows, kafka_positions, kafka_rows
from lowmark.integration.spark.progress import Progress, SourceProgress
from lowmark.integration.transport.accumulated import BatchTrack
from lowmark.integration.transport.heartbeat import HeartbeatOffset
from lowmark.integration.transport.observed import Ids, Micros
from lowmark.sources.planning.offset import BatchOffset
from lowmark.sources.planning.peer import Planned
from lowmark.watermark import (
    BatchCounts,
    BatchPlanned,
    BatchReported,
    CorruptSnapshot,
    Effect,
    Event,
    NotifyNewLowWatermark,
    Polled,
    SplitColumn,
    SplitId,
    SplitReturnedLate,
    SplitsDiscovered,
    SplitsFinished,
    SplitsPaused,
    SplitsRemoved,
    SplitsResharded,
    SplitsResumed,
    SplitStateChanged,
    StreamCoordinator,
    StreamStatus,
    Tick,
)

from .known_planner import KnownPlanner
from .stream import Stream

__all__ = ["StreamRun"]

log = logging.getLogger("lowmark")

_MILLISECOND_US = 1_000
_NAMES_SHOWN = 10
FINISHED_KEPT = 100
"""How many finished splits of a source of ours are remembered; older ones are forgotten."""


@dataclass
class StreamRun:
    """The life of one heartbeat reader.

    Attributes:
        stream: what it is a run of.
        token: the reader's token.
        resumes: the token in the offset it started from.
        coordinator: decides the low watermark.
        query_id, run_id, query_name: Spark's names of the query, None until tied.
        last_batch_id: newest batch whose report was taken.
        unmeasured_batches: batches with rows but without a measurement.
        refusal: why the query must end, None while all is well.
        asked_at_us: when the reader asked last; the batch that runs since was planned then.
        told_epoch: the coordinator's epoch in the last answer to the reader.
        checked: the running query's plan was looked at.
        ended: the query has terminated.
        failed: it has terminated with an error.
        reported_at_us: when the last report was taken.
        seen_at_us: when Spark last said that the query lives.
        restored_low_us: the low watermark in the offset it started from.
        shares: its low watermark is that of a job, which a coordinator publishes; see `cooperation.py`.
        has_backlog: its sources are known to have rows that are not read yet.
        reader: the planner of its source, where that is one of ours; None until a batch showed the two together.
        observed_us: largest event time seen of each split of such a source, by name.
        next_us: event time of the next row, where alignment alone keeps it from being read.
        source_metrics: what its enumerator and planner count.
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
    asked_at_us: int = 0
    told_epoch: int = 0
    checked: bool = False
    ended: bool = False
    failed: bool = False
    reported_at_us: int | None = None
    seen_at_us: int = 0
    restored_low_us: int | None = None
    shares: bool = False
    has_backlog: bool = False
    reader: KnownPlanner | None = None
    observed_us: dict[str, int] = field(default_factory=dict)
    next_us: int | None = None
    source_metrics: Mapping[str, float] = field(default_factory=dict)
    _promised_us: dict[SplitId, int] = field(default_factory=dict)
    _finished_splits: dict[SplitId, None] = field(default_factory=dict)  # not forgotten yet, the first one first
    _swept_checkpoint: int | None = None
    _encoded: tuple[int, str] | None = None  # epoch, state
    _held: frozenset[str] = frozenset()
    _shared_low_us: int | None = None
    _shared_rises: int = 0
    _partitions: dict[tuple[str, int], int] = field(default_factory=dict)

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
    ) -> StreamRun:
        """Start a run, from the state and the low watermark in the checkpoint if there are any.

        Raises:
            CorruptSnapshot: the state in the checkpoint cannot be read.
        """
        ids = {"job_id": stream.stream_id, "source_id": stream.name, "task_id": token}
        if state:
            try:
                saved = base64.b64decode(state, validate=True)
            except ValueError as invalid:
                raise CorruptSnapshot(f"it is no base64 ({invalid})", len(state)) from invalid
            coordinator = StreamCoordinator.restore(saved, stream.strategy, now_us=now_us, **ids)
            stream.names.update((split, name) for split, name in coordinator.names.items() if isinstance(split, int))
        else:
            coordinator = StreamCoordinator(stream.strategy, **ids)
        run = cls(stream, token, resumes, coordinator, asked_at_us=now_us, seen_at_us=now_us)
        run.restored_low_us = run._shared_low_us = restored_low_us
        run.handle(SplitsDiscovered(tuple(stream.declared)), now_us)
        return run

    @property
    def low_watermark_us(self) -> int | None:
        """What the heartbeat carries."""
        return self._shared_low_us if self.shares else self.coordinator.low_watermark_us

    @property
    def epoch(self) -> int:
        """Grows when the heartbeat needs a new offset."""
        return self.coordinator.epoch + self._shared_rises

    def refuse(self, why: str) -> None:
        """End the query with the next answer to its heartbeat, and say why."""
        self.refusal = why
        log.error("%s", why)

    def share(self, low_us: int | None) -> bool:
        """Take in what the coordinator of the job published: it never goes back. Returns whether it rose."""
        if low_us is None or (self._shared_low_us is not None and low_us <= self._shared_low_us):
            return False
        self._shared_low_us = low_us
        self._shared_rises += 1
        return True

    def state(self) -> str:
        """Return what the offset carries to restore this run, base64; encoded once an epoch."""
        if self._encoded is None or self._encoded[0] != self.epoch:
            self._encoded = self.epoch, self._encode()
        return self._encoded[1]

    def _encode(self) -> str:
        names: dict[SplitId, str] = {}
        if self._keeps_names():
            names = {split: name for split, name in self.stream.names.items() if split not in self.stream.declared}
        return base64.b64encode(self.coordinator.snapshot(names)).decode()

    def status(self, now_us: int, limit: int | None = None) -> StreamStatus:
        """Where the stream stands in this query; of its own splits, unless the low watermark is shared.

        Args:
            now_us: now, on the service's clock.
            limit: how many splits, those that need attention first; None: all.
        """
        status = self.coordinator.status(now_us, self.stream.name_of, limit=limit)
        return replace(status, low_watermark_us=self._shared_low_us) if self.shares else status

    def run_status(self, now_us: int) -> RunStatus:
        return RunStatus(
            token=self.token,
            query=self.query_name if self.query_name is not None else self.query_id,
            status=self.status(now_us),
            emits=self.stream.strategy.emits,
            unmeasured_batches=self.unmeasured_batches,
            refused=self.refusal is not None,
            failed=self.failed,
            ended=self.ended,
            asked_at_us=self.asked_at_us,
            reported_at_us=self.reported_at_us,
            seen_at_us=self.seen_at_us,
            source_metrics=self.source_metrics,
        )

    def polled(self, until_us: int, now_us: int) -> list[Effect]:
        return self.handle(Polled(until_us), now_us)

    def tick(self, now_us: int) -> list[Effect]:
        return self.handle(Tick(), now_us)

    def wrote(self, offset: HeartbeatOffset) -> bool:
        """True for an offset of this run, or of the one it resumes: Spark runs that run's last batch again."""
        return offset.run is not None and offset.run in (self.token, self.resumes)

    def tie(self, query_id: str, run_id: str, query_name: str | None) -> None:
        """Remember which query this run belongs to."""
        self.query_id, self.run_id, self.query_name = query_id, run_id, query_name

    def report(self, progress: Progress, heartbeat: int, *, planned_at_us: int, now_us: int) -> list[Effect]:
        """Take the report of one batch. A batch that was taken before changes nothing.

        Args:
            progress: the batch's progress event.
            heartbeat: index of this run's heartbeat among the event's sources.
            planned_at_us: when the batch was planned.
            now_us: now, on the service's clock.

        Returns:
            What follows: changes of state, late returns, a new low watermark.
        """
        if self.last_batch_id is not None and progress.batch_id <= self.last_batch_id:
            return []
        self.last_batch_id = progress.batch_id
        self.reported_at_us = self.seen_at_us = now_us
        sources = self._sources(progress, heartbeat)
        effects = self._discover(sources, now_us)
        plan = self._plan_of(sources)
        try:
            reported = self._measured(progress, sources, planned_at_us)
        except (TooManySplits, UnreadableReport) as broken:
            self.refuse(str(broken))
            return effects
        effects += self.handle(reported, now_us)
        return effects if plan is None else effects + self._finish(plan, now_us)

    def read_by(self, progress: Progress, heartbeat: int) -> BatchOffset | None:
        """The offset in a batch that a planner of ours wrote for this stream; None if its source is not one of ours."""
        return _planned_to(self._sources(progress, heartbeat)) if self.stream.reads else None

    def plan(self, planned: Planned, now_us: int) -> list[Effect]:
        """Take what the planner of its source says of a batch that is not read yet."""
        ids = {name: self._reader_split(name) for name in planned.splits}
        known = frozenset(self.coordinator.splits)
        self.next_us, self.source_metrics = planned.next_us, planned.metrics
        self.has_backlog = any(rows > 0 for rows in planned.backlog_rows.values())
        effects: list[Effect] = []
        new = [split for split in ids.values() if split not in known]
        if new:
            empty = {
                ids[name] for name, rows in planned.backlog_rows.items() if not rows and not planned.rows.get(name)
            }
            effects += self.handle(SplitsDiscovered(tuple(new), frozenset(empty)), now_us)
        for name, parents in planned.splits.items():
            if parents and ids[name] in new:
                event = SplitsResharded(tuple(self._reader_split(parent) for parent in parents), (ids[name],))
                effects += self.handle(event, now_us)
        promised: dict[SplitId, int] = {}
        if self.stream.promises:
            of_max = self.stream.strategy.watermark_of_max
            promised = {ids[name]: of_max(us) for name, us in planned.reached_us.items()}
        self._promised_us.update(promised)
        backlog: dict[SplitId, int] = {ids[name]: rows for name, rows in planned.backlog_rows.items()}
        effects += self.handle(BatchPlanned(now_us, promised, backlog), now_us)
        return effects + self._hold(planned.held, now_us)

    def _hold(self, held: frozenset[str], now_us: int) -> list[Effect]:
        paused, resumed = held - self._held, self._held - held
        self._held = held
        effects: list[Effect] = []
        if paused:
            effects += self.handle(SplitsPaused(tuple(map(self._reader_split, sorted(paused)))), now_us)
        if resumed:
            effects += self.handle(SplitsResumed(tuple(map(self._reader_split, sorted(resumed)))), now_us)
        return effects

    def _finish(self, plan: Planned, now_us: int) -> list[Effect]:
        """After the report of a batch: splits that do not go on after it are done. O(1) a batch and finished split.

        Also those that finished before a restart, or while no plan arrived: no plan has them any more.
        """
        newer = [] if self.reader is None else [p for p in self.reader.plans.values() if p.checkpoint > plan.checkpoint]
        over: list[SplitId]
        if self._swept_checkpoint == plan.checkpoint - 1:
            over = [self._reader_split(name) for name in plan.finished if not any(name in p.splits for p in newer)]
        else:
            live = {self._reader_split(name) for name in plan.splits.keys() - set(plan.finished)}
            live |= {self._reader_split(name) for p in newer for name in p.splits}
            over = [split for split in self.coordinator.splits if split not in live]
        self._swept_checkpoint = plan.checkpoint
        over = [split for split in over if split not in self._finished_splits]
        if not over:
            return []
        self._finished_splits.update(dict.fromkeys(over))
        for split in over:
            self._promised_us.pop(split, None)
            self.observed_us.pop(self.stream.name_of(split), None)
        return self.handle(SplitsFinished(tuple(over)), now_us) + self._forget_finished(now_us)

    def _forget_finished(self, now_us: int) -> list[Effect]:
        """Their rows are in batches that are committed. The last are shown for a while, and children may yet come."""
        many = len(self._finished_splits) - FINISHED_KEPT
        forgotten = tuple(islice(self._finished_splits, max(0, many)))
        if not forgotten:
            return []
        for split in forgotten:
            assert isinstance(split, int), "ids of a source's splits are made of their names"
            del self._finished_splits[split]
            self.stream.names.pop(split, None)
        return self.handle(SplitsRemoved(forgotten), now_us)

    def _plan_of(self, sources: list[SourceProgress]) -> Planned | None:
        """The plan of the batch that is reported, where a planner of ours made it."""
        if self.reader is None:
            return None
        offset = _planned_to(sources)
        return None if offset is None else self.reader.plans.get(offset.checkpoint)

    def _reader_split(self, name: str) -> int:
        split = self.stream.key.split_id((name,))
        self.stream.names.setdefault(split, name)
        return split

    def handle(self, event: Event, now_us: int) -> list[Effect]:
        """Give the coordinator an event; log what a person should know of."""
        effects = self.coordinator.handle(event, now_us)
        for effect in effects:
            self._log(effect)
        return effects

    def _measured(self, progress: Progress, sources: list[SourceProgress], planned_at_us: int) -> BatchReported:
        if self.stream.reads:
            backlog = self._reader_backlog()
        else:
            backlog = self._by_split(backlog_rows(sources))
            self.has_backlog = any(rows > 0 for rows in backlog.values())
        bare = BatchReported(
            batch_id=progress.batch_id,
            planned_at_us=planned_at_us,
            watermarks_us={},
            backlog_rows=backlog,
            in_force_us=progress.watermark_us,
            counts=BatchCounts(dropped_rows=progress.dropped_rows),
        )
        if self.stream.tracks is not None:
            track = self.stream.tracks.take(progress.id, progress.batch_id)
            if track is not None:
                return self._from_track(track, bare)
        else:
            metric = progress.observed_metrics.get(self.stream.metric)
            if metric is not None:
                return self._from_metric(metric, bare, sources)
        self._note_unmeasured(progress, sources)
        return bare

    def _from_metric(
        self, metric: Mapping[str, Any], bare: BatchReported, sources: list[SourceProgress]
    ) -> BatchReported:
        assert self.stream.measurement is not None, "a stream is measured by metric or by accumulator"
        seen = self.stream.measurement.decode(metric, batch_id=bare.batch_id)
        self.stream.names.update(seen.names)
        counts = BatchCounts(
            rows=seen.rows,
            future_rows=seen.future_rows,
            null_time_rows=seen.null_time_rows,
            null_split_rows=seen.null_split_rows,
            before_epoch_rows=seen.before_epoch_rows,
        )
        return replace(
            bare,
            watermarks_us=self._watermarks(seen.splits, seen.latest_us),
            first_us=seen.earliest_us,
            rows=seen.split_rows if seen.split_rows else self._by_split(kafka_rows(sources)),
            counts=bare.counts + counts,
        )

    def _from_track(self, track: BatchTrack, bare: BatchReported) -> BatchReported:
        self.stream.names.update(track.names)
        marks = track.tracker.marks()
        if self.reader is not None:
            self.reader.events.extend(event for task in sorted(track.events) for event in track.events[task])
        if self.stream.reads and not self.stream.strategy.runs_python:
            watermarks_us = self._read_marks({split: mark.max_us for split, mark in marks.items()})
        else:
            watermarks_us = {s: w // _MILLISECOND_US * _MILLISECOND_US for s, w in track.watermarks_us.items()}
        return replace(
            bare,
            watermarks_us=watermarks_us,
            first_us={s: mark.min_us for s, mark in marks.items()},
            rows={s: mark.rows for s, mark in marks.items()},
            counts=bare.counts + track.counts(),
        )

    def _read_marks(self, latest_us: Mapping[SplitId, int]) -> dict[SplitId, int]:
        """What was read of each split, or what was promised of it since, if that is more."""
        of_max, watermarks_us = self.stream.strategy.watermark_of_max, {}
        for split, us in latest_us.items():
            name = self.stream.name_of(split)
            self.observed_us[name] = max(us, self.observed_us.get(name, us))
            promised_us = self._promised_us.get(split)
            watermarks_us[split] = of_max(us) if promised_us is None else max(of_max(us), promised_us)
        return watermarks_us if self.stream.strategy.emits else {}

    def _reader_backlog(self) -> dict[SplitId, int]:
        """The newest that is known: the next batch is planned already when this one is reported."""
        if self.reader is None or not self.reader.plans:
            return {}
        newest = list(self.reader.plans.values())[-1]
        return {self._reader_split(name): rows for name, rows in newest.backlog_rows.items()}

    def _watermarks(self, splits: Ids, latest_us: Micros) -> Mapping[SplitId, int]:
        """What `WatermarkStrategy.watermark_of_max` says, for a whole batch at once."""
        if not self.stream.strategy.emits:
            return {}
        on_time_us = latest_us - self.stream.strategy.out_of_orderness_us
        watermarks_us = on_time_us // _MILLISECOND_US * _MILLISECOND_US - _MILLISECOND_US
        return SplitColumn(splits, watermarks_us)

    def _sources(self, progress: Progress, heartbeat: int) -> list[SourceProgress]:
        """The sources of this stream: those nearest before its heartbeat.

        Not always directly before: a source that two streams share is there once, in front of both their heartbeats.
        """
        before = [s for s in progress.sources[:heartbeat] if HeartbeatOffset.find(s.end_offset) is None]
        return before[max(0, len(before) - self.stream.sources) :]

    def _discover(self, sources: list[SourceProgress], now_us: int) -> list[Effect]:
        """Take new splits from Kafka's own offsets: a partition may hold before its first row was read."""
        if not self.stream.kafka:
            return []
        # Not from the backlog: a batch that Spark runs again after a crash has end offsets and no latest ones.
        backlog = backlog_rows(sources)
        taken = {split: partition for partition, split in self._partitions.items()}
        new, empty = [], set()
        for partition in (p for source in sources for p in kafka_positions(source.end_offset)):
            if partition not in self._partitions:
                split, name = self.stream.partition_id(*partition)
                if split in taken:
                    self._refuse_merged(partition, taken[split], name)
                self._partitions[partition] = split
                taken[split] = partition
                self.stream.names[split] = name
                new.append(split)
                if backlog.get(partition) == 0:
                    empty.add(split)
        # New ones first: a stream without any split, if only for a moment, has nobody that holds its watermark.
        effects = self.handle(SplitsDiscovered(tuple(new), frozenset(empty)), now_us) if new else []
        return effects + self._let_go(sources, now_us)

    def _let_go(self, sources: list[SourceProgress], now_us: int) -> list[Effect]:
        """Partitions that no source reads any more, as of a topic that is not subscribed since the restart.

        They are not finished for good: one that comes back is a new split, and waited for.
        """
        read = [kafka_positions(source.end_offset) for source in sources]
        if not all(read):
            return []  # a source that has not said anything yet, or none of Kafka's
        live = {self._partitions[partition] for positions in read for partition in positions} | set(
            self.stream.declared
        )
        gone = tuple(split for split in self.coordinator.splits if split not in live)
        if not gone:
            return []
        self._partitions = {partition: split for partition, split in self._partitions.items() if split in live}
        for partition in (p for source in sources for p in kafka_positions(source.start_offset)):
            self.stream.names.setdefault(*self.stream.partition_id(*partition))  # a restart knows them by that alone
        names = sorted(map(self.stream.name_of, gone))
        more = len(names) - _NAMES_SHOWN
        log.warning(
            'stream "%s": not read any more, so not waited for any more: %s%s',
            self.stream.name,
            ", ".join(names[:_NAMES_SHOWN]),
            f" and {more} more" if more > 0 else "",
        )
        return self.handle(SplitsRemoved(gone), now_us)

    def _refuse_merged(self, partition: tuple[str, int], other: tuple[str, int], name: str) -> None:
        """Partition 0 of two topics is no single split: the one that is ahead would speak for the other."""
        self.refuse(
            f'stream "{self.stream.name}": the split {name} stands for partition {partition[1]} of both topic '
            f'"{other[0]}" and topic "{partition[0]}", so the one that is ahead would make the rows of the other late. '
            'Hint: pass split=["topic", "partition"].'
        )

    def _by_split(self, by_partition: Mapping[tuple[str, int], int]) -> dict[SplitId, int]:
        return {self._partitions[p]: rows for p, rows in by_partition.items() if p in self._partitions}

    def _note_unmeasured(self, progress: Progress, sources: list[SourceProgress]) -> None:
        """A batch with rows but no measurement: `foreachBatch` ran no action, or the plan lost the observation."""
        if sum(source.num_input_rows for source in sources) > 0 or progress.num_input_rows > 1:
            self.unmeasured_batches += 1
            log.warning(
                'stream "%s", query %s, batch %d: the batch was not measured, so the watermark holds. '
                "Hint: a foreachBatch function must run an action on the batch it is given.",
                self.stream.name,
                self.query_name if self.query_name is not None else progress.id,
                progress.batch_id,
            )

    def _keeps_names(self) -> bool:
        return self.stream.measurement is None or self.stream.measurement.sample_names

    def _log(self, effect: Effect) -> None:
        match effect:
            case SplitStateChanged(split, before, after, why):
                log.info(
                    'stream "%s": split %s is now %s, was %s: %s',
                    self.stream.name,
                    self.stream.name_of(split),
                    after.value,
                    before.value,
                    why,
                )
            case SplitReturnedLate(split, behind_us):
                log.warning(
                    'stream "%s": split %s came back %.3f s behind the low watermark; its rows there are late',
                    self.stream.name,
                    self.stream.name_of(split),
                    behind_us / 1e6,
                )
            case NotifyNewLowWatermark():
                pass  # once per batch: metrics and status show it


def _planned_to(sources: list[SourceProgress]) -> BatchOffset | None:
    """The offset that a planner of ours wrote, among the sources of one stream; None if none of them is ours."""
    found = (BatchOffset.find(source.end_offset) for source in sources)
    return next((offset for offset in found if offset is not None), None)
