"""How often and how much one shard is read: what the service allows, kept to beforehand.

A shard takes five reads a second and gives 2 MB/s, of all its readers together. A reader that asks for more is refused,
and waits longer than one that asked in time. One read may bring 10 MB: the next one then comes five seconds later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["PACES", "Pace", "Paces"]

MOST_SHARDS = 10_000


class Pace:
    """When one shard may be read next.

    Args:
        reads_per_second: None: any number.
        bytes_per_second: None: any number.

    >>> pace = Pace(4.0, 2_000_000.0)
    >>> pace.wait_seconds(now_seconds=10.0)
    0.0
    >>> pace.took(now_seconds=10.0, size_bytes=1_000_000)
    >>> pace.wait_seconds(now_seconds=10.2)
    0.3
    """

    def __init__(self, reads_per_second: float | None, bytes_per_second: float | None) -> None:
        self._read_seconds = 0.0 if reads_per_second is None else 1.0 / reads_per_second
        self._byte_seconds = 0.0 if bytes_per_second is None else 1.0 / bytes_per_second
        self._next_seconds = 0.0

    def wait_seconds(self, *, now_seconds: float) -> float:
        """How long to wait before the next read."""
        return round(max(0.0, self._next_seconds - now_seconds), 6)

    def hold(self, *, now_seconds: float, for_seconds: float) -> None:
        """Leave the shard alone for so long: somebody else has read it."""
        self._next_seconds = max(self._next_seconds, now_seconds + for_seconds)

    def took(self, *, now_seconds: float, size_bytes: int) -> None:
        """A read, begun at this time, brought so much."""
        self._next_seconds = max(self._next_seconds, now_seconds) + max(
            self._read_seconds, size_bytes * self._byte_seconds
        )


class Paces:
    """The paces of all shards that this process reads: slices of one shard, and looks at it, follow each other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paces: dict[object, Pace] = {}

    def of(self, key: object, make: Callable[[], Pace]) -> Pace:
        """Return a shard's pace."""
        with self._lock:
            if len(self._paces) > MOST_SHARDS:
                self._paces.clear()
            if key not in self._paces:
                self._paces[key] = make()
            return self._paces[key]


PACES = Paces()
