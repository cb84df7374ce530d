"""Says how far partitions can be read, where a time begins in them, and whether a row is at that offset."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from lowmark.sources.api import EARLIEST_US, SplitEnd
from lowmark.sources.kit.asking_planner import AskingPlanner
from lowmark.watermark.printable import counted, some_of

from .client import KafkaClient
from .consumers import CONSUMERS, ConsumerCache
from .first_rows import FirstRow, FirstRows
from .offsets import KafkaOffsets, TopicPartitionId
from .settings import KafkaSettings
from .split import COMPLETE_LEADER, LATER_DELETION, KafkaLosses, KafkaSplit, other_topic
from .topics import Topic

PATIENCE_SECONDS = 2.0
"""How long partitions without an answer are asked again by one call; the next batch asks again."""

DOUBTS = 5
DOUBT_SECONDS = 1.0
"""How often, and how far apart, a question is repeated before a missing partition, or a partition of another topic of
that name, counts as deleted, because a broker that is cut off from its controller knows what was there before.

`enumerator.py` does the same for missing topics.
"""

_log = logging.getLogger("lowmark")


class KafkaPlanner(AskingPlanner[KafkaSplit]):
    """Plans partitions of Kafka. A position is an offset, and some offsets have no record.

    Attributes:
        metrics: counts `lost_offsets`, `data_losses` and `unanswered_partitions`, and shows `transactional_partitions`:
            the partitions where a search by time found an offset without a row.

    Args:
        searchable: whether rows have the searched time.
        transactional: whether partitions have transactions; None: unknown, so the row of a claim is looked at.
        subscribes: whether (topic, partition) shall still be read.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        go_on: bool,
        searchable: bool = True,
        transactional: bool | None = None,
        subscribes: Callable[[str, int], bool] = lambda *_: True,
        client: KafkaClient | None = None,
        consumers: ConsumerCache = CONSUMERS,
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(f"Kafka at {settings.place}", "partitions", now_seconds)
        self._settings, self._searchable = settings, searchable
        self._client = client if client is not None else KafkaClient(settings)
        self._loss = KafkaLosses(go_on=go_on, metrics=self.metrics)
        self._transactional, self._subscribes = transactional, subscribes
        self._first_rows = FirstRows(settings, consumers=consumers, now_seconds=now_seconds)
        self._short_since_seconds: dict[str, float] = {}  # split id -> since when its partition ends before its start
        self._no_rows: dict[str, int] = {}  # split id -> the last found offset that hides older rows
        self.metrics.gauge("transactional_partitions", lambda: len(self._no_rows))

    def latest(self, splits: Sequence[KafkaSplit]) -> Mapping[str, SplitEnd]:
        """Say where each partition ends: at its last stable offset if only committed records are read.

        A partition without an answer is missing. If no partition answers for the allowed time (`give_up_after`), there
        is an error. Raises KafkaDataLost, KafkaUnavailable.
        """
        for name in self._long_not_asked(splits):
            self._no_rows.pop(name, None)
            self._first_rows.forget(name)
            self._short_since_seconds.pop(name, None)
        dropped = self._drop_unsubscribed(splits, lambda split: self._subscribes(*split.key))
        splits = [split for split in splits if split.split_id not in dropped]
        return {**dropped, **self._latest(splits)}

    def _latest(self, splits: Sequence[KafkaSplit]) -> Mapping[str, SplitEnd]:
        if not splits:
            return {}
        action = f"look up where {counted(len(splits), 'partition', ('ends', 'end'))}"
        partitions = dict.fromkeys(split.key for split in splits)
        questions = [dict.fromkeys(partitions, each) for each in (KafkaOffsets.latest(), KafkaOffsets.earliest())]
        names = sorted({topic for topic, _ in partitions})
        doubts = DOUBTS
        while True:
            described = self._client.describe(names, patience_seconds=PATIENCE_SECONDS)
            answers = self._client.positions(questions, action, patience_seconds=PATIENCE_SECONDS)
            (ends, without_end), (begins, without_begin) = answers
            failed = {**without_end, **without_begin}
            topics, failed_topics = described() if len(failed) < len(partitions) else ({}, {})
            failed |= {key: failed_topics[key[0]] for key in partitions if key[0] in failed_topics}
            if len(failed) == len(partitions):
                self._check_silence(failed, action)
                return {}
            answered = [key for key in partitions if key not in failed]
            gone = [key for key in answered if key[0] not in topics or None in (ends[key], begins[key])]
            other = any(other_topic(each, topics[each.topic].topic_id) for each in splits if each.topic in topics)
            if doubts == 0 or not (gone or other):
                break
            doubts -= 1
            self._client.renew()
            self._client.pause(DOUBT_SECONDS)
        ends = self._with_open_transactions(splits, ends, action)
        plan: dict[str, SplitEnd] = {}
        short: dict[TopicPartitionId, Exception] = {}
        for split in splits:
            if (key := split.key) not in failed and key in ends:
                end = self._end(split, topics.get(split.topic), begins.get(key), ends[key])
                if end is None:
                    short[key] = ValueError(f"it ends at offset {ends[key]}, and is read from offset {split.start} on")
                else:
                    plan[split.split_id] = end
        if short:  # a new client may ask another broker
            self._client.renew()
        failed |= short
        self._unanswered.see(len(failed), len(partitions), *self._example(failed))
        return plan

    def _with_open_transactions(
        self, splits: Sequence[KafkaSplit], ends: dict[TopicPartitionId, int | None], action: str
    ) -> dict[TopicPartitionId, int | None]:
        """Let a split end at its start if only an open transaction lies before the start.

        A start may come from a query that reads what is not committed. A partition without an answer is left out.
        """
        if not self._settings.read_committed:
            return ends
        starts = {split.key: split.start for split in splits}
        behind = {key: start for key, start in starts.items() if (end := ends.get(key)) is not None and end < start}
        if not behind:
            return ends
        asked = dict.fromkeys(behind, KafkaOffsets.latest())
        [(found, _)] = self._client.positions([asked], action, patience_seconds=PATIENCE_SECONDS, stable=False)
        highs = {key: None if high is None else min(high, behind[key]) for key, high in found.items()}
        return {key: end for key, end in ends.items() if key not in behind} | highs

    def find_time(self, splits: Sequence[KafkaSplit], time_us: int) -> Mapping[str, int | None] | None:
        """Find the first offset with that record timestamp or a later timestamp, in all partitions by one request.

        A partition without a leader is missing in the answer, as in `latest`. Brokers also find offsets without a row
        (see `first_rows.py`), which `claims` detects. If such an offset turned out to hide older rows, its partition is
        missing in later answers while that unread offset would be the answer: the partition is then read by shares.
        None if rows have no column `timestamp`, or if the user says that all partitions have transactions.
        """
        if not self._searchable or self._transactional:
            return None
        position, action = KafkaOffsets.timestamp(time_us), f"find a time in {counted(len(splits), 'partition')}"
        wanted = dict.fromkeys((split.key for split in splits), position)
        [(found, failed)] = self._client.positions([wanted], action, patience_seconds=PATIENCE_SECONDS)
        self._unanswered.tell(len(failed), *self._example(failed))
        answers: dict[str, int | None] = {}
        for split in splits:
            key, name = split.key, split.split_id
            # An offset before the start need not be hidden, because planning handles such answers.
            hides = name in self._no_rows and found.get(key) == self._no_rows[name] >= split.start
            if key in found and not hides:
                answers[name] = found[key]
        return answers

    def claims(self, splits: Sequence[KafkaSplit], time_us: int, until_us: int | None = None) -> Mapping[str, int]:
        """Claim the time for each partition whose first row from the split's start on has that time or a later time.

        The first rows are looked at, by one request for all partitions, or without a request if an earlier look brought
        them. A partition without an answer within two seconds gets no claim, and is not looked at for five seconds.
        """
        if self._transactional is False:
            return super().claims(splits, time_us, until_us)
        rows = self._look(splits)
        claimed: dict[str, int] = {}
        hiding: list[KafkaSplit] = []
        for split in splits:
            row = rows.get(split.split_id)
            if row is None:
                continue
            if row.time_us is not None and time_us <= row.time_us and (until_us is None or row.time_us <= until_us):
                claimed[split.split_id] = time_us
            elif row.offset != split.start:
                hiding.append(split)
        self._hide(hiding)
        return claimed

    def claim_us(self, split: KafkaSplit, position: int, time_us: int) -> int:
        """Claim as in `claims` for one partition, but only if its first row is exactly at the position."""
        split = replace(split, start=position)
        if self._transactional is False:
            return time_us
        row = self._look([split]).get(split.split_id)
        there = row is not None and row.offset == position and row.time_us is not None and row.time_us >= time_us
        if row is not None and row.offset != position:
            self._hide([split])
        return time_us if there else EARLIEST_US

    def cut(self, stops: Sequence[tuple[KafkaSplit, int]]) -> Sequence[tuple[KafkaSplit, KafkaSplit]]:
        """Both parts say which lost offsets are counted already."""
        told_to = self._loss.told_to
        return super().cut([
            (replace(split, lost_before=told_to(split.split_id, split.lost_before)), stop) for split, stop in stops
        ])  # fmt: skip

    def close(self) -> None:
        self._client.close()

    def _end(self, split: KafkaSplit, topic: Topic | None, begin: int | None, end: int | None) -> SplitEnd | None:
        """Return where a split ends; None for the allowed time if its partition ends before the split's start.

        A broker that is cut off from its controller still answers as leader, and knows fewer records.
        """
        start = split.start
        if split.stop is not None and start >= split.stop:
            return SplitEnd(start, rows=0, finished=True)
        if topic is None or begin is None or end is None:
            self._loss.found(split, start, None, "the topic or the partition was deleted", LATER_DELETION)
            return SplitEnd(start, rows=0, finished=True)
        if (other := other_topic(split, topic.topic_id)) is not None:
            self._loss.found(split, start, None, other, LATER_DELETION)
            return SplitEnd(start, rows=0, finished=True)
        if end >= start:
            self._short_since_seconds.pop(split.split_id, None)
        else:
            now_seconds = self._now_seconds()
            since_seconds = self._short_since_seconds.setdefault(split.split_id, now_seconds)
            if now_seconds - since_seconds < self._settings.give_up_seconds:
                return None
            # Positions do not go back. The partition may grow again, but the rows up to a stop count as lost.
            first, resume = (end, start) if split.stop is None else (start, split.stop)
            short = f"the partition ends at offset {end} now, and is read from offset {start} on"
            later = f"a later record with an offset below {resume} is not read"
            self._loss.found(split, first, resume, f"{short}; {later}", COMPLETE_LEADER)
            return SplitEnd(start, rows=0, finished=split.stop is not None)
        if begin > start:
            lost = begin if split.stop is None else min(begin, split.stop)
            self._loss.found(split, start, lost, "they were deleted (retention, or delete-records)")
        stop = end if split.stop is None else min(end, split.stop)
        return SplitEnd(stop, rows=max(0, stop - max(start, begin)), finished=stop == split.stop)

    def _look(self, splits: Sequence[KafkaSplit]) -> Mapping[str, FirstRow]:
        rows, failed = self._first_rows.find(splits)
        self._unanswered.tell(len(failed), *self._example(failed))
        return rows

    def _check_silence(self, failed: Mapping[TopicPartitionId, Exception], action: str) -> None:
        """Note that no partition answers. Raises KafkaUnavailable after the allowed time."""
        self._unanswered.see(len(failed), len(failed), *self._example(failed))
        waited_seconds = self._unanswered.all_silent_seconds
        if waited_seconds > self._settings.give_up_seconds:
            raise self._client.unavailable(action, next(iter(failed.values())), waited_seconds)

    def _hide(self, splits: Sequence[KafkaSplit]) -> None:
        """Remember offsets without a row, behind which rows do not have the time either."""
        new = [split for split in splits if split.split_id not in self._no_rows]
        self._no_rows.update((split.split_id, split.start) for split in splits)
        if not new:
            return
        _log.info(
            "%s: %d partitions hold transactions whose markers hide older rows from a search by time: %s. "
            "Meanwhile they are read by shares of rows, and their watermarks follow the rows that were read.",
            self._system, len(new), some_of([f"{split.topic}/{split.partition}" for split in new]),
        )  # fmt: skip

    def _example(self, failed: Mapping[TopicPartitionId, Exception]) -> tuple[str, str]:
        if not failed:
            return "", ""
        (topic, partition), error = next(iter(failed.items()))
        return f"{topic}/{partition}", self._client.cause(error)
