"""`lowmark check`: for cron and probes, which use the exit code.

The exit codes of `lowmark status` differ (1: nothing to show), so `check` is a separate command.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Annotated, Any

import msgspec
import typer
from lowmark.integration.console import ago, print_error, print_json, print_lines, show_traceback
from lowmark.integration.errors import ServiceUnreachable
from lowmark.integration.verdict import WANTS_A_PERSON, told_at, verdict
from lowmark.watermark import LowmarkError, SetByHand, WrongClock, duration_us
from lowmark.watermark.moment import us_of
from lowmark.watermark.printable import counted, printable

from .asking import ask
from .common import Connect, Debug, Json, Name
from .show_streams import by_hand

_MOVING, _STUCK, _UNREACHABLE = 0, 1, 2
_NO_QUERY = "services answer, and none of them has a query with a wrapped stream"
_NO_SERVICE = "a coordinator answers, and no service here has such a stream: ask on the machine of its driver"
CHECK_EXIT_CODES = (
    "Exit codes: 0 every low watermark moves or nothing waits for it, 1 one is stuck while rows wait or its query has "
    "failed, 2 not reachable."
)


def check(
    name: Name = None,
    *,
    connect: Connect = None,
    patience: Annotated[str, typer.Option(help="How long a low watermark may stand while rows wait.")] = "5 minutes",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Say whether low watermarks move, in one line each and by the exit code: for cron and probes."""
    from lowmark.integration.transport.driver_rpc import newest, why_silent

    hung: list[ServiceUnreachable] = []
    most = timedelta(microseconds=duration_us(patience, what="--patience"))
    try:
        services, _ = ask(name, connect, limit=0, ended=True, hung=hung)
    except LowmarkError as failed:
        if debug:
            show_traceback(type(failed), failed, failed.__traceback__)
        if as_json:
            print_json({"streams": [], "error": str(failed)})
        print_error(str(failed))
        raise typer.Exit(_UNREACHABLE) from failed
    now = datetime.now(timezone.utc)
    words = [(stream, verdict(stream, now, most)) for _, stream, _ in newest(services)]
    code, error = _MOVING, None
    if not words:
        code, error = _UNREACHABLE, _NO_QUERY if services else _NO_SERVICE
        print_error(error)
    elif any(word in WANTS_A_PERSON for _, word in words):
        code = _STUCK
    elif hung and name is None:
        code, error = _UNREACHABLE, why_silent(hung[0])  # `ask` has printed it
    if as_json:
        why = {} if error is None else {"error": error}
        print_json({"streams": [_json(stream, word) for stream, word in words], **why})
    else:
        for stream, word in words:
            names = printable(f"{stream['name']}, query {stream['query']}")  # one line, whatever the names hold
            print_lines(f"{names}: {word}{_because(stream, word, told_at(stream, now))}")
    raise typer.Exit(code)


def _json(stream: dict[str, Any], word: str) -> dict[str, Any]:
    kept = ("low_watermark_us", "since", "holder", "why", "next")
    backlog_rows = stream["run"]["backlog_rows"]
    names = {"stream": stream["name"], "query": stream["query"], "verdict": word, "backlog_rows": backlog_rows}
    return {**names, **{key: stream[key] for key in kept}}


def _because(stream: dict[str, Any], word: str, now: datetime) -> str:
    # Not converted to `StreamStatus`, because a service of another version may use words that are not known here.
    set_by_hand = msgspec.convert(stream.get("set_by_hand", []), list[SetByHand])
    facts = (*_clocks(stream), *map(str, set_by_hand), *by_hand(stream), *_left_alone(stream))
    beside = "".join(f"; {printable(fact)}" for fact in facts)
    if word == "failed":
        return f", {printable(stream['why'])}"
    if word not in ("stuck", "silent", "waiting", "standing"):
        return beside
    since, unread = stream["since"], stream["run"]["backlog_rows"]
    stood = "" if since is None else ago(us_of(datetime.fromisoformat(since)), us_of(now))
    told = [
        f"for {stood}" if stood else "",
        f"{counted(unread, 'row')} unread" if unread else "",
        printable(stream["why"]),
    ]
    said = ", ".join(fact for fact in told if fact)
    return f", {said.removesuffix('.') if beside else said}{beside}"


def _clocks(stream: dict[str, Any]) -> list[str]:
    """The splits whose clocks are wrong; the holder's is in ``why``."""
    clocks = msgspec.convert(stream["wrong_clocks"], list[WrongClock])
    return [str(clock) for clock in clocks if stream["cause"] != "wrong clock" or clock.split != stream["holder"]]


def _left_alone(stream: dict[str, Any]) -> list[str]:
    """A coordinator that does not answer and holds nothing; one that holds is in ``why``."""
    link = stream["run"]["coordinator"]
    if link is None or link["connected"] or link["holds"]:
        return []
    return [
        f"the coordinator at {link['address']} does not answer ({link['why']}): its group goes on without this stream"
    ]
