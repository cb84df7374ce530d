"""`lowmark audit kafka` and `lowmark audit files`: the rows of existing data that native Spark would lose."""

from __future__ import annotations

import importlib.util
import logging
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote

import typer
from lowmark.integration.audit import ROWS
from lowmark.integration.console import EscapingConsole, print_error, print_json
from lowmark.integration.errors import AuditImpossible, ExtraMissing
from lowmark.integration.process.signals import on_signals
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .common import EXIT_CODES, FAILED, INTERRUPTED, SHOWN, Commands, Debug, Json, Terminated

if TYPE_CHECKING:
    from lowmark.integration.audit.audit import Question
    from lowmark.integration.audit.event_time import TimeReader
    from lowmark.integration.audit.kafka_range import Topics
    from lowmark.watermark.replay.report import AuditReport

audit = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Replay existing rows by native Spark's rule and by lowmark's: the lost rows by split and delay, and the "
    "strategy to paste. The audit runs without Spark and a JVM, and writes nothing.",
)

Delay = Annotated[
    list[str] | None,
    typer.Option("--delay", help="A delay to try, such as '10 seconds'; as often as you like.", metavar="DURATION"),
]
Window = Annotated[
    str | None,
    typer.Option(help="Length of the query's windows: a row is late when its window is over.", metavar="DURATION"),
]
RowsPerBatch = Annotated[
    int | None,
    typer.Option(
        help="Rows of a batch: maxOffsetsPerTrigger, or whole files. Without it a hundredth of a topic's rows, 10,000 "
        "at most; of files, a file.",
        min=1,
    ),
]
Trigger = Annotated[
    str | None,
    typer.Option(
        help="How often a batch is planned, by the times at which rows, or files, were written. Without it and "
        "--rows-per-batch '10 seconds', where a topic has append times.",
        metavar="DURATION",
    ),
]
Unit = Annotated[str | None, typer.Option(help="The unit of numbers since 1970: s, ms, us or ns.")]
Format = Annotated[
    str | None, typer.Option("--format", help="How texts are written, as strptime takes it; else ISO-8601.")
]
Rows = Annotated[int, typer.Option(help="Read so many of the newest rows, about.", min=1)]
Last = Annotated[
    str | None, typer.Option(help="Read what was written in the last '2 hours', or so.", metavar="DURATION")
]
All = Annotated[bool, typer.Option("--all", help="Read all there is, however much.")]
Html = Annotated[Path | None, typer.Option("--html", help="Write a page with pictures to this file, too.")]
Limit = Annotated[int, typer.Option(help="Show so many splits, those that lose most first; 0: all.", min=0)]

log = logging.getLogger("lowmark")


@audit.command("kafka", epilog=EXIT_CODES)
def kafka(
    *,
    bootstrap_servers: Annotated[str, typer.Option(help="Brokers: HOST:PORT,HOST:PORT.")],
    topic: Annotated[
        list[str] | None, typer.Option(help="A topic; several are read as one stream.", metavar="NAME")
    ] = None,
    topic_pattern: Annotated[
        str | None, typer.Option(help="Instead: a regular expression for whole names of topics.")
    ] = None,
    event_time: Annotated[
        str | None,
        typer.Option(
            help="Where event time is: '$.paid_at' or '$.items[0].at' in a value that is JSON, 'header:paid_at' in a "
            "header; else the record's timestamp."
        ),
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(
            help="The schema of values that are Avro (.avsc) or Protobuf (what protoc --descriptor_set_out wrote); "
            "their head of a schema registry is skipped. Needs lowmark[audit]."
        ),
    ] = None,
    unit: Unit = None,
    pattern: Format = None,
    delay: Delay = None,
    window: Window = None,
    rows_per_batch: RowsPerBatch = None,
    trigger: Trigger = None,
    rows: Rows = ROWS,
    last: Last = None,
    everything: All = False,
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            help="A property of librdkafka, NAME=VALUE, such as security.protocol=SASL_SSL; as often as you like.",
            metavar="NAME=VALUE",
        ),
    ] = None,
    properties_file: Annotated[
        Path | None, typer.Option(help="The same, one NAME=VALUE a line: passwords do not belong on a command line.")
    ] = None,
    html: Html = None,
    limit: Limit = SHOWN,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Replay topics as native Spark and lowmark would read them. No Spark, no JVM, nothing is written.

    Ctrl-C ends the reading, and the answer covers the rows that were read.
    """
    _log_to_stderr(debug)
    if importlib.util.find_spec("confluent_kafka") is None:
        raise ExtraMissing("an audit of a topic", "confluent-kafka", "kafka")
    from lowmark.integration.audit.event_time import record_place
    from lowmark.integration.audit.kafka import KafkaAudit
    from lowmark.integration.audit.schema import Schema

    if not bootstrap_servers.strip(", "):  # as of a variable that a shell does not know
        raise typer.BadParameter("--bootstrap-servers: it names no broker")
    topics = _topics(topic, topic_pattern)
    described = None if schema is None else Schema.read(schema)
    place = None if event_time is None else record_place(event_time)
    question = _question(delay, window, rows_per_batch, trigger, rows, last, everything)
    reader, options = _reader(unit, pattern), _properties(properties, properties_file)
    watch = _Watch()
    with watch.watching():
        found = KafkaAudit(
            bootstrap_servers, topics, question, place, reader, options, time.time_ns() // 1_000,
            schema=described, stop=watch.stopped, progress=watch.progress,
        ).run()  # fmt: skip
    _tell(found, html=html, limit=limit, as_json=as_json, interrupted=watch.stopped())


@audit.command("files", epilog=EXIT_CODES)
def files(
    path: Annotated[str, typer.Argument(help="A file, a folder with all that is below it, or a Delta table.")],
    *,
    event_time: Annotated[
        str | None, typer.Option(help="The column with event time; '$.order.paid_at' within JSON.")
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(
            help="A column that says which split a row is of; several make one. Else topic and partition, or the file.",
            metavar="COLUMN",
        ),
    ] = None,
    unit: Unit = None,
    pattern: Format = None,
    delay: Delay = None,
    window: Window = None,
    rows_per_batch: RowsPerBatch = None,
    trigger: Trigger = None,
    rows: Rows = ROWS,
    last: Last = None,
    everything: All = False,
    html: Html = None,
    limit: Limit = SHOWN,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Replay files (parquet, CSV, JSON lines) as Spark's file source reads them: by age, one file a batch.

    Folders like day=2026-11-24 give columns, as in Spark. A Delta table is read by its log (needs lowmark[audit]).

    Ctrl-C ends the reading, and the answer covers the rows that were read.
    """
    _log_to_stderr(debug)
    from lowmark.integration.audit.files import FilesAudit

    question = _question(delay, window, rows_per_batch, trigger, rows, last, everything)
    reader = _reader(unit, pattern)
    watch = _Watch()
    with watch.watching():
        found = FilesAudit(
            _local(path), question, event_time, tuple(split or ()), reader, time.time_ns() // 1_000,
            stop=watch.stopped, progress=watch.progress,
        ).run()  # fmt: skip
    _tell(found, html=html, limit=limit, as_json=as_json, interrupted=watch.stopped())


def _log_to_stderr(debug: bool) -> None:  # noqa: FBT001  # passed on
    logging.basicConfig(level=logging.DEBUG if debug else logging.ERROR, format="lowmark: %(message)s")


def _tell(found: AuditReport, *, html: Path | None, limit: int, as_json: bool, interrupted: bool) -> None:
    from lowmark.integration.audit.page import page
    from lowmark.integration.audit.text import show

    unwritten = None
    if html is not None:
        try:
            html.write_text(page(found), encoding="utf-8")
        except OSError as failed:  # told after the report, which is printed all the same
            fact = f"cannot write {str(html)!r:.200}: {failed.strerror}"
            unwritten = AuditImpossible(fact, "name a file in a folder that is there.")
    if as_json:
        error = {} if unwritten is None else {"error": str(unwritten)}
        print_json({**found.to_json(), "interrupted": interrupted, **error})
    else:
        show(found, EscapingConsole(), limit)
    if unwritten is not None:
        print_error(str(unwritten))
        raise typer.Exit(FAILED)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _question(
    delays: list[str] | None,
    window: str | None,
    rows_per_batch: int | None,
    trigger: str | None,
    rows: int,
    last: str | None,
    everything: bool,  # noqa: FBT001  # passed on
) -> Question:
    from lowmark.integration.audit.audit import Question

    newest = None if everything or last is not None else rows
    return Question.of(delays or (), window, rows_per_batch, trigger, rows=newest, last=last, prefix="--")


def _local(text: str) -> Path:
    """The path of a file on this machine, given as a path or a URI."""
    if not text:  # as of a variable that a shell does not know: the files of the current folder would be read
        raise typer.BadParameter("the path is empty; name a file or a folder, or . for the current one")
    named = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):(/+)", text)
    if named is None:
        return Path(text)
    scheme, slashes = named[1].lower(), named[2]
    if scheme == "file":
        return Path(unquote(re.sub("^//[^/]*", "", text[len("file:") :])))  # a name may have "?" and "#"
    before, at, place = text[named.end() :].rpartition("@")
    shown = f"{slashes}{place if ':' in before else before + at + place:.200}"  # without keys of access
    spark_has = {"s3": "s3a", "s3n": "s3a"}.get(scheme, scheme)
    raise AuditImpossible(
        f"{named[1]}:{shown} is not on this machine",
        "copy some of its files into a folder here and name that folder, or audit it in a Spark session that "
        f'reaches it: lowmark.audit_table(spark.read.parquet("{spark_has}:{shown}"), split=..., event_time=..., '
        "order=...), where order is a column with offsets or with append times.",
    )


def _topics(names: list[str] | None, pattern: str | None) -> Topics:
    from lowmark.integration.audit.kafka_range import Topics
    from lowmark.sources.kit.options import PATTERN_ERRORS

    if not all(names or ()) or bool(names) == (pattern is not None):
        raise typer.BadParameter("expected either --topic, with a name, or --topic-pattern")
    try:
        re.compile(pattern or "")
    except PATTERN_ERRORS as wrong:
        raise typer.BadParameter(f"--topic-pattern {pattern!r:.100} is no regular expression: {wrong}") from None
    return Topics(tuple(dict.fromkeys(names or ())), pattern)


def _reader(unit: str | None, pattern: str | None) -> TimeReader:
    from lowmark.integration.audit.event_time import TimeReader, Unit

    try:
        return TimeReader(None if unit is None else Unit(unit), pattern or None)  # "" would crash Arrow
    except ValueError:
        raise typer.BadParameter(f"--unit: expected s, ms, us or ns, got {unit}") from None


def _properties(given: list[str] | None, file: Path | None) -> dict[str, object]:
    lines = [("--property", line) for line in given or ()]
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as failed:
            raise AuditImpossible(
                f"--properties-file {str(file)!r:.200} cannot be read: {type(failed).__name__}", "check its name."
            ) from failed
        numbered = enumerate(map(str.strip, text.splitlines()), 1)
        named = [(number, line) for number, line in numbered if line and not line.startswith("#")]
        lines = [(f"--properties-file, line {number}", line) for number, line in named] + lines
    made: dict[str, object] = {}
    for where, line in lines:
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"{where}: expected NAME=VALUE")  # the text may hold a password
        made[name.strip().removeprefix("kafka.")] = value.strip()
    return made


class _Watch:
    """A progress bar on a terminal, and signals: the first Ctrl-C ends the reading, the second the command.

    SIGTERM ends the command, too, and the bar shows the cursor of the terminal again.
    """

    def __init__(self) -> None:
        console = EscapingConsole(stderr=True)
        columns = TextColumn("reading"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=None)
        self._told = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        # Without a terminal the bar of an older rich prints an empty line at its end.
        with (
            on_signals([signal.SIGINT, signal.SIGTERM], self._interrupt),
            nullcontext() if self._bar.disable else self._bar,
        ):
            yield

    def stopped(self) -> bool:
        return self._told

    def progress(self, read: int, total: int) -> None:
        self._bar.update(self._task, completed=read, total=total)
        log.debug("read %d of about %d", read, total)

    def _interrupt(self, number: int, _frame: object) -> None:
        if number == signal.SIGTERM:
            raise Terminated
        if self._told:
            raise KeyboardInterrupt
        self._told = True
