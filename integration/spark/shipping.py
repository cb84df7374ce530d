"""Brings lowmark to the executors of a cluster where it is not installed.

Python workers on executors process the heartbeat's rows of a restarted query, timestamp assigners, and the rows of
sources of ours, so they must be able to import lowmark and its dependencies. Pure Python packages go in one zip file,
which Spark puts on the path of every worker. Compiled packages cannot be imported from a zip file: they go in an
archive that Spark unpacks beside it, and `lowmark/__init__.py` of the zip file adds the archive to the path, behind the
installed packages. The archive is a copy of the driver's packages, so it fits executors of the same platform and
Python. pyarrow and numpy are not shipped, nor is grpcio, which executors do not need. `workers.py` names missing
packages before a query starts.

A client of Spark Connect adds both files to its session instead. Then they also serve the Python processes beside the
server's driver, which take the client's answers and read the heartbeat; so grpcio goes with them. Readers of streams do
not look for files in the folder of their session, but all in one folder (`_STREAMS`). So the analysis of `ShipSource`
copies the files there, under names of their content, which sessions with other versions of lowmark do not share.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.metadata
import importlib.resources
import shutil
import sys
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowmark.sources.spark import prefer_own_python
from lowmark.sources.spark.source import register_class
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import BooleanType, StructType

from . import workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACKAGES = ("lowmark.watermark", "lowmark.sources", "lowmark.integration", "sortedcontainers")
_COMPILED = ("msgspec", "mmh3", "xxhash", "confluent-kafka")  # names of the installed distributions
_FOR_READERS = ("grpcio", "typing_extensions")  # needed beside the driver only
_ARCHIVE = "lowmark-compiled"

_STREAMS = "streaming_job"
"""The folder, beside those of sessions, where a reader of a stream looks: a constant in Spark's
`PythonStreamingSourceRunner.init`, in 4.2 and 4.3."""

_shipped: set[str] = set()
"""Applications, and sessions of clients: Spark accepts a file name once, and fails on another file of the same name."""
_shipping = threading.Lock()

# Appended to the package's own text, in the zip file alone.
_ON_EXECUTORS = """

def _find_compiled() -> None:
    import os
    import sys

    try:
        from pyspark import SparkFiles

        folder = os.path.abspath(os.path.join(SparkFiles.getRootDirectory(), {archive!r}))
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

    Raises:
        WorkersUnfit: the executors' Python, or the server's, has another version, or lacks pyarrow or numpy.
    """
    if not hasattr(spark, "_jsparkSession"):
        _ship_to_server(spark)
        return
    context = spark.sparkContext
    with _shipping:
        if context.applicationId not in _shipped:
            # Until this process ends, because Spark serves the files from here to executors that come later. In Spark's
            # own folder, because Spark's JVM removes that also after a SIGTERM or SIGKILL of this process.
            folder = Path(tempfile.mkdtemp(prefix="lowmark-ship-", dir=context._temp_dir))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            archive, zipped = compiled(folder / f"{_ARCHIVE}.tar.gz"), package(folder / "lowmark.zip")
            context.addArchive(f"{archive}#{_ARCHIVE}")  # when both are written, because Spark takes each name once
            context.addPyFile(str(zipped))
            _shipped.add(context.applicationId)
    prefer_own_python(spark)
    workers.check(spark)


def _ship_to_server(spark: Any) -> None:
    with _shipping, tempfile.TemporaryDirectory(prefix="lowmark-ship-") as place:
        if spark.session_id in _shipped:
            return
        names = _COMPILED + _FOR_READERS
        mark = _content(package(Path(place, "lowmark.zip")), names)
        zipped, unpacked = f"lowmark-{mark}.zip", f"{_ARCHIVE}-{mark}"
        spark.addArtifacts(f"{compiled(Path(place, f'{unpacked}.tar.gz'), names)}#{unpacked}", archive=True)
        spark.addArtifacts(str(package(Path(place, zipped), unpacked)), pyfile=True)
        register_class(spark, ShipSource)
        shipped = spark.read.format(ShipSource.name()).options(zipped=zipped, unpacked=unpacked)
        with workers.on_the_server():
            shipped.load().schema  # noqa: B018  # the analysis copies the files
        _shipped.add(spark.session_id)


def _content(zipped: Path, names: Iterable[str]) -> str:
    """Return 12 hexadecimal digits that name what is shipped."""
    with zipfile.ZipFile(zipped) as archive:
        files = sorted((each.filename, each.CRC) for each in archive.infolist())
    versions = [(each.name, each.version) for each in _installed(names)]
    return hashlib.sha256(repr((sys.version_info[:2], versions, files)).encode()).hexdigest()[:12]


def _installed(names: Iterable[str]) -> Iterator[importlib.metadata.Distribution]:
    for name in names:
        with suppress(importlib.metadata.PackageNotFoundError):  # an extra that this driver does not use
            yield importlib.metadata.distribution(name)


class ShipSource(DataSource):
    """A source without rows whose analysis, beside a server's driver, gives a session's files to readers of streams.

    Options: `zipped` and `unpacked`, names in the folder of the session.
    """

    @classmethod
    def name(cls) -> str:
        return "lowmark_ship"

    def schema(self) -> StructType:
        from pyspark import SparkFiles

        session = Path(SparkFiles.getRootDirectory())
        for name in (self.options["zipped"], self.options["unpacked"]):
            lend(session / name, session.with_name(_STREAMS))
        return StructType().add("shipped", BooleanType())


def lend(source: Path, into: Path) -> None:
    """Copy a file or a folder into a folder, in one step; do nothing if the folder has it."""
    into.mkdir(exist_ok=True)
    if (into / source.name).exists():
        return
    with tempfile.TemporaryDirectory(prefix=".", dir=into) as place:
        part = Path(place, source.name)
        if source.is_dir():
            shutil.copytree(source, part)
        else:
            shutil.copy2(source, part)
        try:
            part.rename(into / source.name)
        except OSError:
            if not (into / source.name).exists():  # else another session has made the folder meanwhile
                raise


def package(target: Path, archive_name: str = _ARCHIVE) -> Path:
    """Write the pure packages into a zip file, which will find the archive beside itself, and return its path."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        own = Path(str(importlib.resources.files("lowmark")), "__init__.py").read_text(encoding="utf-8")
        archive.writestr("lowmark/__init__.py", own + _ON_EXECUTORS.format(archive=archive_name))
        for name in _PACKAGES:
            folder = Path(str(importlib.resources.files(name)))
            for file in sorted(folder.rglob("*.py")):
                archive.write(file, Path(*name.split(".")) / file.relative_to(folder))
    return target


def compiled(target: Path, names: Iterable[str] = _COMPILED) -> Path:
    """Write installed packages into an archive, and return its path."""
    with tarfile.open(target, "w:gz", compresslevel=1) as archive:
        for installed in _installed(names):
            for file in installed.files or []:
                # Programs lie outside of the packages; stubs, bytecode and metadata are not needed on executors.
                if ".." in file.parts or file.suffix in {".pyc", ".pyi"} or file.parts[0].endswith(".dist-info"):
                    continue
                archive.add(str(file.locate()), arcname=str(file))
    return target
