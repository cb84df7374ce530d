"""An archive of Spark's loaded classes (class data sharing): without it, half of a session's start is loading classes.

    python -m tests.servers.class_archive      makes the archive of this environment's Spark, once

`SPARK_SUBMIT_OPTS` passes the archive, and the settings `LIGHT`, to every JVM of Spark that the tests start in any
process. The JVM silently ignores a missing archive, an archive of another Java or Spark, and one made with another
class path; so the archive and all processes of the tests have one home of Spark, and each home has an archive of its
own. The home also has the class `LocalFiles`, which the compiler among Spark's jars makes.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

from lowmark.integration.spark.session import SHORT_LIVED_JVM, clean_environment, lean_home

from tests.servers.local import CACHE, require_java
from tests.sparks import LIGHT

_OPTIONS = "SPARK_SUBMIT_OPTS"
_COMPILER = "org.codehaus.commons.compiler.samples.CompilerDemo"  # of Janino, which takes the arguments of `javac`


def archive() -> Path:
    """Return the path of the archive for this environment's Spark, beside the home whose class path it holds."""
    return home().with_name("classes.jsa")


def is_current() -> bool:
    """Return whether the archive exists and is newer than all jars of the home."""
    made, jars = archive(), (home() / "jars").iterdir()
    return made.exists() and made.stat().st_mtime > max(jar.stat().st_mtime for jar in jars)


def home() -> Path:
    """Return the lean home of Spark in the cache, whose path is the class path of the archive.

    The home links into the environment of this process, so each environment has a home of its own.
    """
    place = CACHE / f"spark-{importlib.metadata.version('pyspark')}-{zlib.crc32(sys.prefix.encode()):08x}"
    if not place.exists():
        CACHE.mkdir(exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=CACHE))
        jars = lean_home(made) / "jars"
        installed = jars.resolve()
        jars.unlink()
        jars.mkdir()  # `local_files` adds a jar
        for jar in installed.iterdir():
            (jars / jar.name).symlink_to(jar)
        try:
            made.rename(place)
        except OSError:  # another process was faster
            shutil.rmtree(made)
    return place / "spark-home"


def local_files(*, checksums: bool = True) -> dict[str, str]:
    """Return the setting of a session whose local file system starts no program.

    Hadoop's own starts `chmod` for each new file and for the file of its checksum: 4 ms of processor time, and a
    twentieth of what a test with many checkpoints takes.
    """
    jar = home() / "jars" / "lowmark-tests.jar"
    if not jar.exists():
        with tempfile.TemporaryDirectory(dir=CACHE) as place:
            class_path = os.pathsep.join(str(each) for each in jar.parent.glob("*.jar"))
            arguments = ["-classpath", class_path, "-d", place, str(Path(__file__).with_name("LocalFiles.java"))]
            subprocess.run([require_java(), "-cp", class_path, _COMPILER, *arguments], check=True)
            part = Path(place, "part")
            with zipfile.ZipFile(part, "w") as classes:
                for each in Path(place).rglob("*.class"):
                    classes.write(each, each.relative_to(place))
            part.rename(jar)
    return {"spark.hadoop.fs.file.impl": f"lowmark.tests.LocalFiles{'' if checksums else '$Raw'}"}


def share() -> dict[str, str]:
    """Return environment variables for the tests' Spark processes: the archive if it exists, and `LIGHT`.

    A setting in the code of a session overrides `LIGHT`.
    """
    # The option disables the log because the JVM would write a mismatch of the archive to stdout.
    found = f" -XX:SharedArchiveFile={archive()} -Xshare:auto -Xlog:disable" if archive().exists() else ""
    return {_OPTIONS: SHORT_LIVED_JVM + found + "".join(f" -D{name}={value}" for name, value in LIGHT.items())}


def main() -> None:
    """Run a wrapped query with windows and a sink in Python, and archive the classes that it loads."""
    if is_current():
        return
    clean_environment()
    local_files()  # first, because the archive is for all jars of the home
    made = archive()
    part = made.with_suffix(".part")
    made.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="lowmark-classes-", ignore_cleanup_errors=True) as place:
        os.environ["SPARK_HOME"] = str(home())
        os.environ[_OPTIONS] = f"-XX:ArchiveClassesAtExit={part} -Xlog:disable"
        from lowmark.integration import LowWatermarkService
        from pyspark.sql import SparkSession

        from tests.integration.feed import Feed, run, windows

        settings: dict[str, bool | float | int | str | None] = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.extraJavaOptions": SHORT_LIVED_JVM,
            "spark.log.level": "OFF",
        }
        spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
        with LowWatermarkService(spark) as service:
            feed = Feed(spark, Path(place, "feed"))
            events = service.wrap(feed.df, name="orders", event_time="ts", split="split", splits=["a", "b"])
            rows = [[(split, 1, at) for split in ("a", "b")] for at in (100, 200)]
            run(windows(events, "split"), feed, rows, f"{place}/checkpoint").query.stop()
        gateway = spark.sparkContext._gateway
        spark.stop()
        assert gateway is not None, "a session has a JVM"
        process = gateway.proc
        process.stdin.close()  # the JVM ends by itself, and writes the archive
        process.wait(240)
    if part.exists():
        part.rename(made)
    print(f"lowmark: Spark's classes are in {made.relative_to(CACHE.parent)}", file=sys.stderr)


if __name__ == "__main__":
    main()
