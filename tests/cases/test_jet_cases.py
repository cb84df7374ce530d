"""Hazelcast Jet's cases for the coalescer (H) and for the splits of one source (HM).

If the design decides otherwise, ``DEVIATIONS`` has the reason, and the test asserts our result.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from lowmark.watermark import AllIdle, BoundedOutOfOrderness, WatermarkGenerator, WatermarkOutput
from lowmark.watermark.splits.coalescer import Coalescer
from lowmark.watermark.splits.idleness import Idleness
from lowmark.watermark.state import Signal

from tests.cases.deviations import DEVIATIONS
from tests.cases.reader import Case, case_id, family, us
from tests.watermark.splits.invariants import check

Emitted = int | str | None

# Our result of each step if it differs; DEVIATIONS has the reasons.
OURS: dict[str, Sequence[Emitted]] = {
    "H18": [None, None],
    "H20": [None, None],
    "HM1": [None, None, None, None, None, None],
    "HM3": [None, None, None, None, 6],
    "HM5": [None, None],
    "HM7": [7, 8],
    "HM9": [None, None, None, None],
    "HM11": [None, 9, None],
    "HM13": [42],
}


def expected(case: Case) -> list[Emitted]:
    return list(OURS[case["id"]]) if case["id"] in DEVIATIONS else [step[-1] for step in case["steps"]]


def emitted(coalescer: Coalescer) -> int | None:
    low_us = coalescer.advance()
    check(coalescer)
    return None if low_us is None else low_us // 1_000


def play(coalescer: Coalescer, case: Case) -> list[Emitted]:
    for split in range(case["inputs"]):
        coalescer.assign(split)
    seen: list[Emitted] = []
    for op, split, wm, _ in case["steps"]:
        match op:
            case "wm":
                coalescer.report(split, us(wm))
            case "event":
                coalescer.signal(split, Signal.WAKE)
            case "idle":
                coalescer.signal(split, Signal.IDLE)
            case "done":
                coalescer.signal(split, Signal.FINISH)
        seen.append(emitted(coalescer))
    return seen


@pytest.mark.parametrize("case", family("H"), ids=case_id)
def test_coalescer(case: Case) -> None:
    coalescer = Coalescer(all_idle=AllIdle.MAX)  # Jet's rule for all idle

    assert expected(case) == play(coalescer, case)
    if "low" in case:
        low_us = None if case["low"] is None else us(case["low"])
        assert (low_us, case["all_idle"]) == (coalescer.low_us, coalescer.all_idle)
    if "top" in case:
        assert us(case["top"]) == max(coalescer.watermark_us(split) or 0 for split in coalescer.splits)


def test_h22_by_default_the_low_watermark_stays_when_all_are_idle() -> None:
    (case,) = (case for case in family("H") if case["id"] == "H22")

    assert play(Coalescer(), case) == [None, 10, None, None]


class Fixed:
    """A generator with a constant watermark."""

    def __init__(self, watermark_us: int) -> None:
        self.watermark_us = watermark_us

    def on_event(self, event: object, timestamp_us: int, output: WatermarkOutput) -> None:
        del event, timestamp_us, output

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        output.emit_watermark(self.watermark_us)


class Mapper:
    """Jet's ``EventTimeMapper`` from our parts: a generator per split, a coalescer, a timer."""

    def __init__(self, case: Case, all_idle: AllIdle = AllIdle.MAX) -> None:
        self.case = case
        self.coalescer = Coalescer(all_idle=all_idle)
        self.idleness = None if case["idle"] is None else Idleness(us(case["idle"]))
        self.generators: dict[int, WatermarkGenerator] = {}
        self.now_us = 0
        self.split = 0
        self.was_idle = False
        for split in range(case["splits"]):
            self.add(split)

    def add(self, split: int) -> None:
        self.coalescer.assign(split)
        if self.idleness is not None:
            self.idleness.heard(split, self.now_us)
        policy = self.case.get("policy")
        self.generators[split] = BoundedOutOfOrderness(us(self.case["lag"])) if policy is None else Fixed(us(policy))

    def emit_watermark(self, watermark_us: int) -> None:
        self.coalescer.report(self.split, watermark_us)

    def step(self, t: int, op: str, split: int, ms: int) -> Emitted:
        self.now_us, self.split = us(t), split
        match op:
            case "add":
                self.add(split)
            case "remove":
                self.coalescer.remove(split)
            case "restore":
                self.coalescer = Coalescer(us(ms))
                self.coalescer.assign(split)
                self.coalescer.report(split, us(ms))
            case "event":
                self.generators[split].on_event(None, us(ms), self)
                self.generators[split].on_periodic_emit(self)
                if self.idleness is not None:
                    self.idleness.heard(split, self.now_us)
        if self.idleness is not None:
            for quiet in self.idleness.quiet(self.now_us, {}):
                self.coalescer.signal(quiet, Signal.IDLE)
        became_idle = self.coalescer.all_idle and not self.was_idle
        self.was_idle = self.coalescer.all_idle
        low = emitted(self.coalescer)
        if became_idle:
            return "IDLE" if low is None else f"{low}, IDLE"
        return low


def run(mapper: Mapper, steps: list[list[object]]) -> list[Emitted]:
    return [mapper.step(*step[:4]) for step in steps]  # type: ignore[arg-type]


@pytest.mark.parametrize("case", family("HM"), ids=case_id)
def test_splits_of_one_source(case: Case) -> None:
    assert expected(case) == run(Mapper(case), case["steps"])


@pytest.mark.parametrize(
    ("name", "seen"),
    [("HM1", [None, "IDLE", None, 96, None, 97]), ("HM5", [None, "6, IDLE"])],
)
def test_one_ms_past_the_timeout_we_do_what_jet_does_at_it(name: str, seen: list[Emitted]) -> None:
    (case,) = (case for case in family("HM") if case["id"] == name)
    later = [[step[0] + 1 if step[0] == case["idle"] else step[0], *step[1:]] for step in case["steps"]]

    assert seen == run(Mapper(case), later)


def test_hm9_the_first_event_past_the_restored_watermark_moves_it() -> None:
    (case,) = (case for case in family("HM") if case["id"] == "HM9")

    assert run(Mapper(case), [*case["steps"], [0, "event", 0, 12, None]]) == [None, None, None, None, 11]


def test_no_case_of_these_families_is_skipped() -> None:
    assert {name: len(family(name)) for name in ("H", "HM")} == {"H": 18, "HM": 7}
    assert OURS.keys() == DEVIATIONS.keys() & {case["id"] for name in ("H", "HM") for case in family(name)}
