"""The version of Spark that the tests run on, as in `make test SPARK=4.0.5`, and helpers for its differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyspark
import pytest
from lowmark.sources.spark.versions import PASSES_LIMITS, major_minor
from pyspark.errors import StreamingQueryException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_STREAMING = "org.apache.spark.sql.execution.streaming"
IN_ROCKSDB = {"spark.sql.streaming.stateStore.providerClass": f"{_STREAMING}.state.RocksDBStateStoreProvider"}
"""The setting of queries with their state in RocksDB, in a session of their own."""
# Spark 4.1 moved the class to another package.
_PACKAGE = _STREAMING if major_minor(pyspark.__version__) < (4, 1) else f"{_STREAMING}.checkpointing"
CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"
OWN_CHECKPOINTS = {CHECKPOINTS: f"{_PACKAGE}.FileContextBasedCheckpointFileManager"}
"""The setting of Spark's own manager of checkpoints, for tests of kills."""
LIGHT = {
    CHECKPOINTS: f"{_PACKAGE}.FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.pollingDelay": "50ms",
    "spark.ui.enabled": "false",
}
"""Settings of every Spark that the tests start, which cost a test nothing and take processor time from it.

Hadoop's local file system asks `readlink`, a process, four times before Spark's own manager of checkpoints renames a
file: a hundred processes a second, and a fifth of a test's time. A query that waits for rows looks for them every 10 ms
by default, which takes a third of a core while a test waits for something else.
"""
WITHOUT_CODEGEN = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Settings of the shared session: Spark interprets its plans, because compiling takes an eighth of the processor time.

A query of a test reads a few rows. Sessions of their own compile as by default: those of other versions
(`version_app`), of Spark Connect, of the README's program, of most kills, and of benchmarks.
"""
YOUNG_OBJECTS = "-Xms1g -Xmn640m"
"""An option of the JVM of the shared session: five times as much room for new objects as by default.

The JVM collects garbage more seldom, and takes a tenth less processor time.
"""
CHECKSUMS = {"fs.file.impl": "lowmark.tests.LocalFiles", "fs.file.impl.disable.cache": "true"}
"""Settings of queries of the shared session that keep checksums beside files of their checkpoints, as by default."""
IN_ROCKSDB_HERE = {**IN_ROCKSDB, **CHECKSUMS}
"""Settings of queries of the shared session with their state in RocksDB, which needs the checksums."""
CONNECTOR_FAULT = 'the return value of "scala.Option.get()" is null'
"""The error of a query on Spark's Kafka connector 4.1 that reports a batch for the second time (SPARK-55271).

The batch is committed and the next start continues, so these tests start the query again, as supervisors do in
production.
"""


def since(version: str, what: str) -> pytest.MarkDecorator:
    """Make a mark that skips a test on older versions of Spark, with the reason.

    >>> since("4.2", "named sources").kwargs["reason"]
    'Spark has named sources since 4.2'
    """
    older = major_minor(pyspark.__version__) < major_minor(version)
    return pytest.mark.skipif(older, reason=f"Spark has {what} since {version}")


@contextmanager
def settings(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Give the session these settings for a while, because all tests share the session."""
    for key, value in values.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in values:
            spark.conf.unset(key)


def run_to_the_end(run: Callable[[], None], seen: Sized) -> None:
    """Run a plain stream with AvailableNow until all rows are seen: one run, or one for each batch before Spark 4.2."""
    before = -1
    while len(seen) > before:
        before = len(seen)
        run()
        if PASSES_LIMITS:
            return


def start_again(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query whose last batch runs again, and wait; start it twice if the connector has its known fault."""
    query = writer.start()
    try:
        query.processAllAvailable()
    except StreamingQueryException as failed:
        if CONNECTOR_FAULT not in str(failed):
            raise
        query = writer.start()
        query.processAllAvailable()
    return query


OBSERVES = since("4.2", "the aggregate with which a service's audit observes splits")
