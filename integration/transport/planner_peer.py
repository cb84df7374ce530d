"""A planner's link to the service: asks before each batch how far alignment lets it read, and reports the plan.

So the watermark of a split is known before its rows are read. Functions here import gRPC at their call, because
executors import this module.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from lowmark.integration.errors import ServiceUnreachable
from lowmark.integration.process.clock import monotonic_us
from lowmark.sources.planning.peer import Guidance, Planned
from lowmark.watermark.printable import printable

if TYPE_CHECKING:
    from .driver_rpc import Client

_RETRY_US = 1_000_000
_PLANS_KEPT = 8  # plans to report when the service is back; the service keeps as many


class ServicePeer:
    """Connects when it first asks, because it is pickled before.

    While the service is gone, its last answer holds: the watermark stays, and alignment lets nobody read further.
    """

    def __init__(self, *, address: str, stream_id: str, stream: str) -> None:
        self._address, self._stream_id, self._stream = address, stream_id, stream
        self._guidance = Guidance()
        self._retry_at_us: int | None = None
        self._untold: dict[int, Planned] = {}  # by checkpoint

    def ask(self, token: str) -> Guidance:
        from .driver_rpc import GuideRequest

        if self._may_try():
            try:
                for planned in list(self._untold.values()):
                    self._say(token, planned)
                self._guidance = self._client.guide(GuideRequest(stream_id=self._stream_id, token=token))
                self._retry_at_us = None
            except ServiceUnreachable as gone:
                self._note(gone)
        return self._guidance

    def tell(self, token: str, planned: Planned) -> None:
        self._untold[planned.checkpoint] = planned
        if len(self._untold) > _PLANS_KEPT:
            del self._untold[next(iter(self._untold))]
        if self._may_try():
            try:
                self._say(token, planned)
            except ServiceUnreachable as gone:
                self._note(gone)

    def _say(self, token: str, planned: Planned) -> None:
        from .driver_rpc import PlannedRequest

        self._client.planned(PlannedRequest(stream_id=self._stream_id, token=token, planned=planned))
        self._untold.pop(planned.checkpoint, None)

    def _may_try(self) -> bool:
        return self._retry_at_us is None or monotonic_us() >= self._retry_at_us

    @cached_property
    def _client(self) -> Client:
        from .driver_rpc import Client

        return Client(self._address)

    def _note(self, gone: ServiceUnreachable) -> None:
        if self._retry_at_us is None:
            # Logging is not configured in this process; Spark passes its standard error on to the driver's.
            line = f'lowmark: stream "{self._stream}": the query reads on, as far as alignment let it last: {gone}'
            sys.stderr.write(printable(line) + "\n")
            sys.stderr.flush()
        self._retry_at_us = monotonic_us() + _RETRY_US
        # Drop the events of the last answer, because the planner has already taken them.
        self._guidance = replace(self._guidance, events=())
