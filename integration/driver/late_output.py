"""The columns (`late=`, `watermark=`) and the files (`late_to=`) of late rows, for `wrap` and `read`.

Refuses arguments that do not fit a stream, and adds the columns, and the branch that writes the files.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from lowmark.integration.errors import WrapRefused
from lowmark.integration.process.arrow_files import file_system
from lowmark.integration.spark.checkpoint_store import is_elsewhere, local_path
from lowmark.integration.spark.late import ALLOWS_MULTIPLE
from lowmark.integration.spark.offset_log import EVOLUTION
from lowmark.integration.spark.sessions import session_of
from lowmark.integration.spark.versions import check_arrow
from lowmark.integration.transport import late
from lowmark.integration.transport.accumulated import map_in_arrow
from lowmark.integration.transport.heartbeat import COLUMNS
from lowmark.integration.transport.late_files import LATE_BY, UNTIL, WATERMARK, LateFileWriter
from lowmark.integration.transport.split_key import quoted
from lowmark.sources.spark.settings import is_true
from lowmark.sources.spark.source import register_class
from lowmark.sources.spark.versions import arrow_schema
from lowmark.watermark import WatermarkStrategy
from lowmark.watermark.printable import first_line, in_one_line
from pyarrow import ArrowException
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StructField, StructType, TimestampType

from . import check

_ROW = COLUMNS[2]
_UNTIL_HINT = "pass an expression over the columns of the rows, such as late_until=\"window(ts, '10 minutes').end\"."


@dataclass(frozen=True, slots=True)
class LateOutput:
    """The arguments of `LowWatermarkService.wrap` about the late rows of a stream."""

    late: str | None = None
    watermark: str | None = None
    folder: str | os.PathLike[str] | None = None  # `late_to`
    until: str | Column | None = None  # `late_until`

    @property
    def names(self) -> list[str]:
        return [name for name in (self.late, self.watermark) if name is not None]

    def check(self, df: DataFrame, name: str, strategy: WatermarkStrategy) -> None:
        """Refuse columns and a folder that cannot be: `WrapRefused`, and `SessionUnfit` for a Spark Connect client."""
        self._check_columns(name)
        self._check_folder(name)
        if not self.names and self.folder is None:
            return
        _check_session(df, name)
        for added in _known_already(df, self.names):
            raise WrapRefused(name, f'"{added}" names a column that exists already', "choose another name.")
        if self.folder is not None:
            _check_rows_of_files(df, name, strategy)

    def _check_columns(self, name: str) -> None:
        given: list[tuple[str, object, str]] = [("late", self.late, "is_late"), ("watermark", self.watermark, "passed")]
        for argument, column, example in given:
            if column is not None and (not isinstance(column, str) or not column):
                hint = f'pass {argument}="{example}".'
                raise WrapRefused(name, f"{argument} is {column!r:.100}, expected the name of a new column", hint)

    def _check_folder(self, name: str) -> None:
        folder, until = cast("object", self.folder), cast("object", self.until)
        if folder is None and until is not None:
            raise WrapRefused(name, "late_until has no meaning without late_to", 'pass late_to="/data/late", too.')
        if folder is not None:
            check.folder(name, "late_to", folder, 'pass late_to="/data/late" or late_to="s3a://bucket/late".')
        if not isinstance(until, str | Column | None):
            fact = f"late_until is {until!r:.100}, expected an SQL expression or a Column"
            raise WrapRefused(name, fact, _UNTIL_HINT)

    def add(self, data: DataFrame, name: str, event_time: str) -> DataFrame:
        if not self.names:
            return data
        watermark = _watermark(data.sparkSession, name)
        if self.late is not None:
            is_late = F.coalesce(F.col(quoted(event_time)) <= watermark, F.lit(False))
            data = data.withColumn(self.late, is_late)
        return data if self.watermark is None else data.withColumn(self.watermark, watermark)

    def of_heartbeat(self) -> list[Column]:
        """The columns of the heartbeat's row: no literals, because a filter on them could be folded with these."""
        made = []
        if self.late is not None:
            made.append((F.col(_ROW) > 0).alias(self.late))
        if self.watermark is not None:
            made.append(F.get(F.array(F.lit(None).cast("timestamp_ltz")), F.col(_ROW)).alias(self.watermark))
        return made

    def branch(self, df: DataFrame, name: str, event_time: str) -> DataFrame | None:
        """Return the branch of a query that writes the late rows of each batch and yields no row; None: no folder.

        Args:
            df: the user's rows, checked by `wrap.check_input` and `check`, before they are measured.

        Raises `WrapRefused`.
        """
        if self.folder is None:
            return None
        writer = LateFileWriter(name, event_time, _reached(name, os.fspath(self.folder)))
        dropped = self._timed(df, name, event_time).filter(F.col(UNTIL) <= _watermark(df.sparkSession, name))
        # The branch is united with rows that have the added columns. These come from Python, because Spark would remove
        # a branch in which a filter on literals is false.
        kinds = {self.late: BooleanType(), self.watermark: TimestampType()}
        more = [StructField(column, kind) for column, kind in kinds.items() if column is not None]
        # One partition, because a batch has one file.
        return map_in_arrow(dropped.repartition(1), writer, StructType([*df.schema.fields, *more]))

    def _timed(self, df: DataFrame, name: str, event_time: str) -> DataFrame:
        """Return the rows with the time until which they count; a row of several windows comes once for each."""
        until = F.col(quoted(event_time)) if self.until is None else self.until
        try:
            timed = df.withColumn(UNTIL, F.expr(until) if isinstance(until, str) else until)
        except PySparkException as failed:
            fact = f"late_until cannot be computed ({first_line(failed):.300})"
            raise WrapRefused(name, fact, _UNTIL_HINT) from failed
        kind = timed.schema[UNTIL].dataType
        if not isinstance(kind, TimestampType):
            raise WrapRefused(name, f"late_until is {kind.simpleString()}, expected timestamp", _UNTIL_HINT)
        return timed


def _check_rows_of_files(df: DataFrame, name: str, strategy: WatermarkStrategy) -> None:
    """Refuse rows that `late_to` cannot write."""
    if strategy.timestamp_assigner is not None:
        raise WrapRefused(
            name,
            "late_to reads the source beside the timestamp assigner, so it does not know the assigned times",
            "make the event time a column before wrapping, and leave the assigner out.",
        )
    if is_true(df.sparkSession.conf.get(EVOLUTION, "false")):
        raise WrapRefused(
            name,
            f"late_to reads the source of its stream twice, and with {EVOLUTION} Spark takes each named source once",
            'leave late_to out; late="is_late" marks the same rows.',
        )
    for added in _known_already(df, [UNTIL, WATERMARK, LATE_BY]):
        fact = f'late_to adds a column "{added}" to its files, and the rows have one'
        raise WrapRefused(name, fact, "rename it before wrapping.")
    check_arrow(df, name)
    _check_parquet(df, name)


def _check_parquet(df: DataFrame, name: str) -> None:
    import pyarrow.parquet as pq

    try:
        pq.ParquetWriter(io.BytesIO(), arrow_schema(df.schema)).close()
    except ArrowException as cannot:  # of a struct without fields
        fact = f"late_to writes Parquet, and the rows have a column that it does not take ({in_one_line(cannot)})"
        raise WrapRefused(name, fact, "drop it or cast it before wrapping.") from cannot


def _check_session(df: DataFrame, name: str) -> None:
    """Refuse a session whose queries cannot be told their watermarks."""
    session_of(df.sparkSession).require_driver("wrap with late=, watermark= or late_to=")
    if not is_true(df.sparkSession.conf.get(ALLOWS_MULTIPLE)):
        raise WrapRefused(
            name,
            f"with {ALLOWS_MULTIPLE}=false Spark drops rows by a watermark that it decides only after it has asked "
            "lowmark, so late rows cannot be told apart exactly",
            "leave the setting at its default true.",
        )


def _known_already(df: DataFrame, added: list[str]) -> Iterator[str]:
    """The added columns that would be there twice."""
    exact_case = is_true(df.sparkSession.conf.get("spark.sql.caseSensitive"))
    known = [each if exact_case else each.lower() for each in (*df.columns, *COLUMNS, *added)]
    return (each for each in added if known.count(each if exact_case else each.lower()) > 1)


def _watermark(spark: SparkSession, name: str) -> Column:
    if not spark._jsparkSession.sessionState().dataSourceManager().dataSourceExists(late.FORMAT):
        register_class(spark, late.LateSource)
    return late.watermark(spark, name)


def _reached(name: str, folder: str) -> str:
    """Return the address of a folder for tasks, which run in other folders of this machine."""
    address = folder.rstrip("/") if is_elsewhere(folder) else str(local_path(folder).resolve())
    try:
        file_system(address)
    except (OSError, ValueError, ArrowException) as failed:
        fact = f'late_to "{folder}" cannot be reached ({in_one_line(failed)})'
        hint = "pass a folder of this machine, or one on S3, HDFS, Google's storage or Azure's that Arrow reaches."
        raise WrapRefused(name, fact, hint) from failed
    return address
