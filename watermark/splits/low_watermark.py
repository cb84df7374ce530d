"""The low watermark of one stream: what follows from the reports and the states of its splits, and what is told of it.

The low watermark is the minimum over the splits that take part (``coalescer.py``), and never goes back. It is looked
at once for each event, after all changes of the event.
"""

from __future__ import annotations

from lowmark.watermark.protocol import NotifyNewLowWatermark
from lowmark.watermark.state import SplitId
from lowmark.watermark.strategy import WatermarkStrategy

from .changes import Changes
from .coalescer import Coalescer
from .history import History

ALL_IDLE_STEP_US = 1_000_000
"""How often callers should look while all splits are idle and the low watermark follows the time of reading."""

_RISES_SHOWN = 240


class LowWatermark:
    """Keeps the low watermark, who held it, and when it rose.

    Args:
        strategy: has the all-idle policy, the percentile and the quorum.
        low_us: the low watermark before a restart, microseconds since the epoch; None: there was none.
        job_id: the application or query; goes into notifications.
        source_id: the stream's name.
        task_id: the task that reads the splits; goes into notifications.
        moved_at_us: the moment of the restart; None: the stream begins with its first event.
    """

    def __init__(
        self,
        strategy: WatermarkStrategy,
        low_us: int | None,
        *,
        job_id: str,
        source_id: str,
        task_id: str,
        moved_at_us: int | None = None,
    ) -> None:
        self.coalescer = Coalescer(
            low_us,
            strategy.all_idle,
            all_idle_delay_us=strategy.all_idle_delay_us,
            percentile=strategy.percentile,
            quorum=strategy.quorum,
        )
        self.history = History[SplitId]()
        """Who held the low watermark."""
        self.moved_at_us = moved_at_us
        """When the low watermark rose last, or began; None before the first event."""
        self.epoch = 0
        """Grows with each material change."""
        self._delay_us = strategy.all_idle_delay_us
        self._job_id, self._source_id, self._task_id = job_id, source_id, task_id

    @property
    def us(self) -> int | None:
        """The low watermark, microseconds since the epoch; never decreases; None before the first."""
        return self.coalescer.low_us

    @property
    def holder(self) -> SplitId | None:
        """The split that holds the low watermark now; None: no split holds."""
        return self.coalescer.holder

    def rises(self, now_us: int) -> tuple[tuple[int, int], ...]:
        """(when, low watermark), microseconds, for the last hour, oldest first; up to 240, evenly chosen."""
        return self.history.thinned(now_us, _RISES_SHOWN)

    def next_us(self, now_us: int) -> int | None:
        """When the low watermark could rise by time alone, because all splits are idle; None: only by an event."""
        if self._delay_us is None or not self.coalescer.all_idle:
            return None
        return now_us if self.us is None else self.us + self._delay_us + ALL_IDLE_STEP_US

    def begin(self, now_us: int) -> None:
        """Note the moment of an event; with the first event the low watermark begins."""
        if self.moved_at_us is None:
            self.moved_at_us = now_us

    def regressions_uncounted(self) -> RegressionsUncounted:
        """Count no report below its split's own watermark meanwhile: it is a claim, or it was counted before."""
        return RegressionsUncounted(self.coalescer)

    def follow(
        self, changes: Changes, *, changed: bool, read_until_us: int | None, held: bool = False
    ) -> NotifyNewLowWatermark | None:
        """Take the minimum after all changes of an event. Returns a notification if the low watermark rose.

        Args:
            changed: whether the event changed the state of a split, or a split came in late.
            read_until_us: up to when the sources were read. ``AllIdle.ADVANCE`` follows this time, because later rows
                are not known yet.
            held: whether the low watermark stays where it is, whatever the splits say.
        """
        risen_us = None if held else self.coalescer.advance(read_until_us)
        if risen_us is not None:
            changes.material, self.moved_at_us = True, changes.now_us
        low_us = self.us
        if low_us is not None and (changed or changes.material):  # otherwise the holder is the same
            self.history.rose(changes.now_us, low_us, self.holder)
        self.epoch += changes.material
        if risen_us is None:
            return None
        return NotifyNewLowWatermark(self._job_id, self._source_id, self._task_id, changes.now_us, risen_us)


class RegressionsUncounted:
    """Puts the count of regressions back at its end. A class, because a generator costs 1 us more for each event."""

    __slots__ = ("_coalescer", "_regressions")

    def __init__(self, coalescer: Coalescer) -> None:
        self._coalescer, self._regressions = coalescer, coalescer.regressions

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._coalescer.regressions = self._regressions
