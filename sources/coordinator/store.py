"""What the coordinators of one process share: values by key."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

__all__ = ["CoordinatorStore"]


class CoordinatorStore:
    """A map that several coordinators' threads use at once (Flink's `CoordinatorStore`).

    >>> store = CoordinatorStore()
    >>> store.put_if_absent("filter", "first"), store.put_if_absent("filter", "second")
    (None, 'first')
    >>> store.compute("hits", lambda hits: 1 if hits is None else hits + 1)
    1
    >>> store.get("filter"), store.remove("filter"), store.get("filter")
    ('first', 'first', None)
    """

    def __init__(self) -> None:
        self._values: dict[Hashable, object] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> object | None:
        """Return the value, None if there is none."""
        return self._values.get(key)

    def put_if_absent(self, key: Hashable, value: object) -> object | None:
        """Set the value if there is none, and return the one that was there before."""
        with self._lock:
            present = self._values.get(key)
            if present is None:
                self._values[key] = value
            return present

    def compute(self, key: Hashable, change: Callable[[object | None], object | None]) -> object | None:
        """Set the value to what `change` makes of it, and return that; None removes it. It is one step."""
        with self._lock:
            value = change(self._values.get(key))
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = value
            return value

    def remove(self, key: Hashable) -> object | None:
        """Remove and return the value, None if there was none."""
        with self._lock:
            return self._values.pop(key, None)
