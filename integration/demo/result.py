"""The demo's result.

Every figure is counted from the actions of the two queries:

    rows in                      observed by Spark at the source of each query
    rows in windows              summed over the query's emitted windows and the open windows in its state
    rows dropped                 the rest: their window was emitted without them
    windows wrong, missing       emitted with a count unequal to the regenerated rows; or neither emitted nor open
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lowmark.sources.generator import SplitScript, StreamScript

from .feed import MINUTE_US


@dataclass(frozen=True, slots=True)
class SplitResult:
    """The counts of one split's rows in one query."""

    rows_in: int
    rows_emitted: int
    rows_open: int

    @property
    def rows_in_windows(self) -> int:
        return self.rows_emitted + self.rows_open

    @property
    def rows_dropped(self) -> int:
        return self.rows_in - self.rows_in_windows


@dataclass(frozen=True, slots=True)
class LaneResult:
    """The result of one query.

    Attributes:
        watermark_us: the watermark that Spark used last.
        holder: the split that determines it: with the smallest time in lowmark, with the largest natively.
    """

    splits: Mapping[str, SplitResult]
    windows: int
    windows_wrong: int
    windows_missing: int
    watermark_us: int
    holder: str | None

    @property
    def total(self) -> SplitResult:
        """The counts of all splits together."""
        splits = self.splits.values()
        return SplitResult(
            sum(split.rows_in for split in splits),
            sum(split.rows_emitted for split in splits),
            sum(split.rows_open for split in splits),
        )

    def to_json(self, start_us: int) -> dict[str, Any]:
        """The figures for `json.dumps`; the watermark in seconds after the stream's start."""
        total = self.total
        return {
            "rows_in": total.rows_in,
            "rows_dropped": total.rows_dropped,
            "rows_in_windows": total.rows_in_windows,
            "rows_in_open_windows": total.rows_open,
            "windows": self.windows,
            "windows_wrong": self.windows_wrong,
            "windows_missing": self.windows_missing,
            "final_watermark_seconds": (self.watermark_us - start_us) / 1e6,
            "held_by": self.holder,
        }


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The results of both queries on the same rows.

    Attributes:
        states: state of each split when the last rows had been read.
    """

    script: StreamScript
    seed: int
    native: LaneResult
    lowmark: LaneResult
    states: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return one JSON object, equal for equal seeds on any day and from any source."""
        start_us = self.script.start_us
        return {
            "seed": self.seed,
            "native": self.native.to_json(start_us),
            "lowmark": self.lowmark.to_json(start_us),
            "splits": {split.name: self._split_json(split) for split in self.script.splits},
        }

    def _split_json(self, split: SplitScript) -> dict[str, Any]:
        native, lowmark = self.native.splits[split.name], self.lowmark.splits[split.name]
        return {
            "script": described(self.script, split),
            "rows_in": lowmark.rows_in,
            "native": {"rows_in_windows": native.rows_in_windows, "rows_dropped": native.rows_dropped},
            "lowmark": {"rows_in_windows": lowmark.rows_in_windows, "rows_dropped": lowmark.rows_dropped},
            "state": self.states[split.name],
        }


def described(script: StreamScript, split: SplitScript) -> str:
    """A split's behaviour in a few words."""
    if split.behind_us:
        return f"{split.behind_us // MINUTE_US} minutes behind"
    if split.silent_from_tick is not None:
        return f"silent after {split.silent_from_tick * script.tick_us // MINUTE_US} min"
    if split.stray_tick is not None:
        return "1 row a year ahead"
    return "regular"
