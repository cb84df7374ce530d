"""Flink SQL as a peer: a Flink cluster in a process of its own runs the statements that a benchmark gives."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.servers.local import jars

OPENED = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("lang", "net", "nio", "time", "util")]
SETTINGS = {
    "parallelism.default": "2",  # the machine's cores, as in Spark's session
    "execution.checkpointing.interval": "10s",
    "table.local-time-zone": "UTC",
}


def missing() -> str:
    """Why Flink cannot run here; "" if it can."""
    if not jars("flink-sql"):
        return "Flink's jars are missing: run make bench, which fetches them"
    return (
        "" if shutil.which("javac") else "javac is missing: install a JDK (Debian: apt install openjdk-17-jdk-headless)"
    )


@contextmanager
def flink(folder: Path, statements: str, settings: Mapping[str, str] = SETTINGS) -> Iterator[subprocess.Popen[bytes]]:
    """Start Flink with statements, separated by semicolons; the process ends with the last one, at the latest here."""
    folder.mkdir(parents=True)
    (folder / "job.sql").write_text(statements)
    path = os.pathsep.join(map(str, [*jars("flink-sql"), folder]))
    source = Path(__file__).with_name("Sql.java")
    subprocess.run(["javac", "-cp", path, "-d", folder, source], check=True)
    given = [f"{name}={value}" for name, value in settings.items()]
    command = ["java", "-Xmx3g", *OPENED, "-cp", path, "Sql", str(folder / "job.sql"), *given]
    with (folder / "flink.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(timeout=60)


def job_ms(folder: Path, statements: str) -> float:
    """Run statements to their end in a new process; return the time of the job without the process's start."""
    with flink(folder, statements) as process:
        code = process.wait(timeout=1_800)
    log = (folder / "flink.log").read_text(errors="replace")
    told = re.findall(r"^job: (\d+) ms$", log, re.MULTILINE)
    if code or not told:
        raise RuntimeError(f"Flink ended with exit code {code}: {log[-2_000:]}")
    return float(told[-1])
