"""Audits topics: one consumer reads a bounded part of them; it joins no group, commits nothing and writes nothing.

If a partition cannot be read, or the brokers go away, the audit reports the reason and the rows so far, and reads the
other partitions. If records expire, the audit names them and reads on behind them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from lowmark.integration.errors import AuditImpossible
from lowmark.integration.transport.split_key import split_name
from lowmark.sources.kafka.client import KafkaClient
from lowmark.sources.kafka.consumers import KeptConsumer, range_properties
from lowmark.sources.kafka.errors import KafkaUnavailable
from lowmark.sources.kafka.librdkafka import LibrdkafkaLog, may_pass, offset_of, parted, partition_of
from lowmark.sources.kafka.offsets import KafkaOffsets, TopicPartitionId
from lowmark.sources.kafka.reader import GUESSED_RECORD_BYTES, partition_runs
from lowmark.sources.kafka.settings import KafkaSettings
from lowmark.sources.kafka.source import OWNED
from lowmark.sources.worker_costs import collecting_nothing
from lowmark.watermark.printable import counted, some_of
from lowmark.watermark.replay.report import AuditReport

from .audit import Audit, Question
from .cuts import by_offset, by_time_of_writing
from .event_time import EventTimes, Header, JsonPath, TimeReader, shown_place
from .kafka_range import LEADER_SECONDS, Offsets, TopicRange, Topics
from .schema import Schema, schema_id, unframed

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message


_CHUNK = 10_000
_WAIT_SECONDS = 0.2
_LOOK_AGAIN_SECONDS = 3.0
_APPENDED = 2  # TIMESTAMP_LOG_APPEND_TIME
_NO_TIMESTAMP = 0
_TAKEN = frozenset({"isolation.level"})  # although `KafkaSource` sets it by an argument


@dataclass
class KafkaAudit:
    """One audit of topics."""

    bootstrap_servers: str  # "host:port,host:port"
    topics: Topics
    question: Question
    place: JsonPath | Header | None  # of event time, in the JSON of the value or in a header; None: the timestamp
    reader: TimeReader
    options: Mapping[str, object]
    now_us: int
    schema: Schema | None = None  # decodes the values; None: the values are JSON
    give_up_after_seconds: float = 30.0  # how long to wait for a broker that does not answer
    stop: Callable[[], bool] = bool  # called often; True ends the reading, and the report covers the rows so far
    progress: Callable[[int, int], None] = lambda _read, _total: None  # called with the rows read, and about all rows
    notes: list[str] = field(default_factory=list, init=False)
    unread: dict[str, list[str]] = field(default_factory=dict, init=False)  # why -> partitions not read, or in part

    def run(self) -> AuditReport:
        """Read the topics, and return the report.

        Raises:
            AuditImpossible: there is nothing to audit, or no broker answers.
            KeyboardInterrupt: `stop` ended the reading before the first row.
        """
        # A file of properties may be that of an application, which commits, and reads on elsewhere after a loss.
        options = {name: value for name, value in self.options.items() if name in _TAKEN or name not in OWNED}
        settings = KafkaSettings(self.bootstrap_servers, options, self.give_up_after_seconds, read_committed=True)
        client = KafkaClient(settings, reached=False)
        try:
            part = TopicRange(
                client, self.bootstrap_servers, self.topics, self.question, self.now_us, self.notes, self.unread
            )
            return self._read(settings, client, *part.find())
        except KafkaUnavailable as away:
            raise AuditImpossible(
                f"Kafka at {away.place}: cannot {away.action}, tried for {away.after_seconds:.0f} s: {away.cause}",
                away.hint,
            ) from away
        finally:
            client.close()

    # -- reading

    def _read(self, settings: KafkaSettings, client: KafkaClient, begins: Offsets, ends: Offsets) -> AuditReport:
        from confluent_kafka import TopicPartition

        with_rows = [partition for partition in begins if begins[partition] < ends[partition]]
        sizes = [ends[each] - begins[each] for each in with_rows]
        properties = range_properties(settings, sizes or [0], GUESSED_RECORD_BYTES)
        kept = KeptConsumer(settings, properties, LibrdkafkaLog(settings.redact, frozenset({"CONFWARN"})))
        reading = _Reading(self, kept, client, begins, ends)
        try:
            kept.consumer.assign([TopicPartition(each[0], each[1], begins[each]) for each in with_rows])
            reading.run()
        finally:
            kept.close()
        shortfalls = [f"{some_of(names)}: {settings.redact(why)}" for why, names in self.unread.items()]
        if reading.audit is None:
            if self.stop():
                raise KeyboardInterrupt
            if not shortfalls:
                raise AuditImpossible(
                    f"no committed record is left in what was to be read of {self.topics}",
                    "audit it once rows were committed to it, or read more of it with --all.",
                )
            raise AuditImpossible(
                f"Kafka at {self.bootstrap_servers}: nothing of {self.topics} could be read: {'; '.join(shortfalls)}",
                "check that the brokers run, and the right to read the topic.",
            )
        audit = reading.audit
        if (why := audit.why_no_times()) is not None:
            raise self._no_times(audit, reading, why)
        notes = [*self.notes, *self.reader.notes]
        if self.schema is not None and len(self.schema.ids) > 1:
            ids = ", ".join(map(str, sorted(self.schema.ids)[:20]))
            notes.append(
                f"values name {len(self.schema.ids)} schemas (ids {ids}), and all were decoded by the one of --schema: "
                "where they differ before the event time, times are wrong"
            )
        if reading.empty:
            notes.append(f"no row of it in what was read: {', '.join(map(split_name, reading.empty[:20]))}")
        notes += [f"not all was read: {each}" for each in shortfalls]
        if self.stop():
            notes.append("interrupted: this is what was read by then")
        names = sorted({topic for topic, _ in ends})
        named = f"topic {names[0]}" if len(names) == 1 else f"{len(names)} topics ({', '.join(names):.200})"
        partitions = counted(len(ends), "partition")
        return audit.report(
            what=f"{named}, {counted(audit.rows, 'row')} of {partitions}",
            order=reading.order,
            event_time=reading.event_time,
            complete=not shortfalls and not self.stop(),
            notes=notes,
        )

    def times_in(self, values: Sequence[bytes | None], path: JsonPath) -> EventTimes:
        if self.schema is None:
            return self.reader.payloads([unframed(value) for value in values], path)
        return self.reader.values(self.schema.values(values, path))

    def _no_times(self, audit: Audit, reading: _Reading, why: str) -> AuditImpossible:
        where = "the record's timestamp" if self.place is None else shown_place(self.place)
        sample = "" if reading.sample is None else f"; the first record begins with {reading.sample!r}"
        hint = "name where event time is with --event-time '$.paid_at', and how it is written with --unit or --format."
        if reading.schema_id is not None and self.schema is None:
            sample = f"; the first record is Avro or Protobuf of schema {reading.schema_id} of a schema registry"
            hint = (
                "pass that schema with --schema FILE: the .avsc, or what protoc --include_imports --descriptor_set_out "
                "wrote."
            )
        return AuditImpossible(
            f"none of the {audit.rows:,} rows of {self.topics} has a usable event time at {where}: {why}{sample}", hint
        )


def _header(message: Message, name: str) -> bytes | None:
    """The last value of a header, as Kafka's own clients choose; None for a record without the header."""
    headers: Any = message.headers()  # pairs, although the type hints differ
    value = next((value for each, value in reversed(headers or ()) if each == name), None)
    return value.encode() if isinstance(value, str) else value


class _Reading:
    def __init__(self, of: KafkaAudit, kept: KeptConsumer, client: KafkaClient, begins: Offsets, ends: Offsets) -> None:
        self._of, self._kept, self._client, self._begins, self._ends = of, kept, client, begins, ends
        self._left = {partition for partition in begins if begins[partition] < ends[partition]}
        self._one_topic = len({topic for topic, _ in begins}) == 1
        self._paused: set[TopicPartitionId] = set()
        self._next: Offsets = dict(begins)  # partition -> the offset after the last read record
        self._deleted: Offsets = {}  # partition -> the offset at which the broker has no record
        self._total = sum(ends.values()) - sum(begins.values())
        self._numbers: Offsets = {}  # partition -> its number as a split
        self._appended = self._mixed = False
        self.audit: Audit | None = None
        self.order = self.event_time = ""
        self.sample: str | None = None
        self.schema_id: int | None = None  # the id in the first record, if its schema is needed
        self.empty: list[TopicPartitionId] = sorted(set(begins) - self._left)

    def run(self) -> None:
        news_at = looked_at = time.monotonic()
        while self._left and not self._of.stop():
            with collecting_nothing():
                messages = self._kept.consumer.consume(_CHUNK, _WAIT_SECONDS)
                good, errors = parted(messages)
                if good:
                    self._take(good)
            if good:
                news_at = looked_at = time.monotonic()
                self._of.progress(0 if self.audit is None else self.audit.rows, self._total)
            for message, error in errors:
                self._hear(message, error)
            if self._deleted:
                self._pass_deleted()
                news_at = looked_at = time.monotonic()
            now = time.monotonic()
            if now - news_at > self._of.give_up_after_seconds:
                said = f" ({self._kept.errors.said})" if self._kept.errors.said else ""
                self._refuse(self._left, f"nothing came for {self._of.give_up_after_seconds:.0f} s{said}")
            elif now - looked_at > _LOOK_AGAIN_SECONDS:
                looked_at = now
                self._look()

    def _look(self) -> None:
        """Check, when no record comes, that the topics still exist."""
        try:
            there = self._client.topics(sorted({topic for topic, _ in self._left}))
            gone = [partition for partition in self._left if partition[0] not in there]
            self._refuse(gone, "the topic was deleted while it was read")
        except KafkaUnavailable as away:
            self._refuse(self._left, f"the brokers went away: {away.cause}")

    def _take(self, messages: Sequence[Message]) -> None:
        if self.audit is None:
            self.audit = self._begin(messages[0])
        for partition, begin, end in partition_runs(messages, one_topic=self._one_topic):
            if partition in self._left:
                self._take_of(self.audit, partition, messages[begin:end])
        self.audit.advance()
        self._pause(self.audit)

    def _take_of(self, audit: Audit, partition: TopicPartitionId, messages: Sequence[Message]) -> None:
        offsets = np.fromiter(map(offset_of, messages), np.int64, len(messages))
        count = int(np.searchsorted(offsets, self._ends[partition]))  # without those that came after the audit began
        kinds, stamps_ms = (np.array(each)[:count] for each in zip(*(m.timestamp() for m in messages), strict=True))
        if not self._mixed and ((kinds == _APPENDED) != self._appended).any():
            self._mixed = True
            self._of.notes.append("some records have append times, the others only their producers' timestamps")
        written_us = stamps_ms * 1_000
        stamped = kinds != _NO_TIMESTAMP
        place = self._of.place
        if place is None:
            times = EventTimes(np.where(stamped, written_us, 0), stamped, ~stamped)
        elif isinstance(place, Header):
            times = self._of.reader.headers([_header(message, place.name) for message in messages[:count]])
        else:
            times = self._of.times_in([message.value() for message in messages[:count]], place)
        audit.add(
            self._numbers[partition],
            written_us if self._appended else offsets[:count],
            times,
            written_us=written_us if stamped.all() else None,
        )
        self._next[partition] = int(offsets[-1]) + 1
        if offsets[-1] >= self._ends[partition] - 1:
            self._end(partition)

    def _begin(self, first: Message) -> Audit:
        """Choose the order of the replay: the first record shows whether there are append times."""
        of, question = self._of, self._of.question
        self._appended = first.timestamp()[0] == _APPENDED
        value: Any = first.value()
        if value is not None and isinstance(of.place, tuple):
            whole = bytes(value)
            self.sample = whole[:60].decode(errors="replace")
            self.schema_id = schema_id(whole) if unframed(whole) is whole else None
        with_rows = sorted(self._left)
        known = [*with_rows, *(self.empty if self._appended else [])]
        self._numbers = {partition: number for number, partition in enumerate(known)}
        if self._appended:
            cut, batches = by_time_of_writing(len(known), question.rows_per_batch, question.trigger_us)
            self.order = f"by append time (the topic's message.timestamp.type is LogAppendTime), {batches}"
        else:
            begins, ends = ([offsets[each] for each in with_rows] for offsets in (self._begins, self._ends))
            cut, batches = by_offset(begins, ends, question.rows_per_batch, total=self._total, now_us=of.now_us)
            self.order = (
                "as Spark's rate limiting reads a backlog, of each partition in proportion (the topic has no append "
                f"time), {batches}"
            )
            if question.trigger_us is not None:
                of.notes.append(
                    "--trigger has no effect, because the topic has no append times: batches are cut by "
                    "--rows-per-batch"
                )
        stamp = "append time" if self._appended else "timestamp, which its producer gave it"
        self.event_time = f"the record's {stamp}" if of.place is None else shown_place(of.place)
        if self._appended and of.place is None:
            of.notes.append(
                "event time is the broker's append time: no row can be late by it; name the time of the event with "
                "--event-time '$.paid_at'"
            )
        empty = [self._numbers[partition] for partition in self.empty] if self._appended else []
        for number in empty:
            cut.end(number)
        return Audit(
            list(map(split_name, known)),
            cut,
            question,
            of.now_us,
            timed=self._appended,
            stamped=of.place is not None,  # otherwise a split that is behind would look silent
            empty=empty,
        )

    def _hear(self, message: Message, error: KafkaError) -> None:
        from confluent_kafka import KafkaError

        partition = partition_of(message)
        if error.code() == KafkaError._PARTITION_EOF:  # librdkafka's own code
            if partition in self._left:
                self._end_at(partition, offset_of(message))
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            if partition in self._left:
                # The error of a log that became shorter has no offset.
                self._deleted[partition] = max(self._next[partition], offset_of(message))
        elif not may_pass(error):  # an error without a partition is of the whole topic
            its = [each for each in self._left if each == partition or (each[0], -1) == partition]
            self._refuse(its, error.str())

    def _refuse(self, partitions: Collection[TopicPartitionId], why: str) -> None:
        """End partitions that cannot be read, and no others, because one topic of several may be forbidden."""
        for each in sorted(partitions):
            self._of.unread.setdefault(why, []).append(split_name(each))
            self._end(each)

    def _pass_deleted(self) -> None:
        """Read on at the first records that are left. Many partitions take one question, because each may be slow."""
        deleted, self._deleted = self._deleted, {}
        action = f"look up where {counted(len(deleted), 'partition', ('begins', 'begin'))}"
        try:
            question = dict.fromkeys(deleted, KafkaOffsets.earliest())
            [(begins, silent)] = self._client.positions([question], action, patience_seconds=LEADER_SECONDS)
        except KafkaUnavailable as away:
            self._refuse(deleted, away.cause)
            return
        for partition, offset in deleted.items():
            begin = begins.get(partition)
            if partition in silent:
                self._refuse([partition], self._client.cause(silent[partition]))
            elif begin is None or begin <= offset:
                self._end_at(partition, offset)
            else:
                self._go_on_at(partition, offset, begin)

    def _go_on_at(self, partition: TopicPartitionId, offset: int, begin: int) -> None:
        """Read a partition on at `begin`, without the records from `offset` on that were deleted."""
        from confluent_kafka import TopicPartition

        name = split_name(partition)
        self._of.notes.append(f"offsets {offset} to {begin - 1} of {name} were deleted before they were read")
        if begin >= self._ends[partition]:
            self._end(partition)
            return
        self._kept.consumer.incremental_unassign([TopicPartition(*partition)])
        self._kept.consumer.incremental_assign([TopicPartition(*partition, begin)])

    def _end_at(self, partition: TopicPartitionId, offset: int) -> None:
        """End a partition that has no record from the offset on, for example because a new leader has fewer records."""
        if offset < self._ends[partition]:
            name, end = split_name(partition), self._ends[partition]
            self._of.notes.append(f"{name} ended at offset {end} and has no record from offset {offset} on now")
        self._end(partition)

    def _end(self, partition: TopicPartitionId) -> None:
        from confluent_kafka import TopicPartition

        self._left.discard(partition)
        self._kept.consumer.incremental_unassign([TopicPartition(*partition)])
        self._paused.discard(partition)
        if self.audit is not None and partition in self._numbers:
            self.audit.end(self._numbers[partition])

    def _pause(self, audit: Audit) -> None:
        """Let partitions that are far ahead wait for the others."""
        from confluent_kafka import TopicPartition

        ahead = {partition for partition in self._left if audit.cut.waits(self._numbers[partition])}
        for change, partitions in (
            (self._kept.consumer.pause, ahead - self._paused),
            (self._kept.consumer.resume, self._paused & self._left - ahead),
        ):
            if partitions:
                change([TopicPartition(*partition) for partition in sorted(partitions)])
        self._paused = ahead
