"""Says how far partitions can be read, and where in them a time begins: three requests for all of them together."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from lowmark.sources.api import SplitEnd, SplitPlanner
from lowmark.sources.metric_group import MetricGroup

from .client import KafkaClient, KafkaSettings, Topic
from .consumers import CONSUMERS, ConsumerCache
from .offsets import KafkaOffsets, TopicPartitionId
from .split import DataLoss, KafkaSplit
from .transactions import TransactionalPartitions

__all__ = ["KafkaPlanner"]

PATIENCE_SECONDS = 2.0
"""How long partitions without a leader are asked for while others wait; the next batch asks again."""

DOUBTS = 5
DOUBT_SECONDS = 1.0
"""A partition that is not there is asked about so many times more, so far apart, before it counts as deleted: brokers
that have just started do not know all of them yet."""

_log = logging.getLogger("lowmark")


class KafkaPlanner(SplitPlanner[KafkaSplit]):
    """Plans partitions of Kafka: a position is an offset, and not every offset has a record.

    Attributes:
        metrics: counts `lost_offsets`, `data_losses` and `unanswered_partitions`, and shows `transactional_partitions`.

    Args:
        settings: how to reach the brokers.
        go_on: whether records that are gone are logged and counted, instead of raised.
        searchable: whether rows have the time that can be searched for.
        transactional: whether partitions hold transactions; None: their ends are looked at.
        client: asks the brokers; by default a new one, made from the settings.
        consumers: where the consumer comes from that looks at the ends.
        now_seconds: a clock that never goes back.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        go_on: bool,
        searchable: bool = True,
        transactional: bool | None = None,
        client: KafkaClient | None = None,
        consumers: ConsumerCache = CONSUMERS,
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self.metrics = MetricGroup()
        self._settings, self._searchable = settings, searchable
        self._client = client if client is not None else KafkaClient(settings)
        self._loss = DataLoss(go_on=go_on, metrics=self.metrics)
        self._unanswered = self.metrics.counter("unanswered_partitions")
        self._transactions = TransactionalPartitions(
            settings, self._client, given=transactional, consumers=consumers, now_seconds=now_seconds
        )
        self.metrics.gauge("transactional_partitions", lambda: len(self._transactions))

    def latest(self, splits: Sequence[KafkaSplit]) -> Mapping[str, SplitEnd]:
        """Say where each partition ends: at its last stable offset if only committed records are read.

        A partition without a leader is missing in the answer. If none answers, it is asked again until the time
        allowed is over (`give_up_after`).

        Raises:
            KafkaDataLost: records from a split's start on are gone: deleted by retention, or with their topic.
            KafkaUnavailable: no broker answered in time.
        """
        if not splits:
            return {}
        action = f"look up where {len(splits)} partitions end"
        partitions: dict[TopicPartitionId, None] = dict.fromkeys((split.topic, split.partition) for split in splits)
        questions = [dict.fromkeys(partitions, each) for each in (KafkaOffsets.latest(), KafkaOffsets.earliest())]
        doubts = DOUBTS
        while True:
            ends, begins = self._client.positions_of_each(questions, action, patience_seconds=PATIENCE_SECONDS)
            topics = self._client.topics(sorted({topic for topic, _ in partitions}))
            failed = {**ends[1], **begins[1]}
            gone = [key for key in partitions if key not in failed and None in (ends[0][key], begins[0][key])]
            if doubts == 0 or (not gone and all(topic in topics for topic, _ in partitions)):
                break
            doubts -= 1
            self._client.pause(DOUBT_SECONDS)
        self._complain(failed)
        plan: dict[str, SplitEnd] = {}
        known: dict[str, tuple[int, int]] = {}
        for split in splits:
            key = (split.topic, split.partition)
            begin, end = begins[0].get(key), ends[0].get(key)
            if begin is not None and end is not None:
                known[split.split_id] = begin, end
            if key not in failed:
                plan[split.split_id] = self._end(split, topics.get(split.topic), begin, end)
        self._transactions.ended(known)
        return plan

    def find_time(self, splits: Sequence[KafkaSplit], time_us: int) -> Mapping[str, int | None] | None:
        """Find the first offset with that record timestamp or a later one, in all partitions by one request.

        Kafka keeps milliseconds. A partition without a leader is missing in the answer, as in `latest`.

        So is a partition that holds transactions: brokers also find the records of aborted ones, and the markers that
        end them, which have the broker's time and answer for all times up to it, while older rows lie behind them.
        Nothing is claimed for such a partition. It is known by its end, which is looked at when it is first searched
        and then once a minute if it has grown. Not seen is, and so may be claimed too much of:

        * a mixed history, with transactions first and plain records at its end whenever it is looked at;
        * up to a minute of a partition whose first transactions come while it is read.

        `KafkaSource(transactional=True)` is for those. A partition that was searched by time and turns out to hold
        transactions is not searched any more; what was claimed of it stays.

        Returns:
            None if the rows have no column `timestamp`, or all these partitions hold transactions.

        Raises:
            KafkaUnavailable: no broker answered in time.
        """
        if not self._searchable:
            return None
        if not splits:
            return {}
        sorted_ = self._transactions.sort(splits)
        self._complain(sorted_.failed)
        if len(sorted_.transactional) == len(splits):
            return None
        answers: dict[str, int | None] = dict.fromkeys(sorted_.empty)
        if not sorted_.splits:
            return answers
        position, action = KafkaOffsets.timestamp(time_us), f"find a time in {len(sorted_.splits)} partitions"
        wanted = dict.fromkeys(((split.topic, split.partition) for split in sorted_.splits), position)
        found, failed = self._client.positions(wanted, action, patience_seconds=PATIENCE_SECONDS)
        self._complain(failed)
        for split in sorted_.splits:
            if (key := (split.topic, split.partition)) in found:
                answers[split.split_id] = found[key]
        return answers

    def close(self) -> None:
        self._client.close()

    def _end(self, split: KafkaSplit, topic: Topic | None, begin: int | None, end: int | None) -> SplitEnd:
        start = split.start
        if split.stop is not None and start >= split.stop:
            return SplitEnd(start, rows=0, finished=True)
        if topic is None or begin is None or end is None:
            self._loss.found(split, start, None, "the topic or the partition was deleted")
            return SplitEnd(start, rows=0, finished=True)
        if split.topic_id and topic.topic_id and topic.topic_id != split.topic_id:
            self._loss.found(split, start, None, "the topic was deleted and created anew")
            return SplitEnd(start, rows=0, finished=True)
        if end < start:
            self._loss.found(split, start, None, f"the partition ends at offset {end} now, before what was read of it")
            return SplitEnd(start, rows=0)  # it may grow beyond again; positions do not go back
        if begin > start:
            lost = begin if split.stop is None else min(begin, split.stop)
            self._loss.found(split, start, lost, "they were deleted (retention, or delete-records)")
        stop = end if split.stop is None else min(end, split.stop)
        return SplitEnd(stop, rows=max(0, stop - max(start, begin)), finished=stop == split.stop)

    def _complain(self, failed: Mapping[TopicPartitionId, Exception]) -> None:
        if not failed:
            return
        self._unanswered.inc(len(failed))
        (topic, partition), error = next(iter(failed.items()))
        _log.warning(
            "Kafka at %s: %d partitions cannot be read at present and are asked about again, such as %s/%d: %s",
            self._settings.bootstrap_servers, len(failed), topic, partition, self._settings.redact(str(error)),
        )  # fmt: skip
