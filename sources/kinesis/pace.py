"""Keeps the reads of one shard within the service's limits.

A shard allows five reads a second and gives 2 MB/s, for all its readers together. The service refuses more, and a
refused reader waits longer than a reader that waited before. One read may bring 10 MB: the next read then comes five
seconds later.
"""

from __future__ import annotations

import threading

MOST_SHARDS = 10_000


class Pace:
    """The time of the next read of one shard; None: any number of reads, or bytes."""

    def __init__(self, reads_per_second: float | None, bytes_per_second: float | None) -> None:
        self._read_seconds = 0.0 if reads_per_second is None else 1.0 / reads_per_second
        self._byte_seconds = 0.0 if bytes_per_second is None else 1.0 / bytes_per_second
        self._next_seconds = 0.0

    def wait_seconds(self, *, now_seconds: float) -> float:
        return round(max(0.0, self._next_seconds - now_seconds), 6)

    def hold(self, *, now_seconds: float, for_seconds: float) -> None:
        """Allow no read for some seconds, because another process has read the shard."""
        self._next_seconds = max(self._next_seconds, now_seconds + for_seconds)

    def took(self, *, now_seconds: float, size_bytes: int) -> None:
        """Note a read that began at `now_seconds`, and its size."""
        self._next_seconds = max(self._next_seconds, now_seconds) + max(
            self._read_seconds, size_bytes * self._byte_seconds
        )


_paces: dict[object, Pace] = {}
_making = threading.Lock()


def pace_of(shard: object, reads_per_second: float | None, bytes_per_second: float | None) -> Pace:
    """Return the pace of a shard, which all slices of the shard and looks at the shard share in this process."""
    if reads_per_second is None and bytes_per_second is None:
        return Pace(None, None)
    with _making:
        if len(_paces) > MOST_SHARDS:
            _paces.clear()
        return _paces.setdefault(shard, Pace(reads_per_second, bytes_per_second))
