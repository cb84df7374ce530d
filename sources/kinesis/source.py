"""Kinesis streams as a source: one split for each shard, read by boto3 into Arrow batches.

    from lowmark.sources.kinesis import KinesisSource
    orders = KinesisSource(streams=["orders"], region="eu-west-1")

Rows are as in Databricks' Kinesis source: partitionKey, data, stream, shardId, sequenceNumber and
approximateArrivalTimestamp; slices are planned by this event time. Shards may be split and merged while they are read:
children begin when their parents are read to the end. Enhanced fan-out is not supported.

Source: Flink's `KinesisStreamsSource`, the Kinesis API reference, amazon-kinesis-client.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
from lowmark.sources.api import Fetching, SplitEnumerator, SplitEnumeratorContext, SplitPlanner, SplitReader
from lowmark.sources.kit.discovered_source import DiscoveredSource
from lowmark.sources.kit.discovery import DiscoveredSplits
from lowmark.sources.kit.options import check_count, goes_on, seconds_of
from lowmark.sources.kit.subscription import Subscription
from lowmark.watermark.errors import shown

from .columns import DEFAULT_COLUMNS, KinesisColumns
from .connections import KinesisSettings
from .enumerator import create_enumerator
from .errors import InvalidKinesisOption
from .planner import KinesisPlanner
from .positions import KinesisPosition, ShardKey
from .reader import KinesisSplitReader
from .split import KinesisSplit, stream_name

Position = str | datetime | KinesisPosition | Mapping[ShardKey, str]

_seconds = partial(seconds_of, refusal=InvalidKinesisOption)


_ARN = re.compile(r"arn:[a-z0-9-]+:kinesis:[a-z0-9-]+:[0-9]+:stream/[a-zA-Z0-9_.-]+")
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")


class KinesisSource(DiscoveredSource[KinesisSplit, DiscoveredSplits[KinesisSplit]]):
    """A source that reads Kinesis streams. Give exactly one of `streams` and `stream_pattern`.

    Args:
        streams: names or ARNs of streams. All their shards are read, also shards from resharding.
        stream_pattern: a regular expression for whole names of streams, also of streams that are made later.
        start: where the shards of the first discovery begin: "TRIM_HORIZON", "LATEST", an aware `datetime` in the past
            (before the first record that arrived then or later), or the place where another reader stopped:
            sequence numbers of its last records, by (stream, shard). A shard among them that the first discovery
            does not find is a loss. Shards found later begin at their first record.
        stop: None: the source never ends. "LATEST": the time of the first discovery; or an aware `datetime`. A time in
            the future means "LATEST". Shards keep their end in the checkpoint, so another `stop` at a restart is
            refused.
        discover_every: how often to look for new shards, a duration; None: only at the start. A shard that was split
            or merged holds the watermark until its children are found.
        poll_every: how often to look for the end of each shard, a duration.
        on_data_loss: for records that expired before they were read: "error", or "go_on" without these records.
        columns: the columns of rows, some of partitionKey, data, stream, shardId, sequenceNumber,
            approximateArrivalTimestamp, subSequenceNumber (in a record of the KPL), explicitHashKey (likewise).
            Without approximateArrivalTimestamp, slices cannot be planned by time.
        disorder: how far arrival times may go back along a shard, a duration, because the service promises no order.
            Claims of plans stay this far behind.
        fetchers: how many shards a task reads side by side, 1 or more.
        records_per_read: the largest number of records in one read, 1 to 10,000, the service's limit.
        reads_per_second: reads of one shard by the planner and one task, which read in turn. The service allows five
            for all readers of a shard together. None: no limit.
        bytes_per_second: bytes of one shard, likewise; the service allows 2 MB. None: no limit.
        region: boto3's region; by default boto3's own.
        endpoint_url: boto3's endpoint, likewise.
        profile: boto3's profile, likewise.
        role_arn: a role to assume, on the driver and on executors.
        role_session_name: session name of that role.
        role_external_id: external id of that role.
        give_up_after: how long the service may be away, or throttle, before an error, a duration.

    Raises:
        InvalidKinesisOption: an option is invalid.

    >>> source = KinesisSource(streams=["orders"], region="eu-west-1")
    >>> source.event_time, source.fetching.threads
    ('approximateArrivalTimestamp', 8)
    >>> source
    KinesisSource(eu-west-1, streams=orders)
    """

    split_type = KinesisSplit
    requires = ("boto3",)

    def __init__(
        self,
        *,
        streams: Sequence[str] | None = None,
        stream_pattern: str | None = None,
        start: Position = "TRIM_HORIZON",
        stop: str | datetime | KinesisPosition | None = None,
        discover_every: str | timedelta | None = "10 seconds",
        poll_every: str | timedelta = "1 second",
        on_data_loss: str = "error",
        columns: Sequence[str] = DEFAULT_COLUMNS,
        disorder: str | timedelta = "1 second",
        fetchers: int = 8,
        records_per_read: int = 10_000,
        reads_per_second: float | None = 4.0,
        bytes_per_second: float | None = 2 * 1024 * 1024,
        region: str | None = None,
        endpoint_url: str | None = None,
        profile: str | None = None,
        role_arn: str | None = None,
        role_session_name: str | None = None,
        role_external_id: str | None = None,
        give_up_after: str | timedelta = "1 minute",
    ) -> None:
        self._streams = Subscription.of(
            streams,
            stream_pattern,
            InvalidKinesisOption,
            name_of=_name_of,
            expected="names or ARNs of streams, each name once",
            hint="one source reads one account's streams.",
        )
        self._start = KinesisPosition.of(start)
        _check_read(self._start, self._streams)
        self._stop = None if stop is None else KinesisPosition.of(stop, option="stop")
        if self._stop is not None and self._stop.kind not in {"LATEST", "AT_TIMESTAMP"}:
            raise InvalidKinesisOption("stop", self._stop.kind, '"LATEST" or a datetime', "None: it never ends.")
        self.bounded = self._stop is not None
        self._go_on = goes_on(on_data_loss, InvalidKinesisOption)
        self._period_seconds = None if discover_every is None else _seconds(discover_every, "discover_every")
        self._poll_seconds = _seconds(poll_every, "poll_every")
        self._disorder_us = int(_seconds(disorder, "disorder", zero=True) * 1_000_000)
        self._columns = KinesisColumns(columns)
        check_count(fetchers, "fetchers", InvalidKinesisOption, "8 read eight shards side by side.")
        check_count(records_per_read, "records_per_read", InvalidKinesisOption, "more is refused.", most=10_000)
        self._records_per_read = records_per_read
        rates: dict[str, Any] = {"reads_per_second": reads_per_second, "bytes_per_second": bytes_per_second}
        for name, rate in rates.items():
            if rate is not None and not (isinstance(rate, int | float) and rate is not True and rate > 0):
                raise InvalidKinesisOption(name, shown(rate), "a number above 0", "None does not limit.")
        self.fetching = Fetching.side_by_side(fetchers)
        texts: dict[str, Any] = {
            "region": region,
            "endpoint_url": endpoint_url,
            "profile": profile,
            "role_arn": role_arn,
            "role_session_name": role_session_name,
            "role_external_id": role_external_id,
        }
        for name, text in texts.items():
            if text is not None and not isinstance(text, str):
                raise InvalidKinesisOption(name, shown(text), "a text", "or leave it out.")
        for name in ("role_session_name", "role_external_id"):
            if texts[name] is not None and role_arn is None:
                hint = "without a role the process's own credentials would be used."
                raise InvalidKinesisOption(name, shown(texts[name]), "role_arn beside it", hint)
        self._settings = KinesisSettings(**texts, **rates, give_up_seconds=_seconds(give_up_after, "give_up_after"))

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> KinesisSource:
        """Make a source from options with Databricks' names, listed in `spark_options`. Raises InvalidKinesisOption.

        >>> KinesisSource.from_options({"streamName": "orders,returns", "region": "eu-west-1"})
        KinesisSource(eu-west-1, streams=orders,returns)
        """
        from .spark_options import arguments

        return cls(**arguments(options))

    def __repr__(self) -> str:
        named, pattern = self._streams.named, self._streams.pattern
        what = f"streams={','.join(named.values())}" if pattern is None else f"stream_pattern={pattern!r}"
        return f"KinesisSource({self._settings.place}, {what})"

    @property
    def schema(self) -> pa.Schema:
        return self._columns.schema

    @property
    def event_time(self) -> str | None:
        name = "approximateArrivalTimestamp"
        return name if name in self._columns.names else None

    def restore_enumerator(
        self, context: SplitEnumeratorContext[KinesisSplit], state: DiscoveredSplits[KinesisSplit]
    ) -> SplitEnumerator[KinesisSplit, DiscoveredSplits[KinesisSplit]]:
        return create_enumerator(
            context,
            self._settings,
            self._streams,
            start=self._start,
            stop=self._stop,
            go_on=self._go_on,
            period_seconds=self._period_seconds,
            known=state,
        )

    def create_planner(self) -> SplitPlanner[KinesisSplit]:
        return KinesisPlanner(
            self._settings,
            go_on=self._go_on,
            named=self._streams.pattern is None,
            searchable=self.event_time is not None,
            bounded=self.bounded,
            poll_seconds=self._poll_seconds,
            disorder_us=self._disorder_us,
            subscribes=self._streams.wants,
        )

    def create_split_reader(self) -> SplitReader[KinesisSplit]:
        return KinesisSplitReader(
            self._settings, self._columns, go_on=self._go_on, records_per_read=self._records_per_read
        )


def _check_read(start: KinesisPosition, streams: Subscription) -> None:
    """Refuse a position in a stream that is not read, because it would have no effect."""
    for (stream, _), _ in start.after:
        if not streams.wants(stream_name(stream)):
            wanted = "positions in streams that are read"
            raise InvalidKinesisOption("start", f"one in {stream}", wanted, "read the stream, or leave it out.")


def _name_of(stream: str) -> str | None:
    return stream_name(stream) if (_ARN if stream.startswith("arn:") else _NAME).fullmatch(stream) else None
