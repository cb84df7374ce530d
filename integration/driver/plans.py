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


class Plans:
    """The conversations with planners."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    def guide(self, request: GuideRequest) -> Guidance:
        """Say how far a planner may read. Raises `UnknownStream` if the stream does not belong to this service."""
        planner = self._planner(request.stream_id, request.token)
        run = self._runs.get(planner.run_token)
        stream = self._runs.streams[request.stream_id] if run is None else run.stream
        guidance = self._runs.cooperation.guidance(stream, run)
        observed_us = {} if run is None else dict(run.splits.observed_us)
        events = planner.take_events()
        return replace(guidance, observed_us=observed_us, events=events, available_now=planner.available_now)

    def take(self, stream_id: str, token: str, planned: Planned) -> None:
        """Take a plan, whose run is known once a batch showed planner and heartbeat together; errors as in `guide`."""
        planner = self._planner(stream_id, token)
        run, now_us = self._runs.get(planner.run_token), self._runs.clock.now_us()
        news = run is not None and not run.ended and planner.is_news(planned)
        if run is not None and news:
            run.plan(planned, now_us)
        planner.keep(planned)  # last, because a planner that gets an error instead of an answer repeats its plan
        if run is not None and news:
            self._runs.after(run, now_us)

    def tie(self, run: StreamRun, sources: Sequence[SourceProgress], *, planned_by_run: bool) -> None:
        """Find the planner of a run from a batch, whose offsets show planner and heartbeat together.

        A planner that is gone with its query's first batch is not tied: its offset stays until a plan changes it.

        Args:
            run: the run that the batch belongs to.
            sources: the sources of the run's stream in the batch.
            planned_by_run: whether the run planned the batch; an earlier one may have, before it failed.
        """
        splits = run.splits
        if not isinstance(splits, PlannedSplits) or splits.planner is not None:
            return  # not for this stream, or found already: planner and heartbeat live as long as the run
        offset = planned_to(sources)
        planner = None if offset is None else self._runs.planners.get(offset.token)
        if planner is None or planner.run_token is not None or planner.stream_id != run.stream.stream_id:
            return
        moved = planned_by_run and any(source.start_offset != source.end_offset for source in sources)
        if not moved and planner.heard_us < run.began_us:
            return  # it may be gone; a planner that lives asks before each batch
        now_us = self._runs.clock.now_us()
        for planned in planner.plans.values():
            run.plan(planned, now_us)
        planner.run_token, splits.planner = run.token, planner

    def _planner(self, stream_id: str, token: str) -> KnownPlanner:
        if stream_id not in self._runs.streams:
            raise UnknownStream(stream_id, self._runs.streams.names())
        planner = self._runs.planners.get(token)
        if planner is None:
            planner = KnownPlanner(stream_id, available_now=stream_id in self._runs.ending.of_planners)
            self._runs.ending.of_planners.discard(stream_id)
            self._runs.planners.add(token, planner, self._is_over)
        planner.heard_us = self._runs.clock.now_us()
        return planner

    def _is_over(self, token: str) -> bool:
        run = self._runs.get(token)
        return run is None or run.ended
