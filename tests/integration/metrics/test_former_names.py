"""The series of a query that begins again under another name."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from lowmark.integration.metrics.collector import StreamCollector
from lowmark.integration.run_status import RunStatus

from tests.integration.metrics.test_metrics import FakeRun, FakeService, Scraper


@dataclass
class RunOfId(FakeRun):
    """A run whose query keeps its id under another name."""

    query_id: str | None = None

    def status(self, limit: int | None = None) -> RunStatus:
        return dataclasses.replace(super().status(limit), query_id=self.query_id)


def test_a_query_that_begins_again_under_another_name_has_not_failed_under_the_former_name() -> None:
    runs: list[FakeRun] = [
        RunOfId(f"{stream}-1", stream=stream, query="old", query_id="1", ended=True, failed=True, refused=True)
        for stream in ("orders", "clicks")
    ]
    runs.append(RunOfId("another", query="another", query_id="2", ended=True, failed=True))
    service = FakeService(runs)
    seen = Scraper(StreamCollector(service))
    assert set(seen.of("lowmark_query_failed").values()) == {1}, "the two streams of one query do not clear each other"

    again = RunOfId("orders-2", query="new", query_id="1")
    service.runs.append(again)
    assert seen.one("lowmark_query_failed", stream="orders", query="old") == 0
    assert seen.one("lowmark_query_refused", stream="orders", query="old") == 0
    assert seen.one("lowmark_query_failed", query="another") == 1

    again.ended = again.failed = True
    assert seen.one("lowmark_query_failed", stream="orders", query="new") == 1
    assert seen.one("lowmark_query_failed", stream="orders", query="old") == 0
