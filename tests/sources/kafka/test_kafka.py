"""The Kafka source without a broker: every role against a scripted client or consumer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, Message, TopicPartition
from lowmark.sources import SplitEnd, SplitsAddition, SplitsRemoval
from lowmark.sources.api import EARLIEST_US
from lowmark.sources.kafka import (
    InvalidUtf8,
    KafkaDataLost,
    KafkaOffsets,
    KafkaSource,
    KafkaSplit,
    KafkaUnavailable,
)
from lowmark.sources.kafka.client import Described, KafkaClient
from lowmark.sources.kafka.columns import KafkaColumns
from lowmark.sources.kafka.consumers import ConsumerCache, range_properties
from lowmark.sources.kafka.enumerator import (
    KafkaEnumeratorState,
)
from lowmark.sources.kafka.first_rows import LOOK_SECONDS, RETRY_SECONDS, FirstRow, FirstRows
from lowmark.sources.kafka.planner import DOUBTS, KafkaPlanner
from lowmark.sources.kafka.reader import BATCH_ROWS, KafkaSplitReader
from lowmark.sources.kafka.settings import KafkaSettings
from lowmark.sources.kafka.topics import Topic
from lowmark.sources.kit.asking_planner import FORGET_SECONDS

SECOND = 1_000_000
SETTINGS = KafkaSettings("b:9092", {}, 60.0, read_committed=True)
PLAIN: dict[str, Any] = {"bootstrap_servers": "b:9092", "topics": ["orders"]}
SPARK = {"kafka.bootstrap.servers": "b:9092", "subscribe": "orders"}
EARLIEST, LATEST = KafkaOffsets.earliest(), KafkaOffsets.latest()
NEW = KafkaEnumeratorState()


def split(
    partition: int = 0, start: int = 0, stop: int | None = None, topic: str = "orders", **more: Any
) -> KafkaSplit:
    more = {"split_id": f"{topic}/{partition}", "topic_id": "id-1", **more}
    return KafkaSplit(topic=topic, partition=partition, start=start, stop=stop, **more)


@pytest.fixture(autouse=True)
def _scripts_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowmark.sources.kafka.reader.BLOCK_SECONDS", 0.05)


# -- columns --------------------------------------------------------------------------------------------------------


def message(
    offset: int, value: bytes | None = b"v", *, partition: int = 0, topic: str = "orders", **more: Any
) -> Message:
    given: dict[str, Any] = {"timestamp": (1, 1_000 + offset), **more}
    return Message(topic=topic, partition=partition, offset=offset, value=value, **given)


def test_records_without_a_time_and_beyond_all_times() -> None:
    columns = KafkaColumns(("timestamp", "timestampType"))
    last_ms = (2**63 - 1) // 1_000

    times, types = columns.convert(
        [message(0, timestamp=(0, -1)), message(1, timestamp=(2, 2**62)), message(2, timestamp=(1, 0))]
    )

    assert times.type == pa.timestamp("us", "UTC")
    assert times.cast(pa.int64()).to_pylist() == [None, last_ms * 1_000, 0]
    assert types.to_pylist() == [-1, 1, 0]


def test_headers_of_some_records() -> None:
    columns = KafkaColumns(("headers",))

    [some] = columns.convert([message(0), message(1, headers=[("a", b"1"), ("b", None)]), message(2)])
    [none] = columns.convert([message(0), message(1)])

    assert some.to_pylist() == [None, [{"key": "a", "value": b"1"}, {"key": "b", "value": None}], None]
    assert none.to_pylist() == [None, None]
    assert some.type == none.type == columns.schema.field("headers").type


# -- the reader -----------------------------------------------------------------------------------------------------


class ScriptedConsumer:
    """Gives a test's messages chunk by chunk, and keeps its requests."""

    def __init__(self, chunks: Sequence[Sequence[Message]], watermarks: tuple[int, int] | None = None) -> None:
        self.chunks, self.watermarks = list(chunks), watermarks
        self.calls: list[tuple[str, object]] = []

    def consume(self, count: int, timeout: float) -> list[Message]:
        assert timeout <= 1.0
        return list(self.chunks.pop(0)) if self.chunks and count else []

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        """As librdkafka answers if the question for the begin of the partition failed: without an error."""
        return 10**9, 10**9

    def __getattr__(self, name: str) -> Callable[..., None]:
        def called(partitions: Sequence[TopicPartition] = ()) -> None:
            self.calls.append((name, [(each.topic, each.partition, each.offset) for each in partitions]))

        return called


class ScriptedCache(ConsumerCache):
    def __init__(self, consumer: ScriptedConsumer) -> None:
        super().__init__()
        self.scripted, self.given_back, self.discarded = consumer, 0, 0
        self.client = ScriptedClient(**{name: dict.fromkeys(range(99), (0, 10**9)) for name in ("orders", "returns")})
        if consumer.watermarks is not None:
            self.client.there["orders"] = {0: consumer.watermarks}
        self.properties: Mapping[str, Any] = {}

    def take(self, settings: KafkaSettings, properties: Mapping[str, Any]) -> Any:
        from types import SimpleNamespace

        self.properties = properties
        errors = SimpleNamespace(said=None, refused=None)
        return SimpleNamespace(consumer=self.scripted, client=self.client, errors=errors)

    def discard(self, kept: Any) -> None:
        self.discarded += 1

    def give_back(self, kept: Any) -> None:
        self.given_back += 1


def event(code: int, partition: int = 0, offset: int = 0, topic: str = "orders") -> Message:
    return Message(topic=topic, partition=partition, offset=offset, error=KafkaError(code))


def eof(partition: int, offset: int) -> Message:
    return event(KafkaError._PARTITION_EOF, partition, offset)


class Clock:
    def __init__(self, step: float = 0.01) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def reader_of(
    consumer: ScriptedConsumer,
    *splits: KafkaSplit,
    go_on: bool = False,
    step: float = 0.01,
    columns: Sequence[str] = ("offset",),
) -> KafkaSplitReader:
    reader = KafkaSplitReader(
        SETTINGS, KafkaColumns(columns), go_on=go_on, consumers=ScriptedCache(consumer), now_seconds=Clock(step)
    )
    reader._woken.wait = lambda timeout=None: reader._woken.is_set()  # type: ignore[method-assign]  # the clock goes on by itself
    reader.handle_splits_changes(SplitsAddition(splits))
    return reader


def read(reader: KafkaSplitReader, fetches: int = 5) -> tuple[dict[str, list[int]], list[str], dict[str, int]]:
    """Return (offsets by split, finished splits in order, last position by split) of some fetches."""
    offsets: dict[str, list[int]] = {}
    finished: list[str] = []
    positions: dict[str, int] = {}
    for _ in range(fetches):
        fetched = reader.fetch()
        for part in fetched.batches:
            offsets.setdefault(part.split_id, []).extend(int(n) for n in part.rows["offset"].to_numpy())
            positions[part.split_id] = part.position
        finished += sorted(fetched.finished_splits)
    return offsets, finished, positions


def test_a_range_ends_before_its_stop_whatever_comes_behind_it() -> None:
    consumer = ScriptedConsumer([[message(n) for n in range(2, 9)], [message(n) for n in range(9, 12)]])

    offsets, finished, positions = read(reader_of(consumer, split(start=2, stop=5)))

    assert (offsets, finished, positions) == ({"orders/0": [2, 3, 4]}, ["orders/0"], {"orders/0": 5})


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([[message(3), message(9)]], [3]),  # a gap across the stop
        ([[message(3)], [message(20)]], [3]),
        ([[message(3)], [eof(0, 8)]], [3]),  # markers at the end
        ([[message(3)], [eof(0, 12)]], [3]),
        ([[eof(0, 8)]], []),
        ([[message(7)]], [7]),  # the last offset of the range
        ([[message(8)]], []),
    ],
)
def test_a_range_whose_last_offset_never_comes(chunks: list[list[Message]], expected: list[int]) -> None:
    offsets, finished, positions = read(reader_of(ScriptedConsumer(chunks), split(start=2, stop=8)), fetches=1)

    assert (offsets.get("orders/0", []), finished) == (expected, ["orders/0"])
    assert positions.get("orders/0", 8) == 8


def test_an_end_of_the_partition_before_the_stop_is_not_the_end_of_the_range() -> None:
    consumer = ScriptedConsumer([[message(3), eof(0, 4)], [], [message(4), message(5)]])

    assert read(reader_of(consumer, split(stop=6)))[:2] == ({"orders/0": [3, 4, 5]}, ["orders/0"])


def test_ranges_of_several_partitions_and_topics_that_come_mixed() -> None:
    a, b, c = split(0, stop=4), split(1, stop=3), split(0, stop=2, topic="returns")
    # Records of one partition may come in several runs, also after its stop.
    came = [
        *[("orders", 0, 0), ("orders", 0, 1), ("returns", 0, 0), ("returns", 0, 1), ("returns", 0, 2)],
        *[("orders", 1, 0), ("orders", 0, 2), ("orders", 0, 3), ("orders", 0, 4), ("orders", 1, 1)],
        *[("orders", 1, 2), ("orders", 0, 5)],
    ]
    chunk = [message(offset, partition=partition, topic=topic) for topic, partition, offset in came]

    offsets, finished, positions = read(reader_of(ScriptedConsumer([chunk]), a, b, c))

    assert offsets == {"orders/0": [0, 1, 2, 3], "orders/1": [0, 1, 2], "returns/0": [0, 1]}
    assert sorted(finished) == ["orders/0", "orders/1", "returns/0"]
    assert positions == {"orders/0": 4, "orders/1": 3, "returns/0": 2}


def test_a_split_that_was_dropped_gives_no_rows() -> None:
    a, b = split(0, stop=9), split(1, stop=9)
    consumer = ScriptedConsumer([[message(0), message(0, partition=1)]])
    reader = reader_of(consumer, a, b)
    reader.handle_splits_changes(SplitsRemoval((a, split(7))))

    assert read(reader, 2)[0] == {"orders/1": [0]}


@pytest.mark.parametrize("finished", [True, False])
def test_a_reader_without_splits_reads_a_partition_that_it_had_before(finished: bool) -> None:
    """librdkafka refuses to add a partition to an assignment that still has it."""
    a = split(0, stop=1)
    consumer = ScriptedConsumer([[message(0)]] if finished else [])
    reader = reader_of(consumer, a, columns=["offset"])
    if finished:
        assert read(reader, 1)[0] == {"orders/0": [0]}
    else:
        reader.handle_splits_changes(SplitsRemoval((a,)))
    consumer.chunks.append([message(1)])
    reader.handle_splits_changes(SplitsAddition((split(0, start=1, stop=2),)))

    assert read(reader)[0] == {"orders/0": [1]}
    assert consumer.calls == [("assign", [("orders", 0, 0)]), ("assign", [("orders", 0, 1)])]


def test_an_empty_range_is_finished_and_asks_nobody() -> None:
    reader = reader_of(consumer := ScriptedConsumer([]), split(start=0, stop=0), split(1, start=5, stop=5))

    assert read(reader)[:2] == ({}, ["orders/0", "orders/1"])
    assert consumer.calls == []


@pytest.mark.slow
def test_batches_are_bounded() -> None:
    chunks = [[message(n) for n in range(at, at + 2_000)] for at in range(0, 200_000, 2_000)]
    reader = reader_of(ScriptedConsumer(chunks), split(stop=200_000), step=0.0)

    sizes = [sum(part.rows.num_rows for part in reader.fetch().batches) for _ in range(4)]

    assert sum(sizes) == 200_000
    assert max(sizes) < BATCH_ROWS + 2_000


def test_wide_rows_make_batches_of_fewer_rows() -> None:
    chunks = [[message(n, b"x" * 100_000) for n in range(at, at + 50)] for at in range(0, 200, 50)]
    reader = reader_of(ScriptedConsumer(chunks), split(stop=200), columns=["value", "offset"], step=0.0)

    assert [part.rows.num_rows for part in reader.fetch().batches] == [100]


def test_a_string_that_is_none_is_named() -> None:
    reader = KafkaSplitReader(
        SETTINGS,
        KafkaColumns(("value",), value_type="string"),
        go_on=False,
        consumers=ScriptedCache(ScriptedConsumer([[message(4), message(5, b"\xff")]])),
    )
    reader.handle_splits_changes(SplitsAddition((split(stop=9),)))

    with pytest.raises(InvalidUtf8, match="offset 5 of topic 'orders', partition 0: its value"):
        reader.fetch()


def test_a_record_behind_the_stop_of_its_range_need_not_be_text() -> None:
    came = [message(0, b"a"), message(1, b"\xff"), message(0, b"b", partition=1), message(1, b"c", partition=1)]
    reader = KafkaSplitReader(
        SETTINGS,
        KafkaColumns(("value",), value_type="string"),
        go_on=False,
        consumers=ScriptedCache(ScriptedConsumer([came])),
    )
    reader.handle_splits_changes(SplitsAddition((split(0, stop=1), split(1, stop=2))))

    values = {part.split_id: part.rows["value"].to_pylist() for part in reader.fetch().batches}

    assert values == {"orders/0": ["a"], "orders/1": ["b", "c"]}


OUT_OF_RANGE = KafkaError._AUTO_OFFSET_RESET


@pytest.mark.parametrize(
    ("watermarks", "lost", "expected", "sought"),
    [
        ((4, 20), "offsets 2 to 3 are lost: they were deleted", [4, 5, 6, 7], 4),
        ((15, 20), "offsets 2 to 7 are lost: they were deleted", [], None),
    ],
)
def test_records_that_are_gone(watermarks: tuple[int, int], lost: str, expected: list[int], sought: int | None) -> None:
    chunks = [[event(OUT_OF_RANGE)], [message(n) for n in range(4, 9)]]

    with pytest.raises(KafkaDataLost, match=lost):
        reader_of(ScriptedConsumer(chunks, watermarks), split(start=2, stop=8)).fetch()
    lenient = reader_of(consumer := ScriptedConsumer(chunks, watermarks), split(start=2, stop=8), go_on=True)
    offsets, finished, _ = read(lenient)

    assert (offsets.get("orders/0", []), finished) == (expected, ["orders/0"])
    assert lenient.metrics.values()["data_losses"] == 1
    if sought is not None:
        assert ("incremental_assign", [("orders", 0, sought)]) in consumer.calls


def test_a_position_of_which_no_broker_says_whether_it_is_in_range_is_asked_for_again() -> None:
    consumer = ScriptedConsumer([[event(OUT_OF_RANGE)], [message(2), message(3)]])
    reader = reader_of(consumer, split(start=2, stop=4))
    cast("ScriptedCache", reader._consumers).client.silent.add(("orders", 0))

    assert read(reader)[0] == {"orders/0": [2, 3]}
    assert ("incremental_assign", [("orders", 0, 2)]) in consumer.calls


def test_an_error_that_waiting_does_not_cure_is_raised_and_others_are_waited_for() -> None:
    denied = ScriptedConsumer([[event(KafkaError.TOPIC_AUTHORIZATION_FAILED)]])
    away = ScriptedConsumer([[event(KafkaError._TRANSPORT)], [message(0)]])

    with pytest.raises(KafkaUnavailable, match="cannot read split 'orders/0' from offset 0 to 1"):
        reader_of(denied, split(stop=1)).fetch()
    assert read(reader_of(away, split(stop=1)))[1] == ["orders/0"]


def test_a_closed_reader_gives_its_consumer_back_once() -> None:
    cache = ScriptedCache(ScriptedConsumer([]))
    reader = KafkaSplitReader(SETTINGS, KafkaColumns(), go_on=False, consumers=cache)
    reader.handle_splits_changes(SplitsAddition((split(stop=9),)))

    reader.close()
    reader.close()

    assert cache.given_back == 1


def test_fetches_fit_the_range_and_users_have_the_last_word() -> None:
    small, whole = (range_properties(SETTINGS, rows, 100.0) for rows in ([100] * 64, [10**9, 5]))
    cache = ScriptedCache(ScriptedConsumer([]))
    reader = KafkaSplitReader(SETTINGS, KafkaColumns(), go_on=False, consumers=cache)
    reader.handle_splits_changes(SplitsAddition((split(stop=20),)))
    users = KafkaSettings("b:1", {"fetch.message.max.bytes": 7}, 1.0, read_committed=False)

    assert (small["fetch.message.max.bytes"], small["queued.min.messages"]) == (16 << 10, 16_000)
    assert (whole["fetch.message.max.bytes"], whole["queued.min.messages"]) == (1 << 20, 100_000)
    assert cache.properties["fetch.message.max.bytes"] == 16 << 10
    assert (cache.properties["enable.auto.commit"], cache.properties["auto.offset.reset"]) == (False, "error")
    assert users.properties(small)["fetch.message.max.bytes"] == 7


# -- the planner ----------------------------------------------------------------------------------------------------


class ScriptedClient(KafkaClient):
    """A client with topics' first and last offsets that answers as brokers do."""

    def __init__(self, **topics: dict[int, tuple[int, int]]) -> None:
        self.pauses: list[float] = []
        super().__init__(SETTINGS, wait=self.pauses.append)
        self.there, self.ids = topics, dict.fromkeys(topics, "id-1")
        self.silent: set[tuple[str, int]] = set()
        self.silent_topics: set[str] = set()
        self.group: dict[tuple[str, int], int] = {}
        self.requests = 0

    def describe(
        self, names: Sequence[str], action: str = "", *, patience_seconds: float | None = None
    ) -> Callable[[], Described]:
        silent = self.silent_topics.intersection(names)
        failed: dict[str, Exception] = dict.fromkeys(silent, TimeoutError("no controller"))
        return lambda: (self.topics([name for name in names if name not in silent]), failed)

    def topics(self, names: Sequence[str], action: str = "") -> dict[str, Topic]:
        return {name: Topic(name, self.ids[name], tuple(self.there[name])) for name in names if name in self.there}

    def positions(
        self,
        wanted: Any,
        action: str,
        *,
        patience_seconds: float | None = None,
        stable: bool = True,
    ) -> Any:
        self.requests += 1
        return [
            (
                {key: self._position(key, spec) for key, spec in asked.items() if key not in self.silent},
                {key: TimeoutError("no leader") for key in asked if key in self.silent},
            )
            for asked in wanted
        ]

    def _position(self, key: tuple[str, int], spec: KafkaOffsets) -> int | None:
        begin, end = self.there.get(key[0], {}).get(key[1], (None, None))
        if begin is None or end is None:
            return None
        if spec.kind == "timestamp":  # the record at offset n is of second n
            assert spec.time_us is not None
            at = max(begin, -(-spec.time_us // 1_000_000))
            return at if at < end else None
        return begin if spec.kind == "earliest" else end

    def committed(self, partitions: Any) -> dict[tuple[str, int], int | None]:
        return {each: self.group.get(each) for each in partitions}


class Tails(ScriptedConsumer):
    """A consumer for peeks, scripted by partition; by default it gives a row at the requested offset.

    Attributes:
        script: partition -> function from the requested offset to messages.
        peeks: partition -> offset, for each assignment.
    """

    def __init__(self, script: Mapping[int, Callable[[int], list[Message]]] | None = None) -> None:
        super().__init__([])
        self.script = dict(script or {})
        self.peeks: list[dict[int, int]] = []

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self.peeks.append({each.partition: each.offset for each in partitions})
        for each in partitions:
            number = each.partition
            makes = self.script.get(number, lambda at, number=number: [message(at, partition=number)])
            self.chunks.append(makes(each.offset))


def planner_of(client: ScriptedClient, *, go_on: bool = False, tails: Tails | None = None, **more: Any) -> KafkaPlanner:
    cache = ScriptedCache(tails if tails is not None else Tails())
    return KafkaPlanner(SETTINGS, go_on=go_on, client=client, consumers=cache, **more)


def test_ends_of_all_partitions_by_one_question() -> None:
    client = ScriptedClient(orders={0: (0, 10), 1: (0, 0), 2: (3, 7)})

    ends = planner_of(client).latest(
        [
            split(0, 4),
            split(1),
            split(2, 3, stop=5),
            split(0, 0, stop=0, split_id="x"),
            split(2, 1, stop=1, split_id="y"),
        ]
    )

    assert ends == {
        "orders/0": SplitEnd(10, rows=6),
        "orders/1": SplitEnd(0, rows=0),
        "orders/2": SplitEnd(5, rows=2, finished=True),
        "x": SplitEnd(0, rows=0, finished=True),
        "y": SplitEnd(1, rows=0, finished=True),  # deletions after its stop do not concern it
    }
    assert (client.requests, planner_of(client).latest([])) == (1, {})


def test_a_stop_that_is_not_reached_is_no_end() -> None:
    ends = planner_of(ScriptedClient(orders={0: (0, 10)})).latest([split(0, stop=11)])

    assert ends["orders/0"] == SplitEnd(10, rows=10, finished=False)


@pytest.mark.parametrize(
    ("there", "start", "text", "end"),
    [
        ({0: (4, 9)}, 0, "offsets 0 to 3 are lost: they were deleted", SplitEnd(9, rows=5)),
        ({0: (9, 9)}, 3, "offsets 3 to 8 are lost", SplitEnd(9, rows=0)),
        ({}, 3, "the topic or the partition was deleted", SplitEnd(3, rows=0, finished=True)),
    ],
)
def test_lost_data_is_an_error_or_gone_on_from(there: Any, start: int, text: str, end: SplitEnd) -> None:
    lenient = planner_of(ScriptedClient(orders=there), go_on=True)

    with pytest.raises(KafkaDataLost, match=text):
        planner_of(ScriptedClient(orders=there)).latest([split(0, start)])

    assert lenient.latest([split(0, start)]) == lenient.latest([split(0, start)]) == {"orders/0": end}
    assert lenient.metrics.values()["data_losses"] == 1


def test_a_topic_of_another_id_is_another_topic_even_if_it_is_longer() -> None:
    client = ScriptedClient(orders={0: (0, 100)})
    client.ids["orders"] = "id-2"

    for start in (5, 500):  # also if the new topic is shorter than what was read of the old one
        with pytest.raises(KafkaDataLost, match="created anew"):
            planner_of(client).latest([split(0, start)])
    assert planner_of(client, go_on=True).latest([split(0, 5)])["orders/0"] == SplitEnd(5, rows=0, finished=True)
    assert planner_of(client).latest([split(0, 5, topic_id="")])["orders/0"].position == 100


def test_a_partition_that_is_not_there_is_asked_for_again_before_it_counts_as_deleted() -> None:
    client = ScriptedClient()

    with pytest.raises(KafkaDataLost):
        planner_of(client).latest([split()])
    assert (len(client.pauses), client.requests) == (DOUBTS, DOUBTS + 1)


def test_a_partition_that_a_broker_which_is_cut_off_does_not_know_is_asked_for_by_a_new_client() -> None:
    client = ScriptedClient(orders={})
    renewed = client.renew

    def renew() -> None:
        renewed()
        client.there["orders"] = {0: (0, 9)}

    client.renew = renew  # type: ignore[method-assign]  # the new client asks another broker

    assert planner_of(client).latest([split(start=3, stop=6)]) == {"orders/0": SplitEnd(6, rows=3, finished=True)}


def test_a_partition_that_ends_before_what_was_read_has_the_allowed_time_to_be_longer_again() -> None:
    """A broker that is cut off from its controller still answers as leader."""
    client = ScriptedClient(orders={0: (0, 2), 1: (0, 5)})
    planner = planner_of(client, now_seconds=(clock := StillClock()))
    short = split(start=3, stop=6)

    answers = [planner.latest([short, split(1)])]
    trouble = planner.trouble()
    client.there["orders"][0] = (0, 4)
    answers.append(planner.latest([short, split(1)]))

    other = {"orders/1": SplitEnd(5, rows=5)}
    assert answers == [other, other | {"orders/0": SplitEnd(4, rows=1)}]
    assert trouble is not None
    assert "1 of 2 partitions" in trouble
    assert trouble.endswith("such as orders/0: it ends at offset 2, and is read from offset 3 on")
    assert planner.trouble() is None

    client.there["orders"][0] = (0, 2)
    planner.latest([short])
    clock.now += SETTINGS.give_up_seconds
    with pytest.raises(
        KafkaDataLost, match=r"offsets 3 to 5 are lost: .* ends at offset 2 now, .* below 6 is not read"
    ):
        planner.latest([short])


def test_a_partition_that_stays_shorter_is_gone_on_with_from_where_it_was_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = ScriptedClient(orders={0: (0, 9)})
    planner = planner_of(client, go_on=True, now_seconds=(clock := StillClock()))

    assert planner.latest([split(start=12)]) == {}
    clock.now += SETTINGS.give_up_seconds
    assert [planner.latest([split(start=12)]) for _ in range(2)] == 2 * [{"orders/0": SplitEnd(12, rows=0)}]
    assert (planner.metrics.values()["data_losses"], planner.metrics.values()["lost_offsets"]) == (1, 3)
    assert (
        "offsets 9 to 11 are lost: the partition ends at offset 9 now, and is read from offset 12 on; a later record "
        "with an offset below 12 is not read. Reading goes on without them"
    ) in caplog.text

    client.there["orders"][0] = (0, 15)
    assert planner.latest([split(start=12)]) == {"orders/0": SplitEnd(15, rows=3)}


def test_the_hint_of_a_loss_is_about_its_cause() -> None:
    hints = {}
    for why, there in {"deleted": (5, 9), "shorter": (0, 2), "gone": None}.items():
        client = ScriptedClient(orders={} if there is None else {0: there})
        planner = planner_of(client, now_seconds=(clock := StillClock()))
        if why == "shorter":
            planner.latest([split(start=3)])
            clock.now += SETTINGS.give_up_seconds
        with pytest.raises(KafkaDataLost) as lost:
            planner.latest([split(start=3)])
        hints[why] = str(lost.value).partition("next time, ")[2]

    assert hints["deleted"].startswith("give the topic a longer retention")
    # An offset of `start`, or of a commit to a topic that was made anew, may lie behind the end, too.
    assert hints["shorter"].startswith("begin at an offset that the partition has")
    assert hints["shorter"].endswith("become a leader (unclean.leader.election.enable=false).")
    assert hints["gone"].startswith("delete a topic only after")


def test_a_partition_without_a_leader_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    client = ScriptedClient(orders={0: (0, 5), 1: (0, 5)})
    client.silent.add(("orders", 1))
    planner = planner_of(client)

    assert list(planner.latest([split(0), split(1)])) == ["orders/0"]
    assert "such as orders/1: no leader" in caplog.text
    assert planner.find_time([split(0), split(1)], 0) == {"orders/0": 0}
    assert planner.metrics.values()["unanswered_partitions"] == 2


def test_a_topic_about_which_brokers_are_silent_is_not_taken_for_deleted() -> None:
    client = ScriptedClient(orders={0: (0, 5)}, events={0: (0, 5)})
    planner, splits = planner_of(client), [split(0), split(0, topic="events", split_id="events/0")]

    client.silent_topics = {"events"}
    assert list(planner.latest(splits)) == ["orders/0"]
    client.silent_topics = {"events", "orders"}
    assert planner.latest(splits) == {}
    assert "gives no answer for 2 of 2 partitions" in str(planner.trouble())
    client.silent_topics.clear()
    assert list(planner.latest(splits)) == ["orders/0", "events/0"]
    assert client.pauses == []


def test_partitions_that_stay_silent_are_told_in_the_log_once_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    client, clock = ScriptedClient(orders={0: (0, 5), 1: (0, 5)}), StillClock()
    client.silent.add(("orders", 1))
    planner = planner_of(client, now_seconds=clock)
    for _ in range(11):  # a plan every two seconds, from 0 to 20
        planner.latest([split(0), split(1)])
        clock.now += 2.0

    lines = [line for line in caplog.messages if "partition cannot be read" in line]
    assert len(lines) == 3, "at 0, 10 and 20 seconds"
    assert "gives no answer for 1 of 2 partitions" in str(planner.trouble())
    client.silent.clear()
    planner.latest([split(0), split(1)])
    assert planner.trouble() is None


def test_brokers_that_stay_silent_are_told_while_they_are_asked_and_given_up_after_the_allowed_time() -> None:
    client, clock = ScriptedClient(orders={0: (0, 5), 1: (0, 5)}), StillClock()
    client.silent |= {("orders", 0), ("orders", 1)}
    planner = planner_of(client, now_seconds=clock)
    splits, given_up = [split(0), split(1)], SETTINGS.give_up_seconds

    for _ in range(int(given_up / 2)):  # a plan every two seconds, up to the allowed time
        assert planner.latest(splits) == {}
        assert "Kafka at b:9092 gives no answer for 2 of 2 partitions" in str(planner.trouble())
        clock.now += 2.0
    client.silent.remove(("orders", 1))
    assert list(planner.latest(splits)) == ["orders/1"]  # the allowed time begins anew
    client.silent.add(("orders", 1))
    assert planner.latest(splits) == {}
    for _ in range(int(given_up / 2) - 1):
        clock.now += 2.0
        assert planner.latest(splits) == {}
    clock.now += 2.0
    with pytest.raises(KafkaUnavailable, match=r"cannot look up where 2 partitions end, tried for 60 s: no leader"):
        planner.latest(splits)


def test_times_are_found_or_not_there_yet() -> None:
    planner = planner_of(ScriptedClient(orders={0: (0, 10), 1: (0, 3)}))

    assert planner.find_time([split(0), split(1)], 4_000_001) == {"orders/0": 5, "orders/1": None}
    assert planner.find_time([], 0) == {}
    assert KafkaSource(**PLAIN, columns=["value"]).create_planner().find_time([split()], 0) is None


# -- claims of times ----------------------------------------------------------------------------------------


class StillClock(Clock):
    """A clock that tests advance, and that advances a little at each reading, to end waits."""

    def __init__(self) -> None:
        super().__init__(step=0.001)


def row(offset: int, *, second: float | None = None, partition: int = 0, **more: Any) -> Message:
    """Return a row; by default a row at offset n has second n."""
    at_ms = round((offset if second is None else second) * 1_000)
    return message(offset, partition=partition, timestamp=(1, at_ms), **more)


def claimed(planner: KafkaPlanner, *splits: KafkaSplit, second: int = 4, until: int | None = None) -> list[str]:
    claims = planner.claims(splits, second * SECOND, None if until is None else until * SECOND)
    assert set(claims.values()) <= {second * SECOND}
    return sorted(claims)


NOBODY: list[str] = []


@pytest.mark.parametrize(
    ("comes", "sure"),
    [
        (lambda at: [row(at)], True),
        (lambda at: [row(at), row(at + 1, second=1)], True),
        (lambda at: [row(at, second=3.999)], False),
        (lambda at: [row(at - 1), row(at)], True),  # a batch that begins before the offset
        (lambda at: [eof(0, at), row(at)], True),  # a lagging replica
        (lambda at: [event(KafkaError._TRANSPORT), row(at)], True),
        (lambda at: [row(at + 2)], True),  # a marker or compaction, then a row with the time
        (lambda at: [row(at + 2, second=3)], False),  # a marker that hides rows
        (lambda at: [eof(0, at + 1)], False),  # a marker at the end
        (lambda at: [eof(0, at + 7), row(at + 7)], True),  # then a row that arrived later
        (lambda at: [message(at, timestamp=(0, -1))], False),
        (lambda at: [row(at, topic="others"), eof(0, at + 1)], False),
        (lambda at: [row(at, second=1_000)], True),
        (lambda at: [row(at, second=1_001)], False),  # a bad clock
        (lambda at: [event(KafkaError.TOPIC_AUTHORIZATION_FAILED)], False),
        (lambda at: [event(KafkaError._AUTO_OFFSET_RESET)], False),
        (lambda at: [], False),
    ],
)
def test_a_claim_rests_on_the_first_row_that_is_delivered(comes: Callable[[int], list[Message]], sure: bool) -> None:
    tails = Tails({0: comes, 1: lambda at: [row(at, partition=1)]})
    planner = planner_of(ScriptedClient(), tails=tails, now_seconds=StillClock())

    assert claimed(planner, split(0, 4), split(1, 4), until=1_000) == (["orders/0"] if sure else []) + ["orders/1"]
    assert tails.peeks == [{0: 4, 1: 4}]


def test_what_a_look_brought_is_not_looked_at_again() -> None:
    tails = Tails({0: lambda at: [row(n) for n in (4, 5, 7, 8)]})
    planner = planner_of(ScriptedClient(), tails=tails, now_seconds=StillClock())

    assert claimed(planner, split(0, 4)) == ["orders/0"]
    for start, second, sure in ((5, 5, True), (6, 7, True), (6, 8, False), (8, 8, True), (8, 9, False)):
        assert bool(claimed(planner, split(0, start), second=second)) is sure
    assert tails.peeks == [{0: 4}]
    assert claimed(planner, split(0, 3)) == ["orders/0"], "before it is not known"
    claimed(planner, split(0, 9))
    assert tails.peeks == [{0: 4}, {0: 3}, {0: 9}]


def test_an_offset_that_hides_older_rows_is_no_answer_any_more(caplog: pytest.LogCaptureFixture) -> None:
    client = ScriptedClient(orders=dict.fromkeys(range(25), (0, 100)))
    old = {n: lambda at, n=n: [row(at + 1, second=1, partition=n)] for n in range(25)}
    planner = planner_of(client, tails=(tails := Tails(old)), now_seconds=StillClock())
    splits = [split(n, 4) for n in range(25)]
    every = {each.split_id: 4 for each in splits}
    assert planner.find_time(splits, 4 * SECOND) == every

    with caplog.at_level(logging.INFO, "lowmark"):
        assert [claimed(planner, *splits) for _ in range(2)] == [NOBODY] * 2

    assert planner.find_time(splits, 4 * SECOND) == {}
    assert planner.find_time(splits, 5 * SECOND) == {each.split_id: 5 for each in splits}
    begun = [split(n, 5) for n in range(25)]
    assert planner.find_time(begun, 4 * SECOND) == every, "before the start it says nothing of what comes"
    assert planner.metrics.values()["transactional_partitions"] == 25
    [line] = [record.getMessage() for record in caplog.records if "hold transactions" in record.getMessage()]
    assert "25 partitions hold transactions" in line
    assert "orders/0, orders/1, " in line
    assert "and 5 more" in line
    assert len(tails.peeks) == 1


def test_nobody_is_waited_for_long_and_nobody_often(caplog: pytest.LogCaptureFixture) -> None:
    clock = StillClock()
    tails = Tails({0: lambda at: [], 1: lambda at: [row(at, partition=1)]})
    planner = planner_of(ScriptedClient(), tails=tails, now_seconds=clock)
    splits, began = (split(0, 4), split(1, 4)), clock.now

    assert claimed(planner, *splits) == ["orders/1"]
    assert LOOK_SECONDS <= clock.now - began < 2 * LOOK_SECONDS
    assert "such as orders/0: what lies at offset 4 could not be looked at within 2 s" in caplog.text
    assert planner.metrics.values()["unanswered_partitions"] == 1
    assert (claimed(planner, *splits), len(tails.peeks)) == (["orders/1"], 1)
    tails.script[0] = lambda at: [row(at)]
    clock.now += RETRY_SECONDS
    assert (claimed(planner, *splits), tails.peeks[1:]) == (["orders/0", "orders/1"], [{0: 4}])


def test_of_partitions_that_are_read_no_more_nothing_is_kept() -> None:
    """A pattern may find a new topic every day for years."""
    clock = StillClock()
    tails = Tails({0: lambda at: [row(at + 1, second=1)], 1: lambda at: [row(at, partition=1)]})
    planner = planner_of(ScriptedClient(orders={0: (0, 10), 1: (0, 10)}), tails=tails, now_seconds=clock)
    gone, stays = split(0, 4), split(1, 4)
    planner.latest([gone, stays])
    for _ in range(2):
        assert [each for each in (claimed(planner, gone), claimed(planner, stays)) if each] == [["orders/1"]]
    assert planner.metrics.values()["transactional_partitions"] == 1
    looks = len(tails.peeks)
    for _ in range(3):
        clock.now += FORGET_SECONDS / 2
        planner.latest([stays])

    assert planner.metrics.values()["transactional_partitions"] == 0
    assert claimed(planner, stays) == ["orders/1"]
    assert len(tails.peeks) == looks, "what is read on is remembered"
    claimed(planner, gone)
    assert tails.peeks[looks:] == [{0: 4}]


def test_an_error_that_waiting_does_not_cure_is_not_waited_for() -> None:
    clock = StillClock()
    refused = event(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    planner = planner_of(ScriptedClient(), tails=Tails({0: lambda at: [refused]}), now_seconds=clock)

    assert claimed(planner, split(0, 4)) == []
    assert clock.now < LOOK_SECONDS / 2


def test_partitions_that_have_answered_do_not_hold_up_others() -> None:
    tails = Tails({0: lambda at: [row(at)], 1: lambda at: [row(at, partition=1)]})

    claimed(planner_of(ScriptedClient(), tails=tails), split(0, 4), split(1, 4))

    unassigned = [[number for _, number, _ in said] for name, said in tails.calls if name == "incremental_unassign"]  # type: ignore[attr-defined]
    assert unassigned in ([], [[0]])


def test_two_splits_of_one_partition_and_two_topics_of_one_number() -> None:
    tails = Tails({0: lambda at: [row(at), row(at, topic="returns")]})
    rows = FirstRows(SETTINGS, consumers=ScriptedCache(tails), now_seconds=StillClock())

    found, failed = rows.find([split(0, 4), split(0, 9, split_id="orders/0@b"), split(0, 4, topic="returns")])

    assert found == {"orders/0": FirstRow(4, 4 * SECOND), "returns/0": FirstRow(4, 4 * SECOND)}
    assert failed == {}


@pytest.mark.parametrize("committed", [True, False])
def test_a_look_reads_as_the_source_does_and_gives_its_consumer_back(committed: bool) -> None:
    cache = ScriptedCache(Tails())
    settings = KafkaSettings("b:1", {}, 1.0, read_committed=committed)

    FirstRows(settings, consumers=cache).find([split(0, 4)])

    assert cache.given_back == 1
    assert cache.properties["isolation.level"] == ("read_committed" if committed else "read_uncommitted")
    assert cache.properties["enable.partition.eof"] is True


def test_one_partition_alone_claims_less() -> None:
    """This is for wrapping planners that ask for one split at a time, and do not know of bad clocks."""
    tails = Tails({0: lambda at: [row(at)], 1: lambda at: [row(at + 1, partition=1)]})
    planner = planner_of(ScriptedClient(), tails=tails, now_seconds=StillClock())

    assert planner.claim_us(split(0), 4, 4 * SECOND) == 4 * SECOND
    assert planner.claim_us(split(0), 4, 5 * SECOND) == EARLIEST_US
    assert planner.claim_us(split(1), 4, 4 * SECOND) == EARLIEST_US
    assert planner_of(ScriptedClient(), transactional=False).claim_us(split(0), 4, 5 * SECOND) == 5 * SECOND


def test_what_the_user_says_of_transactions() -> None:
    client = ScriptedClient(orders={0: (0, 10), 1: (0, 10)})
    told, untold = Tails(), Tails({0: lambda at: [row(at + 1, second=1)]})

    assert planner_of(client, tails=told, transactional=True).find_time([split(0)], 0) is None
    assert claimed(planner_of(client, tails=untold, transactional=False), split(0, 4)) == ["orders/0"]
    assert told.peeks == untold.peeks == []
    for given in (None, True, False):
        planner = KafkaSource(**PLAIN, transactional=given).create_planner()
        assert isinstance(planner, KafkaPlanner)
        assert planner._transactional is given


def test_a_plan_claims_nothing_where_a_marker_hides_rows_and_then_reads_by_shares() -> None:
    from lowmark.sources.slicing import SliceLimits, plan_slices

    client = ScriptedClient(orders={0: (0, 100), 1: (0, 100)})
    limits = SliceLimits(now_us=10**9, rows=60)
    rows = {0: lambda at: [row(at)], 1: lambda at: [row(at, partition=1)]}

    def plan(planner: KafkaPlanner, *splits: KafkaSplit) -> tuple[dict[str, bool], dict[str, int]]:
        planned = plan_slices(planner, splits, limits, previous_time_us=None)
        assert 0 < planned.rows <= 60
        return (
            {name: sliced.claim_us is not None for name, sliced in planned.slices.items()},
            {name: sliced.stop for name, sliced in planned.slices.items()},
        )

    both, _ = plan(planner_of(client, tails=Tails(rows)), split(0), split(1))
    hidden = planner_of(client, tails=Tails({**rows, 0: lambda at: [row(at + 1, second=1)]}))
    claims, stops = plan(hidden, split(0), split(1))
    again, further = plan(hidden, split(0, stops["orders/0"]), split(1, stops["orders/1"]))
    untold, _ = plan(planner_of(client, transactional=True), split(0), split(1))

    assert both == {"orders/0": True, "orders/1": True}
    assert claims == again == {"orders/0": False, "orders/1": True}
    assert further["orders/0"] > stops["orders/0"], "it is read, not waited for"
    assert untold == {"orders/0": False, "orders/1": False}
