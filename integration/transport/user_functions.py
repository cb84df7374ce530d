"""Calls the functions of Python that a strategy has, and checks what they give back: event times and watermarks."""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from lowmark.integration.errors import NoEventTime
from lowmark.watermark import InvalidStrategy, WatermarkGenerator, WatermarkStrategy
from lowmark.watermark.moment import LEAST_US, MOST_US, us_of

Assigner = Callable[[Any, "int | None"], object]


def assigned_us(stream: str, assigner: Assigner, row: Mapping[str, Any], row_us: int | None) -> int | None:
    """Return the time that an assigner gives a row; None: no time that Spark can hold. Raises NoEventTime."""
    assigned = assigner(row, row_us)
    if assigned is None:
        return None
    if isinstance(assigned, int) and not isinstance(assigned, bool):
        return assigned if LEAST_US <= assigned <= MOST_US else None
    if isinstance(assigned, dt.datetime) and assigned.tzinfo is not None:
        return us_of(assigned)
    raise NoEventTime(stream, f"{assigned!r:.200}", f"{row!r:.200}")


class Generators:
    """The generators of one task, one for each split, by the values of the split's columns.

    A generator starts anew with every batch. The watermarks that it emits merge by maximum over tasks and batches, as
    Flink's do over time.
    """

    def __init__(self, strategy: WatermarkStrategy) -> None:
        self._strategy = strategy
        self._of: dict[tuple[Any, ...], tuple[WatermarkGenerator, _LatestWatermark]] = {}

    def see(self, values: tuple[Any, ...], row: Mapping[str, Any], time_us: int) -> None:
        """Show a row to the generator of its split."""
        if values not in self._of:
            self._of[values] = self._strategy.create_generator(), _LatestWatermark()
        generator, output = self._of[values]
        generator.on_event(row, time_us, output)

    def watermarks_us(self) -> Iterator[tuple[tuple[Any, ...], int]]:
        """End the batch; yield each split with its largest watermark."""
        for values, (generator, output) in self._of.items():
            generator.on_periodic_emit(output)
            if output.watermark_us is not None:
                yield values, output.watermark_us


class _LatestWatermark:
    """Receives a generator's watermarks, and keeps the largest."""

    def __init__(self) -> None:
        self.watermark_us: int | None = None

    def emit_watermark(self, watermark_us: int) -> None:
        try:
            us = operator.index(watermark_us)  # of an integer of numpy, too
            if not LEAST_US <= us <= MOST_US:
                raise OverflowError
        except (TypeError, OverflowError):
            raise InvalidStrategy(
                "for_generator", f"emit_watermark({watermark_us!r:.100})",
                "microseconds since the epoch as an int, in 64 bits", "round a float: emit_watermark(int(...)).",
            ) from None  # fmt: skip
        if self.watermark_us is None or us > self.watermark_us:
            self.watermark_us = us

    def mark_idle(self) -> NoReturn:
        """Refuse Flink's call: a generator sees neither the other splits nor the rows that wait."""
        raise InvalidStrategy(
            "for_generator", "mark_idle() or mark_active()", "a generator that only emits watermarks",
            "leave the call out: with_idleness() of the strategy says when a silent split is not waited for.",
        )  # fmt: skip

    mark_active = mark_idle
