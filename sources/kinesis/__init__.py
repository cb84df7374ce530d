"""Kinesis streams as a source. Needs the extra `kinesis`: boto3 and aws-kinesis-agg."""

from .errors import InvalidKinesisOption, KinesisDataLost, KinesisRefused, KinesisStreamMissing, KinesisUnavailable
from .positions import KinesisPosition
from .source import KinesisSource

__all__ = [
    "InvalidKinesisOption",
    "KinesisDataLost",
    "KinesisPosition",
    "KinesisRefused",
    "KinesisSource",
    "KinesisStreamMissing",
    "KinesisUnavailable",
]
