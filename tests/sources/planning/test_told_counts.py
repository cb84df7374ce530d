"""Counts of one name by the enumerator and by the planner of a source are added."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from lowmark.sources import SourceSplit
from lowmark.sources.kit.simple import SimplePlanner
from lowmark.sources.planning.options import PlanOptions
from lowmark.sources.planning.planner import BatchPlanner

from tests.sources.planning.test_batches import Peer, Rows


class Counting(SimplePlanner[SourceSplit]):
    def metric_values(self) -> Mapping[str, float]:
        return {**super().metric_values(), "data_losses": 2, "lost_bytes": 70}


class Lossy(Rows):
    """A source whose enumerator and whose planner have passed losses."""

    def create_enumerator(self, context: Any) -> Any:
        context.metric_group.counter("data_losses").inc()
        return super().create_enumerator(context)

    def create_planner(self) -> Counting:
        return Counting(self)


def test_losses_of_the_enumerator_and_of_the_planner_are_added() -> None:
    peer = Peer()
    planner = BatchPlanner(Lossy(a=range(5)), name="rows", options=PlanOptions(), now_us=lambda: 10**12, peer=peer)
    with closing(planner):
        planner.plan(planner.initial(), None)
    shown = peer.told[-1].metrics
    assert (shown["data_losses"], shown["lost_bytes"], shown["discoveries"]) == (3, 70, 1)
