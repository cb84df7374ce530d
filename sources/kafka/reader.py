"""Reads exact ranges of partitions by one consumer: from each start up to and without each stop.

Some offsets have no record. Compaction leaves gaps, aborted transactions are left out, and the markers of
transactions have offsets of their own, so the last offset of a range may never come. A range is at its end when a
record at or after the stop comes, when the client reports the end of the partition there, or when its last offset was
read.

One file, because a consumer returns records, ends and errors of all ranges by the same call.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from lowmark.sources.api import Fetched, SplitChange, SplitReader, SplitRows, SplitsAddition
from lowmark.sources.metric_group import MetricGroup
from lowmark.sources.worker_costs import collecting_nothing
from lowmark.watermark.printable import counted

from .client import Positions
from .columns import KafkaColumns
from .consumers import CONSUMERS, ConsumerCache, KeptConsumer, range_properties
from .errors import KafkaUnavailable
from .librdkafka import may_pass, offset_of, parted, partition_of
from .offsets import KafkaOffsets, TopicPartitionId
from .settings import KafkaSettings
from .split import COMPLETE_LEADER, LATER_DELETION, KafkaLosses, KafkaSplit, other_topic
from .topics import Topic

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

BATCH_ROWS = 65_536
BATCH_BYTES = 8 << 20
CHUNK = 2_000
"""Records taken from the client at once: enough to make the work per chunk small, few enough to stay in the cache."""
POLL_SECONDS = 0.01
"""How long the client collects a chunk; also the delay at the end of a range with a gap."""
BLOCK_SECONDS = 0.5
"""How long a fetch waits for the first rows."""
FIRST_PATIENCE_SECONDS = 2.0
"""A consumer that brings nothing for this long is replaced by a new consumer, which has twice the time, and so on."""
LONGEST_PATIENCE_SECONDS = 32.0
ABSENT_SECONDS = 3.0
"""A topic or partition that no answer has known for this long is deleted; brokers that have just started do not know
all of them, and a broker with old metadata does not know added partitions, or knows an earlier topic of that name."""
GUESSED_RECORD_BYTES = 256

_record_bytes: dict[str, float] = {}
"""Topic -> mean size of its records in this process, only as a hint for the size of fetches."""


@dataclass(slots=True, eq=False)
class _Range:
    """The progress of one split."""

    split: KafkaSplit
    position: int
    stop: int
    given: int  # the position before which all rows were handed out
    chunks: list[list[pa.Array[Any]]] = field(default_factory=list)  # the rows from there on: the columns of each chunk

    def at_position(self) -> Any:
        from confluent_kafka import TopicPartition

        return TopicPartition(*self.split.key, self.position)


class KafkaSplitReader(SplitReader[KafkaSplit]):
    """Reads splits by a consumer of the process's cache.

    If a broker is away, or the leader of a partition moves, the reader waits, up to the settings' time from the last
    sign of life on; then the error names split and position. A consumer goes on asking the earlier leader of a
    partition, or an earlier epoch, for minutes, so a consumer that brings no rows although rows must come is replaced.
    Rows that still lie beyond the end of their partition after the settings' time are lost.

    A topic that was created anew has other records at the same offsets. The reader hands out fetched rows if the topic
    still has the planned id, because a topic with that id now had that id during the fetch.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        columns: KafkaColumns,
        *,
        go_on: bool,
        consumers: ConsumerCache = CONSUMERS,
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self.metrics = MetricGroup()
        self._settings, self._columns, self._consumers, self._now_seconds = settings, columns, consumers, now_seconds
        self._loss = KafkaLosses(go_on=go_on, metrics=self.metrics)
        self._ranges: dict[TopicPartitionId, _Range] = {}
        self._over: list[_Range] = []  # finished ranges whose rows and ends are not handed out yet
        self._absent_since_seconds: dict[TopicPartitionId, float] = {}  # partitions that the last answer did not know
        self._kept: KeptConsumer | None = None
        self._woken = threading.Event()
        self._moved_seconds = self._renewed_seconds = self._returned_seconds = now_seconds()
        self._patience_seconds = FIRST_PATIENCE_SECONDS
        self._rows = self._bytes = 0
        self._topics: set[str] = set()

    def handle_splits_changes(self, change: SplitChange[KafkaSplit]) -> None:
        if isinstance(change, SplitsAddition):
            added = []
            for split in change.splits:
                assert split.stop is not None, "slices have one"
                new = _Range(split, split.start, split.stop, given=split.start)
                if split.start >= split.stop:
                    self._over.append(new)
                    continue
                self._ranges[split.key] = new
                self._topics.add(split.topic)
                added.append(new)
            self._note_move()
            self._assign(added)
        else:
            removed = {split.split_id for split in change.splits}
            self._drop([each for each in self._ranges.values() if each.split.split_id in removed])
            self._over = [each for each in self._over if each.split.split_id not in removed]

    def fetch(self) -> Fetched:
        began = self._now_seconds()
        self._leave_out_pause(began)
        while self._rows < BATCH_ROWS and self._bytes < BATCH_BYTES and not self._woken.is_set():
            active = list(self._ranges.values())
            if not active:
                if not self._over and not self._rows:
                    self._woken.wait(BLOCK_SECONDS)
                break
            self._take_chunk(active)
            if self._now_seconds() - began > BLOCK_SECONDS:
                break
        known = self._check_topics()
        if not known:
            self._woken.wait(BLOCK_SECONDS)
        self._woken.clear()
        fetched = self._flush() if known else Fetched()
        self._returned_seconds = self._now_seconds()
        return fetched

    def wake_up(self) -> None:
        self._woken.set()

    def metric_values(self) -> Mapping[str, float]:
        return self.metrics.values()

    def close(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None and self._renewed_seconds > self._moved_seconds:
            self._consumers.discard(kept)  # the consumer has brought nothing yet
        elif kept is not None:
            self._consumers.give_back(kept)

    # -- the consumer

    @property
    def _used(self) -> KeptConsumer:
        assert self._kept is not None, "splits were assigned"
        return self._kept

    def _assign(self, added: Sequence[_Range]) -> None:
        if not added:
            return
        positions = [each.at_position() for each in added]
        if self._kept is None:
            self._kept = self._consumers.take(self._settings, self._properties(added))
        if len(self._ranges) == len(added):
            self._kept.consumer.assign(positions)  # replaces the last ranges, which were left in the assignment
        else:
            self._kept.consumer.incremental_assign(positions)

    def _properties(self, added: Sequence[_Range]) -> dict[str, Any]:
        rows = [each.stop - each.position for each in added]
        record_bytes = max(_record_bytes.get(each.split.topic, GUESSED_RECORD_BYTES) for each in added)
        return range_properties(self._settings, rows, record_bytes)

    def _drop(self, dropped: Sequence[_Range]) -> None:
        for each in dropped:
            del self._ranges[each.split.key]
        if dropped and self._ranges:  # the last ranges go with the next assignment
            self._used.consumer.incremental_unassign([each.at_position() for each in dropped])

    # -- records

    def _take_chunk(self, active: Sequence[_Range]) -> None:
        # Records come partition by partition. Take at most the rest of one range at once, because librdkafka drops
        # records after the range itself, once the range is finished and unassigned.
        left = max(each.stop - each.position for each in active)
        with collecting_nothing():
            records, errors = parted(self._used.consumer.consume(min(CHUNK, left), POLL_SECONDS))
            self._add(records)
            answers = [self._take_error(message, error) for message, error in errors]
        if records or any(answers):
            self._note_move()
        else:
            self._check_alive(active)

    def _add(self, messages: Sequence[Message]) -> None:
        """Sort records into their ranges, neighbours of one partition together, without a loop over records."""
        if not messages:
            return
        parts: list[tuple[_Range, int, int]] = []
        done: list[_Range] = []
        for key, begin, end in partition_runs(messages, one_topic=len(self._topics) == 1):
            each = self._ranges.get(key)
            if each is None or each in done:
                continue  # the range was finished or dropped a moment ago
            last = offset_of(messages[end - 1])
            if last >= each.stop - 1:
                if last >= each.stop:
                    end = bisect_left(messages, each.stop, begin, end, key=offset_of)
                done.append(each)
            if end > begin:
                parts.append((each, begin, end))
                each.position = offset_of(messages[end - 1]) + 1
        if parts:
            self._convert(messages, parts)
        for each in done:
            self._finish(each)

    def _convert(self, messages: Sequence[Message], parts: Sequence[tuple[_Range, int, int]]) -> None:
        # Records between the parts belong to no range, so a range must not fail on one that cannot be converted.
        wanted = list(chain.from_iterable(messages[begin:end] for _, begin, end in parts))
        columns = self._columns.convert(wanted)
        if not columns:  # with constant columns only, the number of rows is enough
            columns = [pa.nulls(len(wanted))]
        self._bytes += sum(column.nbytes for column in columns)
        at = 0
        for each, begin, end in parts:
            rows = end - begin
            each.chunks.append([column.slice(at, rows) for column in columns])
            at += rows
        self._rows += at
        sample = wanted[:8]
        _record_bytes[parts[0][0].split.topic] = sum(map(len, sample)) / len(sample)

    def _finish(self, each: _Range) -> None:
        each.position = each.stop
        self._over.append(each)
        self._drop([each])

    def _flush(self) -> Fetched:
        ready: list[SplitRows] = []
        for each in (*self._over, *self._ranges.values()):
            if each.chunks:
                batch = self._columns.batch(*each.split.key, each.chunks)
                ready.append(SplitRows(each.split.split_id, batch, each.position))
                each.chunks = []
            each.given = each.position
        fetched = Fetched(tuple(ready), frozenset(each.split.split_id for each in self._over))
        self._over.clear()
        self._rows = self._bytes = 0
        return fetched

    # -- topics

    def _check_topics(self) -> bool:
        """Drop rows of another topic than the planned one; return whether all other rows may be handed out."""
        ranges = (*self._over, *self._ranges.values())
        # Also a range without rows, because the planned topic may have rows where the other topic has none.
        fetched = [each for each in ranges if each.given < each.position and each.split.topic_id]
        if not fetched:
            return True
        there = self._topics_there(fetched)
        if there is None:
            if self._now_seconds() - self._moved_seconds > self._settings.give_up_seconds:
                raise self._gives_up(fetched[0])
            return False
        self._lose_other_topics(fetched, there)
        return not any(each.given < each.position and each.split.key in self._absent_since_seconds for each in fetched)

    def _topics_there(self, ranges: Sequence[_Range]) -> Mapping[str, Topic] | None:
        """The topics of ranges; None without an answer."""
        try:
            return self._used.client.topics(sorted({each.split.topic for each in ranges}))
        except KafkaUnavailable as silent:
            self._used.errors.said = silent.cause
            return None

    def _lose_other_topics(
        self, ranges: Sequence[_Range], there: Mapping[str, Topic], *, at_last: bool = False
    ) -> bool:
        """Finish the ranges whose topic or partition is deleted or another one; return whether there is one.

        With `at_last`, a topic or partition that is absent now counts as deleted at once.
        """
        now_seconds, lost, since = self._now_seconds(), False, self._absent_since_seconds
        self._absent_since_seconds = {}
        for each in ranges:
            if (why := _absent(each, there.get(each.split.topic))) is None:
                continue
            self._absent_since_seconds[each.split.key] = since_seconds = since.get(each.split.key, now_seconds)
            if at_last or now_seconds - since_seconds >= ABSENT_SECONDS:
                lost = True
                self._lose_topic(each, why)
        if self._absent_since_seconds:
            self._used.client.renew()  # a new client may ask another broker
        return lost

    def _lose_topic(self, each: _Range, reason: str) -> None:
        """Finish a range without the rows that were not handed out, because their topic is unknown."""
        each.chunks, each.position = [], each.given
        self._loss.found(each.split, each.position, None, reason, LATER_DELETION)
        each.given = each.stop
        if self._ranges.get(each.split.key) is each:
            self._finish(each)

    # -- errors and ends

    def _take_error(self, message: Message, error: KafkaError) -> bool:
        """Take an error or an end; return whether it answers our requests."""
        from confluent_kafka import KafkaError

        key = partition_of(message)
        each = self._ranges.get(key)
        if each is None and key[1] >= 0:
            return True  # of a split that was finished a moment ago
        code = error.code()
        if code == KafkaError._PARTITION_EOF and each is not None:  # noqa: SLF001  # librdkafka's own codes
            return self._take_end(each, offset_of(message))
        if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE) and each is not None:  # noqa: SLF001
            return self._out_of_range(each)
        if not may_pass(error):
            raise self._unavailable(each, error.str(), "check the rights of the user, and the brokers' logs.")
        self._used.errors.said = error.str()
        return False

    def _take_end(self, each: _Range, end: int) -> bool:
        """Take the end of the readable records; return whether it is the end of the range.

        An end before the stop is no sign of life, because each new consumer reports the same end again.
        """
        if end >= each.stop:
            self._finish(each)
            return True
        each.position = max(each.position, end)
        self._used.errors.said = f"the readable records of split {each.split.split_id!r} end at offset {end}"
        return False

    def _out_of_range(self, each: _Range) -> bool:
        """Take a position outside the partition: records were deleted, or the broker knows fewer records.

        Return whether the answer is a sign of life.
        """
        # By the client, because a consumer's `get_watermark_offsets` gives the end as the begin if the question for the
        # begin fails (`rd_kafka_query_wmark_offsets_resp_cb` of librdkafka 2.16 drops the error).
        questions = [{each.split.key: KafkaOffsets.earliest()}, {each.split.key: KafkaOffsets.latest()}]
        action = f"look up where the partition of split {each.split.split_id!r} begins and ends"
        (begins, without_begin), (ends, without_end) = self._ask_once(questions, action)
        low, high = begins.get(each.split.key), ends.get(each.split.key)
        if low is None or high is None:
            failed = {**without_begin, **without_end}.get(each.split.key, "the partition is not known")
            self._used.errors.said = f"cannot {action}: {self._used.client.cause(failed)}"
            self._seek(each)  # ask again
            return False
        there = self._topics_there([each])
        if there is not None and self._lose_other_topics([each], there):
            return True
        if low > each.position:
            self._lost(each, min(low, each.stop), "they were deleted (retention, or delete-records)")
            return True
        # A broker that is cut off from its controller still answers as leader, so the next consumer goes on. The next
        # consumer comes soon, because brokers answer.
        self._patience_seconds = FIRST_PATIENCE_SECONDS
        self._used.errors.said = f"the partition ends at offset {high}, and is read from offset {each.position} on"
        return False

    def _lose_cut_off(self, ranges: Sequence[_Range]) -> bool:
        """Finish the ranges that were read up to the end of a shorter partition; return whether there is one.

        The end of all records is asked for, because records of an open transaction are not lost.
        """
        wanted = {each.split.key: KafkaOffsets.latest() for each in ranges}
        action = f"look up where {counted(len(wanted), 'partition', ('ends', 'end'))}"
        [(ends, _)] = self._ask_once([wanted], action)
        lost = False
        for each in ranges:
            if (end := ends.get(each.split.key)) is not None and end <= each.position:
                lost = True
                reason = f"the partition ends at offset {end} now"
                self._loss.found(each.split, each.position, None, reason, COMPLETE_LEADER)
                self._finish(each)
        return lost

    def _ask_once(
        self, questions: Sequence[Mapping[TopicPartitionId, KafkaOffsets]], action: str
    ) -> Sequence[Positions]:
        """Look up offsets of all records, and give the error of a client that cannot ask to each partition."""
        try:
            return self._used.client.positions(questions, action, patience_seconds=0.0, stable=False)
        except KafkaUnavailable as silent:
            return [({}, dict.fromkeys(asked, silent)) for asked in questions]

    def _lost(self, each: _Range, resume: int, reason: str) -> None:
        self._loss.found(each.split, each.position, resume, reason)
        if resume >= each.stop:
            self._finish(each)
        else:
            each.position = resume
            self._seek(each)

    def _seek(self, each: _Range) -> None:
        self._used.consumer.incremental_unassign([each.at_position()])
        self._used.consumer.incremental_assign([each.at_position()])

    def _check_alive(self, active: Sequence[_Range]) -> None:
        if (refused := self._used.errors.refused) is not None:
            raise self._unavailable(active[0], refused, "check user, password and mechanism.")
        now_seconds = self._now_seconds()
        given_up = now_seconds - self._moved_seconds > self._settings.give_up_seconds
        if not given_up and now_seconds - self._renewed_seconds <= self._patience_seconds:
            return
        error = self._gives_up(active[0])
        there = self._topics_there(active)  # a consumer says nothing of a deleted topic
        lost = there is not None and self._lose_other_topics(active, there, at_last=given_up)
        if lost or (given_up and self._lose_cut_off(active)):
            self._note_move()
        elif given_up:
            raise error
        else:
            self._renew()

    def _note_move(self) -> None:
        self._moved_seconds = self._renewed_seconds = self._now_seconds()
        self._patience_seconds = FIRST_PATIENCE_SECONDS

    def _leave_out_pause(self, began_seconds: float) -> None:
        """Count the time between two fetches as no silence of the brokers, because the caller took that time."""
        pause_seconds = began_seconds - self._returned_seconds
        self._moved_seconds = min(began_seconds, self._moved_seconds + pause_seconds)
        self._renewed_seconds = min(began_seconds, self._renewed_seconds + pause_seconds)

    def _renew(self) -> None:
        """Go on with a new consumer, because expected rows do not come."""
        silent, self._kept = self._used, None
        self._patience_seconds = min(2 * self._patience_seconds, LONGEST_PATIENCE_SECONDS)
        self._consumers.discard(silent)
        ranges = list(self._ranges.values())
        self._kept = self._consumers.take(self._settings, self._properties(ranges))
        self._kept.errors.said = silent.errors.said
        self._kept.consumer.assign([each.at_position() for each in ranges])
        self._renewed_seconds = self._now_seconds()

    def _gives_up(self, each: _Range) -> KafkaUnavailable:
        said = self._used.errors.said
        hint = "check that the brokers run and can be reached from executors."
        return self._unavailable(each, "no answer" if said is None else said, hint)

    def _unavailable(self, each: _Range | None, cause: str, hint: str) -> KafkaUnavailable:
        what = "read" if each is None else (
            f"read split {each.split.split_id!r} from offset {each.position} to {each.stop}"
        )  # fmt: skip
        spent = self._now_seconds() - self._moved_seconds
        return KafkaUnavailable(self._settings.place, what, spent, self._settings.redact(cause), hint)


def _absent(each: _Range, topic: Topic | None) -> str | None:
    """Say why an answer about the topic of a range shows no rows of the range; None: topic and partition exist."""
    if topic is not None and (other := other_topic(each.split, topic.topic_id)) is not None:
        return other
    # A partition whose rows came exists.
    if topic is not None and (each.split.partition in topic.partitions or each.given < each.position):
        return None
    return f"the {'topic' if topic is None else 'partition'} does not exist any more"


def partition_runs(messages: Sequence[Message], *, one_topic: bool) -> list[tuple[TopicPartitionId, int, int]]:
    """Return each run of records of one partition, among one or more records: the partition, begin and end."""
    from confluent_kafka import Message

    partitions = np.fromiter(map(Message.partition, messages), np.int32, len(messages))
    changes = partitions[1:] != partitions[:-1]
    if not one_topic:
        topics = list(map(Message.topic, messages))
        changes |= np.fromiter((a != b for a, b in pairwise(topics)), np.bool_, len(topics) - 1)
    cuts = pairwise([0, *(np.flatnonzero(changes) + 1).tolist(), len(messages)])
    return [(partition_of(messages[at]), at, end) for at, end in cuts]
