"""A real Kafka broker on free ports, and a second broker in its cluster."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowmark.integration.spark.session import SHORT_LIVED_JVM

from tests.servers.local import (
    LOCALHOST,
    START_SECONDS,
    Process,
    ServerError,
    free_ports,
    port_open,
    require_jars,
    require_java,
    started,
    wait_until,
)
from tests.servers.tcp_proxy import TcpProxy, tcp_proxied

if TYPE_CHECKING:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient


@dataclass
class Record:
    """One record to produce. `timestamp_ms` is Kafka's own timestamp; None: the client's clock."""

    value: bytes | str | None
    partition: int = 0
    key: bytes | str | None = None
    timestamp_ms: int | None = None
    headers: Sequence[tuple[str, bytes]] = ()

    def __post_init__(self) -> None:
        if self.timestamp_ms == 0:
            raise ValueError("librdkafka takes timestamp 0 for 'now', silently: use 1 for the start of the epoch")


@dataclass
class Broker:
    """A running Kafka broker, which keeps its ports and its data over `stop`, `kill` and `restart`."""

    bootstrap: str
    process: Process
    _admin: AdminClient | None = field(default=None, init=False, repr=False)
    _producer: Producer | None = field(default=None, init=False, repr=False)

    def _settings(self, more: Mapping[str, str | int | float | bool]) -> dict[str, str | int | float | bool]:
        # log_level 0: otherwise librdkafka writes to stderr whenever a test stops the broker.
        return {"bootstrap.servers": self.bootstrap, "log_level": 0, "broker.address.family": "v4", **more}

    @property
    def admin(self) -> AdminClient:
        """An admin client, made once."""
        if self._admin is None:
            from confluent_kafka.admin import AdminClient

            self._admin = AdminClient(self._settings({}))
        return self._admin

    @property
    def producer(self) -> Producer:
        """A producer without duplicates and reordering, made once."""
        if self._producer is None:
            from confluent_kafka import Producer

            self._producer = Producer(self._settings({"enable.idempotence": True, "linger.ms": 5}))
        return self._producer

    def ready(self) -> bool:
        """Whether the broker answers and is a member of its own cluster."""
        if not port_open(int(self.bootstrap.rpartition(":")[2])):
            return False
        from confluent_kafka import KafkaException

        try:
            return len(self.admin.list_topics(timeout=2).brokers) > 0
        except KafkaException:
            return False

    def create_topic(
        self, name: str | None = None, partitions: int = 1, replicas: Sequence[Sequence[int]] = (), **config: str
    ) -> str:
        """Create a topic and return its name when every partition has a leader.

        Args:
            name: of the topic; None: a new unique name.
            partitions: their number.
            replicas: by partition, the numbers of its brokers, the leader first.
            **config: topic settings, with `_` for `.`. `retention_ms` is unlimited by default, because Kafka
                would delete records with old event times within minutes.
        """
        from confluent_kafka.admin import NewTopic

        name = f"t-{uuid.uuid4().hex[:12]}" if name is None else name
        settings = {"retention.ms": "-1", **{key.replace("_", "."): value for key, value in config.items()}}
        shape: Any = {"num_partitions": partitions, "replication_factor": 1}
        if replicas:
            partitions = len(replicas)
            shape = {"num_partitions": partitions, "replica_assignment": [list(each) for each in replicas]}
        wanted = NewTopic(name, config=settings, **shape)
        self.admin.create_topics([wanted])[name].result(START_SECONDS)
        self._await_partitions(name, partitions)
        return name

    def add_partitions(self, topic: str, total: int) -> None:
        """Grow a topic to `total` partitions and return when each has a leader."""
        from confluent_kafka.admin import NewPartitions

        self.admin.create_partitions([NewPartitions(topic, total)])[topic].result(START_SECONDS)
        self._producer = None  # it caches the old number of partitions for minutes; `produce` has flushed it
        self._await_partitions(topic, total)

    def _await_partitions(self, topic: str, total: int) -> None:
        def led() -> bool:
            found = self.admin.list_topics(topic, timeout=5).topics[topic].partitions
            return len(found) == total and all(each.leader >= 0 for each in found.values())

        wait_until(led, f"{total} partitions of {topic} with a leader")

    def produce(self, topic: str, records: Iterable[Record]) -> int:
        """Produce the records to their partitions, and return their number once the broker has stored them.

        Raises:
            ServerError: the broker refused a record; the message has the first reason.
        """
        refused: list[str] = []
        count = 0

        def delivered(error: object, _message: object) -> None:
            if error is not None:
                refused.append(str(error))

        for record in records:
            stamp = 0 if record.timestamp_ms is None else record.timestamp_ms  # 0 means "now" to the client
            while True:
                try:
                    self.producer.produce(
                        topic,
                        record.value,
                        record.key,
                        record.partition,
                        timestamp=stamp,
                        headers=list(record.headers),
                        on_delivery=delivered,
                    )
                    break
                except BufferError:  # the local queue is full: deliver some records
                    self.producer.poll(0.1)
            self.producer.poll(0)
            count += 1
        left = self.producer.flush(START_SECONDS)
        if left or refused:
            why = refused[0] if refused else "no answer"
            raise ServerError(f"{left + len(refused)} of {count} records did not reach {topic}: {why}")
        return count

    def produce_json(self, topic: str, rows: Iterable[Mapping[str, object]], partition: int = 0) -> int:
        """Produce one JSON object per row to one partition; the shortest way to a topic that Spark can parse."""
        return self.produce(topic, (Record(json.dumps(row, sort_keys=True), partition) for row in rows))

    def end_offsets(self, topic: str) -> dict[int, int]:
        """The offset after the last record of each partition."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        numbers = self.admin.list_topics(topic, timeout=5).topics[topic].partitions
        asked = self.admin.list_offsets({TopicPartition(topic, n): OffsetSpec.latest() for n in numbers})
        return {each.partition: future.result(START_SECONDS).offset for each, future in sorted(asked.items())}

    def damage(self, topic: str, was: bytes, now: bytes) -> None:
        """Change bytes of partition 0 on the disk, once, as a broken disk does; the broker is restarted for it."""
        self.stop()
        properties = Path(self.process.command[-1]).read_text()
        [data] = [line.partition("=")[2] for line in properties.splitlines() if line.startswith("log.dirs=")]
        [log] = Path(data, f"{topic}-0").glob("*.log")
        before = log.read_bytes()
        if before.count(was) != 1 or len(was) != len(now):
            raise ServerError(f"{log} has {was!r} {before.count(was)} times, expected once")
        log.write_bytes(before.replace(was, now))
        self.restart()

    def stop(self) -> None:
        """Stop in good order."""
        self.process.stop()

    def kill(self) -> None:
        """Stop as a crash does."""
        self.process.kill()

    def restart(self) -> None:
        """Start again on the same ports and data; stop the broker first if it runs."""
        self.process.stop()
        self.process.start(self.ready)


BROKER_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
num.partitions=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
# by default an idle controller writes a record twice a second, which is half of what an idle broker costs
metadata.max.idle.interval.ms=0
# event times of long ago and far ahead are what the tests are about
log.retention.ms=-1
log.message.timestamp.before.max.ms=9223372036854775807
log.message.timestamp.after.max.ms=9223372036854775807
"""


SOON_MISSED = "broker.session.timeout.ms=2000\nbroker.heartbeat.interval.ms=500\n"
"""Properties with which a cluster soon notices a lost broker."""


@contextmanager
def kafka_broker(folder: Path, properties: str = "", *, optimized: bool = False) -> Iterator[Broker]:
    """A Kafka broker (KRaft, one node) with its data and log in `folder`, stopped at the end.

    `properties` are lines that come after those of BROKER_PROPERTIES and replace them. `optimized` is for benchmarks:
    its JVM starts later and runs faster.

    Skips or fails the test if Java or the jars are missing.
    """
    java = require_java()
    classpath = ":".join(str(jar) for jar in require_jars("kafka"))
    folder.mkdir(parents=True, exist_ok=True)
    described = BROKER_PROPERTIES + properties
    broker = started(lambda n: _start_broker(java, classpath, folder / f"kafka-{n}", described, optimized=optimized))
    try:
        yield broker
    finally:
        broker.stop()


def _start_broker(java: str, classpath: str, folder: Path, described: str, *, optimized: bool) -> Broker:
    port, controller_port = free_ports(2)
    values = {"host": LOCALHOST, "port": port, "controller_port": controller_port, "data": folder / "data"}
    jvm = [] if optimized else SHORT_LIVED_JVM.split()
    run = [java, *jvm, "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", classpath]
    return _start_node(run, folder, described.format(**values), _kafka_id(), port)


def _kafka_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def another_broker(folder: Path, first: Broker, node: int = 2, *, controller_port: int | None = None) -> Broker:
    """Start another broker in the cluster of a broker from `kafka_broker`; the caller stops it.

    Its log and data are in `folder`, which is created; `node` is its number, from 2 on. `controller_port` is the
    port of a proxy to its controller.
    """
    *run, _, described = first.process.command
    properties = dict(line.split("=", 1) for line in Path(described).read_text().splitlines() if "=" in line)
    meta = Path(properties["log.dirs"], "meta.properties").read_text()
    [cluster] = [line.partition("=")[2] for line in meta.splitlines() if line.startswith("cluster.id=")]
    [port] = free_ports(1)
    at = f"PLAINTEXT://{LOCALHOST}:{port}"
    properties |= {"process.roles": "broker", "node.id": f"{node}", "listeners": at, "advertised.listeners": at}
    properties["log.dirs"] = str(folder / "data")
    if controller_port is not None:
        properties["controller.quorum.voters"] = f"1@{LOCALHOST}:{controller_port}"
    text = "".join(f"{name}={value}\n" for name, value in properties.items())
    return _start_node(run, folder, text, cluster, port)


@contextmanager
def kafka_pair(folder: Path) -> Iterator[tuple[Broker, Broker]]:
    """Two brokers of one cluster; the first is the controller, and soon notices the loss of the second."""
    with kafka_broker(folder / "first", SOON_MISSED) as first:
        second = another_broker(folder / "second", first)
        try:
            wait_until(lambda: len(first.admin.list_topics(timeout=5).brokers) == 2, "both brokers in one cluster")
            yield first, second
        finally:
            second.stop()


@contextmanager
def kafka_cut_off(folder: Path) -> Iterator[tuple[Broker, Broker, TcpProxy]]:
    """Two brokers as in `kafka_pair`, and the proxy by which the second reaches its controller, but no client."""
    [port] = free_ports(1)
    at = f"advertised.listeners=PLAINTEXT://{{host}}:{{port}},CONTROLLER://{{host}}:{port}\n"
    with kafka_broker(folder / "first", SOON_MISSED + at) as first:
        described = Path(first.process.command[-1]).read_text()
        [voter] = [line for line in described.splitlines() if line.startswith("controller.quorum.voters=")]
        with tcp_proxied(int(voter.rpartition(":")[2]), folder, port=port) as proxy:
            second = another_broker(folder / "second", first, controller_port=port)
            try:
                wait_until(lambda: len(first.admin.list_topics(timeout=5).brokers) == 2, "both brokers in one cluster")
                yield first, second, proxy
            finally:
                second.process.kill()


def _start_node(run: list[str], folder: Path, described: str, cluster: str, port: int) -> Broker:
    folder.mkdir()
    properties, log = folder / "server.properties", folder / "kafka.log"
    properties.write_text(described)
    settings = dict(line.split("=", 1) for line in described.splitlines() if "=" in line)
    data = Path(settings["log.dirs"])
    data.mkdir()
    # The file of Kafka's StorageTool, which would take a JVM of its own.
    meta = {"version": 1, "cluster.id": cluster, "node.id": settings["node.id"], "directory.id": _kafka_id()}
    (data / "meta.properties").write_text("".join(f"{name}={value}\n" for name, value in meta.items()))
    broker = Broker(f"{LOCALHOST}:{port}", Process("Kafka", [*run, "kafka.Kafka", str(properties)], log))
    broker.process.start(broker.ready)
    return broker
