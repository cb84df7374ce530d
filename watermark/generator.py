"""Makes the watermark of one split from its event times: Flink's generators.

A watermark ``W`` says that no further row with an event time of ``W`` or less is expected.
"""

from __future__ import annotations

from typing import Protocol

from .moment import LEAST_US, MILLISECOND_US

LOWEST_US = LEAST_US // MILLISECOND_US * MILLISECOND_US + MILLISECOND_US
"""The smallest watermark: where a bound would lead below it, the watermark stays there."""


def bounded_watermark_us(max_us: int, bound_us: int) -> int:
    """The watermark after event time ``max_us`` was seen, if rows come at most ``bound_us`` late.

    A row whose time *equals* the watermark is late in Spark, so 1 ms is taken off; Spark's watermark counts
    milliseconds, so the result is rounded down to a multiple of 1,000 us. The result is at least ``LOWEST_US``.

    Source: Flink's ``BoundedOutOfOrdernessWatermarks``; Spark's ``LessThanOrEqual`` late test.

    >>> bounded_watermark_us(1_337_000, 10_000)
    1326000
    >>> bounded_watermark_us(1_500, 0), bounded_watermark_us(0, 0)
    (0, -1000)
    """
    return max((max_us - bound_us - MILLISECOND_US) // MILLISECOND_US * MILLISECOND_US, LOWEST_US)


class WatermarkOutput(Protocol):
    """Where a generator puts what it finds. Its caller, not the generator, makes the watermark monotone.

    Flink's ``markIdle`` and ``markActive`` are refused: a generator sees one split in one task, and whether to wait for
    a silent split depends on the others and on what waits unread. ``WatermarkStrategy.with_idleness`` decides it.
    """

    def emit_watermark(self, watermark_us: int) -> None:
        """Publish a watermark of this split, microseconds since the epoch."""


class WatermarkGenerator(Protocol):
    """Makes the watermarks of one split in one task of a batch; it may keep state until the task ends."""

    def on_event(self, event: object, timestamp_us: int, output: WatermarkOutput) -> None:
        """Take one row. A punctuated generator emits here."""

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit the watermark. Called at the end of the task."""


class BoundedOutOfOrderness:
    """The largest event time so far, less a bound, less 1 ms. Emits nothing before the first row.

    Args:
        bound_us: how late a row may be, microseconds, 0 or more.

    Raises:
        ValueError: the bound is negative.
    """

    def __init__(self, bound_us: int) -> None:
        if bound_us < 0:
            raise ValueError(f"out-of-orderness bound: expected 0 us or more, got {bound_us}")
        self._bound_us = bound_us
        self._max_us: int | None = None

    def on_event(self, event: object, timestamp_us: int, output: WatermarkOutput) -> None:
        del event, output
        if self._max_us is None or timestamp_us > self._max_us:
            self._max_us = timestamp_us

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        if self._max_us is not None:
            output.emit_watermark(bounded_watermark_us(self._max_us, self._bound_us))


class NoWatermarks:
    """A generator that never emits, for streams without a watermark."""

    def on_event(self, event: object, timestamp_us: int, output: WatermarkOutput) -> None: ...

    def on_periodic_emit(self, output: WatermarkOutput) -> None: ...
