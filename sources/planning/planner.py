"""Plans the batches of a source: FLIP-27's coordinator and readers, driven by an engine that asks before it reads.

    engine                     BatchPlanner                          FLIP-27
    "from here, how far?"      splits that were assigned, sliced     assign_splits -> reader slots
    writes the offset          the coordinator's checkpoint,         snapshot_state(checkpoint id)
                               the splits' positions, the slices
    reads the slices           (on an executor)                      SourceReader, SplitReader
    "this one is committed"    notify_checkpoint_complete            the same

A planner may be asked from any offset at any time. If the offset is not its present offset, it restores everything from
the given offset. So a new process, a batch that is planned twice, and a restart are one case.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Generic

from lowmark.sources.api import Source, SourceEvent, SplitT
from lowmark.sources.closing import closed_on_error
from lowmark.sources.metric_group import added_up
from lowmark.sources.slicing import NoRowsReason, SlicePlan
from lowmark.sources.worker import described
from lowmark.watermark import LowmarkError, format_duration_us
from lowmark.watermark.printable import counted

from .enumeration import Enumeration
from .extent import Extent
from .offset import BatchOffset, BatchState, Placed, UnreadableOffset, check_readable
from .options import PlanOptions
from .peer import Guidance, Planned, PlanPeer
from .rate import RateBudget, RateLimiterStrategy
from .slots import SlotWork, spread
from .telling import Telling

log = logging.getLogger("lowmark")

# Spark asks an idle source every 10 ms, and its system must not get 100 questions a second.
_EMPTY_PLAN_LASTS_US = 100_000
_WARN_AGAIN_SECONDS = 60.0
_HELD_BACK = frozenset({NoRowsReason.CAP, NoRowsReason.CHECKPOINT})
# The silence of these splits is no evidence against them.
_NOT_READ = frozenset({NoRowsReason.CAP, NoRowsReason.NOT_REACHABLE})


class PlanningFailed(LowmarkError, RuntimeError):
    """A batch could not be planned."""

    source: str  # name of the source
    batch: int  # checkpoint id of the batch
    cause: str  # the error's type and text
    _fact = "source {source!r}: cannot plan batch {batch}: {cause}"
    _hint = "remove the cause and start the query again; it goes on from its checkpoint."
    _cause_knows_best = True


@dataclass(frozen=True)
class _NamingBatch:
    """Raises an error of the source as one that names source and batch.

    It is no generator, because contextlib would raise a StopIteration in place of the RuntimeError that it caused.
    """

    source: str
    batch: int

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, cause: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(cause, Exception):
            raise PlanningFailed(self.source, self.batch, described(cause)) from cause


@dataclass
class _Present(Generic[SplitT]):
    """Everything that was restored from one offset and planned since."""

    at: BatchOffset  # of the newest plan
    live: dict[str, Placed[SplitT]]  # the splits that go on from that offset, by id
    enumeration: Enumeration[SplitT]
    extent: Extent[SplitT]

    def close(self) -> None:
        try:
            self.extent.close()
        finally:
            self.enumeration.close()


class BatchPlanner(Generic[SplitT]):
    """Plans one source's batches. One caller at a time; the enumerator has a thread of its own.

    Every call may raise `SourceFailed` and `PlanningFailed`.

    Args:
        name: name of the stream, for logs, errors and offsets.
        now_us: the wall clock, microseconds since the epoch, for event times and for people.
        steady_us: a clock that never steps, microseconds, for waits and the rate.
    """

    def __init__(
        self,
        source: Source[SplitT, Any],
        *,
        name: str,
        options: PlanOptions,
        peer: PlanPeer | None = None,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1_000,
        steady_us: Callable[[], int] = lambda: time.monotonic_ns() // 1_000,
    ) -> None:
        self._source, self._name, self._options = source, name, options
        self._now_us, self._steady_us, self._peer = now_us, steady_us, peer
        self._token = uuid.uuid4().hex
        self._present: _Present[SplitT] | None = None
        self._events: dict[int, dict[int, tuple[SourceEvent, ...]]] = {}  # of the newest batch: checkpoint -> by slot
        self._available_now = False
        self._waits = False  # whether alignment or the rate held rows back in the newest plan
        self._unanswered: list[str] = []  # splits without an answer that a run that ends has to read
        self._empty_until_us: int | None = None  # by the steady clock
        self._budget = RateBudget(options.rate if options.rate is not None else RateLimiterStrategy.no_op())
        self._telling = Telling(peer, self._token, now_us)

    def initial(self) -> BatchOffset:
        """Return the offset before the first batch. May be called more than once."""
        return BatchOffset(self._name)

    def stop_at_present(self) -> None:
        """From now on plan only rows that are present when the next batch is planned (Trigger.AvailableNow)."""
        self._available_now = True

    def plan(self, start: BatchOffset, max_rows: int | None) -> BatchOffset:
        """Plan the next batch, from an offset of this process or an earlier process.

        Args:
            max_rows: its rough largest number of rows; None: all rows.

        Returns:
            The offset where it ends; `start` itself if there is nothing to read.

        Raises:
            UnreadableOffset: `start` is of another source, or broken.
        """
        end = self._plan(start, max_rows)
        began = said = silent_since = time.monotonic()
        while end == start and self._available_now and (self._waits or self._unanswered):
            # An empty answer would end this run, although alignment or the rate only holds rows back for now, or a
            # split only does not answer for now.
            now = time.monotonic()
            if self._waits:
                silent_since = now
            elif now - silent_since > self._options.timeout_seconds:
                raise PlanningFailed(self._name, start.checkpoint + 1, self._without_answer())
            if now - said > _WARN_AGAIN_SECONDS:
                said = now
                waited = format_duration_us(int(said - began) * 1_000_000)
                log.warning(
                    'source "%s": waits for its alignment group, its rate or its checkpoint, for %s by now',
                    self._name,
                    waited,
                )
            time.sleep(_EMPTY_PLAN_LASTS_US / 1e6)
            self._empty_until_us = None
            end = self._plan(start, max_rows)
        return end

    def _without_answer(self) -> str:
        count, seconds = len(self._unanswered), self._options.timeout_seconds
        return (
            f"{counted(count, 'split')}, such as {self._unanswered[0]!r}, gave no answer for {seconds:g} seconds, "
            "and the run would end without their rows"
        )

    def _plan(self, start: BatchOffset, max_rows: int | None) -> BatchOffset:
        self._telling.planning()
        now_us, steady_us = self._now_us(), self._steady_us()
        present = self._present
        if present is None or start.checkpoint != present.at.checkpoint:
            present = self._restore(start)
        elif self._empty_until_us is not None and steady_us < self._empty_until_us:
            return start
        guidance = Guidance() if self._peer is None else self._peer.ask(self._token)
        self._available_now |= guidance.available_now
        enumeration = present.enumeration
        if self._available_now:
            enumeration.wait_for_all(self._telling)
        enumeration.pass_on(guidance.events)
        enumeration.ask_for_splits()
        candidates = present.live | enumeration.slots.arrived()
        splits = [placed.split for placed in candidates.values()]
        if candidates:
            self._telling.found()
        rated = self._budget.grant(steady_us)
        self._waits, self._unanswered = rated == 0, []
        if rated == 0:
            return start
        if enumeration.coordinator.failure is not None:
            raise enumeration.coordinator.failure
        first = nullcontext() if start.checkpoint else self._telling.planning_first(len(candidates))
        with _NamingBatch(self._name, start.checkpoint + 1), first:
            plan = present.extent.plan(
                splits,
                guidance,
                checkpoint=start.checkpoint + 1,
                max_rows=min((rows for rows in (max_rows, rated) if rows is not None), default=None),
                now_us=now_us,
                to_present=self._available_now,
            )
        self._budget.take(plan.rows, more=plan.more)
        hold = guidance.hold and bool(present.extent.unfinished(splits))
        self._waits = hold or not _HELD_BACK.isdisjoint(plan.without_rows.values())
        self._unanswered = present.extent.unanswered(plan, splits)
        if not self._moves(present, plan, candidates, guidance):
            self._empty_until_us = steady_us + _EMPTY_PLAN_LASTS_US
            self._tell(present, start.checkpoint, candidates, plan)
            return start
        self._empty_until_us = None
        return self._write(present, start.checkpoint + 1, candidates, plan)

    def tasks(self, start: BatchOffset, end: BatchOffset) -> list[SlotWork[SplitT]]:
        """Return the task of each reader slot between two offsets. Except for events, only the offsets decide it.

        Raises:
            UnreadableOffset: the offsets are not the two ends of one batch.
        """
        if end.checkpoint == start.checkpoint:
            return []
        if end.checkpoint != start.checkpoint + 1:
            raise UnreadableOffset(
                self._name, f"a batch from checkpoint {start.checkpoint} to {end.checkpoint}; expected neighbours"
            )
        by_slot: dict[int, list[SplitT]] = {}
        for placed in end.decode(self._source.split_serializer).slices:
            by_slot.setdefault(placed.subtask % self._options.slots, []).append(placed.split)
        if self._present is None and by_slot:
            self._telling.reading_again(sum(map(len, by_slot.values())))
        events = self._events.get(end.checkpoint, {})
        return [
            SlotWork(subtask, end.checkpoint, tuple(by_slot.get(subtask, ())), events.get(subtask, ()))
            for subtask in sorted(by_slot.keys() | events.keys())
        ]

    def committed(self, end: BatchOffset) -> None:
        if self._present is not None:
            self._present.enumeration.coordinator.notify_checkpoint_complete(end.checkpoint)
            self._present.extent.committed(end)

    def close(self) -> None:
        self._telling.planning()
        present, self._present = self._present, None
        if present is not None:
            present.close()

    def _restore(self, start: BatchOffset) -> _Present[SplitT]:
        if start.source != self._name:
            hint = "read it by that name, or start with a new checkpoint."
            raise UnreadableOffset(self._name, f'it is of the source "{start.source}". Hint: {hint}')
        state = start.decode(self._source.split_serializer)
        self.close()
        live = {each.split.split_id: each for each in spread(state.live, self._options.slots)}
        if live or start.checkpoint:
            self._telling.found()
        else:
            self._telling.search()
        enumeration = Enumeration(
            self._source, self._name, self._options, checkpoint=start.checkpoint, state=state.coordinator, live=live
        )
        with closed_on_error(enumeration.close):
            enumeration.start(self._telling, ends=self._available_now)
            splits = [placed.split for placed in live.values()]
            with _NamingBatch(self._name, start.checkpoint + 1):
                extent = Extent(self._source, self._name, self._options, splits, state.time_us)
        self._present = _Present(start, live, enumeration, extent)
        return self._present

    def _moves(
        self, present: _Present[SplitT], plan: SlicePlan, candidates: Mapping[str, Placed[SplitT]], guidance: Guidance
    ) -> bool:
        """Whether the plan is worth a batch: it has rows, the end of a split, or a split that is in no offset yet.

        While the peer waits to hear of this planner, even an empty first plan is worth a batch, because the peer learns
        from the offset of a batch which query this planner belongs to. The same holds after a restart at the end of the
        input, because a kill may have kept from the peer that the last splits ended.
        """
        new = candidates.keys() - present.live.keys()
        over = self._peer is not None and not candidates and present.enumeration.slots.complete
        unheard = (guidance.hold or (over and present.at.checkpoint > 0)) and present.at.token != self._token
        return bool(new) or unheard or any(cut.stop > cut.start or cut.finished for cut in plan.slices.values())

    def _write(
        self, present: _Present[SplitT], checkpoint: int, candidates: Mapping[str, Placed[SplitT]], plan: SlicePlan
    ) -> BatchOffset:
        with _NamingBatch(self._name, checkpoint):
            names = sorted(candidates.keys() & plan.slices.keys())
            pairs = present.extent.planner.cut([(candidates[name].split, plan.slices[name].stop) for name in names])
            cuts = dict(zip(names, pairs, strict=True))
        finished = [candidates[name] for name, planned in plan.slices.items() if planned.finished]
        snapshot = present.enumeration.checkpoint(checkpoint, finished)
        slots = present.enumeration.slots
        # Splits assigned while the batch was planned are no longer in the enumerator's state: live, but unread.
        handed_out = slots.in_snapshot()
        told = {**handed_out, **candidates}
        # An enumerator that failed since, and was restored, hands out some splits again: a later batch reads these.
        again = candidates.keys() - present.live.keys() - handed_out.keys()
        plan = replace(plan, slices={name: cut for name, cut in plan.slices.items() if name not in again})
        candidates = {name: placed for name, placed in told.items() if name not in again}
        live: dict[str, Placed[SplitT]] = {}
        slices: list[Placed[SplitT]] = []
        for split_id, placed in sorted(candidates.items()):
            cut = plan.slices.get(split_id)
            if cut is None:
                live[split_id] = placed
                continue
            if cut.stop > cut.start:
                slices.append(replace(placed, split=cuts[split_id][0]))
            if not cut.finished:
                live[split_id] = replace(placed, split=cuts[split_id][1])
        state = BatchState(snapshot, tuple(live.values()), tuple(slices), plan.time_us)
        with _NamingBatch(self._name, checkpoint):
            serializer = self._source.split_serializer
            for name in candidates.keys() - present.live.keys():
                check_readable(candidates[name].split, serializer)
            end = BatchOffset.encode(self._name, checkpoint, self._token, state, serializer)
        self._tell(present, checkpoint, told, plan)
        self._events = {checkpoint: slots.take_events()}
        slots.settle(candidates)
        present.at, present.live = end, live
        present.extent.wrote(plan.time_us)
        return end

    def _tell(
        self, present: _Present[SplitT], checkpoint: int, candidates: Mapping[str, Placed[SplitT]], plan: SlicePlan
    ) -> None:
        slices, metrics = plan.slices, present.enumeration.coordinator.metric_values()
        planned = Planned(
            checkpoint=checkpoint,
            splits={name: placed.split.parents for name, placed in candidates.items()},
            claims_us={name: cut.claim_us for name, cut in slices.items() if cut.claim_us is not None},
            rows={name: cut.rows for name, cut in slices.items() if cut.rows},
            backlog_rows={name: cut.backlog_rows for name, cut in slices.items()},
            finished=tuple(sorted(name for name, cut in slices.items() if cut.finished)),
            paused=frozenset(name for name, why in plan.without_rows.items() if why in _NOT_READ),
            next_us=plan.next_us,
            metrics=added_up([metrics, present.extent.planner.metric_values()]),
            missing=self._telling.why_no_splits(looked=metrics.get("discoveries", 0) > 0),
            trouble=present.extent.trouble() or present.enumeration.trouble(self._now_us()),
            complete=present.enumeration.slots.complete,
        )
        self._telling.tell(planned)
