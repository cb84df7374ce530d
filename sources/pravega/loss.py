"""What is done about events that were truncated before they were read."""

from __future__ import annotations

import logging

from lowmark.sources.metric_group import MetricGroup

from .errors import PravegaDataLost

__all__ = ["DataLoss"]

log = logging.getLogger("lowmark")


class DataLoss:
    """An error, or a line in the log and a count (`lost_bytes`).

    Args:
        go_on: whether reading goes on without them.
        metrics: where they are counted, also as `data_losses`.
    """

    def __init__(self, *, go_on: bool, metrics: MetricGroup) -> None:
        self._go_on, self._told = go_on, set[tuple[str, int]]()
        self._bytes, self._times = metrics.counter("lost_bytes"), metrics.counter("data_losses")

    def found(self, split_id: str, position: int, head: int | None) -> None:
        """Bytes from `position` up to `head` (None: all that follow) are gone. The same loss is told once.

        Raises:
            PravegaDataLost: unless reading goes on.
        """
        lost = PravegaDataLost(split_id, position, head)
        if not self._go_on:
            raise lost
        if (split_id, position) in self._told:
            return
        self._told.add((split_id, position))
        self._times.inc()
        self._bytes.inc(0 if head is None else head - position)
        log.warning("%s. Reading goes on without them, as on_data_loss asks.", str(lost).partition(". Hint: ")[0])
