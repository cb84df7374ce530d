"""The rises of a low watermark in the last hour, and its holders. In memory, bounded.

Columns instead of records: 24 bytes an entry, so an hour of one entry a second is 86 kB, and a thousand streams
can each have one.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

Holder = TypeVar("Holder")

HOUR_US = 3_600_000_000
"""How far back a history reaches, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Held(Generic[Holder]):
    """``holder`` was the holder at every rise from ``since_us`` until ``until_us``, microseconds since the epoch."""

    holder: Holder | None
    since_us: int
    until_us: int


class History(Generic[Holder]):
    """The rises of one low watermark: the last rise of every ``step_us``, as far back as ``span_us``.

    Args:
        step_us: length of a step with at most one entry, microseconds.

    Raises:
        ValueError: the step is not positive, or longer than the span.
    """

    def __init__(self, span_us: int = HOUR_US, step_us: int = 1_000_000) -> None:
        if not 0 < step_us <= span_us:
            raise ValueError(f"history: expected 0 < step <= span, got a step of {step_us} us in {span_us} us")
        self._span_us, self._step_us = span_us, step_us
        self._at_us, self._low_us = array("q"), array("q")
        self._holders: list[Holder | None] = []

    def __len__(self) -> int:
        return len(self._holders)

    def rose(self, at_us: int, low_us: int, holder: Holder | None) -> None:
        """Note a rise; the last rise in a step replaces earlier rises of the step. O(1), or one short move of memory.

        Args:
            at_us: now, microseconds since the epoch; not before the last rise.
            low_us: the new low watermark, 64 bits.
        """
        if self._at_us and at_us // self._step_us == self._at_us[-1] // self._step_us:
            self._at_us[-1], self._low_us[-1], self._holders[-1] = at_us, low_us, holder
            return
        self._at_us.append(at_us)
        self._low_us.append(low_us)
        self._holders.append(holder)
        old = self._old(at_us)
        del self._at_us[:old], self._low_us[:old], self._holders[:old]

    def thinned(self, now_us: int, most: int) -> tuple[tuple[int, int], ...]:
        """(when, low watermark) of the span that ends now, oldest first: evenly chosen, always with the newest.

        Args:
            most: the largest number of entries, 1 or more.
        """
        columns = list(zip(self._at_us, self._low_us, strict=True))[self._old(now_us) :]
        step = -(-len(columns) // most)
        return tuple(columns[::-1][::step][::-1]) if columns else ()

    def held(self, now_us: int) -> tuple[Held[Holder], ...]:
        """The holders in the span that ends now, newest first; one entry for each spell."""
        spells: list[Held[Holder]] = []
        rises = zip(self._at_us, self._holders, strict=True)
        for at_us, holder in islice(rises, self._old(now_us), None):
            if not spells or spells[-1].holder != holder:
                if spells:
                    spells[-1] = Held(spells[-1].holder, spells[-1].since_us, at_us)
                spells.append(Held(holder, at_us, now_us))
        return tuple(reversed(spells))

    def _old(self, now_us: int) -> int:
        """How many entries are older than the span."""
        old = 0
        while old < len(self._at_us) and self._at_us[old] < now_us - self._span_us:
            old += 1
        return old
