"""The Spark session of a driver: small, silent, and with its folders in the driver's folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lowmark.integration.spark.session import clean_environment, session_settings

from tests.servers import class_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def driver_session(folder: Path, settings: Mapping[str, str], *, master: str = "local[2]") -> SparkSession:
    """Start the session of this process, in the home whose classes are archived."""
    from pyspark.sql import SparkSession

    clean_environment()
    os.environ["SPARK_HOME"] = str(class_archive.home())
    small = session_settings(folder) | class_archive.local_files() | {"spark.sql.shuffle.partitions": "1"}
    return SparkSession.builder.master(master).config(map={**small, **settings}).getOrCreate()
