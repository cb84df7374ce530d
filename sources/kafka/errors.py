"""The errors of the Kafka connector."""

from __future__ import annotations

from lowmark.sources.coordinator import SuppressRestarts
from lowmark.sources.kit.options import InvalidSourceOption
from lowmark.sources.kit.unanswered import SourceUnavailable
from lowmark.watermark import LowmarkError


class InvalidKafkaOption(InvalidSourceOption):
    """An invalid option of `KafkaSource`. The error never has values of secrets."""

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
    topic: str  # the topic
    partition: int
    start: int  # the first lost offset
    resume: int | None  # the next readable offset, None if there is none
    reason: str  # why the records are lost
    next_time: str  # what avoids such a loss
    _fact = "Kafka split {split!r} (topic {topic!r}, partition {partition}): {_lost} are lost: {reason}"
    _hint = (
        'to go on with what is left, use on_data_loss="go_on" (failOnDataLoss=false); to lose nothing next time, '
        "{next_time}."
    )

    @property
    def _lost(self) -> str:
        return f"offsets from {self.start} on" if self.resume is None else f"offsets {self.start} to {self.resume - 1}"


class InvalidUtf8(LowmarkError, ValueError):
    """A key or value that shall be a string is not UTF-8."""

    column: str  # "key" or "value"
    topic: str  # with partition and offset: the record
    partition: int
    offset: int
    _fact = "Kafka record at offset {offset} of topic {topic!r}, partition {partition}: its {column} is not UTF-8"
    _hint = 'read it with {column}_type="binary" and convert it in the query.'
