"""Plans the batches of a source: FLIP-27's coordinator and readers, driven by an engine that asks before it reads.

    engine                     BatchPlanner                          FLIP-27
    "from here, how far?"      splits that were assigned, sliced     assign_splits -> reader slots
    writes the offset          the coordinator's checkpoint,         snapshot_state(checkpoint id)
                               the splits' positions, the slices
    reads the slices           (on an executor)                      SourceReader, SplitReader
    "this one is committed"    notify_checkpoint_complete            the same

A planner may be asked from any offset at any time. If the offset is not its present offset, it restores everything from
the given offset. So a new process, a batch that is planned twice, and a restart are one case.

A batch may be planned with a peer: the peer says how far alignment lets the source read, and is told the plan.
Knows nothing of Spark.

One file, because a batch is planned in one pass from the offset to the slices.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Generic

from lowmark.sources.api import Source, SourceEvent, SplitPlanner, SplitT
from lowmark.sources.coordinator import SourceCoordinator, SourceFailed
from lowmark.sources.slicing import NextRow, NoRowsReason, SliceLimits, SlicePlan, next_row, plan_slices
from lowmark.watermark import LowmarkError, format_duration_us

from .induced import InducedBatches
from .offset import BatchOffset, BatchState, Placed, UnreadableOffset
from .options import PlanOptions
from .peer import Guidance, Planned, PlanPeer
from .rate import RateBudget, RateLimiterStrategy
from .slots import Slots, SlotWork
from .telling import SAY_AGAIN_SECONDS, Telling

__all__ = ["BatchPlanner", "NoSplits", "PlanningFailed"]

log = logging.getLogger("lowmark")

# Spark asks an idle source every 10 ms, and its system must not get 100 questions a second.
_EMPTY_PLAN_LASTS_US = 100_000
_LOOK_AGAIN_SECONDS = 0.05
_SAY_AGAIN_SECONDS = 60.0
_LATEST_US = 2**53
_HELD_BACK = frozenset({NoRowsReason.CAP, NoRowsReason.CHECKPOINT})
_CLOSE_SECONDS = 10.0


_TELLS_NOBODY = SplitPlanner.notify_checkpoint_complete


class PlanningFailed(LowmarkError, RuntimeError):
    """A batch could not be planned."""

    source: str  # name of the source
    batch: int  # checkpoint id of the batch
    cause: str  # the error's type and text
    _fact = "source {source!r}: cannot plan batch {batch}: {cause}"
    _hint = "remove the cause and start the query again; it goes on from its checkpoint."
    _cause_knows_best = True


class NoSplits(LowmarkError, TimeoutError):
    """An enumerator was silent for too long, so it is unknown whether there is anything to read."""

    source: str  # name of the source
    seconds: float  # how long the planner waited
    _fact = (
        "source {source!r}: its enumerator has neither assigned a split nor said that there is none within {seconds:g} "
        "seconds"
    )
    _hint = "is the system reachable? The run ends here, since it would read nothing."


class BatchPlanner(Generic[SplitT]):
    """Plans one source's batches. One caller at a time; the enumerator has a thread of its own.

    Args:
        source: the source to read.
        name: name of the stream, for logs, errors and offsets.
        options: how to cut batches.
        now_us: the wall clock, microseconds since the epoch, for event times and for people.
        peer: the peer to ask and to tell; None: no peer.
        steady_us: a clock that never steps, microseconds, for waits and the rate.

    Raises (from every call):
        SourceFailed: the enumerator failed too often, with the cause; or an error of the source's planner.
    """

    def __init__(
        self,
        source: Source[SplitT, Any],
        *,
        name: str,
        options: PlanOptions,
        now_us: Callable[[], int],
        peer: PlanPeer | None = None,
        steady_us: Callable[[], int] = lambda: time.monotonic_ns() // 1_000,
    ) -> None:
        self._source, self._name, self._options = source, name, options
        self._now_us, self._steady_us, self._peer = now_us, steady_us, peer
        self._token = uuid.uuid4().hex
        self._slots: Slots[SplitT] = Slots()
        self._coordinator: SourceCoordinator[SplitT, Any] | None = None
        self._planner: SplitPlanner[SplitT] | None = None
        self._at: BatchOffset | None = None  # the offset of the three fields above
        self._live: dict[str, Placed[SplitT]] = {}
        self._previous_time_us: int | None = None
        self._previous_span_us: int | None = None
        self._tasks: dict[int, dict[int, tuple[SourceEvent, ...]]] = {}
        self._requested: Future[None] | None = None
        self._targets: dict[str, int] | None = None
        self._available_now = False
        self._waits = False  # whether alignment or the rate held rows back in the newest plan
        self._empty_until_us: int | None = None  # by the steady clock
        self._budget = RateBudget(options.rate if options.rate is not None else RateLimiterStrategy.no_op())
        self._telling = Telling(peer, self._token, now_us)
        self._induced: InducedBatches[SplitT] | None = None  # if its system decides when a batch ends

    def initial(self) -> BatchOffset:
        """Return the offset before the first batch. May be called more than once."""
        return BatchOffset(self._name)

    def stop_at_present(self) -> None:
        """From now on plan only rows that are present when the next batch is planned (Trigger.AvailableNow)."""
        self._available_now, self._targets = True, None

    def plan(self, start: BatchOffset, max_rows: int | None) -> BatchOffset:
        """Plan the next batch.

        Args:
            start: the offset where it begins, of this process or an earlier process.
            max_rows: its rough largest number of rows; None: all rows.

        Returns:
            The offset where it ends; `start` itself if there is nothing to read.

        Raises:
            UnreadableOffset: `start` is of another source, or broken.
        """
        end = self._plan(start, max_rows)
        began = said = time.monotonic()
        while end == start and self._available_now and self._waits:
            # An empty answer would end this run, although alignment or the rate only holds rows back for now.
            if time.monotonic() - said > _SAY_AGAIN_SECONDS:
                said = time.monotonic()
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

    def _plan(self, start: BatchOffset, max_rows: int | None) -> BatchOffset:
        self._telling.planning()
        now_us, steady_us = self._now_us(), self._steady_us()
        if self._at is None or start.checkpoint != self._at.checkpoint:
            self._restore(start)
        elif self._empty_until_us is not None and steady_us < self._empty_until_us:
            return start
        guidance = Guidance() if self._peer is None else self._peer.ask(self._token)
        if guidance.available_now and not self._available_now:
            self.stop_at_present()
        self._pass_on(guidance.events)
        self._ask_for_splits()
        candidates = self._live | self._slots.arrived()
        if candidates:
            self._telling.found()
        rated = self._budget.grant(steady_us)
        self._waits = rated == 0
        if rated == 0:
            return start
        try:
            with nullcontext() if start.checkpoint else self._telling.planning_first(len(candidates)):
                plan, next_us = self._slice(candidates, self._limits(guidance, max_rows, rated, now_us), guidance)
        except SourceFailed:
            raise  # a LowmarkError names the source itself
        except Exception as cause:
            raise PlanningFailed(self._name, start.checkpoint + 1, f"{type(cause).__name__}: {cause}") from cause
        self._budget.take(plan.rows, more=plan.more)
        self._waits = guidance.hold or not _HELD_BACK.isdisjoint(plan.without_rows.values())
        if not self._moves(plan, candidates, guidance):
            self._empty_until_us = steady_us + _EMPTY_PLAN_LASTS_US
            self._tell(start.checkpoint, candidates, plan, next_us)
            return start
        self._empty_until_us = None
        try:
            cuts = self._cut(candidates, plan)
        except Exception as cause:
            raise PlanningFailed(self._name, start.checkpoint + 1, f"{type(cause).__name__}: {cause}") from cause
        return self._write(start.checkpoint + 1, candidates, plan, cuts, next_us)

    def tasks(self, start: BatchOffset, end: BatchOffset) -> list[SlotWork[SplitT]]:
        """Return the task of each reader slot between two offsets. Except for events, only the offsets decide it.

        Raises:
            UnreadableOffset: the offsets are not the two ends of one batch.
        """
        if end.checkpoint == start.checkpoint:
            return []
        if end.checkpoint != start.checkpoint + 1:
            raise UnreadableOffset(
                self._name,
                f"a batch from checkpoint {start.checkpoint} to {end.checkpoint}; expected neighbours",
            )
        by_slot: dict[int, list[SplitT]] = {}
        for placed in end.decode(self._source.split_serializer).slices:
            by_slot.setdefault(placed.subtask % self._options.slots, []).append(placed.split)
        if self._at is None and by_slot:
            self._telling.reading_again(sum(map(len, by_slot.values())))
        events = self._tasks.get(end.checkpoint, {})
        return [
            SlotWork(subtask, end.checkpoint, tuple(by_slot.get(subtask, ())), events.get(subtask, ()))
            for subtask in sorted(by_slot.keys() | events.keys())
        ]

    def committed(self, end: BatchOffset) -> None:
        """Note that the batch that ends at an offset was committed."""
        if self._coordinator is not None:
            self._coordinator.notify_checkpoint_complete(end.checkpoint)
        if self._induced is not None:
            self._induced.committed(end.checkpoint)
        planner = self._planner
        if planner is not None and type(planner).notify_checkpoint_complete is not _TELLS_NOBODY:
            live = end.decode(self._source.split_serializer).live
            planner.notify_checkpoint_complete([placed.split for placed in live])

    def latest(self) -> dict[str, int]:
        """Return the present end of every live split, as far as known, for people."""
        if self._planner is None:
            return {}
        ends = self._planner.latest([placed.split for placed in self._live.values()])
        return dict(sorted((split_id, end.position) for split_id, end in ends.items()))

    def close(self) -> None:
        """End threads and close connections."""
        self._telling.planning()
        if self._induced is not None:
            self._induced.close()
        if self._planner is not None:
            self._planner.close()
        if self._coordinator is not None:
            self._coordinator.close(min(_CLOSE_SECONDS, self._options.timeout_seconds))
        self._coordinator = self._planner = self._at = self._induced = None

    # -- the present offset

    def _restore(self, start: BatchOffset) -> None:
        if start.source != self._name:
            raise UnreadableOffset(self._name, f'it is of the source "{start.source}"')
        state = start.decode(self._source.split_serializer)
        self.close()
        self._slots = Slots()
        self._live = {
            placed.split.split_id: replace(placed, subtask=placed.subtask % self._options.slots)
            for placed in state.live
        }
        self._slots.settle(self._live)
        if state.live or start.checkpoint:
            self._telling.found()
        else:
            self._telling.search()
        self._previous_time_us, self._previous_span_us, self._targets = state.time_us, None, None
        coordinator = SourceCoordinator(
            self._source,
            name=self._name,
            gateway=self._slots,
            num_subtasks=self._options.slots,
            failover=self._options.failover,
            timeout_seconds=self._options.timeout_seconds,
        )
        self._coordinator, self._planner, self._requested = coordinator, self._source.create_planner(), None
        if state.coordinator:
            coordinator.reset_to_checkpoint(start.checkpoint, state.coordinator)
        coordinator.start()
        for subtask in range(self._options.slots):
            coordinator.register_reader(subtask)
        self._await_splits(coordinator)
        if self._source.externally_induced:
            live = [placed.split for placed in self._live.values()]
            self._induced = InducedBatches(self._source, self._name, live)
        self._at = start

    def _await_splits(self, coordinator: SourceCoordinator[SplitT, Any]) -> None:
        """Wait for first splits, so that the first batch has the present rows although Spark does not wait."""
        coordinator.run("start the enumerator and register its readers", lambda: None)
        coordinator.wait(self._ask_for_splits(), "hand out the splits that readers ask for")
        began = time.monotonic()
        say_at, until = began + SAY_AGAIN_SECONDS, began + self._options.start_seconds
        while not self._slots.wait(_LOOK_AGAIN_SECONDS) and not self._live and coordinator.failure is None:
            self._ask_for_splits()
            # An enumerator that counts its discoveries has found nothing; another enumerator may still be waiting.
            if coordinator.metric_values().get("discoveries", 0) > 0:
                return
            if time.monotonic() > say_at:
                if say_at == began + SAY_AGAIN_SECONDS:
                    log.warning(
                        'source "%s": no split was found for %g seconds, and it is waited for %g: is the system '
                        "reachable?", self._name, SAY_AGAIN_SECONDS, self._options.start_seconds,
                    )  # fmt: skip
                say_at += SAY_AGAIN_SECONDS
                if (why := self._telling.why_no_splits(looked=False)) is not None:
                    self._telling.tell_missing(why)
            if time.monotonic() > until:
                late = NoSplits(self._name, self._options.start_seconds)
                if self._available_now:
                    raise late
                log.warning("%s", late)
                return

    def _ask_for_splits(self) -> Future[None]:
        """Let an enumerator that assigns on request (FLIP-27) give all its splits, for this or the next plan."""
        assert self._coordinator is not None, "restored before"
        if self._requested is None or self._requested.done():
            self._requested = self._coordinator.request_splits()
        return self._requested

    def _pass_on(self, events: Sequence[tuple[int, int, bytes]]) -> None:
        assert self._coordinator is not None, "restored before"
        serializer = self._source.event_serializer
        if serializer is not None:
            for subtask, version, data in events:
                self._coordinator.handle_source_event(subtask, serializer.deserialize(version, data))

    # -- the batch

    def _limits(self, guidance: Guidance, max_rows: int | None, rated: int | None, now_us: int) -> SliceLimits:
        budgets = [rows for rows in (max_rows, rated) if rows is not None]
        return SliceLimits(
            rows=min(budgets, default=None),
            size_bytes=self._options.max_bytes,
            read_before_us=guidance.read_before_us,
            paused=guidance.paused,
            observed_us=guidance.observed_us,
            now_us=now_us,
            future_guard_us=self._options.future_guard_us,
            targets=self._targets,
            by_time=self._options.by_time,
            max_slice_us=self._options.max_slice_us,
            previous_span_us=self._previous_span_us,
        )

    def _slice(
        self, candidates: Mapping[str, Placed[SplitT]], limits: SliceLimits, guidance: Guidance
    ) -> tuple[SlicePlan, int | None]:
        """Return the plan, and the event time of the next row if only alignment keeps that row from being read."""
        assert self._planner is not None, "restored before"
        assert self._at is not None, "restored before"
        if self._coordinator is not None and self._coordinator.failure is not None:
            raise self._coordinator.failure
        splits = [placed.split for placed in candidates.values()]
        if self._available_now and self._targets is None:
            self._targets = {name: end.position for name, end in self._planner.latest(splits).items()}
            limits = replace(limits, targets=self._targets)
        if self._induced is not None:
            checkpoint, rows_before = self._at.checkpoint + 1, self._planner.rows_before
            return self._induced.plan(splits, checkpoint, rows_before=rows_before, targets=self._targets), None
        if guidance.hold:
            return self._look_ahead(self._planner, splits, limits)
        plan = plan_slices(self._planner, splits, limits, previous_time_us=self._previous_time_us)
        if plan.rows or limits.read_before_us is None or NoRowsReason.CAP not in plan.without_rows.values():
            return plan, None
        # Near the cap: then the found time and the cap differ by whole milliseconds, and compare exactly.
        return plan, self._next_row(self._planner, splits, limits, limits.read_before_us).wanted_us

    def _look_ahead(
        self, planner: SplitPlanner[SplitT], splits: Sequence[SplitT], limits: SliceLimits
    ) -> tuple[SlicePlan, int | None]:
        """Plan nothing, but tell where every split goes on, because other members wait for this source, too.

        A source that cannot search by time has to read once to find out.
        """
        near_us = limits.now_us if self._previous_time_us is None else self._previous_time_us
        found = self._next_row(planner, splits, limits, near_us)
        if not found.searchable and not limits.observed_us:
            return plan_slices(planner, splits, limits, previous_time_us=None), None
        if found.time_us is None:
            limits = replace(limits, paused=frozenset(split.split_id for split in splits))
        else:
            limits = replace(limits, read_before_us=found.time_us)
        return plan_slices(planner, splits, limits, previous_time_us=self._previous_time_us), found.wanted_us

    def _next_row(
        self, planner: SplitPlanner[SplitT], splits: Sequence[SplitT], limits: SliceLimits, near_us: int
    ) -> NextRow:
        guard_us = limits.future_guard_us
        until_us = _LATEST_US if guard_us is None else limits.now_us + guard_us
        return next_row(planner, splits, near_us=near_us, until_us=until_us)

    def _moves(self, plan: SlicePlan, candidates: Mapping[str, Placed[SplitT]], guidance: Guidance) -> bool:
        """Whether the plan is worth a batch: it has rows, the end of a split, or a split that is in no offset yet.

        While the peer waits to hear of this planner, even an empty first plan is worth a batch, because the peer learns
        from the offset of a batch which query this planner belongs to.
        """
        new = candidates.keys() - self._live.keys()
        unheard = guidance.hold and (self._at is None or self._at.token != self._token)
        return bool(new) or unheard or any(cut.stop > cut.start or cut.finished for cut in plan.slices.values())

    def _cut(self, candidates: Mapping[str, Placed[SplitT]], plan: SlicePlan) -> Mapping[str, tuple[SplitT, SplitT]]:
        """Return for each planned split its slice of the batch, and the split that goes on after the slice."""
        assert self._planner is not None, "restored before"
        names = [name for name in sorted(candidates) if name in plan.slices]
        cut = self._planner.cut([(candidates[name].split, plan.slices[name].stop) for name in names])
        return dict(zip(names, cut, strict=True))

    def _write(
        self,
        checkpoint: int,
        candidates: Mapping[str, Placed[SplitT]],
        plan: SlicePlan,
        cuts: Mapping[str, tuple[SplitT, SplitT]],
        next_us: int | None,
    ) -> BatchOffset:
        assert self._coordinator is not None, "restored before"
        # Before the snapshot, which has to agree with the positions, because a hybrid source switches here.
        for name, planned in plan.slices.items():
            if planned.finished:
                self._coordinator.handle_splits_finished(candidates[name].subtask, [name])
        action = f"take the enumerator's snapshot for checkpoint {checkpoint}"
        snapshot = self._coordinator.wait(self._coordinator.checkpoint(checkpoint), action)
        # Splits assigned while the batch was planned are no longer in the enumerator's state: live, but unread.
        candidates = {**self._slots.in_snapshot(), **candidates}
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
        end = BatchOffset.encode(self._name, checkpoint, self._token, state, self._source.split_serializer)
        self._tell(checkpoint, candidates, plan, next_us)
        self._tasks = {checkpoint: self._slots.take_events()}
        self._slots.settle(candidates)
        self._at, self._live = end, live
        if plan.time_us is not None:
            before_us, self._previous_time_us = self._previous_time_us, plan.time_us
            self._previous_span_us = None if before_us is None else max(0, plan.time_us - before_us)
        return end

    def _tell(
        self,
        checkpoint: int,
        candidates: Mapping[str, Placed[SplitT]],
        plan: SlicePlan,
        next_us: int | None,
    ) -> None:
        assert self._planner is not None, "restored before"
        assert self._coordinator is not None, "restored before"
        slices, metrics = plan.slices, self._coordinator.metric_values()
        planned = Planned(
            checkpoint=checkpoint,
            splits={name: placed.split.parents for name, placed in candidates.items()},
            claims_us={name: cut.claim_us for name, cut in slices.items() if cut.claim_us is not None},
            rows={name: cut.rows for name, cut in slices.items() if cut.rows},
            backlog_rows={name: cut.backlog_rows for name, cut in slices.items()},
            finished=tuple(sorted(name for name, cut in slices.items() if cut.finished)),
            paused=frozenset(name for name, why in plan.without_rows.items() if why is NoRowsReason.CAP),
            next_us=next_us,
            metrics={**metrics, **self._planner.metric_values()},
            missing=self._telling.why_no_splits(looked=metrics.get("discoveries", 0) > 0),
            trouble=self._planner.trouble() or (None if self._induced is None else self._induced.trouble()),
            complete=self._slots.complete,
        )
        self._telling.tell(planned)
