"""A local Spark session of its own for the command line: small, and silent on the terminal.

Spark's JVM and its Python workers write to stderr at any log level. So the JVM writes its output to a file, which is
shown only if Spark cannot start.
"""

from __future__ import annotations

import os
import pwd
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lowmark.integration.errors import DemoImpossible
from lowmark.integration.process.signals import on_signals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OLDEST_JAVA = 17
SHORT_LIVED_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
"""Options of a JVM that lives for minutes, too short to earn back the cost of its optimizing compiler.

Without that compiler, Java reserves 48 MB for compiled code. Spark fills it, and the JVM drops and compiles code again.
"""

# Variables of another Spark of this user, which must not mix in.
_FOREIGN = (
    "SPARK_HOME",
    "SPARK_CONF_DIR",
    "SPARK_REMOTE",
    "PYSPARK_SUBMIT_ARGS",
    "PYSPARK_GATEWAY_PORT",
    "HADOOP_CONF_DIR",
)
_JAVA_HINT = "install Java 17 or newer (Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME."
_DEBUG_HINT = "run it again with --debug, which shows all that Spark says."


def java_problem() -> str | None:
    """Return why Spark cannot run with the Java found here, as a clause; None if it can."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    except OSError:
        return f"{java} does not run"
    found = re.search(r'version "(?:1\.)?(\d+)', said)  # Java 8 says 1.8
    if found is None:
        return f"{java} does not tell its version"
    return None if int(found[1]) >= _OLDEST_JAVA else f"{java} is version {found[1]}"


def clean_environment() -> None:
    """Set the environment for a local Spark of this Python, whatever other Spark the user has."""
    for foreign in _FOREIGN:
        os.environ.pop(foreign, None)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"


def lean_home(folder: Path) -> Path:
    """Make a home of Spark with its programs and jars but without its Python, for the variable `SPARK_HOME`.

    Spark gives every Python process the pyspark.zip of its home: sources that each process compiles anew, for a second
    of processor time. Without the file, Python imports the same pyspark as installed, compiled once. Works only for a
    Spark that is a Python package, and without executors elsewhere.
    """
    import pyspark

    home = folder / "spark-home"
    home.mkdir()
    for part in ("bin", "jars"):
        (home / part).symlink_to(Path(pyspark.__file__).parent / part)
    return home


@contextmanager
def local_session(
    name: str, *, settings: dict[str, str] | None = None, quiet: bool = True
) -> Iterator[tuple[SparkSession, Path]]:
    """Start Spark in this process and stop it at the end.

    Args:
        quiet: False lets Spark's log reach stderr.

    Yields:
        The session, and a folder for checkpoints that is removed at the end.

    Raises:
        DemoImpossible: no Java that fits was found, the user has no name, or Spark did not start.
    """
    if (problem := java_problem()) is not None:
        raise DemoImpossible(f"Spark needs Java {_OLDEST_JAVA} or newer, and {problem}", _JAVA_HINT)
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        fact = f"Spark needs the name of its user, and the user {os.getuid()} has none"
        raise DemoImpossible(fact, "add the user to /etc/passwd, as Spark's images for containers do.") from None
    clean_environment()
    with tempfile.TemporaryDirectory(prefix="lowmark-spark-", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        os.environ["SPARK_HOME"] = str(lean_home(folder))
        own = {"spark.master": "local[2]", **session_settings(folder), **(settings or {})}
        spark = _start(name, folder, own, quiet=quiet)
        try:
            yield spark, folder
        finally:
            spark.stop()
            os.environ.pop("SPARK_HOME", None)


def session_settings(folder: Path) -> dict[str, str]:
    """The settings of a small session that keeps its files in a folder."""
    jvm = f"-Dderby.system.home={folder / 'derby'} -Duser.timezone=UTC {SHORT_LIVED_JVM}"
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": jvm,
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
    }


def _start(name: str, folder: Path, settings: dict[str, str], *, quiet: bool) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    conf = SparkConf(loadDefaults=False).setAppName(name).setAll(list(settings.items()))
    log = folder / "spark.log"
    with log.open("ab") as file, _signals_wait():
        output = {"stdout": file, "stderr": file} if quiet else {"stdout": sys.stderr}  # stdout is for results
        try:
            gateway = launch_gateway(conf, popen_kwargs=output)  # type: ignore[no-untyped-call]
        except PySparkException as failed:
            raise DemoImpossible(f"Spark did not start: {_last_words(log)}", _DEBUG_HINT) from failed
        context = SparkContext(conf=conf, gateway=gateway)
    return SparkSession(context)


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait for the end of the block, because a JVM whose launch is interrupted never ends.

    Spark's own handler of Ctrl-C does not outlive the block: it calls the JVM during another call, which fails.
    """
    told: list[int] = []
    with on_signals([signal.SIGINT, signal.SIGTERM], lambda number, _frame: told.append(number)):
        yield
    for number in told[:1]:
        signal.raise_signal(number)


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    complaints = (line for line in lines if "rror" in line or "xception" in line)
    return next(complaints, lines[-1] if lines else "it said nothing")
