"""Checks the characters of names that users give."""

from __future__ import annotations

import unicodedata

_UNFIT = {"Cc", "Cs", "Zl", "Zp"}  # control characters, halves of characters, line and paragraph separators


def unfit_character(name: str) -> str | None:
    r"""The first forbidden character of a name, as written in Python; None for a name without one.

    Names stand in log lines, metrics and tables, where such a character would end a line or act on a terminal.

    >>> unfit_character("orders\n"), unfit_character("bestellungen-süd 2")
    ("'\\n'", None)
    """
    return next((ascii(c) for c in name if unicodedata.category(c) in _UNFIT), None)
