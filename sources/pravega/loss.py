"""Handles events that were truncated before they were read."""

from __future__ import annotations

from lowmark.sources.kit.data_loss import KnownLosses
from lowmark.sources.metric_group import MetricGroup

from .errors import PravegaDataLost
from .segment import PravegaSplit


class DataLoss:
    """Raises an error, or logs and counts the lost bytes (`lost_bytes`).

    Args:
        go_on: whether reading goes on without lost events.
    """

    def __init__(self, *, go_on: bool, metrics: MetricGroup) -> None:
        self._known = KnownLosses(go_on=go_on, metrics=metrics, amount="lost_bytes")

    def found(self, split: PravegaSplit, position: int, head: int | None) -> None:
        """Handle the loss of bytes from `position` up to `head` (None: all later bytes). A loss is told once.

        Raises:
            PravegaDataLost: unless reading goes on.
        """
        lost = PravegaDataLost(split.split_id, position, head)
        until = min((each for each in (split.stop, head) if each is not None), default=None)
        self._known.take_range(lost, split.split_id, position, until, told_to=split.lost_before)

    def told_to(self, split: PravegaSplit) -> int:
        """Return the byte before which all lost bytes of a split were counted; 0: none."""
        return self._known.told_to(split.split_id, split.lost_before)
