"""Times as people and systems write them. Every version of Python reads the same forms."""

from __future__ import annotations

import re

import pytest
from lowmark.watermark.moment import _in_long_form, datetime_from_iso, time_us

US = 1_767_225_600_000_000  # 2026-01-01


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("2026-01-01T00:00:00.123456789Z", US + 123_456),
        ("2026-01-01T00:00:00.12Z", US + 120_000),
        ("2026-01-01t00:00:00.000001z", US + 1),
        ("2026-01-01 00:00:00,5+00", US + 500_000),
        ("20260101T000000Z", US),
        ("2026-01-01T00:00:00+0000", US),
        ("2026-01-01T01:30:00.1234567+01:30", US + 123_456),
        ("20251231T2230-0130", US),
    ],
)
def test_a_time_is_read_in_each_form(text: str, us: int) -> None:
    assert time_us(text, what="past") == us
    long = _in_long_form(text)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}[+-]\d\d:\d\d", long), "as Python 3.10 reads it"
    assert time_us(long, what="past") == us


@pytest.mark.parametrize(
    "text",
    [
        "", "Z", "now", "2026-0101", "2026-01-01T10:1500", "2026-13-01T00:00:00.1Z",
        "2026-01-01+05:30", "2026-01-01-05:00", "20260101+0530", "2026-W01-4+05:30",
    ],
)  # fmt: skip
def test_a_text_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"isoformat|must be"):
        datetime_from_iso(text)
