"""The Kafka source on a real broker, without Spark: discovery, starts and ends, and the content of rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from lowmark.sources import Boundedness
from lowmark.sources.kafka import InvalidUtf8, KafkaOffsets, KafkaSource, KafkaSplit
from lowmark.sources.kit.discovery import DiscoveryFailed
from lowmark.sources.testing import check_source

from tests.servers.kafka import Broker, Record
from tests.servers.local import wait_until
from tests.worlds.kafka_reading import Reading, source_of, text_of
from tests.worlds.kafka_scenarios import seed
from tests.worlds.reading import read_tables

T0_MS = 1_700_000_000_000
Read = Callable[[KafkaSource], Reading]


@pytest.fixture
def reading() -> Iterator[Read]:
    made: list[Reading] = []

    def read(source: KafkaSource, state: bytes | None = None) -> Reading:
        made.append(Reading(source, state))
        return made[-1]

    yield read
    for each in made:
        each.close()


def numbers(*values: int, partition: int = 0) -> list[Record]:
    return [Record(str(value), partition, timestamp_ms=T0_MS + value * 1_000) for value in values]


@pytest.fixture
def ten(kafka: Broker) -> str:
    """Fill a topic of two partitions with a record per second: 0 to 4 in the first, 5 to 9 in the second."""
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, [*numbers(*range(5)), *numbers(*range(5, 10), partition=1)])
    return topic


# -- which partitions -----------------------------------------------------------------------------------------------


def test_topics_are_read_from_all_their_partitions(kafka: Broker, ten: str, reading: Read) -> None:
    other = kafka.create_topic()
    kafka.produce(other, numbers(77))

    query = reading(source_of(kafka, ten, other))

    assert sorted(query.splits) == sorted([f"{ten}/0", f"{ten}/1", f"{other}/0"])
    assert query.values() == sorted([*map(str, range(10)), "77"])
    assert query.values() == []


def test_a_pattern_takes_the_topics_whose_whole_name_matches_also_later_ones(kafka: Broker, reading: Read) -> None:
    first = kafka.create_topic()
    other = kafka.create_topic(f"not-{first}")
    kafka.produce(first, numbers(1))
    kafka.produce(other, numbers(2))
    query = reading(source_of(kafka, topic_pattern=f"{first}.*"))
    assert query.values() == ["1"]

    later = kafka.create_topic(f"{first}-b")
    kafka.produce(later, numbers(3))

    assert query.discover() == [f"{later}/0"]
    assert query.values() == ["3"]


def test_a_pattern_that_nothing_matches_waits(kafka: Broker, reading: Read) -> None:
    query = reading(source_of(kafka, topic_pattern="no-such-topic-.*"))

    assert query.batch() == {}


def test_explicit_partitions_are_the_only_ones(kafka: Broker, ten: str, reading: Read) -> None:
    query = reading(source_of(kafka, partitions=[(ten, 1)]))

    assert list(query.splits) == [f"{ten}/1"]
    assert query.values() == list(map(str, range(5, 10)))


@pytest.mark.parametrize("how", ["topic", "partition"])
def test_what_is_named_and_not_there_is_an_error(kafka: Broker, ten: str, reading: Read, how: str) -> None:
    named: dict[str, Any] = {"topics": [ten, "missing"]} if how == "topic" else {"partitions": [(ten, 0), (ten, 9)]}

    with pytest.raises(DiscoveryFailed, match="'missing' not found" if how == "topic" else f"'{ten}/9' not found"):
        reading(source_of(kafka, **named))


def test_partitions_that_are_added_are_read_from_their_first_record(kafka: Broker, ten: str, reading: Read) -> None:
    query = reading(source_of(kafka, ten, start="latest"))
    assert query.values() == []
    kafka.add_partitions(ten, 4)
    kafka.produce(ten, [*numbers(30, 31, partition=3), *numbers(10)])

    assert query.values() == ["10"]
    assert query.discover() == [f"{ten}/2", f"{ten}/3"]
    assert query.values() == ["30", "31"]


def test_a_restart_neither_forgets_nor_repeats_partitions(kafka: Broker, ten: str, reading: Read) -> None:
    state = reading(source_of(kafka, ten, start="latest")).snapshot()
    kafka.add_partitions(ten, 3)
    kafka.produce(ten, numbers(40, partition=2))

    after = reading(source_of(kafka, ten, start="latest"), state)  # type: ignore[call-arg]

    assert sorted(after.splits) == [f"{ten}/2"]
    assert after.values() == ["40"]


# -- where they begin -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", range(10)),
        ("latest", []),
        (KafkaOffsets.timestamp((T0_MS + 3_000) * 1_000), [3, 4, 5, 6, 7, 8, 9]),
        (KafkaOffsets.timestamp((T0_MS + 3_000) * 1_000 + 1), [4, 5, 6, 7, 8, 9]),
        (KafkaOffsets.timestamp((T0_MS + 99_000) * 1_000), []),
        (KafkaOffsets.timestamp(0), range(10)),
        (KafkaOffsets.timestamp(-1_000), range(10)),
        ({0: 4, 1: 0}, [4, 5, 6, 7, 8, 9]),
        ({0: 4}, [4, 5, 6, 7, 8, 9]),
        ({0: "latest", 1: KafkaOffsets.timestamp((T0_MS + 9_000) * 1_000)}, [9]),
    ],
    ids=str,
)
def test_every_start(kafka: Broker, ten: str, reading: Read, start: Any, expected: Any) -> None:
    if isinstance(start, dict):
        start = {(ten, partition): position for partition, position in start.items()}

    assert reading(source_of(kafka, ten, start=start)).values() == sorted(map(str, expected))


def test_latest_is_where_the_end_was_when_the_partition_was_found(kafka: Broker, ten: str, reading: Read) -> None:
    query = reading(source_of(kafka, ten, start="latest"))

    kafka.produce(ten, numbers(10))

    assert query.values() == ["10"]
    assert query.splits[f"{ten}/0"].start == 6


def test_committed_offsets_of_a_group_and_what_it_has_not_committed(kafka: Broker, ten: str, reading: Read) -> None:
    group = {"group.id": f"group-{ten}"}
    committing = Consumer({"bootstrap.servers": kafka.bootstrap, **group})
    committing.commit(offsets=[TopicPartition(ten, 0, 3)], asynchronous=False)
    committing.close()

    fallen_back = reading(source_of(kafka, ten, start="committed", consumer_options=group))
    to_latest = reading(source_of(kafka, ten, start=KafkaOffsets.committed("latest"), consumer_options=group))

    assert fallen_back.values() == ["3", "4", "5", "6", "7", "8", "9"]
    assert to_latest.values() == ["3", "4"]


# -- where they end -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("latest", range(10)),
        (KafkaOffsets.timestamp((T0_MS + 7_000) * 1_000), range(7)),
        (KafkaOffsets.timestamp((T0_MS + 99_000) * 1_000), range(10)),
        ({0: 2, 1: 1}, [0, 1, 5]),
        ({0: 0}, [5, 6, 7, 8, 9]),
    ],
    ids=str,
)
def test_every_stop(kafka: Broker, ten: str, reading: Read, stop: Any, expected: Any) -> None:
    if isinstance(stop, dict):
        stop = {(ten, partition): position for partition, position in stop.items()}
    source = source_of(kafka, ten, stop=stop)
    assert source.boundedness is Boundedness.BOUNDED

    query = reading(source)
    kafka.produce(ten, [*numbers(20), *numbers(21, partition=1)])  # after the stop was looked up

    assert query.values() == sorted(map(str, expected))
    assert query.finished == set(query.splits)
    assert query.context.no_more_splits == {0}
    assert query.context.periods == []


def test_a_stop_that_is_not_there_yet_is_waited_for(kafka: Broker, ten: str, reading: Read) -> None:
    query = reading(source_of(kafka, partitions=[(ten, 0)], stop={(ten, 0): 6}))

    assert (len(query.values()), query.finished) == (5, set())
    kafka.produce(ten, numbers(20, 21))

    assert (query.values(), query.finished) == (["20"], {f"{ten}/0"})


# -- content of rows --------------------------------------------------------------------------------------------------


def test_every_column_of_a_record(kafka: Broker) -> None:
    topic = kafka.create_topic()
    kafka.producer.produce(
        topic, b"v", b"k", timestamp=T0_MS, headers=[("a", b"1"), ("a", None), ("b", b"")], partition=0
    )
    kafka.produce(topic, [Record(None, key="gone", timestamp_ms=T0_MS + 1), Record("", timestamp_ms=T0_MS + 2)])
    columns = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    source = source_of(kafka, topic, columns=columns)

    table = read_tables(source, [whole(topic, 3)])[f"{topic}/0"]

    assert table.schema.equals(source.schema)
    rows = table.cast(pa.schema([*list(table.schema)[:5], pa.field("timestamp", pa.int64()), *list(table.schema)[6:]]))
    common = {"topic": topic, "partition": 0, "timestampType": 0}
    at_us = T0_MS * 1_000
    assert rows.to_pylist() == [
        {
            **common, "key": b"k", "value": b"v", "offset": 0, "timestamp": at_us,
            "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}, {"key": "b", "value": b""}],
        },
        {**common, "key": b"gone", "value": None, "offset": 1, "timestamp": at_us + 1_000, "headers": None},
        {**common, "key": None, "value": b"", "offset": 2, "timestamp": at_us + 2_000, "headers": None},
    ]  # fmt: skip


def whole(topic: str, stop: int, partition: int = 0, start: int = 0) -> KafkaSplit:
    return KafkaSplit(split_id=f"{topic}/{partition}", topic=topic, partition=partition, start=start, stop=stop)


@pytest.mark.parametrize(
    "columns", [["value"], ["topic", "partition"], ["offset"], ["timestampType", "topic"], ["headers"]]
)
def test_any_subset_of_columns(kafka: Broker, ten: str, columns: list[str]) -> None:
    source = source_of(kafka, ten, columns=columns)

    tables = read_tables(source, [whole(ten, 5), whole(ten, 4, partition=1)])

    assert [table.num_rows for table in tables.values()] == [5, 4]
    assert all(table.schema.names == columns for table in tables.values())
    if "partition" in columns:
        assert tables[f"{ten}/1"].to_pylist() == [{"topic": ten, "partition": 1}] * 4


def test_the_time_of_the_append_is_a_type_of_its_own(kafka: Broker) -> None:
    topic = kafka.create_topic(message_timestamp_type="LogAppendTime")
    kafka.produce(topic, numbers(1))

    table = read_tables(source_of(kafka, topic), [whole(topic, 1)])[f"{topic}/0"]

    assert table["timestampType"].to_pylist() == [1]


def test_strings_and_what_is_none(kafka: Broker) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, [Record("ä", key="k"), Record(None), Record(b"\xff")])
    source = source_of(kafka, topic, key_type="string", value_type="string", columns=["key", "value"])

    good = read_tables(source, [whole(topic, 2)])[f"{topic}/0"]
    with pytest.raises(InvalidUtf8, match=f"offset 2 of topic '{topic}', partition 0: its value is not UTF-8"):
        read_tables(source, [whole(topic, 3)])

    assert good.to_pylist() == [{"key": "k", "value": "ä"}, {"key": None, "value": None}]


def test_a_record_larger_than_a_fetch(kafka: Broker) -> None:
    topic = kafka.create_topic(max_message_bytes="3000000")
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "message.max.bytes": 3_000_000})
    for size in (10, 2_500_000, 10):
        producer.produce(topic, b"x" * size, partition=0)
    producer.flush(30)

    table = read_tables(source_of(kafka, topic), [whole(topic, 3)])[f"{topic}/0"]

    assert [len(value or b"") for value in table["value"].to_pylist()] == [10, 2_500_000, 10]


# -- gaps -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def transactional(kafka: Broker) -> Iterator[tuple[Producer, str]]:
    topic = kafka.create_topic()
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"tx-{topic}", "linger.ms": 0})
    producer.init_transactions(30)
    yield producer, topic
    producer.abort_transaction(30)


def in_transaction(producer: Producer, topic: str, *values: int, end: str | None) -> None:
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, str(value), partition=0)
    producer.flush(30)
    if end == "commit":
        producer.commit_transaction(30)
    elif end == "abort":
        producer.abort_transaction(30)


def test_aborted_transactions_are_left_out_and_open_ones_not_planned(
    kafka: Broker, transactional: tuple[Producer, str], reading: Read
) -> None:
    producer, topic = transactional
    in_transaction(producer, topic, 1, 2, end="commit")  # offsets 0, 1, marker 2
    in_transaction(producer, topic, 3, 4, 5, end="abort")  # 3, 4, 5, marker 6
    committed, everything = (
        reading(source_of(kafka, topic)),
        reading(source_of(kafka, topic, isolation="read_uncommitted")),
    )

    assert (committed.values(), committed.splits[f"{topic}/0"].start) == (["1", "2"], 7)
    assert everything.values() == ["1", "2", "3", "4", "5"]
    in_transaction(producer, topic, 6, end=None)  # open
    kafka.produce(topic, numbers(7))

    assert (committed.values(), committed.splits[f"{topic}/0"].start) == ([], 7)
    assert everything.values() == ["6", "7"]
    producer.commit_transaction(30)
    wait_until(
        lambda: (committed.planner.latest(list(committed.splits.values()))[f"{topic}/0"].position) > 7, "committed"
    )
    assert committed.values() == ["6", "7"]
    producer.begin_transaction()  # for the fixture to abort


def test_a_start_within_an_open_transaction_is_no_lost_data(
    kafka: Broker, transactional: tuple[Producer, str], reading: Read
) -> None:
    """Spark's own source reads what is not committed, and a query that goes on at its offsets waits for the end."""
    producer, topic = transactional
    in_transaction(producer, topic, 0, 1, end=None)
    query = reading(source_of(kafka, topic, start={(topic, 0): 2}))

    assert query.values() == []
    assert query.finished == set()
    producer.commit_transaction(30)
    kafka.produce(topic, numbers(7))
    wait_until(lambda: (query.planner.latest(list(query.splits.values()))[f"{topic}/0"].position) > 3, "committed")
    assert query.values() == ["7"]
    producer.begin_transaction()  # for the fixture to abort


def test_a_range_of_nothing_but_an_aborted_transaction_and_its_marker(
    kafka: Broker, transactional: tuple[Producer, str]
) -> None:
    producer, topic = transactional
    in_transaction(producer, topic, 1, 2, 3, end="abort")
    in_transaction(producer, topic, 4, end="commit")  # offset 4, marker 5
    source = source_of(kafka, topic, columns=["value"])

    cuts = [(0, 2), (1, 4), (3, 4), (2, 5), (5, 6), (0, 6)]

    rows = [read_tables(source, [whole(topic, stop, start=start)])[f"{topic}/0"].num_rows for start, stop in cuts]
    assert rows == [0, 0, 0, 1, 0, 1]
    producer.begin_transaction()


def test_compaction_leaves_gaps_that_ranges_may_begin_and_end_in(kafka: Broker) -> None:
    topic = kafka.create_topic(
        cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.01", max_compaction_lag_ms="100"
    )
    kafka.produce(topic, [Record(str(n), key=str(n % 3)) for n in range(30)])
    source = source_of(kafka, topic, columns=["value", "offset"])

    def rows(start: int, stop: int) -> list[tuple[str, int | None]]:
        table = read_tables(source, [whole(topic, stop, start=start)])[f"{topic}/0"]
        pairs = zip(table["value"].to_pylist(), table["offset"].to_pylist(), strict=True)
        return [
            (text_of(value), offset) for value, offset in pairs if value != b"end"
        ]  # the cleaner keeps running on these records

    def compacted() -> bool:
        kafka.produce(topic, [Record("end", key="end")])  # rolls the segment, so the cleaner may compact the one before
        return rows(0, kafka.end_offsets(topic)[0]) == left

    left: list[tuple[str, int | None]] = [("27", 27), ("28", 28), ("29", 29)]
    wait_until(compacted, "the topic compacted")
    end = kafka.end_offsets(topic)[0]
    for cut in (1, 10, 26, 27, 28, 30, end - 1):
        assert rows(0, cut) == [row for row in left if (row[1] or 0) < cut]
        assert rows(cut, end) == [row for row in left if (row[1] or 0) >= cut]


# -- the laws -------------------------------------------------------------------------------------------------------


def test_the_source_keeps_the_laws(kafka: Broker, transactional: tuple[Producer, str]) -> None:
    producer, topic = transactional
    kafka.add_partitions(topic, 3)
    kafka.produce(topic, [Record(str(n), n % 2, timestamp_ms=T0_MS + n * 10) for n in range(60)])
    in_transaction(producer, topic, 1, 2, 3, end="abort")
    kafka.produce(topic, [Record(str(n), n % 2, timestamp_ms=T0_MS + n * 10) for n in range(60, 90)])
    columns = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]

    checked = check_source(source_of(kafka, topic, columns=columns), other_process=True)

    assert checked.rows == 90
    assert checked.found_by_time > 0
    producer.begin_transaction()


def test_the_source_keeps_the_law_of_time(kafka: Broker) -> None:
    topic = kafka.create_topic(partitions=3)
    kafka.produce(topic, [Record(str(n), n % 2, timestamp_ms=T0_MS + n * 10) for n in range(90)])

    checked = check_source(source_of(kafka, topic))

    assert checked.found_by_time > 0


def test_the_laws_hold_over_large_batches_of_several_topics(kafka: Broker) -> None:
    topics = [kafka.create_topic(partitions=2) for _ in range(2)]
    for at, topic in enumerate(topics):
        kafka.produce(topic, [Record(f"{at}-{n}", n % 2, timestamp_ms=T0_MS + n) for n in range(10_000)])
    source = source_of(kafka, *topics, columns=["value", "topic", "offset"])

    tables = read_tables(source, [whole(topic, 4_321, partition) for topic in topics for partition in (0, 1)])

    for at, topic in enumerate(topics):
        for partition in (0, 1):
            rows = tables[f"{topic}/{partition}"]
            assert rows["offset"].to_pylist() == list(range(4_321))
            assert rows["value"].to_pylist() == [f"{at}-{2 * n + partition}".encode() for n in range(4_321)]
            assert set(rows["topic"].to_pylist()) == {topic}


@pytest.mark.parametrize("topics", [4, pytest.param(150, marks=pytest.mark.torture)])
def test_small_slices_of_fresh_topics_bring_every_row_once(kafka: Broker, topics: int) -> None:
    """A consumer is reused for topics that it does not know, at lower offsets."""
    drawn, partitions, records = seed(), 16, 40
    rng = random.Random(drawn)
    for _ in range(topics):
        topic = kafka.create_topic(partitions=partitions)
        kafka.produce(topic, [Record(str(n), p) for n in range(records) for p in range(partitions)])
        assert set(kafka.end_offsets(topic).values()) == {records}, "all are on the broker"
        source, at = source_of(kafka, topic, columns=["offset"]), [0] * partitions
        while min(at) < records:
            most = rng.choice([2, 10, records])
            stops = [min(records, begin + rng.randint(0, most)) for begin in at]
            slices = [whole(topic, stop, p, at[p]) for p, stop in enumerate(stops)]
            for name, table in read_tables(source, slices).items():
                p = int(name.rpartition("/")[2])
                assert table["offset"].to_pylist() == list(range(at[p], stops[p])), f"seed {drawn}, partition {p}"
            at = stops


def test_the_options_of_spark(kafka: Broker, ten: str, reading: Read) -> None:
    plain = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": ten}

    def values(**options: str) -> list[str]:
        return reading(KafkaSource.from_options({**plain, **options})).values()

    assert values() == []
    assert values(startingOffsets="earliest", endingOffsets=f'{{"{ten}": {{"0": 1, "1": -1}}}}') == list("056789")
    assert values(startingOffsets=f'{{"{ten}": {{"0": -2, "1": 4}}}}') == list("012349")
    assert values(startingTimestamp=str(T0_MS + 8_000)) == ["8", "9"]
    assert values(startingOffsetsByTimestamp=f'{{"{ten}": {{"0": {T0_MS + 4_000}, "1": {T0_MS + 9_000}}}}}') == [
        "4",
        "9",
    ]
