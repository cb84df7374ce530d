"""Asks the service for the heartbeat readers of a Spark Connect server, and tells the readers its answers.

One thread. A batch's progress names its heartbeats by their offsets: a token that no batch had before is a reader's
first question, and every later batch with the token is the next one. Time alone may change an answer, so the relay also
asks once a second. An answer that could not be told stays until it is; the reader's watermark holds meanwhile. An
unchanged answer is told again every few seconds, because the reader takes the client for gone otherwise.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from lowmark.integration.errors import ServiceStopped, UnreadableHeartbeat, UnreadableReport
from lowmark.integration.process.clock import monotonic_us
from lowmark.integration.process.loop import Loop
from lowmark.integration.transport.driver_rpc import HeartbeatReply, HeartbeatRequest
from lowmark.integration.transport.heartbeat import HeartbeatOffset
from lowmark.integration.transport.told import SIGN_SECONDS, Told
from lowmark.sources.worker import WorkerDied
from lowmark.watermark import LowmarkError
from lowmark.watermark.printable import first_line

from .progress import Progress

if TYPE_CHECKING:
    from .connect_query import ClientEvent, ConnectQuery

log = logging.getLogger("lowmark")

Answer = Callable[[HeartbeatRequest], HeartbeatReply]
"""Answers a heartbeat reader."""

_TICK_US = 1_000_000
_LONG_SECONDS = 5.0  # a server that has not answered for so long is named in the status
END_SECONDS = 5.0  # so long the end of a service waits for a server that may be gone


@dataclass
class _Reader:
    """A heartbeat reader on the server's host."""

    stream_id: str
    query: ConnectQuery
    before: int  # the batch before its first one
    begun: bool = False  # the service has its run
    batches: int = 0  # that the service knows
    answered: Told | None = None  # the newest answer, and the number of batches it knows
    told: Told | None = None  # the newest answer that the server has
    told_at: float = 0.0  # monotonic time when the server took it

    @property
    def refused(self) -> bool:
        """Whether it ends with its answer."""
        return self.answered is not None and self.answered.reply.refusal is not None


class Relay:
    """See above.

    Args:
        enqueue: takes each event after the answer to its batch.
        tell: takes an answer to the server's host: id of the stream, token of the reader, answer (None: remove it).
        look: called once a second, with the clock's tick.
        sign: speaks to the server if a query runs; called when nothing was told for a while.
        streams: ids of the streams of this client -> their names.
    """

    def __init__(
        self,
        answer: Answer,
        enqueue: Callable[[str, ClientEvent], None],
        tell: Callable[[str, str, Told | None], None],
        look: Callable[[], None],
        sign: Callable[[], None],
        streams: Mapping[str, str],
    ) -> None:
        self._answer, self._enqueue, self._streams = answer, enqueue, streams
        self._tell, self._sign = tell, sign
        self._spoke_at = time.monotonic()
        self._readers: dict[str, _Reader] = {}  # by token
        self._ahead_us: int | None = None  # of this process's monotonic time over the server's clock
        self._asked_since: float | None = None  # the first call to the server without an answer
        self._error: str | None = None  # of the newest call since then
        self._warned = False
        self._loop = Loop("lowmark-relay", partial(self._do, look, self._ask_all), tick_us=_TICK_US)

    def put(self, kind: str, event: ClientEvent, query: ConnectQuery) -> None:
        """Take an event of the listener, and return at once."""
        self._loop.post(partial(self._do, partial(self._take, kind, event, query)))

    def take(self, kind: str, event: ClientEvent, query: ConnectQuery) -> None:
        """Take an event before those that wait. Only `look` may call this, on the relay's thread."""
        try:
            self._take(kind, event, query)
        except Exception:
            log.exception("could not take an event of a query; the watermark holds until the next batch")

    def silence(self) -> str | None:
        """Say for how long the server has not answered; None: it answers. May be called from any thread."""
        since, error = self._asked_since, self._error
        silent = 0.0 if since is None else time.monotonic() - since
        if silent < _LONG_SECONDS:
            return None
        said = f"The server of Spark Connect has not answered for {silent:.0f} s, so its watermark holds meanwhile."
        return said if error is None else f"{said} The newest error: {error}"

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Note how long a call to the server lasts, because a stopped server never answers and never refuses."""
        if self._asked_since is None:
            self._asked_since = time.monotonic()
        try:
            yield
        except Exception as failed:
            self._error = first_line(failed)
            raise
        self._asked_since = self._error = None

    def close(self) -> None:
        """End the thread after the events that it has, and after a last question of each reader."""
        # A service that an error ended refuses; one that was stopped answers nothing.
        self._loop.post(partial(self._do, self._ask_all))
        self._loop.stop(END_SECONDS)

    def _do(self, *work: Callable[[], object]) -> None:
        """Do work, and tell the readers what they were answered."""
        try:
            for each in work:
                each()
        except TimeoutError as busy:
            log.warning("%s; the watermark holds until the next batch", busy)
        except Exception:
            log.exception("could not take an event of a query; the watermark holds until the next batch")
        self._tell_all()

    def _ask_all(self) -> None:
        for token, reader in self._readers.items():
            if reader.begun:
                self._ask(token, reader)

    def _take(self, kind: str, event: ClientEvent, query: ConnectQuery) -> None:
        if kind == "progress":
            try:
                self._take_batch(event.progress(), query)
            except (UnreadableReport, UnreadableHeartbeat) as unreadable:
                self._refuse(event, query, unreadable)
                return
        elif kind == "terminated":
            query.active = False
        self._enqueue(kind, event)
        if kind == "terminated":
            for token in [token for token, reader in self._readers.items() if reader.query is query]:
                self._remove(token)

    def _take_batch(self, progress: Progress, query: ConnectQuery) -> None:
        if (newest := query.newest()) is not None:
            if progress.batch_id <= newest.batch_id:
                return  # after a break both the listener and the history of the query tell of a batch
            if progress.timestamp < newest.timestamp:
                self._ahead_us = None  # the server's clock was set back
        began_us = progress.began_us
        took_us = progress.duration_ms.get("triggerExecution", 0) * 1_000
        ahead_us = monotonic_us() - (began_us + took_us)
        # An event takes a while to come, and the least difference has the shortest way in it.
        self._ahead_us = ahead_us = ahead_us if self._ahead_us is None else min(ahead_us, self._ahead_us)
        query.expect(progress)
        self._meet_readers(progress, query)
        try:
            with self.asking():  # here and not in the service's loop, which no server may hold
                query.look()
        except Exception as failed:  # noqa: BLE001  # gRPC and Spark have no common base class of errors
            log.warning("the plan of query %s cannot be read: %s", progress.id, first_line(failed))
        query.take(progress)
        for _, end in progress.heartbeats():
            if (known := self._readers.get(end.token or "")) is not None:
                known.batches = progress.batch_id - known.before
                self._ask(str(end.token), known, planned_at_us=began_us + ahead_us)

    def _meet_readers(self, progress: Progress, query: ConnectQuery) -> None:
        """Begin the runs of readers that no batch had before."""
        mine = {self._streams[each]: each for each in query.streams() if each in self._streams}
        for index, end in progress.heartbeats():
            stream_id = mine.get(end.stream)
            if stream_id is None or end.token is None:
                continue  # another client's stream
            resumes = HeartbeatOffset.find(progress.sources[index].start_offset)
            before = None if resumes is None else resumes.token
            if end.token not in self._readers:
                # A restart runs a batch again under the offset of the reader before; its own reader comes next.
                if before == end.token and query.newest() is None:
                    continue
                self._readers[end.token] = _Reader(stream_id, query, before=progress.batch_id - 1)
            reader = self._readers[end.token]
            if not reader.begun:
                if not reader.refused:
                    self._begin(reader, end.token, end, resumes)
                reader.begun = True  # last, because after an error its run has to begin yet
            if before is not None and before != end.token and before in self._readers:
                self._remove(before)  # that reader is gone: its query was started again in its first batch

    def _refuse(self, event: ClientEvent, query: ConnectQuery, unreadable: LowmarkError) -> None:
        """End a query, because its next report would be no better, and the watermark would hold for ever."""
        why = f"the report of batch {event.batch_id} cannot be read. {unreadable}"
        log.error("query %s: %s", event.query_id, why)
        mine = {name: stream_id for stream_id, name in tuple(self._streams.items())}
        for name, token in event.readers():
            if name in mine:
                reader = self._readers.setdefault(token, _Reader(mine[name], query, before=event.batch_id - 1))
                refused = HeartbeatReply(low_watermark_us=None, epoch=0, state="", refusal=f'stream "{name}": {why}')
                reader.answered = Told(refused, event.batch_id - reader.before)

    def _begin(self, reader: _Reader, token: str, offset: HeartbeatOffset, resumes: HeartbeatOffset | None) -> None:
        """Ask a reader's first question, by its first offset and the one that it was started from."""
        self._reply(
            HeartbeatRequest(
                stream_id=reader.stream_id,
                token=token,
                resumes=None if resumes is None else resumes.token,
                first=True,
                epoch=offset.epoch,
                state=offset.state,
                low_watermark_us=offset.low_us,
                split=None if resumes is None else resumes.split,  # in its own offset the reader tells its own
            )
        )

    def _ask(self, token: str, reader: _Reader, *, planned_at_us: int | None = None) -> None:
        if reader.refused:
            return
        reply = self._reply(HeartbeatRequest(stream_id=reader.stream_id, token=token, planned_at_us=planned_at_us))
        if reply is not None:
            # `wake_at_us` is a time of this host.
            reader.answered = Told(msgspec.structs.replace(reply, wake_at_us=None), reader.batches)

    def _reply(self, request: HeartbeatRequest) -> HeartbeatReply | None:
        """Return the service's answer; None: the query keeps its watermark."""
        try:
            return self._answer(request)
        except (ServiceStopped, WorkerDied):
            return None
        except LowmarkError as refused:  # otherwise the query would read on while its watermark holds for ever
            return HeartbeatReply(low_watermark_us=None, epoch=0, state="", refusal=str(refused))

    def _tell_all(self) -> None:
        for token, reader in self._readers.items():
            lives = reader.answered == reader.told and time.monotonic() - reader.told_at < SIGN_SECONDS
            if reader.answered is None or lives:
                continue
            try:
                with self.asking():
                    self._tell(reader.stream_id, token, reader.answered)
            except Exception as failed:  # noqa: BLE001  # gRPC, Spark and the server's Python have no common base class
                if not self._warned:
                    why = first_line(failed)
                    log.warning("the server takes no answers, so the watermark of its queries holds: %s", why)
                self._warned = True
                return
            reader.told, reader.told_at = reader.answered, time.monotonic()
            self._spoke_at = reader.told_at
            if self._warned:
                log.warning("the server takes answers again")
            self._warned = False
        if time.monotonic() - self._spoke_at >= SIGN_SECONDS:
            self._live_on()

    def _live_on(self) -> None:
        """Speak to the server though there is nothing to tell yet: it ends a silent session, with its queries."""
        try:
            with self.asking():
                self._sign()
        except Exception as failed:  # noqa: BLE001  # as above
            log.debug("the server does not answer: %s", failed)
            return
        self._spoke_at = time.monotonic()

    def _remove(self, token: str) -> None:
        try:
            with self.asking():
                self._tell(self._readers.pop(token).stream_id, token, None)
        except Exception as failed:  # noqa: BLE001  # as above; the server removes old answers some day
            log.debug("could not remove an answer on the server's host: %s", failed)
