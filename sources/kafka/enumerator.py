"""Finds the partitions of a Kafka source, and whether a topic is still the same topic.

The begin of a partition is looked up once, when it is found, and kept in its split, so a restart changes nothing.
Partitions found later begin at their first record, for any start of the first partitions (FLIP-288), because their
records came after the query began. If a known topic got a partition, the first record has offset 0: the planner finds
out whether records were deleted before the partition was found.

Source: `KafkaSourceEnumerator`, `KafkaSubscriber` and its three implementations; FLIP-288, KIP-516.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lowmark.sources.api import SplitEnumerator, SplitEnumeratorContext
from lowmark.sources.kit.discovery import DiscoveredSplits, DiscoveringEnumerator, still_wanted
from lowmark.watermark.printable import counted

from .client import KafkaClient
from .errors import KafkaTopicMissing
from .offsets import KafkaOffsets, TopicPartitionId
from .planner import PATIENCE_SECONDS
from .settings import KafkaSettings
from .split import KafkaSplit, split_id
from .topics import Topic, matches

log = logging.getLogger("lowmark")

DOUBTS = 3
DOUBT_SECONDS = 1.0
"""Questions about a missing topic are repeated a few times, this far apart, by new clients that may ask other brokers:
a broker that has just started, or is cut off from its controller, does not know all topics."""


@dataclass(frozen=True, slots=True)
class TopicList:
    """All partitions of named topics."""

    names: frozenset[str]  # looked up for each partition before each batch

    def wants(self, topic: str, partition: int) -> bool:
        """Whether a partition is subscribed, be it there or not."""
        del partition
        return topic in self.names

    def find(self, client: KafkaClient, seen: Collection[str]) -> tuple[list[Topic], list[str]]:
        """Return the existing topics, and the names that are missing; a topic that was seen before may be gone."""
        found = client.topics(sorted(self.names))
        return list(found.values()), sorted(self.names - found.keys() - set(seen))


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """All partitions of the topics whose whole name matches a regular expression, even if no topic exists yet."""

    pattern: str

    def wants(self, topic: str, partition: int) -> bool:
        del partition
        return matches(self.pattern, topic)

    def find(self, client: KafkaClient, seen: Collection[str]) -> tuple[list[Topic], list[str]]:
        del seen
        return list(client.topics_like(self.pattern).values()), []


@dataclass(frozen=True, slots=True)
class PartitionSet:
    """Only the named partitions."""

    partitions: frozenset[TopicPartitionId]  # looked up as the names of a `TopicList`

    def wants(self, topic: str, partition: int) -> bool:
        return (topic, partition) in self.partitions

    def find(self, client: KafkaClient, seen: Collection[str]) -> tuple[list[Topic], list[str]]:
        """Return their topics with the named partitions only, and missing partitions as `TopicList.find`."""
        found = client.topics(sorted({topic for topic, _ in self.partitions})).values()
        there = {(topic.name, number) for topic in found for number in topic.partitions}
        missing = sorted(key for key in self.partitions - there if key[0] not in seen)
        named = [
            replace(topic, partitions=tuple(each for each in topic.partitions if self.wants(topic.name, each)))
            for topic in found
        ]
        return named, [split_id(*key) for key in missing]


Subscriber = TopicList | TopicPattern | PartitionSet


@dataclass(frozen=True, slots=True)
class KafkaEnumeratorState:
    """The state of the enumerator for a restart.

    Attributes:
        topic_ids: topic -> its first id, "" while its brokers know no ids; another id means another topic of that name.
    """

    splits: DiscoveredSplits[KafkaSplit] = field(default_factory=DiscoveredSplits)
    topic_ids: Mapping[str, str] = field(default_factory=dict)


class KafkaEnumerator(SplitEnumerator[KafkaSplit, KafkaEnumeratorState]):
    """Discovers partitions and assigns each to one reader for good, a topic's partitions evenly over all readers."""

    def __init__(
        self,
        context: SplitEnumeratorContext[KafkaSplit],
        settings: KafkaSettings,
        subscriber: Subscriber,
        *,
        start: KafkaOffsets,
        stop: KafkaOffsets | None,
        period_seconds: float | None,
        state: KafkaEnumeratorState,
        client: KafkaClient | None = None,
    ) -> None:
        state = subscribed(state, subscriber)
        self._settings, self._subscriber = settings, subscriber
        self._start, self._stop = start, stop
        self._client = client if client is not None else KafkaClient(settings, reached=bool(state.topic_ids))
        # Set by discovery, on the worker thread, and always as a whole. The first id of a name never changes unless it
        # is "", so a snapshot may have it before or after the splits of the topic.
        self._topic_ids: Mapping[str, str] = dict(state.topic_ids)
        # Split ids that were first listed together with the topic: nothing says when their first records came.
        self._as_old_as_topic = set[str]()
        self._discovering = DiscoveringEnumerator(
            context,
            self._discover,
            period_seconds=period_seconds,
            bounded=stop is not None,
            assign=assign_round_robin,
            known=state.splits,
            prepare=self._prepare,
            end=str(stop),
            source=f"KafkaSource at {settings.place}",
        )

    def start(self) -> None:
        self._discovering.start()

    def add_reader(self, subtask: int) -> None:
        self._discovering.add_reader(subtask)

    def handle_split_request(self, subtask: int, requester_hostname: str | None) -> None:
        self._discovering.handle_split_request(subtask, requester_hostname)

    def snapshot_state(self, checkpoint_id: int) -> KafkaEnumeratorState:
        return KafkaEnumeratorState(self._discovering.snapshot_state(checkpoint_id), self._topic_ids)

    def close(self) -> None:
        self._discovering.close()
        self._client.close()

    # -- on the worker thread

    def _discover(self) -> list[KafkaSplit]:
        found, missing = self._subscriber.find(self._client, self._topic_ids)
        doubts = DOUBTS
        while missing:
            if doubts == 0:
                raise KafkaTopicMissing(tuple(missing), self._settings.place)
            doubts -= 1
            self._client.renew()
            self._client.pause(DOUBT_SECONDS)
            found, missing = self._subscriber.find(self._client, self._topic_ids)
        # A topic without an id gets one when its brokers are upgraded, and stays the same topic.
        known = {name: topic_id for name, topic_id in self._topic_ids.items() if topic_id}
        first = dict(self._topic_ids) | {topic.name: topic.topic_id for topic in found} | known
        new, self._topic_ids = first.keys() - self._topic_ids.keys(), first
        splits = [
            KafkaSplit(
                split_id=split_id(topic.name, number, "" if topic.topic_id == first[topic.name] else topic.topic_id),
                topic=topic.name,
                partition=number,
                topic_id=topic.topic_id,
            )
            for topic in found
            for number in topic.partitions
        ]
        # A named partition may be older than its name in the subscription.
        named = isinstance(self._subscriber, PartitionSet)
        self._as_old_as_topic |= {split.split_id for split in splits if named or split.topic in new}
        return splits

    def _prepare(self, splits: Sequence[KafkaSplit], late: bool) -> list[KafkaSplit]:  # noqa: FBT001  # as it is called
        if late:
            return self._at_first_records(splits)
        partitions = [split.key for split in splits]
        earliest, latest = KafkaOffsets.earliest(), KafkaOffsets.latest()
        starts = self._client.resolve(partitions, self._start, earliest, "look up where partitions begin")
        if self._stop is None:
            return [replace(split, start=starts[split.key]) for split in splits]
        stops = self._client.resolve(partitions, self._stop, latest, "look up where partitions end")
        return [
            replace(split, start=starts[split.key], stop=max(starts[split.key], stops[split.key])) for split in splits
        ]

    def _at_first_records(self, splits: Sequence[KafkaSplit]) -> list[KafkaSplit]:
        """Let late partitions begin. A partition without an answer is left to the next discovery."""
        wanted = {split.key: KafkaOffsets.earliest() for split in splits}
        action = "look up where new partitions begin"
        [(starts, failed)] = self._client.positions([wanted], action, patience_seconds=PATIENCE_SECONDS)
        if failed:
            (topic, partition), error = next(iter(failed.items()))
            log.warning(
                "KafkaSource at %s: %s read yet and asked about again by the next discovery, such as %s/%d: %s",
                self._settings.place, counted(len(failed), "new partition", ("is not", "are not")), topic, partition,
                self._client.cause(error),
            )  # fmt: skip
        found = [(split, starts.get(split.key)) for split in splits]
        return [
            replace(split, start=start if split.split_id in self._as_old_as_topic else 0)
            for split, start in found
            if start is not None
        ]


def subscribed(state: KafkaEnumeratorState, subscriber: Subscriber) -> KafkaEnumeratorState:
    """Return the state without partitions that are no longer subscribed; if subscribed again, they are new.

    >>> splits = DiscoveredSplits[KafkaSplit](discovered=True, assigned=("orders/0", "returns/1@q7"))
    >>> state = KafkaEnumeratorState(splits, {"orders": "q1", "returns": "q2"})
    >>> kept = subscribed(state, TopicList(frozenset({"orders"})))
    >>> kept.splits.assigned, kept.topic_ids
    (('orders/0',), {'orders': 'q1'})
    """
    splits = still_wanted(state.splits, lambda name: subscriber.wants(*_partition_of(name)))
    before, kept = ({_partition_of(name)[0] for name in each.assigned} for each in (state.splits, splits))
    topic_ids = {topic: topic_id for topic, topic_id in state.topic_ids.items() if topic not in before - kept}
    return KafkaEnumeratorState(splits, topic_ids)


def _partition_of(name: str) -> TopicPartitionId:
    topic, _, partition = name.partition("@")[0].rpartition("/")
    return topic, int(partition)


def assign_round_robin(name: str, num_subtasks: int) -> int:
    """Return the reader of a split: the partitions of a topic go to the readers in turn, and the topic fixes the first.

    >>> [assign_round_robin(f"orders/{partition}", 3) for partition in range(4)]
    [2, 0, 1, 2]
    """
    topic, partition = _partition_of(name)
    return (zlib.crc32(topic.encode()) + partition) % num_subtasks
