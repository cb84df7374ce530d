"""Advises a strategy for rows, and explains each number in it by counts of the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lowmark.watermark.duration import rough_duration_us
from lowmark.watermark.lateness import LatenessHistogram
from lowmark.watermark.printable import counted, printable
from lowmark.watermark.strategy import FUTURE_GUARD_US, WatermarkStrategy

from .profile import SplitProfile

SHARE = 0.9999
"""The share of the rows that the advised bound waits for."""

_ROUND = [  # growing
    (count * unit_us, f"{count} {unit}")
    for unit, unit_us, counts in (
        ("second", 1_000_000, (1, 2, 3, 5, 10, 12, 15, 20, 30, 45)),
        ("minute", 60_000_000, (1, 2, 3, 5, 10, 15, 20, 30, 45)),
        ("hour", 3_600_000_000, (1, 2, 3, 6, 12)),
        ("day", 86_400_000_000, (1, 2, 3, 5, 7, 10, 14, 30, 60, 90, 180, 365, 1_000, 10_000, 100_000)),
    )
    for count in counts
]
_NAMES_SHOWN = 3
_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class Advice:
    """A strategy, as an object and as code to paste."""

    strategy: WatermarkStrategy
    lines: tuple[tuple[str, str], ...]

    def code(self) -> str:
        """Python code: one assignment to ``strategy``, each call on its own line with its reason."""
        (first, why), *more = self.lines
        calls = [f"    WatermarkStrategy.{first}  # {why}", *(f"    .{call}  # {reason}" for call, reason in more)]
        return "\n".join(["strategy = (", *calls, ")"])


def advise(profiles: Mapping[str, tuple[SplitProfile, int | None]], idle_timeout_us: int) -> Advice:
    """Make a strategy for splits.

    Args:
        profiles: for each name the counts of the split, and for how long the split had no row in the end, if known.
        idle_timeout_us: the silence after which a split is worth leaving out.

    >>> import numpy as np
    >>> rows = SplitProfile()
    >>> times = np.array([10, 30, 19, 40]) * 1_000_000
    >>> rows.add(times, np.array([True] * 4), latest_us=np.full(4, 2**62))
    >>> print(advise({"orders/3": (rows, None)}, 60_000_000).code())
    strategy = (
        WatermarkStrategy.for_bounded_out_of_orderness("12 seconds")  # all rows; orders/3 comes up to 11s late
    )
    """
    strategy, first = _bounded(profiles)
    lines = [first]
    silent = {name: us for name, (_, us) in profiles.items() if us is not None and us > idle_timeout_us}
    if silent:
        longest_us, returned = max((profile.silence.length_us, name) for name, (profile, _) in profiles.items())
        timeout_us, text = round_up(max(idle_timeout_us, longest_us * 3 // 2))
        quiet = {name: us for name, us in silent.items() if us > timeout_us}
        if quiet:
            name = max(quiet, key=lambda each: quiet[each])
            why = f"{_shown(name)} has had no row for {rough_duration_us(quiet[name])}"
            why += f", {len(quiet) - 1} more are silent, too" if len(quiet) > 1 else ""
            if longest_us:
                why += f"; the longest silence that ended was {rough_duration_us(longest_us)} of {_shown(returned)}"
            strategy = strategy.with_idleness(text)
            lines.append((f'with_idleness("{text}")', why))
    ahead = {name: profile for name, (profile, _) in profiles.items() if profile.future_rows}
    if ahead:
        furthest = max(ahead, key=lambda each: ahead[each].furthest_future_us)
        rows = counted(sum(profile.future_rows for profile in ahead.values()), "row")
        ahead_us = ahead[furthest].furthest_future_us + FUTURE_GUARD_US
        why = f"the default; {rows} of bad clocks, {_shown(furthest)} up to {rough_duration_us(ahead_us)} ahead"
        lines.append(('with_future_guard("5 minutes")', f"{why}: they move nothing"))
    return Advice(strategy, tuple(lines))


def round_up(us: int) -> tuple[int, str]:
    """Round a duration up to one that people write, and format it.

    >>> round_up(10_000_001), round_up(61_000_000), round_up(0)
    ((12000000, '12 seconds'), (120000000, '2 minutes'), (1000000, '1 second'))
    """
    found_us, text = next(((each, text) for each, text in _ROUND if each >= us), _ROUND[-1])
    return found_us, text if text.startswith("1 ") else f"{text}s"


def _bounded(profiles: Mapping[str, tuple[SplitProfile, int | None]]) -> tuple[WatermarkStrategy, tuple[str, str]]:
    every = LatenessHistogram()
    for profile, _ in profiles.values():
        every.merge(profile.disorder)
    if every.largest_us == 0:
        call = "for_monotonous_timestamps()"
        return WatermarkStrategy.for_monotonous_timestamps(), (call, "no row lies behind an earlier one of its split")
    latest = max(profiles, key=lambda name: profiles[name][0].disorder.largest_us)
    bound_us, text = round_up(every.quantile_us(SHARE))
    most_us, most_text = round_up(every.largest_us)
    if most_us <= 2 * bound_us:
        bound_us, text = most_us, most_text
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(text)
    call = f'for_bounded_out_of_orderness("{text}")'
    if bound_us >= every.largest_us:
        why = f"all rows; {_shown(latest)} comes up to {rough_duration_us(every.largest_us)} late"
        return strategy, (call, why)
    beyond = {
        name: (profile.disorder.rows_above(bound_us), profile.disorder.largest_us)
        for name, (profile, _) in profiles.items()
        if profile.disorder.largest_us > bound_us
    }
    worst = sorted(beyond.items(), key=lambda each: each[1], reverse=True)
    told = [
        f"{counted(max(1, rows), 'row')} of {_shown(name)} {'needs' if rows <= 1 else 'need'} {rough_duration_us(us)}"
        for name, (rows, us) in worst[:_NAMES_SHOWN]
    ]
    told += [f"and some of {len(worst) - _NAMES_SHOWN} more splits"] if len(worst) > _NAMES_SHOWN else []
    return strategy, (call, f"{100 * SHARE:g} % of rows; {', '.join(told)}")


def _shown(name: str) -> str:
    """Shorten a name for a comment, on one line."""
    text = printable(name)
    return text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]}..."
