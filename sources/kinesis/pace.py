"""Keeps the reads of one shard within the service's limits.

A shard allows five reads a second and gives 2 MB/s, for all its readers together. The service refuses more, and a
refused reader waits longer than a reader that waited before. One read may bring 10 MB: the next read then comes five
seconds later.
"""

from __future__ import annotations

MOST_SHARDS = 10_000

_next_seconds: dict[object, float] = {}  # shard -> the time of its next read, for all clients of this process


class Pace:
    """How fast a client reads each shard; None: any number of reads, or bytes."""

    def __init__(self, reads_per_second: float | None, bytes_per_second: float | None) -> None:
        self._read_seconds = 0.0 if reads_per_second is None else 1.0 / reads_per_second
        self._byte_seconds = 0.0 if bytes_per_second is None else 1.0 / bytes_per_second
        self._unlimited = reads_per_second is None and bytes_per_second is None

    def wait_seconds(self, shard: object, *, now_seconds: float) -> float:
        if self._unlimited:
            return 0.0
        return round(max(0.0, _next_seconds.get(shard, 0.0) - now_seconds), 6)

    def hold(self, shard: object, *, now_seconds: float, for_seconds: float) -> None:
        """Allow no read for some seconds, because another process has read the shard."""
        _note(shard, max(_next_seconds.get(shard, 0.0), now_seconds + for_seconds))

    def took(self, shard: object, *, now_seconds: float, size_bytes: int) -> None:
        """Note a read that began at `now_seconds`, and its size."""
        cost_seconds = max(self._read_seconds, size_bytes * self._byte_seconds)
        _note(shard, max(_next_seconds.get(shard, 0.0), now_seconds) + cost_seconds)


def _note(shard: object, seconds: float) -> None:
    if len(_next_seconds) > MOST_SHARDS:
        _next_seconds.clear()
    _next_seconds[shard] = seconds
