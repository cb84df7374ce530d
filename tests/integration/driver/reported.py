"""Made-up reports of Spark on a batch, with the fields that Spark always writes; and a Spark without queries."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar

from lowmark.integration.coordinator.client import CoordinatorClient
from lowmark.integration.driver.aside import Beside, hold
from lowmark.integration.driver.cooperation import Cooperation
from lowmark.integration.driver.desks import Desks
from lowmark.integration.driver.runs import Runs
from lowmark.integration.process.clock import SteadyClock
from lowmark.integration.spark.progress import Progress
from lowmark.integration.transport.accumulated import BatchTrack
from lowmark.integration.transport.driver_rpc import HeartbeatReply, HeartbeatRequest
from lowmark.integration.transport.measure import Measured
from lowmark.integration.transport.recorder import RecordedMeasure
from lowmark.watermark import NotifyNewLowWatermark

Result = TypeVar("Result")

SOURCE = {"startOffset": None, "endOffset": None, "latestOffset": None, "numInputRows": 0}


def report_text(batch_id: int, sources: Sequence[Mapping[str, Any]], **more: Any) -> str:
    """Make the JSON of the progress of a batch of query "q" in run "r".

    Args:
        batch_id: id of the batch.
        sources: sources of the batch; `SOURCE` gives the missing fields of each.
        more: further fields, or other values of these.
    """
    return json.dumps({
        "id": "q", "runId": "r", "batchId": batch_id, "numInputRows": 0, "stateOperators": [],
        "eventTime": {"watermark": "1970-01-01T00:00:00.000Z"}, "sources": [{**SOURCE, **source} for source in sources],
        **more,
    })  # fmt: skip


def report_of(batch_id: int, sources: Sequence[Mapping[str, Any]], **more: Any) -> Progress:
    """Make the same as `report_text`, parsed."""
    return Progress.from_json(report_text(batch_id, sources, **more))


def accumulated(tracks: Mapping[tuple[str, int], BatchTrack]) -> Any:
    """Make an accumulator of Spark with these tracks."""
    return SimpleNamespace(value=tracks)


class NoQueries(list[object]):
    """A Spark without queries."""

    def find(self) -> None: ...
    def get(self, run_id: str | None) -> None: ...


class GivenMeasure(RecordedMeasure):
    """Measures the watermarks that a test puts into the track of a batch."""

    def _measured(self, track: BatchTrack, *args: Any) -> Measured:
        return replace(super()._measured(track, *args), watermarks_us=track.watermarks_us, latest_us={})


def _done_here(read: Callable[[], Result], then: Callable[[Result], object]) -> None:
    then(read())


def desks_of(
    queries: Any,
    notify: Callable[[NotifyNewLowWatermark], None],
    client: CoordinatorClient | None = None,
    job: str | None = None,
    beside: Beside[Mapping[str, str]] = _done_here,
) -> Desks:
    """Make the desks of a service without a loop: they read at once."""
    clock = SteadyClock()
    return Desks(Runs(queries, clock, Cooperation(clock.now_us, client, job), notify), beside)


def answer_of(desks: Desks, request: HeartbeatRequest) -> HeartbeatReply:
    """Answer a heartbeat reader, all on this thread's time."""
    return hold(desks.heartbeats.answer(request), lambda work, action: work(), "answer a heartbeat")
