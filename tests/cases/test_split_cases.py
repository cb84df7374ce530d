"""Flink's cases about the splits of one stream: its valve (VAL), event time (EVT), Kinesis trackers (KIN), and bugs."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from lowmark.watermark import AllIdle, SplitId, WatermarkStrategy
from lowmark.watermark.splits.coalescer import Coalescer
from lowmark.watermark.splits.events import BatchReported, Polled, SplitsDiscovered
from lowmark.watermark.state import IdleClock, Signal

from tests.cases import test_alignment_cases, test_flink_cases
from tests.cases.deviations import DEVIATIONS
from tests.cases.reader import Case, case_id, family, us
from tests.watermark.splits.history import History, batch, watermarks_of
from tests.watermark.splits.invariants import check


class Valve:
    """Several inputs, one output: emits each new low watermark, and changes of "all inputs are idle"."""

    def __init__(self, inputs: int = 0) -> None:
        self.coalescer = Coalescer(all_idle=AllIdle.MAX)  # FLINK-38454
        self.idle = False
        for index in range(inputs):
            self.coalescer.assign(index)

    def act(self, op: str, split: int | str, wm: int | None = None) -> list[int | str]:
        match op:
            case "wm" if wm is not None:
                self.coalescer.report(split, us(wm))
            case "idle":
                self.coalescer.signal(split, Signal.IDLE)
            case "active":
                self.coalescer.signal(split, Signal.WAKE)
            case "remove":
                self.coalescer.remove(split)
            case _:
                raise AssertionError(f"no such step: {op}")
        emitted: list[int | str] = []
        was_idle, self.idle = self.idle, self.coalescer.all_idle
        if was_idle and not self.idle:
            emitted.append("ACTIVE")
        if op != "remove" and (low_us := self.coalescer.advance()) is not None:
            emitted.append(low_us // 1_000)
        if self.idle and not was_idle:
            emitted.append("IDLE")
        check(self.coalescer)
        return emitted


@pytest.mark.parametrize("case", family("VAL"), ids=case_id)
def test_valve(case: Case) -> None:
    valve = Valve(inputs=int(case["given"].split()[0]))
    for op, *operands, emitted in case["steps"]:
        wm, index = operands if op == "wm" else (None, operands[0])

        assert emitted == valve.act(op, index, wm)


# -- EVT: the data of these cases are prose; here are their steps, with all emitted values

EVT: dict[str, tuple[list[Any], list[int | str]]] = {
    "EVT-01": ([("new", "main"), ("wm", "main", 100), ("wm", "main", 120), ("wm", "main", 110)], [100, 120]),
    "EVT-02": (
        [
            *(("new", "A"), ("new", "B"), ("wm", "A", 100), ("wm", "B", 200), ("wm", "A", 150)),
            *(("remove", "A"), ("wm", "B", 200)),
        ],
        [100, 150, 200],
    ),
    "EVT-04": (
        [
            *(("new", "main"), ("wm", "main", 100), ("idle", "main"), ("new", "s1"), ("wm", "s1", 150)),
            *(("new", "s2"), ("wm", "s2", 200), ("idle", "s1"), ("idle", "s2"), ("wm", "main", 250)),
            *(("idle", "s1"), ("idle", "s2"), ("idle", "main"), ("wm", "s1", 300)),
        ],
        [100, "IDLE", "ACTIVE", 150, 200, "IDLE", "ACTIVE", 250, "IDLE", "ACTIVE", 300],
    ),
    "EVT-05": (
        [
            *(("new", "A"), ("new", "B"), ("wm", "A", 100), ("wm", "A", 200), ("wm", "A", 300)),
            *(("wm", "B", 150), ("wm", "B", 250), ("wm", "B", 350)),
        ],
        [150, 250, 300],
    ),
}


@pytest.mark.parametrize("name", EVT)
def test_event_time_of_several_outputs(name: str) -> None:
    valve, emitted, (steps, expected) = Valve(), list[int | str](), EVT[name]
    for op, output, *wm in steps:
        if op == "new":  # as in Flink, a new split joins the minimum with its first watermark
            valve.coalescer.assign(output)
        else:
            emitted += valve.act(op, output, *wm)

    assert expected == emitted


# -- KIN


def ms_of(low_us: int | None) -> int | str:
    return "MIN" if low_us is None else low_us // 1_000


def follow_the_tracker(case: Case) -> None:
    """``MIN`` is a reader without a watermark; a peer that is silent for longer than the timeout is idle."""
    strategy = WatermarkStrategy(idle_timeout_us=us(60_000), idle_clock=IdleClock.TIME)
    of_splits, now_us = watermarks_of(strategy), 0
    of_splits.handle(SplitsDiscovered(("local", "wm1")), now_us)
    for batch_id, (op, value, *wanted) in enumerate(case["steps"]):
        match op:
            case "advance":
                now_us += us(value)
            case "peer":
                of_splits.handle(BatchReported(batch_id, now_us, {"wm1": us(value)}), now_us)
            case "report":
                reported: dict[SplitId, int] = {} if value == "MIN" else {"local": us(value)}
                of_splits.handle(BatchReported(batch_id, now_us, reported, rows={"local": 1}), now_us)

                assert wanted == [ms_of(of_splits.low_watermark_us)]


def read_without_a_report(case: Case) -> None:
    of_splits, lows = watermarks_of(), []
    for event in (BatchReported(0, 0, {"a": us(998)}), BatchReported(1, 1, {"a": us(999)}), Polled(2)):
        of_splits.handle(event, 2)
        lows.append(ms_of(of_splits.low_watermark_us))

    assert case["expect"].startswith(", ".join(map(str, lows)))


KIN = {"KIN-01": follow_the_tracker, "KIN-02": read_without_a_report}


@pytest.mark.parametrize("name", KIN)
def test_kinesis_tracker(name: str) -> None:
    (case,) = (case for case in family("KIN") if case["id"] == name)
    KIN[name](case)


# -- BUG


def test_bug_12_a_restart_decides_who_is_late_as_if_there_had_been_none() -> None:
    whole, restarted = History(), History()
    for history in (whole, restarted):
        history.on(0, batch(0, 0, {"a": 50, "b": 90}))
    restarted.restart(1)
    older = [batch(1, 2, {"a": 20, "b": 30}), batch(2, 3, {"a": 60, "b": 30}), batch(3, 4, {"a": 95})]
    effects = [[history.on(second, event) for second, event in enumerate(older, 2)] for history in (whole, restarted)]

    assert effects[0] == effects[1] == [[], [("low", 60)], [("low", 90)]]
    assert whole.watermarks.snapshot() == restarted.watermarks.snapshot()


# -- the count


def test_no_case_of_these_families_is_skipped() -> None:
    ran = {case["id"] for case in family("VAL")} | EVT.keys() | KIN.keys()
    cases = {case["id"] for name in ("VAL", "EVT", "KIN") for case in family(name)}

    assert cases == ran | (cases & DEVIATIONS.keys())
    assert not ran & DEVIATIONS.keys()
    assert [len(family(name)) for name in ("VAL", "EVT", "KIN")] == [7, 5, 3]


def bugs_in(module: ModuleType) -> set[str]:
    return {f"BUG-{name.split('_')[2]}" for name in vars(module) if name.startswith("test_bug_")}


def test_every_bug_has_its_test_or_its_reason() -> None:
    tested = bugs_in(test_flink_cases) | bugs_in(test_alignment_cases) | {"BUG-12"}
    bugs = {case["id"] for case in family("BUG")}

    assert "test_bug_12_a_restart_decides_who_is_late_as_if_there_had_been_none" in globals()
    assert bugs == tested | (bugs & DEVIATIONS.keys())
    assert len(bugs) == 8
