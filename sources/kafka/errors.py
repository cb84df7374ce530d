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
from lowmark.watermark import LowmarkError

__all__ = ["InvalidKafkaOption", "InvalidUtf8", "KafkaDataLost", "KafkaTopicMissing", "KafkaUnavailable"]


class InvalidKafkaOption(LowmarkError, ValueError):
    """An option of `KafkaSource` that makes no sense. Values of secrets are never in it.

    Attributes:
        option: its name.
        got: what was given, as text.
        expected: what would have been accepted.
        hint: what to do.
    """

    def __init__(self, option: str, got: str, expected: str, hint: str) -> None:
        super().__init__(option, got, expected, hint)
        self.option, self.got, self.expected, self.hint = option, got, expected, hint

    def __str__(self) -> str:
        return f"KafkaSource, option {self.option}: expected {self.expected}, got {self.got:.200}. Hint: {self.hint}"


class KafkaTopicMissing(SuppressRestarts, LookupError):
    """Topics or partitions that the source names are not on the brokers.

    Attributes:
        missing: their names.
        brokers: the bootstrap servers.
    """

    def __init__(self, missing: tuple[str, ...], brokers: str) -> None:
        super().__init__(missing, brokers)
        self.missing, self.brokers = missing, brokers

    def __str__(self) -> str:
        return (
            f"Kafka at {self.brokers}: {', '.join(map(repr, self.missing))} not found while discovering partitions. "
            "Hint: check the spelling and the right to describe topics, or subscribe by pattern to topics that will be "
            "created later."
        )


class KafkaUnavailable(SuppressRestarts, RuntimeError):
    """The brokers did not answer in time, or refused.

    Attributes:
        brokers: the bootstrap servers.
        action: what was asked.
        after_seconds: for how long it was tried.
        cause: the last error.
        hint: what to do.
    """

    def __init__(self, brokers: str, action: str, after_seconds: float, cause: str, hint: str) -> None:
        super().__init__(brokers, action, after_seconds, cause, hint)
        self.brokers, self.action, self.after_seconds = brokers, action, after_seconds
        self.cause, self.hint = cause, hint

    def __str__(self) -> str:
        return (
            f"Kafka at {self.brokers}: cannot {self.action}, tried for {self.after_seconds:.0f} s: {self.cause}. "
            f"Nothing was lost: the query goes on from its checkpoint. Hint: {self.hint}"
        )


class KafkaDataLost(LowmarkError, RuntimeError):
    """Records were deleted before they were read.

    Attributes:
        split: id of the split.
        topic, partition: where.
        start: the offset that should have been read next.
        resume: the next offset that can be read, None if there is none.
        reason: what happened to them.
    """

    def __init__(self, split: str, topic: str, partition: int, start: int, resume: int | None, reason: str) -> None:
        super().__init__(split, topic, partition, start, resume, reason)
        self.split, self.topic, self.partition = split, topic, partition
        self.start, self.resume, self.reason = start, resume, reason

    def __str__(self) -> str:
        lost = f"offsets from {self.start} on" if self.resume is None else f"offsets {self.start} to {self.resume - 1}"
        return (
            f"Kafka split {self.split!r} (topic {self.topic!r}, partition {self.partition}): {lost} are lost: "
            f'{self.reason}. Hint: to go on with what is left, use on_data_loss="go_on" (failOnDataLoss=false); to '
            "lose nothing next time, give the topic a longer retention than the query may stand still."
        )


class InvalidUtf8(LowmarkError, ValueError):
    """A key or value that is not UTF-8 was to be read as a string.

    Attributes:
        column: "key" or "value".
        topic, partition, offset: the record.
    """

    def __init__(self, column: str, topic: str, partition: int, offset: int) -> None:
        super().__init__(column, topic, partition, offset)
        self.column, self.topic, self.partition, self.offset = column, topic, partition, offset

    def __str__(self) -> str:
        return (
            f"Kafka record at offset {self.offset} of topic {self.topic!r}, partition {self.partition}: its "
            f'{self.column} is not UTF-8. Hint: read it with {self.column}_type="binary" and convert it in the query.'
        )
