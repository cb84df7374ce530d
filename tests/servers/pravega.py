"""A real Pravega for tests: everything in one process, on free ports, in memory; and a writer with its Java client.

The client runs in the Java of the test's own process, as in a worker.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowmark.sources.pravega import PravegaSource
from lowmark.sources.pravega.client import PravegaClient, StreamCut, client_of
from lowmark.sources.pravega.jvm import java_class
from lowmark.sources.pravega.settings import PravegaSettings

from tests.servers.local import CACHE, LOCALHOST, Process, free_ports, require_jars, require_java, started
from tests.servers.tcp_proxy import TcpProxy

if TYPE_CHECKING:
    from typing_extensions import Self

JARS = str(CACHE / "jars" / "pravega-client")
SERVER_OPTIONS = ("-Xmx768m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k",
                  "-Dcontroller.watermarking.frequency.seconds=1",
                  "-Dcontroller.retention.frequency.minutes=1")  # fmt: skip
USER, PASSWORD = "admin", "1111_aaaa"
STRANGER = "stranger"  # has the same password, and no right in the scope of the tests

SERVER_PROPERTIES = """\
singlenode.zk.port={zk}
singlenode.controller.rpc.port={controller}
singlenode.segmentStore.port={store}
singlenode.controller.rest.enable=false
singlenode.admin.gateway.enable=false
"""
TLS_PROPERTIES = """\
singlenode.security.tls.enable=true
singlenode.security.tls.certificate.location={folder}/certificate.pem
singlenode.security.tls.privateKey.location={folder}/key.pem
singlenode.security.tls.keyStore.location={folder}/key.jks
singlenode.security.tls.keyStore.pwd.location={folder}/password
singlenode.security.tls.trustStore.location={folder}/trust.jks
"""
AUTH_PROPERTIES = """\
singlenode.security.auth.enable=true
singlenode.security.auth.credentials.username={user}
singlenode.security.auth.credentials.pwd={password}
singlenode.security.auth.pwdAuthHandler.accountsDb.location={accounts}
"""
QUIET = """<configuration><appender name="E" class="ch.qos.logback.core.ConsoleAppender"><target>System.err</target>
<encoder><pattern>%d %-5level %logger{36} %msg%n</pattern></encoder></appender>
<logger name="io.pravega.local" level="INFO"/>
<root level="WARN"><appender-ref ref="E"/></root>
</configuration>"""


@dataclass
class Pravega:
    """A running Pravega, which keeps its streams in memory only.

    Attributes:
        trust_store: path of its certificate's authority, "" without TLS.
        proxy: in front of its segment store, or None.
    """

    controller: str
    process: Process
    username: str = ""
    password: str = ""
    scope: str = "shop"
    trust_store: str = ""
    proxy: TcpProxy | None = None

    @property
    def settings(self) -> PravegaSettings:
        return PravegaSettings(
            self.controller, self.scope, (JARS,), username=self.username, password=self.password,
            trust_store=self.trust_store,
        )  # fmt: skip

    @functools.cached_property
    def client(self) -> PravegaClient:
        """The source's own client."""
        require_jars("pravega-client")
        return client_of(self.settings)

    @functools.cached_property
    def admin(self) -> Any:
        """Java's StreamManager."""
        config = self.client.java_config  # Java runs now
        manager = java_class("io.pravega.client.admin.StreamManager").create(config)
        manager.createScope(self.scope)
        return manager

    @functools.cached_property
    def _writers(self) -> Any:
        self.admin  # noqa: B018  # the scope
        return java_class("io.pravega.client.EventStreamClientFactory").withScope(self.scope, self.client.java_config)

    def source(self, *streams: str, **options: Any) -> PravegaSource:
        """A source of some streams."""
        given: dict[str, Any] = {"controller": self.controller, "scope": self.scope, "jars": JARS}
        if self.username:
            given |= {"username": self.username, "password": self.password}
        if self.trust_store:
            given |= {"trust_store": self.trust_store}
        if streams:
            given["streams"] = streams
        return PravegaSource(**{**given, **options})

    def create_stream(self, segments: int = 1, name: str | None = None, *, keep_bytes: int | None = None) -> str:
        """Create a stream with this number of segments, also its minimum, and return its name.

        Args:
            segments: their number.
            name: of the stream; None: a new name.
            keep_bytes: the least number of bytes that its retention keeps after consumption; None: all.
        """
        self.admin  # noqa: B018  # Java, and the scope
        name = f"t-{uuid.uuid4().hex[:12]}" if name is None else name
        policy = java_class("io.pravega.client.stream.ScalingPolicy").fixed(segments)
        builder = java_class("io.pravega.client.stream.StreamConfiguration").builder().scalingPolicy(policy)
        if keep_bytes is not None:
            retention = java_class("io.pravega.client.stream.RetentionPolicy")
            builder = builder.retentionPolicy(retention.bySizeBytes(keep_bytes))
        assert self.admin.createStream(self.scope, name, builder.build())
        return name

    def delete_stream(self, stream: str) -> None:
        self.admin.sealStream(self.scope, stream)
        self.admin.deleteStream(self.scope, stream)

    def seal_stream(self, stream: str) -> None:
        self.admin.sealStream(self.scope, stream)

    def truncate(self, cut: StreamCut) -> None:
        assert self.admin.truncateStream(self.scope, cut.stream, self.client.java_cut(cut))

    def text_of(self, cut: StreamCut) -> str:
        """A StreamCut as Pravega's text."""
        return self.client.text_of(cut)

    def writer(self, stream: str) -> Writer:
        """A writer of events."""
        return Writer(self, stream)

    def write(self, stream: str, events: Iterable[tuple[str, bytes]]) -> int:
        """Write events, each (routing key, bytes), and return their number once all are stored."""
        with self.writer(stream) as writer:
            return writer.write(events)

    def write_json(self, stream: str, rows: Iterable[Mapping[str, object]], key: str = "key") -> int:
        """Write one JSON object a row; the field `key` is the routing key."""
        return self.write(stream, ((str(row.get(key, "")), json.dumps(row, sort_keys=True).encode()) for row in rows))

    def scale(self, stream: str, sealed: Sequence[int], ranges: Sequence[tuple[float, float]]) -> None:
        """Replace segments by new segments with these ranges of keys."""
        long, double = java_class("java.lang.Long"), java_class("java.lang.Double")
        old, new = java_class("java.util.ArrayList")(), java_class("java.util.HashMap")()
        for segment in sealed:
            old.add(long(segment))
        for low, high in ranges:
            new.put(double(low), double(high))
        java_stream = self.client.java_stream(stream)
        done = self.client._controller.scaleStream(java_stream, old, new, self.client.executor).getFuture().get()
        assert bool(done), f"{stream} was not scaled"

    def ranges(self, stream: str) -> dict[int, tuple[float, float]]:
        """Open segment -> its range of keys."""
        collection = self.client._controller.getCurrentSegments(self.scope, stream).get()
        # Java keeps segments by the upper end of their ranges, but its API finds a segment only by a key.
        field_ = java_class("io.pravega.client.control.impl.SegmentCollection").class_.getDeclaredField("segments")
        field_.setAccessible(True)  # Java's
        spans = [(each.getSegment(), each.getRange()) for each in field_.get(collection).values()]
        return {int(segment.getSegmentId()): (float(span.getLow()), float(span.getHigh())) for segment, span in spans}

    def split_one(self, stream: str) -> None:
        """Scale up: the open segment with the widest range becomes two."""
        segment, (low, high) = max(self.ranges(stream).items(), key=lambda each: each[1][1] - each[1][0])
        self.scale(stream, [segment], [(low, (low + high) / 2), ((low + high) / 2, high)])

    def merge_two(self, stream: str) -> None:
        """Scale down: the two first neighbours become one."""
        ordered = sorted((span, segment) for segment, span in self.ranges(stream).items())
        ((low, _), first), ((_, high), second) = ordered[:2]
        self.scale(stream, [first, second], [(low, high)])

    def ready(self) -> bool:
        """Whether its log says that it runs; its ports open earlier, but requests then are never answered."""
        log = self.process.log
        return log.exists() and "Pravega Sandbox is running" in log.read_text(errors="replace")

    def stop(self) -> None:
        self.process.stop()


class Writer:
    """Writes events to one stream, in order."""

    def __init__(self, pravega: Pravega, stream: str) -> None:
        serializer = java_class("io.pravega.client.stream.impl.ByteArraySerializer")
        config = (
            java_class("io.pravega.client.stream.EventWriterConfig").builder().enableConnectionPooling(True).build()
        )
        self._writer = pravega._writers.createEventWriter(stream, serializer(), config)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def write(self, events: Iterable[tuple[str, bytes]]) -> int:
        """Write events, each (routing key, bytes); return once all are stored."""
        import jpype

        byte_array, count = jpype.JArray(jpype.JByte), 0
        for key, event in events:
            self._writer.writeEvent(key, byte_array(event))
            count += 1
        self._writer.flush()
        return count

    def note_time(self, time_ms: int) -> None:
        """Promise that this writer writes no more events before this time."""
        self._writer.noteTime(time_ms)


@contextmanager
def pravega_server(
    folder: Path, *, auth: bool = False, tls: bool = False, delay_ms: float | None = None
) -> Iterator[Pravega]:
    """A Pravega with its log in `folder`, stopped at the end.

    Args:
        folder: for its files, used by no other server.
        auth: clients must give user and password.
        tls: the server accepts TLS only.
        delay_ms: the delay of bytes to and from its segment store, one way; None: no proxy in front.

    Skips or fails the test if Java or the jars are missing.
    """
    java = require_java()
    # Two old copies of the classes in bcprov-ext: Java takes the first on the class path, and these break its store.
    old = ("bc-fips", "bcprov-jdk15on")
    classpath = ":".join(str(jar) for jar in require_jars("pravega") if not jar.name.startswith(old))
    require_jars("pravega-client")
    folder.mkdir(parents=True, exist_ok=True)
    server = started(lambda n: _start(java, classpath, folder / f"pravega-{n}", auth=auth, tls=tls, delay_ms=delay_ms))
    try:
        yield server
    finally:
        server.stop()
        if server.proxy is not None:
            server.proxy.kill()


def _start(java: str, classpath: str, folder: Path, *, auth: bool, tls: bool, delay_ms: float | None) -> Pravega:
    folder.mkdir()
    zk, controller, store = free_ports(3)
    properties, quiet = folder / "pravega.properties", folder / "logback.xml"
    text = SERVER_PROPERTIES.format(zk=zk, controller=controller, store=store)
    if auth:
        accounts = folder / "accounts"
        rights = {USER: "prn::*,READ_UPDATE;", STRANGER: "prn::/scope:elsewhere,READ;"}
        accounts.write_text("".join(f"{user}:{encoded(PASSWORD)}:{right}\n" for user, right in rights.items()))
        text += AUTH_PROPERTIES.format(user=USER, password=PASSWORD, accounts=accounts)
    if tls:
        _make_certificate(java, folder)
        text += TLS_PROPERTIES.format(folder=folder)
    properties.write_text(text)
    quiet.write_text(QUIET)
    options = [
        *SERVER_OPTIONS, f"-Dsinglenode.configurationFile={properties}", f"-Dlogback.configurationFile={quiet}",
        f"-Djava.io.tmpdir={folder}",
    ]  # fmt: skip
    proxy = None if delay_ms is None else TcpProxy(store, folder, delay_ms=delay_ms)
    if proxy is None and not tls:
        command = [java, *options, "-cp", classpath, "io.pravega.local.LocalPravegaEmulator"]
    else:  # the settings lack the port and address published to clients
        published = str(store if proxy is None else proxy.port)
        command = [sys.executable, "-m", "tests.servers.pravega_service", published, classpath, *options]
    server = Pravega(
        f"{'tls' if tls else 'tcp'}://{LOCALHOST}:{controller}", Process("Pravega", command, folder / "pravega.log"),
        username=USER if auth else "", password=PASSWORD if auth else "",
        trust_store=str(folder / "certificate.pem") if tls else "", proxy=proxy,
    )  # fmt: skip
    if proxy is not None:
        proxy.start()  # first: Pravega's controller goes through it, too
    try:
        server.process.start(server.ready)
    except BaseException:
        if proxy is not None:
            proxy.kill()
        raise
    return server


def _make_certificate(java: str, folder: Path) -> None:
    """Make a certificate for this address in Pravega's formats: PEM, and Java's stores with a password."""
    (folder / "password").write_text(PASSWORD)
    keytool = str(Path(java).with_name("keytool")) if "/" in java else "keytool"
    for command in (
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
         f"subjectAltName=DNS:localhost,IP:{LOCALHOST}", "-keyout", "key.pem", "-out", "certificate.pem"],
        ["openssl", "pkcs12", "-export", "-in", "certificate.pem", "-inkey", "key.pem", "-out", "key.jks", "-passout",
         f"pass:{PASSWORD}"],
        [keytool, "-importcert", "-noprompt", "-alias", "ca", "-file", "certificate.pem", "-keystore", "trust.jks",
         "-storepass", PASSWORD],
    ):  # fmt: skip
        subprocess.run(command, cwd=folder, check=True, capture_output=True)


def encoded(password: str) -> str:
    """Encode a password in Pravega's format: iterations, salt and hash, in hexadecimal twice."""
    salt = os.urandom(32)
    digest = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 5_000, 64)
    return f"5000:{salt.hex()}:{digest.hex()}".encode().hex()
