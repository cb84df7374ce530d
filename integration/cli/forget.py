"""`lowmark forget`: tells a coordinator that a query of a job is gone for good."""

from __future__ import annotations

from typing import Annotated

import typer
from lowmark.integration.console import print_json, print_lines
from lowmark.watermark import TaskId

from .common import Debug, Json, TlsCa, TlsCert, TlsKey, TokenFile


def forget(
    job: Annotated[str, typer.Argument(help="The job, as its applications name it.")],
    stream: Annotated[str, typer.Argument(help="The stream's name.")],
    query: Annotated[str, typer.Argument(help="The query's id, as `lowmark status --coordinator` shows it.")],
    *,
    coordinator: Annotated[str, typer.Option(help="The coordinator's address, unix:/... or HOST:PORT.")],
    tls_ca: TlsCa = None,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    as_json: Json = False,
    debug: Debug = False,  # noqa: ARG001  # read by Commands
) -> None:
    """Let the other queries of a job go on without an absent query that will not come back.

    While fewer queries of a job run than job_queries, the absent ones hold its low watermark. If a forgotten query
    comes back, its rows below the low watermark are late. A running query cannot be forgotten.
    """
    from lowmark.integration.coordinator.access import Caller
    from lowmark.integration.coordinator.ask import forget_task

    forget_task(Caller(coordinator, tls_ca, token_file, tls_cert, tls_key), TaskId(job, stream, query))
    if as_json:
        print_json({"coordinator": coordinator, "forgotten": {"job": job, "stream": stream, "query": query}})
    else:
        print_lines(f"lowmark: nobody waits for query {query} of job {job} on stream {stream} any more")
