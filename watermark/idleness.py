"""When is a quiet split idle? Time is an argument: nothing here reads a clock.

A split is idle when it was silent for *strictly longer* than the timeout, counting only the time in which it
could be read, and is not known to have rows waiting. Unknown backlog: the timeout alone decides. Known
backlog: never; such a split is lagging, not idle.

The times given are moments up to which the source was read, not the wall clock: a batch that runs for five
minutes proves nothing about the splits it does not read meanwhile.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

from .state import SplitId, split_order


@dataclass(slots=True, eq=False)
class _Timer:
    heard_us: int  # never decreases; pauses are added to it
    paused_at_us: int | None = None
    queued: bool = False  # has an entry in the heap
    gone: bool = False

    def __lt__(self, other: object) -> bool:
        return False  # asked only when a forgotten split came back: two entries, one id


class Idleness:
    """Timers of silence, one per split that is not idle. O(log n) amortised.

    The heap holds one entry per split with a lower bound of when it was last heard, as in the coalescer.

    Args:
        timeout_us: how long a split may be silent, microseconds.

    Raises:
        ValueError: the timeout is not positive.

    Source: Flink's ``WatermarksWithIdleness``; the backlog rule is Kafka Streams'
        ``PartitionGroup.readyToProcess``
    (KIP-695); pauses are FLIP-471.

    >>> idleness = Idleness(timeout_us=10)
    >>> for split in ("a", "b", "c"): idleness.heard(split, 0)
    >>> idleness.quiet(10, {"b": 3})            # exactly the timeout is not yet idle
    []
    >>> idleness.quiet(11, {"b": 3, "c": 0})    # b has rows waiting, nobody knows about a
    ['a', 'c']
    >>> idleness.quiet(12, {"b": 0})
    ['b']
    """

    def __init__(self, timeout_us: int) -> None:
        if timeout_us <= 0:
            raise ValueError(f"idle timeout: expected more than 0 us, got {timeout_us}")
        self.timeout_us = timeout_us
        self._timers: dict[SplitId, _Timer] = {}
        self._heap: list[tuple[int, SplitId, _Timer]] = []
        self._overdue: dict[SplitId, _Timer] = {}  # silent for too long, and spared for their backlog

    def heard(self, split: SplitId, at_us: int) -> None:
        """A split delivered rows, or became known, at ``at_us``. Old news changes nothing."""
        timer = self._timers.get(split)
        if timer is None:
            timer = self._timers[split] = _Timer(at_us)
        elif at_us > timer.heard_us:
            timer.heard_us = at_us
            self._overdue.pop(split, None)
        self._enqueue(split, timer)

    def pause(self, split: SplitId, at_us: int) -> None:
        """From now on the split is not read, so its silence means nothing. Unknown or paused already:
        no-op.
        """
        timer = self._timers.get(split)
        if timer is not None and timer.paused_at_us is None:
            timer.paused_at_us = at_us
            self._overdue.pop(split, None)

    def resume(self, split: SplitId, at_us: int) -> None:
        """The split is read again; the time since ``pause`` does not count as silence. Not paused: no-op."""
        timer = self._timers.get(split)
        if timer is not None and timer.paused_at_us is not None:
            timer.heard_us += max(0, at_us - max(timer.paused_at_us, timer.heard_us))
            timer.paused_at_us = None
            self._enqueue(split, timer)

    def forget(self, split: SplitId) -> None:
        """Stop timing a split: it finished, was removed, or is left out for another reason."""
        timer = self._timers.pop(split, None)
        if timer is not None:
            timer.gone = True
            self._overdue.pop(split, None)

    def heard_us(self, split: SplitId) -> int | None:
        """From when the silence of this split is counted; None if it is not, and while it is paused."""
        timer = self._timers.get(split)
        return None if timer is None or timer.paused_at_us is not None else timer.heard_us

    def timed(self, split: SplitId) -> bool:
        """Whether the silence of this split is being timed."""
        return split in self._timers

    def quiet(self, until_us: int, backlog_rows: Mapping[SplitId, int]) -> list[SplitId]:
        """Name the splits that became idle; they are timed again from their next ``heard``.

        Args:
            until_us: the source was read up to this moment; same clock as ``heard``.
            backlog_rows: rows still unread per split; a split that is missing is unknown.

        Returns:
            Split ids, sorted, so that one history gives one answer. Each is named once.
        """
        while self._heap and self._heap[0][0] + self.timeout_us < until_us:
            bound_us, split, timer = heapq.heappop(self._heap)
            timer.queued = False
            if timer.gone or timer.paused_at_us is not None:
                continue
            if timer.heard_us != bound_us:
                self._enqueue(split, timer)
            else:
                self._overdue[split] = timer
        named = [s for s, t in self._overdue.items() if not backlog_rows.get(s, 0) > 0 and self._silent(t, until_us)]
        for split in named:
            self.forget(split)
        return sorted(named, key=split_order)

    def next_deadline_us(self) -> int | None:
        """The first moment at which silence alone could make a split idle; None if there is none.

        Splits that are overdue but have rows waiting do not count: time alone changes nothing for them.
        """
        while self._heap:
            bound_us, split, timer = self._heap[0]
            if timer.gone or timer.paused_at_us is not None:
                heapq.heappop(self._heap)
                timer.queued = False
            elif timer.heard_us != bound_us:
                heapq.heapreplace(self._heap, (timer.heard_us, split, timer))
            else:
                return timer.heard_us + self.timeout_us + 1
        return None

    def _silent(self, timer: _Timer, until_us: int) -> bool:
        return until_us - timer.heard_us > self.timeout_us

    def _enqueue(self, split: SplitId, timer: _Timer) -> None:
        if not timer.queued and split not in self._overdue and timer.paused_at_us is None:
            heapq.heappush(self._heap, (timer.heard_us, split, timer))
            timer.queued = True
