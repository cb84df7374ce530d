"""Common parts of the live tests of the Kafka source: discovery, planning and reading by hand, without Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition
from lowmark.sources.kafka import KafkaSource, KafkaSplit
from lowmark.sources.slicing import SliceLimits, SlicePlan, plan_slices

from tests.servers.kafka import Broker
from tests.worlds import reading
from tests.worlds.reading import read_tables


class Reading(reading.Reading[KafkaSplit]):
    """A query by hand on Kafka."""

    source: KafkaSource

    def __init__(self, source: KafkaSource, state: bytes | None = None) -> None:
        super().__init__(source, KafkaSplit, state)

    def batch(self) -> dict[str, pa.Table]:
        """Read all present rows and advance; return split id -> rows."""
        return self.read(self.plan())

    def plan(self) -> list[KafkaSplit]:
        """Plan a batch of all present rows; return its slices."""
        ends = self.planner.latest(self.going)
        stops = [(split, ends[split.split_id].position) for split in self.going if split.split_id in ends]
        slices, rests = zip(*self.planner.cut(stops), strict=True) if stops else ((), ())
        self.splits |= {rest.split_id: rest for rest in rests}
        self.finished |= {name for name, end in ends.items() if end.finished}
        return list(slices)

    def read(self, slices: Sequence[KafkaSplit]) -> dict[str, pa.Table]:
        """Read the slices of a batch; return split id -> rows."""
        return read_tables(self.source, slices, self.counted.update)

    def values(self) -> list[str]:
        """Read all present rows and advance; return all values, sorted."""
        return sorted(text_of(value) for table in self.batch().values() for value in table["value"].to_pylist())


def text_of(value: bytes | None) -> str:
    return "<null>" if value is None else value.decode()


def source_of(broker: Broker, *topics: str, **options: Any) -> KafkaSource:
    """A source of these topics; without topics, `options` name them."""
    which: Mapping[str, Any] = {"topics": list(topics)} if topics else {}
    return KafkaSource(**{"bootstrap_servers": broker.bootstrap, "give_up_after": "30 seconds", **which, **options})


def rows_of(broker: Broker, topic: str, isolation: str = "read_committed") -> dict[str, list[tuple[int, int]]]:
    """All rows of a topic: split id -> (offset, microseconds) in order."""
    rows: dict[str, list[tuple[int, int]]] = {f"{topic}/{number}": [] for number in broker.end_offsets(topic)}
    for message in _messages(broker, topic, isolation):
        row = int(message.offset() or 0), message.timestamp()[1] * 1_000
        rows[f"{topic}/{message.partition()}"].append(row)
    return rows


def values_of(broker: Broker, topic: str) -> list[bytes]:
    """The values of all records of a topic."""
    return [message.value() or b"" for message in _messages(broker, topic, "read_committed")]


def _messages(broker: Broker, topic: str, isolation: str) -> Iterator[Message]:
    """Read a topic to its end with a plain consumer."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "rows",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )
    left = set(broker.end_offsets(topic))
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in left])
    until = time.monotonic() + 30
    while left:
        assert time.monotonic() < until, f"partitions {left} of {topic} do not end"
        for message in consumer.consume(1_000, 0.1):
            error = message.error()
            if error is None:
                yield message
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                left.discard(int(message.partition() or 0))
    consumer.close()


@dataclass
class Slices:
    """Reads by slices and keeps every claim, to be compared with the whole content.

    Attributes:
        claims: (split id, the slice's stop, the claimed time: every later row is at or after it).
        rows: split id -> number of rows read.
        plans: all plans in order.
    """

    query: Reading
    budget: int
    claims: list[tuple[str, int, int]] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    plans: list[SlicePlan] = field(default_factory=list)
    observed_us: dict[str, int] = field(default_factory=dict)
    previous_us: int | None = None

    def one(self) -> bool:
        """Plan and read a slice; return whether it had rows."""
        query, splits = self.query, list(self.query.splits.values())
        limits = SliceLimits(
            now_us=time.time_ns() // 1_000,
            rows=self.budget,
            observed_us=self.observed_us,
            future_guard_us=300_000_000,
        )
        plan = plan_slices(query.planner, splits, limits, previous_time_us=self.previous_us)
        self.plans.append(plan)
        parts = [replace(split, stop=plan.slices[split.split_id].stop) for split in splits]
        for name, table in read_tables(query.source, parts).items():
            times = [at for at in table["timestamp"].cast(pa.int64()).to_pylist() if at is not None]
            self.rows[name] = self.rows.get(name, 0) + len(times)
            self.observed_us[name] = max([*times, self.observed_us.get(name, -(2**53))])
        for part in parts:
            claim_us = plan.slices[part.split_id].claim_us
            if claim_us is not None:
                self.claims.append((part.split_id, part.stop or 0, claim_us))
            query.splits[part.split_id] = replace(part, start=part.stop or 0, stop=None)
        self.previous_us = plan.time_us
        return plan.rows > 0

    def to_the_end(self) -> None:
        """Read until nothing is left."""
        for _ in range(400):
            if not self.one():
                return
        raise AssertionError("it does not come to an end")

    def restart(self, query: Reading) -> None:
        """Continue with the planner of another process, from the positions alone."""
        query.splits = self.query.splits
        self.query, self.observed_us = query, {}

    def false_claims(self, broker: Broker, *topics: str) -> list[str]:
        """Return the claims that the topics' whole content refutes by an older row at or after the stop."""
        isolation = "read_committed" if self.query.source._settings.read_committed else "read_uncommitted"
        content = {name: rows for topic in topics for name, rows in rows_of(broker, topic, isolation).items()}
        return [
            f"{name}: said to have reached {claim_us} before offset {stop}, and {at_us} is at {offset}"
            for name, stop, claim_us in self.claims
            for offset, at_us in content[name]
            if offset >= stop and at_us < claim_us
        ]

    def claimed(self) -> set[str]:
        """The splits with a claim."""
        return {name for name, _, _ in self.claims}
