"""`lowmark page`: the streams of all services of this user, live in a browser."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from lowmark.integration.console import print_json, print_lines

from .common import Connect, Debug, Json, until_ended


def page(
    *,
    port: Annotated[int, typer.Option(help="Where to listen on 127.0.0.1; 0: any free port.", min=0, max=65_535)] = 0,
    connect: Connect = None,
    as_json: Json = False,
    debug: Debug = False,  # noqa: ARG001  # read by Commands
) -> None:
    """Show the streams of all services of this user in a browser, live, until Ctrl-C or SIGTERM.

    Services that start later appear by themselves. Only this machine can open the page, and the page changes nothing.
    """
    from lowmark.integration.page.app import PageServer
    from lowmark.integration.page.look import all_services, one_service

    server = PageServer(all_services if connect is None else lambda asked, _: one_service(connect, asked), port=port)
    with until_ended() as ended:
        try:
            if as_json:
                print_json({"address": server.address, "pid": os.getpid()}, indent=None)
            else:
                print_lines(f"lowmark: the page is at {server.address} until Ctrl-C")
            sys.stdout.flush()
            ended(None)
        finally:
            server.stop()
