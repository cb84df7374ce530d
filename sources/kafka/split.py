"""A partition of a topic as a split, and what of it is checked when it is read."""

from __future__ import annotations

from dataclasses import dataclass

from lowmark.sources.api import SourceSplit
from lowmark.sources.kit.data_loss import KnownLosses
from lowmark.sources.metric_group import MetricGroup

from .errors import KafkaDataLost

__all__ = ["DataLoss", "KafkaSplit", "split_id"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSplit(SourceSplit):
    """A partition of a topic; positions are its offsets.

    The first topic of a name gives splits "topic/partition". A topic that is deleted and created anew has other
    records at the same offsets: its partitions are splits of their own, "topic/partition@topic id", and those of the
    old topic end where they were.

    Attributes:
        topic: name of the topic.
        partition: number of the partition.
        topic_id: which topic of that name; "" where brokers are too old to say.
    """

    topic: str
    partition: int
    topic_id: str = ""


def split_id(topic: str, partition: int, topic_id: str = "") -> str:
    """Return a split's id; `topic_id` is given for a topic that was created anew.

    >>> split_id("orders", 3), split_id("orders", 3, "qX1")
    ('orders/3', 'orders/3@qX1')
    """
    return f"{topic}/{partition}@{topic_id}" if topic_id else f"{topic}/{partition}"


class DataLoss:
    """What is done about records that are gone: an error, or a line in the log and a count (`lost_offsets`).

    Args:
        go_on: whether reading goes on without them.
        metrics: where they are counted.
    """

    def __init__(self, *, go_on: bool, metrics: MetricGroup) -> None:
        self._known = KnownLosses(go_on=go_on, metrics=metrics, amount="lost_offsets")

    def found(self, split: KafkaSplit, start: int, resume: int | None, reason: str) -> None:
        """Offsets from `start` up to `resume` (None: all that follow) are gone. The same loss is told once.

        Raises:
            KafkaDataLost: unless reading goes on.
        """
        lost = KafkaDataLost(split.split_id, split.topic, split.partition, start, resume, reason)
        self._known.take(lost, split.split_id, start, 0 if resume is None else max(0, resume - start))
