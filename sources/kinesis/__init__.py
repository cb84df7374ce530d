"""Kinesis streams as a source. Needs the extra `kinesis`, that is boto3."""

from .errors import (
    InvalidKinesisOption,
    KinesisDataLost,
    KinesisRefused,
    KinesisStreamMissing,
    KinesisStreamReplaced,
    KinesisUnavailable,
)
from .positions import KinesisPosition
from .source import KinesisSource

__all__ = [
    "InvalidKinesisOption",
    "KinesisDataLost",
    "KinesisPosition",
    "KinesisRefused",
    "KinesisSource",
    "KinesisStreamMissing",
    "KinesisStreamReplaced",
    "KinesisUnavailable",
]
