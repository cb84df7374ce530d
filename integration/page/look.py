"""The page's view of services: of the service in its own process, or of all services of this user."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from lowmark.integration.errors import ServiceUnreachable
from lowmark.integration.process import sockets
from lowmark.integration.transport.driver_rpc import Client, StatusReply, StatusRequest, why_silent

_DEADLINE_SECONDS = 5.0
_AT_ONCE = 16

Look = Callable[[StatusRequest, "str | None"], Mapping[str, StatusReply | str]]
"""Asks the service at an address, or all services. Gives the answers by address, or why a service gives none; a service
that has ended is missing.

It is called from threads, one at a time. It may raise: the page then shows the error beside what was seen last.
"""


def all_services(request: StatusRequest, address: str | None) -> dict[str, StatusReply | str]:
    """Ask the service at an address; None: all services of this user, found anew as by `lowmark status`.

    Raises SocketsRefused.
    """
    if address is not None:
        return one_service(address, request)
    addresses = sockets.find_addresses()
    if not addresses:
        return {}
    with ThreadPoolExecutor(min(len(addresses), _AT_ONCE), "lowmark-look") as pool:  # a hanging service delays no other
        found = pool.map(lambda address: one_service(address, request), addresses)
        return {address: answer for each in found for address, answer in each.items()}


def one_service(address: str, request: StatusRequest) -> dict[str, StatusReply | str]:
    """Ask the service at an address."""
    try:
        with closing(Client(address, deadline_seconds=_DEADLINE_SECONDS)) as client:
            return {address: client.status(request)}
    except ServiceUnreachable as failed:
        why = why_silent(failed)
        return {} if why is None else {address: why}
