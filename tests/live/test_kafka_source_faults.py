"""Faults of the Kafka source on a real broker: lost records, recreated topics, absent brokers, logins."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import PartitionMetadata
from lowmark.sources import SplitsAddition, SplitsRemoval, read_slices
from lowmark.sources.kafka import KafkaDataLost, KafkaSource, KafkaSplit, KafkaUnavailable
from lowmark.sources.kafka.consumers import CONSUMERS
from lowmark.sources.kafka.librdkafka import LibrdkafkaLog
from lowmark.sources.kit.discovery import DiscoveryFailed

from tests.servers.kafka import Broker, Record, kafka_broker, kafka_cut_off, kafka_pair
from tests.servers.local import stand_still, wait_until
from tests.worlds.kafka_reading import Reading, source_of
from tests.worlds.reading import read_tables

Read = Callable[..., Reading]


@pytest.fixture
def reading() -> Iterator[Read]:
    made: list[Reading] = []

    def read(source: KafkaSource, state: bytes | None = None) -> Reading:
        made.append(Reading(source, state))
        return made[-1]

    yield read
    for each in made:
        each.close()


def numbers(*values: int) -> list[Record]:
    return [Record(str(value)) for value in values]


def whole(topic: str, stop: int, start: int = 0) -> KafkaSplit:
    return KafkaSplit(split_id=f"{topic}/0", topic=topic, partition=0, start=start, stop=stop)


def delete_records(kafka: Broker, topic: str, before: int, partition: int = 0) -> None:
    deleted = TopicPartition(topic, partition, before)
    kafka.admin.delete_records([deleted])[deleted].result(30)


def create_anew(kafka: Broker, topic: str) -> None:
    kafka.admin.delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in kafka.admin.list_topics(timeout=5).topics, "the topic deleted")
    kafka.create_topic(topic)


# -- lost records ---------------------------------------------------------------------------------------------------


def test_records_deleted_before_they_were_planned(
    kafka: Broker, reading: Read, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, numbers(*range(10)))
    strict, lenient = reading(source_of(kafka, topic)), reading(source_of(kafka, topic, on_data_loss="go_on"))
    delete_records(kafka, topic, 4)

    with pytest.raises(KafkaDataLost) as lost:
        strict.batch()
    with caplog.at_level(logging.WARNING, "lowmark"):
        assert lenient.values() == ["4", "5", "6", "7", "8", "9"]

    assert str(lost.value).startswith(
        f"Kafka split '{topic}/0' (topic '{topic}', partition 0): offsets 0 to 3 are lost: they were deleted "
        '(retention, or delete-records). Hint: to go on with what is left, use on_data_loss="go_on"'
    )
    assert lenient.count("lost_offsets") == 4  # by the planner; the reader meets the loss too, and counts it not again
    assert lenient.count("data_losses") == 1
    assert caplog.text.count("offsets 0 to 3 are lost") == 1


def test_records_deleted_after_they_were_planned(kafka: Broker) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, numbers(*range(10)))
    delete_records(kafka, topic, 4)
    lenient = source_of(kafka, topic, on_data_loss="go_on", columns=["offset"])

    with pytest.raises(KafkaDataLost, match=r"offsets 1 to 3 are lost: they were deleted"):
        read_tables(source_of(kafka, topic), [whole(topic, 10, start=1)])
    with pytest.raises(KafkaDataLost, match=r"offsets 1 to 2 are lost: they were deleted"):
        read_tables(source_of(kafka, topic), [whole(topic, 3, start=1)])
    kept = [
        read_tables(lenient, [whole(topic, stop, start=1)])[f"{topic}/0"]["offset"].to_pylist() for stop in (3, 4, 6)
    ]

    assert kept == [[], [], [4, 5]]
    counted: list[Mapping[str, float]] = []
    list(read_slices(lenient, [whole(topic, 6, start=1)], count=counted.append))
    assert counted == [{"data_losses": 1, "lost_offsets": 3}]


def test_records_of_an_added_partition_that_were_deleted_before_it_was_found_are_lost(
    kafka: Broker, reading: Read
) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, numbers(0))
    state = reading(source_of(kafka, topic)).snapshot()
    kafka.add_partitions(topic, 2)
    kafka.produce(topic, [Record(str(value), 1) for value in range(10)])
    delete_records(kafka, topic, 4, partition=1)
    strict = reading(source_of(kafka, topic), state)
    lenient = reading(source_of(kafka, topic, on_data_loss="go_on"), state)

    with pytest.raises(KafkaDataLost, match=r"partition 1\): offsets 0 to 3 are lost: they were deleted \(retention"):
        strict.batch()
    assert lenient.values() == ["4", "5", "6", "7", "8", "9"]
    assert (lenient.count("lost_offsets"), lenient.count("data_losses")) == (4, 1)


def test_a_position_behind_the_end_is_lost_data_after_the_allowed_time(kafka: Broker, reading: Read) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, numbers(*range(3)))
    options = {"start": {(topic, 0): 50}, "give_up_after": "1 second"}
    strict, lenient = (reading(source_of(kafka, topic, **options, on_data_loss=what)) for what in ("error", "go_on"))

    assert strict.values() == lenient.values() == []
    assert "it ends at offset 3, and is read from offset 50 on" in str(strict.planner.trouble())
    wait_until(lambda: lenient.values() == [] and lenient.planner.trouble() is None, "the allowed time is over")
    with pytest.raises(KafkaDataLost, match="offsets 3 to 49 are lost: the partition ends at offset 3 now"):
        strict.batch()
    with pytest.raises(KafkaDataLost, match="from 50 on are lost: the partition ends at offset 3 now"):
        read_tables(source_of(kafka, topic, give_up_after="1 second"), [whole(topic, 60, start=50)])
    assert lenient.finished == set()
    assert lenient.splits[f"{topic}/0"].start == 50


def test_a_leader_that_is_cut_off_from_the_others_and_answers_for_what_it_knows_loses_nothing(
    tmp_path: Path, reading: Read
) -> None:
    with kafka_cut_off(tmp_path) as (first, second, proxy):
        topic = first.create_topic(replicas=[[2, 1]])
        first.produce(topic, numbers(0, 1, 2))

        def anew() -> Broker:
            return Broker(first.bootstrap, first.process)  # with a client that asks no other broker first

        def state() -> PartitionMetadata:
            return anew().admin.list_topics(topic, timeout=5).topics[topic].partitions[0]

        wait_until(lambda: set(state().isrs) == {1, 2}, "both brokers have the records")
        proxy.kill()
        wait_until(lambda: state().leader == 1, "another leader")
        anew().produce(topic, numbers(3, 4, 5))
        old = reading(source_of(second, topic, start={(topic, 0): 5}))
        source = source_of(
            first, topic, start={(topic, 0): 5}, bootstrap_servers=f"{first.bootstrap},{second.bootstrap}"
        )
        any_of_both = reading(source)

        def short() -> bool:
            """Plan from offset 5 by a new client, which may also ask the other broker, and then stays with it."""
            with closing(old.source.create_planner()) as planner:
                planner.latest(old.going)
                return "it ends at offset 3, and is read from offset 5 on" in str(planner.trouble())

        wait_until(short, "the old leader says its end")
        wait_until(lambda: any_of_both.values() == ["5"], "a new client asks the other broker")
        for _ in range(4):
            CONSUMERS.close()
            assert read_tables(source, [whole(topic, 6, start=5)])[f"{topic}/0"]["value"].to_pylist() == [b"5"]


def test_the_rest_of_a_planned_batch_is_lost_if_the_partition_ends_before_it(kafka: Broker) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, numbers(*range(3)))
    options = {"columns": ["offset"], "give_up_after": "3 seconds"}
    planned = whole(topic, 6, start=1)

    with pytest.raises(KafkaDataLost, match="from 3 on are lost: the partition ends at offset 3 now"):
        read_tables(source_of(kafka, topic, **options), [planned])
    read = read_tables(source_of(kafka, topic, **options, on_data_loss="go_on"), [planned])

    assert read[f"{topic}/0"]["offset"].to_pylist() == [1, 2]


def test_rows_of_an_open_transaction_are_not_lost(kafka: Broker) -> None:
    """An earlier query that read what is not committed may have planned the batch."""
    topic = kafka.create_topic()
    kafka.produce(topic, numbers(*range(3)))
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in ("3", "4"):
        producer.produce(topic, value, partition=0)
    producer.flush(30)
    source = source_of(kafka, topic, columns=["offset"], give_up_after="3 seconds", on_data_loss="go_on")

    with pytest.raises(KafkaUnavailable, match=f"the readable records of split '{topic}/0' end at offset 3"):
        read_tables(source, [whole(topic, 5)])
    producer.commit_transaction(30)

    assert read_tables(source, [whole(topic, 5)])[f"{topic}/0"]["offset"].to_pylist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("records", [2, 20])
def test_a_topic_created_anew_is_another_split(kafka: Broker, reading: Read, records: int) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, numbers(*range(10)))
    strict, lenient = reading(source_of(kafka, topic)), reading(source_of(kafka, topic, on_data_loss="go_on"))
    assert (len(strict.values()), len(lenient.values())) == (10, 10)
    create_anew(kafka, topic)
    kafka.produce(topic, numbers(*range(100, 100 + records)))

    with pytest.raises(KafkaDataLost, match="from 10 on are lost: the topic was deleted and created anew"):
        strict.batch()
    assert lenient.values() == []
    [new] = lenient.discover()
    after_restart = reading(source_of(kafka, topic, on_data_loss="go_on"), lenient.snapshot())

    assert new == f"{topic}/0@{lenient.splits[new].topic_id}"
    assert lenient.finished == {f"{topic}/0"}
    assert len(lenient.values()) == records
    assert after_restart.splits == {}


def test_a_topic_that_is_deleted(kafka: Broker, reading: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowmark.sources.kafka.planner.DOUBT_SECONDS", 0.05)
    topic, other = kafka.create_topic(), kafka.create_topic()
    kafka.produce(other, numbers(1))
    strict = reading(source_of(kafka, topic, other))
    lenient = reading(source_of(kafka, topic, other, on_data_loss="go_on"))
    kafka.admin.delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in kafka.admin.list_topics(timeout=5).topics, "the topic deleted")

    with pytest.raises(KafkaDataLost, match="the topic or the partition was deleted"):
        strict.batch()
    assert lenient.values() == ["1"]
    assert lenient.finished == {f"{topic}/0"}
    assert lenient.discover() == []


# -- absent brokers ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with kafka_broker(tmp_path_factory.mktemp("own")) as broker:
        yield broker


@pytest.fixture
def own(own_broker: Broker) -> Iterator[Broker]:
    """Yield a broker that the test may stop; if the test fails before it starts the broker again, the fixture does."""
    yield own_broker
    if own_broker.process.running is None:
        own_broker.restart()


def test_a_broker_that_is_killed_and_comes_back_loses_and_repeats_nothing(own: Broker, reading: Read) -> None:
    topic = own.create_topic()
    own.produce(topic, [Record(f"{n:06}" + "x" * 1_000) for n in range(20_000)])
    source = source_of(own, topic, columns=["value", "offset"], give_up_after="2 minutes")
    reader = source.create_split_reader()
    reader.handle_splits_changes(SplitsAddition((whole(topic, 20_000),)))
    offsets: list[int] = []
    while len(offsets) < 2_000:
        offsets += [int(n) for part in reader.fetch().batches for n in part.rows["offset"].to_numpy()]

    own.kill()
    back = threading.Thread(target=own.restart)
    back.start()
    finished: frozenset[str] = frozenset()
    while not finished:
        fetched = reader.fetch()
        offsets += [int(n) for part in fetched.batches for n in part.rows["offset"].to_numpy()]
        finished = fetched.finished_splits
    reader.close()
    back.join()

    assert offsets == list(range(20_000))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Broker, Broker]]:
    with kafka_pair(tmp_path) as brokers:
        yield brokers


def test_when_a_leader_dies_another_goes_on_and_nothing_is_lost_or_repeated(
    pair: tuple[Broker, Broker], reading: Read
) -> None:
    first, second = pair
    topic, rows = first.create_topic(replicas=[[2, 1], [1, 2]]), 10_000
    records = [Record(f"{n:06}" + "x" * 1_000, n % 2, timestamp_ms=(1_000 + n // 2) * 1_000) for n in range(2 * rows)]
    first.produce(topic, records)
    query = reading(source_of(first, topic, columns=["offset", "timestamp"], give_up_after="2 minutes"))
    planner, splits, planned = query.planner, list(query.splits.values()), dict.fromkeys(query.splits, rows)

    def check_planning() -> None:
        """A partition is left out until it has a new leader."""
        wait_until(lambda: {name: end.position for name, end in planner.latest(splits).items()} == planned, "the ends")
        assert planner.find_time(splits, 8_000_000_000) == dict.fromkeys(planned, 7_000)

    check_planning()
    reader = query.source.create_split_reader()
    reader.handle_splits_changes(SplitsAddition(tuple(replace(split, stop=rows) for split in splits)))
    offsets: dict[str, list[int]] = {name: [] for name in planned}
    finished: set[str] = set()

    def fetch() -> None:
        fetched = reader.fetch()
        for part in fetched.batches:
            offsets[part.split_id] += [int(n) for n in part.rows["offset"].to_numpy()]
        finished.update(fetched.finished_splits)

    while min(map(len, offsets.values())) < 500:
        fetch()
    second.kill()
    check_planning()
    claimed = [replace(split, start=7_000) for split in splits]
    assert planner.claims(claimed, 8_000_000_000) == dict.fromkeys(planned, 8_000_000_000)
    while finished < offsets.keys():
        fetch()
    reader.close()
    leaders = [each.leader for each in first.admin.list_topics(topic, timeout=5).topics[topic].partitions.values()]

    assert offsets == {name: list(range(rows)) for name in planned}
    assert leaders == [1, 1]


def test_partitions_of_a_broker_that_stands_still_are_neither_empty_nor_deleted(
    pair: tuple[Broker, Broker], reading: Read
) -> None:
    """The cluster notices after 2 seconds that the second broker is away; a request to this broker ends after 3."""
    first, second = pair
    first.create_topic("apart", replicas=[[1], [2]])
    first.produce("apart", [Record(f"{second}", n, timestamp_ms=second * 1_000) for n in (0, 1) for second in (1, 9)])
    query = reading(source_of(first, "apart", give_up_after="2 minutes", columns=["value", "timestamp"]))
    splits = list(query.splits.values())
    wait_until(lambda: query.planner.find_time(splits, 5_000_000) == {"apart/0": 1, "apart/1": 1}, "both answers")
    assert second.process.running is not None
    process = second.process.running.pid

    stand_still(second.process.running)
    try:
        found = query.planner.find_time(splits, 5_000_000)
        ends = query.planner.latest(splits)
        trouble = query.planner.trouble()
    finally:
        os.kill(process, signal.SIGCONT)

    assert found is not None
    assert found.items() <= {"apart/0": 1}.items()
    assert ends.keys() <= {"apart/0"}
    assert f"Kafka at {first.bootstrap} gives no answer for " in str(trouble)
    values: list[str] = []

    def read_all() -> bool:
        values.extend(query.values())
        return len(values) >= 4

    wait_until(read_all, "all rows")
    assert sorted(values) == ["1", "1", "9", "9"]


def test_a_record_that_the_disk_of_a_broker_has_changed_is_no_row(own: Broker) -> None:
    """Brokers send what is on the disk; the checksum of the batch tells the change, as to Spark's own source."""
    topic = own.create_topic()
    for value in ("amount 1", "amount 2", "amount 3"):
        own.produce(topic, [Record(value)])  # a batch of its own
    own.damage(topic, b"amount 2", b"amount 9")

    with pytest.raises(KafkaUnavailable, match=f"cannot read split '{topic}/0' .*offset 1 .* failed CRC32C check"):
        read_tables(source_of(own, topic), [whole(topic, 3)])
    assert read_tables(source_of(own, topic), [whole(topic, 1)])[f"{topic}/0"]["value"].to_pylist() == [b"amount 1"]


def test_a_broker_that_stands_still_is_waited_for(own: Broker, reading: Read) -> None:
    topic = own.create_topic()
    own.produce(topic, numbers(1, 2, 3))
    query = reading(source_of(own, topic, give_up_after="1 minute"))
    assert query.values() == ["1", "2", "3"]
    own.produce(topic, numbers(4))
    assert own.process.running is not None
    process = own.process.running.pid

    stand_still(own.process.running)
    woken = threading.Timer(2.0, os.kill, (process, signal.SIGCONT))
    woken.start()
    values = query.values()
    woken.join()

    assert values == ["4"]


def test_a_broker_that_was_killed_is_waited_for(own: Broker, reading: Read) -> None:
    """The broker returns with new leader epochs, and without leaders at first. See also test_kafka_outages."""
    topic = own.create_topic()
    own.produce(topic, numbers(1, 2, 3))
    query = reading(source_of(own, topic, give_up_after="1 minute"))
    assert query.values() == ["1", "2", "3"]

    own.kill()
    assert query.values() == []
    trouble = query.planner.trouble()
    own.restart()
    own.produce(topic, numbers(4))

    assert f"Kafka at {own.bootstrap} gives no answer for 1 of 1 partitions since 20" in str(trouble)
    assert wait_until(query.values, "an answer of the broker") == ["4"]
    assert query.planner.trouble() is None


def test_a_broker_that_stays_away_is_an_error_that_names_it_and_librdkafka_says_so_in_the_log_and_not_on_and_on(
    own: Broker, reading: Read, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    topic = own.create_topic()
    own.produce(topic, numbers(1, 2, 3))
    source = source_of(own, topic, give_up_after="1 second")
    query = reading(source)
    # A new consumer, because a used one may have logged its lines already.
    anew = source_of(own, topic, give_up_after="3 seconds", consumer_options={"client.id": topic})
    own.kill()
    try:
        with pytest.raises(KafkaUnavailable, match=f"Kafka at {own.bootstrap}: cannot look up where 1 partition ends"):
            query.batch()
        with pytest.raises(KafkaUnavailable, match=f"cannot read split '{topic}/0' from offset 0 to 3, tried for 1 s"):
            read_tables(source, [whole(topic, 3)])
        with pytest.raises(DiscoveryFailed, match="cannot describe topics, tried for"):
            reading(source_of(own, topic, give_up_after="1 second"))
        caplog.clear()
        began = time.monotonic()
        with caplog.at_level(logging.INFO, "lowmark"), pytest.raises(KafkaUnavailable):
            read_tables(anew, [whole(topic, 1)])
        lasted_seconds = time.monotonic() - began
        said = [record for record in caplog.records if topic in record.getMessage()]
    finally:
        own.restart()

    assert query.values() == ["1", "2", "3"]
    # One line of a kind in ten seconds, for any number of successive consumers.
    assert 1 <= len(said) <= 1 + lasted_seconds // LibrdkafkaLog.QUIET_SECONDS
    assert "rdkafka" not in capfd.readouterr().err


# -- readers --------------------------------------------------------------------------------------------------------


def test_a_consumer_is_used_again(kafka: Broker) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, numbers(*range(100)))
    source = source_of(kafka, topic, columns=["offset"], consumer_options={"client.id": topic})
    CONSUMERS.close()

    made = [read_tables(source, [whole(topic, start + 10, start=start)]) for start in range(0, 90, 10)]

    assert len(CONSUMERS._idle) == 1
    assert [n for each in made for n in each[f"{topic}/0"]["offset"].to_pylist()] == list(range(90))


def test_a_slice_whose_rows_are_still_to_come_is_read_on_and_can_be_woken_and_dropped(kafka: Broker) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, numbers(1))
    reader = source_of(kafka, topic, columns=["value"]).create_split_reader()
    split = whole(topic, 9)
    reader.handle_splits_changes(SplitsAddition((split,)))

    def values(fetches: int = 1) -> list[object]:
        return [
            value for _ in range(fetches) for part in reader.fetch().batches for value in part.rows["value"].to_pylist()
        ]

    wait_until(lambda: values() == [b"1"], "the first row")
    kafka.produce(topic, numbers(2))
    wait_until(lambda: values() == [b"2"], "the second row")
    reader.wake_up()
    assert values() == []
    reader.handle_splits_changes(SplitsRemoval((split,)))
    kafka.produce(topic, numbers(3))
    assert values(2) == []
    reader.close()


# -- logins ---------------------------------------------------------------------------------------------------------


def test_tls_with_a_password_and_what_is_said_when_it_is_wrong(
    tmp_path: Path, reading: Read, caplog: pytest.LogCaptureFixture
) -> None:
    from tests.servers.secure_broker import secure_broker

    with secure_broker(tmp_path) as (broker, address, login):
        topic = broker.create_topic()
        broker.produce(topic, numbers(1, 2))

        def source(**changed: str) -> KafkaSource:
            return KafkaSource(
                bootstrap_servers=address,
                topics=[topic],
                give_up_after="5 seconds",
                consumer_options={**login, **changed},
            )

        assert reading(source()).values() == ["1", "2"]
        with pytest.raises(DiscoveryFailed, match=r"(?s)Authentication failed.*check user, password") as refused:
            reading(source(**{"sasl.password": "not-the-hunter"}))
        with pytest.raises(KafkaUnavailable, match=r"(?s)Authentication failed.*check user, password") as unread:
            read_tables(source(**{"sasl.password": "not-the-hunter"}), [whole(topic, 2)])
        with pytest.raises(DiscoveryFailed, match="certificate"):
            reading(source(**{"ssl.ca.location": "probe"}))

    said = caplog.text + str(refused.value) + str(unread.value) + repr(source())
    assert "hunter" not in said
