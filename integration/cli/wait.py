"""`lowmark wait`: end when everything up to a time can be read in the sink, for schedulers, which use the exit code.

A time is passed once all rows up to it are committed, and the windows that it closes are emitted.

A first question without an answer ends the command at once, because it most likely has a wrong name or path. A service
that is there and hangs is waited for until the time-out. After the first answer, the command also waits for a driver
that restarts, and for a store that does not answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Annotated, Any

import typer
from lowmark.integration.console import print_error, print_json, print_lines, show_traceback
from lowmark.integration.errors import ServiceUnreachable, UnknownStream
from lowmark.watermark import LowmarkError, duration_us, format_time_us
from lowmark.watermark.moment import least_us, time_us
from lowmark.watermark.printable import printable

from .asking import ask, ask_coordinator
from .common import SHOWN, AtCoordinator, Connect, Debug, Json, Name, TlsCa, TlsCert, TlsKey, TokenFile

if TYPE_CHECKING:
    from lowmark.integration.coordinator.access import Caller
    from lowmark.integration.transport.driver_rpc import StatusReply

_NO_TASK = "no query is registered at the coordinator"
_PASSED, _NOT_PASSED, _NOBODY = 0, 1, 2
WAIT_EXIT_CODES = (
    "Exit codes: 0 the time is passed, 1 it is not passed at the time-out, 2 nobody can be asked, 130 interrupted, "
    "143 terminated."
)


@dataclass(frozen=True)
class _Answer:
    """The smallest time of all sinks (None: a sink has no known time), and who holds each sink that is behind."""

    until_us: int | None
    why: list[str]


def wait(
    name: Name = None,
    *,
    past: Annotated[str, typer.Option(help='The time with its zone, as "2026-11-23T10:00Z".')],
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            help="Ask this checkpoint instead of running services: a folder, or s3a://...; may be repeated, "
            "and all have to pass."
        ),
    ] = None,
    job: Annotated[
        str | None, typer.Option(help="With --coordinator: the queries of this job; else of every job.")
    ] = None,
    coordinator: AtCoordinator = None,
    tls_ca: TlsCa = None,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    timeout: Annotated[str, typer.Option(help="How long to wait; 0 seconds: ask once.")] = "1 hour",
    every: Annotated[str, typer.Option(help="How often to ask.")] = "10 seconds",
    connect: Connect = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Wait until everything up to a time can be read in the sink of each query on a stream; told by the exit code."""
    if sum((bool(checkpoint), connect is not None, coordinator is not None)) > 1:
        raise typer.BadParameter("--connect, --checkpoint and --coordinator ask different places; pass one of them")
    if job is not None and coordinator is None:
        raise typer.BadParameter("--job needs --coordinator, because a coordinator knows the queries of a job")
    past_us = time_us(past, what="--past")
    timeout_seconds = duration_us(timeout, what="--timeout") / 1_000_000
    every_seconds = min(max(duration_us(every, what="--every") / 1_000_000, 0.01), TIMEOUT_MAX)

    if checkpoint:
        question = partial(_of_checkpoints, checkpoint, name, past_us)
    elif coordinator is not None:
        from lowmark.integration.coordinator.access import Caller

        caller = Caller(coordinator, tls_ca, token_file, tls_cert, tls_key)
        question = partial(_of_coordinator, caller, name, job, past_us)
    else:
        question = partial(_of_services, name, connect, past_us)

    answer, failed = _wait(question, past_us, timeout_seconds, every_seconds)
    if failed is not None and debug:
        show_traceback(type(failed), failed, failed.__traceback__)
    answer = _Answer(None, []) if answer is None else answer
    passed = failed is None and _has_passed(answer.until_us, past_us)
    if as_json:
        told = {"stream": name, "past_us": past_us, "passed": passed, "complete_until_us": answer.until_us}
        print_json({**told, "why": answer.why, **({} if failed is None else {"error": str(failed)})})
    elif failed is None:
        reached = f"{'has passed' if passed else 'has not passed'} {format_time_us(past_us)}"
        said = printable(f"{name or 'everything'} {reached}: complete until {format_time_us(answer.until_us)}")
        print_lines("\n".join([said, *answer.why]))
    if failed is not None:
        print_error(str(failed))
        raise typer.Exit(_NOBODY)
    raise typer.Exit(_PASSED if passed else _NOT_PASSED)


def _wait(
    question: Callable[[], _Answer], past_us: int, timeout_seconds: float, every_seconds: float
) -> tuple[_Answer | None, LowmarkError | None]:
    """Ask until the time is passed or the time-out is over; return the last answer, and the last question's error."""
    from lowmark.integration.transport.driver_rpc import hangs

    deadline = time.monotonic() + timeout_seconds
    answer: _Answer | None = None
    while True:
        failed: LowmarkError | None = None
        try:
            answer = question()
            if _has_passed(answer.until_us, past_us):
                return answer, None
        except LowmarkError as error:
            failed = error
            if answer is None and not hangs(error):
                return None, error
        left_seconds = deadline - time.monotonic()
        if left_seconds <= 0:
            return answer, failed
        time.sleep(min(every_seconds, left_seconds))


def _has_passed(at_us: int | None, past_us: int) -> bool:
    return at_us is not None and at_us >= past_us


def _of_checkpoints(checkpoints: list[str], name: str | None, past_us: int) -> _Answer:
    from lowmark.integration.spark.completion import completion

    found = [(each, completion(each, name)) for each in checkpoints]
    why = [f"{place}: {each.stream}: {each.why}" for place, each in found if not each.has_passed(past_us)]
    return _Answer(least_us(each.until_us for _, each in found), why)


def _of_services(name: str | None, connect: str | None, past_us: int) -> _Answer:
    """Ask every service that has the stream, as `ask`; an ended query counts with the time that its sink had."""
    from lowmark.integration.transport.driver_rpc import newest

    services: list[tuple[str, StatusReply]] = []
    hung: list[ServiceUnreachable] = []
    try:
        services, _ = ask(name, connect, limit=SHOWN, ended=True, hung=hung)
    except UnknownStream:
        if not hung:  # else the service that hangs may have the stream
            raise
    if hung:
        raise hung[0]
    until_us: list[int | None] = []
    why = []
    for _, each, explanation in newest(services):
        if not each["run"]["emits"]:
            continue
        at_us = each["run"].get("complete_until_us")  # a service of an earlier version does not know
        until_us.append(at_us)
        if not _has_passed(at_us, past_us):
            why.append(explanation + _beside(each, past_us))
    return _Answer(least_us(until_us), why or (["no query with a low watermark runs"] if not until_us else []))


def _of_coordinator(caller: Caller, name: str | None, job: str | None, past_us: int) -> _Answer:
    """Look at the sinks of all queries that a coordinator knows, also of queries that are away.

    Raises as `ask_coordinator`, and UnknownStream if no query of that job is registered for the stream.
    """
    from .show_coordinator import sink_in_words

    known = ask_coordinator(caller, name, None, SHOWN).coordinator.sources
    sources = [source for source in known if job in (None, source.job_id)]
    if job is not None and not sources:
        raise UnknownStream(f"{job}/{name or '*'}", tuple(f"{each.job_id}/{each.source_id}" for each in known))
    behind = [each for each in sources if not _has_passed(each.complete_until_us, past_us)]
    why = [f"{each.source_id} of {each.job_id}: {sink_in_words(each)}" for each in behind]
    return _Answer(least_us(each.complete_until_us for each in sources), why or ([] if sources else [_NO_TASK]))


def _beside(stream: dict[str, Any], past_us: int) -> str:
    """Return the words for a cause that lies in the sink and not in a split; empty without such a cause."""
    if stream["run"]["ended"]:
        return "\n  sink   the query has ended; it goes on from its checkpoint when it is started again"
    if not _has_passed(stream["low_watermark_us"], past_us):
        return ""
    return (
        "\n  sink   the low watermark has passed the time; the batch that brings it into the sink is not committed "
        "yet, or another stream of the query has not passed it"
    )
