"""The enumerator of a source from one offset on, with the reader slots that get its splits and its events."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Generic

from lowmark.sources.api import Source, SplitT
from lowmark.sources.coordinator import SourceCoordinator
from lowmark.watermark import LowmarkError, format_time_us

from .offset import Placed
from .options import PlanOptions
from .slots import Slots
from .telling import SAY_AGAIN_SECONDS, Telling

log = logging.getLogger("lowmark")

_LOOK_AGAIN_SECONDS = 0.05
_CLOSE_SECONDS = 10.0


class NoSplits(LowmarkError, TimeoutError):
    """An enumerator was silent for too long, so it is unknown whether there is anything to read."""

    source: str  # name of the source
    seconds: float  # how long the planner waited
    _fact = (
        "source {source!r}: its enumerator has neither assigned a split nor said that there is none within {seconds:g} "
        "seconds"
    )
    _hint = "is the system reachable? The run ends here, since it would read nothing."


class Enumeration(Generic[SplitT]):
    """Runs the enumerator of a source on a thread of its own. Every call may raise `SourceFailed`.

    Args:
        checkpoint: the checkpoint id to go on from; 0: from the beginning.
        state: the coordinator's checkpoint; empty at the beginning.
        live: the splits that go on from the checkpoint.
    """

    def __init__(
        self,
        source: Source[SplitT, Any],
        name: str,
        options: PlanOptions,
        *,
        checkpoint: int,
        state: bytes,
        live: Mapping[str, Placed[SplitT]],
    ) -> None:
        self._source, self._name, self._options = source, name, options
        self._requested: Future[None] | None = None
        self._has_all_of: int | None = None  # the enumerator that has looked for all, by the number of restores
        self.slots: Slots[SplitT] = Slots(options.slots)  # what the enumerator has given, and no batch has taken
        self.slots.settle(live)
        self.coordinator: SourceCoordinator[SplitT, Any] = SourceCoordinator(
            source,
            name=name,
            gateway=self.slots,
            num_subtasks=options.slots,
            failover=options.failover,
            timeout_seconds=options.timeout_seconds,
        )
        if state:
            self.coordinator.reset_to_checkpoint(checkpoint, state)

    def start(self, telling: Telling, *, ends: bool) -> None:
        """Start the enumerator, and wait for first splits, because Spark does not wait for rows of the first batch.

        `telling` hears of a search in vain. A run that ends where nothing is to be read fails with `NoSplits` if the
        enumerator has not said whether there is a split.
        """
        self.coordinator.start()
        for subtask in range(self._options.slots):
            self.coordinator.register_reader(subtask)
        self.coordinator.run("start the enumerator and register its readers", lambda: None)
        self.coordinator.wait(self.ask_for_splits(), "hand out the splits that readers ask for")
        self._wait(telling, ends=ends)

    def wait_for_all(self, telling: Telling) -> None:
        """Wait until the enumerator has looked for splits, because a run that ends reads no splits that come later.

        An enumerator that was restored since looks again, because it may have forgotten splits. Raises `NoSplits`.
        """
        while (restores := self._restores()) != self._has_all_of:
            self._wait(telling, ends=True)
            self._has_all_of = restores

    def _restores(self) -> int:
        """How often the enumerator was restored. Asked on its thread, where an enumerator that failed is restored."""
        return self.coordinator.run("look whether it was restored", lambda: self.coordinator.restores)

    def _wait(self, telling: Telling, *, ends: bool) -> None:
        began = time.monotonic()
        say_at, until = began + SAY_AGAIN_SECONDS, began + self._options.start_seconds
        while not self._looked(ends=ends) and self.coordinator.failure is None:
            self.ask_for_splits()
            if time.monotonic() > say_at:
                if say_at == began + SAY_AGAIN_SECONDS:
                    log.warning(
                        'source "%s": no split was found for %g seconds, and it is waited for %g: is the system '
                        "reachable?", self._name, SAY_AGAIN_SECONDS, self._options.start_seconds,
                    )  # fmt: skip
                say_at += SAY_AGAIN_SECONDS
                if (why := telling.why_no_splits(looked=False)) is not None:
                    telling.tell_missing(why)
            if time.monotonic() > until:
                late = NoSplits(self._name, self._options.start_seconds)
                if ends:
                    raise late
                log.warning("%s", late)
                return
        if self.coordinator.failure is None:
            # The enumerator may still be handing out: it gives the splits of one discovery to slot after slot.
            self.coordinator.run("hand out the splits that were found", lambda: None)

    def _looked(self, *, ends: bool) -> bool:
        """Whether enough is known for a first plan: a split, or all splits if the run ends, or that there is none."""
        # An enumerator with a count of discoveries has found all splits. Another enumerator may still be waiting.
        discoveries = self.coordinator.metric_values().get("discoveries")
        if discoveries:
            return True
        if ends and discoveries is not None:
            time.sleep(_LOOK_AGAIN_SECONDS)
            return False
        return self.slots.wait(_LOOK_AGAIN_SECONDS) or self.slots.had_any

    def ask_for_splits(self) -> Future[None]:
        """Let an enumerator that assigns on request (FLIP-27) give all its splits, for this or the next plan."""
        if self._requested is None or self._requested.done():
            self._requested = self.coordinator.request_splits()
        return self._requested

    def pass_on(self, events: Sequence[tuple[int, int, bytes]]) -> None:
        """Pass on the events of readers, each with its subtask and the version of its bytes."""
        serializer = self._source.event_serializer
        if serializer is not None:
            for subtask, version, data in events:
                self.coordinator.handle_source_event(subtask, serializer.deserialize(version, data))

    def checkpoint(self, checkpoint: int, finished: Sequence[Placed[SplitT]]) -> bytes:
        """Return the coordinator's checkpoint for a batch in which some splits end."""
        # Before the snapshot, which has to agree with the positions, because a hybrid source switches here.
        for placed in finished:
            self.coordinator.handle_splits_finished(placed.subtask, [placed.split.split_id])
        action = f"take the enumerator's snapshot for checkpoint {checkpoint}"
        return self.coordinator.wait(self.coordinator.checkpoint(checkpoint), action)

    def trouble(self, now_us: int) -> str | None:
        """Say which call has not returned for long, because no new split is found meanwhile; None: no call."""
        slow = self.coordinator.slow_call()
        if slow is None:
            return None
        began_us = (now_us - slow[0]) // 1_000_000 * 1_000_000  # in seconds, because the two clocks differ by less
        return f"{slow[1]} has not returned since {format_time_us(began_us)}, so new splits are not found."

    def close(self) -> None:
        self.coordinator.close(min(_CLOSE_SECONDS, self._options.timeout_seconds))
