"""The part of topics to audit begins at the same time in all partitions.

If one partition were read further back than the others, it would look late only because its rows are old.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lowmark.integration.errors import AuditImpossible
from lowmark.integration.transport.split_key import split_name
from lowmark.sources.kafka.client import KafkaClient
from lowmark.sources.kafka.offsets import KafkaOffsets, TopicPartitionId
from lowmark.sources.kafka.topics import Topic
from lowmark.watermark import format_time_us

from .audit import Question

LEADER_SECONDS = 10.0
"""How long partitions without an answer are asked again before they are left out, because the brokers answered just
before, and a partition has a new leader within seconds if it can have one."""
_BISECTIONS = 40
Offsets = dict[TopicPartitionId, int]

_EARLIEST, _LATEST = KafkaOffsets.earliest(), KafkaOffsets.latest()


@dataclass(frozen=True, slots=True)
class Topics:
    """The audited topics, given by name or by a pattern for whole names.

    >>> str(Topics(("orders",))), str(Topics(("orders", "returns"))), str(Topics(pattern="orders-.*"))
    ("topic 'orders'", "topics 'orders', 'returns'", "topics like 'orders-.*'")
    """

    names: tuple[str, ...] = ()
    pattern: str | None = None

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"topics like {self.pattern!r}"
        return f"topic{'s' if len(self.names) > 1 else ''} {', '.join(map(repr, self.names))}"

    def find(self, client: KafkaClient) -> dict[str, Topic]:
        """Return the existing topics by name."""
        if self.pattern is not None:
            return client.topics_like(self.pattern)
        return client.topics(self.names, f"describe {self}")


@dataclass(frozen=True, slots=True)
class TopicRange:
    """Finds the part of the topics to read."""

    client: KafkaClient
    bootstrap_servers: str
    topics: Topics
    question: Question
    now_us: int
    notes: list[str]
    unread: dict[str, list[str]]  # why -> partitions that are left out

    def find(self) -> tuple[Offsets, Offsets]:
        """Return the first offset to read of each partition, and the offset after the last."""
        found = self.topics.find(self.client)
        missing = [name for name in self.topics.names if name not in found]
        if missing or not found:
            what = f"is no topic {', '.join(map(repr, missing))}" if missing else f"are no {self.topics}"
            raise AuditImpossible(
                f"Kafka at {self.bootstrap_servers}: there {what}",
                "check the spelling, and the right to describe and read it.",
            )
        every = [(topic, partition) for topic, each in found.items() for partition in each.partitions]
        questions = [dict.fromkeys(every, each) for each in (_EARLIEST, _LATEST)]
        action = f"ask where {self.topics} end"
        (first, no_first), (last, no_last) = self.client.positions(questions, action, patience_seconds=LEADER_SECONDS)
        if silent := {**no_first, **no_last}:
            why = next(iter(silent.values()))
            if len(silent) == len(every):
                raise self.client.unavailable(action, why, LEADER_SECONDS)
            self._leave_out(silent)
        begins, ends = Offsets(), Offsets()
        for partition, begin in first.items():
            end = last.get(partition)
            if begin is not None and end is not None:
                begins[partition], ends[partition] = begin, max(begin, end)
        if sum(ends.values()) == sum(begins.values()) and not self.unread:
            raise AuditImpossible(
                f"there is no record that can be read in {self.topics}", "audit it once rows were committed to it."
            )
        begins = self._narrowed(begins, ends)
        return {partition: begins[partition] for partition in ends}, ends

    def _leave_out(self, silent: Mapping[TopicPartitionId, Exception]) -> None:
        for partition in sorted(silent):
            self.unread.setdefault(self.client.cause(silent[partition]), []).append(split_name(partition))

    def _narrowed(self, begins: Offsets, ends: Offsets) -> Offsets:
        """The first offsets of the wanted part, at the same time in all partitions of `ends`."""
        if self.question.last_us is not None:
            since_us = self.now_us - self.question.last_us
            begins = self._at(since_us, begins, ends)
            if begins == ends and not self.unread:
                raise AuditImpossible(
                    f"{self.topics}: nothing was written since {format_time_us(since_us)}",
                    "ask for more with --last, for the newest rows with --rows, or for --all.",
                )
        rows = self.question.rows
        if rows is None or sum(ends[each] - begins[each] for each in ends) <= rows:
            return begins
        low_us, high_us, found = 0, self.now_us, ends
        for _ in range(_BISECTIONS):  # down to a millisecond
            middle_us = (low_us + high_us) // 2
            at = self._at(middle_us, begins, ends)
            count = sum(ends[each] - at[each] for each in ends)
            if count > rows:
                low_us = middle_us
            else:
                high_us, found = middle_us, at
                if count > rows * 0.9:
                    break
        if found == ends:  # the timestamps do not help: all are alike, or ahead of the clock
            share = max(1, rows // len(ends))
            found = {each: max(begins[each], ends[each] - share) for each in ends}
            self.notes.append(
                "the records' timestamps do not say where the newest rows begin: the same number of each partition was "
                "read, which may reach further back in some than in others"
            )
        return found

    def _at(self, time_us: int, begins: Offsets, ends: Offsets) -> Offsets:
        """The first offsets written at a time or later. Partitions without an answer are taken out of `ends`."""
        wanted = {partition: KafkaOffsets.timestamp(time_us) for partition in ends}
        action = f"search {self.topics} by time"
        [(found, silent)] = self.client.positions([wanted], action, patience_seconds=LEADER_SECONDS)
        self._leave_out(silent)
        for partition in silent:
            del ends[partition]
        at = Offsets()
        for partition, end in ends.items():
            offset = found.get(partition)
            at[partition] = end if offset is None else min(end, max(begins[partition], offset))
        return at
