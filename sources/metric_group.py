"""Counters and gauges of enumerators and readers, by name, without Prometheus."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeVar

_log = logging.getLogger("lowmark")

Name = TypeVar("Name", bound=Hashable)
Number = TypeVar("Number", int, float)


class Counter:
    """A number that only grows."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def inc(self, by: int = 1) -> None:
        if by < 0:
            raise ValueError(f"a counter only grows, got {by}")
        self.count += by


class MetricGroup:
    """The metrics of one enumerator or reader (Flink's `MetricGroup`). Names are in snake_case, with their unit.

    >>> group = MetricGroup()
    >>> group.counter("records_in").inc(3)
    >>> group.gauge("unassigned_splits", lambda: 2)
    >>> group.values()
    {'records_in': 3, 'unassigned_splits': 2}
    """

    def __init__(self) -> None:
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Callable[[], float]] = {}

    def counter(self, name: str) -> Counter:
        """Return the counter of that name; the first call makes it."""
        return self._counters.setdefault(name, Counter())

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Show the results of `read` under that name; a later gauge of the same name replaces it."""
        self._gauges[name] = read

    def values(self) -> dict[str, float]:
        """Return the values by name, without gauges that raise."""
        # Reads copies, because the thread of the owner may add a counter or a gauge meanwhile.
        values: dict[str, float] = {name: counter.count for name, counter in self._counters.copy().items()}
        for name, read in self._gauges.copy().items():
            try:
                values[name] = read()
            except Exception:  # noqa: BLE001  # the owner may be changing the value, or the gauge is broken
                _log.debug("the gauge %s cannot be read", name, exc_info=True)
        return dict(sorted(values.items()))


def added_up(counted: Iterable[Mapping[Name, Number]]) -> dict[Name, Number]:
    """Add up counts by name.

    >>> added_up([{"data_losses": 1, "lost_offsets": 0}, {"data_losses": 2}])
    {'data_losses': 3, 'lost_offsets': 0}
    """
    sums: dict[Name, Number] = {}
    for each in counted:
        for name, count in each.items():
            sums[name] = sums[name] + count if name in sums else count
    return sums
