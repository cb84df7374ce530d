"""Kafka topics as a source: one split a partition.

`source.py` is what users call; `reader.py` runs in the tasks of a batch.
"""

from .source import (
    InvalidKafkaOption,
    InvalidUtf8,
    KafkaDataLost,
    KafkaEnumeratorState,
    KafkaOffsets,
    KafkaSource,
    KafkaSplit,
    KafkaTopicMissing,
    KafkaUnavailable,
)

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
