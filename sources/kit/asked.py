"""Notes the splits in a planner's questions, so that the planner can forget all other splits."""

from __future__ import annotations

from collections.abc import Callable, Iterable

FORGET_SECONDS = 600.0
"""How long a split is remembered after the last question about it."""


class AskedAbout:
    """Remembers when splits were last asked about, because a stream may have had many splits over years.

    A single question is no proof, because it may be about some of the splits.

    >>> times = iter([0.0, 600.0, 600.5])
    >>> asked = AskedAbout(lambda: next(times))
    >>> asked.see(["a", "b"]), asked.see(["b"]), asked.see(["b"])
    ([], [], ['a'])
    """

    def __init__(self, now_seconds: Callable[[], float]) -> None:
        self._now_seconds = now_seconds
        self._seconds: dict[str, float] = {}

    def see(self, splits: Iterable[str]) -> list[str]:
        """Note that these splits are asked about now; return, once, the splits without a question for too long."""
        now = self._now_seconds()
        self._seconds |= dict.fromkeys(splits, now)
        over = [split for split, seconds in self._seconds.items() if now > seconds + FORGET_SECONDS]
        for split in over:
            del self._seconds[split]
        return over
