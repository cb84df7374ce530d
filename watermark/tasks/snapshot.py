"""The coordinator's state as rows, one for each part that changes by itself: a task, a run, a source, a member.

    ("task", job, source, task)  ->  '{"task_id":"0","low_us":42,...}'        the row's key, and its state as JSON

A caller keeps the rows. Most tasks have said nothing since the rows were taken last, so only changed rows are taken:
whatever changes a part marks the part's key in ``RowChanges``. Nothing depends on time or memory, so equal states give
equal rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice

import msgspec

VERSION = 1
"""Grows with each change of the rows' form."""

Key = tuple[str, ...]
Rows = dict[Key, str]
ChangedRows = dict[Key, str | None]
MarkRow = Callable[..., None]
"""Called with the key of each row that changes."""

to_json = json.JSONEncoder(separators=(",", ":"), check_circular=False, default=msgspec.to_builtins).encode
"""Encode a value as JSON, without spaces and with keys in their order: a dataclass as its fields."""


class RowChanges:
    """The rows that changed since they were taken; None for a part that has gone."""

    def __init__(self, encoded: Callable[[Key], str | None]) -> None:
        self._encoded = encoded
        self._marked: dict[Key, None] = {}
        self._rows: ChangedRows = {}

    def mark(self, *key: str) -> None:
        """Mark a part as new, changed or gone. O(1)."""
        self._marked[key] = None

    def encode(self, most: int) -> bool:
        """Encode up to ``most`` rows now, so that less is left for ``take``. Returns whether any are left."""
        for key in list(islice(self._marked, most)):
            del self._marked[key]
            self._rows[key] = self._encoded(key)
        return bool(self._marked)

    def take(self) -> ChangedRows:
        self.encode(len(self._marked))
        rows, self._rows = self._rows, {}
        return rows


def nobody_keeps(*_key: str) -> None:
    """Mark nothing: for parts whose rows nobody takes."""
