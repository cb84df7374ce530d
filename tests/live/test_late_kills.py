"""Late rows under SIGKILL: a batch that runs again gives the same; windows and dropped rows make up the input.

With `late_to=`, each start of the driver reads a batch in another number of tasks.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from pathlib import Path

import pytest

from tests.integration.feed import Feed, Row
from tests.integration.test_late import SPLITS, check_windows_and_dropped, random_batches
from tests.integration.test_late_to import as_dropped, check_files
from tests.live.kafka_scenarios import seed
from tests.live.late_driver import LateConfig
from tests.live.servers import wait_until
from tests.live.torture import MARKS, PAUSE, Driver

pytestmark = MARKS
KILLS = 4


@pytest.mark.parametrize("late_to", [False, True], ids=["column", "files"])
def test_the_input_is_the_windows_and_the_dropped_rows_also_under_kills(tmp_path: Path, late_to: bool) -> None:
    drawn = seed()
    rng, note = random.Random(drawn), f"LOWMARK_SEED={drawn}"
    config, log = LateConfig(str(tmp_path), late_to=late_to), tmp_path / "driver.log"
    output, batches = config.output, random_batches(drawn, 40)
    batches.append([(split, -1, 100_000) for split in SPLITS])
    feed = Feed(None, tmp_path / "feed")  # type: ignore[arg-type]  # only the driver has a session
    for batch in batches:
        feed.put(*batch)
    for kill in range(KILLS):
        before, enough = set(output.glob("*.json")), rng.randint(1, 5)
        dies, config = kill % 2 == 0, config.but(tasks=rng.randint(1, 4))
        driver = Driver("late_driver", "run", config.but(dies_after=enough) if dies else config, log)

        def ended(driver: Driver = driver, before: set[Path] = before, enough: int = enough, dies: bool = dies) -> bool:
            if dies:
                return driver.process.poll() is not None
            return driver.alive() and len(set(output.glob("*.json")) - before) >= enough

        wait_until(ended, f"{enough} batches, {note}", seconds=90)
        PAUSE.wait(0 if dies else rng.choice([0, 0.05, 0.2]))
        driver.kill()
    driver = Driver("late_driver", "drain", config, log)
    assert driver.process.wait(120) == 0, log.read_text()[-3_000:]

    written: dict[int, list[list[Row]]] = defaultdict(list)
    for file in sorted(output.glob("*.json")):
        written[int(file.name.split("-")[0])].append([tuple(row) for row in json.loads(file.read_text())])
    for batch_id, times in written.items():
        assert all(each == times[0] for each in times), f"{note}, batch {batch_id}: {times}"
    rows = [row for times in written.values() for row in times[0]]
    if late_to:
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
