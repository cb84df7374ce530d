"""Kafka topics as a source: one split for each partition."""

from .enumerator import KafkaEnumeratorState
from .errors import InvalidKafkaOption, InvalidUtf8, KafkaDataLost, KafkaTopicMissing, KafkaUnavailable
from .offsets import KafkaOffsets
from .source import KafkaSource
from .split import KafkaSplit

__all__ = [
    "InvalidKafkaOption",
    "InvalidUtf8",
    "KafkaDataLost",
    "KafkaEnumeratorState",
    "KafkaOffsets",
    "KafkaSource",
    "KafkaSplit",
    "KafkaTopicMissing",
    "KafkaUnavailable",
]
