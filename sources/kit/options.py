"""Checks of source options for all connectors; a fault raises an error of the connector."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar

from lowmark.watermark import LowmarkError, duration_us
from lowmark.watermark.errors import shown


class InvalidSourceOption(LowmarkError, ValueError):
    """An invalid option of a source. The error never has values of secrets."""

    option: str  # its name
    got: str  # the given value, as text
    expected: str  # the accepted values
    hint: str  # what to do
    _fact = "{_source}, option {option}: expected {expected}, got {got:.200}"
    _source: ClassVar[str] = "source"  # name of the source class


Refusal = type[InvalidSourceOption]


def check_just_one(given: Mapping[str, object], refusal: Refusal) -> None:
    """Refuse the options, name -> value, unless exactly one is given; None: not given."""
    passed = [name for name, value in given.items() if value is not None]
    if len(passed) != 1:
        got = " and ".join(passed) if passed else "none of them"
        raise refusal(", ".join(given), got, "exactly one of them", "say what to read.")


def listed(given: object) -> list[Any]:
    """Return the entries of a list. A text, and what is no list, is an entry itself, for the check of the entries.

    >>> listed(("a", "b")), listed("a"), listed(None)
    (['a', 'b'], ['a'], [None])
    """
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]


def chosen_columns(given: object, known: Sequence[str] | None, refusal: Refusal, hint: str) -> tuple[str, ...]:
    """Return the names of columns, some of the known ones, each once. None: any name may be known later."""
    names = listed(given)
    unknown = [name for name in names if not isinstance(name, str) or (known is not None and name not in known)]
    if unknown or isinstance(given, str) or not names or len(set(names)) < len(names):
        expected = "names of columns" if known is None else f"some of {', '.join(known)}"
        said = f"write [{given!r}]." if isinstance(given, str) and not unknown else hint
        raise refusal("columns", shown(unknown[0] if unknown else given), f"{expected}, each once", said)
    return tuple(names)


def one_of(given: str, option: str, values: Sequence[str], refusal: Refusal) -> str:
    """Return a word that is one of the allowed words."""
    if given not in values:
        raise refusal(option, shown(given), " or ".join(f'"{each}"' for each in values), "choose one.")
    return given


def check_count(given: object, option: str, refusal: Refusal, hint: str, *, most: int | None = None) -> None:
    """Refuse what is no whole number of 1 or more, or above the largest one."""
    if type(given) is not int or given < 1 or (most is not None and given > most):
        wanted = "a whole number, 1 or more" if most is None else f"a whole number, 1 to {most:,}"
        raise refusal(option, shown(given), wanted, hint)


def check_flags(given: Mapping[str, object], refusal: Refusal) -> None:
    """Refuse the options, name -> value, that are neither True nor False: the text "false" would count as true."""
    for option, value in given.items():
        if not isinstance(value, bool):
            raise refusal(option, shown(value), "True or False", "write it without quotes.")


def goes_on(on_data_loss: str, refusal: Refusal) -> bool:
    """Return whether reading goes on without rows that were deleted before they were read."""
    return one_of(on_data_loss, "on_data_loss", ("error", "go_on"), refusal) == "go_on"


PATTERN_ERRORS = (re.error, OverflowError, RecursionError, ValueError)
"""What `re.compile` raises: ValueError for a number of more digits than Python reads."""


def checked_pattern(text: str, option: str, refusal: Refusal) -> str:
    """Return a valid regular expression."""
    given: object = text
    if not isinstance(given, str):
        raise refusal(option, shown(given), "a regular expression", "write it as a text.")
    try:
        re.compile(text)
    except PATTERN_ERRORS as wrong:
        raise refusal(option, repr(text), "a regular expression", f"{wrong}; it is Python's syntax.") from None
    return text


def seconds_of(given: str | timedelta, option: str, refusal: Refusal, *, zero: bool = False) -> float:
    """Return a duration in seconds, above 0 unless zero is allowed."""
    try:
        found = duration_us(given, what=option) / 1_000_000
    except LowmarkError as wrong:
        raise refusal(option, repr(given), 'a duration such as "5 minutes"', str(wrong)) from None
    if found < 0 or (found == 0 and not zero):
        raise refusal(option, repr(given), "a duration above 0", "use None where it may be left out.")
    return found
