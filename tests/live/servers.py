"""Servers for tests: a Kafka broker, a Prometheus and moto's Kinesis, each its own process on free ports of 127.0.0.1.

Rules: a server is ready when it answers, never after a sleep; a test ends it by its own process id; its log
stays in the test's folder, and the error of a failed start contains the end of the log. Only :func:`unavailable`
decides whether a missing server skips or fails a test.
"""

from __future__ import annotations

import base64
import http.client
import http.server
import importlib.metadata
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from lowmark.integration.spark.session import SHORT_LIVED_JVM, java_problem

from . import last_will

if TYPE_CHECKING:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient

Answer = TypeVar("Answer")

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
LOCALHOST = "127.0.0.1"
START_SECONDS = 60.0  # a broker starts in 3 seconds; the rest is for a busy machine
STOP_SECONDS = 20.0
LOG_TAIL_LINES = 30


class ServerError(RuntimeError):
    """A server did not start, or ended by itself. The message ends with the last lines of its log."""


# --- required programs, and the effect of missing ones ---


def unavailable(what: str, hint: str) -> NoReturn:
    """Skip the running test because `what` is missing; fail the test if CI=true, because CI must have everything.

    Args:
        what: the missing thing, in words for people.
        hint: what to install or run.
    """
    import pytest  # imported here because `make demo-kafka` has no packages of the tests

    reason = f"missing: {what}; {hint}"
    if os.environ.get("CI", "").lower() in {"true", "1"}:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def require_java() -> str:
    """Return the `java` for servers; skip or fail the test if no suitable Java exists."""
    problem = java_problem()
    if problem:
        unavailable("Java", f"{problem}; install Java 17 or newer (Debian: apt install openjdk-17-jre-headless)")
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


def jars(name: str, spark: str | None = None) -> list[Path]:
    """The jars that `make jars` resolved for tests/live/jars/NAME.xml, sorted; empty without them.

    The jars of Spark's Kafka connector are those for the given Spark version, by default the installed one. A version
    without a file spark-kafka-MAJOR.MINOR.xml gets those of spark-kafka.xml, which are for 4.2; so does Spark 4.3.
    """
    line = ".".join((spark or importlib.metadata.version("pyspark")).split(".")[:2])
    if name == "spark-kafka" and (ROOT / "tests" / "live" / "jars" / f"spark-kafka-{line}.xml").exists():
        name = f"spark-kafka-{line}"
    return sorted((CACHE / "jars" / name).glob("*.jar"))


def require_jars(name: str, spark: str | None = None) -> list[Path]:
    """Return the jars as :func:`jars` does; skip or fail the test if they are missing."""
    found = jars(name, spark)
    if not found:
        unavailable(f"the jars of {name}", "run make jars (it needs Maven; Debian: apt install maven)")
    return found


def binary(name: str) -> Path | None:
    """Return an installed program, else the program that `make servers` unpacked, else None."""
    installed = shutil.which(name)
    unpacked = CACHE / "prometheus" / name
    return Path(installed) if installed else unpacked if unpacked.exists() else None


def require_binary(name: str) -> Path:
    """Return a program as :func:`binary` does; skip or fail the test if it is missing."""
    found = binary(name)
    if found is None:
        unavailable(
            name,
            "run make servers, or install it (Debian: apt install prometheus prometheus-alertmanager chromium "
            "redis-server)",
        )
    return found


# --- waiting and processes ---


def wait_until(check: Callable[[], Answer | None], what: str, *, seconds: float = START_SECONDS) -> Answer:
    """Poll until the result is true, and return it: the only place in the tests that sleeps.

    Args:
        check: returns a falsy value until the condition holds; an exception ends the wait.
        what: the condition in words, for the error.
        seconds: the limit; generous, because it costs nothing in a passing test.

    Raises:
        TimeoutError: the condition did not hold in time.
    """
    deadline = time.monotonic() + seconds
    while True:
        answer = check()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not after {seconds:g} seconds")
        time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    """Return different free ports of 127.0.0.1. Callers must retry, because another program may take a port first."""
    with_sockets = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for each in with_sockets:
            each.bind((LOCALHOST, 0))
        return [each.getsockname()[1] for each in with_sockets]
    finally:
        for each in with_sockets:
            each.close()


def port_open(port: int) -> bool:
    """Whether something listens on the port of 127.0.0.1."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        return probe.connect_ex((LOCALHOST, port)) == 0


def tail(log: Path) -> str:
    """The last lines of a log, for an error."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return f"\n--- the end of {log} ---\n" + "\n".join(text.splitlines()[-LOG_TAIL_LINES:])


@dataclass
class Process:
    """One server process: started, watched, ended by its own id."""

    name: str
    command: Sequence[str]
    log: Path
    running: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self, ready: Callable[[], bool]) -> None:
        """Start the process and return when `ready()` is true.

        Raises:
            ServerError: the process ended by itself, or was not ready in time and was stopped.
        """
        with self.log.open("ab") as output:
            # The server has its own session, so Ctrl-C ends the test only, and the test ends the server.
            self.running = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        last_will.end_with_us(self.running.pid)
        try:
            wait_until(lambda: self._alive() and ready(), f"{self.name} ready")
        except TimeoutError as late:
            self.kill()
            raise ServerError(f"{late}{tail(self.log)}") from None
        except BaseException:
            self.kill()
            raise

    def _alive(self) -> bool:
        assert self.running is not None
        code = self.running.poll()
        if code is not None:
            raise ServerError(f"{self.name} ended by itself with exit code {code}{tail(self.log)}")
        return True

    def _end(self, how: Callable[[subprocess.Popen[bytes]], None]) -> None:
        if self.running is None:
            return
        how(self.running)  # Popen sends nothing to a process that has ended
        try:
            self.running.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.running.kill()
            self.running.wait(STOP_SECONDS)
        last_will.ended(self.running.pid)
        self.running = None

    def stop(self) -> None:
        """Send SIGTERM and wait for the end; a second call does nothing."""
        self._end(subprocess.Popen.terminate)

    def kill(self) -> None:
        """End the process at once (SIGKILL), as a crash would."""
        self._end(subprocess.Popen.kill)


ServerT = TypeVar("ServerT")


def started(start: Callable[[int], ServerT]) -> ServerT:
    """Return a server that `start` has started on free ports; retry if another program takes a port first.

    Args:
        start: called with the number of earlier tries, to use a new folder in each try.

    Raises:
        ServerError: the server did not start.
    """
    for attempt in range(3):
        try:
            return start(attempt)
        except ServerError as failed:
            if attempt == 2 or "already in use" not in str(failed):
                raise
    raise AssertionError("the last attempt raises")


# --- Kafka ---


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

    def create_topic(self, name: str | None = None, partitions: int = 1, **config: str) -> str:
        """Create a topic and return its name when every partition has a leader.

        Args:
            name: of the topic; None: a new unique name.
            partitions: their number.
            **config: topic settings, with `_` for `.`. `retention_ms` is unlimited by default, because Kafka
                would delete records with old event times within minutes.
        """
        from confluent_kafka.admin import NewTopic

        name = f"t-{uuid.uuid4().hex[:12]}" if name is None else name
        settings = {"retention.ms": "-1", **{key.replace("_", "."): value for key, value in config.items()}}
        wanted = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
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
# event times of long ago and far ahead are what the tests are about
log.retention.ms=-1
log.message.timestamp.before.max.ms=9223372036854775807
log.message.timestamp.after.max.ms=9223372036854775807
"""


@contextmanager
def kafka_broker(folder: Path, *, optimized: bool = False) -> Iterator[Broker]:
    """A Kafka broker (KRaft, one node) with its data and log in `folder`, stopped at the end.

    `optimized` is for benchmarks: its JVM starts later and runs faster.

    Skips or fails the test if Java or the jars are missing.
    """
    java = require_java()
    classpath = ":".join(str(jar) for jar in require_jars("kafka"))
    folder.mkdir(parents=True, exist_ok=True)
    broker = started(lambda n: _start_broker(java, classpath, folder / f"kafka-{n}", optimized=optimized))
    try:
        yield broker
    finally:
        broker.stop()


def _start_broker(java: str, classpath: str, folder: Path, *, optimized: bool) -> Broker:
    port, controller_port = free_ports(2)
    values = {"host": LOCALHOST, "port": port, "controller_port": controller_port, "data": folder / "data"}
    jvm = [] if optimized else SHORT_LIVED_JVM.split()
    run = [java, *jvm, "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", classpath]
    return _start_node(run, folder, BROKER_PROPERTIES.format(**values), _kafka_id(), port)


def _kafka_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def another_broker(folder: Path, first: Broker, node: int = 2) -> Broker:
    """Start another broker in the cluster of a broker from `kafka_broker`; the caller stops it.

    Its log and data are in `folder`, which is created; `node` is its number, from 2 on.
    """
    *run, _, described = first.process.command
    properties = dict(line.split("=", 1) for line in Path(described).read_text().splitlines() if "=" in line)
    meta = Path(properties["log.dirs"], "meta.properties").read_text()
    [cluster] = [line.partition("=")[2] for line in meta.splitlines() if line.startswith("cluster.id=")]
    [port] = free_ports(1)
    at = f"PLAINTEXT://{LOCALHOST}:{port}"
    properties |= {"process.roles": "broker", "node.id": f"{node}", "listeners": at, "advertised.listeners": at}
    properties["log.dirs"] = str(folder / "data")
    text = "".join(f"{name}={value}\n" for name, value in properties.items())
    return _start_node(run, folder, text, cluster, port)


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


# --- Kinesis ---


@dataclass
class Kinesis:
    """A running stand-in for Kinesis (`kinesis_service.py`), which keeps its streams in memory only.

    Attributes:
        url: its endpoint for clients of AWS.
        process: the server.
    """

    url: str
    process: Process

    def ready(self) -> bool:
        """Whether it answers."""
        return http_get(f"{self.url}/moto-api/data.json")[0] == 200

    @property
    def client(self) -> Any:
        """A client of boto3, made once."""
        if not hasattr(self, "_client"):
            import boto3

            self._client = boto3.client("kinesis", endpoint_url=self.url, **KINESIS_ACCESS)
        return self._client

    def create_stream(self, shards: int = 1, name: str | None = None) -> str:
        """Create a stream and return its name, by default a new unique name."""
        name = f"s-{uuid.uuid4().hex[:12]}" if name is None else name
        self.client.create_stream(StreamName=name, ShardCount=shards)
        return name

    def put(self, stream: str, rows: Sequence[tuple[str, bytes]]) -> None:
        """Put (partition key, data) records, 500 per request."""
        for begin in range(0, len(rows), 500):
            records = [{"PartitionKey": key, "Data": data} for key, data in rows[begin : begin + 500]]
            self.client.put_records(StreamName=stream, Records=records)

    def shards(self, stream: str, *, only_open: bool = False) -> list[str]:
        """Ids of the shards of a stream."""
        found = self.described(stream)
        over = [each for each in found if "EndingSequenceNumber" in each["SequenceNumberRange"]]
        return [each["ShardId"] for each in found if not (only_open and each in over)]

    def described(self, stream: str) -> list[dict[str, Any]]:
        """The shards of a stream from all pages of ListShards."""
        page = self.client.list_shards(StreamName=stream)
        found = list(page["Shards"])
        while page.get("NextToken"):
            page = self.client.list_shards(NextToken=page["NextToken"])
            found += page["Shards"]
        return found

    def split(self, stream: str, shard: str) -> None:
        """Split a shard in the middle."""
        [found] = [each for each in self.described(stream) if each["ShardId"] == shard]
        middle = sum(int(key) for key in found["HashKeyRange"].values()) // 2
        self.client.split_shard(StreamName=stream, ShardToSplit=shard, NewStartingHashKey=str(middle))

    def merge(self, stream: str, one: str, other: str) -> None:
        """Merge two adjacent shards."""
        self.client.merge_shards(StreamName=stream, ShardToMerge=one, AdjacentShardToMerge=other)

    def expire(self, stream: str, shard: str, records: int) -> None:
        """Expire the first records of a shard; a closed shard without records vanishes."""
        self._ask("expire", {"stream": stream, "shard": shard, "records": records})

    def expire_iterator(self, shard: str) -> None:
        """Expire the iterator for the next read of a shard with this id."""
        self._ask("iterators", {"shard": shard})

    @contextmanager
    def clock(self, ahead_ms: int) -> Iterator[None]:
        """Set the service's clock ahead of ours, or behind, until the block ends."""
        self._ask("clock", {"ahead_ms": ahead_ms})
        try:
            yield
        finally:
            self._ask("clock", {"ahead_ms": 0})

    def limit(self, stream: str) -> int:
        """Apply the service's limits to a stream from now on; return the number of refused calls."""
        return int(self._ask("limits", {"stream": stream})["refused"])

    def _ask(self, what: str, asked: Mapping[str, object]) -> dict[str, Any]:
        request = urllib.request.Request(f"{self.url}/_service/{what}", json.dumps(asked).encode(), method="POST")
        with _opener.open(request, timeout=10) as response:
            answered: dict[str, Any] = json.load(response)
            return answered


KINESIS_ACCESS = {
    "region_name": "eu-west-1",
    "aws_access_key_id": "AKIATESTTESTTESTTEST",
    "aws_secret_access_key": "only-for-tests",
}


@contextmanager
def kinesis_server(folder: Path) -> Iterator[Kinesis]:
    """A server that speaks Kinesis, with its log in `folder`, stopped at the end."""
    folder.mkdir(parents=True, exist_ok=True)

    def start(attempt: int) -> Kinesis:
        [port] = free_ports(1)
        command = [sys.executable, "-m", "tests.live.kinesis_service", str(port)]
        server = Kinesis(f"http://{LOCALHOST}:{port}", Process("Kinesis", command, folder / f"kinesis-{attempt}.log"))
        server.process.start(server.ready)
        return server

    server = started(start)
    try:
        yield server
    finally:
        server.process.stop()


class Proxy:
    """A small HTTP proxy in front of a server, in threads of this process, that can be slow, refuse, or be down.

    Attributes:
        url: its address.
        latency_seconds: the delay before every answer.
        refuse: (status, code) of its own error answers; None: forward the requests.
        refuse_operation: refuse only requests of this operation, such as "GetRecords"; None: all.
        heard: called with the operation of each request.
    """

    def __init__(self, target: str) -> None:
        self._target = urllib.parse.urlsplit(target)
        [self.port] = free_ports(1)
        self.url = f"http://{LOCALHOST}:{self.port}"
        self.latency_seconds = 0.0
        self.refuse: tuple[int, str] | None = None
        self.refuse_operation: str | None = None
        self.refused = 0
        self.heard: Callable[[str], object] = lambda operation: None
        self._server: http.server.ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start to listen; may be called again after `stop`."""
        self._server = http.server.ThreadingHTTPServer((LOCALHOST, self.port), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="proxy", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening, so that connections are refused."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 5

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, headers, answer = proxy._answer(dict(self.headers), self.path, body)
                self.send_response(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer)))
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(answer)
                self.close_connection = True

            def log_message(self, *args: object) -> None:
                """Log nothing, to keep pytest's output clean."""

            def log_error(self, *args: object) -> None:
                """The same."""

        return Handler

    def _answer(self, headers: dict[str, str], path: str, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        operation = headers.get("X-Amz-Target", "").rpartition(".")[2]
        self.heard(operation)
        if self.latency_seconds:
            threading.Event().wait(self.latency_seconds)
        if self.refuse is not None and self.refuse_operation in (None, operation):
            self.refused += 1
            status, code = self.refuse
            answer = json.dumps({"__type": code, "message": "the proxy says so"}).encode()
            return status, [("Content-Type", "application/x-amz-json-1.1")], answer
        connection = http.client.HTTPConnection(self._target.hostname or LOCALHOST, self._target.port, timeout=30)
        try:
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            kept = [(name, value) for name, value in response.getheaders()
                    if name.lower() in {"content-type", "date", "x-amzn-requestid"}]  # fmt: skip
            return response.status, kept, response.read()
        finally:
            connection.close()


@contextmanager
def proxied(target: str) -> Iterator[Proxy]:
    """Yield a listening proxy in front of a server."""
    proxy = Proxy(target)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()


# --- Prometheus ---

# Ignore proxies in the environment, because loopback is never behind a proxy.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def http_get(url: str) -> tuple[int, str]:
    """Return status and body; 0 and the reason without an answer."""
    try:
        with _opener.open(url, timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode(errors="replace")
    except OSError as silent:  # URLError is one
        return 0, str(silent)


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus; `str` of it is its address."""

    url: str
    process: Process

    def __str__(self) -> str:
        return self.url

    def ready(self) -> bool:
        """Whether its readiness check succeeds."""
        return http_get(f"{self.url}/-/ready")[0] == 200

    def get(self, path: str, **parameters: str) -> Any:
        """Return the `data` of an answer of its HTTP API.

        Raises:
            ServerError: Prometheus refused; the message has its reason.
        """
        status, body = http_get(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
        if status != 200:
            raise ServerError(f"Prometheus answered {status} to {path} {parameters}: {body}")
        return json.loads(body)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the instant vector of an expression now: a list of {"metric": {...}, "value": [seconds, text]}."""
        result: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return result

    def await_targets(self, *, seconds: float = START_SECONDS) -> None:
        """Return when every target was scraped; raise TimeoutError with the targets' errors if one stays down."""

        def up() -> bool:
            targets = self.get("targets")["activeTargets"]
            return bool(targets) and all(target["health"] == "up" for target in targets)

        try:
            wait_until(up, "every target up", seconds=seconds)
        except TimeoutError as late:
            targets = self.get("targets")["activeTargets"]
            said = [(target["scrapeUrl"], target["lastError"]) for target in targets]
            raise TimeoutError(f"{late}: {said}") from None


@contextmanager
def prometheus_server(
    folder: Path,
    scrape_targets: Sequence[str] = (),
    rules: Sequence[Path] = (),
    *,
    interval: str = "1s",
    alertmanagers: Sequence[str] = (),
) -> Iterator[Prometheus]:
    """A Prometheus that scrapes `scrape_targets` ("HOST:PORT" each), evaluates `rules` and tells `alertmanagers`.

    Skips or fails the test if the program is missing.
    """
    program = require_binary("prometheus")
    folder.mkdir(parents=True, exist_ok=True)
    config = {  # YAML is a superset of JSON
        "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
        "rule_files": [str(rule.resolve()) for rule in rules],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": list(alertmanagers)}]}]},
        "scrape_configs": [{"job_name": "lowmark", "static_configs": [{"targets": list(scrape_targets)}]}],
    }

    def start(attempt: int) -> Prometheus:
        here = folder / f"prometheus-{attempt}"
        here.mkdir()
        (here / "prometheus.yml").write_text(json.dumps(config, indent=1))
        [port] = free_ports(1)
        command = [
            str(program), f"--config.file={here / 'prometheus.yml'}", f"--storage.tsdb.path={here / 'data'}",
            f"--web.listen-address={LOCALHOST}:{port}", "--log.level=warn",
        ]  # fmt: skip
        server = Prometheus(f"http://{LOCALHOST}:{port}", Process("Prometheus", command, here / "prometheus.log"))
        server.process.start(server.ready)
        return server

    server = started(start)
    try:
        yield server
    finally:
        server.process.stop()
