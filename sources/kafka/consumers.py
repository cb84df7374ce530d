"""Consumers that outlive a batch: making one and finding the brokers takes longer than a small batch does.

A consumer is kept in its process, by its properties, and closed when nobody has asked for it for a minute. After a
fork the child has none: librdkafka's threads are not in it, so it must not even close what its parent has.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .librdkafka import ClientErrors, LibrdkafkaLog, created
from .settings import KafkaSettings

if TYPE_CHECKING:
    from confluent_kafka import Consumer

__all__ = ["ConsumerCache", "KeptConsumer", "range_properties"]

IDLE_SECONDS = 60.0
MOST_IDLE = 4


def range_properties(settings: KafkaSettings) -> dict[str, Any]:
    """Return librdkafka's properties of a consumer that is told where to read, hears of ends, and commits nothing."""
    return {
        "group.id": "lowmark",  # librdkafka wants one; no group is joined
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "isolation.level": "read_committed" if settings.read_committed else "read_uncommitted",
    }


class KeptConsumer:
    """A consumer, what it was made with, and what it said last.

    Attributes:
        consumer: confluent-kafka's.
        key: its properties.
        errors: what it called back with.
    """

    def __init__(self, settings: KafkaSettings, properties: Mapping[str, Any], key: object, log: LibrdkafkaLog) -> None:
        from confluent_kafka import Consumer

        self.key, self.errors = key, ClientErrors(settings, log)
        complete = settings.properties(properties) | {"error_cb": self.errors}
        self.consumer: Consumer = created(lambda: Consumer(complete, logger=self.errors.log), settings)


def _key(properties: Mapping[str, Any]) -> object:
    return tuple(sorted((name, value if callable(value) else str(value)) for name, value in properties.items()))


class ConsumerCache:
    """Keeps consumers that are not in use. Safe to call from several threads.

    Args:
        idle_seconds: after how long without use a consumer is closed.
        most_idle: how many are kept at most; the one unused for longest goes first.
    """

    def __init__(self, *, idle_seconds: float = IDLE_SECONDS, most_idle: int = MOST_IDLE) -> None:
        self._idle_seconds, self._most_idle = idle_seconds, most_idle
        self._lock, self._pid = threading.Lock(), os.getpid()
        self._idle: list[KeptConsumer] = []
        self._logs: dict[object, LibrdkafkaLog] = {}
        self._inherited: list[list[KeptConsumer]] = []
        self._timer: threading.Timer | None = None

    def take(self, settings: KafkaSettings, properties: Mapping[str, Any]) -> KeptConsumer:
        """Return a consumer with these properties that nobody else has, a new one if none is kept.

        Raises:
            KafkaUnavailable: the properties cannot be.
        """
        complete = settings.properties(properties)
        key = _key(complete)
        self._after_fork()
        while (kept := self._take_idle(key)) is not None:
            kept.consumer.consume(1, 0.0)  # calls back with what it has heard since
            if kept.errors.said is None:
                return kept
            kept.consumer.close()  # brokers were away: it may know leaders that are none any more
        # One for all that take each other's place: each of them would have its say again.
        log = self._logs.setdefault(_key(settings.properties({})), LibrdkafkaLog(settings.redact))
        return KeptConsumer(settings, properties, key, log)

    def _take_idle(self, key: object) -> KeptConsumer | None:
        with self._lock:
            return next((self._idle.pop(at) for at, kept in enumerate(self._idle) if kept.key == key), None)

    def give_back(self, kept: KeptConsumer) -> None:
        """Take a consumer back; it reads nothing more until it is given out again."""
        if kept.errors.refused is not None:
            kept.consumer.close()
            return
        kept.consumer.unassign()
        kept.consumer.consume(1, 0.0)  # drops what was read ahead: it takes memory, and holds up the next fetch
        kept.errors.said = None
        self._after_fork()
        with self._lock:
            self._idle.append(kept)
            surplus, self._idle = self._idle[: -self._most_idle], self._idle[-self._most_idle :]
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(self._idle_seconds, self.close)
            self._timer.daemon = True
            self._timer.start()
        for each in surplus:
            each.consumer.close()

    def discard(self, kept: KeptConsumer) -> None:
        """Close a consumer that does not get on, and those that are kept: they know no more than it did."""
        self.close()
        kept.consumer.close()

    def close(self) -> None:
        """Close the consumers that are not in use."""
        self._after_fork()
        with self._lock:
            idle, self._idle = self._idle, []
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        for each in idle:
            each.consumer.close()

    @property
    def idle(self) -> int:
        """How many are kept."""
        return len(self._idle)

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            self._inherited.append(self._idle)  # kept alive: to let go of one here would wait for its threads for ever
            self._pid, self._lock, self._idle, self._timer = os.getpid(), threading.Lock(), [], None


CONSUMERS = ConsumerCache()
"""The consumers of this process."""
