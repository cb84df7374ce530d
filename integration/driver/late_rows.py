"""The column of `wrap(late=...)` and `read(late=...)`: refuses what it cannot be, and adds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowmark.integration.errors import WrapRefused
from lowmark.integration.spark.late import ALLOWS_MULTIPLE
from lowmark.integration.transport import late
from lowmark.integration.transport.heartbeat import COLUMNS
from lowmark.integration.transport.split_key import quoted
from lowmark.sources.spark.source import register_class
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["check", "mark"]


def check(df: DataFrame, name: str, column: object) -> None:
    """Refuse a column of late rows that cannot be added to a stream; None asks for none.

    Raises:
        WrapRefused: with the reason and the remedy.
    """
    if column is None:
        return
    if not isinstance(column, str) or not column:
        raise WrapRefused(name, f"late is {column!r:.100}, expected the name of a new column", 'pass late="is_late".')
    if not hasattr(df, "_jdf"):
        raise WrapRefused(
            name,
            f'late="{column}" needs a session in this process, and the DataFrame is one of Spark Connect',
            "leave it out, or wrap in the driver, in a session without remote().",
        )
    exact_case = df.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    taken = [*df.columns, *COLUMNS]
    if column in taken or (not exact_case and column.lower() in map(str.lower, taken)):
        raise WrapRefused(name, f'late="{column}" names a column that exists already', "choose another name.")
    if df.sparkSession.conf.get(ALLOWS_MULTIPLE) != "true":
        raise WrapRefused(
            name,
            f"with {ALLOWS_MULTIPLE}=false Spark drops rows by a watermark that it decides only after it has asked "
            "lowmark, so late rows cannot be told apart exactly",
            "leave the setting at its default true; it is kept in the checkpoint, so the query needs a new one.",
        )


def mark(data: DataFrame, name: str, *, event_time: str, column: str) -> DataFrame:
    """Return the rows of a stream with the column of late rows.

    Args:
        data: the user's rows.
        name: name of the stream.
        event_time: the TIMESTAMP column.
        column: name of the new column.
    """
    spark = data.sparkSession
    if not spark._jsparkSession.sessionState().dataSourceManager().dataSourceExists(late.FORMAT):
        register_class(spark, late.LateSource)
    return data.withColumn(column, late.is_late(spark, name, F.col(quoted(event_time))))
