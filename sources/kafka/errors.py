"""What the Kafka connector raises.

LowmarkError
├── InvalidKafkaOption (ValueError)    an option that cannot be, or that the connector must set itself
├── KafkaTopicMissing  (LookupError)   a topic or partition that was named is not there
├── KafkaUnavailable   (RuntimeError)  no answer within the time allowed, or a refusal that waiting does not cure
├── KafkaDataLost      (RuntimeError)  records that were to be read are no longer there
└── InvalidUtf8        (ValueError)    a key or value that was to be a string, and is none
"""

from __future__ import annotations

from lowmark.sources.coordinator import SuppressRestarts
from lowmark.sources.kit.options import InvalidSourceOption
from lowmark.sources.kit.unanswered import SourceUnavailable
from lowmark.watermark import LowmarkError

__all__ = ["InvalidKafkaOption", "InvalidUtf8", "KafkaDataLost", "KafkaTopicMissing", "KafkaUnavailable"]


class InvalidKafkaOption(InvalidSourceOption):
    """An option of `KafkaSource` that makes no sense. Values of secrets are never in it."""

    _source = "KafkaSource"


class KafkaTopicMissing(SuppressRestarts, LookupError):
    """Topics or partitions that the source names are not on the brokers."""

    missing: tuple[str, ...]  # their names
    brokers: str  # the bootstrap servers
    _fact = "Kafka at {brokers}: {_names} not found while discovering partitions"
    _hint = (
        "check the spelling and the right to describe topics, or subscribe by pattern to topics that will be created "
        "later."
    )

    @property
    def _names(self) -> str:
        return ", ".join(map(repr, self.missing))


class KafkaUnavailable(SourceUnavailable):
    """The brokers did not answer in time, or refused."""

    hint: str  # what to do
    _hint = "{hint}"
    _system = "Kafka"


class KafkaDataLost(LowmarkError, RuntimeError):
    """Records were deleted before they were read."""

    split: str  # id of the split
    topic: str  # where
    partition: int
    start: int  # the offset that should have been read next
    resume: int | None  # the next offset that can be read, None if there is none
    reason: str  # what happened to them
    _fact = "Kafka split {split!r} (topic {topic!r}, partition {partition}): {_lost} are lost: {reason}"
    _hint = (
        'to go on with what is left, use on_data_loss="go_on" (failOnDataLoss=false); to lose nothing next time, give '
        "the topic a longer retention than the query may stand still."
    )

    @property
    def _lost(self) -> str:
        return f"offsets from {self.start} on" if self.resume is None else f"offsets {self.start} to {self.resume - 1}"


class InvalidUtf8(LowmarkError, ValueError):
    """A key or value that is not UTF-8 was to be read as a string."""

    column: str  # "key" or "value"
    topic: str  # the record
    partition: int
    offset: int
    _fact = "Kafka record at offset {offset} of topic {topic!r}, partition {partition}: its {column} is not UTF-8"
    _hint = 'read it with {column}_type="binary" and convert it in the query.'
