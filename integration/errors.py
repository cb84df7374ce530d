"""The errors of `lowmark.integration`.

Spark carries only the text of an error out of a Python worker, so each text is complete: what happened, where,
the expectation, and a hint. Errors survive pickling.

A `fact` is the fault, one sentence without its full stop, a `hint` the remedy, a `cause` the message of the system
below. A `stream` is given by its name, a place (folder, address, host, port) as the user gave it.

One file, because users look for an error in one list.
"""

from __future__ import annotations

from difflib import get_close_matches

from lowmark.watermark import LowmarkError
from lowmark.watermark.printable import some_of


class ServiceRefused(LowmarkError, ValueError):
    """Arguments that no service can be made with."""

    fact: str
    hint: str
    _fact = "{fact}"


class SessionUnfit(LowmarkError, TypeError):
    """An unusable session of Spark, or an object that is no session."""

    needs: str  # the class or function, and its need
    got: str  # the given object
    hint: str
    _fact = "{needs}, got {got}"


class WrapRefused(LowmarkError, ValueError):
    """A DataFrame that `LowWatermarkService.wrap` cannot take, with the reason and the remedy."""

    stream: str  # name given to `wrap`
    fact: str
    hint: str
    _fact = 'stream "{stream}": {fact}'


class WorkersUnfit(LowmarkError, RuntimeError):
    """The Python of Spark's workers cannot run the code that lowmark sends there."""

    where: str  # "on this host" or on which executor
    python: str  # path of the Python, as far as known
    fact: str
    missing: tuple[str, ...]  # missing packages, by the names under which they are installed
    _fact = "Spark's workers {where} run {python}: {fact}"
    _hint = (
        "set PYSPARK_PYTHON (or spark.pyspark.python for spark-submit) to a Python that has lowmark, before the "
        "session is made{_else}."
    )

    @property
    def _else(self) -> str:
        others = sorted(set(self.missing) - {"lowmark"})
        shipped = "; or call lowmark.ship(spark) first" if "lowmark" in self.missing else ""
        return shipped + (f"; or install there: {' '.join(others)}" if others else "")


class StreamNameTaken(LowmarkError, ValueError):
    """Two streams of one service have the same name, so metrics and status could not tell them apart."""

    stream: str
    queries: tuple[str, ...] = ()  # queries that run on the stream of that name
    _fact = 'stream "{stream}": this service already has a stream of that name{_where}'
    _hint = (
        "give each wrapped DataFrame its own name; one wrapped DataFrame may feed several queries. A name is free "
        "again when its queries have ended."
    )

    @property
    def _where(self) -> str:
        return f", which {', '.join(self.queries)} reads" if self.queries else ""


class StreamRunning(LowmarkError, RuntimeError):
    """A stream was released while queries read it."""

    stream: str
    queries: tuple[str, ...]  # names, or else ids, of the queries
    _fact = 'stream "{stream}": {_running} on it'
    _hint = "stop them first: query.stop()."

    @property
    def _running(self) -> str:
        return f"query {self.queries[0]} runs" if len(self.queries) == 1 else f"queries {', '.join(self.queries)} run"


class ServiceDiffers(LowmarkError, ValueError):
    """A session already has a running service with other arguments."""

    differing: tuple[str, ...]  # arguments of the running service, with those that were passed here
    _fact = "this session has a running LowWatermarkService with {_with}"
    _hint = (
        "stop it first (service.stop()), or pass beside=True for one more; with the same arguments you get this one."
    )

    @property
    def _with(self) -> str:
        return ", ".join(self.differing)


class UnknownStream(LowmarkError, LookupError):
    """No stream was wrapped or read under the requested name."""

    stream: str  # the requested name
    known: tuple[str, ...]  # the existing names, sorted
    _fact = 'no stream "{stream}"; there is {_names}'
    _hint = "{_next}"

    @property
    def _names(self) -> str:
        return some_of([f'"{name}"' for name in self.known]) if self.known else "none yet"

    @property
    def _next(self) -> str:
        near = get_close_matches(str(self.stream), self.known, n=1)
        return f'did you mean "{near[0]}"?' if near else "wrap or read a stream under that name, and start its query."


class NotComplete(LowmarkError, TimeoutError):
    """A time that the sinks of a stream have not passed when the wait is over."""

    stream: str
    time: str  # the time, for people
    why: str  # what holds the low watermark
    _fact = 'stream "{stream}" has not passed {time}: {why}'
    _hint = "wait longer; what is said above would move it."


class ByHandRefused(LowmarkError, ValueError):
    """A split that no person can mark, or a strategy that no person can set, in a running stream; with the remedy."""

    stream: str
    fact: str
    hint: str
    _fact = 'stream "{stream}": {fact}'


class ServiceStopped(LowmarkError, RuntimeError):
    """A service was used after `stop()` or after its `with` block ended."""

    action: str
    _fact = "cannot {action}: this LowWatermarkService was stopped"
    _hint = (
        "keep the service open for as long as its queries run; queries that are still running keep the watermark they "
        "have."
    )


class ServiceUnreachable(LowmarkError, ConnectionError):
    """No answer came from a service's address."""

    address: str  # the address, such as ``unix:/run/lowmark/service.sock``
    action: str  # the attempted action
    cause: str
    _fact = "cannot {action}: no lowmark service answers at {address} ({cause})"
    _hint = "{_next}"

    @property
    def _next(self) -> str:
        if self.action == "ask for the status":  # a person does, not a query
            return (
                "a service answers on its driver's machine, from LowWatermarkService(spark) to stop(); without "
                "--connect all of yours are looked for."
            )
        return (
            "start the query while its LowWatermarkService is open, in the driver that created the wrapped DataFrame."
        )


class ServiceFailed(ServiceUnreachable):
    """A service answers with an error."""

    _fact = "cannot {action}: the lowmark service at {address} answers with an error ({cause})"
    _hint = "the driver's log says more; no row is lost, a query that ended goes on from its checkpoint."


class QueryRefused(LowmarkError, RuntimeError):
    """A query that must not go on: its low watermark could not be trusted."""

    reason: str  # stream, reason and remedy, as the service gave them
    _fact = "{reason}"
    _hint = ""


class MetricsUnavailable(LowmarkError, OSError):
    """The Prometheus endpoint cannot listen at its address."""

    host: str
    port: int
    cause: str
    _fact = "cannot serve metrics on port {port} of {host}: {cause}"
    _hint = (
        "pass metrics_port=0 for any free port (service.metrics_port tells which), another metrics_port or "
        "metrics_host, or metrics_port=None for no endpoint."
    )


class PageUnavailable(LowmarkError, OSError):
    """The page cannot be served."""

    port: int
    cause: str
    _fact = "cannot serve the page on port {port} of 127.0.0.1: {cause}"
    _hint = (
        "pass page_port=0 (on the command line --port 0) for any free port, the number of another port, or "
        "page_port=None for no page."
    )


class ExtraMissing(LowmarkError, ImportError):
    """The packages of a requested part of lowmark are not installed."""

    what: str  # the part
    package: str  # the missing package
    extra: str  # the extra that installs it
    _fact = "{what} needs the package {package}, which is not installed"
    _hint = 'pip install "lowmark[{extra}]".'


class TooManySplits(LowmarkError, OverflowError):
    """A batch held more distinct splits than are told apart, so some may be missing in its report."""

    stream: str
    batch_id: int  # Spark's id of the batch
    seen: int  # approximate number of splits in the batch
    capacity: int  # number of splits that are told apart
    _fact = (
        'stream "{stream}", batch {batch_id}: about {seen} splits in one batch, but only {capacity} can be told apart, '
        "so the low watermark cannot be trusted"
    )
    _hint = (
        "pass max_splits={_enough} to wrap(), or choose a coarser split; the watermark stays where it was, no row was "
        "dropped because of this."
    )

    @property
    def _enough(self) -> int:
        return 2 * max(self.seen, self.capacity)


class NoEventTime(LowmarkError, TypeError):
    """A timestamp assigner returned a value that is no time."""

    stream: str
    returned: str  # the returned value (``repr``, cut)
    row: str  # the row (``repr``, cut)
    _fact = 'stream "{stream}": the timestamp assigner returned {returned} for the row {row}'
    _hint = "return microseconds since the epoch as an int, an aware datetime, or None for a row without one."


class LateRowsNotWritten(LowmarkError, OSError):
    """The rows of a batch that came too late could not be written; the batch fails, so they are not lost."""

    stream: str
    batch_id: str  # number of the batch
    folder: str  # the folder as given
    fact: str
    _fact = 'stream "{stream}": batch {batch_id} could not write its late rows to "{folder}" ({fact})'
    _hint = (
        "let Spark's executors write there, and start the query again: it begins with this batch, so no row is lost."
    )


class UnreadableReport(LowmarkError, ValueError):
    """A measurement came in a format that this version does not read."""

    where: str  # its stream, batch and metric, as far as known
    fact: str  # the found and the expected content
    _fact = "{where}: {fact}"
    _hint = "driver and executors must run one version of lowmark and of Spark; the watermark stays where it was."


class CheckpointUnreadable(LowmarkError, ValueError):
    """A folder given as a checkpoint holds no offsets that can be used."""

    checkpoint: str
    fact: str
    hint: str
    _fact = 'checkpoint "{checkpoint}": {fact}'


class CheckpointUnwritable(LowmarkError, OSError):
    """A checkpoint could not be changed; an unfinished change continues when the checkpoint is writable again."""

    checkpoint: str
    name: str  # the file, relative to the checkpoint
    cause: str
    _fact = 'checkpoint "{checkpoint}": {name} cannot be written ({cause})'
    _hint = (
        "see that this user may write there, and that the disk has room. `lowmark adopt` and `lowmark leave` go on "
        "where they stopped when the same command runs again."
    )


class SuccessFileNotWritten(LowmarkError, OSError):
    """A partition could not be marked as done with `_SUCCESS`; the mark is tried again."""

    stream: str
    partition: str  # its folder, relative to the table
    table: str  # the folder as given
    cause: str
    _fact = 'stream "{stream}": _SUCCESS of partition {partition} cannot be written into "{table}" ({cause})'
    _hint = (
        "see that the folder is there, that Spark reaches it, that the driver's user may write into it, and that the "
        "disk has room. Nothing is lost: the mark is tried again by itself."
    )


class UnknownFormat(LowmarkError, ValueError):
    """An entry of a checkpoint's offset log is not of a format that is known here."""

    found: str  # the found content, as the rest of a sentence
    _fact = "{found}"
    _hint = ""


class AdoptionRefused(LowmarkError, ValueError):
    """A checkpoint that `lowmark adopt` or `lowmark leave` does not touch; the checkpoint stays unchanged."""

    checkpoint: str
    fact: str
    hint: str
    _fact = 'checkpoint "{checkpoint}": {fact}'


class UnreadableHeartbeat(LowmarkError, ValueError):
    """An offset of a heartbeat, from a checkpoint or a progress event, is not in lowmark's format."""

    stream: str
    field: str  # the field at fault
    got: str  # its content
    expected: str  # the expected content
    _fact = (
        'stream "{stream:.200}": the offset of its heartbeat cannot be used: expected {expected} as {field}, got {got}'
    )
    _hint = (
        "was the checkpoint edited, or written by another version of lowmark? Go on with that version, or with a copy "
        "of the checkpoint from before."
    )


class FolderRefused(LowmarkError, OSError):
    """A folder that files should go into cannot be written to."""

    folder: str  # as given
    cause: str
    _fact = "cannot write into {folder}: {cause}"
    _hint = "name another folder, one that you may write to."


class OutputLost(LowmarkError, OSError):
    """The output of a command cannot be written."""

    cause: str
    _fact = "the output cannot be written: {cause}"
    _hint = "see that its disk has room."


class SocketsRefused(LowmarkError, OSError):
    """The folder in which services put their sockets cannot be used safely."""

    folder: str  # its path
    fact: str
    hint: str
    _fact = "socket folder {folder}: {fact}"


class NoService(LowmarkError, LookupError):
    """No service of this user runs on this machine."""

    folders: tuple[str, ...]  # the searched folders
    _fact = "no lowmark service of this user runs here (looked in {_looked_in})"
    _hint = (
        "a service lives in the driver of its Spark application, from LowWatermarkService(spark) to stop(); ask on "
        "that machine, or pass --connect with its service.address."
    )

    @property
    def _looked_in(self) -> str:
        return ", ".join(self.folders)


class DemoImpossible(LowmarkError, RuntimeError):
    """A requirement of the demo is missing."""

    fact: str
    hint: str
    _fact = "{fact}"


class AddressRefused(LowmarkError, ValueError):
    """An address of a coordinator that cannot be used as it was given."""

    address: str  # as given
    fact: str
    hint: str
    _fact = "address {address}: {fact}"


class TokenRefused(LowmarkError, OSError):
    """An unusable token file. Its content is never shown."""

    file: str  # its path
    fact: str
    hint: str
    _fact = "token file {file}: {fact}"


class JournalRefused(LowmarkError, OSError):
    """The file in which a coordinator keeps its state cannot be used."""

    journal: str  # its path
    fact: str
    hint: str
    _fact = "journal {journal}: {fact}"


class CoordinatorFailed(LowmarkError, RuntimeError):
    """A coordinator ends because an error may have left its state half changed; the error is the `__cause__`."""

    cause: str  # type and text of the error
    most: int  # how often a coordinator begins again from its journal
    window: str  # the time in which these attempts count
    _fact = (
        "the coordinator ends, because an error may have left its state half changed (it begins again from "
        "its journal {most} times within {window} at most): {cause}"
    )
    _hint = (
        "start it again: it goes on from its journal. If the error comes again, report it with its stack, which is in "
        "the log."
    )
    _cause_knows_best = True


class MalformedMessage(LowmarkError, ValueError):
    """Bytes that are not the expected message."""

    message: str  # the name of the message
    fact: str  # the field at fault, and the reason
    _fact = "{message}: {fact}; nothing of it was counted"
    _hint = "both ends must run one version of lowmark."


class CoordinatorUnreachable(LowmarkError, ConnectionError):
    """No coordinator answered at the address, or the caller has no access."""

    address: str
    action: str  # the attempted action
    cause: str
    _fact = "cannot {action}: no coordinator answers at {address} ({cause})"
    _hint = (
        "start one with `lowmark serve`; over TCP both ends need the same token, and the caller the coordinator's "
        "certificate."
    )


class RefusedByCoordinator(LowmarkError, RuntimeError):
    """A coordinator refused a statement of a task, and the task was given up."""

    task: str
    error: str  # the name of the coordinator's error, such as ``DisagreeingGroup``
    text: str  # the text of that error
    _fact = "task {task} was refused by its coordinator ({error}): {text}"
    _hint = ""


class AuditImpossible(LowmarkError, RuntimeError):
    """An audit is impossible, with the reason and the remedy."""

    fact: str
    hint: str
    _fact = "{fact}"
