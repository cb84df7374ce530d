from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lowmark.watermark import InvalidDuration, duration_us, format_duration_us
from lowmark.watermark.duration import rough_duration_us

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("10 seconds", 10 * SECOND),
        ("1 second", SECOND),
        ("0 seconds", 0),
        ("1 minute 30 seconds", 90 * SECOND),
        ("interval 5 minutes", 300 * SECOND),
        ("INTERVAL 2 Hours", 7_200 * SECOND),
        ("  1   day  ", 86_400 * SECOND),
        ("2 weeks", 14 * 86_400 * SECOND),
        ("500 milliseconds", 500_000),
        ("7 microseconds", 7),
        ("1.5 seconds", 1_500_000),
        (".5 seconds", 500_000),
        ("0.0000019 seconds", 1),
        ("1 hour -30 minutes", 1_800 * SECOND),
        ("10s", 10 * SECOND),
        ("1H 30m", 5_400 * SECOND),
        ("365d 6m 35.112s", 365 * 86_400 * SECOND + 395_112_000),
        ("200ms", 200_000),
        ("7us", 7),
        ("PT10S", 10 * SECOND),
        ("pt0.25s", 250_000),
        ("P1DT2H", 93_600 * SECOND),
        ("P1W", 7 * 86_400 * SECOND),
        ("PT1H-30M", 1_800 * SECOND),
        (timedelta(milliseconds=1, microseconds=1), 1_001),
        (timedelta(0), 0),
    ],
)
def test_a_duration_is_read_as_spark_or_iso_writes_it(given: str | timedelta, expected: int) -> None:
    assert expected == duration_us(given, what="test")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("", "it is empty"),
        ("   ", "it is empty"),
        ("interval", 'cannot read "interval"'),
        ("10", 'cannot read "10"'),
        ("10 s", '"s" is not a unit'),
        ("10sec", 'cannot read "10sec"'),
        ("1m30s", 'cannot read "1m30s"'),
        ("1.5m", "only seconds may have a fraction"),
        ("ten seconds", 'cannot read "ten seconds"'),
        ("10 seconds and more", 'cannot read "and more"'),
        ("10 fortnights", '"fortnights" is not a unit'),
        ("1.5 minutes", "only seconds may have a fraction"),
        ("1 month", "a month has no fixed length"),
        ("2 years", "a year has no fixed length"),
        ("P1M", "a month or a year has no fixed length"),
        ("P1YT1S", "a month or a year has no fixed length"),
        ("P", 'cannot read "p"'),
        ("PT", 'cannot read "pt"'),
        ("P1DT", 'cannot read "p1dt"'),
        ("-1 second", "it is negative"),
        ("-PT1S", "it is negative"),
        (timedelta(microseconds=-1), "it is negative"),
        ("400000000000 days", "longer than 64 bits"),
        (10, "a number has no unit"),
        ("9" * 5_000 + " seconds", "it is longer than 1000 characters"),
        ("PT" + "9" * 5_000 + "S", "it is longer than 1000 characters"),
        ("PT" + "9" * 900 + "S", "longer than 64 bits"),
        ("2² seconds", 'cannot read "2² seconds"'),
        (1.5, "a number has no unit"),
        (True, "a bool has no length"),
        (None, "a NoneType has no length"),
    ],
)
def test_anything_else_is_refused_with_the_reason(given: object, reason: str) -> None:
    with pytest.raises(InvalidDuration, match=re.escape(reason)):
        duration_us(given, what="test")  # type: ignore[arg-type]


@given(st.integers(0, 2**63 - 1))
def test_what_is_printed_is_read_back(us: int) -> None:
    assert duration_us(format_duration_us(us), what="test") == us


def test_a_number_that_is_too_long_to_be_written_is_refused_like_any_other() -> None:
    with pytest.raises(InvalidDuration, match="idleness: a very long int is not a duration: a number has no unit"):
        duration_us(10**5_000, what="idleness")  # type: ignore[arg-type]


def test_the_message_names_the_setting_the_value_and_a_way_out() -> None:
    with pytest.raises(InvalidDuration) as refused:
        duration_us(10, what="idleness")  # type: ignore[arg-type]

    assert str(refused.value) == (
        'idleness: 10 is not a duration: a number has no unit. Hint: write "10 seconds" or another unit.'
    )


@pytest.mark.parametrize(
    ("us", "expected"),
    [
        (0, "0s"),
        (1, "0.000001s"),
        (1_000, "0.001s"),
        (603_500_000, "10m 3.5s"),
        (3_600 * SECOND, "1h"),
        (93_784_500_000, "1d 2h 3m 4.5s"),
        (-90 * SECOND, "-1m 30s"),
    ],
)
def test_a_duration_is_written_exactly(us: int, expected: str) -> None:
    assert expected == format_duration_us(us)


@given(st.integers(-(2**63), 2**63))
def test_a_measured_duration_is_two_units_at_most_and_never_longer_than_it_was(us: int) -> None:
    rough = rough_duration_us(us)
    assert len(rough.split()) <= 2, us
    if abs(us) >= 10 * SECOND:
        assert "." not in rough, us
    amounts = re.findall(r"([\d.]+)([dhms])", rough)
    seconds = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
    told_us = sum(Fraction(amount) * seconds[unit] * SECOND for amount, unit in amounts)
    assert 0 <= abs(us) - told_us < max(abs(us) / 10, 1_000), (us, rough)
    assert rough.startswith("-") == (us < 0), us
