"""`lowmark watermark`, `lowmark wait` and `completion`: what is passed can be read in the sink, at every moment.

Real queries write into Spark's file sink, and every file of checkpoint and sink stays. Each moment between two files is
made again as a folder of its own: a driver that is killed there leaves these files.
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq
import pytest
from lowmark.integration import LowWatermarkService, completion
from lowmark.integration.coordinator.access import Caller, Door
from lowmark.integration.coordinator.ask import ask_status
from lowmark.integration.coordinator.client import CoordinatorClient
from lowmark.integration.errors import CheckpointUnreadable, SessionUnfit
from lowmark.integration.process import sockets
from lowmark.integration.spark.arrow_store import ArrowStore
from lowmark.integration.spark.checkpoint import FarewellFiles
from lowmark.integration.spark.checkpoint_store import LocalStore
from lowmark.integration.spark.offset_log import OffsetEntry, next_watermark_ms
from lowmark.integration.spark.webhdfs_store import WebHdfsStore
from lowmark.integration.transport.driver_rpc import STATUS, Server, StatusReply, StatusRequest, handler
from lowmark.integration.transport.heartbeat import HeartbeatOffset
from lowmark.watermark import TaskId, WatermarkStrategy, format_time_us
from lowmark.watermark.moment import time_us, us_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.integration.cli.test_cli import call
from tests.integration.coordinator.serving import beginning, private_folder, report, serving
from tests.integration.feed import Feed, us
from tests.integration.log import Log, LogSource
from tests.integration.metrics.test_metrics import FakeRun
from tests.integration.page.test_page import reply
from tests.rights import without_rights_of_root
from tests.servers.local import ROOT, wait_until

STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("10 seconds")
BATCHES = [
    [("fast", 1, 500), ("slow", 1, 20)],
    [("fast", 1, 510), ("slow", 1, 30)],
    [("fast", 1, 520), ("slow", 1, 41)],
    [("fast", 1, 530), ("slow", 1, 70)],
    [("fast", 1, 540), ("slow", 1, 300)],
]


# -- a checkpoint written by hand


@dataclass
class Written:
    """A checkpoint whose files a test writes."""

    folder: Path
    stream: str = "orders"
    with_state: bool = False

    def __post_init__(self) -> None:
        for name in ("offsets", "commits", *(["state/0"] if self.with_state else [])):
            (self.folder / name).mkdir(parents=True)

    def plan(self, batch: int, low: float | None, in_force: float | None = None, stream: str | None = None) -> None:
        low_us = None if low is None else us(low)
        offset = HeartbeatOffset(stream or self.stream, low_us, "token", batch).to_json()
        metadata = {"batchWatermarkMs": 0 if in_force is None else us(in_force) // 1_000, "batchTimestampMs": 1}
        lines = ["v1", json.dumps(metadata), '{"logOffset":1}', json.dumps(offset)]
        (self.folder / f"offsets/{batch}").write_text("\n".join(lines))

    def commit(self, batch: int) -> None:
        (self.folder / f"commits/{batch}").write_text('v1\n{"nextBatchWatermarkMs":0}')


def test_a_batch_that_is_planned_and_not_committed_does_not_count(tmp_path: Path) -> None:
    written = Written(tmp_path / "cp")
    written.plan(0, None)
    assert completion(written.folder).until_us is None
    written.commit(0)
    written.plan(1, 100)
    assert completion(written.folder).until_us is None
    written.commit(1)
    written.plan(2, 200)
    found = completion(written.folder, "orders")
    assert (found.until_us, found.batch_id, found.planned_batch_id) == (us(100), 1, 2)
    assert "batch 2 is planned and not committed, so it does not count" in found.why
    assert found.age_seconds < 600


def test_windows_are_complete_until_the_watermark_in_force_in_their_batch(tmp_path: Path) -> None:
    written = Written(tmp_path / "cp", with_state=True)
    written.plan(0, 100, in_force=None)
    written.commit(0)
    assert completion(written.folder).until_us is None
    written.plan(1, 200, in_force=100)
    written.commit(1)
    found = completion(written.folder)
    assert found.until_us == us(100)
    assert "windows that it closes are emitted by the next batch" in found.why


def test_a_stream_ahead_of_the_other_side_of_a_join_is_said_to_wait_for_that_side(tmp_path: Path) -> None:
    """The next batch emits nothing more, and neither do a hundred more, until clicks have moved."""
    written = Written(tmp_path / "cp", with_state=True)
    written.plan(0, 200, in_force=50)
    lines = (written.folder / "offsets/0").read_text()
    other = json.dumps(HeartbeatOffset("clicks", us(50), "token", 1).to_json())
    (written.folder / "offsets/0").write_text(f"{lines}\n{other}")
    written.commit(0)
    found = completion(written.folder, "orders")
    assert found.until_us == us(50)
    assert "by the next batch, in a query of several streams once all of them have passed it" in found.why


def test_the_stream_that_is_furthest_behind_counts_unless_one_is_named(tmp_path: Path) -> None:
    written = Written(tmp_path / "cp")
    written.plan(0, 100)
    lines = (written.folder / "offsets/0").read_text()
    other = json.dumps(HeartbeatOffset("clicks", us(50), "token", 1).to_json())
    (written.folder / "offsets/0").write_text(f"{lines}\n{other}")
    written.commit(0)
    assert completion(written.folder).stream == "clicks"
    assert completion(written.folder, "orders").until_us == us(100)
    with pytest.raises(CheckpointUnreadable, match='no stream "order", but "clicks", "orders"'):
        completion(written.folder, "order")


def test_partitions_are_marked_by_what_the_sink_has_of_every_stream(tmp_path: Path) -> None:
    """The rows of a partition may be of each stream of the query."""
    written = Written(tmp_path / "cp")
    files = FarewellFiles(None, str(written.folder))  # type: ignore[arg-type]  # the store below needs no session
    vars(files)["_opened"] = LocalStore(written.folder)
    other = json.dumps(HeartbeatOffset("clicks", us(50), "token", 1).to_json())
    for batch, (low, until_us) in enumerate([(None, None), (100, us(50))]):
        written.plan(batch, low)
        entry = written.folder / f"offsets/{batch}"
        entry.write_text(f"{entry.read_text()}\n{other}")
        written.commit(batch)
        assert files.newest_commit() == (batch, until_us)


def native(folder: Path) -> None:
    Written(folder).commit(0)
    (folder / "offsets/0").write_text('v1\n{"batchWatermarkMs":9}\n{"logOffset":1}')


def cut_short(folder: Path) -> None:
    """The entry of a wrapped query, which was taken for a native one that `lowmark adopt` would change."""
    native(folder)
    entry = folder / "offsets" / "0"
    entry.write_text(entry.read_text()[:5])


def broken(folder: Path) -> None:
    Written(folder).commit(0)
    (folder / "offsets/0").write_text("lowmark is at work")


def without_entry(folder: Path) -> None:
    written = Written(folder)
    written.commit(1)
    written.plan(0, 1)


def no_text(folder: Path) -> None:
    Written(folder).commit(0)
    (folder / "offsets/0").write_bytes(b"\xff\xfe")


def test_a_marking_begins_on_a_native_checkpoint_whose_sources_have_names(tmp_path: Path) -> None:
    """`wrap` goes on from it without `adopt`; the query was refused at each start, with a hint to adopt it."""
    native(tmp_path / "cp")
    files = FarewellFiles(None, str(tmp_path / "cp"))  # type: ignore[arg-type]  # the store below needs no session
    vars(files)["_opened"] = LocalStore(tmp_path / "cp")
    assert files.newest_commit() == (0, None)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda folder: None, "there is no such folder"),
        (lambda folder: folder.mkdir(), "no planned batch"),
        (native, "of a query without lowmark"),
        (broken, "has version"),
        (cut_short, "offsets/0 has metadata that is no JSON"),
        (without_entry, "batch 1 is committed, and offsets/1 is not there"),
        (no_text, "not UTF-8"),
    ],
)
def test_a_checkpoint_of_another_kind_is_refused_in_words(
    tmp_path: Path, make: Callable[[Path], None], why: str
) -> None:
    make(tmp_path / "cp")
    with pytest.raises(CheckpointUnreadable, match=why):
        completion(tmp_path / "cp")
    code, out, err = call("wait", "--checkpoint", str(tmp_path / "cp"), "--past", "2026-11-23T10:00Z")
    assert (code, out) == (2, "")
    assert why in err


def test_a_client_of_spark_connect_is_told_to_ask_without_its_session(tmp_path: Path) -> None:
    client = object.__new__(pytest.importorskip("pyspark.sql.connect.session").SparkSession)
    with pytest.raises(SessionUnfit, match=r"got a Spark Connect session\. Hint: call it without spark="):
        completion(tmp_path / "cp", spark=client)


def test_a_name_node_that_is_not_known_is_told_in_a_session_as_every_other_place(spark: SparkSession) -> None:
    """pyspark makes an error of its own of some of Java's, of an address that cannot be, too."""
    said = r'checkpoint "hdfs://no-such-host\.invalid/orders": it cannot be read \([^\n]*UnknownHostException'
    with pytest.raises(CheckpointUnreadable, match=rf"{said}[^\n]*\. Hint: call it in a session that reaches"):
        completion("hdfs://no-such-host.invalid/orders", spark=spark)


def test_a_checkpoint_that_its_reader_may_not_enter_is_told(tmp_path: Path) -> None:
    native(tmp_path / "of_root" / "cp")
    (tmp_path / "of_root").chmod(0)
    with without_rights_of_root(), pytest.raises(CheckpointUnreadable, match=r"\(Permission denied\).*yours to read"):
        completion(tmp_path / "of_root" / "cp")
    (tmp_path / "of_root").chmod(0o700)


def refused(exception: str, message: str) -> bytes:
    """An answer of WebHDFS, to which a gateway has added its status."""
    fault = {"exception": exception, "javaClassName": "x", "message": message}
    return json.dumps({"RemoteException": fault, "status": 404}).encode()


def test_a_place_that_does_not_answer_is_told() -> None:
    with pytest.raises(CheckpointUnreadable, match=r"cannot be read.*webhdfs://NAMENODE:9870.*CLASSPATH"):
        completion("hdfs://localhost:1/cp")
    with pytest.raises(CheckpointUnreadable, match=r"cannot be read.*refused.*pass webhdfs://HOST:PORT"):
        completion("webhdfs://127.0.0.1:1/cp")
    with pytest.raises(CheckpointUnreadable, match="the address names no host"):
        completion("webhdfs:///cp")


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (403, refused("StandbyException", "READ is not supported in state standby"), "StandbyException: READ is not"),
        (401, b"<html>Authentication required</html>", "HTTP Error 401"),
        (404, b"<html>Not found</html>", "HTTP Error 404"),
        (200, b"<html>Welcome</html>", "JSON is malformed"),
        (200, b'{"FileStatuses":{}}', "FileStatus"),
        (200, None, "ended 90 bytes too early"),
    ],
)
def test_an_answer_that_is_not_of_hdfs_is_never_an_empty_folder(status: int, body: bytes | None, why: str) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(100 if body is None else len(body)))
            self.end_headers()
            self.wfile.write(b"0123456789" if body is None else body)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        answering = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        answering.start()
        files = WebHdfsStore(f"webhdfs://127.0.0.1:{server.server_port}/cp")
        for ask in (files.names, files.read, files.age_seconds):
            with pytest.raises(CheckpointUnreadable, match=why):
                ask("state")
        server.shutdown()


def test_an_answer_of_s3_that_is_cut_in_its_headers_is_no_empty_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder state/ would be that of a query without state, whose sink would count as complete too early."""
    entry = b"<Contents><Key>q/state/0</Key><Size>1</Size></Contents>"
    whole = b"<ListBucketResult><KeyCount>1</KeyCount>%s</ListBucketResult>" % entry
    answers = iter([b"HTTP/1.1 200 OK\r\nServer: x\r\n"])

    class Cut(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.wfile.write(next(answers, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(whole), whole)))

        def log_message(self, *_: object) -> None: ...

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "eu-central-1")
    with HTTPServer(("127.0.0.1", 0), Cut) as server:
        answering = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        answering.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        found = ArrowStore("s3a://bucket/q").names("state")
        server.shutdown()
    assert found == ["0"]


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%20b"])
def test_the_whole_path_of_a_folder_on_hdfs_is_asked_for(name: str) -> None:
    """Otherwise the answer would be that of the folder "a"."""
    asked: list[str] = []

    class Recording(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(unquote(urlsplit(self.path).path))
            self.send_error(404)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Recording) as server:
        answering = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        answering.start()
        with pytest.raises(CheckpointUnreadable):
            WebHdfsStore(f"webhdfs://127.0.0.1:{server.server_port}/{name}").names("offsets")
        server.shutdown()
    assert asked == [f"/webhdfs/v1/{name}/offsets"]


# -- the commands


def test_the_command_watermark_says_how_far_and_how_old(tmp_path: Path) -> None:
    written = Written(tmp_path / "cp")
    written.plan(0, 100)
    written.commit(0)
    code, out, _ = call("watermark", str(written.folder))
    assert code == 0
    assert out.startswith(f"orders: complete until {format_time_us(us(100))}; the newest committed batch is 0, ")
    code, out, _ = call("watermark", str(written.folder), "--stream", "orders", "--json")
    [found] = json.loads(out)["streams"]
    assert (code, found["complete_until_us"], found["batch"]) == (0, us(100), 0)


def at(seconds: float) -> str:
    return format_time_us(us(seconds)).replace(" UTC", "Z")


def test_wait_ends_with_0_once_passed_with_1_at_the_time_out(tmp_path: Path) -> None:
    written = Written(tmp_path / "cp")
    written.plan(0, 100)
    written.commit(0)
    here = ["wait", "orders", "--checkpoint", str(written.folder), "--timeout", "0 seconds"]
    until = format_time_us(us(100))
    assert call(*here, "--past", at(100)) == (0, f"orders has passed {until}: complete until {until}\n", "")
    code, out, _ = call(*here, "--past", at(100.001))
    assert code == 1
    assert "orders has not passed" in out
    assert "the newest committed batch is 0" in out
    code, out, _ = call(*here, "--past", at(101), "--json")
    told = json.loads(out)
    assert (code, told["passed"], told["complete_until_us"]) == (1, False, us(100))


def test_all_checkpoints_have_to_pass(tmp_path: Path) -> None:
    places = []
    for name, low in (("a", 100), ("b", 50)):
        written = Written(tmp_path / name)
        written.plan(0, low)
        written.commit(0)
        places += ["--checkpoint", str(written.folder)]
    assert call("wait", "orders", *places, "--past", at(50), "--timeout", "0s")[0] == 0
    code, out, _ = call("wait", "orders", *places, "--past", at(51), "--timeout", "0s")
    assert code == 1
    assert str(tmp_path / "b") in out
    assert str(tmp_path / "a") not in out


def test_wait_goes_on_over_a_checkpoint_that_cannot_be_read_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, asked = Written(tmp_path / "cp"), []
    written.plan(0, 100)
    written.commit(0)

    def next_moment(_seconds: float) -> None:
        asked.append(1)
        if len(asked) == 1:
            written.folder.rename(tmp_path / "away")
        if len(asked) == 2:
            (tmp_path / "away").rename(written.folder)
            written.plan(1, 200)
            written.commit(1)

    monkeypatch.setattr(time, "sleep", next_moment)
    assert call("wait", "--checkpoint", str(written.folder), "--past", at(200))[0] == 0
    assert len(asked) == 2


@pytest.mark.parametrize("past", ["2026-11-23T10:00", "2026-11-23", "yesterday", ""])
def test_a_time_without_a_zone_is_refused(tmp_path: Path, past: str) -> None:
    code, out, err = call("wait", "orders", "--checkpoint", str(tmp_path), "--past", past)
    assert (code, out) == (2, "")
    assert "is not a time" in err


def test_doors_that_contradict_are_refused(tmp_path: Path) -> None:
    assert call("wait", "--connect", "unix:/x", "--checkpoint", str(tmp_path), "--past", at(1))[0] == 2


def test_wait_asks_running_services_and_names_the_holder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs = [FakeRun("token")]
    runs[0].discover("orders/5")
    address = sockets.new_address()

    def status(request: StatusRequest) -> StatusReply:
        answer = reply(runs, request)
        for stream in answer.streams:
            stream["run"]["complete_until_us"] = us(100)
        return answer

    server = Server(address, handler(STATUS, status))
    try:
        here = ["--connect", address, "--timeout", "0s"]
        assert call("wait", "orders", *here, "--past", at(100))[0] == 0
        code, out, _ = call("wait", "orders", *here, "--past", at(101))
        assert code == 1
        assert "orders/5" in out, "the split that holds it"
        runs[0].ended = True
        assert call("wait", "orders", *here, "--past", at(100))[0] == 0, "its sink stays as it is"
        code, out, _ = call("wait", "orders", *here, "--past", at(101))
        assert code == 1
        assert "the query has ended; it goes on from its checkpoint when it is started again" in out
        assert call("wait", "clicks", *here, "--past", at(100))[0] == 2
    finally:
        server.stop()
        sockets.remove(address)
    monkeypatch.setattr(sockets, "folders", lambda: [tmp_path / "none"])
    code, _, err = call("wait", "orders", "--past", at(100))
    assert code == 2
    assert "no lowmark service" in err


def test_wait_asks_a_coordinator_for_the_sinks_of_a_whole_job(tmp_path: Path) -> None:
    first, second = TaskId("billing", "orders", "q1"), TaskId("billing", "orders", "q2")
    other = TaskId("shipping", "orders", "q3")
    with (
        private_folder() as folder,
        serving(Door(f"unix:{folder}/c.sock"), journal=tmp_path / "journal") as address,
        CoordinatorClient(Caller(address)) as one,
        CoordinatorClient(Caller(address)) as two,
    ):
        here = ["--coordinator", address, "--timeout", "0s"]
        assert call("wait", "orders", *here, "--past", at(1))[0] == 2, "no such stream yet"

        def until(client: CoordinatorClient, task: TaskId, seconds: int) -> None:
            report(client, task, us(200), complete_until_us=us(seconds))
            wait_until(lambda: sink(task) == us(seconds), f"the sink of {task}")

        def sink(task: TaskId) -> int | None:
            known = {
                each.task: each for source in ask_status(Caller(address)).coordinator.sources for each in source.tasks
            }
            return known[task].complete_until_us if task in known else None

        one.register(beginning(first, expected_tasks=2))
        one.register(beginning(other))
        until(one, first, 90)
        until(one, other, 10)
        code, out, _ = call("wait", "orders", "--job", "billing", *here, "--past", at(1))
        assert code == 1
        assert "the sinks of 1 of 2 expected tasks are not known" in out
        two.register(beginning(second, expected_tasks=2))
        until(two, second, 50)
        assert call("wait", "orders", "--job", "billing", *here, "--past", at(50))[0] == 0
        code, out, _ = call("wait", "orders", "--job", "billing", *here, "--past", at(51))
        assert code == 1
        assert "the sink of task q2 is the last" in out
        assert call("wait", "orders", *here, "--past", at(11))[0] == 1, "shipping's sink is behind"
        code, _, err = call("wait", "orders", "--job", "bills", *here, "--past", at(11))
        assert (code, 'no stream "bills/orders"' in err) == (2, True)
        assert call("wait", "orders", "--job", "billing", "--past", at(50))[0] == 2, "--job needs a coordinator"


# -- real queries, at every moment


@dataclass
class Recorded:
    """A finished query into the file sink: every file of checkpoint and sink, in the order in which they were written.

    Attributes:
        key: makes the end of what a row of the sink tells of, microseconds.
    """

    folder: Path
    key: Callable[[dict[str, Any]], int]
    _read: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @functools.cached_property
    def whole(self) -> list[dict[str, Any]]:
        """The rows that the sink has in the end."""
        return self.readable(self.folder)

    def moments(self, at: Path) -> Iterator[tuple[str, Path]]:
        """Yield (name of the last file, folder) of each moment; the files are links."""
        files = [file for part in ("checkpoint", "sink") for file in (self.folder / part).rglob("*") if file.is_file()]
        files = [file for file in files if not file.name.startswith(".")]
        files.sort(key=lambda file: file.stat().st_mtime_ns)
        (at / "checkpoint").mkdir(parents=True)
        (at / "sink").mkdir()
        for file in files:
            name = file.relative_to(self.folder)
            (at / name).parent.mkdir(parents=True, exist_ok=True)
            os.link(file, at / name)
            yield str(name), at

    def readable(self, at: Path) -> list[dict[str, Any]]:
        """The rows that a reader of the sink sees, as Spark reads it: by the log in _spark_metadata."""
        rows: list[dict[str, Any]] = []
        for log in sorted((at / "sink/_spark_metadata").glob("[0-9]*")):
            for line in log.read_text().splitlines()[1:]:
                rows += self._rows(at / "sink" / Path(json.loads(line)["path"]).name)
        return rows

    def _rows(self, file: Path) -> list[dict[str, Any]]:
        """Read a file of the sink, once for all moments, because no file changes; it must be there."""
        assert file.exists()
        if file.name not in self._read:
            self._read[file.name] = pq.read_table(file).to_pylist()
        return self._read[file.name]

    def missing(self, at: Path, until_us: int) -> list[dict[str, Any]]:
        """Rows up to a time that the sink has in the end, and not at this moment."""
        now = self.readable(at)
        return [row for row in self.whole if self.key(row) <= until_us and row not in now]


def record(df: DataFrame, folder: Path, key: Callable[[dict[str, Any]], int], step: Callable[[int], bool]) -> Recorded:
    df.sparkSession.conf.set("spark.sql.shuffle.partitions", "1")
    writer = df.coalesce(1).writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.outputMode("append").start(str(folder / "sink"))
    number = 0
    while step(number):
        query.processAllAvailable()
        number += 1
    query.stop()
    return Recorded(folder, key)


def time_of(row: dict[str, Any]) -> int:
    return int(row["at"])


def micros(column: str) -> Any:
    return F.unix_micros(column).alias("at")


def plain(df: DataFrame, split: str) -> DataFrame:
    return df.select(split, micros("ts"))


def windowed(df: DataFrame, split: str) -> DataFrame:
    return df.groupBy(F.window("ts", "10 seconds").alias("w"), split).count().select(split, micros("w.end"), "count")


def chained(df: DataFrame, split: str) -> DataFrame:
    """Windows over windows: both emit in one batch."""
    small = df.groupBy(F.window("ts", "10 seconds").alias("w"), split).agg(F.count(F.lit(1)).alias("n"))
    large = small.groupBy(F.window("w", "30 seconds").alias("v")).agg(F.sum("n").alias("n"))
    return large.select(micros("v.end"), "n")


def distinct(df: DataFrame, split: str) -> DataFrame:
    return df.dropDuplicates([split, "ts"]).select(split, micros("ts"))


QUERIES = {"plain": plain, "windows": windowed, "windows of windows": chained, "distinct": distinct}


def made(kind: str, door: str, service: LowWatermarkService, feed: Feed, tmp_path: Path) -> Recorded:
    if door == "wrap":
        df = service.wrap(
            feed.df, name="orders", event_time="ts", split="split", strategy=STRATEGY, splits=["fast", "slow"]
        )

        def step(number: int) -> bool:
            if number < len(BATCHES):
                feed.put(*BATCHES[number])
            return number < len(BATCHES)

        return record(QUERIES[kind](df, "split"), tmp_path / "run", time_of, step)
    log = Log(tmp_path / "log")
    df = service.read(LogSource(log.folder), name="orders", strategy=STRATEGY, tasks=1, max_rows_per_batch=8)

    def append(number: int) -> bool:
        if number == 0:
            for split, ahead in (("a", 0), ("b", 40)):
                log.append(split, *(10 * n + ahead for n in range(24)))
        return number == 0

    return record(QUERIES[kind](df, "split_id"), tmp_path / "run", time_of, append)


# Each kind once, with state or without through each door; `make torture` runs all.
PAIRS = {
    ("plain", "wrap"),
    ("plain", "read"),
    ("windows", "wrap"),
    ("windows of windows", "read"),
    ("distinct", "wrap"),
}


@pytest.mark.parametrize(
    ("kind", "door"),
    [
        pytest.param(kind, door, id=f"{kind}-{door}", marks=() if (kind, door) in PAIRS else pytest.mark.torture)
        for kind in QUERIES
        for door in ("wrap", "read")
    ],
)
def test_whatever_is_passed_can_be_read_at_every_moment(
    service: LowWatermarkService, feed: Feed, tmp_path: Path, kind: str, door: str
) -> None:
    recorded = made(kind, door, service, feed, tmp_path)
    told: set[int | None] = set()
    bites = {"planned": 0, "low of windows": 0, "next": 0}
    for last, at in recorded.moments(tmp_path / "moment"):
        if not (at / "checkpoint/offsets").is_dir():
            continue
        found = completion(at / "checkpoint")
        told.add(found.until_us)
        if found.until_us is not None:
            assert not (gone := recorded.missing(at, found.until_us)), f"after {last}: {found}, and not there: {gone}"
        for rule, until_us in other_rules(at / "checkpoint").items():
            bites[rule] += bool(recorded.missing(at, until_us))
    assert len(told - {None}) >= 3, f"the low watermark moves over the moments: {told}"
    assert len(recorded.whole) >= 3, "the sink has rows"
    if door == "read" and kind == "plain":
        assert bites["planned"], "with our sources a planned batch would say it too early"
    if "windows" in kind:
        assert bites["low of windows"], "the low watermark of a committed batch would say it too early"
        assert bites["next"], "the watermark of the commit would say it too early"


def other_rules(checkpoint: Path) -> dict[str, int]:
    """Return the times that wrong rules would give, by the name of the rule."""
    planned = max(int(file.name) for file in (checkpoint / "offsets").iterdir())
    commits = (
        [int(file.name) for file in (checkpoint / "commits").glob("*")] if (checkpoint / "commits").is_dir() else []
    )
    wrong = {}

    def low(batch: int) -> int | None:
        [offset] = OffsetEntry.parse((checkpoint / f"offsets/{batch}").read_text()).heartbeats.values()
        return offset.low_us

    if (low_us := low(planned)) is not None:
        wrong["planned"] = low_us
    if commits and (low_us := low(max(commits))) is not None:
        wrong["low of windows"] = low_us
    if commits and (next_ms := next_watermark_ms((checkpoint / f"commits/{max(commits)}").read_text())):
        wrong["next"] = next_ms * 1_000
    return wrong


def test_the_service_says_the_same_as_the_checkpoint(service: LowWatermarkService, feed: Feed, tmp_path: Path) -> None:
    for batch in BATCHES:
        feed.put(*batch)
    for kind in ("plain", "windows"):
        df = service.wrap(feed.df, name=kind, event_time="ts", split="split", strategy=STRATEGY)
        checkpoint = tmp_path / kind
        writer = QUERIES[kind](df, "split").writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        query = writer.start()
        query.processAllAvailable()
        query.stop()
        [run] = [run for run in service.run_statuses() if run.status.name == kind]
        assert run.complete_until_us == completion(checkpoint).until_us
        assert run.complete_until_us is not None


def test_the_sensor_for_airflow_waits_for_all_of_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interval that a person starts by hand ends within a second. Two empty classes stand for Airflow's own."""

    class Sensor:
        timeout = 60.0

        def __init__(self, **_: object) -> None:
            pass

        def defer(self, *, trigger: Any, **_: object) -> None:
            self.trigger = trigger

    kinds: dict[str, dict[str, type]] = {
        "sdk.bases.sensor": {"BaseSensorOperator": Sensor},
        "triggers.base": {"BaseTrigger": object},
    }
    for name in ("", "sdk", "sdk.bases", "triggers", *kinds):
        module = ModuleType("airflow")
        vars(module).update({"TriggerEvent": dict, **kinds.get(name, {})})
        monkeypatch.setitem(sys.modules, f"airflow.{name}".rstrip("."), module)
    sensor = runpy.run_path(str(ROOT / "examples" / "airflow_sensor.py"))["CompleteSensor"](
        checkpoint="/checkpoint", stream="orders"
    )
    end = datetime(2026, 11, 29, 10, 0, 0, 123_457, timezone.utc)
    sensor.execute({"data_interval_end": end})
    assert sensor.trigger.past_us == us_of(end)


def test_native_sparks_own_watermark_says_so_while_a_slow_split_still_brings_the_hour(
    service: LowWatermarkService, feed: Feed, tmp_path: Path
) -> None:
    """One split is 10 minutes behind, so native Spark passes the hour 10 minutes of event time too early."""
    hour, behind = 3_600, 600
    native = feed.df.withWatermark("ts", "10 seconds")
    ours = service.wrap(
        feed.df, name="orders", event_time="ts", split="split", strategy=STRATEGY, splits=["fast", "slow"]
    )
    passed: dict[str, float] = {}
    queries = {}
    for name, df in (("native", native), ("ours", ours)):
        writer = windowed(df, "split").writeStream.format("noop").option("checkpointLocation", str(tmp_path / name))
        queries[name] = writer.start()
    enough = hour + 10.001  # a split passes the hour with this time: the bound, and a millisecond
    for at in (enough - behind - 60, enough - behind, hour - 60, hour + 10, enough, enough + 60):
        feed.put(("fast", 1, at + behind), ("slow", 1, at))
        for query in queries.values():
            query.processAllAvailable()
        last = queries["native"].lastProgress
        native_us = None if last is None else time_us(last["eventTime"]["watermark"], what="watermark")
        ours_us = completion(tmp_path / "ours").until_us
        for name, until_us in (("native", native_us), ("ours", ours_us)):
            if until_us is not None and until_us >= us(hour):
                passed.setdefault(name, at)
    for query in queries.values():
        query.stop()
    assert passed["native"] == enough - behind, "native: the slow split still has to bring 10 minutes of the hour"
    assert passed["ours"] >= enough, "ours: all rows of the hour were read"
    assert passed["ours"] - passed["native"] >= behind
