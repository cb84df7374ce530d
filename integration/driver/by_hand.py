"""What persons say of running queries: leave splits out, set delay and idleness, or take that back."""

from __future__ import annotations

import datetime as dt
import logging
import shlex
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import islice

from lowmark.integration.errors import ByHandRefused
from lowmark.integration.process.user import user
from lowmark.integration.transport.driver_rpc import Marked, MarkRequest, SetOf, SetRequest
from lowmark.watermark import InvalidStrategy, SetByHand, SplitId, WatermarkStrategy, duration_us, format_duration_us
from lowmark.watermark.moment import INT64, us_of, utc
from lowmark.watermark.names import unfit_character
from lowmark.watermark.printable import printable
from lowmark.watermark.splits.events import SplitsMarkedActive, SplitsMarkedIdle

from .runs import Runs
from .stream_run import StreamRun

log = logging.getLogger("lowmark")

_NAMES_COMPARED = 10_000
_NEAREST = 3


def request(
    stream: str, split: str, *, idle: bool, until: str | dt.timedelta | dt.datetime | None = None
) -> MarkRequest:
    """Make the request of the person who runs this process; errors of `until` as in `LowWatermarkService.mark_idle`."""
    splits = [str(split)]  # the number of a partition, too
    if isinstance(until, dt.datetime):
        if until.tzinfo is None:
            fact = f"until is {until.isoformat()}, a time without a zone"
            raise ByHandRefused(stream, fact, "add one, as datetime.now(timezone.utc) has it.")
        return MarkRequest(stream, splits, user(), idle, until_us=us_of(until))
    for_us = None if until is None else duration_us(until, what="until")
    return MarkRequest(stream, splits, user(), idle, for_us=for_us)


class ByHand:
    """Takes what persons say about splits and strategies. Belongs to the loop of the service."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    def take(self, request: MarkRequest) -> list[Marked]:
        """Mark splits in every running query on a stream. Raises `ByHandRefused`."""
        name, now_us = request.stream, self._runs.clock.now_us()
        _check_person(request.by, name)
        until_us = self._until_us(request, now_us + self._runs.clock.wall_ahead_us())
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

    def set(self, request: SetRequest) -> list[SetOf]:
        """Set delay and idleness in every running query on a stream. Raises `ByHandRefused`; then nothing was set."""
        name, now_us = request.stream, self._runs.clock.now_us()
        _check_person(request.by, name)
        runs = self._running(name)
        codes = [self._runs.streams[run.stream.stream_id].strategy for run in runs]
        strategies = [_changed(run.stream.strategy, code, request) for run, code in zip(runs, codes, strict=True)]
        said = []
        for run, code, strategy in zip(runs, codes, strategies, strict=True):
            settings = _settings(strategy, code, request.by, now_us, run.set_by_hand)
            run.set(strategy, settings, now_us)
            self._runs.after(run, now_us)
            query, in_force = "unknown" if run.query is None else run.query, list(map(str, settings))
            told = "; ".join(in_force) or f"{request.by} took back what was set, and the code counts again"
            log.warning('stream "%s", query %s: %s', name, query, told)
            said.append(SetOf(query, in_force))
        return said

    def _until_us(self, request: MarkRequest, wall_us: int) -> int | None:
        until_us = request.until_us if request.for_us is None else wall_us + request.for_us
        if until_us is not None and not wall_us < until_us <= INT64[-1]:
            by_us = wall_us - until_us
            fact = "the time lies after the last that is known" if by_us < 0 else "the time is over already"
            ago = f", by {format_duration_us(by_us)}" if by_us > 0 else ""
            raise ByHandRefused(request.stream, f"{fact}{ago}", "pass a time that is still to come.")
        return until_us

    def _running(self, name: str) -> list[StreamRun]:
        """The running queries on a stream; refuses a stream without one."""
        runs = [run for run in self._runs.known() if run.stream.name == name and not run.ended]
        if runs:
            return runs
        names = self._runs.streams.names()
        if name in names:
            raise ByHandRefused(name, "no query runs on it", "start the query first; a person acts on a running query.")
        near = get_close_matches(name, names, n=1)
        hint = f'did you mean "{near[0]}"?' if near else "a stream must be wrapped or read under that name."
        raise ByHandRefused(name, f"it is unknown to this service, which has: {', '.join(names) or 'none'}", hint)

    def _splits(self, run: StreamRun, wanted: Sequence[str]) -> dict[str, SplitId]:
        """The wanted splits of a query, by their names, or by the names that a terminal shows."""
        known = run.named_splits()
        if not all(name in known for name in wanted):
            known = {**{printable(name): split for name, split in known.items()}, **known}
        return {name: known[name] for name in dict.fromkeys(wanted) if name in known}

    def _unknown(self, name: str, split: str, runs: Sequence[StreamRun]) -> ByHandRefused:
        names = {known for run in runs for known in run.named_splits()}
        near = get_close_matches(split, list(islice(sorted(names), _NAMES_COMPARED)), n=_NEAREST)
        hint = (
            f"did you mean {' or '.join(near)}?" if near else f"`lowmark status {shlex.quote(name)}` lists its splits."
        )
        return ByHandRefused(name, f"no split is named {split!a}, among {len(names):,} known splits", hint)


def _check_person(by: str, stream: str) -> None:
    if (unfit := unfit_character(by)) is not None or not by:
        fact = f"the name of the person is {by!a}, which holds {unfit or 'nothing'}"
        raise ByHandRefused(stream, fact, "pass a name of one line.")


def _changed(present: WatermarkStrategy, code: WatermarkStrategy, request: SetRequest) -> WatermarkStrategy:
    """The strategy with what a person sets; refuses what the strategy does not have."""
    strategy = code if request.code else present
    name, restart = request.stream, "change the strategy in the code, and start the query again."
    if not strategy.emits:
        raise ByHandRefused(name, "its strategy makes no watermarks", restart)
    if request.delay_us is not None:
        if strategy.adaptive is not None:
            raise ByHandRefused(name, "the delay of each split is measured (for_adaptive_out_of_orderness)", restart)
        if strategy.generator is not None:
            raise ByHandRefused(name, "a generator of the code makes its watermarks, and has its own delay", restart)
    delay_us = strategy.out_of_orderness_us if request.delay_us is None else request.delay_us
    idle_us = strategy.idle_timeout_us if request.idle_timeout_us is None else request.idle_timeout_us or None
    grows = code.progressive if idle_us == code.idle_timeout_us else None
    try:
        return replace(strategy, out_of_orderness_us=delay_us, idle_timeout_us=idle_us, progressive=grows)
    except InvalidStrategy as invalid:
        raise ByHandRefused(name, f"the value does not fit: {invalid}", "pass a length of time.") from invalid


def _settings(
    strategy: WatermarkStrategy, code: WatermarkStrategy, by: str, now_us: int, before: Sequence[SetByHand]
) -> list[SetByHand]:
    """What differs from the code; a value that was set before keeps its person and time."""
    said = {each.what: each for each in before}
    settings = []
    for what, us, code_us in (
        ("delay", strategy.out_of_orderness_us, code.out_of_orderness_us),
        ("idleness", strategy.idle_timeout_us, code.idle_timeout_us),
    ):
        earlier = said.get(what)
        if us != code_us:
            new = SetByHand(what, us, code_us, by, utc(now_us))
            settings.append(new if earlier is None or earlier.us != us else earlier)
    return settings
