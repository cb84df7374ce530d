"""An enumerator that fails and is restored while a batch is planned: each row is read once all the same."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest
from lowmark.sources import SourceSplit, SplitEnd, SplitEnumerator, SplitEnumeratorContext, SplitsAssignment
from lowmark.sources.coordinator import CoordinatorClosed, FailoverPolicy, SourceCoordinator, SourceFailed
from lowmark.sources.kit.discovery import DiscoveredSplits, DiscoveringEnumerator
from lowmark.sources.kit.simple import SimplePlanner
from lowmark.sources.planning.offset import BatchOffset
from lowmark.sources.planning.options import PlanOptions
from lowmark.sources.planning.planner import BatchPlanner
from lowmark.sources.planning.slots import Slots

from tests.servers.local import wait_until
from tests.sources.planning.test_batches import Peer, Rows, rows_between

QUICK = FailoverPolicy(backoff="1 millisecond", max_backoff="1 millisecond")


class Failing(Rows):
    """A source of a split that ends, as a file, and of one that goes on. Its enumerator can be let fail.

    Attributes:
        fail: lets the enumerator fail, and waits until it is restored; called once, when ends are asked for.
    """

    fail: Callable[[], None] | None = None

    def __init__(self, **times: Sequence[int]) -> None:
        super().__init__(**times)
        self.ended = {"file"}
        self.finds = threading.Event()
        self.finds.set()

    def discover(self) -> Sequence[SourceSplit]:
        assert self.finds.wait(20)
        return super().discover()

    def latest(self, splits: Sequence[SourceSplit]) -> Mapping[str, SplitEnd]:
        fail, self.fail = self.fail, None
        if fail is not None:
            fail()
        return super().latest(splits)


@dataclass
class Run:
    """A run whose source lets its enumerator fail, and what the run has read."""

    source: Failing
    start_seconds: float = 60.0
    peer: Peer = field(default_factory=Peer)
    planner: BatchPlanner[Any] = field(init=False)
    at: BatchOffset = field(init=False)
    read: dict[str, list[int]] = field(init=False)

    def __post_init__(self) -> None:
        clock = itertools.count(step=1_000_000)
        self.planner = BatchPlanner(
            self.source,
            name="rows",
            options=PlanOptions(failover=QUICK, start_seconds=self.start_seconds),
            now_us=lambda: 10**12,
            steady_us=lambda: next(clock),
            peer=self.peer,
        )
        self.at, self.read = self.planner.initial(), {name: [] for name in self.source.times}

    @property
    def coordinator(self) -> SourceCoordinator[Any, Any]:
        assert self.planner._present is not None
        return self.planner._present.enumeration.coordinator

    def fail(self) -> None:
        """Let the enumerator fail, and wait until it is restored. It finds nothing before it may."""
        self.source.finds.clear()
        context = self.coordinator._context
        assert context is not None
        context.run_in_coordinator_thread(lambda: exec("1 / 0"))
        wait_until(lambda: self.coordinator.metric_values()["enumerator_restores"] == 1, "the enumerator restored")

    def batch(self) -> bool:
        """Plan and read a batch; return whether there was one."""
        start, self.at = self.at, self.planner.plan(self.at, None)
        for name, rows in rows_between(self.planner, self.source, start, self.at).items():
            self.read[name] += rows
        return self.at != start


def test_a_split_whose_assignment_is_forgotten_while_its_batch_is_planned_is_read_once() -> None:
    run = Run(source := Failing(file=range(5), log=range(5)))
    with closing(run.planner):
        source.fail = run.fail
        run.batch()
        assert run.peer.told[-1].splits.keys() == {"file", "log"}, "they are waited for"
        source.times["log"] += range(5, 9)
        run.batch()
        source.finds.set()
        wait_until(lambda: run.coordinator.metric_values().get("discoveries"), "the splits found again")
        run.coordinator.run("hand them out", lambda: None)
        run.batch()
        run.batch()

    assert run.read == {"file": list(range(5)), "log": list(range(9))}


def test_a_run_that_ends_waits_until_a_restored_enumerator_has_found_the_splits_again() -> None:
    run = Run(source := Failing(file=range(5), log=range(5)))
    with closing(run.planner):
        run.planner.stop_at_present()
        source.fail = run.fail
        run.batch()
        assert run.read == {"file": [], "log": []}, "the restored enumerator hands them out again"
        found = threading.Timer(0.3, source.finds.set)
        found.start()
        while run.batch():
            pass
        found.join()

    assert run.read == {"file": list(range(5)), "log": list(range(5))}


class Ending(Failing):
    """A source whose splits keep its end."""

    end = "noon"

    def restore_enumerator(self, context: Any, state: Any) -> Any:
        return DiscoveringEnumerator(context, self.discover, period_seconds=60.0, end=self.end, known=state)


def test_an_end_that_is_not_that_of_the_checkpoint_fails_the_source_at_once() -> None:
    """No restored enumerator finds another checkpoint."""
    run = Run(source := Ending(log=range(5)))
    with closing(run.planner):
        run.batch()
    source.end = "None"
    again = Run(source)
    with closing(again.planner), pytest.raises(SourceFailed, match=r"it is not restored.*the end noon, .* given None"):
        again.planner.plan(run.at, None)


class Once(Failing):
    """A source whose enumerator has its splits without a discovery, and has no split when it is restored."""

    def create_enumerator(self, context: Any) -> Any:
        return Assigning(context, [SourceSplit(split_id=name) for name in self.times])

    def restore_enumerator(self, context: Any, state: Any) -> Any:
        return Assigning(context, [])


class Assigning(SplitEnumerator[SourceSplit, DiscoveredSplits[SourceSplit]]):
    def __init__(self, context: SplitEnumeratorContext[SourceSplit], splits: list[SourceSplit]) -> None:
        self.context, self.splits = context, splits

    def start(self) -> None: ...
    def add_reader(self, subtask: int) -> None: ...
    def handle_split_request(self, subtask: int, requester_hostname: str | None) -> None:
        given, self.splits = self.splits, []
        self.context.assign_splits(SplitsAssignment({subtask: given}))

    def snapshot_state(self, checkpoint_id: int) -> DiscoveredSplits[SourceSplit]:
        return DiscoveredSplits()


def test_a_run_that_ends_waits_for_no_split_of_a_restored_enumerator_that_has_handed_out_all() -> None:
    run = Run(Once(file=range(5), log=range(5)), start_seconds=1)
    with closing(run.planner):
        run.planner.stop_at_present()
        assert run.batch()
        run.fail()
        assert not run.batch()

    assert run.read == {"file": list(range(5)), "log": list(range(5))}


def test_no_more_splits_come_when_every_reader_was_told_so_by_the_enumerator_that_goes_on() -> None:
    slots: Slots[SourceSplit] = Slots(2)
    complete: list[bool] = []
    changes: list[Callable[[], None]] = [
        lambda: slots.no_more_splits(0),  # reader 1 may get a split
        lambda: slots.checkpointed(1),
        lambda: slots.no_more_splits(1),
        lambda: slots.restored(1),  # reader 1 was told since the checkpoint
        lambda: slots.no_more_splits(1),
        lambda: slots.checkpointed(2),
        lambda: slots.restored(2),
    ]
    for change in changes:
        change()
        complete.append(slots.complete)
        assert slots.wait(0) == slots.complete

    assert complete == [False, False, True, False, True, True, True]


def test_an_enumerator_ends_also_when_the_planner_of_its_source_cannot_be_closed() -> None:
    class CannotClose(SimplePlanner[SourceSplit]):
        def close(self) -> None:
            raise OSError("it is closed already")

    class Leaking(Failing):
        def create_planner(self) -> CannotClose:
            return CannotClose(self)

    run = Run(Leaking(log=range(5)))
    run.batch()
    coordinator = run.coordinator
    with pytest.raises(OSError, match="closed already"):
        run.planner.close()
    with pytest.raises(CoordinatorClosed):
        coordinator.run("see whether it is open", lambda: None)
    run.planner.close()
