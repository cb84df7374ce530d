"""`lowmark idle`, `lowmark active` and `lowmark set`: what a person says of a running stream, and takes back.

Only the service's own socket takes such a request, in a folder that only its user can enter.
"""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import msgspec
import typer
from lowmark.integration.console import print_json, print_lines
from lowmark.integration.errors import ByHandRefused
from lowmark.integration.process.user import user
from lowmark.watermark import duration_us

from .asking import ask
from .common import Connect, Debug, Json

_Stream = Annotated[str, typer.Argument(help="The stream's name.")]
_Splits = Annotated[list[str], typer.Argument(help="Names of splits, as `lowmark status` shows them.")]


def idle(
    name: _Stream,
    splits: _Splits,
    *,
    how_long: Annotated[str | None, typer.Option("--for", help='How long, such as 1h or "90 minutes".')] = None,
    until_it_speaks: Annotated[
        bool, typer.Option("--until-it-speaks", help="Until the split's next row instead.")
    ] = False,
    connect: Connect = None,
    as_json: Json = False,
    debug: Debug = False,  # noqa: ARG001  # read by Commands
) -> None:
    """Leave splits out of the low watermark by hand: known to be dead, and an hour has to close now.

    Rows that the split sends below the low watermark are late. The mark is written with the offset of the next
    batch, outlives restarts and kills, and ends by itself, or with `lowmark active`.
    """
    if (how_long is None) is not until_it_speaks:
        raise typer.BadParameter("pass either --for or --until-it-speaks, so that the mark ends by itself.")
    for_us = None if how_long is None else duration_us(how_long, what="--for")
    _mark(name, splits, connect, idle=True, for_us=for_us, as_json=as_json)


def active(
    name: _Stream,
    splits: _Splits,
    *,
    connect: Connect = None,
    as_json: Json = False,
    debug: Debug = False,  # noqa: ARG001  # read by Commands
) -> None:
    """Take `lowmark idle` back: the low watermark waits for the splits again."""
    _mark(name, splits, connect, idle=False, for_us=None, as_json=as_json)


def set_(
    name: _Stream,
    *,
    delay: Annotated[str | None, typer.Option("--delay", help="How late a row may be, such as 30s.")] = None,
    idleness: Annotated[
        str | None, typer.Option("--idleness", help="How long a split may be silent, such as 5m, or off.")
    ] = None,
    code: Annotated[bool, typer.Option("--code", help="Take back what was set: the code counts again.")] = False,
    connect: Connect = None,
    as_json: Json = False,
    debug: Debug = False,  # noqa: ARG001  # read by Commands
) -> None:
    """Set delay and idleness of a running stream, until the next start of its query.

    A smaller delay drops rows for good, and the code still says another one: change the code, too. For a larger delay
    the low watermark stands until event time has caught up. After the next start the code counts.
    """
    from lowmark.integration.transport.driver_rpc import Client, SetRequest

    if code is (delay is not None or idleness is not None):
        raise typer.BadParameter("pass --delay, --idleness or both; or --code alone, which takes them back.")
    request = SetRequest.of(name, delay=delay, idleness=idleness, code=code)
    address = _service_with(name, connect)
    with closing(Client(address)) as client:
        said = client.set(request)
    if as_json:
        queries = [msgspec.structs.asdict(each) for each in said]
        print_json({"address": address, "stream": name, "queries": queries})
        return
    for each in said:
        now = "; ".join(each.in_force) or "what the code says"
        print_lines(f"lowmark: from the next batch on {now} (query {each.query})")


def _mark(name: str, splits: list[str], connect: str | None, *, idle: bool, for_us: int | None, as_json: bool) -> None:
    from lowmark.integration.transport.driver_rpc import Client, MarkRequest

    address = _service_with(name, connect)
    with closing(Client(address)) as client:
        said = client.mark(MarkRequest(name, splits, user(), idle, for_us))
    if as_json:
        marked = [msgspec.structs.asdict(each) for each in said]
        print_json({"address": address, "stream": name, "marked": marked})
        return
    for each in said:
        now = "is not left out by hand" if each.why is None else f"is {each.why}"  # it may be idle by itself
        print_lines(f"lowmark: from the next batch on split {each.split} {now} (query {each.query})")


def _service_with(stream: str, connect: str | None) -> str:
    """Return the address of the only service that has the stream.

    Raises:
        ByHandRefused: no service or several have the stream, or the service refuses. Others: see `ask`.
    """
    services, _ = ask(stream, connect, limit=0, ended=True)
    if not services:
        raise ByHandRefused(
            stream, "a coordinator knows it, and no service here has it", "call it on the machine of its driver."
        )
    running = [each for each in services if any(not run["run"]["ended"] for run in each[1].streams)]
    addresses = [address for address, _ in running or services[:1]]  # a service without a query refuses with a hint
    if len(addresses) > 1:
        fact = f"{len(addresses)} services have a stream of that name: {', '.join(addresses)}"
        raise ByHandRefused(stream, fact, "pass --connect with one of them.")
    return addresses[0]
