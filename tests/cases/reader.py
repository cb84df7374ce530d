"""Reads the cases. A case is data; the test of its family gives the steps their meaning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Case = dict[str, Any]

_HERE = Path(__file__).parent


def family(name: str) -> list[Case]:
    """The cases of one family, in the order of the data."""
    return [case for case in every() if case["family"] == name]


def every() -> list[Case]:
    """Every case of every family."""
    texts = [path.read_text("utf-8") for path in sorted(_HERE.glob("*_cases.json"))]
    return [case for text in texts for case in json.loads(text)["cases"]]


def case_id(case: Case) -> str:
    """The id of a case in pytest."""
    return str(case["id"])


def us(ms: int) -> int:
    """Convert the cases' milliseconds to the code's microseconds."""
    return ms * 1_000
