"""An enumerator that fails and is restored while a batch is planned: each row is read once all the same."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from lowmark.sources import SourceSplit, SplitEnd
from lowmark.sources.coordinator import FailoverPolicy, SourceCoordinator
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


def test_a_split_whose_assignment_is_forgotten_while_its_batch_is_planned_is_read_once() -> None:
    source, options, clock = (
        Failing(file=range(5), log=range(5)),
        PlanOptions(failover=QUICK),
        itertools.count(step=1_000_000),
    )
    planner: BatchPlanner[Any] = BatchPlanner(
        source,
        name="rows",
        options=options,
        now_us=lambda: 10**12,
        steady_us=lambda: next(clock),
        peer=(peer := Peer()),
    )
    at, read = planner.initial(), {"file": list[int](), "log": list[int]()}

    def coordinator() -> SourceCoordinator[Any, Any]:
        assert planner._present is not None
        return planner._present.enumeration.coordinator

    def fail() -> None:
        source.finds.clear()
        context = coordinator().context
        assert context is not None
        context.run_in_coordinator_thread(lambda: exec("1 / 0"))
        wait_until(lambda: coordinator().metric_values()["enumerator_restores"] == 1, "the enumerator restored")

    def batch() -> None:
        nonlocal at
        end = planner.plan(at, None)
        for name, rows in rows_between(planner, source, at, end).items():
            read[name] += rows
        at = end

    with closing(planner):
        source.fail = fail
        batch()
        assert peer.told[-1].splits.keys() == {"file", "log"}, "they are waited for"
        source.times["log"] += range(5, 9)
        batch()
        source.finds.set()
        wait_until(lambda: coordinator().metric_values().get("discoveries"), "the splits found again")
        coordinator().run("hand them out", lambda: None)
        batch()
        batch()

    assert read == {"file": list(range(5)), "log": list(range(9))}


def test_no_more_splits_come_when_every_reader_was_told_so_by_the_enumerator_that_goes_on() -> None:
    slots: Slots[SourceSplit] = Slots(2)
    slots.no_more_splits(0)
    assert not slots.complete, "reader 1 may get a split"
    assert not slots.wait(0)
    slots.checkpointed(1)
    slots.no_more_splits(1)
    assert slots.complete
    assert slots.wait(0)

    slots.restored(1)
    assert not slots.complete, "reader 1 was told since the checkpoint"
    slots.no_more_splits(1)
    assert slots.complete
    slots.checkpointed(2)
    slots.restored(2)
    assert slots.complete
