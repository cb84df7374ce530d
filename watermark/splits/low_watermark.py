"""The low watermark of one stream, from the reports and the states of its splits.

The low watermark is the minimum over the splits that take part (``coalescer.py``), and never goes back. It is looked
at once for each event, after all changes of the event.
"""

from __future__ import annotations

from lowmark.watermark.state import SplitId
from lowmark.watermark.strategy import WatermarkStrategy

from .changes import Changes
from .coalescer import Coalescer
from .history import History

ALL_IDLE_STEP_US = 1_000_000
"""How often callers should look while all splits are idle and the low watermark follows the time of reading."""


class LowWatermark:
    """Keeps the low watermark, who held it, and when it rose.

    Args:
        low_us: the low watermark before a restart, microseconds since the epoch; None: there was none.
        moved_at_us: the moment of the restart; None: the stream begins with its first event.
    """

    def __init__(self, strategy: WatermarkStrategy, low_us: int | None, *, moved_at_us: int | None) -> None:
        self.coalescer = Coalescer(
            low_us,
            strategy.all_idle,
            all_idle_delay_us=strategy.all_idle_delay_us,
            percentile=strategy.percentile,
            quorum=strategy.quorum,
        )
        self.history = History[SplitId]()
        self.moved_at_us = moved_at_us
        """When the low watermark rose last, or began; None before the first event."""
        self.epoch = 0
        """Grows with each material change."""
        self._delay_us = strategy.all_idle_delay_us

    @property
    def us(self) -> int | None:
        return self.coalescer.low_us

    def next_us(self, now_us: int, wall_ahead_us: int) -> int | None:
        """When the low watermark could rise by time alone, because all splits are idle; None: only by an event."""
        if self._delay_us is None or not self.coalescer.all_idle:
            return None
        return now_us if self.us is None else self.us + self._delay_us + ALL_IDLE_STEP_US - wall_ahead_us

    def follow(self, changes: Changes, *, changed: bool, read_until_us: int | None, held: bool) -> int | None:
        """Take the minimum after all changes of an event. Returns the low watermark if it rose.

        Args:
            changed: whether the event changed the state of a split, or a split came in late.
            read_until_us: up to when the sources were read. ``AllIdle.ADVANCE`` follows this time, because later rows
                are not known yet.
            held: whether the low watermark stays where it is, whatever the splits say.
        """
        wall_us = None if read_until_us is None else read_until_us + changes.wall_ahead_us
        risen_us = None if held else self.coalescer.advance(wall_us)
        if risen_us is not None:
            changes.material, self.moved_at_us = True, changes.now_us
        elif self.moved_at_us is None:
            self.moved_at_us = changes.now_us
        if self.us is not None and (changed or changes.material):  # otherwise the holder is the same
            self.history.rose(changes.now_us, self.us, self.coalescer.holder)
        self.epoch += changes.material
        return risen_us
