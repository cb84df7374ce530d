"""Where the page looks: at the service it stands in, or at all services of this user."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from lowmark.integration.errors import ServiceUnreachable
from lowmark.integration.process import sockets
from lowmark.integration.transport.driver_rpc import Client, StatusReply, StatusRequest

__all__ = ["AllServices", "Look", "OneService"]

_DEADLINE_SECONDS = 5.0
_AT_ONCE = 16


class Look(Protocol):
    """Asks services. Called from threads, one at a time."""

    def __call__(self, request: StatusRequest) -> dict[str, StatusReply]:
        """Return the answers by address. A service that does not answer is missing."""
        ...


class OneService:
    """The service that this process has.

    Args:
        address: its socket's, by which `lowmark status` knows it, too.
        status: answers as it does over the socket.
    """

    def __init__(self, address: str, status: Callable[[StatusRequest], StatusReply]) -> None:
        self._address, self._status = address, status

    def __call__(self, request: StatusRequest) -> dict[str, StatusReply]:
        """Ask it. Raises what its status raises: it is stopping, or busy."""
        return {self._address: self._status(request)}


class AllServices:
    """The services of this user, found as `lowmark status` finds them; new ones with every look.

    Args:
        connect: one address alone, or None.
    """

    def __init__(self, connect: str | None = None) -> None:
        self._connect = connect

    def __call__(self, request: StatusRequest) -> dict[str, StatusReply]:
        """Ask them all.

        Raises:
            SocketsRefused: others may enter the folder of their sockets.
        """
        addresses = [self._connect] if self._connect is not None else sockets.find_addresses()
        if not addresses:
            return {}
        with ThreadPoolExecutor(
            min(len(addresses), _AT_ONCE), "lowmark-look"
        ) as pool:  # one that hangs delays no other
            replies = pool.map(lambda address: _ask(address, request), addresses)
            return {at: reply for at, reply in zip(addresses, replies, strict=True) if reply is not None}


def _ask(address: str, request: StatusRequest) -> StatusReply | None:
    client = Client(address, deadline_seconds=_DEADLINE_SECONDS)
    try:
        return client.status(request)
    except ServiceUnreachable:
        return None  # it has ended since, is a coordinator, or is too old for what is asked: it shows as missing
    finally:
        client.close()
