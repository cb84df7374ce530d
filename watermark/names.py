"""Limits of the names that users give: length and characters."""

from __future__ import annotations

import unicodedata

MOST_NAME = 1_000
"""Characters of the longest name or token, because a coordinator takes no longer one."""

_UNFIT = {"Cc", "Cs", "Zl", "Zp"}  # control characters, halves of characters, line and paragraph separators


def unfit_character(name: str) -> str | None:
    r"""The first forbidden character of a name, as written in Python; None for a name without one.

    Names stand in log lines, metrics and tables, where such a character would end a line or act on a terminal.

    >>> unfit_character("orders\n"), unfit_character("bestellungen-süd 2")
    ("'\\n'", None)
    """
    return next((ascii(c) for c in name if unicodedata.category(c) in _UNFIT), None)
