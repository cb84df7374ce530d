"""Producers that pause together and continue: no split is passed because of it, and a dead split is still left out.

A seed draws a stream of eleven splits that are up to half an hour apart in event time and deliver at different rates,
the moments at which batches are planned, and the pauses. Rows of a split are in order, so a row at or below the low
watermark is a row that Spark would have dropped.

Two laws state the same on deliveries alone: how far apart splits may return, and when a dead split is left out.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowmark.watermark import SplitId, SplitState, TaskId, WatermarkStrategy
from lowmark.watermark.protocol import LeftOut, ReplyLowWatermark, RetrieveLowWatermark, TaskRegistered
from lowmark.watermark.splits.events import (
    BatchPlanned,
    BatchReported,
    Polled,
    SplitsDiscovered,
    SplitStateChanged,
    Tick,
)
from lowmark.watermark.splits.stream import SplitWatermarks
from lowmark.watermark.tasks.coordinator import LowWatermarkCoordinator

from tests.laws.strategies import LAWS, draws

S = 1_000_000
START_US = 1_700_000_000 * S
TIMEOUT_US, PAUSE_US = 4 * S, 6 * S
SPLITS = tuple(range(11))
FLOW = WatermarkStrategy.for_monotonous_timestamps().with_idleness("4 seconds")
TIME = FLOW.with_idleness("4 seconds", clock="time")


class World:
    """The producers of one seed, and a query that reads them.

    Args:
        planned: whether batches are planned before they are read, as our own sources do.
        dead: a split that delivers nothing after the end of the first pause.
        restart: whether the query restarts within every pause.
        slow: whether a batch takes about a second and batches follow each other at once.
    """

    def __init__(
        self, seed: int, strategy: WatermarkStrategy = FLOW, *, planned: bool = False, dead: int | None = None,
        restart: bool = False, slow: bool = False,
    ) -> None:  # fmt: skip
        self.batch_us = (S, 6 * S // 5) if slow else (S // 10, S // 2)
        self.wait_us = (1, S // 10) if slow else (S // 20, S)
        self.random = Random(seed)
        self.strategy, self.planned, self.dead, self.restart = strategy, planned, dead, restart
        self.coordinator = SplitWatermarks(strategy, job_id="j", source_id="s", task_id="t")
        self.now_us = self.read_us = START_US
        self.batch_id = -1
        self.late = 0
        self.left_out_us: int | None = None
        every_us = [int(self.random.uniform(0.02, 0.9) * S) for _ in SPLITS]
        behind_us = [self.random.randrange(1_800) * S for _ in SPLITS]
        begins_us = START_US + 3 * S + self.random.randrange(4 * S)
        self.pauses: list[int] = []
        while begins_us < START_US + 60 * S:
            self.pauses.append(begins_us)
            begins_us += PAUSE_US + self.random.randrange(2 * S, 20 * S)
        self.until_us = begins_us
        self.dies_us = self.pauses[0] + PAUSE_US
        self.rows: list[tuple[int, int, int]] = []  # (arrival time, split, event time)
        for split in SPLITS:
            us = START_US
            while us < self.until_us:
                us += self.random.randrange(1, 2 * every_us[split])
                pause = next((p for p in self.pauses if p <= us < p + PAUSE_US), None)
                if pause is not None:  # the producer's queue arrives within a second of the end
                    us = pause + PAUSE_US + self.random.randrange(S)
                if split != dead or us < self.dies_us:
                    self.rows.append((us, split, us - behind_us[split]))
        self.rows.sort()
        self.coordinator.handle(SplitsDiscovered(SPLITS), self.now_us)

    def run(self) -> None:
        restarts = [us + self.random.randrange(PAUSE_US) for us in self.pauses] if self.restart else []
        next_row = 0
        while self.now_us < self.until_us:
            self.now_us += self.random.randrange(*self.wait_us)
            if restarts and self.now_us > restarts[0]:
                restarts.pop(0)
                data = self.coordinator.snapshot()
                ids = {"job_id": "j", "source_id": "s", "task_id": "t"}
                self.coordinator = SplitWatermarks.restore(data, self.strategy, now_us=self.now_us, **ids)
            planned_us, first = self.now_us, next_row
            while next_row < len(self.rows) and self.rows[next_row][0] <= planned_us:
                next_row += 1
            if first == next_row:
                self.coordinator.handle(Polled(planned_us), self.now_us)
                continue
            self.read(self.rows[first:next_row], planned_us)

    def read(self, rows: list[tuple[int, int, int]], planned_us: int) -> None:
        low_us = self.coordinator.low_watermark_us
        tops = {split: us for _, split, us in rows}
        self.late += sum(1 for _, _, us in rows if low_us is not None and us <= low_us)
        watermarks: dict[SplitId, int] = {split: us - 1 for split, us in tops.items()}
        if self.planned:
            self.coordinator.handle(BatchPlanned(planned_us, watermarks, dict.fromkeys(SPLITS, 0)), self.now_us)
        self.now_us += self.random.randrange(*self.batch_us)
        self.batch_id += 1
        self.coordinator.handle(BatchReported(self.batch_id, planned_us, watermarks), self.now_us)
        if self.dead is not None and self.left_out_us is None:
            split = self.coordinator.status(self.now_us).splits[str(self.dead)]
            if split.state is SplitState.IDLE:
                self.left_out_us = self.now_us


@pytest.mark.slow
@pytest.mark.parametrize("restart", [False, True])
def test_a_timeout_that_grows_passes_nobody_either_once_it_covers_the_pauses_of_single_splits(restart: bool) -> None:
    """The timeout grows from 3.8 to 12 s within half a minute; splits return within three quarters of 3.8 s."""
    grows = FLOW.with_idleness("12 seconds", at_start="3.8 seconds", over="30 seconds")
    for seed in range(40):
        world = World(seed, grows, restart=restart)
        world.run()
        assert (world.late, world.coordinator.states[SplitState.IDLE]) == (0, 0), f"seed {seed}"


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("planned", [False, True])
def test_after_a_pause_of_all_nobody_is_late(planned: bool, restart: bool, slow: bool) -> None:
    late = {}
    for seed in range(draws(40)):
        world = World(seed, planned=planned, restart=restart, slow=slow)
        world.run()
        late[seed] = world.late, world.coordinator.states[SplitState.IDLE]

    assert {seed: lost for seed, lost in late.items() if lost != (0, 0)} == {}


def test_by_time_alone_most_seeds_lose_rows_as_in_flink() -> None:
    worlds = [World(seed, TIME) for seed in range(10)]
    for world in worlds:
        world.run()

    assert sum(world.late > 0 for world in worlds) > 5


@pytest.mark.parametrize("slow", [False, True])
def test_a_dead_split_is_left_out_within_twice_the_timeout_in_which_others_speak(slow: bool) -> None:
    """Measured from the death of the split, not from its last batch, to the end of the batch that tells."""
    for seed in range(draws(40)):
        world = World(seed, dead=seed % len(SPLITS), slow=slow)
        world.run()
        assert world.left_out_us is not None, f"seed {seed}"
        spoken_us = world.left_out_us - world.dies_us
        spoken_us -= sum(PAUSE_US for us in world.pauses if world.dies_us < us < world.left_out_us)
        assert spoken_us <= 2 * TIMEOUT_US, f"seed {seed}"
        assert world.late == 0, f"seed {seed}"


# -- one level up: the splits are dealt to the queries of a job, which share one low watermark


class Job:
    """Queries that read the splits of one stream, each in its own batches, and answer a coordinator once a second."""

    def __init__(self, seed: int, *, queries: int = 3, dead: int | None = None) -> None:
        self.random = Random(seed)
        self.shared = LowWatermarkCoordinator()
        self.tasks = [TaskId("job", "orders", str(number)) for number in range(queries)]
        self.worlds = [World(seed, slow=self.random.random() < 0.5) for _ in self.tasks]
        for task in self.tasks:
            self.shared.handle(TaskRegistered(task, "run", expected_tasks=queries), START_US)
        rows, self.pauses, self.until_us = self.worlds[0].rows, self.worlds[0].pauses, self.worlds[0].until_us
        self.dies_us = self.worlds[0].dies_us
        self.rows = [
            [row for row in rows if row[1] % queries == number and (number != dead or row[0] < self.dies_us)]
            for number in range(queries)
        ]
        for number, world in enumerate(self.worlds):
            mine = tuple(split for split in SPLITS if split % queries == number)
            world.coordinator = SplitWatermarks(FLOW, job_id="j", source_id="s", task_id=str(number))
            world.coordinator.handle(SplitsDiscovered(mine), START_US)
        self.late = 0
        self.left_out_us: dict[int, int] = {}

    @property
    def low_us(self) -> int | None:
        return self.shared.low_watermark_us("job", "orders")

    def run(self) -> None:
        next_us, next_row = [START_US for _ in self.tasks], [0 for _ in self.tasks]
        for now_us in range(START_US, self.until_us, S // 20):
            for effect in self.shared.handle(Tick(), now_us):
                if isinstance(effect, RetrieveLowWatermark):
                    self.answer(int(effect.task_id), effect.timestamp, now_us)
            for number, world in enumerate(self.worlds):
                if now_us < next_us[number]:
                    continue
                first = next_row[number]
                while next_row[number] < len(self.rows[number]) and self.rows[number][next_row[number]][0] <= now_us:
                    next_row[number] += 1
                rows = self.rows[number][first : next_row[number]]
                next_us[number] = now_us + self.random.randrange(*(world.batch_us if rows else world.wait_us))
                low_us = self.low_us
                self.late += sum(1 for _, _, us in rows if low_us is not None and us <= low_us)
                world.batch_id += 1
                watermarks: dict[SplitId, int] = {split: us - 1 for _, split, us in rows}
                event = BatchReported(world.batch_id, now_us, watermarks) if rows else Polled(now_us)
                world.coordinator.handle(event, now_us)

    def answer(self, number: int, asked_us: int, now_us: int) -> None:
        own, task = self.worlds[number].coordinator, self.tasks[number]
        self.shared.handle(
            ReplyLowWatermark(
                *(*task.parts, asked_us, own.low_watermark_us, "run"),
                left_out=None if own.silent_since_us is None else LeftOut.IDLE,
                silent_us=None if own.heard_us is None else now_us - own.heard_us,
                patience_us=own.patience_us,
            ),
            now_us,
        )
        [source] = self.shared.status(now_us).sources
        if source.tasks[number].why == "its splits are quiet and caught up":
            self.left_out_us.setdefault(number, now_us)


def test_after_a_pause_of_all_queries_of_a_job_nobody_is_late_and_no_query_was_left_out() -> None:
    lost = {}
    for seed in range(draws(30)):
        job = Job(seed)
        job.run()
        lost[seed] = job.late, job.left_out_us

    assert {seed: what for seed, what in lost.items() if what != (0, {})} == {}


def test_a_query_of_a_job_whose_splits_are_dead_is_left_out_within_twice_the_timeout_in_which_others_speak() -> None:
    for seed in range(draws(30)):
        job = Job(seed, dead=seed % 3)
        job.run()
        assert list(job.left_out_us) == [seed % 3], f"seed {seed}"
        spoken_us = job.left_out_us[seed % 3] - job.dies_us
        spoken_us -= sum(PAUSE_US for us in job.pauses if job.dies_us < us < job.left_out_us[seed % 3])
        assert spoken_us <= 2 * TIMEOUT_US, f"seed {seed}"
        assert job.late == 0, f"seed {seed}"


# -- the laws


class Deliveries:
    """Batches of splits at given moments; keeps the moment at which a split is left out."""

    def __init__(self) -> None:
        self.coordinator = SplitWatermarks(FLOW, job_id="j", source_id="s", task_id="t")
        self.batch_id = 0
        self.now_us = START_US
        self.left_out: dict[int, int] = {}

    def batch(self, after_us: int, splits: set[int]) -> None:
        self.now_us += after_us
        self.batch_id += 1
        watermarks: dict[SplitId, int] = dict.fromkeys(splits, self.now_us)
        for effect in self.coordinator.handle(BatchReported(self.batch_id, self.now_us, watermarks), self.now_us):
            if isinstance(effect, SplitStateChanged) and effect.after is SplitState.IDLE:
                self.left_out[int(effect.split)] = self.now_us


gaps_us = st.integers(1, TIMEOUT_US // 2)


@settings(LAWS, max_examples=draws(300))
@given(st.data())
def test_splits_that_come_back_soon_after_a_pause_of_all_are_never_left_out(data: st.DataObject) -> None:
    """Pauses of any length and number; splits heard within p before and x after a pause, with p + x as promised."""
    three = {0, 1, 2}
    world = Deliveries()
    world.batch(0, three)
    for _ in range(data.draw(st.integers(1, 6), label="pauses")):
        long = data.draw(st.booleans(), label="long")
        most_us = 3 * TIMEOUT_US // 4 if long else TIMEOUT_US // 2
        x_us = data.draw(st.one_of(st.just(most_us), st.integers(0, most_us)), label="x")
        for gap_us in data.draw(st.lists(gaps_us, max_size=3), label="flow"):
            world.batch(gap_us, three)
        left_us = most_us - x_us
        for gap_us in data.draw(st.lists(gaps_us, max_size=4), label="before the pause"):
            if gap_us <= left_us:
                left_us -= gap_us
                world.batch(gap_us, {0})
        pause_us = st.integers(TIMEOUT_US // 2 + 1, 10**6 * TIMEOUT_US) if long else gaps_us
        world.batch(data.draw(pause_us, label="pause"), {1})
        left_us = x_us
        for gap_us in data.draw(st.lists(gaps_us, max_size=4), label="after the pause"):
            if gap_us < left_us:
                left_us -= gap_us
                world.batch(gap_us, {1})
        world.batch(left_us, three)

    assert world.left_out == {}


@pytest.mark.parametrize(("pause_us", "most_us"), [(PAUSE_US, 3 * S), (TIMEOUT_US // 2, 2 * S)])
def test_a_split_that_comes_back_later_than_promised_is_left_out(pause_us: int, most_us: int) -> None:
    world = Deliveries()
    world.batch(0, {0, 1})
    world.batch(S, {1})
    world.batch(pause_us, {1})
    world.batch(most_us - S, {1})
    assert world.left_out == {}

    world.batch(1, {1})
    assert world.left_out == {0: world.now_us}


@settings(LAWS, max_examples=draws(300))
@given(st.lists(gaps_us, max_size=6), st.lists(gaps_us, min_size=60, max_size=60), st.integers(0, 2**60))
def test_a_dead_split_is_left_out_by_the_first_delivery_after_the_timeout(
    before_us: list[int], after_us: list[int], pause_us: int
) -> None:
    """If others deliver at least every half timeout, a split is left out after at most one and a half timeouts."""
    world = Deliveries()
    world.batch(0, {0, 1, 2})
    world.batch(pause_us, {0, 1, 2})
    for gap_us in before_us:
        world.batch(gap_us, {0, 1, 2})
    died_us = world.now_us
    for number, gap_us in enumerate((*after_us, *[TIMEOUT_US // 2] * 3)):
        world.batch(gap_us, {number % 2})
        if world.now_us - died_us > TIMEOUT_US:
            break

    assert world.left_out == {2: world.now_us}
    assert world.now_us - died_us <= 3 * TIMEOUT_US // 2


@pytest.mark.parametrize("gap_us", [S // 10, S, 3 * S // 2, 2 * S, 3 * S, 60 * S])
def test_a_stream_that_speaks_seldom_leaves_a_dead_split_out_too(gap_us: int) -> None:
    coordinator = SplitWatermarks(FLOW, job_id="j", source_id="s", task_id="t")
    coordinator.handle(BatchReported(0, START_US, {1: 10, 2: 20}), START_US)
    gaps = 0
    while coordinator.states[SplitState.IDLE] == 0:
        gaps += 1
        at_us = START_US + gaps * gap_us
        coordinator.handle(Polled(at_us - 1), at_us - 1)
        coordinator.handle(BatchReported(gaps, at_us, {2: 20 + gaps}), at_us)

    assert gaps == (TIMEOUT_US // gap_us + 1 if gap_us <= TIMEOUT_US // 2 else 5)
    assert coordinator.low_watermark_us == 20 + gaps
