"""The columns of `wrap(late=..., watermark=...)` and of `read`: refuses what they cannot be, and adds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowmark.integration.errors import WrapRefused
from lowmark.integration.spark.kinds import session_of
from lowmark.integration.spark.late import ALLOWS_MULTIPLE
from lowmark.integration.transport import late
from lowmark.integration.transport.heartbeat import COLUMNS
from lowmark.integration.transport.split_key import quoted
from lowmark.sources.spark.source import register_class
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["LateColumns"]

_ROW = COLUMNS[2]


@dataclass(frozen=True, slots=True)
class LateColumns:
    """Names of the added columns; None: no such column.

    Attributes:
        late: true for a row at or below the watermark by which Spark drops rows in its batch.
        watermark: that watermark.
    """

    late: str | None = None
    watermark: str | None = None

    @property
    def names(self) -> list[str]:
        return [name for name in (self.late, self.watermark) if name is not None]

    def check(self, df: DataFrame, name: str) -> None:
        """Refuse columns that cannot be added to a stream.

        Raises:
            WrapRefused: with the reason and the remedy.
            SessionUnfit: the DataFrame is that of a Spark Connect client.
        """
        given: list[tuple[str, object, str]] = [("late", self.late, "is_late"), ("watermark", self.watermark, "passed")]
        for argument, column, example in given:
            if column is not None and (not isinstance(column, str) or not column):
                hint = f'pass {argument}="{example}".'
                raise WrapRefused(name, f"{argument} is {column!r:.100}, expected the name of a new column", hint)
        if not self.names:
            return
        session_of(df.sparkSession).require_driver("wrap with late= or watermark=")
        exact_case = df.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
        known = [each if exact_case else each.lower() for each in (*df.columns, *COLUMNS, *self.names)]
        for added in self.names:
            if known.count(added if exact_case else added.lower()) > 1:
                raise WrapRefused(name, f'"{added}" names a column that exists already', "choose another name.")
        if df.sparkSession.conf.get(ALLOWS_MULTIPLE) != "true":
            raise WrapRefused(
                name,
                f"with {ALLOWS_MULTIPLE}=false Spark drops rows by a watermark that it decides only after it has asked "
                "lowmark, so late rows cannot be told apart exactly",
                "leave the setting at its default true.",
            )

    def add(self, data: DataFrame, name: str, event_time: str) -> DataFrame:
        """Return the rows of a stream with the columns.

        Args:
            data: the user's rows.
            name: name of the stream.
            event_time: the TIMESTAMP column.
        """
        if not self.names:
            return data
        spark = data.sparkSession
        if not spark._jsparkSession.sessionState().dataSourceManager().dataSourceExists(late.FORMAT):
            register_class(spark, late.LateSource)
        watermark = late.watermark(spark, name)
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
            made.append(F.get(F.array(F.lit(None).cast("timestamp")), F.col(_ROW)).alias(self.watermark))
        return made
