"""A moment is whole microseconds since 1970 in UTC, in 64 bits. Datetimes and milliseconds are made of it here."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone

from .errors import InvalidTime, shown

INT64 = range(-(2**63), 2**63)
"""For values of type `int` alone: `in` walks through the range where a value is a numpy integer."""

LEAST_US, MOST_US = INT64[0], INT64[-1]
MILLISECOND_US = 1_000

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
_ISO = re.compile(
    r"(?P<year>\d{4})(?P<dash>-?)(?P<month>\d\d)(?P=dash)(?P<day>\d\d)"
    r"(?:[Tt ](?P<hour>\d\d)(?:(?P<colon>:?)(?P<minute>\d\d)(?:(?P=colon)(?P<second>\d\d)(?:[.,](?P<fraction>\d+))?)?)?"
    r"(?P<zone>[Zz]|(?P<sign>[+-])(?P<hours>\d\d)(?::?(?P<minutes>\d\d))?)?)?",
    re.ASCII,
)

_DAY_WITH_ZONE = re.compile(r"(\d{4}-\d\d-\d\d|\d{8}|\d{4}-?W\d\d-?\d)[+-]", re.ASCII)


def is_int64(value: object) -> bool:
    """Whether a value that was read back is a whole number of 64 bits. True and False are none.

    >>> is_int64(-5), is_int64(2**63), is_int64(True), is_int64(5.0)
    (True, False, False, False)
    """
    return type(value) is int and value in INT64


def us_of(at: datetime) -> int:
    """Microseconds of a datetime with a time zone, exactly.

    >>> us_of(datetime(1970, 1, 2, microsecond=7, tzinfo=timezone.utc))
    86400000007
    """
    return (at - _EPOCH) // _MICROSECOND


def time_us(value: str | datetime, *, what: str) -> int:
    """A time that a user gave, as microseconds.

    Args:
        value: a datetime with a time zone, or a text as ISO 8601 writes it, with its zone: "2026-11-23T10:00Z".

    Raises:
        InvalidTime: it is no time, or has no zone.

    >>> time_us("1970-01-01T01:00+01:00", what="past"), time_us("1970-01-01 00:00:01Z", what="past")
    (0, 1000000)
    """
    try:
        at = datetime_from_iso(value) if isinstance(value, str) else value
    except ValueError:
        raise InvalidTime(what, shown(value), "it is not written as ISO 8601 writes times") from None
    if not isinstance(at, datetime):
        raise InvalidTime(what, shown(value), "expected a text or a datetime")
    if at.utcoffset() is None:
        raise InvalidTime(what, shown(value), "it has no time zone, so two machines may read two moments")
    return us_of(at)


def datetime_from_iso(text: str) -> datetime:
    """Read a time as ISO 8601 writes it: also with any number of digits after the second, and without "-" and ":".

    Python 3.10 reads three or six digits, and only the long form.

    Raises:
        ValueError: it is no such time.

    >>> datetime_from_iso("20260101T000000.12Z").isoformat()
    '2026-01-01T00:00:00.120000+00:00'
    """
    if _DAY_WITH_ZONE.match(text):  # Python takes the zone behind a day for the time of day
        raise ValueError(f"no isoformat, because a zone is behind the day: {text!r:.100}")
    try:
        return datetime.fromisoformat(f"{text[:-1]}+00:00" if text[-1:] in ("Z", "z") else text)
    except ValueError:
        return datetime.fromisoformat(_in_long_form(text))


def _in_long_form(text: str) -> str:
    """The form that Python 3.10 reads; the same text if it is no time.

    >>> _in_long_form("2026-01-01 10:00:00.123456789+0100")
    '2026-01-01T10:00:00.123456+01:00'
    """
    found = _ISO.fullmatch(text)
    if found is None:
        return text
    part = found.groupdict("00")
    day = f"{part['year']}-{part['month']}-{part['day']}"
    time = f"{part['hour']}:{part['minute']}:{part['second']}.{part['fraction']:0<6.6}"
    zone = f"{found['sign'] or '+'}{part['hours']}:{part['minutes']}" if found["zone"] else ""
    return f"{day}T{time}{zone}"


def datetime_of(us: int) -> datetime:
    """The datetime in UTC. Raises `OverflowError` before the year 1 and after the year 9999.

    >>> us_of(datetime_of(-1))
    -1
    """
    return _EPOCH + timedelta(microseconds=us)


def first_ms_from(us: int) -> int:
    """The first millisecond at or after a moment, none before 1970: for systems that are asked by milliseconds.

    >>> first_ms_from(1_001), first_ms_from(-5)
    (2, 0)
    """
    return max(0, -(-us // MILLISECOND_US))


def none_first(us: int | None) -> tuple[bool, int]:
    """Sort key: no watermark first, then the smallest.

    >>> sorted([5, None, -3], key=none_first)
    [None, -3, 5]
    """
    return us is not None, us or 0


def least_us(times_us: Iterable[int | None]) -> int | None:
    """Return the smallest moment; None if one moment is not known, or there is none.

    >>> least_us([20, 10]), least_us([20, None]), least_us([])
    (10, None, None)
    """
    return min(times_us, key=none_first, default=None)


def utc(us: int | None) -> datetime | None:
    """Like `datetime_of`; None for None, and for years outside of datetime's range."""
    if us is None:
        return None
    try:
        return datetime_of(us)
    except OverflowError:
        return None


def format_time_us(us: int | None) -> str:
    """An event time for people.

    >>> format_time_us(0), format_time_us(None)
    ('1970-01-01 00:00:00.000 UTC', 'none')
    """
    at = utc(us)
    if at is None:
        return "none" if us is None else f"{us} us"
    return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03} UTC"
