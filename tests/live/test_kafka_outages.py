"""Brokers that stop and return, under a running query of `service.read`, a planner and a reader.

Goal: query, planner and reader continue within seconds of the brokers' return, and no row is lost or duplicated.
Method: in a cluster of three brokers one or all are stopped (SIGSTOP: connections stay without answers) or killed
(SIGKILL: a restart makes new leader epochs); the brokers count as returned when a new client reaches them.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from lowmark.integration import LowWatermarkService
from lowmark.sources import SplitsAddition
from lowmark.sources.kafka import KafkaSource
from lowmark.watermark import WatermarkStrategy
from pyspark.sql import DataFrame, SparkSession

from tests.servers.kafka import SOON_MISSED, Broker, another_broker, kafka_broker
from tests.servers.local import wait_until
from tests.worlds.kafka_reading import Reading

PARTITIONS = 6
GO_ON_SECONDS = 5.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Broker]]:
    """Start three brokers; the first is also the controller."""
    folder = tmp_path_factory.mktemp("cluster")
    with ExitStack() as running:
        first = running.enter_context(kafka_broker(folder / "first", SOON_MISSED))
        brokers = [first]
        for node in (2, 3):
            brokers.append(another_broker(folder / f"node-{node}", first, node))
            running.callback(brokers[-1].stop)
        wait_until(lambda: len(first.admin.list_topics(timeout=5).brokers) == 3, "three brokers in one cluster")
        yield brokers


@contextmanager
def away(brokers: Sequence[Broker], how: signal.Signals) -> Iterator[None]:
    """Stop or kill brokers until the block ends, then let them return."""
    if how is signal.SIGKILL:
        for broker in brokers:
            broker.kill()
        yield
        with ThreadPoolExecutor(len(brokers)) as starting:
            list(starting.map(Broker.restart, brokers))
        return
    pids = [broker.process.running.pid for broker in brokers if broker.process.running is not None]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def ends(bootstrap: str, topic: str) -> dict[int, int] | None:
    """Return the ends of partitions as a new client sees them; None if a partition does not answer."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    with suppress(KafkaException, TimeoutError):
        found = admin.list_topics(topic, timeout=1).topics[topic].partitions
        asked = admin.list_offsets({TopicPartition(topic, n): OffsetSpec.latest() for n in found}, request_timeout=1)
        if len(found) == PARTITIONS:
            return {each.partition: future.result(2).offset for each, future in asked.items()}
    return None


class Watched:
    """Repeats a step in a thread, and keeps the newest position of each partition."""

    def __init__(self, step: Callable[[], dict[int, int]]) -> None:
        self.positions: dict[int, int] = {}
        self.error: Exception | None = None
        self._step, self._ended = step, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ended.wait(0.01):
                self.positions.update(self._step())
        except Exception as error:  # noqa: BLE001  # told by whoever looks
            self.error = error

    def reached(self, wanted: dict[int, int]) -> bool:
        if self.error is not None:
            raise self.error
        return all(self.positions.get(partition, 0) >= offset for partition, offset in wanted.items())

    def end(self) -> None:
        self._ended.set()
        self._thread.join(60)


class Feed(Watched):
    """Produces to all partitions all the time, like a client that is never offline for long."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        settings = {"enable.idempotence": True, "linger.ms": 5, "reconnect.backoff.max.ms": 300, "log_level": 0}
        producer = Producer(
            {"bootstrap.servers": bootstrap, **settings, "socket.timeout.ms": 3_000, "message.timeout.ms": 200_000,
             "topic.metadata.refresh.interval.ms": 1_000, "retry.backoff.max.ms": 300}
        )  # fmt: skip
        self.delivered = dict.fromkeys(range(PARTITIONS), 0)
        self.sent = 0

        def count(error: object, message: object) -> None:
            assert error is None, error
            self.delivered[message.partition()] += 1  # type: ignore[attr-defined]

        def step() -> dict[int, int]:
            if len(producer) < 1_000 * PARTITIONS:
                for partition in range(PARTITIONS):
                    value = f"{self.sent}"
                    stamp = int(time.time() * 1_000)
                    producer.produce(topic, value, partition=partition, timestamp=stamp, on_delivery=count)
                self.sent += 1
            next_at = time.monotonic() + 0.05
            while (left := next_at - time.monotonic()) > 0:
                producer.poll(left)
            return self.delivered

        self._producer = producer
        super().__init__(step)

    def end(self) -> None:
        super().end()
        assert self._producer.flush(60) == 0


def planning(source: KafkaSource) -> Watched:
    query = Reading(source)
    splits = list(query.splits.values())

    def step() -> dict[int, int]:
        found = query.planner.latest(splits)
        return {query.splits[name].partition: end.position for name, end in found.items()}

    return Watched(step)


def reading(source: KafkaSource) -> Watched:
    query = Reading(source)
    reader = source.create_split_reader()
    # The stop is out of reach, because a slice needs an end and the rows are not produced yet.
    reader.handle_splits_changes(SplitsAddition(tuple(replace(each, stop=10**9) for each in query.splits.values())))

    def step() -> dict[int, int]:
        return {query.splits[each.split_id].partition: each.position for each in reader.fetch().batches}

    return Watched(step)


class Query:
    """A query of `service.read`, and the position of its output in each partition."""

    def __init__(self, service: LowWatermarkService, source: KafkaSource, checkpoint: str) -> None:
        self.positions = dict.fromkeys(range(PARTITIONS), 0)
        self.wrong: list[str] = []
        df = service.read(source, name=checkpoint, strategy=WatermarkStrategy.for_bounded_out_of_orderness("5 seconds"))

        def take(batch: DataFrame, batch_id: int) -> None:
            for row in batch.sort("partition", "offset").collect():
                # Compare offsets, because a producer may write a row twice if all brokers are killed. Offsets have no
                # gaps here.
                if row.offset != self.positions[row.partition]:
                    self.wrong.append(f"batch {batch_id}: {row}, expected offset {self.positions[row.partition]}")
                self.positions[row.partition] = row.offset + 1

        writer = df.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
        self.query = writer.trigger(processingTime="200 milliseconds").start()

    def reached(self, wanted: dict[int, int]) -> bool:
        failed = self.query.exception()
        assert failed is None, str(failed)[:3_000]
        return all(self.positions[partition] >= offset for partition, offset in wanted.items())


def seconds_until(watched: Mapping[str, Callable[[dict[int, int]], bool]], wanted: dict[int, int]) -> dict[str, float]:
    """Wait until all have reached these offsets; return the seconds that each took."""
    began, took = time.monotonic(), dict[str, float]()

    def all_there() -> bool:
        for name, reached in watched.items():
            if name not in took and reached(wanted):
                took[name] = round(time.monotonic() - began, 1)
        return len(took) == len(watched)

    try:
        wait_until(all_there, f"all at {wanted}", seconds=90)
    except TimeoutError as late:
        raise TimeoutError(f"{late}: {took}") from None
    return took


@pytest.mark.torture
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seconds", [4, 20, 50])
@pytest.mark.parametrize("who", ["one", "all"])
@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL], ids=lambda how: how.name)
def test_a_query_goes_on_within_seconds_when_brokers_come_back(
    spark: SparkSession, cluster: list[Broker], checkpoint: str, seconds: float, who: str, how: signal.Signals
) -> None:
    bootstrap = ",".join(broker.bootstrap for broker in cluster)
    replicas = [[1 + (p + r) % 3 for r in range(3)] for p in range(PARTITIONS)]
    topic = cluster[0].create_topic(f"outage-{who}-{how.name}-{seconds:g}", replicas=replicas)
    # The outage of killed brokers includes their start.
    patience = "2 minutes" if how is signal.SIGKILL else "1 minute"
    source = KafkaSource(bootstrap_servers=bootstrap, topics=[topic], value_type="string", give_up_after=patience)

    with LowWatermarkService(spark) as service, ExitStack() as running:
        feed = Feed(bootstrap, topic)
        running.callback(feed.end)
        planner, reader, query = planning(source), reading(source), Query(service, source, checkpoint)
        for each in (planner, reader):
            running.callback(each.end)
        watched = {"planner": planner.reached, "reader": reader.reached, "query": query.reached}
        seconds_until(watched, dict.fromkeys(range(PARTITIONS), 20))
        usual = seconds_until(watched, dict(feed.delivered))

        with away(cluster if who == "all" else cluster[1:2], how):
            began = time.monotonic()
            wait_until(lambda: time.monotonic() - began > seconds, "the outage", seconds=seconds + 10)
        wait_until(lambda: ends(bootstrap, topic), "the return")
        wanted = wait_until(lambda: ends(bootstrap, topic), "the return")
        took = seconds_until(watched, wanted)
        print(f"OUTAGE {topic}: {took}, before {usual}", flush=True)
        feed.end()
        seconds_until({"every row": query.reached}, feed.delivered)
        query.query.stop()

    assert query.wrong == []
    # A query needs time from a record to its row without an outage, too: the time measured before the outage.
    allowed = {name: GO_ON_SECONDS + (usual[name] if name == "query" else 0) for name in took}
    late = {name: each for name, each in took.items() if each > allowed[name]}
    assert not late, f"{took}, and before the outage {usual}"
