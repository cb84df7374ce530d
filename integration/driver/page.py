"""The page of a service, where its packages are installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lowmark.integration.errors import ExtraMissing
from lowmark.integration.transport.driver_rpc import StatusReply, StatusRequest

if TYPE_CHECKING:
    from lowmark.integration.page.endpoint import PageServer

__all__ = ["serve"]


def serve(address: str, status: Callable[[StatusRequest], StatusReply], *, port: int) -> PageServer:
    """Serve the page of one service.

    Raises:
        ExtraMissing: `lowmark[page]` is not installed.
        PageUnavailable: it cannot listen there.
        ServiceRefused: the port is no port.
    """
    try:
        from lowmark.integration.page.endpoint import PageServer
    except ModuleNotFoundError as missing:
        raise ExtraMissing("the page", str(missing.name), "page") from missing
    from lowmark.integration.page.look import OneService

    return PageServer(OneService(address, status), port=port)
