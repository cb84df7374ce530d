"""The beats of sources: each source begins a round once in an interval, at its own moment, to spread the questions."""

from __future__ import annotations

# The eighths of an interval, in the order in which sources get them: 0 to 7 with their three bits reversed, so that the
# moments of few sources, too, lie evenly.
_EIGHTHS = (0, 4, 2, 6, 1, 5, 3, 7)


class Beats(dict[tuple[str, str], int]):
    """When each source that has a task begins its next round.

    >>> beats = Beats(interval_us=80)
    >>> beats.begin(("job", "a"), 1_000), beats.begin(("job", "b"), 1_000)
    (None, None)
    >>> beats["job", "a"], beats["job", "b"]
    (1080, 1040)
    >>> beats.go_on(("job", "b"), 1_300); beats["job", "b"]
    1360
    """

    def __init__(self, *, interval_us: int) -> None:
        super().__init__()
        self._interval_us = interval_us
        self._zero_us = 0  # when the first source came
        self._next_eighth = 0

    def begin(self, key: tuple[str, str], now_us: int) -> None:
        """Give a source its moment in the interval. The first source begins a whole interval from now."""
        if not self:
            self._zero_us, self._next_eighth = now_us, 0
        own_us = self._zero_us + _EIGHTHS[self._next_eighth] * self._interval_us // len(_EIGHTHS)
        self._next_eighth = (self._next_eighth + 1) % len(_EIGHTHS)
        self[key] = now_us + self._interval_us - (now_us - own_us) % self._interval_us

    def go_on(self, key: tuple[str, str], now_us: int) -> None:
        """Set the next beat of a source that has begun a round: its first beat after now."""
        missed = (now_us - self[key]) // self._interval_us
        self[key] += self._interval_us * (missed + 1)
