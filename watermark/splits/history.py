"""The rises of a low watermark in the last hour, and its holders. In memory, bounded.

Columns instead of records: 24 bytes an entry, so an hour of one entry a second is 86 kB, and a thousand streams
can each have one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass
from typing import Generic, TypeVar

Holder = TypeVar("Holder")

SPAN_US = 3_600_000_000
"""How far back a history reaches: an hour."""
_STEP_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Held(Generic[Holder]):
    """``holder`` was the holder at every rise from ``since_us`` until ``until_us``, microseconds since the epoch."""

    holder: Holder | None
    since_us: int
    until_us: int


class History(Generic[Holder]):
    """The rises of one low watermark: the last rise of every second."""

    def __init__(self) -> None:
        self._at_us, self._low_us = array("q"), array("q")
        self._holders: list[Holder | None] = []

    def rose(self, at_us: int, low_us: int, holder: Holder | None) -> None:
        """Note a rise, not before the last rise; it replaces an earlier rise of its second.

        O(1), or one short move of memory.
        """
        if self._at_us and at_us // _STEP_US == self._at_us[-1] // _STEP_US:
            self._at_us[-1], self._low_us[-1], self._holders[-1] = at_us, low_us, holder
            return
        self._at_us.append(at_us)
        self._low_us.append(low_us)
        self._holders.append(holder)
        past = max(0, self._old(at_us) - 1)  # the newest entry before the span tells who held when the span began
        del self._at_us[:past], self._low_us[:past], self._holders[:past]

    def thinned(self, now_us: int, most: int = 240) -> tuple[tuple[int, int], ...]:
        """Up to ``most`` entries (when, low watermark) of the span that ends now, oldest first: evenly chosen, always
        with the newest.
        """
        columns = list(zip(self._at_us, self._low_us, strict=True))[self._old(now_us) :]
        step = -(-len(columns) // most)
        return tuple(columns[::-1][::step][::-1]) if columns else ()

    def held(self, now_us: int) -> tuple[Held[Holder], ...]:
        """The holders in the span that ends now, newest first; one entry for each spell, also from before the span."""
        spells: list[Held[Holder]] = []
        for at_us, holder in zip(self._at_us, self._holders, strict=True):
            if not spells or spells[-1].holder != holder:
                if spells:
                    spells[-1] = Held(spells[-1].holder, spells[-1].since_us, at_us)
                spells.append(Held(holder, at_us, now_us))
        return tuple(spell for spell in reversed(spells) if spell.until_us >= now_us - SPAN_US)

    def _old(self, now_us: int) -> int:
        """How many entries are older than the span."""
        return bisect_left(self._at_us, now_us - SPAN_US)
