"""Handles rows that were deleted before they were read."""

from __future__ import annotations

import logging
from typing import ClassVar

from lowmark.sources.metric_group import MetricGroup
from lowmark.watermark import LowmarkError

log = logging.getLogger("lowmark")

LOSSES = "data_losses"
"""The metric of all sources that counts losses; an alert watches it."""


class KnownLosses:
    """Raises an error for each loss, or logs and counts it, once.

    Args:
        go_on: whether reading goes on without the lost rows.
    """

    amount: ClassVar[str | None] = None  # name of the counter for the lost amount; None: the amount is unknown

    def __init__(self, *, go_on: bool, metrics: MetricGroup) -> None:
        self._go_on, self._told, self._told_to = go_on, set[object](), dict[str, int]()
        self._times = metrics.counter(LOSSES)
        self._amount = None if self.amount is None else metrics.counter(self.amount)

    def take(self, lost: LowmarkError, key: object) -> None:
        """Handle a loss of an unknown amount: raise it, unless reading goes on.

        A loss with the same key, the split and the position from which on rows are lost, is the same loss.
        """
        if not self._go_on:
            raise lost
        if key not in self._told:
            self._told.add(key)
            self._tell(lost, 0)

    def take_range(self, lost: LowmarkError, split_id: str, start: int, until: int | None, *, told_to: int = 0) -> None:
        """Handle the loss of a split's rows from `start` up to `until`, and count only what was not counted before.

        Args:
            until: None: all later rows, so the amount is unknown.
            told_to: the position up to which another process has told the losses of the split.
        """
        if until is None:
            self.take(lost, (split_id, start))
            return
        if not self._go_on:
            raise lost
        told_to = self.told_to(split_id, told_to)
        if until > told_to:
            self._told_to[split_id] = until
            self._tell(lost, until - max(start, told_to))

    def told_to(self, split_id: str, elsewhere: int) -> int:
        """Return the position up to which the losses of a split were told, here or in another process; 0: none."""
        return max(elsewhere, self._told_to.get(split_id, 0))

    def _tell(self, lost: LowmarkError, amount: int) -> None:
        self._times.inc()
        if self._amount is not None:
            self._amount.inc(amount)
        fact = str(lost).partition(" Hint: ")[0].removesuffix(".")
        log.warning("%s. Reading goes on without them, as was asked.", fact)
