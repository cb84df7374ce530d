"""The column of late rows under SIGKILL: a batch that runs again marks the same rows, as the offset log says."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from pathlib import Path

from tests.integration.feed import Feed
from tests.integration.test_late import random_batches
from tests.live.kafka_scenarios import seed
from tests.live.late_driver import LateConfig
from tests.live.servers import wait_until
from tests.live.torture import MARKS, PAUSE, Driver

pytestmark = MARKS
KILLS = 4


def test_a_batch_that_a_kill_repeats_marks_the_same_rows(tmp_path: Path) -> None:
    drawn = seed()
    rng, note = random.Random(drawn), f"LOWMARK_SEED={drawn}"
    config, log = LateConfig(str(tmp_path)), tmp_path / "driver.log"
    batches = random_batches(drawn, 40)
    feed = Feed(None, tmp_path / "feed")  # type: ignore[arg-type]  # only the driver has a session
    for batch in batches:
        feed.put(*batch)
    repeated = 0
    for kill in range(KILLS):
        before, enough = set(config.output.glob("*.json")), rng.randint(1, 5)
        dies = kill % 2 == 0
        driver = Driver("late_driver", "run", config.but(dies_after=enough) if dies else config, log)

        def ended(driver: Driver = driver, before: set[Path] = before, enough: int = enough, dies: bool = dies) -> bool:
            if dies:
                return driver.process.poll() is not None
            return driver.alive() and len(set(config.output.glob("*.json")) - before) >= enough

        wait_until(ended, f"{enough} batches, {note}", seconds=90)
        PAUSE.wait(0 if dies else rng.choice([0, 0.05, 0.2]))
        driver.kill()
    driver = Driver("late_driver", "drain", config, log)
    assert driver.process.wait(120) == 0, log.read_text()[-3_000:]

    written: dict[int, list[object]] = defaultdict(list)
    for file in sorted(config.output.glob("*.json")):
        written[int(file.name.split("-")[0])].append(json.loads(file.read_text()))
    late = 0
    for batch_id, times in written.items():
        assert all(each == times[0] for each in times), f"{note}, batch {batch_id}: {times}"
        repeated += len(times) > 1
        watermark_us = 0
        if batch_id:
            entry = (config.checkpoint / "offsets" / str(batch_id - 1)).read_text()
            watermark_us = json.loads(entry.split("\n")[1])["batchWatermarkMs"] * 1_000
        for v, at_us, is_late in times[0]:  # type: ignore[attr-defined]
            assert is_late == (at_us is not None and at_us <= watermark_us), f"{note}, batch {batch_id}, row {v}"
            late += is_late
    rows = sorted(v for times in written.values() for v, _, _ in times[0])  # type: ignore[attr-defined]
    assert rows == [v for batch in batches for _, v, _ in batch], note
    assert late > 10, f"{note}: {late} late rows show nothing"
    assert repeated, f"{note}: no batch ran again, so the kills show nothing"
