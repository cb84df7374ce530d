"""Everything `lowmark.integration` raises on purpose.

    LowmarkError                                 (lowmark.watermark)
    ├── WrapRefused          (ValueError)        a DataFrame that cannot be wrapped, refused when the plan is built
    ├── WorkersUnfit         (RuntimeError)      the Python of Spark's workers cannot run what lowmark sends there
    ├── StreamNameTaken      (ValueError)        two streams of one service under one name
    ├── UnknownStream        (LookupError)       a name that no stream of this service has
    ├── ServiceStopped       (RuntimeError)      a call on a service that was stopped
    ├── ServiceUnreachable   (ConnectionError)   nobody answers at a service's address
    │   └── ServiceFailed                        it answers, with an error
    ├── QueryRefused         (RuntimeError)      a query that must not go on, for the reason the service gave
    ├── MetricsUnavailable   (OSError)           the Prometheus endpoint cannot listen where it should
    ├── TooManySplits        (OverflowError)     a batch held more splits than the stream's sketch can count exactly
    ├── UnreadableReport     (ValueError)        a measurement that is not in the expected format
    ├── CheckpointUnreadable (ValueError)        a checkpoint folder without usable offsets
    ├── UnreadableHeartbeat  (ValueError)        a heartbeat's offset that is not what lowmark wrote
    ├── SocketsRefused       (OSError)           the folder of the services' sockets is not private, or too long
    ├── NoService            (LookupError)       no service of this user runs on this machine
    ├── AddressRefused       (ValueError)        an address to serve at, or to call, that is wrong or not protected
    ├── TokenRefused         (OSError)           a token file that cannot be used safely
    ├── JournalRefused       (OSError)           a coordinator's journal that cannot be used, read or written
    ├── MalformedMessage     (ValueError)        bytes that are not the message they should be
    ├── CoordinatorUnreachable (ConnectionError) no coordinator answers at an address, or it refuses the caller
    ├── RefusedByCoordinator (RuntimeError)      what a coordinator refused a task for
    └── DemoImpossible       (RuntimeError)      something the demo needs is not there: Java, a broker, a package

Spark carries only the text of an error out of a Python worker, so each text stands alone: what happened,
where, what was expected, then a hint. Errors survive pickling.
"""

from __future__ import annotations

from difflib import get_close_matches

from lowmark.watermark import LowmarkError

__all__ = [
    "AddressRefused",
    "CheckpointUnreadable",
    "CoordinatorUnreachable",
    "DemoImpossible",
    "JournalRefused",
    "MalformedMessage",
    "MetricsUnavailable",
    "NoService",
    "QueryRefused",
    "RefusedByCoordinator",
    "ServiceFailed",
    "ServiceStopped",
    "ServiceUnreachable",
    "SocketsRefused",
    "StreamNameTaken",
    "TokenRefused",
    "TooManySplits",
    "UnknownStream",
    "UnreadableHeartbeat",
    "UnreadableReport",
    "WorkersUnfit",
    "WrapRefused",
]


class WrapRefused(LowmarkError, ValueError):
    """A DataFrame that `LowWatermarkService.wrap` cannot take, with the reason and what to do.

    Attributes:
        stream: name given to `wrap`.
        fact: what is wrong, one sentence without its full stop.
        hint: what to do about it.
    """

    def __init__(self, stream: str, fact: str, hint: str) -> None:
        super().__init__(stream, fact, hint)
        self.stream, self.fact, self.hint = stream, fact, hint

    def __str__(self) -> str:
        return f'stream "{self.stream}": {self.fact}. Hint: {self.hint}'


class WorkersUnfit(LowmarkError, RuntimeError):
    """The Python of Spark's workers cannot run what lowmark sends there.

    Attributes:
        where: "on this host" or on which executor.
        python: its path, as far as known.
        fact: what is wrong with it, one sentence without its full stop.
        missing: packages that it lacks, by the names under which they are installed.
    """

    def __init__(self, where: str, python: str, fact: str, missing: tuple[str, ...]) -> None:
        super().__init__(where, python, fact, missing)
        self.where, self.python, self.fact, self.missing = where, python, fact, missing

    def __str__(self) -> str:
        hint = (
            "set PYSPARK_PYTHON (or spark.pyspark.python for spark-submit) to a Python that has lowmark, before the "
            "session is made"
        )
        if "lowmark" in self.missing:
            hint += "; or call lowmark.integration.ship(spark) first"
        others = sorted(set(self.missing) - {"lowmark"})
        if others:
            hint += f"; or install there: {' '.join(others)}"
        return f"Spark's workers {self.where} run {self.python}: {self.fact}. Hint: {hint}."


class StreamNameTaken(LowmarkError, ValueError):
    """Two streams of one service were given one name; metrics and status could not tell them apart."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.stream = stream

    def __str__(self) -> str:
        return (
            f'stream "{self.stream}": this service already has a stream of that name. '
            "Hint: give each wrapped DataFrame its own name; one wrapped DataFrame may feed several queries."
        )


class UnknownStream(LowmarkError, LookupError):
    """A stream was asked for that nobody wrapped under that name.

    Attributes:
        stream: the name asked for.
        known: the names there are, sorted.
    """

    def __init__(self, stream: str, known: tuple[str, ...]) -> None:
        super().__init__(stream, known)
        self.stream, self.known = stream, known

    def __str__(self) -> str:
        near = get_close_matches(self.stream, self.known, n=1)
        names = ", ".join(f'"{name}"' for name in self.known) if self.known else "none yet"
        hint = f'did you mean "{near[0]}"?' if near else "wrap a DataFrame under that name first."
        return f'no stream "{self.stream}" in this service, which has: {names}. Hint: {hint}'


class ServiceStopped(LowmarkError, RuntimeError):
    """A service was used after `stop()` or after its `with` block ended."""

    def __init__(self, action: str) -> None:
        super().__init__(action)
        self.action = action

    def __str__(self) -> str:
        return (
            f"cannot {self.action}: this LowWatermarkService was stopped. Hint: keep the service open for as long "
            "as its queries run; queries that are still running keep the watermark they have."
        )


class ServiceUnreachable(LowmarkError, ConnectionError):
    """Nobody answered at a service's address.

    Attributes:
        address: where it was expected, such as ``unix:/run/lowmark/service.sock``.
        action: what was attempted.
        cause: what the transport said.
    """

    def __init__(self, address: str, action: str, cause: str) -> None:
        super().__init__(address, action, cause)
        self.address, self.action, self.cause = address, action, cause

    def __str__(self) -> str:
        return (
            f"cannot {self.action}: no lowmark service answers at {self.address} ({self.cause}). Hint: start the "
            "query while its LowWatermarkService is open, in the driver that created the wrapped DataFrame."
        )


class ServiceFailed(ServiceUnreachable):
    """A service answers at its address, with an error; arguments as of `ServiceUnreachable`."""

    def __str__(self) -> str:
        return (
            f"cannot {self.action}: the lowmark service at {self.address} answers with an error ({self.cause}). "
            "Hint: the driver's log says more; no row is lost, a query that ended goes on from its checkpoint."
        )


class QueryRefused(LowmarkError, RuntimeError):
    """A query that must not go on: its low watermark could not be trusted.

    Attributes:
        reason: whose, why, and what to do; as the service gave it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class MetricsUnavailable(LowmarkError, OSError):
    """The Prometheus endpoint cannot listen at its address.

    Attributes:
        host: the address as given.
        port: the port as given.
        cause: what the system said.
    """

    def __init__(self, host: str, port: int, cause: str) -> None:
        super().__init__(host, port, cause)
        self.host, self.port, self.cause = host, port, cause

    def __str__(self) -> str:
        return (
            f"cannot serve metrics on port {self.port} of {self.host}: {self.cause}. Hint: pass metrics_port=0 for any "
            "free port (service.metrics_port tells which), another metrics_port or metrics_host, or metrics_port=None "
            "for no endpoint."
        )


class TooManySplits(LowmarkError, OverflowError):
    """A batch held more distinct splits than the sketch counts exactly, so some are missing in its report.

    Attributes:
        stream: the stream's name.
        batch_id: Spark's id of the batch.
        seen: about how many splits the batch held.
        capacity: how many the sketch holds exactly.
    """

    def __init__(self, stream: str, batch_id: int, seen: int, capacity: int) -> None:
        super().__init__(stream, batch_id, seen, capacity)
        self.stream, self.batch_id, self.seen, self.capacity = stream, batch_id, seen, capacity

    def __str__(self) -> str:
        return (
            f'stream "{self.stream}", batch {self.batch_id}: about {self.seen} splits in one batch, but only '
            f"{self.capacity} can be told apart, so the low watermark cannot be trusted. Hint: pass "
            f"max_splits={max(2 * self.seen, 2 * self.capacity)} to wrap(), or choose a coarser split; "
            "the watermark stays where it was, no row was dropped because of this."
        )


class UnreadableReport(LowmarkError, ValueError):
    """A measurement came in a format that this version does not read.

    Attributes:
        where: stream, batch and metric it came from, as far as known.
        fact: what was found and expected.
    """

    def __init__(self, where: str, fact: str) -> None:
        super().__init__(where, fact)
        self.where, self.fact = where, fact

    def __str__(self) -> str:
        return (
            f"{self.where}: {self.fact}. Hint: driver and executors must run one version of lowmark and Spark "
            ">= 4.2; the watermark stays where it was."
        )


class CheckpointUnreadable(LowmarkError, ValueError):
    """A folder given as a checkpoint holds no offsets that can be used.

    Attributes:
        checkpoint: the folder as given.
        fact: what is wrong with it.
        hint: what to do about it.
    """

    def __init__(self, checkpoint: str, fact: str, hint: str) -> None:
        super().__init__(checkpoint, fact, hint)
        self.checkpoint, self.fact, self.hint = checkpoint, fact, hint

    def __str__(self) -> str:
        return f'checkpoint "{self.checkpoint}": {self.fact}. Hint: {self.hint}'


class UnreadableHeartbeat(LowmarkError, ValueError):
    """An offset of a heartbeat, from a checkpoint or a progress event, is not what was written there.

    Attributes:
        stream: the stream's name.
        field: the field at fault.
        got: what it holds.
        expected: what it should hold.
    """

    def __init__(self, stream: str, field: str, got: str, expected: str) -> None:
        super().__init__(stream, field, got, expected)
        self.stream, self.field, self.got, self.expected = stream, field, got, expected

    def __str__(self) -> str:
        return (
            f'stream "{self.stream:.200}": the offset of its heartbeat cannot be used: expected {self.expected} as '
            f"{self.field}, got {self.got}. Hint: was the checkpoint edited, or written by a later version of lowmark? "
            "Go on with that version, or with a copy of the checkpoint from before."
        )


class SocketsRefused(LowmarkError, OSError):
    """The folder in which services put their sockets cannot be used safely.

    Attributes:
        folder: its path.
        fact: what is wrong with it.
        hint: what to do about it.
    """

    def __init__(self, folder: str, fact: str, hint: str) -> None:
        super().__init__(folder, fact, hint)
        self.folder, self.fact, self.hint = folder, fact, hint

    def __str__(self) -> str:
        return f"socket folder {self.folder}: {self.fact}. Hint: {self.hint}"


class NoService(LowmarkError, LookupError):
    """Nobody of this user's services runs on this machine.

    Attributes:
        folders: where their sockets would lie.
    """

    def __init__(self, folders: tuple[str, ...]) -> None:
        super().__init__(folders)
        self.folders = folders

    def __str__(self) -> str:
        return (
            f"no lowmark service of this user runs here (looked in {', '.join(self.folders)}). Hint: a service "
            "lives in the driver of its Spark application, from LowWatermarkService(spark) to stop(); ask on that "
            "machine, or pass --connect with its service.address."
        )


class DemoImpossible(LowmarkError, RuntimeError):
    """Something that the demo needs is not there.

    Attributes:
        fact: what is missing or failed, one sentence without its full stop.
        hint: what to do about it.
    """

    def __init__(self, fact: str, hint: str) -> None:
        super().__init__(fact, hint)
        self.fact, self.hint = fact, hint

    def __str__(self) -> str:
        return f"{self.fact}. Hint: {self.hint}"


class AddressRefused(LowmarkError, ValueError):
    """An address of a coordinator that cannot be used as it was given.

    Attributes:
        address: as given.
        fact: what is wrong with it, one sentence without its full stop.
        hint: what to do about it.
    """

    def __init__(self, address: str, fact: str, hint: str) -> None:
        super().__init__(address, fact, hint)
        self.address, self.fact, self.hint = address, fact, hint

    def __str__(self) -> str:
        return f"address {self.address}: {self.fact}. Hint: {self.hint}"


class TokenRefused(LowmarkError, OSError):
    """A token file that cannot be used. What is in it is never shown.

    Attributes:
        file: its path.
        fact: what is wrong with it.
        hint: what to do about it.
    """

    def __init__(self, file: str, fact: str, hint: str) -> None:
        super().__init__(file, fact, hint)
        self.file, self.fact, self.hint = file, fact, hint

    def __str__(self) -> str:
        return f"token file {self.file}: {self.fact}. Hint: {self.hint}"


class JournalRefused(LowmarkError, OSError):
    """The file in which a coordinator keeps its state cannot be used.

    Attributes:
        journal: its path.
        fact: what is wrong with it.
        hint: what to do about it.
    """

    def __init__(self, journal: str, fact: str, hint: str) -> None:
        super().__init__(journal, fact, hint)
        self.journal, self.fact, self.hint = journal, fact, hint

    def __str__(self) -> str:
        return f"journal {self.journal}: {self.fact}. Hint: {self.hint}"


class MalformedMessage(LowmarkError, ValueError):
    """Bytes that are not the message they should be.

    Attributes:
        message: the name of the message.
        fact: which field is at fault, and why.
    """

    def __init__(self, message: str, fact: str) -> None:
        super().__init__(message, fact)
        self.message, self.fact = message, fact

    def __str__(self) -> str:
        return (
            f"{self.message}: {self.fact}; nothing of it was counted. Hint: both ends must run one version of lowmark."
        )


class CoordinatorUnreachable(LowmarkError, ConnectionError):
    """No coordinator answered at its address, or it did not let the caller in.

    Attributes:
        address: where it was expected.
        action: what was attempted.
        cause: what the transport said.
    """

    def __init__(self, address: str, action: str, cause: str) -> None:
        super().__init__(address, action, cause)
        self.address, self.action, self.cause = address, action, cause

    def __str__(self) -> str:
        return (
            f"cannot {self.action}: no coordinator answers at {self.address} ({self.cause}). Hint: start one with "
            "`lowmark serve`; over TCP both ends need the same token, and the caller the coordinator's certificate."
        )


class RefusedByCoordinator(LowmarkError, RuntimeError):
    """A coordinator refused what a task said, and the task was given up.

    Attributes:
        task: who said it.
        error: the name of the coordinator's error, such as ``DisagreeingGroup``.
        text: its sentence.
    """

    def __init__(self, task: str, error: str, text: str) -> None:
        super().__init__(task, error, text)
        self.task, self.error, self.text = task, error, text

    def __str__(self) -> str:
        return f"task {self.task} was refused by its coordinator ({self.error}): {self.text}"
