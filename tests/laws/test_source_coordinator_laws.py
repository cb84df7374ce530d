"""Every split is in exactly one place, after any faults in any order.

Goal: after any sequence of registrations, requests, events, checkpoints, discoveries, enumerators that fail, and whole
restarts, each split is with the enumerator or with one reader, and no split is lost or doubled.
Method: a seeded simulation of the coordinator with readers that keep their splits, by checkpoint. The enumerator is as
forgetful as the contract allows: it knows its calls and its snapshot only. The clock leaps over all pauses. In half of
the seeds splits are pushed, in half pulled.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from lowmark.sources import SourceSplit
from lowmark.sources.coordinator import SourceCoordinator
from lowmark.sources.coordinator.failover import FailoverPolicy

from tests.laws.strategies import draws
from tests.sources.coordinator.coordinating import (
    DEADLINE_SECONDS,
    Gateway,
    ListEnumerator,
    ListSource,
    ManualClock,
    Ping,
    State,
    settle,
)

READERS = 3
STEPS = 40
FAULTS = (
    "start", "restore", "create", "add_reader", "handle_split_request", "snapshot_state", "handle_source_event",
    "notify_checkpoint_complete", "close",
)  # fmt: skip


Kept = tuple[bytes, dict[int, list[SourceSplit]], int, tuple[int, ...]]
"""A checkpoint: (bytes, splits of each reader, number of found splits, events that the enumerator heard)."""


class Simulation:
    """One source, its readers, and all possible events."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.pending_faults: list[str] = []
        self.source = ListSource(self.rng.randrange(7), pulled=seed % 2 == 0, fault=self.strike)
        self.found = self.source.count
        self.alive: set[int] = set()
        self.next_checkpoint, self.completed = 0, -1
        self.checkpoints: dict[int, Kept] = {}
        self.heard: tuple[int, ...] = ()  # events in the last checkpoint
        self.sent: list[int] = []  # events after the last checkpoint
        self.next_event = 0
        self.gateway = Gateway()
        self.coordinator = self.started()
        self.story: list[str] = []

    def strike(self, done: str) -> None:
        if done in self.pending_faults:
            self.pending_faults.remove(done)
            raise RuntimeError(f"cannot {done}")

    def started(self, checkpoint_id: int | None = None) -> SourceCoordinator[SourceSplit, State]:
        coordinator: SourceCoordinator[SourceSplit, State] = SourceCoordinator(
            self.source,
            name="orders",
            gateway=self.gateway,
            num_subtasks=READERS,
            clock=ManualClock(leaps=True),
            timeout_seconds=DEADLINE_SECONDS,
            failover=FailoverPolicy(most=1_000),
        )
        if checkpoint_id is not None:
            coordinator.reset_to_checkpoint(checkpoint_id, self.checkpoints[checkpoint_id][0])
        coordinator.start()
        return coordinator

    @property
    def enumerator(self) -> ListEnumerator:
        assert isinstance(self.coordinator._enumerator, ListEnumerator)
        return self.coordinator._enumerator

    # -- possible events

    def register(self) -> None:
        subtask = self.rng.randrange(READERS)
        self.alive.add(subtask)
        self.coordinator.register_reader(subtask)

    def request(self) -> None:
        self.coordinator.request_splits()

    def send_event(self) -> None:
        if self.alive:
            self.sent.append(self.next_event)
            self.coordinator.handle_source_event(self.rng.choice(sorted(self.alive)), Ping(self.next_event))
            self.next_event += 1

    def checkpoint(self) -> None:
        asked = self.coordinator.checkpoint(self.next_checkpoint)
        data = self.coordinator.wait(asked, "take a checkpoint")
        owned = {subtask: list(given) for subtask, given in self.gateway.at_checkpoint[self.next_checkpoint].items()}
        self.heard, self.sent = self.coordinator._state(self.next_checkpoint, data).events, []
        self.checkpoints[self.next_checkpoint] = (data, owned, self.found, self.heard)
        self.next_checkpoint += 1

    def complete(self) -> None:
        if possible := [at for at in self.checkpoints if at > self.completed]:
            self.completed = self.rng.choice(possible)
            self.coordinator.notify_checkpoint_complete(self.completed)

    def discover(self) -> None:
        self.settle()
        # A restart may forget splits found since the last checkpoint; discovery finds them again.
        missing = [n for n in range(self.found + 1) if str(n) not in self.enumerator.known]
        self.found = max([self.found, *(n + 1 for n in missing)])
        context = self.coordinator._context
        assert context is not None
        enumerator = self.enumerator
        context.run_in_coordinator_thread(lambda: enumerator.discover(*missing))

    def break_enumerator(self) -> None:
        self.pending_faults.append(self.rng.choice(FAULTS))

    def restart(self) -> None:
        """The process dies and restarts from a checkpoint that is not older than the last completed one."""
        if not (possible := [at for at in self.checkpoints if at >= self.completed]):
            return
        checkpoint_id = self.rng.choice(possible)
        _, owned, self.found, self.heard = self.checkpoints[checkpoint_id]
        self.sent, self.alive = [], set()
        for later in [at for at in self.checkpoints if at > checkpoint_id]:
            del self.checkpoints[later]
        self.next_checkpoint = checkpoint_id + 1
        self.completed = checkpoint_id  # no restart goes back before it
        self.coordinator.close()
        self.gateway = Gateway()
        self.gateway.owned = {subtask: list(given) for subtask, given in owned.items()}
        self.gateway.at_checkpoint[checkpoint_id] = {subtask: list(given) for subtask, given in owned.items()}
        self.coordinator = self.started(checkpoint_id)

    # -- the law

    def settle(self) -> None:
        settle(self.coordinator)

    def step(self) -> None:
        happen: list[tuple[Callable[[], None], int]] = [
            (self.register, 4), (self.request, 3), (self.send_event, 2), (self.checkpoint, 3), (self.complete, 2),
            (self.discover, 1), (self.break_enumerator, 2), (self.restart, 1),
        ]  # fmt: skip
        what = self.rng.choices([each for each, _ in happen], [weight for _, weight in happen])[0]
        self.story.append(what.__name__)
        what()
        if self.rng.random() < 0.5:  # else the next event comes before this one is done
            self.check()

    def check(self) -> None:
        self.settle()
        assert self.coordinator.failure is None, self.coordinator.failure

        def look() -> tuple[list[str], list[str], list[str], list[int]]:
            enumerator = self.enumerator
            unassigned = [each.split_id for each in enumerator.unassigned]
            read = [each.split_id for given in self.gateway.owned.values() for each in given]
            return unassigned, read, sorted({*enumerator.known, *read}, key=int), list(enumerator.events)

        unassigned, read, known, events = self.coordinator.run("look", look)
        assert Counter(known) == Counter(unassigned + read)
        assert known[: self.source.count] == [str(n) for n in range(self.source.count)]
        assert events == [*self.heard, *self.sent]


def run(seed: int) -> list[str]:
    """Return the events, with the failovers."""
    simulation = Simulation(seed)
    try:
        for _ in range(STEPS):
            simulation.step()
        simulation.pending_faults.clear()
        simulation.check()
    except BaseException as error:
        raise AssertionError(f"seed {seed}, after {simulation.story}: {error}") from error
    finally:
        simulation.coordinator.close()
    return simulation.story + ["failover"] * max(0, len(simulation.source.made) - 1)


@pytest.mark.parametrize("first", range(0, draws(300), 50))
def test_every_split_is_in_exactly_one_place(first: int) -> None:
    for seed in range(first, first + 50):
        run(seed)


def test_the_simulation_does_everything_it_can() -> None:
    happened = Counter(what for seed in range(20) for what in run(seed))

    assert happened.keys() == {
        "register", "request", "send_event", "checkpoint", "complete", "discover", "break_enumerator", "restart",
        "failover",
    }  # fmt: skip
