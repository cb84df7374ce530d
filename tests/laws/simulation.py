"""A seeded simulation of readers, a network and a coordinator, in virtual time.

Goal: find faults that no written case and no law covers. Method: one seed draws a whole world (sources, groups, rows,
speeds) and all its faults: messages are lost, doubled, delayed and reordered; readers crash and return at their last
checkpoint or never, or leave with a farewell; the coordinator crashes and returns with its journal; its clock is set
forward and back; readers get another split. After a while the faults end, and everything must drain.

A judge that knows the readers' rows, but not the insides of the coordinator, checks:

* a published low watermark only rises, also over a restart of the coordinator, and every reader is told;
* at a rise, no reader that is registered, not lost and not left out has an unprocessed row at or below the new value,
  and each of these readers has reported;
* a message is refused exactly if its run is not the registered one, and a reader that was heard in time is not lost;
* an announced cap is within the drift of the slowest member, or at the next row of a member that would otherwise wait
  for ever;
* in the end every reader has heard that its source has reached its end;
* the rows hold the whole state, although only the changes were taken.

    python -m tests.laws.simulation --seeds 10000 --start 0      # for a night; prints the seed that fails
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from lowmark.watermark import LowmarkError, NotifyNewLowWatermark, StaleRun, TaskId, UnknownTask
from lowmark.watermark.protocol import (
    LeaseRenewed,
    LeftOut,
    ReplyLowWatermark,
    RetrieveLowWatermark,
    TaskDeregistered,
    TaskForgotten,
    TaskLost,
    TaskRegistered,
    TaskReturnedLate,
)
from lowmark.watermark.splits.events import Tick
from lowmark.watermark.strategy import AlignmentParams
from lowmark.watermark.tasks.cap import Cap, CapAnnounced
from lowmark.watermark.tasks.coordinator import CoordinatorEvent, LowWatermarkCoordinator, Settings

from tests.watermark.tasks.coordinator_world import snapshot_of, taken

S = 1_000_000
INTERVAL_US, LEASE_US = S, 10 * S
END_US = 10**15  # the watermark of a split that will never have another row
WALL_US = 1_700_000_000 * S
PATIENCE_US = 600 * S  # time in which everything must drain after the faults

Message = TaskRegistered | LeaseRenewed | ReplyLowWatermark | TaskDeregistered


class Violation(AssertionError):
    """A promise was broken; the text holds the seed."""


@dataclass
class Split:
    rows: list[tuple[int, int]]  # (arrival time, event time); both rise
    next: int = 0  # index of the reader's next row
    done: int = 0  # largest index that any run of the reader has reached
    low_us: int | None = None

    def has_row(self, now_us: int) -> bool:
        return self.next < len(self.rows) and self.rows[self.next][0] <= now_us


@dataclass(frozen=True)
class Checkpoint:
    positions: tuple[tuple[int, int | None], ...]
    low_us: int | None


@dataclass
class Reader:
    task: TaskId
    splits: list[Split]
    params: AlignmentParams | None
    throttled: bool
    work_us: int
    mortal: bool  # it may leave for good; each source has a reader that may not
    alive: bool = True
    gone: bool = False  # it left for good
    runs: int = 0
    sequence: int = 0
    low_us: int | None = None  # never goes back within a run
    busy_us: int = 0  # when it last had a row to read
    cap: Cap = field(default_factory=Cap.free)
    cap_version: int = -1
    heard_low_us: int | None = None
    asked_us: int = 0  # timestamp of the newest question
    checkpoint: Checkpoint = Checkpoint((), None)

    @property
    def token(self) -> str:
        return f"run-{self.runs}"


@dataclass
class Known:
    """The judge's record of the coordinator's knowledge about a run of a reader."""

    reader: Reader
    token: str
    low_us: int | None  # the largest reported value
    heard_us: int  # true time
    steps: int  # forward steps of the clock before that time
    wanted_us: int = -(2**63)  # the largest reported value
    newest: tuple[int, bool] = (-1, False)  # sequence, left out


class Simulation:
    """One world. ``run`` plays it to its end, or raises Violation."""

    def __init__(self, seed: int, readers: int | None = None) -> None:
        self.seed, self.random = seed, Random(seed)
        self.now_us = 0
        self.heap: list[tuple[int, int, Callable[[], None]]] = []
        self.serial = 0
        self.calm = False
        random = self.random
        many = readers or random.choices((random.randint(1, 4), random.randint(5, 20), 1_000), (60, 39.5, 0.5))[0]
        self.big = many > 100
        self.loop_us = 200_000 if self.big else 20_000  # a turn of the coordinator's loop
        self.misfortune_us = S if self.big else 5 * S  # longest time between two faults
        self.until_us = (6 if self.big else random.randint(5, 25)) * S
        self.loss, self.doubled = random.choice((0, 0.02, 0.2)), random.choice((0, 0.05, 0.3))
        self.delay_us = random.choice((1_000, 100_000, 2 * S))
        self.step_us = 0  # offset of the coordinator's clock
        self.forward_steps = 0
        self.span_us = random.choice((60, 3_600)) * S  # span of event time
        self.quiet_end = random.random() < 0.5  # a reader at its end asks to be left out
        self.params = [
            AlignmentParams(
                f"group-{i}", self.span_us // random.randint(1, 3 if self.big else 12), random.choice((S, 2 * S))
            )
            for i in range(random.randint(0, 2))
        ]
        self.readers = self.draw_readers(many)
        self.sources = sorted({(reader.task.job_id, reader.task.source_id) for reader in self.readers})
        self.of_task = {reader.task: reader for reader in self.readers}
        # the coordinator's process
        self.settings = Settings(INTERVAL_US, LEASE_US, random.choice((1.0, 1.0, 0.7)))
        self.coordinator: LowWatermarkCoordinator | None = LowWatermarkCoordinator(self.settings)
        self.journal, self.journal_epoch = taken({}, self.coordinator), 0
        self.inbox: list[Message] = []
        self.loop_at_us: int | None = None  # when the next turn of its loop is due
        # the judge
        self.known: dict[TaskId, Known] = {}
        self.published_us: dict[tuple[str, str], int] = {}
        self.over: set[tuple[TaskId, str]] = set()
        self.counts = dict.fromkeys(
            ("events", "rises", "refusals", "lost", "farewells", "late returns", "crashes", "restarts", "caps"), 0
        )

    # -- the world

    def draw_readers(self, many: int) -> list[Reader]:
        random = self.random
        sources = [(f"job-{random.randint(0, 1)}", f"source-{i}") for i in range(random.randint(1, min(many, 4)))]
        readers = []
        for i in range(many):
            first = i < len(sources)  # every source has one reader with a split
            job_id, source_id = sources[i] if first else random.choice(sources)
            splits = random.randint(0, 1 if self.big else 4)
            reader = Reader(
                TaskId(job_id, source_id, f"reader-{i}"),
                [self.draw_split(0) for _ in range(max(splits, 1) if first else splits)],
                random.choice([None, *self.params]),
                throttled=random.random() < 0.8,
                work_us=random.randint(100_000, 2 * S),
                mortal=not first,
            )
            readers.append(reader)
        return readers

    def draw_split(self, from_us: int) -> Split:
        random = self.random
        rows, ts_us = [], random.randint(0, self.span_us // 2)
        arrives_us = from_us
        for _ in range(random.randint(0, 6 if self.big else 40)):
            ts_us += random.choice((0, 1, self.span_us // 100, self.span_us // 10))
            arrives_us += random.choice((0, 0, 0, S // 10, 3 * S))
            if arrives_us >= self.until_us:
                break
            rows.append((arrives_us, ts_us))
        return Split(rows)

    # -- time

    def at(self, us: int, action: Callable[[], None]) -> None:
        self.serial += 1
        heapq.heappush(self.heap, (us, self.serial, action))

    def run(self) -> None:
        """Play to the end."""
        for reader in self.readers:
            self.at(self.random.randint(0, 2 * S), lambda reader=reader: self.start(reader))  # type: ignore[misc]
        self.at(self.random.randint(0, 2 * self.misfortune_us), self.misfortune)
        self.at(self.until_us, self.calm_down)
        while self.heap:
            self.now_us, _, action = heapq.heappop(self.heap)
            self.counts["events"] += 1
            action()
            if self.calm and all(reader.gone or reader.heard_low_us == END_US for reader in self.readers):
                return
            if self.now_us > self.until_us + PATIENCE_US:
                waiting = [
                    str(reader.task) for reader in self.readers if not reader.gone and reader.heard_low_us != END_US
                ]
                self.fail(f"not drained: {waiting[:5]} have not heard of the end\n{self.report()}")

    def fail(self, what: str) -> None:
        raise Violation(
            f"seed {self.seed} at {self.now_us / S:.3f} s: {what}\n"
            f"again: python -m tests.laws.simulation --seeds 1 --start {self.seed}"
        )

    def check(self, kept: bool, what: str) -> None:
        if not kept:
            self.fail(what)

    def report(self) -> str:
        if self.coordinator is None:
            return "the coordinator is down"
        status = self.coordinator.status(self.clock_us)
        lines = [f"{s.job_id}/{s.source_id}: {s.low_watermark_us}, {s.why}" for s in status.sources]
        return "\n".join(lines + [f"{group.group}: {group.cap}, {group.why}" for group in status.groups])

    @property
    def clock_us(self) -> int:
        """The time by the coordinator's clock."""
        return WALL_US + self.now_us + self.step_us

    # -- the network

    def send(self, deliver: Callable[[], None]) -> None:
        if self.calm:
            self.at(self.now_us + self.random.randint(0, 1_000), deliver)
            return
        for _ in range(1 + (self.random.random() < self.doubled)):
            if self.random.random() >= self.loss:
                self.at(self.now_us + self.random.randint(0, self.delay_us), deliver)

    def tell_coordinator(self, message: Message) -> None:
        self.send(lambda: self.arrive(message))

    def arrive(self, message: Message) -> None:
        if self.coordinator is not None:
            self.inbox.append(message)
            self.plan_loop(self.now_us + self.loop_us)

    # -- readers

    def start(self, reader: Reader) -> None:
        reader.alive = True
        reader.low_us, reader.cap, reader.cap_version = reader.checkpoint.low_us, Cap.free(), -1
        for split, (position, low_us) in zip(reader.splits, reader.checkpoint.positions, strict=False):
            split.next, split.low_us = position, low_us
        self.register(reader)
        runs = reader.runs
        self.work(reader)
        self.renew(reader, runs)

    def register(self, reader: Reader) -> None:
        reader.runs += 1
        self.tell_coordinator(TaskRegistered(reader.task, reader.token, reader.low_us, reader.params, reader.throttled))
        self.reply(reader)

    def renew(self, reader: Reader, life: int) -> None:
        if reader.alive and reader.runs >= life:
            self.tell_coordinator(LeaseRenewed(reader.task, reader.token, reader.heard_low_us))
            self.at(self.now_us + LEASE_US // 4, lambda: self.renew(reader, life))

    def work(self, reader: Reader) -> None:
        """Read the available rows up to the cap; report now and then."""
        if not reader.alive:
            return
        for split in reader.splits:
            for _ in range(5):
                if not split.has_row(self.now_us):
                    break
                reader.busy_us = self.now_us
                low_us = split.rows[split.next][1] - 1
                # A split without a watermark may always be read, because it could not report one otherwise.
                if reader.throttled and split.low_us is not None and not reader.cap.allows(low_us):
                    break
                split.next += 1
                split.done = max(split.done, split.next)
                split.low_us = low_us if split.low_us is None else max(split.low_us, low_us)
        self.advance(reader)
        if self.random.random() < 0.3:
            positions = tuple((split.next, split.low_us) for split in reader.splits)
            reader.checkpoint = Checkpoint(positions, reader.low_us)
        if self.random.random() < 0.3:
            self.reply(reader)
        self.at(self.now_us + reader.work_us, lambda runs=reader.runs: self.work(reader))  # type: ignore[misc]

    def advance(self, reader: Reader) -> None:
        lows = [END_US if self.drained(split) else split.low_us for split in reader.splits]
        known = [low_us for low_us in lows if low_us is not None]
        if known and len(known) == len(lows):
            reader.low_us = min(known) if reader.low_us is None else max(reader.low_us, min(known))

    def reply(self, reader: Reader) -> None:
        reader.sequence += 1
        left_out = None
        if not reader.splits:
            left_out = LeftOut.WITHOUT_SPLITS
        elif self.quiet_end if reader.low_us == END_US else self.now_us - reader.busy_us > 2 * S and not self.calm:
            left_out = LeftOut.IDLE
        self.tell_coordinator(
            ReplyLowWatermark(
                reader.task.job_id,
                reader.task.source_id,
                reader.task.task_id,
                reader.asked_us,
                reader.low_us,
                reader.token,
                left_out,
                self.wanted_us(reader) if left_out is None else None,
                reader.sequence,
            )
        )

    def wanted_us(self, reader: Reader) -> int | None:
        """The smallest watermark of its splits after their next rows; None if a split has no next row yet."""
        next_us = []
        for split in reader.splits:
            if split.has_row(self.now_us):
                next_us.append(split.rows[split.next][1] - 1)
            elif not self.drained(split):
                return None
        return min(next_us, default=None)

    def drained(self, split: Split) -> bool:
        return self.now_us >= self.until_us and split.next == len(split.rows)

    def hear(self, reader: Reader, effect: object) -> None:
        if not reader.alive:
            return
        if isinstance(effect, RetrieveLowWatermark):
            reader.asked_us = max(reader.asked_us, effect.timestamp)
            self.reply(reader)
        elif isinstance(effect, NotifyNewLowWatermark):
            heard_us = reader.heard_low_us
            low_us = effect.new_low_watermark
            reader.heard_low_us = low_us if heard_us is None else max(low_us, heard_us)
        elif isinstance(effect, CapAnnounced) and effect.version > reader.cap_version:
            reader.cap, reader.cap_version = effect.cap, effect.version

    def refused(self, reader: Reader, token: str) -> None:
        """The coordinator refused this run: register a new one, as a living process does."""
        if reader.alive and token == reader.token:
            self.register(reader)

    # -- misfortunes

    def misfortune(self) -> None:
        if self.calm:
            return
        kind = self.random.randint(0, 5)
        reader = self.random.choice(self.readers)
        if kind == 0 and reader.alive:
            self.counts["crashes"] += 1
            reader.alive = False
            if not reader.mortal or self.random.random() < 0.7:
                self.at(self.now_us + self.random.randint(0, 2 * LEASE_US), lambda: self.start(reader))
            else:
                reader.gone = True
        elif kind == 1 and self.coordinator is not None:
            self.counts["restarts"] += 1
            self.coordinator, self.inbox = None, []
            self.at(self.now_us + self.random.randint(0, 5 * S), self.restart)
        elif kind == 2:
            step_us = self.random.choice((-5 * S, -1, 3 * S, 3_600 * S))
            self.forward_steps += step_us > 0
            self.step_us += step_us
            self.loop_at_us = None
            self.plan_loop(self.now_us)  # a step of the clock wakes a loop that waits by it
        elif kind == 3:
            reader.splits.append(self.draw_split(self.now_us))
            reader.busy_us = self.now_us
        elif kind == 4 and reader.mortal and reader.alive:
            self.counts["farewells"] += 1
            reader.alive, reader.gone = False, True
            self.tell_coordinator(TaskDeregistered(reader.task, reader.token))
        self.at(self.now_us + self.random.randint(0, self.misfortune_us), self.misfortune)

    def calm_down(self) -> None:
        self.calm = True

    def restart(self) -> None:
        self.loop_at_us = None
        self.plan_loop(self.now_us)
        self.coordinator = LowWatermarkCoordinator.restore(self.journal, self.settings, now_us=self.clock_us)
        self.journal_epoch = self.coordinator.epoch
        for known in self.known.values():
            known.heard_us, known.steps = self.now_us, self.forward_steps

    # -- the coordinator's process

    def plan_loop(self, us: int) -> None:
        """Plan a turn of the loop, which handles all earlier messages together."""
        if self.loop_at_us is None or us < self.loop_at_us:
            self.loop_at_us = us
            self.at(us, lambda: self.loop(us))

    def loop(self, planned_us: int) -> None:
        """Handle the messages, write the journal, then carry out the effects."""
        coordinator = self.coordinator
        if coordinator is None or planned_us != self.loop_at_us:
            return
        self.loop_at_us = None
        messages, self.inbox = self.inbox, []
        effects: list[object] = []
        for message in messages:
            effects += self.handle(coordinator, message)
        wake_us = coordinator.wake_at_us(self.clock_us)
        if wake_us is not None and wake_us <= self.clock_us:
            effects += self.handle(coordinator, Tick())
            wake_us = coordinator.wake_at_us(self.clock_us)
        if wake_us is not None:
            self.check(wake_us > self.clock_us or self.step_us != 0, "it wants to be called again at once")
            self.plan_loop(self.now_us + max(self.loop_us, wake_us - self.clock_us))
        if coordinator.epoch != self.journal_epoch:
            self.journal, self.journal_epoch = taken(self.journal, coordinator), coordinator.epoch
            if not self.big:
                self.check(self.journal == snapshot_of(coordinator), "the rows that were taken are not the state")
        for effect in effects:
            task = self.addressee(effect)
            if task is not None:
                self.send(lambda effect=effect, task=task: self.hear(self.of_task[task], effect))  # type: ignore[misc]

    def handle(self, coordinator: LowWatermarkCoordinator, event: CoordinatorEvent) -> list[object]:
        task, token = self.sender(event)
        if task is None:
            effects = coordinator.handle(event, self.clock_us)
        else:
            counts = self.counts_as_registered(event, task, token)
            try:
                effects = coordinator.handle(event, self.clock_us)
            except (StaleRun, UnknownTask) as error:
                self.check(not counts, f"refused although it is the registered run: {event}: {error}")
                self.counts["refusals"] += 1
                self.send(lambda: self.refused(self.of_task[task], token))
                return []
            except LowmarkError as error:
                self.fail(f"{event}: {error}")
                raise
            self.check(counts, f"accepted although it is not the registered run: {event}")
            self.take_in(event, task, token)
        self.judge(coordinator, effects)
        return list(effects)

    @staticmethod
    def sender(event: CoordinatorEvent) -> tuple[TaskId | None, str]:
        if isinstance(event, ReplyLowWatermark):
            return TaskId(event.job_id, event.source_id, event.task_id), event.token
        return (None, "") if isinstance(event, Tick | TaskForgotten) else (event.task, event.token)

    @staticmethod
    def addressee(effect: object) -> TaskId | None:
        if isinstance(effect, RetrieveLowWatermark | NotifyNewLowWatermark):
            return TaskId(effect.job_id, effect.source_id, effect.task_id)
        return effect.task if isinstance(effect, CapAnnounced) else None

    # -- the judge

    def counts_as_registered(self, event: CoordinatorEvent, task: TaskId, token: str) -> bool:
        if isinstance(event, TaskDeregistered) and (task, token) in self.over:
            return True  # a repeated farewell
        if isinstance(event, TaskRegistered):
            return (task, token) not in self.over
        return task in self.known and self.known[task].token == token

    def take_in(self, event: CoordinatorEvent, task: TaskId, token: str) -> None:
        known = self.known.get(task)
        if isinstance(event, TaskDeregistered):
            self.over.add((task, token))
            if known is not None and known.token == token:
                del self.known[task]
            return
        if known is None or known.token != token:
            if known is not None:
                self.over.add((task, known.token))
            low_us = event.low_watermark_us if isinstance(event, TaskRegistered) else None
            known = self.known[task] = Known(self.of_task[task], token, low_us, self.now_us, self.forward_steps)
        known.heard_us, known.steps = self.now_us, self.forward_steps
        if isinstance(event, ReplyLowWatermark):
            known.newest = max(known.newest, (event.sequence, event.left_out is not None))
            if event.current_low_watermark is not None:
                low_us = event.current_low_watermark
                known.low_us = low_us if known.low_us is None else max(low_us, known.low_us)
            if event.next_wanted_us is not None:
                known.wanted_us = max(known.wanted_us, event.next_wanted_us)

    def judge(self, coordinator: LowWatermarkCoordinator, effects: Sequence[object]) -> None:
        told: dict[tuple[str, str], set[TaskId]] = {}
        groups: dict[str, CapAnnounced] = {}
        for effect in effects:
            if isinstance(effect, TaskLost):
                self.judge_loss(effect)
            elif isinstance(effect, NotifyNewLowWatermark):
                task = TaskId(effect.job_id, effect.source_id, effect.task_id)
                told.setdefault((task.job_id, task.source_id), set()).add(task)
            elif isinstance(effect, CapAnnounced):
                self.counts["caps"] += 1
                groups[effect.group] = max(groups.get(effect.group, effect), effect, key=lambda told: told.cap)
            elif isinstance(effect, TaskReturnedLate):
                self.counts["late returns"] += 1
        for key in self.sources:
            low_us, before_us = coordinator.low_watermark_us(*key), self.published_us.get(key)
            if low_us is None or low_us == before_us:
                self.check(before_us == low_us, f"{key} forgot that it was at {before_us}")
                continue
            self.check(before_us is None or low_us > before_us, f"{key} went back from {before_us} to {low_us}")
            self.judge_rise(key, low_us, told.get(key, set()))
            self.published_us[key] = low_us
        for announced in groups.values():
            self.judge_cap(announced)

    def judge_loss(self, effect: TaskLost) -> None:
        known = self.known.pop(effect.task)
        self.over.add((effect.task, known.token))
        self.counts["lost"] += 1
        silent_us = self.now_us - known.heard_us
        steps = self.forward_steps - known.steps
        # A step of the clock costs at most two intervals of the lease.
        least_us = LEASE_US - steps * 2 * INTERVAL_US
        self.check(silent_us >= least_us, f"{effect} although it was heard {silent_us / S} s ago")

    def judge_rise(self, key: tuple[str, str], low_us: int, told: set[TaskId]) -> None:
        self.counts["rises"] += 1
        for task, known in self.known.items():
            if (task.job_id, task.source_id) != key:
                continue
            self.check(task in told, f"{key} rose to {low_us} and {task} was not told")
            if known.newest[1]:
                continue
            self.check(known.low_us is not None, f"{key} rose to {low_us} before {task} spoke")
            own_us = known.reader.low_us
            for split in known.reader.splits:
                ahead = split.rows[split.done] if split.done < len(split.rows) else None
                if ahead is None or (own_us is not None and ahead[1] <= own_us):
                    continue  # no unprocessed row, or late for the reader too, because the split joined it late
                self.check(ahead[1] > low_us, f"{key} rose to {low_us}, and {task} has a row at {ahead[1]} to read")

    def judge_cap(self, told: CapAnnounced) -> None:
        """No cap is beyond the drift of a member that takes part, unless the member itself wants to read further."""
        params = next(params for params in self.params if params.group == told.group)
        if told.cap.us is None:
            return
        for task, known in self.known.items():
            if known.reader.params is params and not known.newest[1] and known.low_us is not None:
                limit_us = max(known.low_us + params.max_drift_us, known.wanted_us)
                self.check(told.cap.us <= limit_us, f"{told} is beyond the limit of {task}, {limit_us}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Play seeded worlds until one breaks a promise.")
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--readers", type=int, help="so many in every world (drawn if not given)")
    options = parser.parse_args()
    totals: dict[str, int] = {}
    for seed in range(options.start, options.start + options.seeds):
        simulation = Simulation(seed, options.readers)
        try:
            simulation.run()
        except Exception:
            print(f"seed {seed} failed", file=sys.stderr)
            raise
        for what, count in simulation.counts.items():
            totals[what] = totals.get(what, 0) + count
        if (seed + 1 - options.start) % 1_000 == 0:
            print(f"{seed + 1 - options.start} seeds: {totals}", flush=True)
    print(f"{options.seeds} seeds from {options.start}: {totals}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
