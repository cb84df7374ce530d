"""Makes names and errors safe to show in a line: no character controls a terminal or ends the line."""

from __future__ import annotations

from collections.abc import Sequence


def printable(text: str) -> str:
    r"""Escape the unprintable characters of a text, because names of splits come from data.

    >>> print(printable("orders/3\x1b[2J\n"))
    orders/3\x1b[2J\n
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def counted(number: int, what: str, verb: tuple[str, str] | None = None) -> str:
    """Return a number, the noun that it counts (`what` is its singular), and a verb, given as (for one, for more).

    >>> counted(1, "row"), counted(2_000, "batch"), counted(1, "file", ("is", "are"))
    ('1 row', '2,000 batches', '1 file is')
    """
    end = "" if number == 1 else "es" if what.endswith("ch") else "s"
    return f"{number:,} {what}{end}{f' {verb[number != 1]}' if verb else ''}"


def some_of(names: Sequence[str], most: int = 20) -> str:
    """Return the first names of a list in one line, and how many more there are.

    >>> some_of(["a", "b"]), some_of(["a", "b", "c"], 1)
    ('a, b', 'a and 2 more')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def and_others(number: int) -> str:
    """Return the words for others of which a sentence holds, too.

    >>> and_others(2), and_others(1), and_others(0)
    (', as have 2 others', ', as has 1 other', '')
    """
    return f", as {'has' if number == 1 else 'have'} {counted(number, 'other')}" if number > 0 else ""


def first_line(told: object) -> str:
    r"""Return the first line of a text, or of the message of an error; empty if there is none.

    >>> first_line(OSError("\nno disk\nat java.io")), first_line(EOFError())
    ('no disk', '')
    """
    return next(iter(str(told).strip().splitlines()), "")


def in_one_line(failed: BaseException) -> str:
    r"""Return the message of an error in one line of at most 300 characters.

    >>> in_one_line(OSError("no disk\n  at java.io"))
    'no disk at java.io'
    """
    return " ".join(str(failed).split())[:300]
