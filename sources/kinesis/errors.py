"""The errors of the Kinesis connector."""

from __future__ import annotations

from lowmark.sources.coordinator import SuppressRestarts
from lowmark.sources.kit.options import InvalidSourceOption
from lowmark.sources.kit.unanswered import SourceUnavailable
from lowmark.watermark import LowmarkError


class InvalidKinesisOption(SuppressRestarts, InvalidSourceOption):
    """An invalid option of `KinesisSource`. The error never has values of secrets."""

    _source = "KinesisSource"


class KinesisStreamMissing(SuppressRestarts, LookupError):
    """A stream does not exist."""

    place: str  # endpoint or region
    missing: str  # the missing stream
    action: str  # the question
    _fact = "Kinesis at {place}: {missing} not found when asked to {action}"
    _hint = (
        "check the name, the region and the account. If it was deleted and made anew, start with a new checkpoint: the "
        "old one says where to go on in the old stream."
    )


class KinesisStreamReplaced(SuppressRestarts, LookupError):
    """The place of a split belongs to another stream of the same name."""

    split: str  # id of the split
    cursor: str  # the place where reading should go on
    reason: str  # the evidence
    _fact = "Kinesis split {split!r}: the place to go on, {cursor}, is not in this stream: {reason}"
    _hint = (
        "the stream was deleted and made anew, or the place was given and is of another shard. Start with a new "
        "checkpoint. on_data_loss does not help, because new shards have ids of old ones, which are done with."
    )


class KinesisRefused(SuppressRestarts, RuntimeError):
    """Credentials are missing, wrong or expired, or do not allow the request."""

    place: str  # endpoint or region
    action: str  # the question
    cause: str  # the service's code and text
    _fact = "Kinesis at {place}: refused to {action}: {cause}. Nothing was lost"
    _hint = (
        "credentials come from boto3's own chain (environment, profile, role of the machine), on the driver and on "
        "every executor. Needed are kinesis:ListShards, DescribeStreamSummary, GetShardIterator and GetRecords, and "
        "ListStreams for a pattern."
    )


class KinesisUnavailable(SourceUnavailable):
    """The service did not answer in time, or throttled the requests for all of that time."""

    _system = "Kinesis"
    _hint = (
        "is the endpoint reachable? If reading is throttled, others read the same shards: five reads a second and "
        "2 MB/s of a shard are for all of them together."
    )


class KinesisDataLost(LowmarkError, RuntimeError):
    """Records expired, or may have expired, before they were read."""

    split: str  # id of the split
    cursor: str  # the place where reading should go on
    reason: str  # why the records are lost
    _fact = "Kinesis split {split!r}: records from {cursor} on are lost: {reason}"
    _hint = (
        'to go on with what is left, use on_data_loss="go_on" (failOnDataLoss=false); to lose nothing next time, give '
        "the stream a longer retention than the query may stand still."
    )
