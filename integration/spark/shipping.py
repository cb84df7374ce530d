"""Brings lowmark to the executors of a cluster where it is not installed.

The heartbeat's rows of a restarted query, timestamp assigners and what sources of ours read pass Python workers on
executors, so these must be able to import lowmark, and what it needs. What is pure Python is shipped. What is compiled
only an installation brings: pyarrow and numpy; for assigners and generators in Python mmh3 and xxhash; for sources of
ours these and msgspec, for Kafka confluent-kafka. `workers.py` says what is missing, before a query is started.
"""

from __future__ import annotations

import importlib
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from lowmark.sources.spark import prefer_own_python

from . import workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["package", "ship"]

_PACKAGES = ("lowmark.watermark", "lowmark.sources", "lowmark.integration", "sortedcontainers")


def ship(spark: SparkSession) -> None:
    """Give every executor of a session the lowmark that this driver runs.

    Call it once, before the first query starts. It is not needed where the executors' Python has lowmark installed,
    nor in local mode.

    Args:
        spark: the session.

    Raises:
        WorkersUnfit: the executors' Python is another version, or lacks pyarrow or numpy.
        TypeError: the session is a Spark Connect session.
    """
    if not hasattr(spark, "_jsparkSession"):
        raise TypeError(
            "ship needs the session of a driver, got a Spark Connect session. "
            "Hint: install lowmark where the server and its executors run."
        )
    folder = Path(tempfile.mkdtemp(prefix="lowmark-ship-"))  # Spark serves the file from there for as long as it runs
    spark.sparkContext.addPyFile(str(package(folder / "lowmark.zip")))
    prefer_own_python(spark)
    workers.check(spark)


def package(target: Path) -> Path:
    """Write the importable parts of the installed packages into a zip file and return its path."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("lowmark/", b"")  # a namespace is found in a zip file only by its folder's entry
        for name in _PACKAGES:
            source = importlib.import_module(name).__file__
            assert source is not None, f"{name} is a regular package"
            folder = Path(source).parent
            for file in sorted(folder.rglob("*.py")):
                archive.write(file, Path(*name.split(".")) / file.relative_to(folder))
    return target
