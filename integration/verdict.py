"""How a stream is doing, in one word: the page's colours, `lowmark check` and the watching table go by it.

    failed     the query ended with an error, or lowmark ends it
    ended      the query has ended
    stuck      the low watermark stands for longer than the patience, and rows are waiting or were delivered meanwhile
    silent     nothing came of any split for longer than the idle timeout
    waiting    there is no low watermark yet
    measuring  the strategy makes no watermarks
    standing   the low watermark stands for longer than the patience, and no row is known to wait, or its alignment
               group makes it wait
    moving     the low watermark rose within the patience

The first that holds. Only the first and the third want a person.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

__all__ = ["PATIENCE", "VERDICTS", "WANTS_A_PERSON", "newest", "verdict"]

PATIENCE = timedelta(minutes=5)
"""How long a low watermark may stand before rows that wait make it stuck."""

VERDICTS = ("failed", "stuck", "silent", "waiting", "standing", "moving", "measuring", "ended")
"""Every word, who needs attention first."""

WANTS_A_PERSON = frozenset({"failed", "stuck"})


def verdict(stream: dict[str, Any], now: datetime, patience: timedelta = PATIENCE) -> str:
    """How a stream is doing in its query.

    Args:
        stream: as `run_json` made it; of a service of before, without its "run".
        now: now, UTC.
        patience: how long a low watermark may stand.

    Returns:
        One of `VERDICTS`.

    >>> at = datetime.fromisoformat
    >>> stands = {"since": "2026-01-01T12:00:00+00:00", "low_watermark_us": 0, "run": {"backlog_rows": 7}}
    >>> verdict(stands, at("2026-01-01T12:04:00+00:00")), verdict(stands, at("2026-01-01T12:06:00+00:00"))
    ('moving', 'stuck')
    """
    run = stream.get("run", {})
    if run.get("failed") or run.get("refused"):
        return "failed"
    if run.get("ended"):
        return "ended"
    if not run.get("emits", True):
        return "measuring"
    since = stream.get("since")
    stood = timedelta() if since is None else now - datetime.fromisoformat(since)
    stands = stood > patience
    aligned = (run.get("alignment") or {}).get("waiting", False)
    if stands and not aligned and (_rows_wait(stream, run) or _rows_came(run, now, stood, patience)):
        return "stuck"
    if stream.get("silent_since") is not None:
        return "silent"
    if stream.get("low_watermark_us") is None:
        return "waiting"
    return "standing" if stands else "moving"


def newest(streams: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each stream in each query the newest run: one that failed and was started again has not failed.

    Args:
        streams: of one service, in the order in which their runs began.
    """
    return list({(stream["name"], stream["query"]): stream for stream in streams}.values())


def _rows_wait(stream: dict[str, Any], run: dict[str, Any]) -> bool:
    known = [run["backlog_rows"]] if "backlog_rows" in run else [s["backlog_rows"] for s in _splits(stream)]
    return any(rows is not None and rows > 0 for rows in known)


def _rows_came(run: dict[str, Any], now: datetime, stood: timedelta, patience: timedelta) -> bool:
    """Rows kept coming: some came within the patience, and well after the low watermark rose last."""
    if run.get("rows_at") is None:
        return False
    ago = now - datetime.fromisoformat(run["rows_at"])
    return ago < patience and stood - ago > patience / 2


def _splits(stream: dict[str, Any]) -> list[dict[str, Any]]:
    return list(stream.get("splits", {}).values())
