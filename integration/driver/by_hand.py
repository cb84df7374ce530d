"""Leaves splits of running queries out by hand, and takes that back, by their names."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import islice

from lowmark.integration.errors import MarkRefused
from lowmark.integration.process.user import user
from lowmark.integration.transport.driver_rpc import Marked, MarkRequest
from lowmark.watermark import SplitId, duration_us, format_duration_us
from lowmark.watermark.moment import INT64, us_of
from lowmark.watermark.names import unfit_character
from lowmark.watermark.printable import printable
from lowmark.watermark.splits.events import SplitsMarkedActive, SplitsMarkedIdle

from .runs import Runs
from .stream_run import StreamRun

__all__ = ["ByHand", "request"]

_NAMES_COMPARED = 10_000
_NEAREST = 3


def request(
    stream: str, split: str, *, idle: bool, until: str | dt.timedelta | dt.datetime | None = None
) -> MarkRequest:
    """Make the request of the person who runs this process.

    Args:
        idle: leave out; False: take back.
        until: a length of time from now on, or a time with a zone; None: until the split's next row.

    Raises:
        MarkRefused: the time has no zone.
        InvalidDuration: `until` is no length of time.
    """
    if isinstance(until, dt.datetime):
        if until.tzinfo is None:
            fact = f"until is {until.isoformat()}, a time without a zone"
            raise MarkRefused(stream, fact, "add one, as datetime.now(timezone.utc) has it.")
        return MarkRequest(stream, [split], user(), idle, until_us=us_of(until))
    for_us = None if until is None else duration_us(until, what="until")
    return MarkRequest(stream, [split], user(), idle, for_us=for_us)


class ByHand:
    """Takes what persons say about splits. Belongs to the loop of the service."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    def take(self, request: MarkRequest) -> list[Marked]:
        """Mark splits in every running query on a stream, and return them.

        Raises:
            MarkRefused: there is no such query or split, or the time is over.
        """
        name, now_us = request.stream, self._runs.clock.now_us()
        if (unfit := unfit_character(request.by)) is not None or not request.by:
            fact = f"the name of the person is {request.by!a}, which holds {unfit or 'nothing'}"
            raise MarkRefused(name, fact, "pass a name of one line.")
        until_us = self._until_us(request, now_us)
        runs = self._running(name)
        places = [self._splits(run, request.splits) for run in runs]
        for split in request.splits:
            if not any(split in place for place in places):
                raise self._unknown(name, split, runs)
        said = []
        for run, place in zip(runs, places, strict=True):
            splits = tuple(place.values())
            if request.idle:
                run.hear(SplitsMarkedIdle(splits, request.by, until_us), now_us, "what a person said")
            else:
                run.hear(SplitsMarkedActive(splits, request.by), now_us, "what a person said")
            self._runs.after(run, now_us)
            marks, query = run.watermarks.by_hand, "unknown" if run.query is None else run.query
            told = ((split, marks.get(known)) for split, known in place.items())
            said += [Marked(query, split, None if mark is None else str(mark)) for split, mark in told]
        return said

    def _until_us(self, request: MarkRequest, now_us: int) -> int | None:
        until_us = request.until_us if request.for_us is None else now_us + request.for_us
        if until_us is not None and not now_us < until_us <= INT64[-1]:
            by_us = now_us - until_us
            fact = "the time lies after the last that is known" if by_us < 0 else "the time is over already"
            ago = f", by {format_duration_us(by_us)}" if by_us > 0 else ""
            raise MarkRefused(request.stream, f"{fact}{ago}", "pass a time that is still to come.")
        return until_us

    def _running(self, name: str) -> list[StreamRun]:
        """The running queries on a stream. Raises `MarkRefused` if there is no such stream, or no query runs on it."""
        runs = [run for run in self._runs if run.stream.name == name and not run.ended]
        if runs:
            return runs
        names = self._runs.streams.names()
        if name in names:
            raise MarkRefused(name, "no query runs on it", "start the query first; its splits are marked in the query.")
        near = get_close_matches(name, names, n=1)
        hint = f'did you mean "{near[0]}"?' if near else "a stream must be wrapped or read under that name."
        raise MarkRefused(name, f"it is unknown to this service, which has: {', '.join(names) or 'none'}", hint)

    def _splits(self, run: StreamRun, wanted: Sequence[str]) -> dict[str, SplitId]:
        """The wanted splits of a query, by their names, or by the names that a terminal shows."""
        known = run.named_splits()
        if not all(name in known for name in wanted):
            known = {**{printable(name): split for name, split in known.items()}, **known}
        return {name: known[name] for name in dict.fromkeys(wanted) if name in known}

    def _unknown(self, name: str, split: str, runs: Sequence[StreamRun]) -> MarkRefused:
        names = {known for run in runs for known in run.named_splits()}
        near = get_close_matches(split, list(islice(sorted(names), _NAMES_COMPARED)), n=_NEAREST)
        hint = f"did you mean {' or '.join(near)}?" if near else f"`lowmark status {name}` lists its splits."
        return MarkRefused(name, f"no split is named {split!a}, among {len(names):,} known splits", hint)
