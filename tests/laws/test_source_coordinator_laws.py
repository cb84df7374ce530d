"""Every split is in exactly one place, whatever fails, in whatever order.

Goal: after any sequence of registrations, failures, resets, checkpoints, discoveries, enumerators that fail, and whole
restarts, each split is with the enumerator or with one reader, none is lost, none is there twice.
Method: a seeded simulation of the coordinator with readers that keep what they are given, by checkpoint. The enumerator
is as forgetful as the contract allows: it knows what it was told, its snapshot, and nothing else. Time leaps, so no
pause is waited for. In half of the seeds splits are pushed, in half pulled; in a third readers hand their splits over.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from lowmark.sources import SourceSplit
from lowmark.sources.coordinator import SourceCoordinator
from lowmark.sources.coordinator.failover import FailoverPolicy

from tests.sources.coordinating import (
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
    "start", "restore", "create", "add_reader", "handle_split_request", "add_splits_back", "snapshot_state",
    "handle_source_event", "notify_checkpoint_complete", "notify_checkpoint_aborted", "close",
)  # fmt: skip


Kept = tuple[bytes, dict[int, list[SourceSplit]], int, tuple[int, ...]]
"""Of a checkpoint: its bytes, what readers have, how many splits were found, events that the enumerator heard."""


class Simulation:
    """One source, its readers, and everything that can happen to them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.pending_faults: list[str] = []
        self.source = ListSource(
            self.rng.randrange(7), pulled=seed % 2 == 0, redistributes=seed % 3 == 0, fault=self.strike
        )
        self.found = self.source.count
        self.attempts = [0] * READERS
        self.alive: set[int] = set()
        self.abandoned: list[set[int]] = [set() for _ in range(READERS)]  # checkpoints a reader does not go back to
        self.past: list[list[SourceSplit]] = [[] for _ in range(READERS)]  # what the checkpoint of each reader has
        self.next_checkpoint, self.completed = 0, -1
        self.checkpoints: dict[int, Kept] = {}
        self.heard: tuple[int, ...] = ()  # events in the last checkpoint
        self.sent: list[tuple[int, int, int]] = []  # event, subtask, attempt, since then
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
        assert isinstance(self.coordinator.enumerator, ListEnumerator)
        return self.coordinator.enumerator

    # -- what can happen

    def register(self) -> None:
        subtask = self.rng.randrange(READERS)
        reported: tuple[SourceSplit, ...] = ()
        if subtask not in self.alive:
            self.alive.add(subtask)
            if self.source.redistributes_splits_on_recovery:
                # It hands over what its checkpoint has, and has nothing until it is given some.
                reported = tuple(self.past[subtask])
                self.coordinator._queue.post("hand over", lambda: self.keep(subtask, set()))
        self.coordinator.register_reader(subtask, self.attempts[subtask], "", reported)

    def fail_reader(self) -> None:
        if not self.alive:
            return
        subtask = self.rng.choice(sorted(self.alive))
        self.alive.discard(subtask)
        self.coordinator.execution_attempt_failed(subtask, self.attempts[subtask])
        self.attempts[subtask] += 1
        if self.rng.random() < 0.3:  # late news of the failed attempt
            self.coordinator.register_reader(subtask, self.attempts[subtask] - 1)
            self.coordinator.handle_split_request(subtask, self.attempts[subtask] - 1)
        possible = [at for at in self.checkpoints if at >= self.completed and at not in self.abandoned[subtask]]
        if self.source.redistributes_splits_on_recovery or (possible and self.rng.random() < 0.8):
            checkpoint_id = self.rng.choice(possible) if possible else -1
            then = self.checkpoints[checkpoint_id][1].get(subtask, []) if possible else []
            self.abandoned[subtask].update(at for at in self.checkpoints if at != checkpoint_id)
            self.past[subtask] = list(then)
            self.coordinator._queue.post("go back", lambda: self.keep(subtask, set(then)))
            self.coordinator.subtask_reset(subtask, checkpoint_id)

    def keep(self, subtask: int, kept: set[SourceSplit]) -> None:
        """A reader loses everything but these, for good."""
        for given in (self.gateway.owned, *self.gateway.at_checkpoint.values()):
            given[subtask] = [each for each in given.get(subtask, []) if each in kept]

    def request(self) -> None:
        if self.alive:
            subtask = self.rng.choice(sorted(self.alive))
            self.coordinator.handle_split_request(subtask, self.attempts[subtask])

    def send_event(self) -> None:
        if self.alive:
            subtask = self.rng.choice(sorted(self.alive))
            self.sent.append((self.next_event, subtask, self.attempts[subtask]))
            self.coordinator.handle_source_event(subtask, self.attempts[subtask], Ping(self.next_event))
            self.next_event += 1

    def checkpoint(self) -> None:
        asked = self.coordinator.checkpoint(self.next_checkpoint)
        data = self.coordinator.wait(asked, "take a checkpoint")
        owned = {subtask: list(given) for subtask, given in self.gateway.at_checkpoint[self.next_checkpoint].items()}
        if self.source.redistributes_splits_on_recovery:  # of a reader that is down it is the checkpoint that it has
            owned.update((subtask, list(self.past[subtask])) for subtask in range(READERS) if subtask not in self.alive)
        self.heard, self.sent = self.coordinator._state(self.next_checkpoint, data).events, []
        self.checkpoints[self.next_checkpoint] = (data, owned, self.found, self.heard)
        self.next_checkpoint += 1

    def complete(self) -> None:
        # One that a reader went back behind is completed no more.
        abandoned = set[int]().union(*self.abandoned)
        if possible := [at for at in self.checkpoints if at > self.completed and at not in abandoned]:
            self.completed = self.rng.choice(possible)
            self.coordinator.notify_checkpoint_complete(self.completed)

    def abort(self) -> None:
        self.coordinator.notify_checkpoint_aborted(self.next_checkpoint)

    def discover(self) -> None:
        self.settle()
        # Found since the last checkpoint, it may be forgotten again: then discovery finds it again, as it would.
        missing = [n for n in range(self.found + 1) if str(n) not in self.enumerator.known]
        self.found = max([self.found, *(n + 1 for n in missing)])
        context = self.coordinator.context
        assert context is not None
        enumerator = self.enumerator
        context.run_in_coordinator_thread(lambda: enumerator.discover(*missing))

    def break_enumerator(self) -> None:
        self.pending_faults.append(self.rng.choice(FAULTS))

    def restart(self) -> None:
        """The process dies; everything goes back to a checkpoint that is not older than the last completed one."""
        if possible := [at for at in self.checkpoints if at >= self.completed]:
            self.go_back_to(self.rng.choice(possible), new_process=self.rng.random() < 0.5)

    def go_back_to(self, checkpoint_id: int, *, new_process: bool) -> None:
        data, owned, self.found, self.heard = self.checkpoints[checkpoint_id]
        self.sent = []
        for later in [at for at in self.checkpoints if at > checkpoint_id]:
            del self.checkpoints[later]
        self.next_checkpoint = checkpoint_id + 1
        self.completed = checkpoint_id  # nobody goes back behind it any more
        self.alive, self.attempts = set(), [0] * READERS
        self.abandoned = [set() for _ in range(READERS)]
        self.past = [list(owned.get(subtask, [])) for subtask in range(READERS)]
        if new_process:
            self.coordinator.close()
            self.gateway = Gateway()
            self.gateway.owned = {subtask: list(given) for subtask, given in owned.items()}
            self.gateway.at_checkpoint[checkpoint_id] = {subtask: list(given) for subtask, given in owned.items()}
            self.coordinator = self.started(checkpoint_id)
        else:
            self.settle()
            # What a reader gave back since is in its checkpoint once more.
            self.gateway.at_checkpoint[checkpoint_id] = {subtask: list(given) for subtask, given in owned.items()}
            self.coordinator.reset_to_checkpoint(checkpoint_id, data)

    # -- the law

    def settle(self) -> None:
        settle(self.coordinator)

    def step(self) -> None:
        happen: list[tuple[Callable[[], None], int]] = [
            (self.register, 4), (self.fail_reader, 3), (self.request, 3), (self.send_event, 1), (self.checkpoint, 3),
            (self.complete, 2), (self.abort, 1), (self.discover, 1), (self.break_enumerator, 2), (self.restart, 1),
        ]  # fmt: skip
        what = self.rng.choices([each for each, _ in happen], [weight for _, weight in happen])[0]
        self.story.append(what.__name__)
        what()
        if self.rng.random() < 0.5:  # else the next thing happens before this one is done
            self.check()

    def check(self) -> None:
        self.settle()
        assert self.coordinator.failure is None, self.coordinator.failure

        def look() -> tuple[list[str], list[str], list[str], list[int]]:
            enumerator = self.enumerator
            unassigned = [each.split_id for each in enumerator.unassigned]
            read = [each.split_id for given in self.gateway.owned.values() for each in given]
            if self.source.redistributes_splits_on_recovery:
                # A reader that is down will report what its checkpoint has; what was moved meanwhile is not its own.
                down = set(range(READERS)) - self.alive
                read = [each.split_id for subtask in self.alive for each in self.gateway.owned.get(subtask, [])]
                read += [
                    each.split_id
                    for subtask in down
                    for each in self.past[subtask]
                    if enumerator.known.get(each.split_id, subtask) == subtask
                ]
            return unassigned, read, sorted({*enumerator.known, *read}, key=int), list(enumerator.events)

        unassigned, read, known, events = self.coordinator.run("look", look)
        assert Counter(known) == Counter(unassigned + read)
        assert known[: self.source.count] == [str(n) for n in range(self.source.count)]
        # An attempt that is gone says it again if it matters: its successor begins from a checkpoint.
        missing = [
            number
            for number, subtask, attempt in self.sent
            if subtask in self.alive and attempt == self.attempts[subtask] and number not in events
        ]
        assert missing == []
        assert events == sorted({*self.heard, *events} & {*self.heard, *(number for number, _, _ in self.sent)})


def run(seed: int) -> list[str]:
    """Return what happened, the failovers included."""
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


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_every_split_is_in_exactly_one_place(first: int) -> None:
    for seed in range(first, first + 50):
        run(seed)


def test_the_simulation_does_everything_it_can() -> None:
    happened = Counter(what for seed in range(20) for what in run(seed))

    assert happened.keys() == {
        "register", "fail_reader", "request", "send_event", "checkpoint", "complete", "abort", "discover",
        "break_enumerator", "restart", "failover",
    }  # fmt: skip
