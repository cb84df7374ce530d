"""Keeps the reads of one shard within the service's limits.

A shard allows five reads a second and gives 2 MB/s, for all its readers together. The service refuses more, and a
refused reader waits longer than a reader that waited before. One read may bring 10 MB: the next read then comes five
seconds later.
"""

from __future__ import annotations

from collections.abc import Callable

from .connections import KinesisSettings

MOST_SHARDS = 10_000
"""From so many shards on, those that may be read at once are forgotten."""

_next_seconds: dict[object, float] = {}  # shard -> the time of its next read, for all clients of this process


class Pace:
    """How fast a client reads each shard, by the rates in its settings."""

    def __init__(self, settings: KinesisSettings, now_seconds: Callable[[], float]) -> None:
        reads_per_second, bytes_per_second = settings.reads_per_second, settings.bytes_per_second
        self._place, self._now_seconds = settings.place, now_seconds
        self._read_seconds = 0.0 if reads_per_second is None else 1.0 / reads_per_second
        self._byte_seconds = 0.0 if bytes_per_second is None else 1.0 / bytes_per_second
        self._unlimited = reads_per_second is None and bytes_per_second is None

    def wait_seconds(self, stream: str, shard: str) -> float:
        if self._unlimited:
            return 0.0
        return round(max(0.0, self._due_seconds(stream, shard) - self._now_seconds()), 6)

    def is_due_since(self, stream: str, shard: str, seconds: float) -> bool:
        """Whether a shard could have been read for so long."""
        return self._unlimited or self._now_seconds() >= self._due_seconds(stream, shard) + seconds

    def took(self, stream: str, shard: str, *, began_seconds: float, size_bytes: int) -> None:
        """Note a read that began at a time of the clock, and its size."""
        cost_seconds = max(self._read_seconds, size_bytes * self._byte_seconds)
        self._note(stream, shard, max(self._due_seconds(stream, shard), began_seconds) + cost_seconds)

    def lend(self, stream: str, shard: str) -> float:
        """Let another process read a shard: return how long the process has to wait, and count its first read here."""
        wait_seconds = self.wait_seconds(stream, shard)
        self.took(stream, shard, began_seconds=self._now_seconds(), size_bytes=0)
        return wait_seconds

    def hold(self, stream: str, shard: str, for_seconds: float) -> None:
        """Allow no read for some seconds, because another process has read the shard."""
        self._note(stream, shard, max(self._due_seconds(stream, shard), self._now_seconds() + for_seconds))

    def _due_seconds(self, stream: str, shard: str) -> float:
        return _next_seconds.get((self._place, stream, shard), 0.0)

    def _note(self, stream: str, shard: str, seconds: float) -> None:
        if len(_next_seconds) > MOST_SHARDS:
            now_seconds = self._now_seconds()
            for each, next_seconds in list(_next_seconds.items()):  # a copy, because other threads note their reads
                if next_seconds <= now_seconds:
                    _next_seconds.pop(each, None)
        _next_seconds[self._place, stream, shard] = seconds
