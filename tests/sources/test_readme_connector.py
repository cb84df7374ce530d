"""The documented connector, unchanged: it is short and keeps the laws; a broken version violates them."""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from lowmark.sources import SourceBroken, check_source
from lowmark.sources.testing import CheckedSource

PAGE = Path(__file__).parents[2] / "docs" / "connectors.md"
LINES = 40


def example() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    return str(code)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a database of two tables, with gaps in their ids, in the example's folder.

    The name of one is a word of SQL. SQLite itself adds a table for an AUTOINCREMENT.
    """
    monkeypatch.chdir(tmp_path)
    with sqlite3.connect("shop.db") as connection:
        for table, step in (("order", 1), ("returns", 3)):
            columns = "(id INTEGER PRIMARY KEY AUTOINCREMENT, ts INTEGER, item TEXT)"
            connection.execute(f'CREATE TABLE "{table}" {columns}')
            rows = [(number, number * 1_000_000, f"{table} {number}") for number in range(0, 90, step) if number % 5]
            connection.executemany(f'INSERT INTO "{table}" VALUES (?, ?, ?)', rows)
    connection.close()
    return tmp_path / "shop.db"


@pytest.fixture
def module() -> Iterator[ModuleType]:
    """Make a module for the example, because pickle must find its class."""
    made = ModuleType("readme_connector")
    sys.modules[made.__name__] = made
    yield made
    del sys.modules[made.__name__]


def run(code: str, module: ModuleType) -> Any:
    exec(compile(code, PAGE.name, "exec"), module.__dict__)
    return module.Tables


def test_it_is_short() -> None:
    assert 20 < len(example().splitlines()) <= LINES


def test_it_keeps_the_laws(shop: Path, module: ModuleType) -> None:
    assert check_source(run(example(), module)(str(shop))) == CheckedSource(("order", "returns"), 96, 8)


@pytest.mark.parametrize(
    ("right", "wrong", "law"),
    [
        ("id >= ? AND", "id > ? AND", "concatenation"),
        ("ORDER BY id", "ORDER BY random()", "replay"),
        ("last + 1", "last - 1000", "progress"),
        ("SELECT min(id)", "SELECT max(id)", "time"),
    ],
)
def test_a_slip_in_it_would_be_found(shop: Path, module: ModuleType, right: str, wrong: str, law: str) -> None:
    assert example().count(right) == 1
    with pytest.raises(SourceBroken) as found:
        run(example().replace(right, wrong), module)
    assert found.value.law == law
