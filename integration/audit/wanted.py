"""How much of a topic or of files an audit reads. Imports no client, for `lowmark --help`."""

from __future__ import annotations

from dataclasses import dataclass

ROWS = 1_000_000  # read by default


@dataclass(frozen=True, slots=True)
class Wanted:
    """The part to read.

    Attributes:
        rows: approximate number of the newest rows; None: no limit.
        last_us: span of time before now in which rows were written, by the records' timestamps; None: no limit.
    """

    rows: int | None = ROWS
    last_us: int | None = None
