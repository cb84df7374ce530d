"""A job of several queries, on a virtual clock: redeploys, kills and lost messages make no row late.

One seed draws a job: two or three queries, each with its own rows, and a history: queries begin in any order, read on,
end in order or die, return at once or much later; messages are lost; the coordinator dies, and continues from its
journal. The judge knows all unread rows, also the rows of a query that is away or has never begun. At the end all
queries return, and everything must be published.
"""

from __future__ import annotations

from random import Random

import pytest
from lowmark.watermark import NotifyNewLowWatermark, StaleRun, TaskId, TaskNotAway, UnknownTask
from lowmark.watermark.protocol import (
    LeaseRenewed,
    LeftOut,
    ReplyLowWatermark,
    RetrieveLowWatermark,
    TaskDeregistered,
    TaskForgotten,
    TaskRegistered,
)
from lowmark.watermark.splits.events import Tick
from lowmark.watermark.tasks.coordinator import CoordinatorEffect, CoordinatorEvent, LowWatermarkCoordinator, Settings

from tests.laws.strategies import draws
from tests.watermark.tasks.coordinator_world import snapshot_of

S = 1_000_000
LEASE_US = 5 * S
STEPS = 150
SEEDS = range(draws(80))


class Query:
    def __init__(self, name: str, rows_us: list[int]) -> None:
        self.task, self.rows_us = TaskId("job", "orders", name), rows_us  # the event times rise
        self.runs, self.read, self.sequence = 0, 0, 0
        self.alive = self.registered = self.forgotten = False
        self.heard_us: int | None = None
        self.restored_us: int | None = None

    @property
    def token(self) -> str:
        return f"run {self.runs}"

    @property
    def low_us(self) -> int | None:
        return self.rows_us[self.read - 1] if self.read else None

    @property
    def unread_us(self) -> int | None:
        return self.rows_us[self.read] if self.read < len(self.rows_us) else None


class Job:
    def __init__(self, seed: int) -> None:
        self.seed, self.random = seed, Random(seed)
        self.now_us = 0
        self.coordinator = LowWatermarkCoordinator(Settings(interval_us=S, lease_us=LEASE_US))
        self.journal = snapshot_of(self.coordinator), 0
        self.queries = [Query(str(n), self.rows()) for n in range(self.random.randint(2, 3))]
        self.low_us: int | None = None
        self.loss = self.random.choice((0.0, 0.3))
        self.forgets = self.random.random() < 0.3

    def rows(self) -> list[int]:
        return sorted(self.random.sample(range(1_000), self.random.randint(1, 30)))

    # -- the events

    def tell(self, query: Query, event: CoordinatorEvent) -> None:
        if self.random.random() < self.loss:
            return
        try:
            effects = self.coordinator.handle(event, self.now_us)
        except (UnknownTask, StaleRun):
            self.register(query)  # as a client does after a refusal
            return
        query.registered |= isinstance(event, TaskRegistered)
        self.carry_out(effects)

    def carry_out(self, effects: list[CoordinatorEffect]) -> None:
        low_us = self.coordinator.low_watermark_us("job", "orders")
        if self.coordinator.epoch != self.journal[1]:
            self.journal = snapshot_of(self.coordinator), self.coordinator.epoch
        self.judge(low_us)
        for effect in effects:
            if not isinstance(effect, NotifyNewLowWatermark | RetrieveLowWatermark):
                continue
            [query] = [each for each in self.queries if each.task == effect.task]
            if query.alive and isinstance(effect, NotifyNewLowWatermark):
                query.heard_us = effect.new_low_watermark
            elif query.alive and isinstance(effect, RetrieveLowWatermark):
                self.reply(query, effect.timestamp)

    def judge(self, low_us: int | None) -> None:
        if low_us == self.low_us:
            return
        before_us, self.low_us = self.low_us, low_us
        assert low_us is not None, f"seed {self.seed}: it was forgotten"
        assert before_us is None or low_us > before_us, f"seed {self.seed}: it went back"
        for query in self.queries:
            if query.unread_us is not None and not query.forgotten:
                what = f"{low_us} is published, and query {query.task.task_id} has {query.unread_us} to read"
                assert query.unread_us > low_us, f"seed {self.seed} at {self.now_us / S:.0f} s: {what}"

    def register(self, query: Query) -> None:
        query.runs += 1
        query.sequence, query.registered = 0, False
        low_us = query.restored_us if query.low_us is None else query.low_us
        self.tell(query, TaskRegistered(query.task, query.token, low_us, expected_tasks=len(self.queries)))

    def reply(self, query: Query, at_us: int) -> None:
        if not query.registered:
            self.register(query)
            return
        query.sequence += 1
        # A query that has read everything may report idle or finished, or keep taking part.
        left_out = None if query.unread_us is not None else self.random.choice((None, LeftOut.IDLE, LeftOut.FINISHED))
        self.tell(
            query,
            ReplyLowWatermark(
                *query.task.parts, at_us, query.low_us, query.token, left_out, sequence=query.sequence, silent_us=0
            ),
        )

    def step(self) -> None:
        random, query = self.random, self.random.choice(self.queries)
        what = random.random()
        if query.alive and what < 0.5:
            query.read = min(len(query.rows_us), query.read + random.randint(1, 5))
            self.reply(query, self.now_us)
        elif query.alive and what < 0.58:
            query.alive = False  # it dies
            query.restored_us = query.heard_us
        elif query.alive and what < 0.66:
            query.alive, query.restored_us = False, query.heard_us
            self.tell(query, TaskDeregistered(query.task, query.token))
        elif not query.alive and what < 0.4:
            query.alive, query.forgotten = True, False
            self.register(query)
        elif not query.alive and self.forgets and what > 0.97:
            self.forget(query)
        elif what > 0.93:
            self.coordinator = LowWatermarkCoordinator.restore(
                self.journal[0], Settings(interval_us=S, lease_us=LEASE_US), now_us=self.now_us
            )
            self.journal = self.journal[0], self.coordinator.epoch

    def forget(self, query: Query) -> None:
        try:
            effects = self.coordinator.handle(TaskForgotten(query.task), self.now_us)
        except TaskNotAway:
            return
        query.forgotten = True
        self.carry_out(effects)

    def pass_time(self, us: int) -> None:
        until_us = self.now_us + us
        while self.now_us < until_us:
            wake_us = self.coordinator.wake_at_us(self.now_us)
            self.now_us = until_us if wake_us is None else min(until_us, max(wake_us, self.now_us + 1))
            self.carry_out(self.coordinator.handle(Tick(), self.now_us))
            for query in self.queries:
                if query.alive and query.registered and self.now_us % S == 0:
                    self.tell(query, LeaseRenewed(query.task, query.token, query.heard_us))

    def play(self) -> None:
        for _ in range(STEPS):
            self.step()
            self.pass_time(self.random.choice((0, S, S, 3 * S, 3 * LEASE_US)))
        self.loss = 0.0
        for query in self.queries:
            query.read = len(query.rows_us)
            query.alive = True
            self.register(query)
        self.pass_time(30 * S)
        last_us = min(query.rows_us[-1] for query in self.queries)
        assert (self.low_us or 0) >= last_us, f"seed {self.seed}: {self.coordinator.status(self.now_us).sources}"


@pytest.mark.parametrize("part", range(4))
def test_no_row_of_a_query_that_is_away_is_passed(part: int) -> None:
    for seed in SEEDS[part::4]:
        Job(seed).play()
