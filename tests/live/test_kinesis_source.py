"""The Kinesis source on a server with the Kinesis protocol: laws, positions, resharding, and expired rows.

The server is moto's, corrected to match the service (`kinesis_service.py`). The tests put numbered rows. The query must
read each row once, and the rows of a partition key in order, through splits, merges and restarts.
"""

from __future__ import annotations

import gc
import random
import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from lowmark.sources import check_source
from lowmark.sources.kinesis import KinesisDataLost, KinesisSource
from lowmark.sources.kinesis.look import ShardLook
from lowmark.sources.kit import asking_planner
from lowmark.sources.planning.planner import PlanningFailed

from tests.servers.kinesis import Kinesis
from tests.servers.local import wait_until
from tests.sources.kinesis.test_kinesis_packets import aggregated
from tests.worlds.kinesis_reading import Reading, Writer, source_of

pytestmark = [pytest.mark.live]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def reading(stack: ExitStack, source: KinesisSource, **options: Any) -> Reading:
    return stack.enter_context(closing(Reading(source, **options)))


def assert_all_once_in_order(read: Reading, writer: Writer) -> None:
    assert sorted(map(int, read.values())) == list(range(len(writer.sent))), "each row once"
    for key, numbers in read.by_key().items():
        assert numbers == sorted(numbers), f"rows of {key} in order"


def test_the_laws_hold_also_in_a_stream_that_was_resharded(kinesis: Kinesis) -> None:
    stream = kinesis.create_stream(2)
    writer = Writer(kinesis, stream)
    for _ in range(10):
        writer.put(8)
    kinesis.split(stream, kinesis.shards(stream)[0])
    writer.put(30)
    checked = check_source(source_of(kinesis, stream), most_rows=28, other_process=True)
    assert (len(checked.splits), checked.found_by_time > 3) == (4, True)
    assert checked.rows > 40


def test_all_rows_are_read_once_in_slices_and_after_restarts(kinesis: Kinesis, stack: ExitStack) -> None:
    stream = kinesis.create_stream(3)
    writer = Writer(kinesis, stream)
    read = reading(stack, source_of(kinesis, stream), max_rows=50)
    for _ in range(4):
        writer.put(100)
        read.until(len(writer.sent) - 20)
        read.restart()
    read.until(len(writer.sent))
    assert not read.batch()
    assert_all_once_in_order(read, writer)
    columns = read.rows[0][1]
    assert columns["stream"][0].as_py() == stream
    assert re.fullmatch("[0-9]{56}", columns["sequenceNumber"][0].as_py()), "no digit is lost"
    assert len(read.rows) > 6, "in more batches than one a round"


def test_a_batch_that_is_read_again_has_the_same_rows_whatever_came_since(kinesis: Kinesis, stack: ExitStack) -> None:
    stream = kinesis.create_stream(2)
    writer = Writer(kinesis, stream)
    writer.put(40)
    read = reading(stack, source_of(kinesis, stream))
    end = read.plan()
    first = read.read(end)
    writer.put(40)
    kinesis.split(stream, kinesis.shards(stream)[0])
    read.restart()
    again = read.read(end)
    assert {name: table.to_pylist() for name, table in again.items()} == {
        name: table.to_pylist() for name, table in first.items()
    }
    read.rows += again.items()
    read.commit(end)
    read.until(80)
    assert_all_once_in_order(read, writer)


def test_five_reshardings_while_it_runs(kinesis: Kinesis, stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking_planner, "FORGET_SECONDS", 0.0)
    rng = random.Random(seed := random.randrange(2**32))
    stream = kinesis.create_stream(2)
    writer = Writer(kinesis, stream)
    read = reading(stack, source_of(kinesis, stream), max_rows=60)
    parents: dict[str, tuple[str, ...]] = {}
    for how in ("split", "merge", "split", "split", "merge"):
        writer.put(rng.randrange(30, 120))
        for _ in range(rng.randrange(4)):
            read.batch()
        there = kinesis.shards(stream, only_open=True)
        if how == "split":
            kinesis.split(stream, rng.choice(there))
        else:
            at = rng.randrange(len(there) - 1)
            kinesis.merge(stream, there[at], there[at + 1])
        writer.put(rng.randrange(30, 120))
    read.until(len(writer.sent))
    wait_until(lambda: read.batch() or len(read.live) == len(kinesis.shards(stream, only_open=True)), "parents end")
    assert_all_once_in_order(read, writer)
    # A child is read only after its parents are finished.
    finished: set[str] = set()
    for planned in read.told:
        parents.update(planned.splits)
        finished.update(set(planned.finished) - planned.rows.keys())  # finished without further rows
        for name in planned.rows:
            live = set(planned.splits) - finished
            assert live.isdisjoint(parents[name]), f"{name} before {parents[name]}, seed {seed}"
        finished.update(planned.finished)
    assert len(finished) == 7
    writer.put(1)
    read.until(len(writer.sent))
    gc.collect()
    looks = [each for each in gc.get_objects() if isinstance(each, ShardLook) and each.base]
    assert len(looks) <= len(read.live), "what was known of finished shards is forgotten"


def test_resharded_twice_while_the_query_is_down(kinesis: Kinesis, stack: ExitStack) -> None:
    stream = kinesis.create_stream(1)
    writer = Writer(kinesis, stream)
    writer.put(50)
    read = reading(stack, source_of(kinesis, stream), max_rows=20)
    read.batch()
    read.close()
    kinesis.split(stream, "shardId-000000000000")
    writer.put(50)
    kinesis.split(stream, "shardId-000000000001")
    kinesis.merge(stream, "shardId-000000000004", "shardId-000000000002")
    writer.put(50)
    read.restart()
    read.until(len(writer.sent))
    assert_all_once_in_order(read, writer)
    wait_until(
        lambda: read.batch() or read.live == {f"{stream}/shardId-00000000000{n}" for n in (3, 5)}, "the last shards"
    )


def test_a_shard_is_not_finished_before_its_children_are_known(kinesis: Kinesis, stack: ExitStack) -> None:
    stream = kinesis.create_stream(1)
    writer = Writer(kinesis, stream)
    writer.put(10)
    read = reading(stack, source_of(kinesis, stream, discover_every="1 hour"))
    read.until(10)
    kinesis.split(stream, "shardId-000000000000")
    writer.put(10)
    for _ in range(3):
        read.batch()
    assert read.live == {f"{stream}/shardId-000000000000"}, "it holds the watermark until they are found"
    read.restart()  # which discovers the children
    read.until(20)
    assert_all_once_in_order(read, writer)


def test_a_parent_that_expired_while_the_query_was_down_is_told_or_passed(kinesis: Kinesis, stack: ExitStack) -> None:
    stream = kinesis.create_stream(1)
    writer = Writer(kinesis, stream)
    writer.put(20)
    read = reading(stack, source_of(kinesis, stream), max_rows=10)
    read.batch()
    taken = len(read.values())
    read.close()
    kinesis.split(stream, "shardId-000000000000")
    kinesis.expire(stream, "shardId-000000000000", 20)
    writer.put(20)
    read.restart()
    with pytest.raises(PlanningFailed, match=r"shardId-000000000000': records from .* are lost: the shard") as lost:
        read.batch()
    assert isinstance(lost.value.__cause__, KinesisDataLost)
    read.restart(source_of(kinesis, stream, on_data_loss="go_on"))
    read.until(taken + 20)
    assert sorted(map(int, read.values())) == [*range(taken), *range(20, 40)]


def test_unread_records_that_expired_while_the_query_was_down_are_told_or_passed(
    kinesis: Kinesis, stack: ExitStack
) -> None:
    stream = kinesis.create_stream(1)
    writer = Writer(kinesis, stream)
    for _ in range(20):
        writer.put(1)
    read = reading(stack, source_of(kinesis, stream), max_rows=10)
    read.batch()
    taken = len(read.values())
    assert 0 < taken < 15
    read.close()
    kinesis.expire(stream, "shardId-000000000000", taken + 5)
    read.restart()
    with pytest.raises(PlanningFailed, match="that record expired: the first that is there is"):
        read.batch()
    read.restart(source_of(kinesis, stream, on_data_loss="go_on"))
    read.until(15)
    assert read.values() == writer.sent[:taken] + writer.sent[taken + 5 :]


def test_records_that_expired_before_a_planned_batch_is_read_again_are_told(kinesis: Kinesis, stack: ExitStack) -> None:
    stream = kinesis.create_stream(1)
    writer = Writer(kinesis, stream)
    writer.put(20)
    read = reading(stack, source_of(kinesis, stream))
    end = read.plan()
    kinesis.expire(stream, "shardId-000000000000", 5)
    with pytest.raises(KinesisDataLost, match="that record expired"):
        read.read(end)
    read.restart(source_of(kinesis, stream, on_data_loss="go_on"))
    read.rows += read.read(end).items()
    assert read.values() == writer.sent[5:]


def test_starts_and_stops(kinesis: Kinesis, stack: ExitStack) -> None:
    stream = kinesis.create_stream(1)
    writer = Writer(kinesis, stream)
    writer.put(10)
    [first] = kinesis.client.get_records(
        ShardIterator=kinesis.client.get_shard_iterator(
            StreamName=stream, ShardId="shardId-000000000000", ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"], Limit=1,
    )["Records"]  # fmt: skip
    # The service gives its time in whole seconds, so "LATEST" begins up to a second earlier.
    begun = datetime.now(timezone.utc) + timedelta(seconds=1.1)
    wait_until(lambda: datetime.now(timezone.utc) > begun, "a second after the rows")
    latest = reading(stack, source_of(kinesis, stream, start="LATEST"))
    wait_until(lambda: latest.batch() or latest.live, "the shard in an offset")
    between = datetime.now(timezone.utc) + timedelta(milliseconds=20)
    wait_until(lambda: datetime.now(timezone.utc) > between, "a moment between")
    writer.put(10)
    latest.until(10)
    assert latest.values() == writer.sent[10:]

    timed = reading(stack, source_of(kinesis, stream, start=between))
    timed.until(10)
    assert timed.values() == writer.sent[10:]

    saved = {(stream, "shardId-000000000000"): first["SequenceNumber"]}
    after = reading(stack, source_of(kinesis, stream, start=saved))
    after.until(19)
    assert after.values() == writer.sent[1:]

    for stop, expected in ((between, writer.sent[:10]), ("LATEST", writer.sent)):
        bounded = reading(stack, source_of(kinesis, stream, stop=stop))
        wait_until(lambda read=bounded: read.batch() or (read.rows and not read.live), "its end")  # type: ignore[misc]
        assert bounded.values() == expected
        if stop == "LATEST":
            continue
        writer.put(1)
        assert not bounded.batch()


def test_discovery_by_names_arn_and_pattern(kinesis: Kinesis, stack: ExitStack) -> None:
    one, other = kinesis.create_stream(1, "orders-eu-1"), kinesis.create_stream(1, "orders-us-1")
    kinesis.create_stream(1, "returns-eu-1")
    arn = kinesis.client.describe_stream_summary(StreamName=one)["StreamDescriptionSummary"]["StreamARN"]
    for stream in (one, other):
        Writer(kinesis, stream).put(3)
    named = reading(stack, source_of(kinesis, one, other))
    named.until(6)
    assert named.live == {f"{name}/shardId-000000000000" for name in (one, other)}
    by_arn = reading(stack, source_of(kinesis, arn))
    by_arn.until(3)
    assert by_arn.live == {f"{one}/shardId-000000000000"}
    assert set(by_arn.rows[0][1]["stream"].to_pylist()) == {one}
    pattern = reading(stack, source_of(kinesis, stream_pattern="orders-.*-1"))
    pattern.until(6)
    assert pattern.live == named.live
    Writer(kinesis, kinesis.create_stream(1, "orders-ap-1")).put(3)
    pattern.until(9)
    # A stream that is no longer named holds nothing up.
    named.restart(source_of(kinesis, one))
    wait_until(lambda: named.batch() or named.live == {f"{one}/shardId-000000000000"}, "the other one over")


def test_an_iterator_that_expired_is_asked_for_anew(kinesis: Kinesis, stack: ExitStack) -> None:
    stream = kinesis.create_stream(1)
    writer = Writer(kinesis, stream)
    writer.put(10)
    read = reading(stack, source_of(kinesis, stream))
    for _ in range(3):
        kinesis.expire_iterator("shardId-000000000000")
        read.until(len(writer.sent))
        writer.put(10)
    end = read.plan()
    kinesis.expire_iterator("shardId-000000000000")
    read.rows += read.read(end).items()
    assert_all_once_in_order(read, writer)


def test_aggregated_records_are_undone_and_what_is_not_of_the_shard_is_left_out(
    kinesis: Kinesis, stack: ExitStack
) -> None:
    stream = kinesis.create_stream(1)
    data, key = aggregated([(f"k{number % 5}", f"{number}".encode(), None) for number in range(50)]), "a"
    kinesis.put(stream, [("plain", b"50"), (key, data), ("plain", b"51"), ("odd", data[:-1] + b"?")])
    names = ["partitionKey", "data", "sequenceNumber", "subSequenceNumber", "approximateArrivalTimestamp"]
    read = reading(stack, source_of(kinesis, stream, columns=names))
    read.until(53)
    rows = [row for _, table in read.rows for row in table.to_pylist()]
    assert [row["data"] for row in rows[:-1]] == [b"50", *(b"%d" % n for n in range(50)), b"51"]
    assert rows[-1]["data"] == data[:-1] + b"?", "what only looks like one stays as it is"
    assert [row["subSequenceNumber"] for row in rows[:3]] == [None, 0, 1]
    assert len({row["sequenceNumber"] for row in rows}) == 4
    assert rows[1]["partitionKey"] == "k0"

    # A producer that does not know of a split packs for the parent, and sends misdirected records again.
    kinesis.split(stream, "shardId-000000000000")
    kinesis.put(stream, [(key, data)])
    wait_until(lambda: read.batch() or len(read.live) == 2, "the children")
    read.batch()
    astray = [row for _, table in read.rows for row in table.to_pylist()][53:]
    assert 0 < len(astray) < 50
    assert len({row["partitionKey"] for row in astray}) < 5


def test_a_stream_without_shards_is_read_when_it_gets_some_also_by_more_readers_than_shards(
    kinesis: Kinesis, stack: ExitStack
) -> None:
    read = reading(stack, source_of(kinesis, stream_pattern="later-[0-9]"), slots=4)
    for _ in range(3):
        assert not read.batch(), "nothing is there, and that is no error"
    assert read.live == set()
    writer = Writer(kinesis, kinesis.create_stream(1, "later-1"))
    writer.put(20)
    read.until(20)
    assert read.live == {"later-1/shardId-000000000000"}
    kinesis.split("later-1", "shardId-000000000000")
    writer.put(20)
    read.until(40)
    assert_all_once_in_order(read, writer)


def test_the_backlog_is_nothing_when_nothing_is_left_and_never_before(kinesis: Kinesis, stack: ExitStack) -> None:
    """The backlog decides whether a shard is idle."""
    stream = kinesis.create_stream(2)
    keys = [each["HashKeyRange"]["StartingHashKey"] for each in kinesis.described(stream)]
    records = [{"PartitionKey": "k", "ExplicitHashKey": keys[0], "Data": b"%d" % n} for n in range(2_000)]
    for begin in range(0, len(records), 100):
        kinesis.client.put_records(StreamName=stream, Records=records[begin : begin + 100])
    read = reading(stack, source_of(kinesis, stream, poll_every="1 millisecond"), max_rows=300)
    full, empty = (f"{stream}/shardId-00000000000{n}" for n in range(2))
    while len(read.values()) < len(records):
        read.batch()
        left = len(records) - len(read.values())
        told = read.told[-1]
        assert (told.backlog_rows[full] == 0) == (left == 0), f"{left} left, and {told.backlog_rows[full]} are said"
        assert told.backlog_rows[empty] == 0
    assert len(read.rows) > 4
    assert read.told[-1].metrics["millis_behind_latest"] == 0
