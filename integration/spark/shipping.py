"""Brings lowmark to the executors of a cluster where it is not installed.

Python workers on executors process the heartbeat's rows of a restarted query, timestamp assigners, and the rows of
sources of ours, so they must be able to import lowmark and its dependencies. Pure Python packages go in one zip file,
which Spark puts on the path of every worker. Compiled packages cannot be imported from a zip file: they go in an
archive that Spark unpacks beside it, and `lowmark/__init__.py` of the zip file adds the archive to the path, behind the
installed packages. The archive is a copy of the driver's packages, so it fits executors of the same platform and
Python. pyarrow and numpy are not shipped, nor is grpcio, which executors do not need. `workers.py` names missing
packages before a query starts.

A client of Spark Connect adds both files to its session instead. Then they also serve the Python processes beside the
server's driver, which take the client's answers and read the heartbeat; so grpcio goes with them.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowmark.sources.spark import prefer_own_python

from . import workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["package", "ship"]

_PACKAGES = ("lowmark.watermark", "lowmark.sources", "lowmark.integration", "sortedcontainers")
_COMPILED = ("msgspec", "mmh3", "xxhash", "confluent-kafka")  # names of the installed distributions
_FOR_READERS = ("grpcio", "typing_extensions")  # needed beside the driver only
_ARCHIVE = "lowmark-compiled"

_shipped: set[str] = (
    set()
)  # applications, and sessions of clients: Spark accepts a file name once, and fails on another file of the same name
_shipping = threading.Lock()

# Appended to the package's own text, in the zip file alone.
_ON_EXECUTORS = f"""

def _find_compiled() -> None:
    import os
    import sys

    try:
        from pyspark import SparkFiles

        folder = os.path.abspath(os.path.join(SparkFiles.getRootDirectory(), {_ARCHIVE!r}))
    except Exception:
        return  # no worker of Spark's
    if os.path.isdir(folder) and folder not in sys.path:
        sys.path.append(folder)


_find_compiled()
"""


def ship(spark: SparkSession) -> None:
    """Give every executor of a session the driver's lowmark and its dependencies; with Spark Connect also the server.

    Call it before the first query starts, and with Spark Connect before the service is made; a second call has no
    effect, so a notebook's cell may run twice. Not needed if the executors' Python has lowmark installed, nor in local
    mode. confluent-kafka is shipped, too; the modules that other sources require must be installed there, and
    `LowWatermarkService.read` names the missing ones.

    Args:
        spark: the session.

    Raises:
        WorkersUnfit: the executors' Python has another version, or lacks pyarrow or numpy. A client of Spark Connect is
            told by `LowWatermarkService`.
    """
    if not hasattr(spark, "_jsparkSession"):
        _ship_to_server(spark)
        return
    context = spark.sparkContext
    with _shipping:
        if context.applicationId not in _shipped:
            folder = Path(tempfile.mkdtemp(prefix="lowmark-ship-"))  # Spark serves the files from here
            context.addArchive(f"{compiled(folder / f'{_ARCHIVE}.tar.gz')}#{_ARCHIVE}")
            context.addPyFile(str(package(folder / "lowmark.zip")))
            _shipped.add(context.applicationId)
    prefer_own_python(spark)
    workers.check(spark)


def _ship_to_server(spark: Any) -> None:
    """Give the session of a client its lowmark: to the processes beside the server's driver, and to the executors."""
    with _shipping, tempfile.TemporaryDirectory(prefix="lowmark-ship-") as place:
        if spark.session_id not in _shipped:
            archive = compiled(Path(place, f"{_ARCHIVE}.tar.gz"), _COMPILED + _FOR_READERS)
            spark.addArtifacts(f"{archive}#{_ARCHIVE}", archive=True)
            spark.addArtifacts(str(package(Path(place, "lowmark.zip"))), pyfile=True)
            _shipped.add(spark.session_id)


def package(target: Path) -> Path:
    """Write the importable parts of the installed packages into a zip file and return its path."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        own = importlib.import_module("lowmark").__file__
        assert own is not None, "lowmark is a regular package"
        archive.writestr("lowmark/__init__.py", Path(own).read_text(encoding="utf-8") + _ON_EXECUTORS)
        for name in _PACKAGES:
            source = importlib.import_module(name).__file__
            assert source is not None, f"{name} is a regular package"
            folder = Path(source).parent
            for file in sorted(folder.rglob("*.py")):
                archive.write(file, Path(*name.split(".")) / file.relative_to(folder))
    return target


def compiled(target: Path, names: Iterable[str] = _COMPILED) -> Path:
    """Write this Python's compiled packages that are needed elsewhere into an archive, and return its path."""
    with tarfile.open(target, "w:gz", compresslevel=1) as archive:
        for name in names:
            try:
                files = importlib.metadata.files(name) or []
            except importlib.metadata.PackageNotFoundError:
                continue  # an extra that this driver does not use
            for file in files:
                # Programs lie outside of the packages; stubs, bytecode and metadata are not needed on executors.
                if ".." in file.parts or file.suffix in {".pyc", ".pyi"} or file.parts[0].endswith(".dist-info"):
                    continue
                archive.add(str(file.locate()), arcname=str(file))
    return target
