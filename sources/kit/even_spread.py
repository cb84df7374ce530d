"""Chooses a reader for each split."""

from __future__ import annotations

import zlib


class EvenSpread:
    """Gives every split to the reader with the fewest splits, so that readers differ by at most one split.

    If several readers have the fewest, the split's id fixes where the search among them begins: the same splits in the
    same order go to the same readers in every process, and restarted processes do not all begin with the same reader.
    The checkpoint keeps the reader of each split, so a restart need not repeat the choices.

    >>> spread = EvenSpread()
    >>> [spread.owner(f"orders/{n}", 4) for n in range(6)]
    [2, 0, 3, 1, 3, 1]
    >>> spread.owner("orders/0", 4)
    2
    """

    def __init__(self) -> None:
        self._given: list[int] = []  # by reader
        self._waiting: dict[str, int] = {}  # split id -> the chosen reader

    def owner(self, split_id: str, num_subtasks: int) -> int:
        """Return the reader for a split; the same until the split is `placed`, or the number of readers changes."""
        if num_subtasks != len(self._given):
            self._given, self._waiting = [0] * num_subtasks, {}
        if split_id not in self._waiting:
            fewest, first = min(self._given), zlib.crc32(split_id.encode()) % num_subtasks
            turn = (step % num_subtasks for step in range(first, first + num_subtasks))
            owner = self._waiting[split_id] = next(subtask for subtask in turn if self._given[subtask] == fewest)
            self._given[owner] += 1
        return self._waiting[split_id]

    def placed(self, split_id: str) -> None:
        """Note that the split was given to its reader."""
        self._waiting.pop(split_id, None)
