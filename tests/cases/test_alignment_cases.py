"""Flink's cases for groups (ALN), for readers (SPL, OPA, SMP), Pathway's for groups (P), and bugs about groups.

``Job`` plays the cases that describe a whole job in a few lines of discrete time: readers that read a row now and
then, a group that announces, a network that may lose messages. A driver has no announcements: a reader asks when it
plans.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import pytest
from lowmark.watermark import DisagreeingGroup, NotifyNewLowWatermark, SplitState, TaskId, WatermarkStrategy
from lowmark.watermark.splits.coalescer import Coalescer
from lowmark.watermark.splits.events import (
    BatchReported,
    Polled,
    SplitsDiscovered,
    SplitsPaused,
    SplitsResumed,
    SplitStateChanged,
    Tick,
)
from lowmark.watermark.splits.stream import SplitWatermarks
from lowmark.watermark.strategy import AlignmentParams
from lowmark.watermark.tasks.alignment import AlignmentGroup
from lowmark.watermark.tasks.cap import Cap, CapAnnounced

from tests.cases.deviations import DEVIATIONS
from tests.cases.reader import Case, case_id, family, us

PATHWAY: list[Case] = json.loads(Path(__file__).with_name("pathway_cases.json").read_text("utf-8"))["cases"]
SECOND_US = 1_000_000


# -- a job


@dataclass
class Reader:
    """A task with one split: reads the next row every ``period_us``, unless its watermark is beyond its cap.

    A reader without a cap reads freely, as Flink's readers do.
    """

    task: TaskId
    rows_us: Sequence[int]  # the watermark after each row
    period_us: int
    hears: Callable[[int], bool] = lambda now_us: True
    asks: bool = False  # asks for its cap before every row
    cap: Cap = field(default_factory=Cap.free)
    read: list[int] = field(default_factory=list)
    heard: int = 0

    def hear(self, announced: CapAnnounced) -> None:
        self.cap, self.heard = announced.cap, self.heard + 1

    def act(self) -> bool:
        """Read a row if the cap allows it. Returns whether all rows are read."""
        if self.cap.allows(self.read[-1] if self.read else None):
            self.read.append(self.rows_us[len(self.read)])
        return len(self.read) == len(self.rows_us)


class Job:
    """Readers and their group, in discrete time; ends when all rows are read, or at ``until_us``."""

    def __init__(self, params: AlignmentParams, readers: Sequence[Reader]) -> None:
        self.params, self.readers = params, readers
        self.group = AlignmentGroup(params.group)
        self.now_us = 0
        self.drifts_us: list[int] = []  # Flink's metric of the last reader: watermark - cap, at every announcement
        for reader in readers:
            self.group.join(reader.task, params, now_us=0)

    def run(self, until_us: int) -> None:
        serial, busy = count(), {reader.task for reader in self.readers}
        agenda: list[tuple[int, int, Reader | None]] = [(self.params.update_interval_us, next(serial), None)]
        agenda += [(reader.period_us, next(serial), reader) for reader in self.readers]
        heapq.heapify(agenda)
        while busy and agenda[0][0] <= until_us:
            self.now_us, _, reader = heapq.heappop(agenda)
            if reader is None:
                self.announce()
                heapq.heappush(agenda, (self.now_us + self.params.update_interval_us, next(serial), None))
            elif self.act(reader):
                busy.discard(reader.task)
                self.group.leave(reader.task)
            else:
                heapq.heappush(agenda, (self.now_us + reader.period_us, next(serial), reader))

    def act(self, reader: Reader) -> bool:
        if not reader.asks:
            return reader.act()
        reader.cap = self.group.cap()
        done = reader.act()
        self.group.report(reader.task, reader.read[-1], at_us=self.now_us)
        return done

    def announce(self) -> None:
        for reader in self.readers:
            if reader.read and reader.task in self.group._members:
                self.group.report(reader.task, reader.read[-1], at_us=self.now_us)
        announced = {each.task: each for each in self.group.announce(self.now_us)}
        for reader in self.readers:
            if reader.task in announced and reader.hears(self.now_us):
                reader.hear(announced[reader.task])
        last = self.readers[-1]
        if last.cap.us is not None and last.read:
            self.drifts_us.append(last.read[-1] - last.cap.us)


def flink_reader(
    name: str, rows_us: Sequence[int], period_us: int, hears: Callable[[int], bool] = lambda _: True
) -> Reader:
    return Reader(TaskId("job", name, "0"), rows_us, period_us, hears)


# -- ALN


def announce_minimum_and_drift(case: Case) -> None:
    drift_us = us(int(case["given"].split()[1].rstrip(",;"))) if case["given"].startswith("drift") else us(1_000)
    groups: dict[str, AlignmentGroup] = {}
    latest: dict[str, int | str | None] = {}
    for at_us, step in enumerate(case["steps"], 1):
        name, task = step["group"], TaskId("job", step["source"], str(step["subtask"]))
        group = groups.setdefault(name, AlignmentGroup(name))
        group.join(task, AlignmentParams(name, drift_us, 1), now_us=at_us - 1)
        if step["report"] == "MAX":
            group.idle(task, at_us=at_us)
        else:
            group.report(task, us(step["report"]), at_us=at_us)
        if not step["announced"]:
            continue  # the case has no expectation between two reports
        for each in groups.values():
            for announced in each.announce(at_us):
                shown = "MAX" if announced.cap == Cap.free() else announced.cap.us
                latest[f"{announced.task.source_id}/{announced.task.task_id}"] = shown

        expected = {key: "MAX" if cap == "MAX" else us(cap) for key, cap in step["announced"].items()}
        assert expected == latest


def announce_only_once_started(case: Case) -> None:
    assert AlignmentGroup("g").announce(us(10_000)) == []

    started = AlignmentGroup("g")
    started.join(TaskId("job", "s", "0"), AlignmentParams("g", us(1_000), us(1_000)), now_us=0)
    started.report(TaskId("job", "s", "0"), 0, at_us=1)
    assert [len(started.announce(us(ms))) for ms in (999, 1_000, 1_001, 2_000)] == [0, 1, 0, 1]


def survive_lost_announcements(case: Case) -> None:
    reader = flink_reader("s", range(us(1_000), us(1_020), us(1)), us(1), hears=lambda now_us: now_us > us(10))
    Job(AlignmentParams("g", us(1_000), us(1)), [reader]).run(us(100))

    assert reader.heard >= 5
    assert len(reader.read) == 20


def finish_without_deadlock(case: Case) -> None:
    numbers = range(us(101))[:: us(1)]
    readers = [flink_reader(f"s{task}", numbers[task::2], us(10)) for task in range(2)]
    Job(AlignmentParams("g", us(10), us(1)), readers).run(us(10_000))

    assert list(numbers) == sorted(readers[0].read + readers[1].read)


def hold_the_fast_one_back(case: Case) -> None:
    numbers = range(us(1_000))[:: us(1)]
    job = Job(
        AlignmentParams("g", us(10), us(100)), [flink_reader(n, numbers, us(p)) for n, p in (("a", 10), ("b", 1))]
    )
    job.run(us(3_000))

    falling = job.drifts_us[: next(i for i, drift_us in enumerate(job.drifts_us) if drift_us <= us(1))]
    assert sorted(falling, reverse=True) == falling
    assert len(falling) > 3
    assert all(drift_us < us(10) for drift_us in job.drifts_us[len(falling) :])


def announce_nothing_while_nobody_spoke(case: Case) -> None:
    group, task = AlignmentGroup("g"), TaskId("job", "s", "0")
    group.join(task, AlignmentParams("g", us(1_000), us(1)), now_us=0)

    assert group.announce(us(1)) == []
    group.report(task, 0, at_us=us(2))
    assert [told.cap for told in group.announce(us(2))] == [Cap.up_to(us(1_000))]


ALN: dict[str, Callable[[Case], None]] = {
    "ALN-01": announce_minimum_and_drift,
    "ALN-02": announce_minimum_and_drift,
    "ALN-03": announce_minimum_and_drift,
    "ALN-04": announce_only_once_started,
    "ALN-05": survive_lost_announcements,
    "ALN-07": finish_without_deadlock,
    "ALN-08": hold_the_fast_one_back,
    "ALN-09": announce_nothing_while_nobody_spoke,
}


# -- SPL


def backpressure_is_not_silence(case: Case) -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_idleness("100 milliseconds", clock="time")
    stream = SplitWatermarks(strategy, job_id="job", source_id="s", task_id="0")
    stream.handle(SplitsDiscovered(("0", "1")), now_us=0)
    effects = stream.handle(BatchReported(0, 0, {"0": us(42)}), now_us=0)
    for tick in range(1, 21):  # back-pressure stops reading: no Polled, no batch
        effects += stream.handle(Tick(), now_us=us(100 * tick))

    assert [type(effect) for effect in effects] == [SplitStateChanged]  # split 0 became active
    effects += stream.handle(BatchReported(1, us(2_050), {"0": us(44)}), now_us=us(2_050))
    for tick in range(21, 31):
        effects += stream.handle(Polled(us(100 * tick)), now_us=us(100 * tick))
    assert [effect.new_low_watermark for effect in effects if isinstance(effect, NotifyNewLowWatermark)] == [us(44)]
    assert {split.state for split in stream.status(us(3_000)).splits.values()} == {SplitState.IDLE}


def a_paused_split_is_never_idle(case: Case) -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_idleness("100 milliseconds")
    stream = SplitWatermarks(strategy, job_id="job", source_id="s", task_id="0")
    stream.handle(SplitsDiscovered(("0",)), now_us=0)
    cap, now_us, left = Cap.up_to(us(4)), 0, [1, 1, 1, 1, 5, 105]
    for batch in range(10):
        if cap.allows(stream.low_watermark_us):
            stream.handle(BatchReported(batch, now_us, {"0": us(left.pop(0))}), now_us)
            if not cap.allows(stream.low_watermark_us):
                stream.handle(SplitsPaused(("0",)), now_us)
        now_us += us(100)
        stream.handle(Polled(now_us), now_us)

        assert stream.states[SplitState.IDLE] == 0
    assert left == [105]
    stream.handle(SplitsResumed(("0",)), now_us)
    assert stream.states[SplitState.ACTIVE] == 1


SPL: dict[str, Callable[[Case], None]] = {
    "SPL-02": backpressure_is_not_silence,
    "SPL-03": a_paused_split_is_never_idle,
}


# -- OPA


def idle_leaves_and_comes_back(case: Case) -> None:
    for other_idles in (False, True):
        group, (task, other) = AlignmentGroup("g"), (TaskId("job", "s", str(n)) for n in range(2))
        for member in (task, other):
            group.join(member, AlignmentParams("g", us(100), 1), now_us=0)
        group.report(task, us(1), at_us=1)
        group.report(other, us(51), at_us=1)
        assert group.cap() == Cap.up_to(us(101))
        group.idle(task, at_us=2)
        if other_idles:
            group.idle(other, at_us=2)
        assert group.cap() == (Cap.free() if other_idles else Cap.up_to(us(151)))
        group.report(task, None, at_us=3)  # the task reads again, and row 2 has no watermark: 1 counts, as before
        assert group.cap() == Cap.up_to(us(101))


def reported_watermarks_do_not_decrease(case: Case) -> None:
    reader = Coalescer()  # a member reports its low watermark, which is latched
    reader.assign("1")
    reader.report("1", us(2_000))
    reader.advance()
    reader.assign("2")
    reader.report("2", us(1_000))
    reader.advance()

    assert us(2_000) == reader.low_us


OPA: dict[str, Callable[[Case], None]] = {
    "OPA-02": idle_leaves_and_comes_back,
    "OPA-05": reported_watermarks_do_not_decrease,
}


FLINK: dict[str, Callable[[Case], None]] = {
    **ALN,
    **SPL,
    **OPA,
}


@pytest.mark.parametrize(
    "case",
    [case for name in ("ALN", "SPL", "OPA") for case in family(name) if case["id"] in FLINK],
    ids=case_id,
)
def test_alignment(case: Case) -> None:
    FLINK[case["id"]](case)


# -- P


class Pathway:
    """Sources that ask before they send, and hear the answer at the next announcement."""

    def __init__(self) -> None:
        self.group, self.now_us = AlignmentGroup("g"), 0
        self.sent: dict[str, int | None] = {}
        self.caps: dict[str, Cap] = {}

    def join(self, source: str) -> None:
        params = AlignmentParams("g", us(10), SECOND_US)
        self.group.join(self.task(source), params, now_us=0)
        self.sent[source], self.caps[source] = None, Cap.hold()

    @staticmethod
    def task(source: str) -> TaskId:
        return TaskId("job", source, "0")

    def says(self, source: str, wanted_us: int | None) -> None:
        self.group.report(self.task(source), self.sent[source], at_us=self.now_us, next_wanted_us=wanted_us)

    def announce(self) -> None:
        self.now_us += SECOND_US
        for announced in self.group.announce(self.now_us):
            self.caps[announced.task.source_id] = announced.cap

    def send(self, source: str, value_us: int) -> None:
        before_us = self.sent[source]
        self.sent[source] = value_us if before_us is None else max(before_us, value_us)


def deliver(case: Case) -> None:
    pathway, rows = Pathway(), 0
    left = {source: list(given["batches"]) for source, given in case["sources"].items()}
    done_at_us: dict[str, int] = {}
    for source in case["sources"]:
        pathway.join(source)
    for _ in range(20):
        for source, given in case["sources"].items():
            idle_us = given["idle_seconds"] * SECOND_US if "idle_seconds" in given else None
            if not left[source]:
                done_at_us.setdefault(source, pathway.now_us)
                if idle_us is not None and pathway.now_us - done_at_us[source] > idle_us:
                    pathway.group.idle(pathway.task(source), at_us=pathway.now_us)
                    continue
            pathway.says(source, us(max(left[source][0])) if left[source] else None)
        pathway.announce()
        for source, batches in left.items():
            if batches and pathway.caps[source].allows(us(max(batches[0]))):
                batch = batches.pop(0)
                pathway.send(source, us(max(batch)))
                rows += len(batch)

    assert case["expect"] == rows


def ask(case: Case) -> None:
    pathway = Pathway()
    for source in ("s1", "s2"):
        pathway.join(source)
    for verb, source, value, *allowed in case["steps"]:
        if verb == "sent":
            pathway.send(source, us(value))
            pathway.says(source, None)
        else:
            pathway.says(source, us(value))
        pathway.announce()
        if allowed:
            assert allowed[0] == pathway.caps[source].allows(us(value)), f"{verb} {source} {value}"


@pytest.mark.parametrize("case", [case for case in PATHWAY if case["id"] not in DEVIATIONS], ids=case_id)
def test_synchronized_sources(case: Case) -> None:
    (ask if "steps" in case else deliver)(case)


# -- BUG

PARAMS = AlignmentParams("g", us(1_000), 1)


def test_bug_01_a_reader_that_is_lost_stops_holding_the_cap() -> None:
    group, (first, second) = AlignmentGroup("g"), (TaskId("job", "s", str(n)) for n in range(2))
    for task, wm in ((first, 42), (second, 5_000)):
        group.join(task, PARAMS, now_us=0)
        group.report(task, us(wm), at_us=1)
    assert group.cap() == Cap.up_to(us(1_042))
    group.leave(first)
    assert group.cap() == Cap.up_to(us(6_000))


@pytest.mark.parametrize("how", ["idle", "leave"])
def test_bug_04_a_reader_whose_splits_were_all_taken_away_caps_nobody(how: str) -> None:
    group, (this, other) = AlignmentGroup("g"), (TaskId("job", "s", str(n)) for n in range(2))
    for task, wm in ((this, 1_000), (other, 5_000)):
        group.join(task, PARAMS, now_us=0)
        group.report(task, us(wm), at_us=1)
    if how == "idle":
        group.idle(this, at_us=2)
    else:
        group.leave(this)
    assert group.cap() == Cap.up_to(us(6_000))


def test_bug_10_a_backlog_that_all_have_is_not_throttled_to_the_drift_per_interval() -> None:
    hour_us = 3_600 * SECOND_US
    rows = range(0, 24 * hour_us, 60 * SECOND_US)  # each reads an hour of event time per second of its own
    readers = [replace(flink_reader(f"s{n}", rows, SECOND_US // 60), asks=True) for n in range(2)]
    job = Job(AlignmentParams("g", 30 * SECOND_US, SECOND_US), readers)
    job.run(2 * hour_us)

    assert [len(rows)] * 2 == [len(reader.read) for reader in readers]
    assert job.now_us < 30 * SECOND_US  # and not 48 minutes


def test_idle_is_cleared_when_a_member_goes_on() -> None:
    group, task = AlignmentGroup("g"), TaskId("job", "s", "0")
    group.join(task, PARAMS, now_us=0)
    group.report(task, 0, at_us=1)
    group.idle(task, at_us=2)
    assert group.cap() == Cap.free()
    group.report(task, 0, at_us=3)
    assert group.cap() == Cap.up_to(us(1_000))


def test_members_that_left_do_not_poison_all_idle() -> None:
    group, (this, other) = AlignmentGroup("g"), (TaskId("job", "s", str(n)) for n in range(2))
    for task in (this, other):
        group.join(task, PARAMS, now_us=0)
        group.report(task, us(7), at_us=1)
    group.leave(this)
    group.idle(other, at_us=2)
    assert group.cap() == Cap.free()
    group.report(other, us(8), at_us=3)
    assert group.cap() == Cap.up_to(us(1_008))


def test_sources_of_one_name_in_two_jobs_do_not_overwrite_each_other() -> None:
    group, (here, there) = AlignmentGroup("g"), (TaskId(job, "orders", "0") for job in ("a", "b"))
    for task, wm in ((here, 1), (there, 5_000)):
        group.join(task, PARAMS, now_us=0)
        group.report(task, us(wm), at_us=1)
    assert group.cap() == Cap.up_to(us(1_001))


def test_disagreeing_parameters_are_refused() -> None:
    group = AlignmentGroup("g")
    group.join(TaskId("a", "s", "0"), PARAMS, now_us=0)
    for params in (AlignmentParams("g", us(1_001), 1), AlignmentParams("g", us(1_000), 2)):
        with pytest.raises(DisagreeingGroup):
            group.join(TaskId("b", "s", "0"), params, now_us=0)
    assert len(group) == 1


def test_no_case_of_these_families_is_skipped() -> None:
    cases = {case["id"] for name in ("ALN", "SPL", "OPA", "SMP") for case in family(name)}
    deviating = {case for case in cases if case in DEVIATIONS}

    assert cases == FLINK.keys() | deviating
    assert not FLINK.keys() & deviating
    assert {name: len(family(name)) for name in ("ALN", "SPL", "OPA", "SMP")} == {
        "ALN": 9,
        "SPL": 6,
        "OPA": 4,
        "SMP": 3,
    }
    assert [case["id"] for case in PATHWAY] == ["P1", "P3", "P5", "P7", "P9", "P11", "P13", "P15", "P15b"]
