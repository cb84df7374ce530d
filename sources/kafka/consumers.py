"""Consumers that outlive a batch, because making a consumer and finding the brokers takes longer than a small batch.

A consumer is kept in its process, by its properties: a few at most, and all are closed when no consumer was used for a
minute. After a fork the child has no consumers: librdkafka's threads are not in the child, so the child must not even
close its parent's consumers.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .client import KafkaClient
from .librdkafka import ClientErrors, LibrdkafkaLog, created
from .settings import KafkaSettings

if TYPE_CHECKING:
    from confluent_kafka import Consumer

IDLE_SECONDS = 60.0
MOST_IDLE = 4
FETCH_BYTES = (16 << 10, 64 << 10, 256 << 10, 1 << 20)
FETCH_ROWS = (1_000, 4_000, 16_000, 64_000, 100_000)
"""Few sizes, so that the consumer of the last batch fits the next batch too."""
OVERHEAD_BYTES = 16
ASK_SECONDS = 2.0
"""How long a question to the client beside a consumer may take; the reader asks again."""


def range_properties(settings: KafkaSettings, rows: Sequence[int], record_bytes: float) -> dict[str, Any]:
    """Librdkafka's properties for reading assigned ranges with notices of ends, without commits.

    The sizes of fetches fit the ranges: by default librdkafka reads a megabyte or 100,000 records of every partition
    ahead, two hundred times the size of a range of 500 records.

    Args:
        rows: the number of offsets of each range.
        record_bytes: about the size of a record.

    >>> settings = KafkaSettings("b:9092", {}, 60.0, read_committed=True)
    >>> range_properties(settings, [500, 20], 100.0)["fetch.message.max.bytes"]
    65536
    >>> range_properties(settings, [10**9], 100.0)["queued.min.messages"]
    100000
    """
    wanted = max(rows) * (record_bytes + OVERHEAD_BYTES)
    return {
        "group.id": "lowmark",  # librdkafka requires a group id; no group is joined
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "check.crcs": True,  # as Java's client does, because a disk may change bytes
        "isolation.level": "read_committed" if settings.read_committed else "read_uncommitted",
        "fetch.message.max.bytes": next((each for each in FETCH_BYTES if each >= wanted), FETCH_BYTES[-1]),
        # All partitions share one queue, and no partition is fetched while the queue has this number of records.
        "queued.min.messages": next((each for each in FETCH_ROWS if each >= sum(rows)), FETCH_ROWS[-1]),
        "queued.max.messages.kbytes": 32_768,
        # By default a full queue stops all fetches for a second.
        "fetch.queue.backoff.ms": 1,
        # A request that waits at the end of one partition delays the requests of the others.
        "fetch.wait.max.ms": 10,
    }


class KeptConsumer:
    """A consumer, its properties (`key`) and errors, and a client for the ids of topics, which no consumer tells."""

    def __init__(self, settings: KafkaSettings, properties: Mapping[str, Any], log: LibrdkafkaLog) -> None:
        from confluent_kafka import Consumer

        complete = settings.properties(properties)
        self.key, self.errors = _key(complete), ClientErrors(settings, log)
        complete["error_cb"] = self.errors
        self.consumer: Consumer = created(lambda: Consumer(complete, logger=self.errors.log), settings)
        self.client = KafkaClient(settings, patience_seconds=ASK_SECONDS, log=log)

    def close(self) -> None:
        self.consumer.close()
        self.client.close()


def _key(properties: Mapping[str, Any]) -> object:
    return tuple(sorted((name, value if callable(value) else str(value)) for name, value in properties.items()))


class ConsumerCache:
    """Keeps consumers that are not in use: a few, of which the one unused for longest is closed first. Thread-safe."""

    def __init__(self) -> None:
        self._lock, self._pid = threading.Lock(), os.getpid()
        self._idle: list[KeptConsumer] = []
        self._logs: dict[object, LibrdkafkaLog] = {}
        self._inherited: list[list[KeptConsumer]] = []
        self._timer: threading.Timer | None = None

    def take(self, settings: KafkaSettings, properties: Mapping[str, Any]) -> KeptConsumer:
        """Return a free consumer with these properties. Raises KafkaUnavailable if they are invalid."""
        key = _key(settings.properties(properties))
        self._after_fork()
        while (kept := self._take_idle(key)) is not None:
            kept.consumer.consume(1, 0.0)  # delivers errors since its last use by callbacks
            if kept.errors.said is None:
                return kept
            kept.close()  # brokers were away, so this consumer may know outdated leaders
        # Consumers that replace each other share a log, because each consumer would repeat the same lines.
        log = self._logs.setdefault(_key(settings.properties({})), LibrdkafkaLog(settings.redact))
        # Each task unpickles a callback such as `oauth_cb` anew and would leave a log here, because no two are equal.
        for old in list(self._logs)[:-MOST_IDLE]:
            self._logs.pop(old, None)
        return KeptConsumer(settings, properties, log)

    def _take_idle(self, key: object) -> KeptConsumer | None:
        with self._lock:
            return next((self._idle.pop(at) for at, kept in enumerate(self._idle) if kept.key == key), None)

    def give_back(self, kept: KeptConsumer) -> None:
        if kept.errors.refused is not None:
            kept.close()
            return
        kept.consumer.unassign()
        kept.consumer.consume(1, 0.0)  # drops records read ahead, which take memory and delay the next fetch
        kept.errors.said = None
        self._after_fork()
        with self._lock:
            self._idle.append(kept)
            surplus, self._idle = self._idle[:-MOST_IDLE], self._idle[-MOST_IDLE:]
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(IDLE_SECONDS, self.close)
            self._timer.daemon = True
            self._timer.start()
        for each in surplus:
            each.close()

    def discard(self, kept: KeptConsumer) -> None:
        """Close a consumer that makes no progress, and the kept consumers, because they know the same brokers."""
        self.close()
        kept.close()

    def close(self) -> None:
        """Close the consumers that are not in use."""
        self._after_fork()
        with self._lock:
            idle, self._idle = self._idle, []
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        for each in idle:
            each.close()

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            self._inherited.append(self._idle)  # kept, because closing one here would wait for its threads for ever
            self._pid, self._lock, self._idle, self._timer = os.getpid(), threading.Lock(), [], None


CONSUMERS = ConsumerCache()
"""The consumers of this process."""
