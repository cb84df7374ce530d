"""Handles rows that were deleted before they were read."""

from __future__ import annotations

import logging

from lowmark.sources.metric_group import MetricGroup
from lowmark.watermark import LowmarkError

log = logging.getLogger("lowmark")


class KnownLosses:
    """Raises an error for each loss, or logs and counts it, once.

    Args:
        go_on: whether reading goes on without the lost rows.
        amount: name of the counter for the lost amount; None if the amount is unknown.
    """

    def __init__(self, *, go_on: bool, metrics: MetricGroup, amount: str | None = None) -> None:
        self._go_on, self._told = go_on, set[tuple[str, object]]()
        self._times = metrics.counter("data_losses")
        self._amount = None if amount is None else metrics.counter(amount)

    def take(self, lost: LowmarkError, split_id: str, start: object, amount: int = 0) -> None:
        """Handle a loss in a split, from a position on.

        Args:
            amount: the lost amount, 0 if unknown.

        Raises:
            LowmarkError: `lost`, unless reading goes on.
        """
        if not self._go_on:
            raise lost
        if (split_id, start) in self._told:
            return
        self._told.add((split_id, start))
        self._times.inc()
        if self._amount is not None:
            self._amount.inc(amount)
        fact = str(lost).partition(" Hint: ")[0].removesuffix(".")
        log.warning("%s. Reading goes on without them, as was asked.", fact)
