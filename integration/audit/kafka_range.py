"""Which part of a topic is audited: a bounded one, that begins at one time in all partitions.

None is read further back than the others: else a slow partition would look late only because its rows are old.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowmark.integration.errors import AuditImpossible
from lowmark.sources.kafka.client import KafkaClient
from lowmark.sources.kafka.errors import KafkaTopicMissing
from lowmark.sources.kafka.offsets import KafkaOffsets
from lowmark.watermark import format_time_us

__all__ = ["ROWS", "TopicRange", "Wanted"]

ROWS = 1_000_000
"""How many rows are read where nothing is said."""

_BISECTIONS = 40
_EARLIEST, _LATEST = KafkaOffsets.earliest(), KafkaOffsets.latest()


@dataclass(frozen=True, slots=True)
class Wanted:
    """How much is read.

    Attributes:
        rows: so many of the newest, about; None: as many as there are.
        last_us: what was written within so long before now, by the records' timestamps; None: whenever.
    """

    rows: int | None = ROWS
    last_us: int | None = None


@dataclass(frozen=True, slots=True)
class TopicRange:
    """Finds it.

    Attributes:
        bootstrap_servers: the brokers, for errors.
        topic: its name.
        wanted: how much is read.
        now_us: now, microseconds since the epoch.
        notes: takes what a person should know of it.
    """

    bootstrap_servers: str
    topic: str
    wanted: Wanted
    now_us: int
    notes: list[str]

    def find(self, client: KafkaClient) -> tuple[dict[int, int], dict[int, int]]:
        """The first offset of each partition that is read, and the one after its last."""
        topic = client.topics([self.topic], f"describe topic {self.topic!r}").get(self.topic)
        if topic is None:
            raise KafkaTopicMissing((self.topic,), self.bootstrap_servers)
        every = [(self.topic, partition) for partition in topic.partitions]
        (first, no_first), (last, no_last) = client.positions_of_each(
            [dict.fromkeys(every, _EARLIEST), dict.fromkeys(every, _LATEST)], f"ask where topic {self.topic!r} ends"
        )
        if no_first or no_last:
            without = ", ".join(sorted({str(partition) for _, partition in (*no_first, *no_last)}, key=int))
            self.notes.append(f"partitions without a leader are left out: {without}")
        begins = {partition: offset for (_, partition), offset in first.items() if offset is not None}
        ends = {partition: offset for (_, partition), offset in last.items() if offset is not None}
        begins = {partition: offset for partition, offset in begins.items() if partition in ends}
        ends = {partition: max(ends[partition], offset) for partition, offset in begins.items()}
        if sum(ends.values()) == sum(begins.values()):
            raise AuditImpossible(
                f"topic {self.topic!r} holds no record that can be read", "audit it once rows were written to it."
            )
        return self._narrowed(client, begins, ends), ends

    def _narrowed(self, client: KafkaClient, begins: dict[int, int], ends: dict[int, int]) -> dict[int, int]:
        """Where to begin so that what is wanted is read, at one time in all partitions."""
        if self.wanted.last_us is not None:
            since_us = self.now_us - self.wanted.last_us
            begins = self._at(client, since_us, begins, ends)
            if begins == ends:
                raise AuditImpossible(
                    f"nothing was written to topic {self.topic!r} since {format_time_us(since_us)}",
                    "ask for more with --last, for the newest rows with --rows, or for --all.",
                )
        rows = self.wanted.rows
        if rows is None or sum(ends[each] - begins[each] for each in ends) <= rows:
            return begins
        low_us, high_us, found = 0, self.now_us, ends
        for _ in range(_BISECTIONS):  # down to a millisecond
            middle_us = (low_us + high_us) // 2
            at = self._at(client, middle_us, begins, ends)
            count = sum(ends[each] - at[each] for each in ends)
            if count > rows:
                low_us = middle_us
            else:
                high_us, found = middle_us, at
                if count > rows * 0.9:
                    break
        if found == ends:  # their timestamps tell nothing: all alike, or ahead of the clock
            share = max(1, rows // len(ends))
            found = {each: max(begins[each], ends[each] - share) for each in ends}
            self.notes.append(
                "the records' timestamps do not say where the newest rows begin: the same number of each partition was "
                "read, which may reach further back in some than in others"
            )
        return found

    def _at(self, client: KafkaClient, time_us: int, begins: dict[int, int], ends: dict[int, int]) -> dict[int, int]:
        wanted = {(self.topic, partition): KafkaOffsets.timestamp(time_us) for partition in ends}
        found, _ = client.positions(wanted, f"search topic {self.topic!r} by time")
        at: dict[int, int] = {}
        for partition, end in ends.items():
            offset = found.get((self.topic, partition))
            at[partition] = end if offset is None else min(end, max(begins[partition], offset))
        return at
