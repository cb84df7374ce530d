"""Extent closes the planner and the reader of its source."""

from __future__ import annotations

from typing import Any

import pytest
from lowmark.sources import SourceReaderContext
from lowmark.sources.planning.extent import Extent
from lowmark.sources.planning.options import PlanOptions

from tests.sources.planning.test_batches import Induced, InducedReader


@pytest.mark.parametrize("failing", ["start", "close"])
def test_a_reader_that_decides_and_fails_leaves_no_connection_open(failing: str) -> None:
    closed = list[str]()

    class FailingReader(InducedReader):
        def start(self) -> None:
            if failing == "start":
                raise OSError("no start")

        def close(self) -> None:
            closed.append("reader")
            if failing == "close":
                raise OSError("no close")

    class Failing(Induced):
        def create_reader(self, context: SourceReaderContext) -> InducedReader:
            return FailingReader({})

        def create_planner(self) -> Any:
            planner = super().create_planner()
            planner.close = lambda: closed.append("planner")  # type: ignore[method-assign]
            return planner

    with pytest.raises(OSError, match=f"no {failing}"):
        Extent(Failing(), "rows", PlanOptions(), [], None).close()

    assert closed == ["reader", "planner"]
