"""Listeners for new low watermarks, on a thread of their own, because a slow listener must not delay heartbeats."""

from __future__ import annotations

import logging

from lowmark.integration.process.loop import Loop
from lowmark.watermark import LowWatermarkListener, NotifyNewLowWatermark

log = logging.getLogger("lowmark")


class Listeners:
    """Listeners of a service, called in the order in which they were added."""

    def __init__(self) -> None:
        self._listeners: list[LowWatermarkListener] = []
        self._loop = Loop("lowmark-listeners")

    def add(self, listener: LowWatermarkListener) -> None:
        self._listeners.append(listener)

    def notify(self, notice: NotifyNewLowWatermark) -> None:
        """Tell all of them soon; returns at once. A new thread takes the place of one that an error has ended."""
        if self._loop.failed is not None:
            self._loop = Loop("lowmark-listeners")
        self._loop.post(lambda: self._tell(notice))

    def _tell(self, notice: NotifyNewLowWatermark) -> None:
        for listener in tuple(self._listeners):
            try:
                listener.on_new_low_watermark(notice)
            except BaseException:  # a callback may leave by SystemExit, and the thread has others to call
                log.exception("a LowWatermarkListener failed on %s; it will be called again", notice)

    def stop(self) -> None:
        """Return when all listeners have heard every notice so far."""
        self._loop.stop()
