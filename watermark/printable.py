"""Names as they may be shown: whatever they hold, they do nothing to a terminal and end no line."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""The text with escapes for what a terminal would act upon: names of splits come from data, and may hold anything.

    >>> print(printable("orders/3\x1b[2J\n"))
    orders/3\x1b[2J\n
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
