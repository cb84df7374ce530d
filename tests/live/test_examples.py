"""The programs in examples/, run as a user does, on a real broker.

One process runs all of them, each in a Spark session of its own, because most of a run's cost is Java's start. So the
second run of an example goes on from its checkpoint in a new session, not in a new process; `test_redis_streams` kills
the process of an example.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.servers import class_archive, last_will
from tests.servers.kafka import Broker, Record
from tests.servers.local import ROOT, jars, require_jars, require_java, tail, wait_until
from tests.sparks import WITHOUT_CODEGEN

pytestmark = [pytest.mark.live, pytest.mark.slow]

NOW_MS = 1_700_000_040_000  # a full minute
MINUTE_MS = 60_000


# Runs the programs that it reads, a JSON list a line: the file of the output, the program, its arguments.
RUNNER = """
import contextlib, json, pathlib, runpy, sys
for line in sys.stdin:
    output, *sys.argv = json.loads(line)
    part = pathlib.Path(f"{output}.part")
    with part.open("w", encoding="utf-8") as said, contextlib.redirect_stdout(said):
        runpy.run_path(sys.argv[0], run_name="__main__")
    part.rename(output)
"""


@dataclass
class Examples:
    """The process that runs examples."""

    process: subprocess.Popen[str]
    folder: Path
    runs: int = 0

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def run(self, name: str, **options: object) -> str:
        """Run an example with `--option value` for each option, and return its output."""
        arguments = [part for option, value in options.items() for part in (f"--{option}", str(value))]
        self.runs += 1
        output = self.folder / f"output-{self.runs}"
        assert self.process.stdin is not None
        assert self.process.poll() is None, f"an earlier example has failed{tail(self.log)}"
        self.process.stdin.write(json.dumps([str(output), str(ROOT / "examples" / name), *arguments]) + "\n")
        self.process.stdin.flush()

        def is_over() -> bool:
            assert self.process.poll() is None, f"{name} has failed{tail(self.log)}"
            return output.exists()

        wait_until(is_over, f"{name} is over", seconds=240)
        return output.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examples]:
    """The process, which ends by itself when no example is left to run."""
    require_java()
    folder = tmp_path_factory.mktemp("examples")
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.host": "127.0.0.1",
        # The partitions of the snapshot of Delta's log, 50 by default; its checkpoint after two commits, 10 by default.
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.databricks.delta.properties.defaults.checkpointInterval": "2",
        **class_archive.local_files(checksums=False),
        **WITHOUT_CODEGEN,
    }
    conf = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    paths = ",".join(str(jar) for jar in (*require_jars("spark-kafka"), *jars("delta")))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", RUNNER],
            env={**os.environ, "PYSPARK_SUBMIT_ARGS": f"--master local[2] {conf} --jars {paths} pyspark-shell"},
            stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True, text=True,
        )  # fmt: skip
    last_will.end_with_us(process.pid)
    running = Examples(process, folder)
    try:
        yield running
        if process.poll() is None and process.stdin is not None:
            process.stdin.close()
            assert process.wait(60) == 0, f"it ends by itself{tail(running.log)}"
    finally:
        process.kill()
        process.wait()
        last_will.ended(process.pid)


def produce(kafka: Broker, topic: str, rows: Iterable[tuple[int, dict[str, object]]]) -> None:
    kafka.produce(topic, [Record(json.dumps(value), partition) for partition, value in rows])


def test_orders_to_parquet_in_two_runs(kafka: Broker, examples: Examples, tmp_path: Path) -> None:
    topic = kafka.create_topic(partitions=2)

    def orders(partition: int, minutes: range) -> list[tuple[int, dict[str, object]]]:
        return [(partition, {"at": NOW_MS + m * MINUTE_MS, "item": "pen", "cents": 100 + m}) for m in minutes]

    # Partition 1 is half an hour behind; its other rows come before the second run.
    produce(kafka, topic, [*orders(0, range(40)), *orders(1, range(10))])
    said = examples.run("orders_to_parquet.py", bootstrap=kafka.bootstrap, topic=topic, out=tmp_path)
    assert "low watermark" in said
    produce(kafka, topic, [*orders(1, range(10, 40)), *orders(0, range(40, 42)), *orders(1, range(40, 42))])
    examples.run("orders_to_parquet.py", bootstrap=kafka.bootstrap, topic=topic, out=tmp_path)

    rows = pq.read_table(tmp_path / "revenue").to_pylist()
    found = sorted((r["partition"], round(r["minute"].timestamp() * 1000), r["cents"], r["orders"]) for r in rows)
    closed = range(40)  # the low watermark is ten seconds before minute 41
    assert found == sorted((p, NOW_MS + m * MINUTE_MS, 100 + m, 1) for p in (0, 1) for m in closed)


def test_clicks_of_views_with_an_idle_side_and_a_bad_clock(kafka: Broker, examples: Examples, tmp_path: Path) -> None:
    views, clicks = (kafka.create_topic(partitions=2) for _ in range(2))
    minute = MINUTE_MS
    produce(kafka, views, [(n % 2, {"at": NOW_MS + n * minute, "page": f"page-{n}"}) for n in range(30)])
    # Only partition 0 of the clicks has rows, and the clock of one row is a year ahead.
    ahead = round(time.time() * 1000) + 365 * 24 * 60 * minute
    told = [(0, {"at": NOW_MS + n * minute + 5_000, "of": f"page-{n}"}) for n in range(0, 30, 3)]
    produce(kafka, clicks, [*told[:5], (0, {"at": ahead, "of": "page-1"}), *told[5:]])
    examples.run("clicks_of_views.py", bootstrap=kafka.bootstrap, views=views, clicks=clicks, out=tmp_path)

    rows = pq.read_table(tmp_path / "views").to_pylist()
    clicked = {r["page"] for r in rows if r["clicked_at"] is not None}
    without = {r["page"] for r in rows if r["clicked_at"] is None}
    assert clicked == {f"page-{n}" for n in range(0, 30, 3)}, "none was late for the click from the future"
    # The low watermark is the smaller one of both streams, 27 minutes; a click comes up to ten minutes after its view.
    assert without == {f"page-{n}" for n in range(17) if n % 3}


def rows_of_delta(table: Path) -> list[dict[str, Any]]:
    """Read a table's newest version: the files that its checkpoint and log added and did not remove."""
    files: set[str] = set()
    log = table / "_delta_log"
    checkpoints = sorted(log.glob("*.checkpoint.parquet"))
    since = int(checkpoints[-1].name.partition(".")[0]) if checkpoints else -1
    for row in pq.read_table(checkpoints[-1], columns=["add"]).to_pylist() if checkpoints else ():
        if row["add"] is not None:
            files.add(row["add"]["path"])
    for entry in sorted(log.glob("*.json")):
        for action in map(json.loads, entry.read_text().splitlines()) if int(entry.stem) > since else ():
            if "remove" in action:
                files.discard(action["remove"]["path"])
            if "add" in action:
                files.add(action["add"]["path"])
    return [row for file in sorted(files) for row in pq.read_table(table / file).to_pylist()]


@pytest.mark.timeout(600)
def test_devices_as_splits_merged_into_delta(kafka: Broker, examples: Examples, tmp_path: Path) -> None:
    """Three batches with a restart, so that Delta Lake writes its own checkpoint, after two commits."""
    topic = kafka.create_topic(partitions=1)

    def readings(device: str, seconds: range) -> list[tuple[int, dict[str, object]]]:
        return [(0, {"device": device, "at": NOW_MS + 1_000 * at, "celsius": at / 100}) for at in seconds]

    # "attic" sends the rest of its half hour after "cellar" is an hour ahead: the table then has half a minute.
    produce(kafka, topic, [*readings("attic", range(0, 30, 10)), *readings("cellar", range(0, 3_600, 10))])
    require_jars("delta")
    options = {"bootstrap": kafka.bootstrap, "topic": topic, "out": tmp_path, "rows-per-batch": 200}
    examples.run("devices_to_delta.py", **options)
    first = {
        row["device"]: row for row in rows_of_delta(tmp_path / "table") if row["minute"].timestamp() * 1_000 == NOW_MS
    }
    assert (first["attic"]["readings"], first["cellar"]["readings"]) == (3, 6)
    produce(kafka, topic, [*readings("attic", range(30, 1_800, 10)), *readings("cellar", range(3_600, 3_660, 10))])
    said = examples.run("devices_to_delta.py", **options)
    assert "attic" in said, "it holds the low watermark"
    assert len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))) >= 3
    assert list((tmp_path / "table" / "_delta_log").glob("*.checkpoint.parquet")), "Delta writes one after two commits"

    found = sorted((r["device"], r["minute"].timestamp(), r["readings"]) for r in rows_of_delta(tmp_path / "table"))
    minutes = {"attic": 30, "cellar": 61}
    assert found == [(device, NOW_MS / 1_000 + 60 * n, 6) for device, many in minutes.items() for n in range(many)]
