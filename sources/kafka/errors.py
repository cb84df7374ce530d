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
    start: int  # the next offset to read
    resume: int | None  # the next readable offset, None if there is none
    reason: str  # why the records are lost
    topic_gone: bool = False  # whether the topic of the records does not exist any more
    _fact = "Kafka split {split!r} (topic {topic!r}, partition {partition}): {_lost} are lost: {reason}"
    _hint = (
        'to go on with what is left, use on_data_loss="go_on" (failOnDataLoss=false); to lose nothing next time, '
        "{_next_time}."
    )

    @property
    def _lost(self) -> str:
        return f"offsets from {self.start} on" if self.resume is None else f"offsets {self.start} to {self.resume - 1}"

    @property
    def _next_time(self) -> str:
        if self.topic_gone:
            return "delete a topic only after the query has committed its last batch, or stop the query before"
        return "give the topic a longer retention than the query may stand still"


class InvalidUtf8(LowmarkError, ValueError):
    """A key or value that shall be a string is not UTF-8."""

    column: str  # "key" or "value"
    topic: str  # with partition and offset: the record
    partition: int
    offset: int
    _fact = "Kafka record at offset {offset} of topic {topic!r}, partition {partition}: its {column} is not UTF-8"
    _hint = 'read it with {column}_type="binary" and convert it in the query.'
