"""Claims of event times before a row is read, on a real broker: every claim is checked against the whole content."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from lowmark.sources.kafka import KafkaSource, KafkaSplit
from lowmark.sources.kafka.planner import KafkaPlanner
from lowmark.sources.slicing.next_row import next_row

from tests.servers.kafka import Broker, Record
from tests.servers.local import wait_until
from tests.worlds.kafka_reading import Reading, Slices, rows_of, source_of

Read = Callable[..., Reading]
MONTH_MS, MINUTE_MS = 30 * 86_400_000, 60_000
ROWS = 120


@pytest.fixture
def reading() -> Iterator[Read]:
    made: list[Reading] = []

    def read(source: KafkaSource) -> Reading:
        made.append(Reading(source))
        return made[-1]

    yield read
    for each in made:
        each.close()


@pytest.fixture
def times_ms() -> list[int]:
    """The times of one row per minute, from a month ago on."""
    return [int(time.time() * 1_000) - MONTH_MS + n * MINUTE_MS for n in range(ROWS)]


def in_transactions(
    kafka: Broker, topic: str, times_ms: list[int], *, rows: int = 10, partition: int = 0, end: str = "commit"
) -> None:
    """Write rows of these times, `rows` per transaction; the transactions' markers have the present time."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"tx-{topic}-{partition}"})
    producer.init_transactions(30)
    for at in range(0, len(times_ms), rows):
        producer.begin_transaction()
        for time_ms in times_ms[at : at + rows]:
            producer.produce(topic, b"v", partition=partition, timestamp=time_ms)
        producer.flush(30)
        if end == "commit":
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)


def plainly(kafka: Broker, topic: str, times_ms: list[int], *, partition: int = 0) -> None:
    kafka.produce(topic, [Record("v", partition, timestamp_ms=at) for at in times_ms])


def filled(kafka: Broker, times_ms: list[int], parts: str) -> str:
    """Fill a topic of two partitions: the first with the named parts, one letter each; the second with plain rows.

    t: rows in transactions; p: plain rows; a: an aborted transaction of rows with the present time, then plain rows;
    A: the same, with aborted rows at times of the part.
    """
    topic = kafka.create_topic(partitions=2)
    plainly(kafka, topic, times_ms, partition=1)
    each = len(times_ms) // len(parts)
    for at, part in enumerate(parts):
        times = times_ms[at * each : (at + 1) * each]
        if part == "t":
            in_transactions(kafka, topic, times)
            continue
        if part == "a":
            in_transactions(kafka, topic, [int(time.time() * 1_000)] * 3, end="abort")
        elif part == "A":
            in_transactions(kafka, topic, [at + 1_000 for at in times[:3]], end="abort")
        plainly(kafka, topic, times)
    return topic


@pytest.mark.parametrize(
    ("isolation", "parts"),
    [
        *(("read_committed", parts) for parts in ("t", "tp", "pt", "ptp", "tpt", "a", "pap", "pAp", "tAp")),
        # If aborted records count as rows, those with the present time are out of order, which claims cannot know.
        *(("read_uncommitted", parts) for parts in ("t", "ptp")),
    ],
)
def test_no_row_is_behind_a_claim_however_a_history_was_written(
    kafka: Broker, reading: Read, times_ms: list[int], parts: str, isolation: str
) -> None:
    topic = filled(kafka, times_ms, parts)
    slices = Slices(reading(source_of(kafka, topic, isolation=isolation)), budget=25)

    slices.to_the_end()

    assert slices.false_claims(kafka, topic) == []
    content = rows_of(kafka, topic, isolation)
    assert slices.rows == {name: len(rows) for name, rows in content.items()}
    assert f"{topic}/1" in slices.claimed()
    if parts[0] == "p":
        assert f"{topic}/0" in slices.claimed(), "where no marker hides rows, claims are made"
    # Reading continues by shares: the splits stay together, and few plans more than the budget requires are needed.
    assert len(slices.plans) < 3 * 2 * ROWS / 25


@pytest.mark.parametrize("parts", ["tp", "ptp"])
def test_a_restart_in_the_middle_claims_nothing_false(
    kafka: Broker, reading: Read, times_ms: list[int], parts: str
) -> None:
    topic = filled(kafka, times_ms, parts)
    slices = Slices(reading(source_of(kafka, topic)), budget=11)

    for _ in range(400):
        going = slices.one()
        slices.restart(reading(source_of(kafka, topic)))  # a new process after every batch
        if not going:
            break

    assert slices.false_claims(kafka, topic) == []
    assert slices.rows == {f"{topic}/0": ROWS, f"{topic}/1": ROWS}


def test_a_planner_may_stand_on_a_marker_that_hides_rows(kafka: Broker, reading: Read, times_ms: list[int]) -> None:
    topic = filled(kafka, times_ms, "t")
    slices = Slices(reading(source_of(kafka, topic, start={(topic, 0): 10, (topic, 1): 0})), budget=25)

    slices.one()
    slices.one()

    assert slices.false_claims(kafka, topic) == []
    assert slices.rows[f"{topic}/0"] > 0, "it is read, not waited for"


def test_transactions_that_begin_while_a_topic_is_read(kafka: Broker, reading: Read, times_ms: list[int]) -> None:
    topic = filled(kafka, times_ms[:40], "p")
    slices = Slices(reading(source_of(kafka, topic)), budget=15)
    for _ in range(3):
        assert slices.one()
    assert slices.claimed() == {f"{topic}/0", f"{topic}/1"}

    in_transactions(kafka, topic, times_ms[40:80])
    plainly(kafka, topic, times_ms[40:80], partition=1)
    slices.one()
    in_transactions(kafka, topic, times_ms[80:], rows=7)
    plainly(kafka, topic, times_ms[80:], partition=1)
    slices.to_the_end()

    assert slices.false_claims(kafka, topic) == []
    assert slices.rows == {f"{topic}/0": ROWS, f"{topic}/1": ROWS}


def test_gaps_of_compaction_do_not_keep_claims_from_being_made(
    kafka: Broker, reading: Read, times_ms: list[int]
) -> None:
    topic = kafka.create_topic(
        partitions=2,
        cleanup_policy="compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0.01",
        max_compaction_lag_ms="100",
    )
    for partition in (0, 1):
        keyed = [Record("v", partition, key=str(n % 80), timestamp_ms=at) for n, at in enumerate(times_ms)]
        kafka.produce(topic, keyed)

    after_ms = count(times_ms[-1] + 1_000, 1_000)

    def compacted() -> bool:
        later_ms = next(after_ms)  # its time rolls the segments, which lets the cleaner remove earlier ones
        kafka.produce(topic, [Record("end", partition, key="end", timestamp_ms=later_ms) for partition in (0, 1)])
        return all(rows[0][0] >= ROWS - 80 for rows in rows_of(kafka, topic).values())

    wait_until(compacted, "the topic compacted")
    slices = Slices(reading(source_of(kafka, topic)), budget=20)

    slices.to_the_end()

    assert slices.false_claims(kafka, topic) == []
    assert slices.claimed() == {f"{topic}/0", f"{topic}/1"}


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_claims_go_by_the_time_that_rows_have(kafka: Broker, reading: Read, times_ms: list[int], kind: str) -> None:
    topic = kafka.create_topic(message_timestamp_type=kind)
    for at in range(0, 30, 10):
        plainly(kafka, topic, times_ms[at : at + 10])
        in_transactions(kafka, topic, times_ms[at : at + 10], rows=5)
    slices = Slices(reading(source_of(kafka, topic)), budget=8)

    slices.to_the_end()

    assert slices.rows == {f"{topic}/0": 60}
    if kind == "LogAppendTime":  # otherwise the rows are out of order, and claims cannot hold
        assert slices.false_claims(kafka, topic) == []
        assert slices.claimed() == {f"{topic}/0"}


def test_a_bad_clock_behind_a_marker_proves_nothing(kafka: Broker, reading: Read, times_ms: list[int]) -> None:
    topic = kafka.create_topic(partitions=2)
    plainly(kafka, topic, times_ms, partition=1)
    plainly(kafka, topic, times_ms[:20])
    in_transactions(kafka, topic, [times_ms[20]])
    plainly(kafka, topic, [times_ms[-1] + 12 * MONTH_MS, *times_ms[21:]])
    slices = Slices(reading(source_of(kafka, topic)), budget=20)

    slices.to_the_end()

    assert slices.false_claims(kafka, topic) == []
    assert slices.rows == {f"{topic}/0": ROWS + 1, f"{topic}/1": ROWS}


def test_a_bounded_split_claims_by_the_rows_behind_its_stop_too(
    kafka: Broker, reading: Read, times_ms: list[int]
) -> None:
    topic = filled(kafka, times_ms, "p")
    slices = Slices(reading(source_of(kafka, topic, stop={(topic, 0): 50, (topic, 1): 50})), budget=16)
    stops = {name: split.stop for name, split in slices.query.splits.items()}

    while any(split.start < 50 for split in slices.query.splits.values()):
        slices.query.splits = {
            name: KafkaSplit(split_id=name, topic=topic, partition=split.partition, start=split.start, stop=stops[name])
            for name, split in slices.query.splits.items()
        }
        assert slices.one()

    assert slices.false_claims(kafka, topic) == []
    assert slices.claimed() == set(stops)


def test_transactional_partitions_are_not_searched_and_plain_ones_not_looked_at_if_told_so(
    kafka: Broker, reading: Read, times_ms: list[int]
) -> None:
    topic = filled(kafka, times_ms, "t")
    told = Slices(reading(source_of(kafka, topic, transactional=True)), budget=25)
    believed = Slices(reading(source_of(kafka, topic, transactional=False)), budget=25)

    told.to_the_end()
    believed.to_the_end()

    assert told.claims == []
    assert told.rows == {f"{topic}/0": ROWS, f"{topic}/1": ROWS}
    assert len(believed.false_claims(kafka, topic)) > 0, "what looking is for"


def test_no_gap_is_stepped_over_because_of_a_marker(kafka: Broker, reading: Read, times_ms: list[int]) -> None:
    topic = filled(kafka, times_ms, "t")
    query = reading(source_of(kafka, topic, start={(topic, 0): 10, (topic, 1): 100}))
    splits, now_us = list(query.splits.values()), time.time_ns() // 1_000

    both = next_row(query.planner, splits, near_us=now_us, until_us=now_us + 300_000_000)
    plain = next_row(query.planner, splits[1:], near_us=now_us, until_us=now_us + 300_000_000)
    hidden = next_row(query.planner, splits[:1], near_us=now_us, until_us=now_us + 300_000_000)

    assert [split.partition for split in splits] == [0, 1]
    row_us = times_ms[100] * 1_000
    assert plain.time_us is not None
    assert row_us - 1_000 <= plain.time_us <= row_us
    assert both == plain, "of the splits that can be searched"
    assert hidden.time_us is None
    assert not hidden.searchable


def test_a_search_goes_on_behind_transactions_of_long_ago(kafka: Broker, reading: Read) -> None:
    now_ms = int(time.time() * 1_000)
    topic = kafka.create_topic()
    in_transactions(kafka, topic, [now_ms - MONTH_MS + n for n in range(20)])
    later_ms = [now_ms + 10_000 + n * 1_000 for n in range(60)]
    plainly(kafka, topic, later_ms)
    slices = Slices(reading(source_of(kafka, topic)), budget=10)

    slices.to_the_end()

    assert slices.false_claims(kafka, topic) == []
    assert slices.claimed() == {f"{topic}/0"}, "of the rows that no marker hides"


def test_a_partition_without_an_answer_claims_nothing_and_stalls_nobody_for_long(
    kafka: Broker, reading: Read, times_ms: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = filled(kafka, times_ms, "p")
    query = reading(source_of(kafka, topic))
    planner = query.planner
    assert isinstance(planner, KafkaPlanner)
    # An offset beyond the end: never found, never delivered.
    splits = [
        KafkaSplit(split_id=f"{topic}/0", topic=topic, partition=0, start=ROWS),
        KafkaSplit(split_id=f"{topic}/1", topic=topic, partition=1, start=5),
    ]
    spent_seconds = []
    claimed: list[Any] = []
    for _ in range(2):
        began = time.monotonic()
        claimed.append(planner.claims(splits, times_ms[5] * 1_000))
        spent_seconds.append(time.monotonic() - began)

    assert claimed == [{f"{topic}/1": times_ms[5] * 1_000}] * 2
    assert spent_seconds[0] < 5.0
    assert spent_seconds[1] < 1.5, "it is not looked at again for a while, and a look takes 2 seconds"
    assert planner.metrics.values()["unanswered_partitions"] == 1


def test_a_topic_made_anew_and_deleted_records_claim_nothing_of_before(
    kafka: Broker, reading: Read, times_ms: list[int]
) -> None:
    topic = filled(kafka, times_ms, "p")
    query = reading(source_of(kafka, topic))
    gone = KafkaSplit(split_id=f"{topic}/0", topic=topic, partition=0, start=3)
    kafka.admin.delete_records([TopicPartition(topic, 0, 50)])[TopicPartition(topic, 0, 50)].result(30)

    assert query.planner.claims([gone], times_ms[3] * 1_000) == {}


def test_looking_at_64_partitions_costs_little(kafka: Broker, reading: Read) -> None:
    topic = kafka.create_topic(partitions=64)
    begin_ms = 1_700_000_000_000
    kafka.produce(topic, [Record("v" * 100, n % 64, timestamp_ms=begin_ms + n // 64) for n in range(64 * 50)])
    in_transactions(kafka, topic, [begin_ms] * 2, rows=1, partition=7)
    query = reading(source_of(kafka, topic))
    splits = list(query.splits.values())

    spent_seconds = []
    claimed: list[Any] = []
    for at in (10, 20):
        starting = [
            KafkaSplit(split_id=each.split_id, topic=topic, partition=each.partition, start=at) for each in splits
        ]
        began = time.perf_counter()
        claimed.append(query.planner.claims(starting, (begin_ms + at) * 1_000))
        spent_seconds.append(time.perf_counter() - began)

    assert [len(each) for each in claimed] == [64, 64]
    print(f"the first look: {spent_seconds[0]:.3f} s, at what it brought: {spent_seconds[1]:.3f} s")
    assert spent_seconds[0] < 5.0  # far above the usual time, so only a wait for a timeout exceeds it
    assert spent_seconds[1] < 1.0
