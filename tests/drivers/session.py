"""The Spark session of a driver: small, silent, and with its folders in the driver's folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lowmark.integration.spark.session import SHORT_LIVED_JVM, clean_environment

from tests.servers import class_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def driver_session(folder: Path, settings: Mapping[str, str], *, master: str = "local[2]") -> SparkSession:
    """Start the session of this process, in the home whose classes are archived."""
    from pyspark.sql import SparkSession

    clean_environment()
    os.environ["SPARK_HOME"] = str(class_archive.home())
    jvm = f"-Dderby.system.home={folder / 'derby'} -Duser.timezone=UTC {SHORT_LIVED_JVM}"
    small: dict[str, bool | float | int | str | None] = {
        "spark.driver.extraJavaOptions": jvm,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(folder / "local"),
        "spark.log.level": "WARN",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    return SparkSession.builder.master(master).config(map={**small, **settings}).getOrCreate()
