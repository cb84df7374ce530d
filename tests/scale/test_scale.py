"""The model of a thousand executors at small sizes: its rules add up, bytes grow in a line, and it can disagree."""

from __future__ import annotations

import gc
import json

import pytest

from .__main__ import smoke, table
from .model import Application, Costs, checks, coordinator_shares, heartbeat_waits, largest, limits, loop_share
from .page import FIGURES, tables
from .parts import PARTS, Driver, Figure, driver_figures, loop_busy_ms, merge_figure, plan_figures

LINE = tuple(
    Figure(part, size, size * 0.01) for part in PARTS for size in (1_000, 10_000)
)  # a hundredth of a millisecond for a split


@pytest.fixture(scope="module", autouse=True)
def _what_earlier_tests_left_is_no_garbage() -> None:
    """Each measurement first collects garbage, and would look through all that earlier tests left for half a second."""
    gc.collect()
    gc.freeze()


@pytest.mark.slow
def test_the_bytes_of_a_driver_grow_in_a_line() -> None:
    small, large = ({f.part: f.value for f in driver_figures(size, turns=1)} for size in (1_000, 4_000))

    assert small.keys() <= PARTS.keys()
    for part in ("offset", "page_bytes"):
        assert large[part] == pytest.approx(4 * small[part], rel=0.1), part
    assert large["scrape_bytes"] == pytest.approx(small["scrape_bytes"], rel=0.02), "ten splits are shown of any number"
    assert large["offset"] / 4_000 < 30, "bytes of a split in each batch's offset"


def test_a_driver_is_a_real_one() -> None:
    driver = Driver(100)
    token = driver.add()
    before_us = driver.answer(token).low_watermark_us
    driver.take(token, driver.batch(token))
    after_us = driver.answer(token).low_watermark_us

    assert before_us is not None
    assert after_us is not None
    assert after_us > before_us
    assert driver.run(token).last_batch_id == driver.batch_id
    assert driver.run_statuses(limit=10)[0].status.states["active"] == 100
    assert loop_busy_ms(2, 100, 1) > 0


def test_a_plan_and_a_merge_take_all_splits() -> None:
    """Each function fails by itself unless every split is in its result."""
    assert {figure.part for figure in plan_figures(200, turns=1)} == {"plan", "plan_offset"}
    assert merge_figure(50).size == 50


def test_the_loop_on_the_virtual_clock_is_as_busy_as_the_rule_says() -> None:
    app = Application(queries=10, splits=1_000)  # 20 ms a batch, ten batches in 10 seconds; a scrape of 100 ms
    busy, waits = heartbeat_waits(app, Costs(LINE), seconds=3_000)

    assert loop_share(app, Costs(LINE)) == pytest.approx(0.02 + 0.1 / 15)
    assert busy == pytest.approx(loop_share(app, Costs(LINE)), rel=0.02)
    assert min(waits) == pytest.approx(0.02)
    assert max(waits) < 0.1 + 10 * 0.02 + 1e-9, "a scrape and all other batches at most"


def test_a_loop_that_gets_too_much_is_always_busy_and_its_queries_wait() -> None:
    busy, waits = heartbeat_waits(Application(queries=1_000, splits=1_000), Costs(LINE))

    assert busy > 0.99
    assert sorted(waits)[len(waits) // 2] > 10


def test_a_cost_lies_between_the_sizes_and_goes_on_beyond_them() -> None:
    costs = Costs([*LINE, Figure("report", 100_000, 10_000.0)])

    assert costs.at("report", 3_000) == pytest.approx(30)
    assert costs.at("report", 200_000) == pytest.approx(40_000), "ten times as large, a hundred times as dear"
    assert costs.exponent("report") == 2.0


def test_a_model_that_is_wrong_is_said_to_disagree() -> None:
    right, wrong = checks([Figure("report", 3_000, 30.0), Figure("answer", 3_000, 40.0)], Costs(LINE))

    assert right.agrees
    assert not wrong.agrees
    assert wrong.off == pytest.approx(-0.25)


def test_the_limits_of_each_way_to_grow_come_in_order() -> None:
    found = limits(Costs(LINE))
    sizes = {limit.what: limit.size for limit in found if limit.of == "splits of one query"}

    assert list(sizes.values()) == sorted(sizes.values())
    assert sizes["loop: busy for 2 % of the time"] == largest(
        lambda n: loop_share(Application(1, n), Costs(LINE)) <= 0.02
    )
    assert sizes["loop: busy for 2 % of the time"] == 7_500  # 0.02 ms x n / 10 s + 0.01 ms x n / 15 s = 2 %


def test_the_real_coordinator_on_the_virtual_clock_publishes() -> None:
    shares = coordinator_shares(50, lambda n: "all", seconds=2)

    assert 0 < shares.busy < 1
    assert shares.p99_ms > 0


@pytest.mark.slow
def test_the_command_runs_every_part_and_prints_it() -> None:
    result = smoke()
    text = table(result)

    assert {figure["part"] for figure in result["figures"]} == PARTS.keys()
    assert json.loads(json.dumps(result)) == result
    assert [part.what for part in PARTS.values() if part.what not in text] == []
    for played in result["played"]:
        assert played["loop_share_played"] == pytest.approx(min(played["loop_share_by_rule"], 1), rel=0.05)
    # A scrape has the same size for any number of splits, which nothing tells a model that learned from one size.
    exact = [check for check in result["checks"] if check["unit"] == "bytes" and "scrape" not in check["what"]]
    assert len(exact) == 3
    assert all(check["agrees"] for check in exact), "bytes do not depend on the machine"


def test_the_page_has_the_figures_of_the_committed_run() -> None:
    page = (FIGURES.parents[1] / "how-far-it-goes.md").read_text(encoding="utf-8")
    made = tables(json.loads(FIGURES.read_text(encoding="utf-8")))

    assert {name for name, text in made.items() if text not in page} == set()


def test_other_pages_repeat_the_figures_of_a_scrape() -> None:
    docs = FIGURES.parents[1]
    page = (docs / "how-far-it-goes.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith("| a scrape, with its status |"))
    _, _, _, of_10_000, of_50_000, *_ = (cell.strip() for cell in row.split("|"))

    assert f"of 10,000 splits takes [{of_10_000}]" in (docs / "metrics.md").read_text(encoding="utf-8")
    assert f"of 50,000 splits takes {of_50_000}." in (docs.parent / "CHANGELOG.md").read_text(encoding="utf-8")
