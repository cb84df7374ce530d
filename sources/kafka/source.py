"""Kafka topics as a source: one split for each partition, read by confluent-kafka into Arrow batches.

    from lowmark.sources.kafka import KafkaOffsets, KafkaSource
    orders = KafkaSource(bootstrap_servers="broker:9092", topics=["orders"], start="earliest")

Rows are as in Spark's Kafka source: key and value (binary), topic, partition, offset, timestamp, timestampType, and
headers on request. Offsets are positions, so a batch can be read again, and slices are planned by the event time
`timestamp`.

Source: Flink's `KafkaSource`, Spark's Structured Streaming + Kafka integration guide, librdkafka's CONFIGURATION.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa
from lowmark.sources.api import SplitEnumerator, SplitEnumeratorContext, SplitPlanner, SplitReader
from lowmark.sources.kit.discovered_source import DiscoveredSource
from lowmark.sources.kit.options import check_just_one, checked_pattern, goes_on, listed, one_of, seconds_of
from lowmark.watermark.errors import shown

from .columns import DEFAULT_COLUMNS, KafkaColumns
from .enumerator import (
    KafkaEnumerator,
    KafkaEnumeratorState,
    PartitionSet,
    Subscriber,
    TopicList,
    TopicPattern,
)
from .errors import InvalidKafkaOption
from .offsets import KafkaOffsets, TopicPartitionId
from .planner import KafkaPlanner
from .reader import KafkaSplitReader
from .settings import KafkaSettings
from .split import KafkaSplit

Position = str | KafkaOffsets | Mapping[TopicPartitionId, "int | str | KafkaOffsets"]

OWNED: Mapping[str, str] = {
    "bootstrap.servers": "give it as bootstrap_servers.",
    "metadata.broker.list": "give the brokers as bootstrap_servers.",
    "isolation.level": "give it as isolation.",
    "auto.offset.reset": "where reading begins is said by start; records that are gone, by on_data_loss.",
    "enable.auto.commit": "positions are kept in the checkpoint; offsets are committed to Kafka by nobody.",
    "enable.auto.offset.store": "positions are kept in the checkpoint.",
    "enable.partition.eof": "the end of a range is found by it.",
    "key.deserializer": "use key_type, or convert in the query.",
    "value.deserializer": "use value_type, or convert in the query.",
    "group.instance.id": "no consumer group is joined; partitions are assigned by the source.",
    "error_cb": "errors are retried and raised by the source.",
    "on_commit": "nothing is committed to Kafka.",
    "logger": "librdkafka's log goes to the logger 'lowmark'.",
}
JAVA_ONLY: Mapping[str, str] = {
    "sasl.jaas.config": "use sasl.mechanism, sasl.username and sasl.password.",
    "ssl.truststore.location": "use ssl.ca.location with the certificates as PEM.",
    "ssl.truststore.password": "PEM files need none; use ssl.ca.location.",
    "ssl.truststore.type": "use ssl.ca.location with the certificates as PEM.",
    "ssl.keystore.type": "use ssl.keystore.location with PKCS#12, or ssl.certificate.location and ssl.key.location.",
    "max.poll.records": "how many rows a batch has is said by the read limits.",
}


_seconds = partial(seconds_of, refusal=InvalidKafkaOption)


class KafkaSource(DiscoveredSource[KafkaSplit, KafkaEnumeratorState]):
    """A source that reads Kafka topics. Give exactly one of `topics`, `topic_pattern` and `partitions`.

    Args:
        bootstrap_servers: "host:port,host:port", or a list of "host:port". Name several brokers, because a new client
            knows only these: with one name, the query ends when that broker is away for `give_up_after`.
        topics: names of topics. All their partitions are read, also partitions that are added later.
        topic_pattern: a regular expression for whole names of topics, also of topics that are created later.
        partitions: (topic, partition) pairs; only these partitions are read.
        start: where the partitions of the first discovery begin: "earliest", "latest", "committed"
            (by the group of the consumer option `group.id`; earliest without a commit), a `KafkaOffsets`, or offsets
            by (topic, partition). Partitions found later begin at their first record.
        stop: None: the source never ends. Otherwise as `start`: each partition ends before that offset, looked up once;
            "latest", and a timestamp after all records, mean the end at that time. A partition keeps its begin and its
            end in the checkpoint, so another `start` at a restart has no effect on partitions that it knows, and
            another `stop` is refused.
        discover_every: how often to look for new partitions, a duration; None: only at the start.
        on_data_loss: for records that were deleted before they were read: "error", or "go_on" without these records.
            Records of a partition that was added to a known topic count, too, also if they went before it was found.
        isolation: "read_committed", or "read_uncommitted" to read the records of open and aborted transactions too.
        transactional: whether partitions have transactions. None: unknown, so the result of a search by time is looked
            at before the time is claimed, because it may be a marker or an aborted record, followed by older rows. If
            so, the partition is read by shares of rows until it is past these rows, and its watermark follows the read
            rows. True: all partitions are read by shares, without searches. False: no partition ever had a transaction,
            so found rows are not looked at, which saves the driver some 10 ms for each batch; if a partition has a
            transaction all the same, rows are dropped as late.
        columns: the columns of rows, some of key, value, topic, partition, offset, timestamp, timestampType, headers.
            Other columns cost nothing; without `timestamp`, slices cannot be planned by time.
        key_type: "binary", or "string" for UTF-8; a key that is not UTF-8 is then an error that names the record.
        value_type: the same for the value.
        consumer_options: librdkafka's properties (SASL, TLS, sizes of fetches and so on).
        give_up_after: how long all brokers may be away before an error, a duration; meanwhile `lowmark status` says so.
            An address that refuses or cannot be found, and has never answered, is an error within ten seconds.

    Raises:
        InvalidKafkaOption: an option is invalid, or is one that the connector sets itself (see `OWNED`).

    >>> source = KafkaSource(bootstrap_servers="broker:9092", topics=["orders"], columns=["value", "timestamp"])
    >>> source.schema.names, source.event_time
    (['value', 'timestamp'], 'timestamp')
    >>> source
    KafkaSource(broker:9092, topics=orders)
    """

    split_type, _state_type = KafkaSplit, KafkaEnumeratorState
    requires = ("confluent_kafka",)

    def __init__(
        self,
        *,
        bootstrap_servers: str | Sequence[str],
        topics: Sequence[str] | None = None,
        topic_pattern: str | None = None,
        partitions: Sequence[TopicPartitionId] | None = None,
        start: Position = "earliest",
        stop: Position | None = None,
        discover_every: str | timedelta | None = "5 minutes",
        on_data_loss: str = "error",
        isolation: str = "read_committed",
        transactional: bool | None = None,
        columns: Sequence[str] = DEFAULT_COLUMNS,
        key_type: str = "binary",
        value_type: str = "binary",
        consumer_options: Mapping[str, object] | None = None,
        give_up_after: str | timedelta = "1 minute",
    ) -> None:
        options = _properties({} if consumer_options is None else consumer_options)
        addresses = listed(bootstrap_servers)
        brokers = ",".join(addresses) if all(isinstance(each, str) for each in addresses) else ""
        if not brokers.strip():
            raise InvalidKafkaOption("bootstrap_servers", shown(bootstrap_servers), '"host:port"', "name a broker.")
        self._subscriber = _subscriber(topics, topic_pattern, partitions)
        self._start = KafkaOffsets.of(start)
        self._stop = None if stop is None else KafkaOffsets.of(stop, option="stop")
        self.bounded = stop is not None
        kinds = _kinds(self._start, fallbacks=True) | _kinds(self._stop, fallbacks=True)
        if "group.id" not in options and "committed" in kinds:
            raise InvalidKafkaOption(
                "start, stop", "committed, without a group", "a group.id", 'give consumer_options={"group.id": ...}.'
            )
        if "earliest" in _kinds(self._stop, fallbacks=False):
            raise InvalidKafkaOption("stop", "earliest", "latest, a timestamp or offsets", "nothing would be read.")
        _check_read("start", self._start, self._subscriber)
        _check_read("stop", self._stop, self._subscriber)
        self._go_on = goes_on(on_data_loss, InvalidKafkaOption)
        isolations = ("read_committed", "read_uncommitted")
        committed = one_of(isolation, "isolation", isolations, InvalidKafkaOption) == "read_committed"
        if transactional is not None and not isinstance(transactional, bool):
            raise InvalidKafkaOption("transactional", repr(transactional), "True, False or None", "None finds it out.")
        self._transactional = transactional
        self._period_seconds = None if discover_every is None else _seconds(discover_every, "discover_every")
        give_up_seconds = _seconds(give_up_after, "give_up_after")
        self._columns = KafkaColumns(columns, key_type=key_type, value_type=value_type)
        self._settings = KafkaSettings(brokers, options, give_up_seconds, read_committed=committed)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> KafkaSource:
        """Make a source from options with Spark's names, listed in `spark_options`. Raises InvalidKafkaOption.

        >>> KafkaSource.from_options({"kafka.bootstrap.servers": "broker:9092", "subscribe": "orders,returns"})
        KafkaSource(broker:9092, topics=orders,returns)
        """
        from .spark_options import arguments

        return cls(**arguments(options))

    def __repr__(self) -> str:
        each = self._subscriber
        if isinstance(each, TopicList):
            what = f"topics={','.join(sorted(each.names))}"
        elif isinstance(each, TopicPattern):
            what = f"topic_pattern={each.pattern!r}"
        else:
            what = f"partitions={','.join(f'{topic}/{number}' for topic, number in sorted(each.partitions))}"
        return f"KafkaSource({self._settings.place}, {what})"

    @property
    def schema(self) -> pa.Schema:
        return self._columns.schema

    @property
    def event_time(self) -> str | None:
        return "timestamp" if "timestamp" in self._columns.names else None

    def restore_enumerator(
        self, context: SplitEnumeratorContext[KafkaSplit], state: KafkaEnumeratorState
    ) -> SplitEnumerator[KafkaSplit, KafkaEnumeratorState]:
        return KafkaEnumerator(
            context,
            self._settings,
            self._subscriber,
            start=self._start,
            stop=self._stop,
            period_seconds=self._period_seconds,
            state=state,
        )

    def create_planner(self) -> SplitPlanner[KafkaSplit]:
        return KafkaPlanner(
            self._settings,
            go_on=self._go_on,
            searchable=self.event_time is not None,
            transactional=self._transactional,
            subscribes=self._subscriber.wants,
        )

    def create_split_reader(self) -> SplitReader[KafkaSplit]:
        return KafkaSplitReader(self._settings, self._columns, go_on=self._go_on)


def _properties(given: object) -> dict[str, object]:
    """Return the user's properties of librdkafka; refuse a property that the connector sets itself."""
    if not isinstance(given, Mapping):
        got = f"a {type(given).__name__}"  # not the value, because it may have a password
        raise InvalidKafkaOption("consumer_options", got, "a mapping of properties", 'write {"client.id": "me"}.')
    for name in given:
        if not isinstance(name, str):
            raise InvalidKafkaOption("consumer_options", shown(name), "texts as names", "see librdkafka's names.")
        if (hint := JAVA_ONLY.get(name, OWNED.get(name))) is not None:
            why = "librdkafka has no such property" if name in JAVA_ONLY else "the connector sets it itself"
            raise InvalidKafkaOption(f"consumer_options[{name!r}]", f"a value, but {why}", "nothing", hint)
    return dict(given)


def _subscriber(
    topics: Sequence[str] | None, topic_pattern: str | None, partitions: Sequence[TopicPartitionId] | None
) -> Subscriber:
    check_just_one({"topics": topics, "topic_pattern": topic_pattern, "partitions": partitions}, InvalidKafkaOption)
    if topic_pattern is not None:
        return TopicPattern(checked_pattern(topic_pattern, "topic_pattern", InvalidKafkaOption))
    if partitions is not None:
        pairs = listed(partitions)
        for pair in pairs:
            match pair:
                case (str(), int(number)) if number >= 0 and not isinstance(number, bool):
                    pass
                case _:
                    raise InvalidKafkaOption("partitions", repr(pair), "(topic, partition) pairs", 'as ("orders", 0).')
        return PartitionSet(_some("partitions", [(str(topic), int(number)) for topic, number in pairs]))
    named: Any = topics
    if isinstance(named, str):
        raise InvalidKafkaOption("topics", repr(named), "a list of names", f"write [{named!r}].")
    names = listed(named)
    for name in names:
        if not isinstance(name, str) or not name:
            raise InvalidKafkaOption("topics", repr(names), "a list of names", f"{name!r} is no name of a topic.")
    return TopicList(_some("topics", names))


def _some(option: str, given: list[Any]) -> frozenset[Any]:
    if not given or len(set(given)) < len(given):
        raise InvalidKafkaOption(option, repr(given), "at least one, each once", "say what to read.")
    return frozenset(given)


def _check_read(option: str, position: KafkaOffsets | None, subscriber: Subscriber) -> None:
    """Refuse a position of a partition that is not read, because it would have no effect."""
    for (topic, number), _ in () if position is None else position.by_partition:
        if not subscriber.wants(topic, number):
            wanted = "positions of partitions that are read"
            raise InvalidKafkaOption(option, f"one of {topic}/{number}", wanted, "read the topic, or leave it out.")


def _kinds(position: KafkaOffsets | None, *, fallbacks: bool) -> set[str]:
    """The kinds of a position and of its positions of single partitions, with or without those of its fallbacks."""
    if position is None:
        return set()
    inner = [each for _, each in position.by_partition if isinstance(each, KafkaOffsets)]
    more = (_kinds(each, fallbacks=fallbacks) for each in (*inner, position.otherwise if fallbacks else None))
    return {position.kind}.union(*more)
