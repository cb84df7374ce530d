"""Answers planners of our own sources, takes their plans, and finds each run's planner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lowmark.integration.errors import UnknownStream
from lowmark.integration.spark.progress import SourceProgress
from lowmark.integration.transport.driver_rpc import GuideRequest
from lowmark.sources.planning.peer import Guidance, Planned

from .known_planner import KnownPlanner
from .planned_splits import PlannedSplits, planned_to
from .runs import Runs
from .stream_run import StreamRun


def guide(runs: Runs, request: GuideRequest) -> Guidance:
    """Say how far a planner may read. Raises `UnknownStream` if the stream does not belong to this service."""
    planner = _planner(runs, request.stream_id, request.token)
    run = runs.get(planner.run_token)
    stream = runs.streams[request.stream_id] if run is None else run.stream
    guidance = runs.cooperation.guidance(stream, run)
    observed_us = {} if run is None else dict(run.splits.observed_us)
    events = planner.take_events()
    return replace(guidance, observed_us=observed_us, events=events, available_now=planner.available_now)


def take(runs: Runs, stream_id: str, token: str, planned: Planned) -> None:
    """Take a plan, whose run is known once a batch showed planner and heartbeat together; errors as in `guide`."""
    planner = _planner(runs, stream_id, token)
    run, now_us = runs.get(planner.run_token), runs.clock.now_us()
    news = run is not None and not run.ended and planner.is_news(planned)
    if run is not None and news:
        run.plan(planned, now_us)
    planner.keep(planned)  # last, because a planner that gets an error instead of an answer repeats its plan
    if run is not None and news:
        runs.after(run, now_us)


def tie(runs: Runs, run: StreamRun, sources: Sequence[SourceProgress]) -> None:
    """Find the planner of a run from a batch, whose offsets show planner and heartbeat together."""
    splits = run.splits
    if not isinstance(splits, PlannedSplits) or splits.planner is not None:
        return  # not for this stream, or found already: planner and heartbeat live as long as the run
    offset = planned_to(sources)
    planner = None if offset is None else runs.planners.get(offset.token)
    if planner is None or planner.run_token is not None or planner.stream_id != run.stream.stream_id:
        return
    now_us = runs.clock.now_us()
    for planned in planner.plans.values():
        run.plan(planned, now_us)
    planner.run_token, splits.planner = run.token, planner


def _planner(runs: Runs, stream_id: str, token: str) -> KnownPlanner:
    if stream_id not in runs.streams:
        raise UnknownStream(stream_id, runs.streams.names())
    planner = runs.planners.get(token)
    if planner is None:
        planner = KnownPlanner(stream_id, available_now=stream_id in runs.ending.of_planners)
        runs.ending.of_planners.discard(stream_id)
        runs.planners.add(token, planner, {run.token for run in runs if not run.ended})
    planner.heard_us = runs.clock.now_us()
    return planner
