"""The minimum over values that may go up, down, or away.

Alignment uses it: the smallest watermark of the streams of a group. Unlike the coalescer's, its values may
regress, and its minimum follows them; nothing is latched.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

_SLACK = 64  # outdated heap entries tolerated beyond one per key, so that small aggregators never rebuild


class WatermarkAggregator(Generic[Key]):
    """The minimum of the latest value of every key. O(log n) amortised per update, O(1) to read.

    A heap holds every value given; entries that are no longer the latest of their key are dropped when they
    surface, or all at once when they outnumber the keys.

    Source: ``SourceCoordinator.WatermarkAggregator`` (FLINK-32420), with None instead of Long.MAX_VALUE for
        "idle".

    >>> streams = WatermarkAggregator[str]()
    >>> streams.aggregate("orders", 10), streams.aggregate("clicks", 12), streams.aggregate("clicks", 9)
    (10, None, 9)
    >>> streams.aggregate("clicks", None), streams.minimum_us
    (10, 10)
    """

    def __init__(self) -> None:
        self._latest: dict[Key, tuple[int, int, Key]] = {}  # of the keys that take part: their entry in the heap
        self._heap: list[tuple[int, int, Key]] = []  # (value, serial, key); the serial keeps keys from being compared
        self._serial = 0

    @property
    def minimum_us(self) -> int | None:
        """The smallest value, or None while no key takes part."""
        return self._heap[0][0] if self._heap else None

    def aggregate(self, key: Key, watermark_us: int | None) -> int | None:
        """Set the value of a key; None takes it out until its next value.

        Returns:
            The new minimum if this changed it, else None. A minimum that vanished (nobody takes part) is also
            None: ``minimum_us`` tells the two apart.
        """
        before_us = self.minimum_us
        if watermark_us is None:
            self._latest.pop(key, None)
        else:
            self._serial += 1
            entry = (watermark_us, self._serial, key)
            self._latest[key] = entry
            heapq.heappush(self._heap, entry)
        self._settle()
        after_us = self.minimum_us
        return None if after_us == before_us else after_us

    def remove(self, key: Key) -> int | None:
        """Forget a key, known or not. Returns as ``aggregate`` does."""
        return self.aggregate(key, None)

    def _settle(self) -> None:
        if len(self._heap) > 2 * len(self._latest) + _SLACK:
            self._heap = list(self._latest.values())
            heapq.heapify(self._heap)
        while self._heap and self._latest.get(self._heap[0][2]) is not self._heap[0]:
            heapq.heappop(self._heap)
