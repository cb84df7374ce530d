"""Makes names safe to show: no character of a name controls a terminal or ends a line."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Escape the unprintable characters of a text, because names of splits come from data.

    >>> print(printable("orders/3\x1b[2J\n"))
    orders/3\x1b[2J\n
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
