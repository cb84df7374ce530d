"""Handles events that were truncated before they were read."""

from __future__ import annotations

from lowmark.sources.kit.data_loss import KnownLosses
from lowmark.sources.metric_group import MetricGroup

from .errors import PravegaDataLost


class DataLoss:
    """Raises an error, or logs and counts the lost bytes (`lost_bytes`).

    Args:
        go_on: whether reading goes on without lost events.
    """

    def __init__(self, *, go_on: bool, metrics: MetricGroup) -> None:
        self._known = KnownLosses(go_on=go_on, metrics=metrics, amount="lost_bytes")

    def found(self, split_id: str, position: int, head: int | None) -> None:
        """Handle the loss of bytes from `position` up to `head` (None: all later bytes). A loss is told once.

        Raises:
            PravegaDataLost: unless reading goes on.
        """
        lost = PravegaDataLost(split_id, position, head)
        self._known.take(lost, split_id, position, 0 if head is None else head - position)
