"""Paired figures and the rows of the table.

Rule 1: compared programs run in turns (A B A B ...), and a ratio is computed per pair, so that other load of the
        machine affects both. The table shows the median and both ends of the ratios, never the best pair.
Rule 2: a bound is judged by the median, and a row that misses its bound stays in the table.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and both ends of paired figures."""

    median: float
    low: float
    high: float
    pairs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values), len(values))


@dataclass(frozen=True, slots=True)
class Bound:
    """A required limit: a maximum of the ratio, of the added milliseconds or of our figure, or our exact figure."""

    limit: float
    of: str  # "ratio", "added", "at most" or "wrapped"

    def __str__(self) -> str:
        if self.of == "at most":
            return f"≤ {self.limit:g}"
        return f"≤ {self.limit:g} x" if self.of == "ratio" else f"≤ {self.limit:g} more" if self.of == "added" else (
            f"= {self.limit:g}"
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `native` and `wrapped` are medians in `unit`; both are None without a measurement."""

    section: str
    what: str
    unit: str
    native: float | None
    wrapped: float | None
    ratio: Spread | None = None
    added: Spread | None = None
    bound: Bound | None = None
    note: str = ""

    @classmethod
    def pairs(
        cls,
        section: str,
        what: str,
        unit: str,
        native: Sequence[float],
        wrapped: Sequence[float],
        *,
        bound: Bound | None = None,
        note: str = "",
    ) -> Row:
        both = list(zip(native, wrapped, strict=True))
        return cls(
            section,
            what,
            unit,
            statistics.median(native),
            statistics.median(wrapped),
            Spread.of([w / n for n, w in both]),
            Spread.of([w - n for n, w in both]),
            bound,
            note,
        )

    @property
    def met(self) -> bool | None:
        """Whether the bound holds, by the median; None without a bound."""
        if self.bound is None:
            return None
        if self.bound.of == "wrapped":
            return self.wrapped == self.bound.limit
        if self.bound.of == "at most":
            return self.wrapped is not None and self.wrapped <= self.bound.limit
        judged = self.ratio if self.bound.of == "ratio" else self.added
        return judged is not None and judged.median <= self.bound.limit
