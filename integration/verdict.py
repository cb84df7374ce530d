"""The state of a stream in one word, used by the page's colours, `lowmark check` and the watching table.

    failed     the query ended with an error, or lowmark ends it
    ended      the query has ended
    measuring  the strategy makes no watermarks
    stuck      the low watermark stands for longer than the patience, and rows wait, or were delivered meanwhile, or
               have been read for longer than that, or its coordinator does not answer and so holds it
    silent     no split delivered a row for longer than the idle timeout
    waiting    there is no low watermark yet
    standing   the low watermark stands for longer than the patience, and no row is known to wait, or its alignment
               group makes it wait; or its coordinator does not answer and so holds it
    moving     the low watermark rose within the patience

The first word that applies counts. Only `failed` and `stuck` need a person.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

PATIENCE = timedelta(minutes=5)

VERDICTS = ("failed", "stuck", "silent", "waiting", "standing", "moving", "measuring", "ended")
"""All words, the most urgent first."""

WANTS_A_PERSON = frozenset({"failed", "stuck"})


class _Alignment(msgspec.Struct, frozen=True):
    waiting: bool = False


class _Coordinator(msgspec.Struct, frozen=True):
    connected: bool = True
    holds: bool = False


class _Run(msgspec.Struct, frozen=True):
    failed: bool = False
    refused: bool = False
    ended: bool = False
    emits: bool = True
    backlog_rows: int | None = None
    now: datetime | None = None
    rows_at: datetime | None = None
    batch_since: datetime | None = None
    alignment: _Alignment | None = None
    coordinator: _Coordinator | None = None


class _Stream(msgspec.Struct, frozen=True):
    """The fields of a status from `run_json` that decide the verdict; another version may send others."""

    since: datetime | None = None
    silent_since: datetime | None = None
    low_watermark_us: int | None = None
    run: _Run = _Run()


def told_at(stream: Mapping[str, Any], now: datetime) -> datetime:
    """The time of a service's answer by its own clock, whose times follow no step of a wall clock; else `now`."""
    return msgspec.convert(stream, _Stream).run.now or now


def verdict(stream: Mapping[str, Any], now: datetime, patience: timedelta = PATIENCE) -> str:
    """Return one of `VERDICTS` for the status that `run_json` has made, as of the service's own time, else of `now`.

    >>> at = datetime.fromisoformat
    >>> stands = {"since": "2026-01-01T12:00:00+00:00", "low_watermark_us": 0, "run": {"backlog_rows": 7}}
    >>> verdict(stands, at("2026-01-01T12:04:00+00:00")), verdict(stands, at("2026-01-01T12:06:00+00:00"))
    ('moving', 'stuck')
    """
    seen = msgspec.convert(stream, _Stream)
    run, now = seen.run, seen.run.now or now
    if run.failed or run.refused:
        return "failed"
    if run.ended:
        return "ended"
    if not run.emits:
        return "measuring"
    stood = timedelta() if seen.since is None else now - seen.since
    stands = stood > patience
    if run.coordinator is not None and run.coordinator.holds and not run.coordinator.connected:
        return "stuck" if stands else "standing"
    if stands and run.batch_since is not None and now - run.batch_since > patience:
        return "stuck"
    aligned = run.alignment is not None and run.alignment.waiting
    rows_wait = run.backlog_rows is not None and run.backlog_rows > 0
    if stands and not aligned and (rows_wait or _rows_came(run, now, stood, patience)):
        return "stuck"
    if seen.silent_since is not None:
        return "silent"
    if seen.low_watermark_us is None:
        return "waiting"
    return "standing" if stands else "moving"


def _rows_came(run: _Run, now: datetime, stood: timedelta, patience: timedelta) -> bool:
    """Whether rows kept coming: within the patience, and well after the low watermark last rose."""
    if run.rows_at is None:
        return False
    ago = now - run.rows_at
    return ago < patience and stood - ago > patience / 2
