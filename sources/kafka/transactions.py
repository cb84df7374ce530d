"""Finds the partitions that hold transactions: no time can be searched for in them.

Brokers also find what is no row: the markers that end transactions, which have the broker's time, and the records of
aborted ones. Where a history is written in transactions, the first marker answers for every time up to the broker's,
and older rows lie behind it.

No request says whether a partition has transactions, but its end shows it:

    an open one     the last stable offset is before the high watermark, which was asked for first
    an ended one    the last offset before the end is a marker, so that no record is delivered for it

What is no longer at the end is not seen: see `KafkaPlanner.find_time`.

Source: KIP-98, Kafka's `ListOffsets`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .client import KafkaClient, KafkaSettings, may_pass
from .consumers import CONSUMERS, ConsumerCache
from .offsets import KafkaOffsets, TopicPartitionId
from .reader import fetch_properties
from .split import KafkaSplit

__all__ = ["Searchable", "TransactionalPartitions"]

AGAIN_SECONDS = 60.0
"""A partition that had no transaction at its end is looked at again after that long, if it has grown."""
RETRY_SECONDS = 5.0
"""One that could not be looked at, after that long."""
PEEK_SECONDS = 2.0
"""How long the last records are waited for."""
POLL_SECONDS = 0.01
MOST_MESSAGES = 1_000
NAMED = 20

_log = logging.getLogger("lowmark")


@dataclass(slots=True)
class Searchable:
    """Which splits a time can be searched for in.

    Attributes:
        splits: those that have rows, and no transactions as far as is known.
        empty: ids of those that have no rows.
        transactional: ids of those that hold transactions.
        failed: (topic, partition) -> why it could not be looked at just now.
    """

    splits: list[KafkaSplit] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    transactional: list[str] = field(default_factory=list)
    failed: dict[TopicPartitionId, Exception] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Look:
    """When a partition was looked at, where it ended, and whether that told anything."""

    at_seconds: float
    end: int | None
    answered: bool


class TransactionalPartitions:
    """Which partitions hold transactions. For one thread at a time.

    Args:
        settings: how to reach the brokers.
        client: asks for ends.
        given: True: all of them do; False: none; None: their ends are looked at.
        consumers: where the consumer comes from that reads the last records.
        now_seconds: a clock that never goes back.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        client: KafkaClient,
        *,
        given: bool | None = None,
        consumers: ConsumerCache = CONSUMERS,
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._client, self._given = settings, client, given
        self._consumers, self._now_seconds = consumers, now_seconds
        self._found: set[str] = set()
        self._ends: dict[str, tuple[int, int]] = {}
        self._looks: dict[str, _Look] = {}
        self._settled: set[str] = set()

    def __len__(self) -> int:
        return len(self._found)

    def ended(self, ends: Mapping[str, tuple[int, int]]) -> None:
        """Take what a plan begins with: split id -> its first offset and its end.

        Until the next plan begins, no answer about a split changes.
        """
        self._ends.update(ends)
        self._settled.clear()

    def sort(self, splits: Sequence[KafkaSplit]) -> Searchable:
        """Say which splits can be searched by time, and look at those that it is time to look at.

        Raises:
            KafkaUnavailable: no broker answered in time.
        """
        sorted_ = Searchable()
        if self._given is False:
            sorted_.splits = list(splits)
            return sorted_
        if self._given is True:
            self._found.update(split.split_id for split in splits)
        due = [split for split in splits if split.split_id not in self._settled and self._due(split.split_id)]
        self._settled.update(split.split_id for split in splits)
        if due:
            sorted_.failed = self._look_at(due)
        for split in splits:
            name = split.split_id
            look = self._looks.get(name)
            if name in self._found:
                sorted_.transactional.append(name)
            elif look is None:
                sorted_.empty.append(name)
            elif look.answered:
                sorted_.splits.append(split)
        return sorted_

    def _due(self, name: str) -> bool:
        look, ends = self._looks.get(name), self._ends.get(name)
        if name in self._found:
            return False
        if look is None:
            return ends is None or ends[0] < ends[1]
        spent = self._now_seconds() - look.at_seconds
        if not look.answered:
            return spent >= RETRY_SECONDS
        return spent >= AGAIN_SECONDS and (ends is None or ends[1] != look.end)

    def _look_at(self, due: Sequence[KafkaSplit]) -> dict[TopicPartitionId, Exception]:
        """Look at the ends of partitions; return the errors of those that did not answer."""
        wanted = dict.fromkeys((split.topic, split.partition) for split in due)
        action = f"look for transactions at the ends of {len(wanted)} partitions"
        latest, earliest = (dict.fromkeys(wanted, each) for each in (KafkaOffsets.latest(), KafkaOffsets.earliest()))
        # The high watermark first: asked for together or later, rows of the meantime would look like a transaction.
        [high] = self._client.positions_of_each([latest], action, patience_seconds=0.0, read_committed=False)
        stable, begin = self._client.positions_of_each(
            [latest, earliest], action, patience_seconds=0.0, read_committed=True
        )
        failed = {**high[1], **stable[1], **begin[1]}
        held: set[TopicPartitionId] = set()
        tails: dict[TopicPartitionId, int] = {}
        empty: set[TopicPartitionId] = set()
        for key in wanted:
            ends = high[0].get(key), stable[0].get(key), begin[0].get(key)
            if key in failed:
                continue
            if ends[0] is None or ends[1] is None or ends[2] is None:
                failed[key] = LookupError("the partition is not there")
            elif ends[1] < ends[0]:
                held.add(key)
            elif ends[1] <= ends[2]:
                empty.add(key)
            else:
                tails[key] = ends[1] - 1
        delivered, silent = self._peek(tails) if tails else ({}, {})
        failed |= silent
        held |= {key for key, is_row in delivered.items() if not is_row}
        now_seconds = self._now_seconds()
        for split in due:
            key, name = (split.topic, split.partition), split.split_id
            if key in held:
                self._found.add(name)
            elif key in empty:
                self._looks.pop(name, None)  # as if it was new: nothing is known of what comes
            else:
                known = self._ends.get(name)
                end = known[1] if known is not None else stable[0].get(key)
                self._looks[name] = _Look(now_seconds, end, answered=key not in failed)
        self._tell(sorted(held))
        return failed

    def _peek(
        self, tails: Mapping[TopicPartitionId, int]
    ) -> tuple[dict[TopicPartitionId, bool], dict[TopicPartitionId, Exception]]:
        """Read the records at some offsets, one a partition.

        Returns:
            (whether a record is there that committed reading delivers; errors of partitions that did not answer).
        """
        from confluent_kafka import KafkaError, TopicPartition

        delivered: dict[TopicPartitionId, bool] = {}
        errors: dict[TopicPartitionId, str] = {}
        kept = self._consumers.take(self._settings, _properties(len(tails)))
        try:
            kept.consumer.assign([TopicPartition(*key, at) for key, at in tails.items()])
            until = self._now_seconds() + PEEK_SECONDS
            while len(delivered) < len(tails) and kept.errors.refused is None and self._now_seconds() < until:
                before = set(delivered)
                for message in kept.consumer.consume(MOST_MESSAGES, POLL_SECONDS):
                    key = (str(message.topic()), int(message.partition() or 0))
                    if key not in tails:
                        continue
                    at, error = int(message.offset() or 0), message.error()
                    if error is None:
                        if at >= tails[key]:
                            delivered.setdefault(key, at == tails[key])
                    elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # librdkafka's own codes
                        # At the tail itself: this replica has not heard of it yet.
                        if at > tails[key]:
                            delivered.setdefault(key, False)
                    else:
                        errors[key] = error.str()
                        if not may_pass(error) and len(delivered) + len(errors) >= len(tails):
                            until = self._now_seconds()
                answered = delivered.keys() - before
                if answered and len(delivered) < len(tails):  # what a busy one brings more would hold up the others
                    kept.consumer.incremental_unassign([TopicPartition(*key) for key in sorted(answered)])
            said = kept.errors.refused if kept.errors.refused is not None else kept.errors.said
        finally:
            self._consumers.give_back(kept)
        why = said if said is not None else "no answer"
        return delivered, {
            key: TimeoutError(
                f"its last record could not be read to see whether it holds transactions: {errors.get(key, why)}; it "
                "is not searched by time until then (with transactional=False it is not looked at)"
            )
            for key in tails
            if key not in delivered
        }

    def _tell(self, held: Sequence[TopicPartitionId]) -> None:
        if not held:
            return
        names = ", ".join(f"{topic}/{partition}" for topic, partition in held[:NAMED])
        more = f" and {len(held) - NAMED} more" if len(held) > NAMED else ""
        _log.info(
            "Kafka at %s: %d partitions hold transactions and are not searched by time: %s%s. Their markers have the "
            "broker's time and would be taken for rows. They are read by shares of rows, and their watermarks follow "
            "what was read.",
            self._settings.bootstrap_servers, len(held), names, more,
        )  # fmt: skip


def _properties(partitions: int) -> dict[str, Any]:
    return {
        "group.id": "lowmark",  # librdkafka wants one; no group is joined
        **fetch_properties([1] * partitions, 0.0),
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "isolation.level": "read_committed",  # whatever the source reads: the question is what is no committed row
    }
