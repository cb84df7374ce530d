"""The abilities of sessions of Spark 4.0 to 4.3, and what lowmark does about missing ones. Differences for readers
stand in `lowmark.sources.spark.versions`, below this floor.

                            4.0     4.1     4.2     4.3
    exact maximum of each   no      no      yes     yes     else rows are reduced in Python (`transport/mapped.py`)
    split in the JVM
    observed metrics of     all     all     all     last    4.3 is told to report all of them
    several actions
    asks a reader for       no      no      yes     yes     else it looks at the checkpoint when it is made
    limits at its start                                     (`transport/heartbeat.py`)
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from lowmark.integration.errors import WrapRefused
from lowmark.sources.spark.versions import NEWEST_TRIED, arrow_schema, check_version, major_minor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("lowmark")

# The newest published connector for each major.minor version; 4.3 has none yet and runs the connector of 4.2.
# A version that is not listed gets the connector of its own version, which may not be published.
_CONNECTORS = {(4, 0): "4.0.1", (4, 1): "4.1.1", (4, 2): "4.2.0", (4, 3): "4.2.0"}
_SKETCH = "tuple_sketch_agg_double"
# Applications that were told what the second transport costs, and versions of Spark that were warned of.
_told: set[str] = set()


def check_session(spark: SparkSession) -> None:
    """Refuse a Spark outside the range (`UnsupportedSpark`), and warn once of one that lowmark was never tried with."""
    check_version(spark.version, "the session's Spark")
    if major_minor(spark.version) > NEWEST_TRIED and spark.version not in _told:
        _told.add(spark.version)
        log.warning(
            "Spark %s is newer than %d.%d, the newest that lowmark was tried with. Hint: try the query on rows whose "
            "result you know, and look at lowmark status, because Spark's reports may have changed.",
            spark.version, *NEWEST_TRIED,
        )  # fmt: skip


def kafka_connector() -> str:
    """Return the Maven coordinates of the Kafka connector for the installed pyspark."""
    import pyspark

    version = _CONNECTORS.get(major_minor(pyspark.__version__), pyspark.__version__)
    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}"


def prepare_session(spark: SparkSession) -> None:
    """Set the options that observed metrics need.

    `foreachBatch` on Spark 4.3 reports only the last action's metrics unless told otherwise (SPARK-58183).
    """
    if major_minor(spark.version) >= (4, 3):
        spark.conf.set("spark.sql.legacy.observeMetricsAggregateAllAttempts", "true")


def observes_splits(spark: SparkSession) -> bool:
    """Whether the JVM has the function, whatever its version, that keeps the exact maximum of each split."""
    return spark.catalog.functionExists(_SKETCH)


def tell_cost(spark: SparkSession, name: str) -> None:
    """Log the cost of rows that Python reduces, once in an application."""
    application = spark.sparkContext.applicationId
    if application in _told:
        return
    _told.add(application)
    log.warning(
        'stream "%s": Spark %s has no %s, so the rows of wrapped streams pass through Python once. It is as exact and '
        "costs about a microsecond of processor time a row, which Spark 4.2 does not: docs/spark-versions.md.",
        name, spark.version, _SKETCH,
    )  # fmt: skip


def check_zone(df: DataFrame, name: str) -> None:
    """Refuse a zone of the session that only Java knows, because functions see times in it. Raises `WrapRefused`."""
    import pyarrow as pa
    from pyspark.sql.types import TimestampType

    zone = df.sparkSession.conf.get("spark.sql.session.timeZone")
    try:
        pa.scalar(0, pa.timestamp("us", zone)).as_py()
    except (LookupError, ValueError):
        if any(isinstance(column.dataType, TimestampType) for column in df.schema.fields):
            raise WrapRefused(
                name,
                f'the time zone of the session is "{zone}", in which the functions of the strategy cannot see times, '
                "because Python does not know the zone",
                'set spark.sql.session.timeZone to a zone such as "Asia/Shanghai", or to an offset such as "+08:00".',
            ) from None


def check_arrow(df: DataFrame, name: str) -> None:
    """Refuse columns that cannot pass through Python. Raises `WrapRefused`."""
    from pyspark.errors import PySparkException

    for column in df.schema.fields:
        try:
            arrow_schema(type(df.schema)([column]))
        except (PySparkException, ValueError) as cannot:  # ValueError: of Arrow itself, as for array<void>
            kind, version = column.dataType.simpleString(), df.sparkSession.version
            raise WrapRefused(
                name,
                f'column "{column.name}" is {kind}, and rows of this stream pass through Python on Spark {version}, '
                f"where that type cannot ({cannot})",
                "drop it or cast it before wrapping.",
            ) from cannot
