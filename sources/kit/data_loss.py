"""What is done about rows that are gone before they were read."""

from __future__ import annotations

import logging

from lowmark.sources.metric_group import MetricGroup
from lowmark.watermark import LowmarkError

__all__ = ["KnownLosses"]

log = logging.getLogger("lowmark")


class KnownLosses:
    """An error, or a line in the log and a count; each loss once.

    Args:
        go_on: whether reading goes on without them.
        metrics: where they are counted, as `data_losses`.
        amount: name of the counter of how much was lost; None where nobody can tell.
    """

    def __init__(self, *, go_on: bool, metrics: MetricGroup, amount: str | None = None) -> None:
        self._go_on, self._told = go_on, set[tuple[str, object]]()
        self._times = metrics.counter("data_losses")
        self._amount = None if amount is None else metrics.counter(amount)

    def take(self, lost: LowmarkError, split_id: str, start: object, amount: int = 0) -> None:
        """Something of a split is gone, from a position on.

        Args:
            lost: says so.
            split_id: the split.
            start: the position.
            amount: how much, 0 where nobody can tell.

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
