"""Durations given by users: converts Spark's, ISO's and our own spelling to microseconds.

The accepted forms are Spark's for ``withWatermark`` and triggers (``IntervalUtils.stringToInterval``), ISO-8601
(``java.time.Duration``), ``timedelta``, and the output of `format_duration_us`, because users paste that output.
"""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction

from .errors import InvalidDuration, shown
from .moment import MOST_US

_SECOND_US = 1_000_000
_UNIT_US = {
    "week": 7 * 86_400 * _SECOND_US,
    "day": 86_400 * _SECOND_US,
    "hour": 3_600 * _SECOND_US,
    "minute": 60 * _SECOND_US,
    "second": _SECOND_US,
    "millisecond": 1_000,
    "microsecond": 1,
}
# From a duration of the first length on, people do not need differences below the second length.
_ROUGH_US = (
    (_UNIT_US["day"], _UNIT_US["hour"]),
    (_UNIT_US["hour"], _UNIT_US["minute"]),
    (10 * _SECOND_US, _SECOND_US),
    (_SECOND_US, 100_000),
    (1_000, 1_000),
)
_SYMBOL_UNIT = {"d": "day", "h": "hour", "m": "minute", "s": "second", "ms": "millisecond", "us": "microsecond"}
_CALENDAR_UNITS = ("month", "year")
_PART = re.compile(r"\s*([+-]?)\s*(\d+(?:\.\d{1,9})?|\.\d{1,9})(?:\s+([a-z]+)|(d|h|m|s|ms|us))(?=\s|$)")
_ISO_NUMBER = r"([+-]?\d+)"
_ISO = re.compile(
    rf"([+-]?)p(?:{_ISO_NUMBER}w)?(?:{_ISO_NUMBER}d)?"
    rf"(?:t(?=[+\-\d])(?:{_ISO_NUMBER}h)?(?:{_ISO_NUMBER}m)?(?:([+-]?\d+(?:\.\d{{1,9}})?)s)?)?"
)
_ISO_CALENDAR = re.compile(r"[+-]?p[^t]*\d[ym]")
_LONGEST_TEXT = 1_000  # characters; Python itself reads no number of more than 4,300 digits
_ISO_UNITS = ("week", "day", "hour", "minute", "second")
_HINT = 'write "10 seconds", "1m 30s", "PT10S" or timedelta(seconds=10).'


def duration_us(value: str | timedelta, *, what: str) -> int:
    """A duration as whole microseconds, 0 or more. Parts of a microsecond are cut off, as Spark does.

    Args:
        value: a ``timedelta``, a Spark interval ("10 seconds", "interval 1 minute 30 seconds", "1.5 seconds";
            any case, singular or plural, week to microsecond), an ISO-8601 duration ("PT10S", "P1DT2H"), or a printed
            duration ("1m 30s", "200ms"; d, h, m, s, ms or us directly behind the number).
        what: the setting of the duration, for the error.

    Raises:
        InvalidDuration: the value is no duration, is negative, has months or years (their length varies), or
            is a bare number (its unit would be a guess).

    >>> duration_us("1 minute 30 seconds", what="idleness")
    90000000
    >>> duration_us("PT0.5S", what="idleness"), duration_us(format_duration_us(500_000), what="idleness")
    (500000, 500000)
    """
    given: object = value  # users write 10 in spite of the types
    if isinstance(given, timedelta):
        total_us = given // timedelta(microseconds=1)
    elif isinstance(given, str):
        total_us = _parse_us(given, what)
    elif isinstance(given, (int, float)) and not isinstance(given, bool):
        number = shown(given)
        raise InvalidDuration(what, number, "a number has no unit", f'write "{number} seconds" or another unit.')
    else:
        raise InvalidDuration(what, shown(given), f"a {type(given).__name__} has no length", _HINT)
    if total_us < 0:
        raise InvalidDuration(what, shown(value), "it is negative", "use 0 or more.")
    if total_us > MOST_US:  # Spark keeps intervals in 64 bits (292,271 years)
        raise InvalidDuration(what, shown(value), "it is longer than 64 bits of microseconds", "use a shorter one.")
    return total_us


def format_duration_us(us: int) -> str:
    """Format a duration for people, exact to the microsecond.

    >>> format_duration_us(603_500_000)
    '10m 3.5s'
    >>> format_duration_us(-86_400_000_000), format_duration_us(0)
    ('-1d', '0s')
    """
    minutes, rest_us = divmod(abs(us), 60 * _SECOND_US)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    seconds = f"{rest_us // _SECOND_US}.{rest_us % _SECOND_US:06}".rstrip("0").rstrip(".")
    parts = [f"{amount}{unit}" for amount, unit in ((days, "d"), (hours, "h"), (minutes, "m")) if amount]
    if rest_us or not parts:
        parts.append(f"{seconds}s")
    return ("-" if us < 0 else "") + " ".join(parts)


def rough_duration_us(us: int) -> str:
    """Format a measured duration for people: at most its two largest units, so that the text changes rarely.

    >>> [rough_duration_us(us) for us in (26_035_738, 603_500_000, 28_090_123_456_789, -4_000_000)]
    ['26s', '10m 3s', '325d 2h', '-4s']
    >>> [rough_duration_us(us) for us in (9_876_543, 34_567, 890, 0)]
    ['9.8s', '0.034s', '0.00089s', '0s']
    """
    unit_us = next((unit for least, unit in _ROUGH_US if abs(us) >= least), 1)
    rough_us = abs(us) // unit_us * unit_us
    return format_duration_us(-rough_us if us < 0 else rough_us)


def _parse_us(text: str, what: str) -> int:
    if len(text) > _LONGEST_TEXT:
        raise InvalidDuration(what, shown(text), f"it is longer than {_LONGEST_TEXT} characters", _HINT)
    lower = text.strip().lower()
    iso = _ISO.fullmatch(lower)
    if iso and any(iso.groups()[1:]):
        sign, *amounts = iso.groups()
        total = sum(Fraction(n) * _UNIT_US[unit] for n, unit in zip(amounts, _ISO_UNITS, strict=True) if n is not None)
        return int(-total if sign == "-" else total)
    if _ISO_CALENDAR.match(lower):
        raise InvalidDuration(what, shown(text), "a month or a year has no fixed length", "use weeks or days.")
    body, total, at = re.sub(r"^interval\s+", "", lower), Fraction(0), 0
    while part := _PART.match(body, at):
        sign, amount, word, symbol = part.groups()
        word = _SYMBOL_UNIT[symbol] if word is None else word
        total += (-1 if sign == "-" else 1) * _part_us(amount, word, text, what)
        at = part.end()
    left = body[at:].strip()
    if at == 0 or left:
        raise InvalidDuration(what, shown(text), f'cannot read "{left}"' if left else "it is empty", _HINT)
    return int(total)


def _part_us(amount: str, word: str, text: str, what: str) -> Fraction:
    unit = word.removesuffix("s")
    if unit in _CALENDAR_UNITS:
        raise InvalidDuration(what, shown(text), f"a {unit} has no fixed length", "use weeks or days.")
    if unit not in _UNIT_US:
        raise InvalidDuration(what, shown(text), f'"{word}" is not a unit; units go from week to microsecond', _HINT)
    if "." in amount and unit != "second":
        raise InvalidDuration(what, shown(text), "only seconds may have a fraction", f"use a smaller unit than {unit}.")
    return Fraction(amount) * _UNIT_US[unit]
