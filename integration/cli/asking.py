"""Asks services and coordinators for their status, for all commands that look at running streams."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer
from lowmark.integration.console import print_error
from lowmark.integration.errors import CoordinatorUnreachable, NoService, ServiceUnreachable, UnknownStream
from lowmark.integration.verdict import verdict
from lowmark.sources.worker import Worker, answer

if TYPE_CHECKING:
    from lowmark.integration.coordinator.access import Caller
    from lowmark.integration.coordinator.messages import StatusAnswer
    from lowmark.integration.transport.driver_rpc import StatusReply

    Services = list[tuple[str, StatusReply]]  # each with its address
    Coordinators = list[tuple[str, StatusAnswer]]  # the same


def ask(
    name: str | None,
    connect: str | None,
    token_file: Path | None = None,
    limit: int | None = None,
    *,
    ended: bool = False,
    hung: list[ServiceUnreachable] | None = None,
    tell: Callable[[str], None] = print_error,
) -> tuple[Services, Coordinators]:
    """Ask one service, or all services and coordinators of this user; with a name, only those that have the stream.

    Args:
        limit: number of splits of a stream, and of tasks at a coordinator.
        ended: whether all queries that ended are among the streams; else those that failed, and do not run again, and
            the last run of each query of a named stream that no running query has.
        hung: receives the errors of services that exist and give no status; `tell` hears of them, too.
        tell: called with a line on each service or coordinator that does not answer.

    Raises NoService, UnknownStream; ServiceUnreachable, if all services are silent, or the one at `connect` is.
    """
    from lowmark.integration.process import sockets
    from lowmark.integration.transport.driver_rpc import StatusReply, why_silent

    services: Services = []
    coordinators: Coordinators = []
    silent: dict[str, ServiceUnreachable] = {}
    for address, told in _side_by_side(connect, token_file, limit):
        try:
            answered = told.result()
        except CoordinatorUnreachable as refused:
            tell(str(refused))
        except ServiceUnreachable as other:
            if connect is not None:
                raise
            if (why := why_silent(other)) is not None:
                silent[why] = other
        else:
            if isinstance(answered, StatusReply):
                services.append((address, answered))
            else:
                coordinators.append((address, answered))
    if not services and not coordinators:
        raise next(iter(silent.values())) if silent else NoService(tuple(map(str, sockets.folders())))
    for why in silent:
        tell(why)
    if hung is not None:
        hung += (each for each in silent.values() if sockets.is_service(each.address))
    shown = services if ended else _running_or_failed(services)
    if name is None:
        return shown, coordinators
    return _only(name, shown if name in _names(shown) else _last(services), coordinators)


def _side_by_side(
    connect: str | None, token_file: Path | None, limit: int | None
) -> list[tuple[str, Future[StatusReply | StatusAnswer]]]:
    """Ask the service at `connect`, or each service and coordinator; in turn, each hanging driver would add 10 s."""
    from lowmark.integration.coordinator.access import Caller
    from lowmark.integration.coordinator.ask import ask_status
    from lowmark.integration.process import sockets
    from lowmark.integration.transport.driver_rpc import Client, StatusRequest, is_coordinator

    def look(address: str) -> StatusReply | StatusAnswer:
        try:
            with closing(Client(address)) as client:
                return client.status(StatusRequest(limit=limit))
        except ServiceUnreachable as other:
            if not is_coordinator(other):
                raise
            if connect is not None:
                there = "a coordinator is there; `lowmark status`, `explain` and `wait` ask it with --coordinator"
                raise ServiceUnreachable(other.address, other.action, there) from other
            return ask_status(Caller(address, token_file=token_file), limit=limit)

    addresses = [connect] if connect is not None else sockets.find_addresses()
    asked: list[tuple[str, Future[StatusReply | StatusAnswer]]] = [(address, Future()) for address in addresses]
    for address, told in asked:
        Worker("lowmark-ask", partial(answer, told, partial(look, address))).start()
    return asked


def ask_coordinator(caller: Caller, name: str | None, connect: str | None, limit: int | None) -> StatusAnswer:
    """Ask a coordinator; with a name, only for sources of that name. Raises CoordinatorUnreachable, UnknownStream."""
    from lowmark.integration.coordinator.ask import ask_status

    from .show_coordinator import only

    if connect is not None:
        raise typer.BadParameter("--connect asks a service and --coordinator a coordinator; pass one of them")
    seen = ask_status(caller, limit=limit)
    return seen if name is None else only(name, seen)


def _only(name: str, services: Services, coordinators: Coordinators) -> tuple[Services, Coordinators]:
    """Return the services and coordinators that have a stream, with that stream alone."""
    from .show_coordinator import only

    known = _names(services)
    shared = {source.source_id for _, answer in coordinators for source in answer.coordinator.sources}
    if name not in known | shared:
        raise UnknownStream(name, tuple(sorted(known | shared)))
    return (
        [(a, r) for a, whole in services if (r := _kept(whole, lambda stream: stream["name"] == name)).streams],
        [(a, only(name, r)) for a, r in coordinators if any(s.source_id == name for s in r.coordinator.sources)],
    )


def _names(services: Services) -> set[str]:
    return {str(stream["name"]) for _, reply in services for stream in reply.streams}


def _running_or_failed(services: Services) -> Services:
    """Leave out queries that ended in order, and failed ones that run again, also in another service."""
    from lowmark.integration.transport.driver_rpc import newest

    now = datetime.now(timezone.utc)
    failed = {id(run) for _, run, _ in newest(services) if verdict(run, now) == "failed"}
    return [(a, _kept(r, lambda run: not run["run"]["ended"] or id(run) in failed)) for a, r in services]


def _last(services: Services) -> Services:
    """Leave out all runs of a query but its newest, because a driver keeps up to 100 that ended."""
    from lowmark.integration.transport.driver_rpc import newest

    last = {id(run) for _, run, _ in newest(services)}
    return [(a, _kept(r, lambda run: id(run) in last)) for a, r in services]


def _kept(reply: StatusReply, keep: Callable[[dict[str, Any]], bool]) -> StatusReply:
    """Return a service's answer with some of its streams."""
    those = [(s, text) for s, text in zip(reply.streams, reply.explanations, strict=True) if keep(s)]
    return msgspec.structs.replace(reply, streams=[s for s, _ in those], explanations=[text for _, text in those])
