"""`lowmark demo`: the same rows through native Spark and through lowmark."""

from __future__ import annotations

import datetime as dt
import logging
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from enum import Enum
from functools import partial
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from lowmark.integration.console import EscapingConsole, print_error, print_json
from lowmark.integration.process.signals import on_signals

from .common import NOTHING, Debug, Json, Terminated, until_ended

if TYPE_CHECKING:
    from lowmark.integration.demo.feed import Feed
    from lowmark.sources.generator import StreamScript

Seed = Annotated[int, typer.Option(help="Chooses the rows, and who is behind, silent or stray.")]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        help="Serve Prometheus metrics on 127.0.0.1 while it runs; 0 for any free port. The address is on stderr.",
        min=0,
        max=65_535,
    ),
]
Keep = Annotated[
    float,
    typer.Option(
        help="Keep queries and service running for so many seconds afterwards; Ctrl-C or SIGTERM ends that.", min=0
    ),
]


class SourceKind(str, Enum):
    """The source of the demo's rows."""

    GENERATOR = "generator"
    KAFKA = "kafka"


def demo(
    *,
    seed: Seed = 42,
    source: Annotated[
        SourceKind, typer.Option(help="Make the rows in Spark itself, or read them from Kafka.")
    ] = SourceKind.GENERATOR,
    bootstrap: Annotated[str | None, typer.Option(help="A Kafka broker, HOST:PORT (with --source kafka).")] = None,
    topic: Annotated[
        str | None, typer.Option(help="A topic to create, fill and keep; without it, a new one that is deleted again.")
    ] = None,
    jars: Annotated[
        str | None,
        typer.Option(help="Jars of Spark's Kafka connector, separated by commas; without it, Spark fetches them."),
    ] = None,
    metrics_port: MetricsPort = None,
    keep: Keep = 0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run the same rows through native Spark and through lowmark, and compare.

    Eight splits: one is ten minutes behind, one falls silent, one has a row dated a year ahead. No server is needed.
    """
    feed_of, settings = _feed(source, {"--bootstrap": bootstrap, "--topic": topic, "--jars": jars})
    compare(feed_of, settings, seed=seed, metrics_port=metrics_port, keep=keep, as_json=as_json, debug=debug)


def compare(
    feed_of: Callable[[StreamScript, int], AbstractContextManager[Feed]],
    settings: dict[str, str],
    *,
    seed: int,
    metrics_port: int | None,
    keep: float,
    as_json: bool,
    debug: bool,
) -> None:
    """Run the demo on the rows of a feed, and show what came of it; for the other arguments, see the options of `demo`.

    Raises:
        typer.Exit: lowmark dropped a row.
        LowmarkError: it could not be run.
    """
    from lowmark.integration.demo.comparison import both_queries
    from lowmark.integration.demo.feed import demo_script, yesterday_noon_us
    from lowmark.integration.demo.view import DemoBars, show
    from lowmark.integration.driver.service import LowWatermarkService
    from lowmark.integration.spark.session import local_session

    script = demo_script(seed, start_us=yesterday_noon_us(dt.datetime.now(dt.timezone.utc)))
    bars = DemoBars(EscapingConsole(stderr=True))
    # A filter of the root logger applies only to its direct records: here py4j's traceback of an interrupted call.
    logging.getLogger().addFilter(lambda record: "KeyboardInterrupt while sending command" not in record.getMessage())
    with (
        on_signals([signal.SIGTERM], _unwind),
        bars,
        feed_of(script, seed) as feed,
        local_session("lowmark demo", settings=settings, quiet=not debug) as (spark, folder),
        LowWatermarkService(spark, metrics_port=metrics_port) as service,
    ):
        if service.metrics_port is not None:
            at = f"http://127.0.0.1:{service.metrics_port}/metrics"
            # Printed through the console of the bars, so the line appears above them.
            bars.console.print(f"lowmark: metrics at {at}", highlight=False, soft_wrap=True)
        with both_queries(spark, service, folder, feed, watch=bars.watch) as result:
            bars.stop()
            if as_json:
                print_json(result.to_json())
            else:
                show(result, EscapingConsole())
            sys.stdout.flush()
            if keep:
                _keep(keep)
    if result.lowmark.total.rows_dropped:
        raise typer.Exit(NOTHING)


def _unwind(_number: int, _frame: object) -> NoReturn:
    """End in good order: remove the topic and the folder, and stop Spark's JVM."""
    raise Terminated


def _keep(seconds: float) -> None:
    with suppress(KeyboardInterrupt), until_ended() as ended:  # a signal ends the wait alone: the result is shown
        # Printed after the handler is set, because a reader of this line may send the signal at once.
        print_error(f"running for {seconds:g} more seconds, Ctrl-C ends it; try `lowmark status` in another terminal")
        ended(min(seconds, TIMEOUT_MAX))


def _feed(source: SourceKind, options: Mapping[str, str | None]) -> tuple[Any, dict[str, str]]:
    """Return the feed's factory and the settings of Spark that it needs."""
    if source is SourceKind.GENERATOR:
        from lowmark.integration.demo.feed import GeneratorFeed

        for option, value in options.items():
            if value is not None:
                raise typer.BadParameter(f"{option} is for --source kafka")
        return lambda script, seed: nullcontext(GeneratorFeed(script, seed)), {}
    from lowmark.integration.demo.kafka_feed import KafkaFeed
    from lowmark.integration.spark.versions import kafka_connector

    if options["--bootstrap"] is None:
        raise typer.BadParameter("--source kafka needs --bootstrap HOST:PORT")
    jars = options["--jars"]
    settings = {"spark.jars": jars} if jars else {"spark.jars.packages": kafka_connector()}
    return partial(KafkaFeed, bootstrap=options["--bootstrap"], topic=options["--topic"]), settings
