"""A partition of a topic as a split, and the handling of lost records."""

from __future__ import annotations

from dataclasses import dataclass

from lowmark.sources.api import SourceSplit
from lowmark.sources.kit.data_loss import KnownLosses

from .errors import KafkaDataLost
from .offsets import TopicPartitionId

LONGER_RETENTION = "give the topic a longer retention than the query may stand still"
LATER_DELETION = "delete a topic only after the query has committed its last batch, or stop the query before"
COMPLETE_LEADER = (
    "begin at an offset that the partition has, also by start= or a group's commit, and let no replica that lacks "
    "records become a leader (unclean.leader.election.enable=false)"
)
"""What avoids a loss: of deleted records, of a deleted topic, and of records behind the end of a partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSplit(SourceSplit):
    """A partition of a topic; positions are its offsets.

    The first topic of a name gives splits "topic/partition". A topic that is deleted and created again has other
    records at the same offsets: its partitions are new splits, "topic/partition@topic id", and the splits of the
    old topic end at their positions.

    Attributes:
        topic_id: distinguishes topics of the same name; "" if brokers are too old for ids.
        lost_before: the offset before which all lost offsets were counted by the planner, so no reader counts them
            again; 0: none.
    """

    topic: str
    partition: int
    topic_id: str = ""
    lost_before: int = 0

    @property
    def key(self) -> TopicPartitionId:
        return self.topic, self.partition


def split_id(topic: str, partition: int, topic_id: str = "") -> str:
    """Return a split's id; `topic_id` is given for a topic that was created again.

    >>> split_id("orders", 3), split_id("orders", 3, "qX1")
    ('orders/3', 'orders/3@qX1')
    """
    return f"{topic}/{partition}@{topic_id}" if topic_id else f"{topic}/{partition}"


def other_topic(split: KafkaSplit, topic_id: str) -> str | None:
    """Say that the topic which has the name now is not the split's topic; None if it is, or if an id is unknown.

    >>> other_topic(KafkaSplit(split_id="orders/3", topic="orders", partition=3, topic_id="qX1"), "qX1")
    """
    if topic_id == split.topic_id or not topic_id or not split.topic_id:
        return None
    return (
        f"the topic was deleted and created anew: the records were of the topic with id {split.topic_id}, and the "
        f"topic of this name has id {topic_id} now"
    )


class KafkaLosses(KnownLosses):
    """The records of partitions that were deleted before they were read, counted as `lost_offsets`."""

    amount = "lost_offsets"

    def found(
        self, split: KafkaSplit, start: int, resume: int | None, reason: str, next_time: str = LONGER_RETENTION
    ) -> None:
        """Raise KafkaDataLost for offsets from `start` up to `resume` (None: all later ones), or count them once."""
        lost = KafkaDataLost(split.split_id, split.topic, split.partition, start, resume, reason, next_time)
        until = split.stop if resume is None else resume
        self.take_range(lost, split.split_id, start, until, told_to=split.lost_before)
