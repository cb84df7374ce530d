"""The changes of one event, collected while the event is handled: all of them are made before anything is decided."""

from __future__ import annotations

from dataclasses import dataclass, field

from lowmark.watermark.state import SplitId, SplitState

from .events import SplitReturnedLate


@dataclass(slots=True)
class Changes:
    """The changes that one event made so far."""

    now_us: int
    wall_ahead_us: int = 0  # as in `SplitWatermarks.handle`
    before: dict[SplitId, SplitState] = field(default_factory=dict)  # the first state of each split that changed
    late: list[SplitReturnedLate] = field(default_factory=list)
    material: bool = False  # whether the snapshot changed in a way that a restart must know

    @property
    def wall_us(self) -> int:
        return self.now_us + self.wall_ahead_us

    def returned(self, split: SplitId, own_us: int | None, low_us: int | None, rows: int | None) -> bool:
        """Note that a split came in at ``own_us``, if that is below the low watermark ``low_us``; return whether."""
        if own_us is None or low_us is None or own_us >= low_us:
            return False
        self.late.append(SplitReturnedLate(split, low_us - own_us, rows))
        return True
