"""The wire between processes: typed messages, the server in the driver, the client everywhere else.

gRPC carries the bytes, msgspec validates them; nothing is ever unpickled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Generic, TypeVar

import grpc
import msgspec
from lowmark.integration.errors import (
    ByHandRefused,
    MalformedMessage,
    ServiceFailed,
    ServiceStopped,
    ServiceUnreachable,
    SocketsRefused,
)
from lowmark.integration.process.codec import Answer, Codec, Method, Question, Row
from lowmark.integration.process.sockets import UNIX, is_full, is_service, target
from lowmark.integration.process.user import user
from lowmark.sources.planning.peer import Guidance, Planned
from lowmark.sources.worker import WorkerDied
from lowmark.watermark import LowmarkError, duration_us

log = logging.getLogger("lowmark")

_SERVICE = "lowmark.v1.Driver"
# A stream of 100,000 splits has a status of about 40 MB; the default of 4 MB ends at 10,000.
_OPTIONS = [("grpc.max_receive_message_length", 256 << 20), ("grpc.max_send_message_length", 256 << 20)]
# Connections are not shared within the process, and neither is the backoff after failures.
_CLIENT_OPTIONS = [*_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]

_THREADS = 32  # begun when needed; readers whose checkpoints hang leave some for others

_MOST_DETAIL_BYTES = 2_500

_NOT_THERE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


class HeartbeatRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A heartbeat reader's question before Spark plans a batch, and when time alone may have changed the answer."""

    stream_id: str
    token: str  # the reader's own, new in every reader process
    resumes: str | None = None  # token in the offset that the reader was started from; None for a new query
    first: bool = False  # the service does not know the reader yet
    epoch: int = 0  # epoch, state, low watermark and split are of that offset, and only in the first request
    state: str | None = None
    low_watermark_us: int | None = None
    planned_at_us: int | None = None  # monotonic time at which the last batch was planned
    polled_until_us: int | None = None  # monotonic time of the newest poll at which no source had new data
    available_now: bool = False  # the query ends when no source has new data, so the reader does not ask a second time
    split: str | None = None
    looks: bool = False  # asks only whether the query can begin; there is no token yet, and no other field counts


class HeartbeatReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the reader's next offset."""

    low_watermark_us: int | None  # a multiple of 1,000
    epoch: int  # grows with everything worth persisting; an unchanged epoch needs no new offset
    state: str  # the watermarks' state to restore from, base64
    wake_at_us: int | None = None  # monotonic time at which time alone may change the answer; None: never
    refusal: str | None = None  # why the query must not go on


class GuideRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A planner's question before it plans a batch."""

    stream_id: str
    token: str  # the planner's own, new in every process


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A plan with its stream and planner."""

    stream_id: str
    token: str
    planned: Planned


class PlannedReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Confirms that the service has taken a plan."""


class StatusRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Asks for the status of one stream, or of all streams, with the newest run of each query, ended queries too."""

    stream: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=0)] | None = None  # splits of each stream, the neediest first; None: all


class StatusReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to `StatusRequest`."""

    application: str
    pid: int
    streams: list[dict[str, Any]]  # an object per stream and query, as `run_status.run_json` makes it
    explanations: list[str]


class MarkRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A person leaves splits out of the minimum, or takes that back."""

    stream: str
    splits: list[str]  # their names, as a status gives them
    by: str
    idle: bool  # leave out; False: take back
    for_us: int | None = None
    until_us: int | None = None  # microseconds since the epoch; both None: until the split's next row


class Marked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A split of one query after a `MarkRequest`; `query` is the name of the query, else its id."""

    query: str
    split: str
    why: str | None  # the person and the end, if the split is left out by hand now


class SetRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A person sets delay and idleness of a stream in its running queries."""

    stream: str
    by: str
    delay_us: int | None = None  # None: as it is
    idle_timeout_us: int | None = None  # None: as it is; 0: no split becomes idle
    code: bool = False  # what the code says counts again, before the other two

    @classmethod
    def of(
        cls,
        stream: str,
        *,
        delay: str | timedelta | None = None,
        idleness: str | timedelta | None = None,
        code: bool = False,
    ) -> SetRequest:
        """Make the request of the person who runs this process; `idleness` may be "off".

        Raises:
            ByHandRefused: there is nothing to set, or an idleness of 0.
            InvalidDuration: a value is no length of time.
        """
        if delay is None and idleness is None and not code:
            raise ByHandRefused(stream, "nothing is to be set", "pass a delay or an idleness.")
        delay_us = None if delay is None else duration_us(delay, what="delay")
        if idleness == "off":
            return cls(stream, user(), delay_us, 0, code)
        idle_us = None if idleness is None else duration_us(idleness, what="idleness")
        if idle_us == 0:
            raise ByHandRefused(stream, "an idleness of 0 leaves every split out", 'pass more, or "off" for none.')
        return cls(stream, user(), delay_us, idle_us, code)


class SetOf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One query after a `SetRequest`; `query` is its name, else its id."""

    query: str
    in_force: list[str]  # what differs from the code now, a sentence each


Said = TypeVar("Said", Marked, SetOf)


class ByHandReply(msgspec.Struct, Generic[Said], frozen=True, forbid_unknown_fields=True):
    """The answer to `MarkRequest` or `SetRequest`."""

    said: list[Said]
    fact: str = ""  # why nothing was changed; empty: all is well
    hint: str = ""


# The classes that planners and the service both use.
CODEC = Codec(Row(Guidance), Row(Planned), Row(PlannedRequest))

HEARTBEAT = Method(_SERVICE, "Heartbeat", HeartbeatRequest, HeartbeatReply, CODEC)
GUIDE = Method(_SERVICE, "Guide", GuideRequest, Guidance, CODEC)
PLANNED = Method(_SERVICE, "Planned", PlannedRequest, PlannedReply, CODEC)
STATUS = Method(_SERVICE, "Status", StatusRequest, StatusReply, CODEC)
MARK = Method(_SERVICE, "Mark", MarkRequest, ByHandReply[Marked], CODEC)
SET = Method(_SERVICE, "Set", SetRequest, ByHandReply[SetOf], CODEC)


class Server:
    """The driver's end: answers requests from several threads at once.

    Args:
        address: ``unix:/path/of/socket``.
        handlers: the handlers of its methods, made by `handler`.

    Raises:
        SocketsRefused: no socket can be made there.
    """

    def __init__(self, address: str, *handlers: tuple[str, grpc.RpcMethodHandler[Any, Any]]) -> None:
        self.address = address
        self._threads = ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="lowmark-rpc")
        self._server = grpc.server(self._threads, options=_OPTIONS)
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(_SERVICE, dict(handlers))])
        try:
            self._server.add_insecure_port(target(address))
        except RuntimeError as failed:  # whose text names no cause
            raise SocketsRefused(
                address.removeprefix(UNIX).rpartition("/")[0],
                "no socket can be made in it",
                "see that the folder is writable and its disk has room for a file, or set XDG_RUNTIME_DIR to another "
                "folder.",
            ) from failed
        self._server.start()

    def stop(self) -> None:
        """Refuse new requests, and return when the running requests have ended."""
        try:
            stopped = self._server.stop(grace=1.0)
        except RuntimeError:  # gRPC waits on a thread, and Python 3.12 begins none while a process ends
            stopped = self._server.stop(grace=None)
        stopped.wait()
        self._threads.shutdown(wait=False)  # gRPC leaves the threads to whoever made them


def handler(
    method: Method[Question, Answer], answer: Callable[[Question], Answer]
) -> tuple[str, grpc.RpcMethodHandler[bytes, Answer]]:
    """Return what a `Server` needs to answer the questions of a method by a function."""

    def respond(data: bytes, context: grpc.ServicerContext) -> Answer:
        try:
            return answer(method.decode_question(data))
        except (LookupError, TypeError, ValueError) as refused:
            with_stack = not isinstance(refused, LowmarkError)
            log.warning("a question of the kind %s was refused: %s", method.name, refused, exc_info=with_stack)
            kind = grpc.StatusCode.NOT_FOUND if isinstance(refused, LookupError) else grpc.StatusCode.INVALID_ARGUMENT
            context.abort(kind, _detail(refused))
        except ServiceStopped as stopped:
            context.abort(grpc.StatusCode.UNAVAILABLE, _detail(stopped))
        except WorkerDied as died:
            context.abort(grpc.StatusCode.INTERNAL, _detail(died))
        except TimeoutError as slow:  # of the loop or of a file system, which gRPC would log with its stack
            log.warning("%s", slow)
            context.abort(grpc.StatusCode.ABORTED, _detail(slow))
        except Exception as failed:  # gRPC would tell it at any length
            log.exception("a question of the kind %s could not be answered", method.name)
            context.abort(grpc.StatusCode.UNKNOWN, f"Exception calling application: {_detail(failed)}")
        raise AssertionError("abort raises")

    return method.name, grpc.unary_unary_rpc_method_handler(respond, response_serializer=CODEC.encode)


def _detail(failed: Exception) -> str:
    """Return an error's text, of a long one the beginning and the end, where the hint is.

    gRPC sends the text in a header of at most 8 KiB, with three characters for a byte that is not ASCII, and tells the
    caller of a longer one only that it was too long.
    """
    text = str(failed).encode(errors="backslashreplace")
    if len(text) <= _MOST_DETAIL_BYTES:
        return str(failed)
    begin, end = text[: _MOST_DETAIL_BYTES - 500], text[-490:]
    return f"{begin.decode(errors='ignore')} ... {end.decode(errors='ignore')}"


class Client:
    """A caller's end: one connection, made when it is first needed.

    Raises (from every call):
        ServiceUnreachable: no answer came in time, or the service was stopped.
        ServiceFailed: the service answered with an error.
    """

    silent_since: None = None
    """A service has no client that may be away; see `ToldClient`."""

    def __init__(self, address: str, *, deadline_seconds: float = 10.0) -> None:
        self.address = address
        self._deadline_seconds = deadline_seconds
        self._channel = self._dial()

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatReply:
        return self._call(HEARTBEAT, request, f"ask for the low watermark of stream {request.stream_id}")

    def guide(self, request: GuideRequest) -> Guidance:
        return self._call(GUIDE, request, f"ask how far stream {request.stream_id} may be read")

    def planned(self, request: PlannedRequest) -> PlannedReply:
        return self._call(PLANNED, request, f"say what was planned of stream {request.stream_id}")

    def status(self, request: StatusRequest) -> StatusReply:
        return self._call(STATUS, request, "ask for the status")

    def mark(self, request: MarkRequest) -> list[Marked]:
        """Raises `ByHandRefused`, as the service does."""
        return _said(self._call(MARK, request, f"mark splits of stream {request.stream}"), request.stream)

    def set(self, request: SetRequest) -> list[SetOf]:
        """Raises `ByHandRefused`, as the service does."""
        return _said(self._call(SET, request, f"set the strategy of stream {request.stream}"), request.stream)

    def close(self) -> None:
        self._channel.close()

    def _dial(self) -> grpc.Channel:
        return grpc.insecure_channel(target(self.address), options=_CLIENT_OPTIONS)

    def _call(self, method: Method[Question, Answer], question: Question, action: str) -> Answer:
        call = self._channel.unary_unary(method.path, request_serializer=CODEC.encode, response_deserializer=bytes)
        try:
            return method.decode_answer(call(question, timeout=self._deadline_seconds))
        except grpc.RpcError as failed:
            kind = ServiceUnreachable if failed.code() in _NOT_THERE else ServiceFailed
            if kind is ServiceUnreachable:  # a connection waits ever longer after failures before its next attempt
                self._channel.close()
                self._channel = self._dial()
            raise kind(self.address, action, f"{failed.code().name}: {failed.details()}") from failed
        except MalformedMessage as malformed:
            raise ServiceFailed(self.address, action, str(malformed)) from malformed


# How the `cause` of an error begins.
_NO_SERVICE = ("UNIMPLEMENTED", "UNAUTHENTICATED")  # a coordinator's answers to a question for services
_ENDED = ("UNAVAILABLE", "CANCELLED")  # the service has ended since it was found, or is ending
_HANGS = "DEADLINE_EXCEEDED"
_DEAD = "INTERNAL: "  # an error has ended the thread that would answer


def why_silent(failed: ServiceUnreachable) -> str | None:
    """Say why a service that was found gives no status; None if it has ended, or is a coordinator."""
    if hangs(failed) and not is_service(failed.address):
        return f"the coordinator at {failed.address} is there and does not answer: it hangs, or is stopped"
    if hangs(failed):
        return f"the service at {failed.address} is there and does not answer: its driver hangs, or is stopped"
    if failed.cause.startswith(_ENDED) or is_coordinator(failed):
        return None
    if failed.cause.startswith(_DEAD):
        return f"the service at {failed.address} has failed: {failed.cause.removeprefix(_DEAD)}"
    return f"the service at {failed.address} answers with an error: {failed.cause}"


def hangs(failed: Exception) -> bool:
    """Whether a service that was found gave no answer in time, or takes no connection any more."""
    return isinstance(failed, ServiceUnreachable) and (failed.cause.startswith(_HANGS) or is_full(failed.address))


def is_coordinator(failed: ServiceUnreachable) -> bool:
    """Whether a coordinator is at the address, and no service."""
    return failed.cause.startswith(_NO_SERVICE)


def newest(services: Iterable[tuple[str, StatusReply]]) -> list[tuple[str, dict[str, Any], str]]:
    """The newest run of each stream in each query of each service, because a failed run that began again is over.

    An ended run is also left out while a query of its name runs on the stream in another service, because a person has
    moved the query. Two runs that have not ended both stay, because two drivers may name their queries alike.

    Returns:
        (address of the service, the run, its explanation).
    """
    told: list[tuple[str, dict[str, Any], str]] = []
    for address, reply in services:
        runs = zip(reply.streams, reply.explanations, strict=True)  # in the order in which they began
        told += {_names(run): (address, run, explanation) for run, explanation in runs}.values()
    running = {_names(run) for _, run, _ in told if run["query"] is not None and not run["run"]["ended"]}
    return [each for each in told if not each[1]["run"]["ended"] or _names(each[1]) not in running]


def _names(run: dict[str, Any]) -> tuple[str, str | None]:
    return run["name"], run["query"]


def _said(reply: ByHandReply[Said], stream: str) -> list[Said]:
    if reply.fact:
        raise ByHandRefused(stream, reply.fact, reply.hint)
    return reply.said
