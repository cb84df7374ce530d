"""The streams of a service on the terminal, and as JSON."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import msgspec
from lowmark.integration.console import Sheet, ago
from lowmark.integration.verdict import verdict
from lowmark.watermark import StreamStatus, format_time_us
from lowmark.watermark.printable import counted, printable
from lowmark.watermark.splits.status import by_need
from rich.table import Table
from rich.text import Text

_BY_HAND_SHOWN = 10
_STYLES = {
    **dict.fromkeys(("failed", "stuck"), "bold red"),
    **dict.fromkeys(("silent", "waiting", "standing"), "yellow"),
    "moving": "green",
}


def stream_json(stream: dict[str, Any]) -> dict[str, Any]:
    """Return a stream's status, the verdict, and the number of splits that the service left out."""
    splits = stream["splits"]
    not_shown = sum(stream["states"].values()) - len(splits)
    return {**stream, "splits": splits, "verdict": _verdict(stream), "splits_not_shown": not_shown}


def stream_table(stream: dict[str, Any], now_us: int) -> Table:
    """Return tables of a stream's status."""
    # Without the cause, which is not shown, because a later version's may be unknown here.
    known = {key: value for key, value in stream.items() if key != "cause"}
    seen, word = msgspec.convert(known, StreamStatus), _verdict(stream)
    facts = Table(
        title=Text(printable(f"{seen.name}, query {stream['query']}"), style="bold", overflow="fold"),
        title_justify="left",
        show_header=False,
        box=None,
        padding=(0, 2),
    )
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    lines: list[tuple[str, str | Text]] = [
        ("is", Text(word, style=_STYLES.get(word, ""))),
        ("low watermark", format_time_us(seen.low_watermark_us)),
        ("behind now", ago(seen.low_watermark_us, now_us)),
        ("held by", "nobody" if seen.holder is None else seen.holder),
        ("why", seen.why),
        ("since", "unknown" if seen.since is None else f"{seen.since:%Y-%m-%d %H:%M:%S} UTC"),
        ("next", seen.next),
        *(("clock", str(clock)) for clock in seen.clocks_beside),
        *(("set", str(each)) for each in seen.set_by_hand),
        *(("by hand", each) for each in by_hand(stream)),
        ("splits", ", ".join(f"{count} {state}" for state, count in seen.states.items() if count) or "none yet"),
        ("rows", _rows(seen)),
    ]
    for what, value in lines:
        if value:  # a stream before its first batch has few
            facts.add_row(what, value)
    whole = Table.grid()
    whole.add_row(facts)
    if seen.splits:
        whole.add_row(_split_table(seen, now_us))
    return whole


def by_hand(stream: dict[str, Any]) -> list[str]:
    """The splits that a person left out, of which a stream of many splits shows no row."""
    splits = stream.get("by_hand", [])  # an earlier version of the service has none
    left_out = [f"split {name} is {why}" for name, why in splits[:_BY_HAND_SHOWN]]
    more = len(splits) - len(left_out)
    return [*left_out, f"{counted(more, 'more split', ('is', 'are'))} left out by hand"] if more else left_out


def _verdict(stream: dict[str, Any]) -> str:
    return verdict(stream, datetime.now(timezone.utc))


def _rows(seen: StreamStatus) -> str:
    rows, counts = f"{seen.counts.rows:,} in {counted(seen.batches, 'batch')}", seen.counts
    return f"{rows}, {counts.dropped_rows:,} dropped as late, {counts.future_rows:,} too far ahead of the clock"


def _split_table(seen: StreamStatus, now_us: int) -> Sheet:
    left = sum(seen.states.values()) - len(seen.splits)
    rows = []
    for name, split in sorted(seen.splits.items(), key=lambda item: by_need(item[1])):
        state = f"{split.state.value}, lagging" if split.lagging else split.state.value
        unread = "?" if split.backlog_rows is None else f"{split.backlog_rows:,}"
        at = format_time_us(split.watermark_us).removesuffix(" UTC")
        rows.append((name, state, at, ago(split.watermark_us, now_us), unread, split.why))
    columns = ("split", "state", "watermark (UTC)", "behind", "unread", "why")
    return Sheet(columns, rows, whole=columns[2:5], right=columns[3:5], left_out=left)
