"""A scrape and a status of one stream with thousands of splits, and how busy its batches keep the driver's loop.

The parts are those of tests/scale: the real driver without Spark. Native Spark has no status of its own to compare.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.scale.model import SCRAPE_SECONDS
from tests.scale.parts import driver_figures

from .measure import Bound, Row

TRIGGER_SECONDS = 10.0
MOST_BUSY_PERCENT = 2.0


def run(*, sizes: Sequence[int], turns: int | None = None) -> list[Row]:
    """Measure each size; a scrape may take at most as many times longer as there are more splits than at first."""
    rows: list[Row] = []
    first_ms = 0.0
    for size in sizes:
        section = f"one stream of {size:,} splits"
        costs = {figure.part: figure.value for figure in driver_figures(size, turns)}
        first_ms = first_ms or costs["scrape"]
        batch_ms = costs["report"] + costs["answer"]
        busy_percent = 100 * (batch_ms / TRIGGER_SECONDS + costs["status"] / SCRAPE_SECONDS) / 1_000
        linear = Bound(round(first_ms * size / sizes[0], 1), "at most")
        rows += [
            Row(section, "a scrape, with its status", "ms", None, costs["scrape"], bound=linear, note="linear"),
            Row(section, "the status for a scrape, on the driver's loop", "ms", None, costs["status"]),
            Row(
                section, "the loop is busy", "%", None, busy_percent, bound=Bound(MOST_BUSY_PERCENT, "at most"),
                note=f"trigger {TRIGGER_SECONDS:.0f} s, all splits in each batch, a scrape each {SCRAPE_SECONDS:.0f} s",
            ),
        ]  # fmt: skip
    return rows
