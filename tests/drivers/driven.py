"""Common base of the processes that tests kill: queries, their checkpoints and their output on disk.

    python -m tests.drivers.NAME run CONFIG...     runs until it is killed
    python -m tests.drivers.NAME drain CONFIG...   reads all rows until the last window is emitted, and ends

Each configuration is a query. Most of the cost of a process is its start, so one kill hits several queries.

Output: one file per batch, written under a temporary name and renamed, so that a repeated batch replaces its file.
`torture` starts and kills the processes.
"""

from __future__ import annotations

import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lowmark.integration import LowWatermarkService
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.drivers.session import driver_session
from tests.servers.local import wait_until
from tests.sparks import CONNECTOR_FAULT

if TYPE_CHECKING:
    from typing_extensions import Self

STREAM = "orders"
Windows = list[tuple[tuple[Any, int], int]]
"""((split, start), rows) of each window."""


@dataclass(frozen=True)
class Config:
    """The settings of a driver, passed as a JSON file.

    Attributes:
        folder: holds everything that the driver writes.
    """

    folder: str

    @property
    def stream_name(self) -> str:
        """The name of the stream, one name for each query of a process."""
        return STREAM

    @property
    def checkpoint(self) -> Path:
        return Path(self.folder, "checkpoint")

    @property
    def output(self) -> Path:
        return Path(self.folder, "output")

    @property
    def started(self) -> Path:
        """A file that exists once the query has started."""
        return Path(self.folder, "started")

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls(**json.loads(path.read_text()))

    def but(self, **other: Any) -> Self:
        """The same with other values."""
        return replace(self, **other)

    def end_us(self, start: int) -> int:
        """The end of a window whose start is in the output, microseconds."""
        return start + 60_000_000

    def emitted(self) -> Windows:
        """The windows in the output, in the order of batches."""
        return [window for file in sorted(self.output.glob("*.json")) for window in read_windows(file)]


def poll_query(query: StreamingQuery, check: Callable[[], bool], what: str, *, seconds: float = 60) -> None:
    """Wait for a condition of a running query; raise the query's own error as soon as it fails."""

    def alive_and_true() -> bool:
        if not query.isActive:
            query.awaitTermination()  # raises the query's own error
            raise AssertionError(f"the query was stopped while waiting for {what}")
        return check()

    wait_until(alive_and_true, what, seconds=seconds)


def read_windows(path: Path) -> Windows:
    """The windows in one file of output."""
    return [((split, start), rows) for split, start, rows in json.loads(path.read_text())]


def write_windows(path: Path, windows: Windows) -> None:
    """Write windows to a temporary file, and rename the complete file."""
    part = path.with_suffix(".part")
    with part.open("w") as file:
        json.dump([[split, start, rows] for (split, start), rows in windows], file)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)


ConfigT = TypeVar("ConfigT", bound=Config)


class Driven(ABC, Generic[ConfigT]):
    """A query that gets killed."""

    def __init__(self, config: ConfigT) -> None:
        self.config = config

    @abstractmethod
    def windows(self, spark: SparkSession, service: LowWatermarkService) -> DataFrame:
        """Rows in windows, as three columns: split, start of the window, rows."""

    @abstractmethod
    def await_all(self, query: StreamingQuery, service: LowWatermarkService) -> None:
        """Return when the last window has been emitted."""

    def ended(self, spark: SparkSession) -> None:
        """Called after the query has ended, while the session still exists."""

    def settings(self) -> Mapping[str, str]:
        """Further settings of the session."""
        return {}

    def trigger(self, mode: str) -> Mapping[str, Any]:
        """When batches run; by default at once."""
        return {"processingTime": "0 seconds"}

    def finish(self, query: StreamingQuery, service: LowWatermarkService) -> None:
        """Stop the query when all rows are read."""
        try:
            self.await_all(query, service)
        except TimeoutError as late:
            raise TimeoutError(f"{late}\n{service.explain(self.config.stream_name)}") from late
        query.stop()

    def begin(self, spark: SparkSession, service: LowWatermarkService, mode: str) -> StreamingQuery:
        """Start the query."""
        self.config.output.mkdir(parents=True, exist_ok=True)
        writer = self.windows(spark, service).writeStream.foreachBatch(self._take).outputMode("append")
        writer = writer.trigger(**self.trigger(mode))
        return writer.option("checkpointLocation", str(self.config.checkpoint)).start()

    def _take(self, frame: DataFrame, batch_id: int) -> None:
        write_windows(
            self.config.output / f"{batch_id:06}.json", [((split, start), n) for split, start, n in frame.collect()]
        )

    def session(self) -> SparkSession:
        """A session of this process, with the folders of the configuration."""
        settings = {
            "spark.sql.streaming.minBatchesToRetain": "10000",
            "spark.sql.streaming.numRecentProgressUpdates": "1000",
        }
        # A task whose Python worker is killed is run again, as on a cluster.
        return driver_session(Path(self.config.folder), {**settings, **self.settings()}, master="local[2, 4]")


def main(driven: Callable[[ConfigT], Driven[Any]], config: type[ConfigT]) -> None:
    """Run the mode that the command line names.

    Restarts the queries once if a fault of Spark's Kafka connector ended one, as a supervisor would.
    """
    mode, *paths = sys.argv[1:]
    queries = [driven(config.read(Path(path))) for path in paths]
    try:
        _run(mode, queries)
    except StreamingQueryException as failed:
        if CONNECTOR_FAULT not in str(failed):
            raise
        _run(mode, queries)


def _run(mode: str, drivens: Sequence[Driven[Any]]) -> None:
    """Run the queries until the process is killed, or until all rows are read."""
    spark = drivens[0].session()
    with LowWatermarkService(spark) as service:
        queries = [each.begin(spark, service, mode) for each in drivens]
        for each in drivens:
            each.config.started.touch()
        if mode == "run":
            spark.streams.awaitAnyTermination()
            raise AssertionError("a query ended by itself")
        for each, query in zip(drivens, queries, strict=True):
            each.finish(query, service)
            each.ended(spark)
    spark.stop()
