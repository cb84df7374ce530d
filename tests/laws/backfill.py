"""A seeded simulation of a log in splits that is read slice by slice.

Goal: find faults that no written case covers. Method: one seed draws a world (skew of hours, gaps, bursts in one
millisecond, rows out of order, clocks from the year 2099, positions without a row, indivisible steps, splits that
appear late, end, reshard or cannot be reached, rows that arrive between two questions, transactions whose markers a
search finds, restarts that forget all but the starts) and reads it to its end with `plan_slices`.

A judge that knows the rows checks:

* every row is read exactly once, and every plan reads a row as long as the limits allow one;
* a plan keeps its budget, but for one indivisible step;
* a claim is true: later rows are not older, apart from the split's out-of-orderness;
* no row at or after the cap is read of a searchable split; the plan names the splits without rows;
* searchable splits are never further apart than a slice;
* the same answers give the same plan.

    python -m tests.laws.backfill --seeds 10000 --start 0      # prints the seed that fails
    python -m tests.laws.backfill --figures                    # 64 splits, 24 hours, one six hours behind
"""

from __future__ import annotations

import argparse
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from lowmark.sources import SourceSplit, SplitEnd, SplitPlanner
from lowmark.sources.slicing import NoRowsReason, PlannedSlice, SliceLimits, SlicePlan, plan_slices

MS, SECOND, HOUR = 1_000, 1_000_000, 3_600_000_000
NOW_US = 1_700_000_000 * SECOND
YEAR_2099_US = 4_070_908_800 * SECOND
GUARD_US = 300 * SECOND


class Violation(AssertionError):
    """A plan broke a law; the text holds the seed."""


@dataclass
class LogSplit:
    """One split: rows in order, each with a position and an event time."""

    times: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    end: int = 0  # after the last row; positions before it may hold no row
    step: int = 1  # `after_rows` keeps so many positions together
    row_bytes: int | None = None
    counted: bool = True  # whether it knows its number of rows
    finished: bool = False
    parents: tuple[str, ...] = ()
    newest_us: int | None = None  # newest event time of its good rows
    largest: list[int] = field(default_factory=list)  # largest event time up to each position, markers included
    found_at: list[int] = field(default_factory=list)  # positions, markers included
    marked: bool = False  # holds markers: a search finds their positions, which hold no row
    hides: int = -1  # position of a marker that hid older rows

    def append(self, times: Sequence[int], *, hole: int = 0) -> None:
        for time_us in times:
            self.times.append(time_us)
            self.positions.append(self.end)
            self._count(time_us)
            self.end += 1 + hole

    def mark(self, time_us: int) -> None:
        self.marked = True
        self._count(time_us)
        self.end += 1

    def _count(self, time_us: int) -> None:
        self.found_at.append(self.end)
        self.largest.append(time_us if not self.largest else max(self.largest[-1], time_us))

    def read(self, start: int, stop: int) -> list[int]:
        return self.times[bisect_left(self.positions, start) : bisect_left(self.positions, stop)]

    def find(self, time_us: int) -> int | None:
        at = bisect_left(self.largest, time_us)
        return None if at == len(self.largest) else self.found_at[at]

    def first_from(self, position: int) -> tuple[int, int] | None:
        """Return (position, event time) of the first row from a position on."""
        at = bisect_left(self.positions, position)
        return None if at == len(self.positions) else (self.positions[at], self.times[at])


class Log(SplitPlanner[SourceSplit]):
    """A planner of splits in memory."""

    def __init__(self, splits: Mapping[str, LogSplit], *, searchable: bool = True) -> None:
        self.splits = dict(splits)
        self.searchable = searchable
        self.unreachable: set[str] = set()
        self.silent: set[str] = set()  # find_time gives no answer for these
        self.asked: list[int] = []
        self.lookups = [0]  # how often a time was asked for after each question about the ends, at first after none
        self.own_seconds = 0.0

    def latest(self, splits: Sequence[SourceSplit]) -> dict[str, SplitEnd]:
        ends = {}
        self.lookups.append(0)
        for split in splits:
            log = self.splits[split.split_id]
            if split.split_id not in self.unreachable:
                rows = log.end - split.start if log.counted else None
                size = None if log.row_bytes is None or rows is None else rows * log.row_bytes
                ends[split.split_id] = SplitEnd(log.end, rows, size, log.finished)
        return ends

    def after_rows(self, split: SourceSplit, rows: int, end: SplitEnd) -> int:
        step = self.splits[split.split_id].step
        return min(end.position, max((split.start + rows) // step * step, (split.start // step + 1) * step))

    def find_time(self, splits: Sequence[SourceSplit], time_us: int) -> dict[str, int | None] | None:
        began = time.process_time()
        self.asked.append(time_us)
        self.lookups[-1] += 1
        found = None
        if self.searchable:
            asked = [(split, self.splits[split.split_id]) for split in splits if split.split_id not in self.silent]
            found = {split.split_id: log.find(time_us) for split, log in asked}
            for split, log in asked:
                if log.marked and found[split.split_id] == log.hides >= split.start:
                    del found[split.split_id]
        self.own_seconds += time.process_time() - began
        return found

    def claims(self, splits: Sequence[SourceSplit], time_us: int, until_us: int | None = None) -> dict[str, int]:
        claimed = {split.split_id: time_us for split in splits}
        for split in splits:
            log = self.splits[split.split_id]
            if log.marked:
                first = log.first_from(split.start)
                if first is None or first[1] < time_us or (until_us is not None and first[1] > until_us):
                    del claimed[split.split_id]
                    if first is None or first[0] != split.start:
                        log.hides = split.start
        return claimed


class ExactLog(Log):
    """A log that counts rows, not positions."""

    def rows_before(self, split: SourceSplit, position: int) -> int:
        return len(self.splits[split.split_id].read(split.start, position))


class Backfill:
    """One world. ``run`` reads it to its end, or raises Violation."""

    def __init__(self, seed: int) -> None:
        self.seed, self.random = seed, Random(seed)
        random = self.random
        self.marking = Random(f"{seed}, markers")
        self.transactions = self.marking.random() < 0.25
        self.now_us = NOW_US
        self.bad_clocks = random.random() < 0.4
        self.begun_in_the_middle = random.random() < 0.25
        self.late_rows = random.random() < 0.3  # rows arrive between two questions
        self.restarts = random.random() < 0.3
        self.span_us = random.choice((10 * MS, SECOND, 60 * SECOND, 24 * HOUR, 400 * 24 * HOUR))
        self.unruly_us = random.choice((0, 0, self.span_us // 50, self.span_us // 3))
        self.budget = random.choice((None, 1, 2, 7, 50, 400, 100_000))
        self.byte_budget = random.choice((None, None, None, 100, 5_000))
        self.guard_us = random.choice((GUARD_US, GUARD_US, GUARD_US, None))
        self.max_slice_us = random.choice((None, None, None, MS, max(MS, self.span_us // 10)))
        self.cap_step_us = random.choice((None, None, max(1, self.span_us // 20), max(1, self.span_us // 3)))
        self.read_before_us: int | None = None
        self.by_time = random.random() < 0.85
        kind = ExactLog if random.random() < 0.3 else Log
        self.log = kind({}, searchable=random.random() < 0.95)
        self.starts: dict[str, int] = {}
        self.hidden: list[str] = []  # splits that appear later
        self.size = random.choice((1, 2, 3, 8, 20))
        for i in range(self.size):
            self.draw_split(f"split-{i}")
        if random.random() < 0.2:
            parent = random.choice(sorted(self.log.splits))
            self.log.splits[parent].finished = True
            for i in range(2):
                self.draw_split(f"{parent}/{i}", parents=(parent,))
        self.targets: dict[str, int] | None = None
        if random.random() < 0.15:
            self.targets = {name: random.randint(0, log.end) for name, log in self.log.splits.items()}
        if self.cap_step_us is not None:
            self.read_before_us = NOW_US - self.span_us
        # the state of the caller
        self.previous_us: int | None = None
        self.span_hint_us: int | None = None
        self.observed_us: dict[str, int] = {}
        self.claims_us: dict[str, int] = {}
        self.knows_all = True  # no restart so far
        self.counts: Counter[str] = Counter()

    # -- the world

    def draw_split(self, name: str, parents: tuple[str, ...] = ()) -> None:
        random = self.random
        log = LogSplit(parents=parents, step=random.choice((1, 1, 1, 1, 5, 64)))
        log.row_bytes = random.choice((None, 1, 10, 300))
        log.counted = random.random() < 0.8
        log.finished = random.random() < 0.2 and not parents
        if self.begun_in_the_middle and random.random() < 0.5:
            log.append([self.now_us - random.randint(0, self.span_us) for _ in range(random.randint(1, 5))])
        if self.bad_clocks and random.random() < 0.3:
            log.append([YEAR_2099_US])
        self.starts[name] = log.end if random.random() < 0.7 else 0
        if self.starts[name] == 0 and self.begun_in_the_middle:
            log = LogSplit(parents=parents, step=log.step, row_bytes=log.row_bytes, counted=log.counted)
        self.log.splits[name] = log
        # A thousand batches take seconds, and meet nothing that a hundred do not.
        tight = (self.budget or 100) <= 10 or self.byte_budget == 100
        most = 300 if not tight else 40 if self.size < 8 else 10
        times = self.draw_times(log, min(most, random.choice((0, 1, 5, 40, 300))))
        self.write(log, times, hole=random.choice((0, 0, 0, 2)))
        if random.random() < 0.15 and not parents:
            self.hidden.append(name)

    def draw_times(self, log: LogSplit, many: int) -> list[int]:
        """Draw times that follow the split's newest good time, or precede it by at most the out-of-orderness."""
        random = self.random
        newest_us = log.newest_us
        if newest_us is None:
            newest_us = self.now_us - random.randint(self.span_us // 4, self.span_us)
        times = []
        for _ in range(many):
            chance = random.random()
            if chance < 0.02:
                newest_us += self.span_us // 3  # a gap
            elif chance < 0.5:
                newest_us += random.randint(0, max(1, self.span_us // max(many, 20)))
            newest_us = min(newest_us, self.now_us)
            if self.bad_clocks and random.random() < 0.01:
                times.append(YEAR_2099_US + random.randint(0, 10))
            else:
                times.append(newest_us - random.randint(0, self.unruly_us) if random.random() < 0.3 else newest_us)
        log.newest_us = newest_us
        return times

    def write(self, log: LogSplit, times: list[int], *, hole: int = 0) -> None:
        """Append rows, and in a world of transactions some markers, whose time is the present."""
        draw = self.marking
        while times:
            rows = draw.randint(1, 30) if self.transactions else len(times)
            log.append(times[:rows], hole=hole)
            times = times[rows:]
            if self.transactions and draw.random() < 0.5:
                log.mark(self.now_us + draw.randint(0, 5) - draw.choice((0, 0, 0, self.span_us // 2)))

    def arrive(self, rows: int) -> None:
        for name in sorted(self.log.splits):
            log = self.log.splits[name]
            if not log.finished and self.random.random() < 0.3:
                self.write(log, self.draw_times(log, self.random.randint(0, rows)))

    # -- reading

    def run(self) -> None:
        """Read to the end."""
        for name in self.log.splits:
            self.starts.setdefault(name, 0)
        patience = 400 + 3 * sum(log.end for log in self.log.splits.values())
        for batch in range(patience):
            growing = batch < 15
            if growing and self.random.random() < 0.3:
                self.now_us += self.span_us // 50
                self.arrive(5)
            if self.hidden and (not growing or self.random.random() < 0.1):
                self.hidden.pop()
            if self.restarts and self.random.random() < 0.15:
                self.previous_us, self.span_hint_us, self.observed_us, self.knows_all = None, None, {}, False
                self.counts["restarts"] += 1
            names = sorted(self.log.splits)
            self.log.unreachable = {name for name in names if growing and self.random.random() < 0.03}
            self.log.silent = {name for name in names if growing and self.random.random() < 0.02}
            if not growing and self.targets is not None:
                self.targets = None
            asked = [
                SourceSplit(split_id=name, start=self.starts[name], parents=self.log.splits[name].parents)
                for name in names
                if name not in self.hidden and not self.done(name)
            ]
            if not growing and all(self.starts[name] == self.log.splits[name].end for name in names):
                self.counts["read to the end"] += 1
                return
            self.batch(asked, growing=growing)
        self.fail(f"not read to the end in {patience} batches: {self.starts}")

    def done(self, name: str) -> bool:
        log = self.log.splits[name]
        return log.finished and self.starts[name] >= log.end

    def batch(self, asked: list[SourceSplit], *, growing: bool) -> None:
        limits = SliceLimits(
            now_us=self.now_us,
            rows=self.budget,
            size_bytes=self.byte_budget,
            read_before_us=self.read_before_us,
            observed_us=dict(self.observed_us),
            future_guard_us=self.guard_us,
            targets=None if self.targets is None else dict(self.targets),
            by_time=self.by_time,
            max_slice_us=self.max_slice_us,
            previous_span_us=self.span_hint_us,
        )
        known = {split.split_id: self.log.splits[split.split_id].end for split in asked}
        if self.late_rows and growing:
            plan = plan_slices(_Growing(self), asked, limits, previous_time_us=self.previous_us)
            self.lookups = self.log.lookups[-1]
        else:
            plan = plan_slices(self.log, asked, limits, previous_time_us=self.previous_us)
            self.lookups = self.log.lookups[-1]
            if self.counts["batches"] % 8 == 0 and not self.transactions:  # the log remembers markers that hide rows
                again = plan_slices(self.log, asked[::-1], limits, previous_time_us=self.previous_us)
                self.check(plan == again, "the same answers gave another plan")
        self.counts["batches"] += 1
        self.counts["lookups"] += self.lookups
        self.counts[f"lookups {self.lookups}"] += 1
        Judge(self, asked, limits, plan, known).judge()
        if self.previous_us is not None and plan.time_us is not None:
            self.span_hint_us = max(0, plan.time_us - self.previous_us)
        self.previous_us = plan.time_us if plan.time_us is not None else self.previous_us
        for name, planned in plan.slices.items():
            for us in self.log.splits[name].read(planned.start, planned.stop):
                if us < YEAR_2099_US or self.random.random() < 0.5:  # the caller may guard its observations
                    self.observed_us[name] = max(us, self.observed_us.get(name, us))
            self.starts[name] = planned.stop
            if planned.claim_us is not None:
                self.claims_us[name] = max(planned.claim_us, self.claims_us.get(name, planned.claim_us))
        if self.read_before_us is not None and self.cap_step_us is not None:
            self.read_before_us += self.cap_step_us
            if not growing and self.read_before_us > NOW_US + 2 * self.span_us:
                self.read_before_us = None

    def check(self, kept: bool, what: str) -> None:
        if not kept:
            self.fail(what)

    def fail(self, what: str) -> None:
        raise Violation(f"seed {self.seed}: {what}\nagain: python -m tests.laws.backfill --seeds 1 --start {self.seed}")


class _Growing(SplitPlanner[SourceSplit]):
    """The log of a world that gets rows between two questions."""

    def __init__(self, world: Backfill) -> None:
        self._world, self._log = world, world.log

    def latest(self, splits: Sequence[SourceSplit]) -> dict[str, SplitEnd]:
        ends = self._log.latest(splits)
        self._world.arrive(3)
        return ends

    def after_rows(self, split: SourceSplit, rows: int, end: SplitEnd) -> int:
        return self._log.after_rows(split, rows, end)

    def rows_before(self, split: SourceSplit, position: int) -> int:
        return self._log.rows_before(split, position)

    def claims(self, splits: Sequence[SourceSplit], time_us: int, until_us: int | None = None) -> dict[str, int]:
        return self._log.claims(splits, time_us, until_us)

    def find_time(self, splits: Sequence[SourceSplit], time_us: int) -> dict[str, int | None] | None:
        self._world.arrive(3)
        return self._log.find_time(splits, time_us)


class Judge:
    """Compares one plan with the truth."""

    def __init__(
        self, world: Backfill, asked: list[SourceSplit], limits: SliceLimits, plan: SlicePlan, ends: dict[str, int]
    ) -> None:
        self.world, self.asked, self.limits, self.plan, self.ends = world, asked, limits, plan, ends
        self.until_us = None if limits.future_guard_us is None else limits.now_us + limits.future_guard_us

    def judge(self) -> None:
        answered = {split.split_id for split in self.asked} - self.world.log.unreachable
        self.check(set(self.plan.slices) == answered, "not every split has a slice")
        rows: dict[str, list[int]] = {}
        for split in self.asked:
            if split.split_id in answered:
                log, planned = self.world.log.splits[split.split_id], self.plan.slices[split.split_id]
                rows[split.split_id] = log.read(planned.start, planned.stop)
                self.slice(split, log, planned, rows[split.split_id])
        self.budget(rows)
        self.progress()
        if self.plan.time_us is not None and self.limits.read_before_us is not None:
            self.check(self.plan.time_us <= self.limits.read_before_us, "T is beyond the cap")
        self.together(rows)
        self.span()

    def slice(self, split: SourceSplit, log: LogSplit, planned: PlannedSlice, rows: list[int]) -> None:
        name = split.split_id
        stop = self.stop_of(name)
        self.check(planned.start == split.start and planned.start <= planned.stop <= stop, f"{name}:", planned)
        self.check(len(rows) <= planned.rows, f"{name}: {len(rows)} rows in", planned)
        unread = len(log.read(planned.stop, self.ends[name]))
        self.check(unread <= planned.backlog_rows, f"{name}: {unread} rows are left of", planned)
        self.check(planned.finished == (log.finished and planned.stop == log.end), f"{name}: finished?", planned)
        self.check(name not in self.plan.without_rows or not rows, f"{name} is held, and read")
        waits = any(parent in self.ends and not self.world.done(parent) for parent in log.parents)
        self.check(not waits or not rows, f"{name} runs before its parents")
        believed = self.until_us is None and self.world.bad_clocks  # without a guard no clock is bad
        claim_us = None if believed else self.world.claims_us.get(name)
        good = [us for us in rows if us < YEAR_2099_US]
        self.check(
            claim_us is None or not good or min(good) >= claim_us - self.world.unruly_us,
            f"{name}: a row is older than its claim {claim_us} by more than {self.world.unruly_us}:",
            planned,
        )
        if planned.claim_us is not None and not believed:
            later = [us for us in log.read(planned.stop, log.end) if us < YEAR_2099_US]
            self.check(
                not later or min(later) >= planned.claim_us - self.world.unruly_us,
                f"{name}: a false claim:",
                planned,
            )
            self.check(self.until_us is None or planned.claim_us <= self.until_us, f"{name}: beyond the guard")
            proof = self.limits.read_before_us is None or planned.claim_us <= self.limits.read_before_us
            self.check(proof, f"{name}: a claim beyond the cap")
        self.cap(split, log, good)

    def cap(self, split: SourceSplit, log: LogSplit, rows: list[int]) -> None:
        read_before_us = self.limits.read_before_us
        if read_before_us is None or not rows:
            return
        observed_us = self.limits.observed_us.get(split.split_id)
        believed = observed_us is not None and (self.until_us is None or observed_us <= self.until_us)
        if self.searchable(split, log, read_before_us):
            self.check(max(rows) < read_before_us, f"{split.split_id}: rows beyond the cap")
        elif believed and not log.marked and not (log.find(read_before_us) or 0) > split.start:
            assert observed_us is not None
            self.check(observed_us < read_before_us, f"{split.split_id}: its rows are beyond the cap, and it is read")

    def searchable(self, split: SourceSplit, log: LogSplit, time_us: int) -> bool:
        """Whether a lookup of a time in this split gives the true position."""
        begins = log.find(time_us)
        bad = None if self.until_us is None else log.find(self.until_us + 1)
        able = self.limits.by_time and self.world.log.searchable and split.split_id not in self.world.log.silent
        if log.marked:
            return False
        return able and (begins is None or begins >= split.start) and (bad is None or bad > split.start)

    def budget(self, rows: Mapping[str, list[int]]) -> None:
        if self.limits.rows is None:
            return
        read = sum(map(len, rows.values()))
        steps = [self.world.log.splits[name].step for name, times in rows.items() if times]
        allowed = self.limits.rows if max(steps, default=1) == 1 else self.limits.rows + max(steps) - 1
        self.check(read <= max(allowed, 1), f"{read} rows for a budget of {self.limits.rows}")

    def progress(self) -> None:
        if any(planned.stop > planned.start for planned in self.plan.slices.values()):
            return
        for split in self.asked:
            name = split.split_id
            if name not in self.plan.slices or split.start == self.stop_of(name):
                continue
            why = self.plan.without_rows.get(name)
            self.check(why is not None, f"{name} has rows, nothing is read, and nobody says why")
            self.check(why is not NoRowsReason.AHEAD, f"{name} waits for nobody")
            if why is NoRowsReason.CAP and not self.world.log.splits[name].marked:
                read_before_us = self.limits.read_before_us
                log = self.world.log.splits[name]
                assert read_before_us is not None
                begins = log.find(read_before_us)
                observed_us = self.limits.observed_us.get(name)
                self.check(
                    (begins is not None and begins <= split.start)
                    or (observed_us is not None and observed_us >= read_before_us),
                    f"{name} is held by the cap {read_before_us}, and its next rows are before it",
                )

    def stop_of(self, name: str) -> int:
        stop = self.ends[name]
        if self.limits.targets is not None:
            stop = min(stop, self.limits.targets.get(name, 0))
        return max(stop, self.world.starts[name])

    def together(self, rows: Mapping[str, list[int]]) -> None:
        """No split is read a slice ahead, unless markers or bad clocks hide its times."""
        world, time_us = self.world, self.plan.time_us
        if world.bad_clocks or world.begun_in_the_middle or not world.knows_all or time_us is None or world.log.silent:
            return
        if world.transactions:
            return
        newest_us = max((max(times) for times in rows.values() if times), default=time_us)
        if newest_us < time_us + MS:
            world.counts["together"] += 1
        else:
            world.counts["coarse cuts"] += 1
            self.check(world.lookups >= 24, f"rows of {newest_us} in a slice up to {time_us}, with few lookups")

    def span(self) -> None:
        previous_us, longest_us, time_us = self.world.previous_us, self.limits.max_slice_us, self.plan.time_us
        if previous_us is None or longest_us is None or time_us is None or time_us <= previous_us + longest_us:
            return
        for split in self.asked:
            log = self.world.log.splits[split.split_id]
            if (
                split.split_id in self.plan.slices
                and split.split_id not in self.plan.without_rows
                and self.searchable(split, log, previous_us + longest_us)
            ):
                begins = log.find(previous_us + longest_us)
                stop = self.stop_of(split.split_id)
                self.check(
                    not log.read(split.start, stop if begins is None else min(begins, stop)),
                    f"{split.split_id}: the slice is longer than {longest_us}",
                )

    def check(self, kept: bool, what: str, *about: object) -> None:
        if not kept:
            said = " ".join(map(str, (what, *about)))
            self.world.fail(f"{said}\n{self.limits}\nT={self.plan.time_us} held={dict(self.plan.without_rows)}")


@dataclass
class Day:
    """The costs of the plans of a backfill, one value for each batch."""

    own_ms: list[float] = field(default_factory=list)  # processor time, without the log's
    lookups: list[int] = field(default_factory=list)
    filled: list[float] = field(default_factory=list)  # share of the budget
    spans_us: list[int] = field(default_factory=list)


def backfill_of_a_day(*, splits: int, rows: int, behind_us: int = 6 * HOUR) -> Day:
    """The backfill of DESIGN section 5 without a broker: 24 hours, one split behind, ten minutes a batch."""
    each, budget = rows // splits, rows // 144
    log = Log({})
    for i in range(splits):
        begin_us = NOW_US - 30 * HOUR - (behind_us if i == 0 else 0)
        log.splits[f"split-{i}"] = LogSplit()
        log.splits[f"split-{i}"].append([begin_us + 24 * HOUR * k // each for k in range(each)])
    starts = dict.fromkeys(log.splits, 0)
    previous_us = span_us = None
    day = Day()
    while any(start < each for start in starts.values()):
        asked = [SourceSplit(split_id=name, start=start) for name, start in starts.items()]
        limits = SliceLimits(now_us=NOW_US, rows=budget, future_guard_us=GUARD_US, previous_span_us=span_us)
        log.own_seconds, began = 0.0, time.process_time()
        plan = plan_slices(log, asked, limits, previous_time_us=previous_us)
        day.own_ms.append(1_000 * (time.process_time() - began - log.own_seconds))
        day.lookups.append(log.lookups[-1])
        day.filled.append(plan.rows / budget)
        for name, planned in plan.slices.items():
            newest = log.splits[name].read(planned.start, planned.stop)[-1:]
            if plan.time_us is not None and newest and newest[0] >= plan.time_us:
                raise Violation(f"{name} is read beyond {plan.time_us}")
        if previous_us is not None and plan.time_us is not None:
            span_us = plan.time_us - previous_us
            day.spans_us.append(span_us)
        previous_us = plan.time_us if plan.time_us is not None else previous_us
        starts = {name: planned.stop for name, planned in plan.slices.items()}
    return day


def figures(splits: int, rows: int) -> None:
    """Print the costs of a plan."""
    day = backfill_of_a_day(splits=splits, rows=rows)
    many, own_ms = len(day.own_ms), sorted(day.own_ms)
    print(
        f"{splits} splits, {rows} rows, {many} batches: plan {own_ms[many // 2]:.2f} ms median, {own_ms[-1]:.2f} most; "
        f"lookups {sum(day.lookups) / many:.1f} mean, {day.lookups[0]} first, {max(day.lookups)} most; "
        f"filled {sum(day.filled) / many:.0%}; longest slice {max(day.spans_us) / 60e6:.1f} minutes"
    )


def main() -> None:
    """Play worlds from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--figures", action="store_true")
    options = parser.parse_args()
    if options.figures:
        figures(splits=64, rows=2_000_000)
        figures(splits=4_096, rows=4_096_000)
        return
    met: Counter[str] = Counter()
    for seed in range(options.start, options.start + options.seeds):
        world = Backfill(seed)
        world.run()
        met += world.counts
    print(dict(sorted(met.items())))


if __name__ == "__main__":
    main()
