"""Samza's cases for a stream whose watermarks come from several tasks (S): only a quorum leaves idle tasks out.

Each partition is a coalescer of the upstream tasks; the stream is the minimum over its partitions.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lowmark.watermark.splits.coalescer import Coalescer
from lowmark.watermark.splits.idleness import Idleness
from lowmark.watermark.state import Signal

from tests.cases.deviations import DEVIATIONS
from tests.cases.reader import Case, case_id, us
from tests.watermark.splits.invariants import check

CASES: list[Case] = json.loads(Path(__file__).with_name("samza_cases.json").read_text("utf-8"))["cases"]
TASKS, PARTITIONS = (0, 1), (0, 1)

# Our results that differ, by case and step; DEVIATIONS has the reasons.
INSTEAD: dict[str, dict[int, int | None]] = {"S2": {2: 1}, "S4": {1: None}}
# One ms later a silent task is idle, and we emit the minimum of the others at once; Samza emits the plain one first.
INSTEAD_LATER: dict[str, dict[int, int | None]] = {"S2": {1: 4}}


class Partition:
    def __init__(self, case: Case) -> None:
        self.coalescer = Coalescer(quorum=case["quorum"])
        self.idleness = None if case["idle"] is None else Idleness(us(case["idle"]))
        for task in TASKS:
            self.coalescer.assign(task)
            if self.idleness is not None:
                self.idleness.heard(task, 0)

    def report(self, task: int, wm: int, now_us: int) -> None:
        self.coalescer.report(task, us(wm))
        if self.idleness is not None:
            self.idleness.heard(task, now_us)

    def advance(self, now_us: int) -> int | None:
        for task in () if self.idleness is None else self.idleness.quiet(now_us, {}):
            self.coalescer.signal(task, Signal.IDLE)
        self.coalescer.advance()
        check(self.coalescer)
        low_us = self.coalescer.low_us
        return None if low_us is None else low_us // 1_000


def play(case: Case, *, later_ms: int = 0) -> list[list[int | None]]:
    """Return, for each step, the partition's watermark, then the stream's if the case has it."""
    partitions, now_us, seen = [Partition(case) for _ in PARTITIONS], 0, []
    for ms, partition, task, wm, *told in case["steps"]:
        now_us += us(ms + later_ms if ms == case["idle"] else ms)
        partitions[partition].report(task, wm, now_us)
        lows = [each.advance(now_us) for each in partitions]
        stream = None if None in lows else min(low for low in lows if low is not None)
        seen.append([lows[partition], stream][: len(told)])
    return seen


def expected(case: Case, instead: dict[str, dict[int, int | None]]) -> list[list[int | None]]:
    told = [step[4:] for step in case["steps"]]
    for step, low in instead.get(case["id"], {}).items():
        told[step][0] = low
    return told


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_quorum(case: Case) -> None:
    assert play(case) == expected(case, INSTEAD)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_one_ms_past_the_timeout_we_leave_out_whom_samza_does_at_it(case: Case) -> None:
    assert play(case, later_ms=1) == expected(case, INSTEAD_LATER)


def test_s5_a_smaller_watermark_is_counted() -> None:
    (case,) = (case for case in CASES if case["id"] == "S5")
    partition = Partition(case)
    for _, _, task, wm, *_ in case["steps"]:
        partition.report(task, wm, 0)

    assert partition.coalescer.regressions == 1


def test_no_case_is_skipped_and_every_deviation_has_its_reason() -> None:
    assert [case["id"] for case in CASES] == ["S1", "S2", "S3", "S4", "S5", "S6"]
    assert INSTEAD.keys() | INSTEAD_LATER.keys() == DEVIATIONS.keys() & {case["id"] for case in CASES}
