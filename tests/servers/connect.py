"""A Connect server in another process, and queries of its client with the same interface as those of a driver."""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowmark.integration.spark.connect_query import progress_of
from lowmark.integration.spark.progress import Progress
from lowmark.integration.spark.session import SHORT_LIVED_JVM
from lowmark.integration.transport.told import Told, _folder
from msgspec import json

from tests.drivers.cluster import bare_python
from tests.integration.feed import Ran, Row
from tests.servers import class_archive
from tests.servers.local import LOCALHOST, Process, free_ports, port_open, require_java, started, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SERVER_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextmanager
def connect_server(folder: Path, *settings: str, kind: str = "server") -> Iterator[tuple[Process, int]]:
    """Yield a driver that serves clients, and its port.

    Args:
        folder: an empty folder for its log and its query.
        settings: further settings of Spark, each as NAME=VALUE.
        kind: "driver" has a service and a wrapped query of its own.
    """
    require_java()

    def start(attempt: int) -> tuple[Process, int]:
        [port] = free_ports(1)
        place = folder / str(attempt)
        place.mkdir()
        log = place / "log"
        command = [sys.executable, "-m", "tests.drivers.connect_app", kind, str(place), str(port), *settings]
        server = Process("Connect's server", command, log)
        server.start(lambda: "ready" in log.read_text())
        return server, port

    server, port = started(start)
    try:
        yield server, port
    finally:
        server.stop()


@contextmanager
def bare_server(folder: Path) -> Iterator[int]:
    """Yield the port of Spark's own Connect server, whose Python has no lowmark; its log goes to a folder."""
    require_java()
    python, home = bare_python(folder / "bare"), class_archive.home()
    environment = [f"SPARK_HOME={home}", f"PYSPARK_PYTHON={python}", f"PYSPARK_DRIVER_PYTHON={python}"]

    def start(_attempt: int) -> tuple[Process, int]:
        [port] = free_ports(1)
        settings = {
            "spark.connect.grpc.binding.address": LOCALHOST,
            "spark.connect.grpc.binding.port": str(port),
            "spark.driver.extraJavaOptions": SHORT_LIVED_JVM,
            "spark.driver.host": LOCALHOST,
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.ui.enabled": "false",
        }
        submit = [str(home / "bin" / "spark-submit"), "--master", "local[2]", "--class", _SERVER_CLASS]
        options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        command = ["env", "-u", "PYTHONPATH", *environment, *submit, *options, "spark-internal"]
        server = Process("Spark's Connect server", command, folder / "server.log")
        server.start(lambda: port_open(port))
        return server, port

    server, port = started(start)
    try:
        yield port
    finally:
        server.stop()


class RanThroughConnect(Ran):
    """A running query of a client.

    Args:
        query: the query.
        table: its output in the server's memory.
        place: the folder for its output, because no query goes on with a table in memory; None: `table` has it.
    """

    def __init__(self, query: Any, table: DataFrame, place: Path | None) -> None:
        self.query, self._table, self._place = query, table, place

    @property
    def rows(self) -> list[Row]:  # type: ignore[override]  # what is there now
        return [*map(tuple, self._table.collect())] if self._place is None else written(self._place)

    def settle(self) -> None:
        """Wait until all input was processed, and everything that follows from the client's answers, too."""
        batches = -1
        while len(self.progress) > batches:
            batches = len(self.progress)
            self.query.processAllAvailable()
            wait_until(self._told, "the server has the answer to the newest batch", seconds=30)
            self.query.processAllAvailable()

    def _told(self) -> bool:
        """Whether the server has answers that know all batches of the readers, and that are in an offset already.

        Also True if the query has ended: the caller's next call of Spark raises its error.
        """
        if not self.query.isActive:
            return True
        progress = self.progress
        tokens = [end.token for each in progress for _, end in each.heartbeats()]
        for _, end in progress[-1].heartbeats() if progress else []:
            [*files] = _folder().glob(f"*-{end.token}.told")
            told = json.decode(files[0].read_bytes(), type=Told) if files else None
            if told is None or told.batches < tokens.count(end.token) or told.reply.state != end.state:
                return False
        return True

    @property
    def progress(self) -> list[Progress]:
        return [progress_of(each) for each in self.query.recentProgress]

    @property
    def newest(self) -> Progress | None:
        last = self.query.lastProgress
        return None if last is None else progress_of(last)


def written(place: Path) -> list[Row]:
    """Return the rows that `foreachBatch` has written to a folder, in their order."""
    parts = [pickle.loads(path.read_bytes()) for path in sorted(place.glob("*.rows"))]  # noqa: TID251  # of this test
    return [row for part in parts for row in part]


def start_through_connect(
    df: DataFrame,
    checkpoint: str,
    *,
    mode: str = "append",
    trigger: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> RanThroughConnect:
    """See `tests.integration.feed.start`, whose function would run beside the server."""
    df.sparkSession.conf.set("spark.sql.shuffle.partitions", "1")
    name = name or f"rows_{time.monotonic_ns()}"
    writer = df.writeStream.queryName(name).outputMode(mode).option("checkpointLocation", checkpoint)
    if trigger is not None:
        writer = writer.trigger(**trigger)
    if not Path(checkpoint, "offsets").exists():
        query = writer.format("memory").start()
        return RanThroughConnect(query, df.sparkSession.table(name), None)
    place = Path(checkpoint).with_name(f"rows-{time.monotonic_ns()}")
    place.mkdir()
    target = str(place)

    def collect(batch: DataFrame, _batch_id: int) -> None:
        from pathlib import Path

        part = Path(target, f"{time.monotonic_ns():020}")
        part.write_bytes(pickle.dumps([tuple(row) for row in batch.collect()]))
        part.rename(part.with_suffix(".rows"))

    return RanThroughConnect(writer.foreachBatch(collect).start(), df, place)
