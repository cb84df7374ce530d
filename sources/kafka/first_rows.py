"""Reads the first record from each offset that was found by time.

Brokers also find offsets without a row: the markers that end transactions, which have the broker's time, and records
of aborted transactions. If a history is written in transactions, the first marker is found for every time up to the
broker's time, and older rows follow it. No request tells the record at an offset, so it is read: from each offset
on, for all partitions at once, by one consumer that reads as the source does.

A broker sends whole batches of records, so a look brings several rows of each partition. These rows are kept, and a
later offset among them needs no look: each record of a partition is looked at once at most.

Source: KIP-98; Kafka's `ListOffsets` and `Fetch`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .consumers import CONSUMERS, ConsumerCache, KeptConsumer, range_properties
from .librdkafka import may_pass, offset_of, parted, partition_of
from .offsets import TopicPartitionId
from .reader import partition_runs
from .settings import KafkaSettings
from .split import KafkaSplit

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

LOOK_SECONDS = 2.0
"""How long a look may take. Nothing is claimed for a partition that has not answered by then."""
RETRY_SECONDS = 5.0
"""How long after a look without an answer a partition is looked at again."""
POLL_SECONDS = 0.05
CHUNK = 2_000
FETCH_BYTES = 64 << 10
"""Bytes of each partition in a fetch. Brokers send whole batches; a larger batch is fetched again with more bytes."""
MOST_ROWS = 8_192
"""A look fetches no more of a partition after this number of rows."""

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FirstRow:
    """The first row from an offset on."""

    offset: int | None = None  # None: no row comes before the end of the partition
    time_us: int | None = None  # None: without a timestamp or a row


@dataclass(slots=True)
class _Seen:
    """The delivered rows of a partition from an offset on, without a gap: missing offsets have no row."""

    begin: int
    offsets: list[Integers] = field(default_factory=list)
    times_ms: list[Integers] = field(default_factory=list)
    rows: int = 0
    ended: bool = False  # whether the end of the partition came instead of a row

    def add(self, offsets: Integers, times_ms: Integers) -> None:
        self.offsets.append(offsets)
        self.times_ms.append(times_ms)
        self.rows += len(offsets)

    def first_from(self, offset: int) -> FirstRow | None:
        """The first row from an offset on, None if it is not among the delivered rows."""
        if offset < self.begin or not self.rows or int(self.offsets[-1][-1]) < offset:
            return None
        if len(self.offsets) > 1:
            self.offsets, self.times_ms = [np.concatenate(self.offsets)], [np.concatenate(self.times_ms)]
        at = int(np.searchsorted(self.offsets[0], offset))
        time_ms = int(self.times_ms[0][at])
        return FirstRow(int(self.offsets[0][at]), None if time_ms < 0 else time_ms * 1_000)


class FirstRows:
    """The first rows of splits from their starts on. For one thread at a time."""

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        consumers: ConsumerCache = CONSUMERS,
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._consumers, self._now_seconds = settings, consumers, now_seconds
        self._seen: dict[str, _Seen] = {}
        self._retry_at_seconds: dict[str, float] = {}

    def find(self, splits: Sequence[KafkaSplit]) -> tuple[dict[str, FirstRow], dict[TopicPartitionId, Exception]]:
        """Return the first rows that are known, by split id, and the errors of partitions without an answer."""
        found: dict[str, FirstRow] = {}
        ask: dict[TopicPartitionId, KafkaSplit] = {}
        now_seconds = self._now_seconds()
        for split in splits:
            name = split.split_id
            row = self._seen[name].first_from(split.start) if name in self._seen else None
            if row is not None:
                found[name] = row
            elif split.key not in ask and self._retry_at_seconds.get(name, now_seconds) <= now_seconds:
                ask[split.key] = split
        if not ask:
            return found, {}
        starts = {key: split.start for key, split in ask.items()}
        seen, failed = _Look(self._settings, self._consumers, self._now_seconds, starts).seen()
        for key, split in ask.items():
            name, each = split.split_id, seen[key]
            if each.rows:
                self._seen[name] = each
                row = each.first_from(split.start)
                assert row is not None, "rows before the offset are not taken"
                found[name] = row
            elif each.ended:
                found[name] = FirstRow()
            else:
                self._retry_at_seconds[name] = self._now_seconds() + RETRY_SECONDS
                continue
            self._retry_at_seconds.pop(name, None)
        return found, failed

    def forget(self, name: str) -> None:
        self._seen.pop(name, None)
        self._retry_at_seconds.pop(name, None)


class _Look:
    """A look at one offset in each of some partitions."""

    def __init__(
        self,
        settings: KafkaSettings,
        consumers: ConsumerCache,
        now_seconds: Callable[[], float],
        wanted: Mapping[TopicPartitionId, int],
    ) -> None:
        self._settings, self._consumers, self._now_seconds, self._wanted = settings, consumers, now_seconds, wanted
        self._seen = {key: _Seen(at) for key, at in wanted.items()}
        self._waiting, self._assigned = set(wanted), set(wanted)
        self._errors: dict[TopicPartitionId, str] = {}
        self._one_topic = len({topic for topic, _ in wanted}) == 1

    def seen(self) -> tuple[dict[TopicPartitionId, _Seen], dict[TopicPartitionId, Exception]]:
        from confluent_kafka import TopicPartition

        properties = {
            **range_properties(self._settings, [1], 0.0),
            "fetch.message.max.bytes": FETCH_BYTES,
            "queued.min.messages": 1,  # one fetch brings all partitions; only the missing ones need a second fetch
        }
        kept = self._consumers.take(self._settings, properties)
        try:
            kept.consumer.assign([TopicPartition(*key, at) for key, at in self._wanted.items()])
            until = self._now_seconds() + LOOK_SECONDS
            while self._waiting and kept.errors.refused is None and self._now_seconds() < until:
                self._take(kept)
            said = kept.errors.refused if kept.errors.refused is not None else kept.errors.said
        finally:
            if self._waiting:  # the consumer may know an outdated leader
                self._consumers.discard(kept)
            else:
                self._consumers.give_back(kept)
        why = said if said is not None else "no answer"
        return self._seen, {
            key: TimeoutError(
                f"what lies at offset {at} could not be looked at within {LOOK_SECONDS:g} s, so nothing is claimed of "
                f"its event time: {self._errors.get(key, why)}"
            )
            for key, at in self._wanted.items()
            if not self._seen[key].rows and not self._seen[key].ended
        }

    def _take(self, kept: KeptConsumer) -> None:
        from confluent_kafka import TopicPartition

        # One message at a time, because a call for a chunk waits for the whole chunk or the whole time.
        messages = kept.consumer.consume(1, POLL_SECONDS)
        messages += kept.consumer.consume(CHUNK, 0.0) if messages else []
        records, errors = parted(messages)
        for message, error in errors:
            self._take_error(message, error)
        last: TopicPartitionId | None = None
        for last, begin, end in partition_runs(records, one_topic=self._one_topic) if records else ():
            if last in self._assigned:
                self._add(last, records[begin:end])
        # A partition with its answer and its batch is fetched no further, because it would delay the others.
        done = [
            key for key in sorted(self._assigned - self._waiting) if key != last or self._seen[key].rows >= MOST_ROWS
        ]
        if done and self._waiting:
            self._assigned.difference_update(done)
            kept.consumer.incremental_unassign([TopicPartition(*key) for key in done])

    def _add(self, key: TopicPartitionId, messages: Sequence[Message]) -> None:
        from confluent_kafka import Message

        count = len(messages)
        offsets: Integers = np.fromiter(map(Message.offset, messages), np.int64, count)
        times = [time_ms if kind else -1 for kind, time_ms in map(Message.timestamp, messages)]
        skip = int(np.searchsorted(offsets, self._wanted[key]))
        if skip < count:
            self._seen[key].add(offsets[skip:], np.array(times[skip:], np.int64))
            self._waiting.discard(key)

    def _take_error(self, message: Message, error: KafkaError) -> None:
        from confluent_kafka import KafkaError

        key = partition_of(message)
        if key not in self._waiting:
            return
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # librdkafka's own codes
            # An end at the offset itself: this replica does not know the offset yet.
            if offset_of(message) > self._wanted[key]:
                self._seen[key].ended = True
                self._waiting.discard(key)
            return
        self._errors[key] = error.str()
        if not may_pass(error):
            self._waiting.discard(key)
