"""Keys in the order of the moments at which they are due."""

from __future__ import annotations

from typing import Generic, TypeVar

from sortedcontainers import SortedList

Key = TypeVar("Key", bound=str | tuple[str, ...])


class Agenda(Generic[Key]):
    """Keys, each with the time at which it is due. Every call is O(log n).

    >>> agenda = Agenda[str]()
    >>> agenda.put("a", 30), agenda.put("b", 20), agenda.put("b", None), agenda.put_earlier("a", 40)
    (None, None, None, None)
    >>> agenda.next_us, agenda.take_due(29), agenda.take_due(30), agenda.next_us
    (30, None, 'a', None)
    """

    def __init__(self) -> None:
        self._due_us: dict[Key, int] = {}
        self._in_order: SortedList[tuple[int, Key]] = SortedList()

    @property
    def next_us(self) -> int | None:
        """When the first key is due; None: no key is due."""
        return self._in_order[0][0] if self._in_order else None

    def put(self, key: Key, us: int | None) -> None:
        """Set when a key is due; None: remove the key."""
        before_us = self._due_us.pop(key, None)
        if before_us is not None:
            self._in_order.remove((before_us, key))
        if us is not None:
            self._due_us[key] = us
            self._in_order.add((us, key))

    def put_earlier(self, key: Key, us: int) -> None:
        """Set when a key is due, unless the key is due earlier."""
        if key not in self._due_us or us < self._due_us[key]:
            self.put(key, us)

    def take_due(self, now_us: int) -> Key | None:
        """Take out the key that is due first; None: no key is due yet."""
        if not self._in_order or now_us < self._in_order[0][0]:
            return None
        _, key = self._in_order.pop(0)
        del self._due_us[key]
        return key
