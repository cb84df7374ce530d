"""Late rows under SIGKILL: a batch that runs again gives the same; windows and dropped rows make up the input.

Two queries run in the killed process (`drivers/late`), because most of a kill's time is the start of the next process:
one with the column `watermark=`, one with the files of `late_to=`. Each start reads a batch in another number of tasks.
Both drivers kill themselves between the sink and the commit of a query: the first driver in the first query, the second
driver in the second query. The other query is at any moment then.
With `LOWMARK_KILLS` there are more, in turn, and the test kills each third driver.
"""

from __future__ import annotations

import json
import os
import random
from collections import defaultdict
from pathlib import Path

import pytest

from tests.drivers.late import QUERIES, LateConfig
from tests.integration.feed import Feed, Row
from tests.integration.transport.test_late import SPLITS, check_windows_and_dropped, random_batches
from tests.integration.transport.test_late_to import as_dropped, check_files
from tests.servers.local import wait_until
from tests.worlds.kafka_scenarios import seed
from tests.worlds.torture import MARKS, PAUSE, Driver

pytestmark = [*MARKS, pytest.mark.timeout(600)]
KILLS = int(os.environ.get("LOWMARK_KILLS", "2"))
BATCHES_A_KILL = 6  # a driver dies after three at most, and the faster query is ahead of the other


def test_the_input_is_the_windows_and_the_dropped_rows_also_under_kills(tmp_path: Path) -> None:
    drawn = seed()
    rng, note = random.Random(drawn), f"LOWMARK_SEED={drawn}"
    config, log = LateConfig(str(tmp_path)), tmp_path / "driver.log"
    batches = random_batches(drawn, BATCHES_A_KILL * KILLS)
    batches.append([(split, -1, 100_000) for split in SPLITS])
    feed = Feed(None, tmp_path / "feed")  # type: ignore[arg-type]  # only the driver has a session
    for batch in batches:
        feed.put(*batch)
    outputs = [config.of(query).output for query in QUERIES]
    for kill in range(KILLS):
        before = [set(output.glob("*.json")) for output in outputs]
        enough, dies_in = rng.randint(1, 3), (*QUERIES, "")[kill % 3]  # "": the test kills the driver
        config = config.but(tasks=rng.randint(1, 4), dies_after=enough, dies_in=dies_in)
        driver = Driver("late", "run", [config], log)

        def ended(
            driver: Driver = driver, before: list[set[Path]] = before, enough: int = enough, dies: bool = bool(dies_in)
        ) -> bool:
            if dies:
                return driver.process.poll() is not None
            new = [len(set(output.glob("*.json")) - old) for output, old in zip(outputs, before, strict=True)]
            return driver.alive() and max(new) >= enough

        wait_until(ended, f"{enough} batches, {note}", seconds=90)
        PAUSE.wait(0 if dies_in else rng.choice([0, 0.05, 0.2]))
        driver.kill()
    driver = Driver("late", "drain", [config.but(dies_after=None)], log)
    assert driver.process.wait(240) == 0, log.read_text()[-3_000:]

    for query in QUERIES:
        check(query, config.of(query), batches, f"{note}, {query}")


def check(query: str, config: LateConfig, batches: list[list[Row]], note: str) -> None:
    """Compare the output of a query with the input."""
    written: dict[int, list[list[Row]]] = defaultdict(list)
    for file in sorted(config.output.glob("*.json")):
        written[int(file.name.split("-")[0])].append([tuple(row) for row in json.loads(file.read_text())])
    for batch_id, times in written.items():
        assert all(each == times[0] for each in times), f"{note}, batch {batch_id}: {times}"
    rows = [row for times in written.values() for row in times[0]]
    if query == "files":
        check_files(config.late, batches, watermarks_us(config.checkpoint), query_id(config.checkpoint), note)
        rows += as_dropped(config.late)
    check_windows_and_dropped(rows, batches, note)
    assert any(len(times) > 1 for times in written.values()), f"{note}: no batch ran again, so the kills show nothing"


def watermarks_us(checkpoint: Path) -> dict[int, int]:
    """The watermark of each planned batch."""
    entries = {int(file.name): file.read_text().splitlines() for file in (checkpoint / "offsets").glob("[0-9]*")}
    return {batch: json.loads(lines[1])["batchWatermarkMs"] * 1_000 for batch, lines in entries.items()}


def query_id(checkpoint: Path) -> str:
    return str(json.loads((checkpoint / "metadata").read_text())["id"])
