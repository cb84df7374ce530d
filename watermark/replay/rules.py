"""The watermarks that judge the rows of a batch, native Spark's and lowmark's, as Spark 4 puts them in force.

Spark takes two watermarks into a batch. The watermark of the previous batch decides which rows are late, the watermark
of this batch decides which state is given up, and the rows of this batch make the next watermark:

                     late rows by         state by             makes
    native, batch n  the maximum of n-2   the maximum of n-1   the maximum of all to n
    lowmark, batch n the minimum of n-3   the minimum of n-2   the heartbeat of n+1

When a watermark rose that no batch has used, a batch without rows runs, so a pause brings both up to date: natively
with one empty trigger, under lowmark with two, because its heartbeat comes first. No delay is taken off these values: a
delay is the same for every batch, so one replay answers for all delays.

Source: Spark's ``WatermarkTracker`` and ``WatermarkPropagator`` (4.2), with
``spark.sql.streaming.statefulOperator.allowMultiple``; ``numRowsDroppedByWatermark``.
"""

from __future__ import annotations


class Rule:
    """Watermarks on their way into force; the newest is the largest that was made.

    Args:
        batches: after how many batches a watermark decides which rows are late: 2 natively, 3 under lowmark.

    >>> native, lowmark = Rule(2), Rule(3)
    >>> for made in (10, 50, 30):
    ...     native.begin(); lowmark.begin(); native.end(made); lowmark.end(made)
    >>> native.late, native.used, lowmark.late, lowmark.used
    (10, 50, None, 10)
    >>> native.settle(pauses=1); native.begin(); native.late
    50
    """

    def __init__(self, batches: int) -> None:
        self._marks: list[int | None] = [None] * (batches + 1)  # the oldest first

    @property
    def late(self) -> int | None:
        return self._marks[0]

    @property
    def used(self) -> int | None:
        return self._marks[1]

    def settle(self, pauses: int) -> None:
        """Replay a number of triggers that find no row: each moves on every watermark but ``late``."""
        for _ in range(min(pauses, len(self._marks) - 2)):
            self._marks[1:] = [*self._marks[2:], self._marks[-1]]

    def begin(self) -> None:
        self._marks = [*self._marks[1:], self._marks[-1]]

    def end(self, made: int | None) -> None:
        """End the batch, or a trigger, with the watermark that it made; None if it made none."""
        newest = self._marks[-1]
        if made is not None and (newest is None or made > newest):
            self._marks[-1] = made
