"""Tells the peer of a planner each plan, and the reason while there is no plan.

Searching hundreds of splits, or reading the times of files once, may take minutes without news of the source. The same
holds for a batch from before a restart whose reader waits for its system.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace

from lowmark.sources.worker import Worker
from lowmark.watermark import format_time_us
from lowmark.watermark.printable import counted

from .peer import Planned, PlanPeer

SAY_AGAIN_SECONDS = 10.0
"""How often the peer hears of a planner that has no plan yet."""
_SAY_FIRST_SECONDS = 1.0


class Telling:
    """Tells the peer of one planner, if it has a peer."""

    def __init__(self, peer: PlanPeer | None, token: str, now_us: Callable[[], int]) -> None:
        self._peer, self._token, self._now_us = peer, token, now_us
        self._told: Planned | None = None
        self._searched_us: int | None = None
        self._reading_again = ExitStack()

    def search(self) -> None:
        """From now on tell the peer since when splits are searched, because no split was ever found."""
        self._searched_us = self._now_us()

    def found(self) -> None:
        self._searched_us = None

    def why_no_splits(self, *, looked: bool) -> str | None:
        """Say since when splits are searched in vain; None: no search goes on. `looked`: the enumerator has looked."""
        if self._searched_us is None:
            return None
        found = "the enumerator found none" if looked else "the enumerator has not said what there is"
        return f"{found} since {format_time_us(self._searched_us)}. Does it exist, and can it be reached?"

    def tell(self, planned: Planned) -> None:
        """Tell a plan, unless it is the same as the last."""
        if self._peer is not None and replace(planned, metrics={}) != self._told:
            self._peer.tell(self._token, planned)
            self._told = replace(planned, metrics={})

    def tell_missing(self, why: str) -> None:
        if self._peer is not None:
            self._peer.tell(self._token, Planned(0, {}, missing=why))

    def planning_first(self, splits: int) -> AbstractContextManager[None]:
        """Say, while the block lasts, that the first batch of a stream is being planned, if no plan was told yet."""
        if self._peer is None or self._told is not None or not splits:
            return nullcontext()
        return self._saying(
            f"its first batch is being planned since {format_time_us(self._now_us())}, from {counted(splits, 'split')}."
        )

    def reading_again(self, slices: int) -> None:
        """Say until the next plan that the batch planned before a restart is being read again."""
        self.planning()
        if self._peer is not None:
            why = (
                f"the batch that was planned before the restart is being read since {format_time_us(self._now_us())}, "
                f"{counted(slices, 'slice')}. A reader that waits for its system says so in the log of its executor."
            )
            self._reading_again.enter_context(self._saying(why))

    def planning(self) -> None:
        """Note that the next batch is being planned, so that the previous batch was read."""
        self._reading_again.close()

    @contextmanager
    def _saying(self, why: str) -> Iterator[None]:
        """Tell on a thread of its own why there is no plan, until the block ends. The end waits for a running call."""
        over = threading.Event()

        def repeat() -> None:
            seconds = _SAY_FIRST_SECONDS
            while not over.wait(seconds):
                self.tell_missing(why)
                seconds = SAY_AGAIN_SECONDS

        worker = Worker("lowmark-first-batch", repeat)
        worker.start()
        try:
            yield
        finally:
            over.set()
            worker.join(threading.TIMEOUT_MAX)
