"""A call of an enumerator that does not return: the status of the stream says so, because no new split is found."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from contextlib import closing

import pytest
from lowmark.sources import SourceSplit
from lowmark.sources.coordinator.action_queue import MonotonicClock
from lowmark.sources.planning.options import PlanOptions
from lowmark.sources.planning.planner import BatchPlanner

from tests.servers.local import wait_until
from tests.sources.planning.test_batches import Peer, Rows

DEADLINE_SECONDS = 20.0
NOW_US = 1_700_000_000_000_000


class Hanging(Rows):
    """A source whose second `discover` returns when it may."""

    discover_every = "1 millisecond"  # type: ignore[assignment]  # a duration in `SimpleSource`, None in `Rows`

    def __init__(self, **times: Sequence[int]) -> None:
        super().__init__(**times)
        self.began = 0
        self.hangs, self.may_return = threading.Event(), threading.Event()

    def discover(self) -> Sequence[SourceSplit]:
        self.began += 1
        if self.began == 2:
            self.hangs.set()
            assert self.may_return.wait(DEADLINE_SECONDS)
        return super().discover()


def test_a_discover_that_does_not_return_is_told_with_its_name_and_its_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    source, peer, later_us = Hanging(a=range(5)), Peer(), 0
    real_us = MonotonicClock.now_us
    monkeypatch.setattr(MonotonicClock, "now_us", lambda clock: real_us(clock) + later_us)
    planner = BatchPlanner(
        source,
        name="rows",
        options=PlanOptions(timeout_seconds=60),
        now_us=lambda: NOW_US + later_us,
        steady_us=lambda: real_us(MonotonicClock()) + later_us,
        peer=peer,
    )
    with closing(planner):
        at = planner.plan(planner.initial(), None)
        assert source.hangs.wait(DEADLINE_SECONDS)

        def told() -> str | None:
            nonlocal at
            source.times["a"].append(5)
            at = planner.plan(at, None)
            return peer.told[-1].trouble

        assert told() is None, "it may take its time"
        later_us = 61_000_000
        trouble = told()
        assert len(source.times["a"]) == sum(planned.rows.get("a", 0) for planned in peer.told), (
            "rows are still planned"
        )
        assert trouble is not None
        since = r"2023-11-14 22:13:(19|20)\.000 UTC"
        assert re.fullmatch(
            rf"Hanging\.discover has not returned since {since}, so new splits are not found\.", trouble
        )
        source.may_return.set()
        wait_until(lambda: told() is None, "the calm after the call has returned", seconds=DEADLINE_SECONDS)
