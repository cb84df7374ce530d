"""The page's view of services: of the service in its own process, or of all services of this user."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from lowmark.integration.errors import ServiceUnreachable
from lowmark.integration.process import sockets
from lowmark.integration.transport.driver_rpc import Client, StatusReply, StatusRequest, why_silent

_DEADLINE_SECONDS = 5.0
_AT_ONCE = 16


class Look(Protocol):
    """Asks services. Called from threads, one at a time."""

    def __call__(self, request: StatusRequest) -> Mapping[str, StatusReply | str]:
        """Return the answers by address, or why a service gives none. A service that has ended is missing."""
        ...


class OneService:
    """The service in this process.

    Args:
        address: address of its socket, as `lowmark status` shows it.
        status: answers as over the socket.
    """

    def __init__(self, address: str, status: Callable[[StatusRequest], StatusReply]) -> None:
        self._address, self._status = address, status

    def __call__(self, request: StatusRequest) -> dict[str, StatusReply]:
        """Ask the service. Raises the errors of `status`: the service is stopping, or busy."""
        return {self._address: self._status(request)}


class AllServices:
    """The services of this user, found as by `lowmark status`; searched again with every look.

    Args:
        connect: a single address instead, or None.
    """

    def __init__(self, connect: str | None = None) -> None:
        self._connect = connect

    def __call__(self, request: StatusRequest) -> dict[str, StatusReply | str]:
        """Ask all services. Raises `SocketsRefused` if other users may enter the folder of the sockets."""
        addresses = [self._connect] if self._connect is not None else sockets.find_addresses()
        if not addresses:
            return {}
        with ThreadPoolExecutor(
            min(len(addresses), _AT_ONCE), "lowmark-look"
        ) as pool:  # a hanging service delays no other
            replies = pool.map(lambda address: _ask(address, request), addresses)
            return {at: reply for at, reply in zip(addresses, replies, strict=True) if reply is not None}


def _ask(address: str, request: StatusRequest) -> StatusReply | str | None:
    client = Client(address, deadline_seconds=_DEADLINE_SECONDS)
    try:
        return client.status(request)
    except ServiceUnreachable as failed:
        return why_silent(failed)
    finally:
        client.close()
