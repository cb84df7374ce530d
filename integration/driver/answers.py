"""The driver's end of the socket: answers questions of Spark's processes, of the page and of the command line.

Each question arrives on a thread of gRPC's, and is answered on the loop, except for what is read of checkpoints.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial

from lowmark.integration.errors import ByHandRefused
from lowmark.integration.run_status import run_json
from lowmark.integration.transport.driver_rpc import (
    GUIDE,
    HEARTBEAT,
    MARK,
    PLANNED,
    SET,
    STATUS,
    ByHandReply,
    GuideRequest,
    HeartbeatReply,
    HeartbeatRequest,
    Marked,
    MarkRequest,
    PlannedReply,
    PlannedRequest,
    Said,
    SetOf,
    SetRequest,
    StatusReply,
    StatusRequest,
    handler,
)
from lowmark.sources.planning.peer import Guidance
from lowmark.sources.spark.versions import PASSES_LIMITS
from lowmark.sources.worker import WorkerDied

from .aside import OnLoop, hold
from .desks import Desks
from .standing import Standing, in_words

_ROUND_SECONDS = 2.5  # two rounds of a coordinator, with a margin


class Answers:
    """The questions that a process may ask, a method each; a coordinator's new low watermark sets `low_heard`."""

    def __init__(
        self, on_loop: OnLoop, desks: Desks, standing: Standing, application: str, low_heard: threading.Event
    ) -> None:
        self._on_loop, self._desks, self._standing = on_loop, desks, standing
        self._application, self._low_heard = application, low_heard
        self.handlers = (
            handler(HEARTBEAT, self.heartbeat),
            handler(GUIDE, self.guide),
            handler(PLANNED, self.planned),
            handler(STATUS, self.status),
            handler(MARK, self.mark),
            handler(SET, self.set),
        )

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatReply:
        """Tell a heartbeat reader the low watermark, or why its query must not begin or must end."""
        try:
            return self._heartbeat(request)
        except WorkerDied as died:  # otherwise the query would read on while its watermark holds for ever
            if not died.cause:
                raise  # the service was stopped: its queries keep their watermark
            return HeartbeatReply(low_watermark_us=None, epoch=0, state="", refusal=str(died))

    def _heartbeat(self, request: HeartbeatRequest) -> HeartbeatReply:
        if request.looks:
            try:
                refusal = hold(self._desks.heartbeats.refuses(request.stream_id), self._on_loop, "look at a checkpoint")
            except TimeoutError:
                refusal = None  # the reader's first regular question reports this
            return HeartbeatReply(low_watermark_us=None, epoch=0, state="", refusal=refusal)
        self._low_heard.clear()
        reply = hold(self._desks.heartbeats.answer(request), self._on_loop, "answer a heartbeat")
        # A query that ends by itself asks only once after its last batch, and the low watermark that follows from this
        # batch takes a round of the coordinator. The wait is bounded, because other queries may hold the low watermark.
        ends = request.available_now or not PASSES_LIMITS  # before Spark 4.2 only the runs know whether a query ends
        if ends and self._on_loop(lambda: self._desks.heartbeats.worth_waiting(request), "answer a heartbeat"):
            # The question is asked again even after a timeout, because another stream's heartbeat may have cleared the
            # event.
            self._low_heard.wait(_ROUND_SECONDS)
            reply = hold(self._desks.heartbeats.answer(request), self._on_loop, "answer a heartbeat")
        return reply

    def guide(self, request: GuideRequest) -> Guidance:
        return self._on_loop(lambda: self._desks.plans.guide(request), "say how far a stream may be read")

    def planned(self, request: PlannedRequest) -> PlannedReply:
        hear = partial(self._desks.plans.take, request.stream_id, request.token, request.planned)
        self._on_loop(hear, "hear of a plan")
        return PlannedReply()

    def status(self, request: StatusRequest) -> StatusReply:
        wanted = partial(self._standing.shown, stream=request.stream, limit=request.limit)
        runs = self._on_loop(wanted, "give the status")
        return StatusReply(
            application=self._application,
            pid=os.getpid(),
            streams=[run_json(run) for run in runs],
            explanations=[in_words(run.status, run.others) for run in runs],
        )

    def mark(self, request: MarkRequest) -> ByHandReply[Marked]:
        return self._by_hand(lambda: self._desks.by_hand.take(request), "mark splits by hand")

    def set(self, request: SetRequest) -> ByHandReply[SetOf]:
        return self._by_hand(lambda: self._desks.by_hand.set(request), "set a strategy by hand")

    def _by_hand(self, work: Callable[[], list[Said]], action: str) -> ByHandReply[Said]:
        try:
            return ByHandReply(self._on_loop(work, action))
        except ByHandRefused as refused:
            return ByHandReply([], refused.fact, refused.hint)
