"""Ids and names of splits: the same hash here and in the JVM, for every type that a split may have."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from lowmark.integration.errors import WrapRefused
from lowmark.integration.transport.observed import decode_sketch
from lowmark.integration.transport.split_key import SplitKey
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.sparks import since

CASES: list[tuple[str, list[tuple[Any, ...]]]] = [
    ("p int", [(n,) for n in (0, 1, -1, 63, 2**31 - 1, -(2**31))]),
    ("p bigint", [(n,) for n in (0, 1, -1, 2**63 - 1, -(2**63))]),
    ("p smallint", [(n,) for n in (0, 1, -1, 32767)]),
    ("s string", [("",), ("a",), ("Zürich",), ("日本語",), ("x" * 100,), (None,)]),
    ("t string, p int", [("orders", 0), ("orders", 1), ("orders-", 10), ("", -1), ("a", None)]),
    ("b boolean, d date", [(True, dt.date(2026, 1, 1)), (False, dt.date(1969, 12, 31))]),
    ("p bigint, q tinyint", [(2**40, 1), (1, -128)]),
    ("x binary", [(b"",), (b"\x00\xff",)]),
]


@since("4.2", "the largest event time of each split in the JVM")
@pytest.mark.parametrize(("schema", "rows"), CASES, ids=[schema for schema, _ in CASES])
def test_pitfall_22_ids_are_the_sketchs_hashes(spark: SparkSession, schema: str, rows: list[tuple[Any, ...]]) -> None:
    columns = [(part.split()[0], part.split()[1]) for part in schema.split(", ")]
    key = SplitKey.of("s", [name for name, _ in columns], dict(columns))
    sketch = F.expr(f"tuple_sketch_agg_double({key.expression()}, 1.0D, 12, 'max')")
    (row,) = spark.createDataFrame(rows, schema).agg(sketch).collect()
    splits, _ = decode_sketch(row[0], where="test")

    assert set(splits.tolist()) == {key.split_id(values) for values in rows}


def test_an_int_and_a_bigint_of_one_value_are_one_split() -> None:
    small, large = SplitKey(("p",), ("int",)), SplitKey(("p",), ("bigint",))

    assert small.split_id((7,)) == large.split_id((7,))


def test_small_integers_are_named_from_their_id_alone() -> None:
    key = SplitKey(("p",), ("int",))

    assert key.guessed_name(key.split_id((4711,))) == "4711"
    assert key.guessed_name(key.split_id((70_000,))) is None
    assert SplitKey(("s",), ("string",)).guessed_name(key.split_id((4711,))) is None


@pytest.mark.parametrize(
    ("values", "name"),
    [(("orders", 3), "orders/3"), (("", 3), '""/3'), ((None, 3), "null/3"), (("a/b", 0), "a/b/0")],
)
def test_names(values: tuple[Any, ...], name: str) -> None:
    assert SplitKey(("t", "p"), ("string", "int")).name(values) == name


def test_quotes_in_column_names_are_quoted() -> None:
    assert SplitKey(("a`b", "c d"), ("string", "int")).expression() == "xxhash64(`a``b`, `c d`)"


@pytest.mark.parametrize("split", [1.5, True, None, "7", ("7",), (7, 8), 2**31, -(2**31) - 1, 2**70], ids=repr)
def test_declared_splits_have_to_fit(split: object) -> None:
    with pytest.raises(WrapRefused, match=r"splits= holds .* which is no value of \(p int\)"):
        SplitKey(("p",), ("int",)).declared("s", [split])
