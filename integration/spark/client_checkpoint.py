"""The memory of a client of Spark Connect, instead of files in a query's checkpoint, which a client does not see.

A query that another process takes over holds for a grace before new splits are trusted (`lost_batch`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checkpoint import Farewell
    from .offset_log import OffsetEntry
    from .progress import Progress

_REMEMBERED = 100  # farewells of this process


class ClientCheckpoint:
    """See `FarewellFiles`; without what `mark_done` needs, which refuses a client."""

    checkpoint = "the checkpoint"

    def __init__(self, left: dict[str, Farewell]) -> None:
        self._left = left  # by token, of all queries of this process
        self.begins: Progress | None = None  # the batch by which a reader shows itself

    def write(self, farewell: Farewell) -> None:
        self._left.pop(farewell.token, None)  # so the newest is the last, also of a run that began long ago
        self._left[farewell.token] = farewell
        for token in [*self._left][:-_REMEMBERED]:
            del self._left[token]

    def read(self, token: str) -> Farewell | None:
        return self._left.get(token)

    def forget(self, token: str) -> None:
        self._left.pop(token, None)

    def committed(self, batch_id: int) -> bool:  # noqa: ARG002  # only the checkpoint shows that it was set back
        return True

    def lost_batch(self, resumes: str, *, runs: bool, left_behind: Farewell | None) -> int | None:
        """Return the batch before a reader's first, unless this process took its report; see `FarewellFiles`."""
        if self.begins is None or not any(resumes in json.dumps(each.start_offset) for each in self.begins.sources):
            return None
        over = self.begins.batch_id - (2 if runs else 1)
        return over if over >= 0 and (left_behind is None or left_behind.batch_id < over) else None

    def kafka_start(self, source: int) -> Mapping[str, Any] | None:  # noqa: ARG002  # only the checkpoint has it
        return None

    def newest_entry(self) -> OffsetEntry | None:
        return None
