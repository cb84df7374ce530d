"""Cases of one stream from Jet (HK, HP), Beam (BK, BS, BE, BM, BP, BG), Arroyo (A) and MillWheel (M).

A case in ``deviations.py`` has the engine's behaviour in its data and our behaviour in ``ours``; a case without data,
with a reason only, does not apply here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lowmark.watermark import AllIdle, BoundedOutOfOrderness, WatermarkStrategy
from lowmark.watermark.splits.coalescer import Coalescer
from lowmark.watermark.splits.events import BatchReported, Polled, SplitsDiscovered
from lowmark.watermark.splits.tracker import SplitTracker
from lowmark.watermark.state import Signal

from tests.cases.deviations import DEVIATIONS
from tests.cases.reader import Case, case_id, us
from tests.watermark.splits.history import BY_TIME, watermarks_of
from tests.watermark.splits.invariants import check

CASES: list[Case] = json.loads((Path(__file__).parent / "engine_cases.json").read_text("utf-8"))["cases"]
MAX = 2**63 - 1


def cases_with(key: str, *families: str) -> list[Case]:
    return [case for case in CASES if key in case and (not families or case["family"] in families)]


def expected(case: Case, engine: list[Any]) -> list[Any]:
    """Return our result, which differs from the engine's exactly for the cases in DEVIATIONS."""
    assert ("ours" in case) == (case["id"] in DEVIATIONS)
    assert case.get("ours") != engine
    ours: list[Any] = case.get("ours", engine)
    return ours


def ms_of(low_us: int | None) -> int | str | None:
    return "MAX" if low_us == MAX else None if low_us is None else low_us // 1_000


# -- the watermark of one split


@pytest.mark.parametrize("case", cases_with("events"), ids=case_id)
def test_the_watermark_of_a_split(case: Case) -> None:
    def later(_row: object, row_time_us: int | None) -> int:
        assert row_time_us is not None
        return row_time_us + us(case.get("add", 0))

    strategy = WatermarkStrategy(out_of_orderness_us=us(case["lag"]))
    tracker, seen = SplitTracker(), list[int | None]()
    for event in case["events"]:
        if event is not None:
            latest_us = us(case["guard"]) if "guard" in case else None
            tracker.observe("a", later(None, us(event)), latest_us=latest_us)
        mark = tracker.marks().get("a")
        seen.append(None if mark is None else strategy.watermark_of_max(mark.max_us) // 1_000)

    assert expected(case, case["expect"]) == seen


class Latest:
    """Keeps the last watermark of a generator."""

    watermark_us: int | None = None

    def emit_watermark(self, watermark_us: int) -> None:
        self.watermark_us = watermark_us


@pytest.mark.parametrize("case", cases_with("events", "HP"), ids=case_id)
def test_a_generator_in_python_says_the_same(case: Case) -> None:
    generator, latest, seen = BoundedOutOfOrderness(us(case["lag"])), Latest(), list[int | str | None]()
    for event in case["events"]:
        if event is not None:
            generator.on_event(None, us(event), latest)
        generator.on_periodic_emit(latest)
        seen.append(ms_of(latest.watermark_us))

    assert expected(case, case["expect"]) == seen


# -- the minimum over the splits


def play(coalescer: Coalescer, steps: list[list[Any]]) -> list[int | str | None]:
    lows, now_us = list[int | str | None](), None
    for op, split, value, _ in steps:
        match op:
            case "assign":
                coalescer.assign(split)
            case "wm" | "observe":
                coalescer.report(split, MAX if value == "MAX" else us(value))
            case "idle":
                coalescer.signal(split, Signal.IDLE)
            case "pause":
                coalescer.signal(split, Signal.PAUSE)
            case "done":
                coalescer.signal(split, Signal.FINISH)
            case "now":
                now_us = us(value)
            case _:
                raise AssertionError(f"no such step: {op}")
        if op != "observe":
            coalescer.advance(now_us)
        check(coalescer)
        lows.append(ms_of(coalescer.low_us))
    return lows


def coalescer_of(case: Case) -> Coalescer:
    low_us = us(case["low"]) if "low" in case else None
    if "all_idle" in case:
        return Coalescer(low_us, AllIdle.ADVANCE, all_idle_delay_us=us(case["all_idle"]))
    return Coalescer(low_us)


SPLITS = [case for case in cases_with("steps", "BE", "BM", "BG", "A", "M") if case["steps"][0][0] == "assign"]


@pytest.mark.parametrize("case", SPLITS, ids=case_id)
def test_the_minimum_of_splits(case: Case) -> None:
    coalescer = coalescer_of(case)

    assert expected(case, [step[-1] for step in case["steps"]]) == play(coalescer, case["steps"])
    assert case.get("idle", coalescer.all_idle) == coalescer.all_idle


@pytest.mark.parametrize("case", cases_with("streams"), ids=case_id)
def test_streams_keep_apart(case: Case) -> None:
    for steps in case["streams"]:
        assert [step[-1] for step in steps] == play(Coalescer(), steps)


@pytest.mark.parametrize("case", cases_with("percentile"), ids=case_id)
def test_a_percentile(case: Case) -> None:
    coalescer = Coalescer(percentile=case["percentile"])
    for split in range(case["splits"]):
        coalescer.assign(split)
        coalescer.report(split, split)
    coalescer.advance()

    assert case["expect"] == len(coalescer.stripped) == coalescer.low_us


# -- the stream


STREAMS = [case for case in cases_with("steps") if case["steps"][0][0] in ("batch", "discover_empty")]


@pytest.mark.parametrize("case", STREAMS, ids=case_id)
def test_a_stream(case: Case) -> None:
    watermarks, lows, now_us = watermarks_of(BY_TIME), list[int | str | None](), 0
    event: BatchReported | SplitsDiscovered | Polled | None = None
    for number, (op, split, value, _) in enumerate(case["steps"]):
        match op:
            case "discover_empty":
                event = SplitsDiscovered((split,), frozenset({split}))
            case "batch":
                event = BatchReported(number, now_us, {split: us(value)})
            case "poll":
                now_us = us(value)
                event = Polled(now_us)
            case "restart":
                event = None
                watermarks = watermarks.restore(
                    watermarks.snapshot(), BY_TIME, job_id="j", source_id="s", task_id="t", now_us=now_us
                )
            case "again":
                pass
            case _:
                raise AssertionError(f"no such step: {op}")
        if event is not None:
            watermarks.handle(event, now_us)
        lows.append(ms_of(watermarks.low_watermark_us))

    assert expected(case, [step[-1] for step in case["steps"]]) == lows


# -- HK: several event-time columns, one coalescer each


class Keyed:
    """Jet's keyed coalescer: every key has the same inputs and the same idle inputs."""

    def __init__(self, inputs: int) -> None:
        self.by_key: dict[str | None, Coalescer] = {}
        self.idle = [False] * inputs
        self.idle_told = False

    def coalescer(self, key: str | None) -> Coalescer:
        if key not in self.by_key:
            coalescer = self.by_key[key] = Coalescer(all_idle=AllIdle.MAX)
            for index, idle in enumerate(self.idle):
                coalescer.assign(index)
                if idle:
                    coalescer.signal(index, Signal.IDLE)
        return self.by_key[key]

    def step(self, op: str, index: int, wm: int | None, key: str | None) -> list[str]:
        self.idle[index] = op == "idle"
        for known in self.by_key.values():
            known.signal(index, Signal.IDLE if op == "idle" else Signal.WAKE)
        if wm is not None:
            self.coalescer(key).report(index, us(wm))
        told = []
        for name, known in self.by_key.items():
            if (low_us := known.advance()) is not None:
                told.append(f"{low_us // 1_000}" + ("" if name is None else f"/{name}"))
        if all(self.idle) and not self.idle_told:
            told.append("IDLE")
        self.idle_told = all(self.idle)
        return told


@pytest.mark.parametrize("case", cases_with("steps", "HK"), ids=case_id)
def test_keyed_coalescer(case: Case) -> None:
    keyed = Keyed(inputs=2)

    assert expected(case, [step[-1] for step in case["steps"]]) == [keyed.step(*step[:4]) for step in case["steps"]]


# -- the count


def test_no_case_of_these_sections_is_skipped() -> None:
    sections = {"HK": 4, "HP": 9, "BK": 6, "BS": 5, "BE": 5, "BM": 6, "BP": 4, "BG": 5, "A": 5, "M": 4}
    played = [cases_with("events"), SPLITS, STREAMS, *(cases_with(key) for key in ("streams", "percentile"))]
    ran = {case["id"] for cases in (*played, cases_with("steps", "HK")) for case in cases}
    reasoned = {case["id"] for case in CASES if case["id"] in DEVIATIONS and "ours" not in case}

    assert sections == {name: sum(case["family"] == name for case in CASES) for name in sections}
    assert len(CASES) == sum(sections.values()) == len({case["id"] for case in CASES})
    assert ran | reasoned == {case["id"] for case in CASES}
    assert not ran & reasoned
