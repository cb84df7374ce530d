"""The observed metric: lowmark reads the bytes that the JVM writes, and refuses unreadable bytes."""

from __future__ import annotations

import base64
import struct
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lowmark.integration.errors import TooManySplits, UnreadableReport
from lowmark.integration.transport.measure import Measured
from lowmark.integration.transport.observed import ObservedMeasure, _whole, decode_sketch
from lowmark.integration.transport.split_key import SplitKey
from lowmark.watermark import WatermarkStrategy
from lowmark.watermark.splits.events import BatchCounts
from pyspark.sql import SparkSession

from tests.integration.feed import us
from tests.sparks import settings, since

KEY = SplitKey(("split",), ("string",))
PLAIN = WatermarkStrategy.for_monotonous_timestamps()  # a watermark is a millisecond behind the largest time
# Two splits, as Spark 4.2 wrote them into a progress event: int keys 1 and 2 with 1e8 and 5e8.
TWO = "AgMJAQAKzJMCAAAAAAAAABX5fcu9hqEFAAAAAITXl0ECw5f8EoFwnR4AAAAAZc29QQI="
EMPTY = "AQMJAQAOzJM="


def measure(**change: Any) -> ObservedMeasure:
    settings: dict[str, Any] = {
        "metric": "metric",
        "stream": "orders",
        "key": KEY,
        "event_time": "ts",
        "future_guard_us": 300_000_000,
        "sketch_lg": 8,
        "detail": True,
        "sample_names": True,
    }
    return ObservedMeasure(**(settings | change))


def metric(**change: Any) -> dict[str, Any]:
    return {"latest": EMPTY, "rows": 0, "null_split_rows": 0, "null_time_rows": 0, "before_epoch_rows": 0} | change


def read(made: ObservedMeasure, row: dict[str, Any], *, batch_id: int = 0) -> Measured:
    found = made.report("q", batch_id, {made.metric: row}, PLAIN)
    assert found is not None
    return found


def sketch_of(value: float) -> bytes:
    """A sketch of one split with this value."""
    return bytes([1, 3, 9, 1, 0, 0, 0, 0]) + struct.pack("<QdB", 7, value, 0)


def test_a_sketch_as_spark_writes_it() -> None:
    splits, values = decode_sketch(TWO, where="test")
    ids = SplitKey(("p",), ("int",))

    assert dict(zip(splits.tolist(), values.tolist(), strict=True)) == {
        ids.split_id((1,)): 100_000_000.0,
        ids.split_id((2,)): 500_000_000.0,
    }


@pytest.mark.parametrize("as_text", [True, False])
def test_a_sketch_of_nothing_as_text_and_as_bytes(as_text: bool) -> None:
    splits, values = decode_sketch(EMPTY if as_text else base64.b64decode(EMPTY), where="test")

    assert (len(splits), len(values)) == (0, 0)


@pytest.mark.parametrize(
    "broken",
    [b"", b"1234567", base64.b64decode(TWO)[:-1], b"\x02\x04" + base64.b64decode(TWO)[2:], "no base64!", None, 10**12],
    ids=repr,
)
def test_what_is_no_sketch_is_refused(broken: Any) -> None:
    with pytest.raises(UnreadableReport, match=r"here: .* Hint: driver and executors must run one version"):
        decode_sketch(broken, where="here")


@pytest.mark.parametrize("missing", ["latest", "rows", "null_split_rows", "null_time_rows", "before_epoch_rows"])
def test_a_missing_field_is_named(missing: str) -> None:
    fields = metric()
    del fields[missing]
    with pytest.raises(UnreadableReport, match=rf"stream \"orders\", batch 3.*{missing}"):
        read(measure(), fields, batch_id=3)


def test_too_many_splits_are_noticed_by_theta() -> None:
    body = np.zeros(4, dtype=[("split", "<u8"), ("value", "<f8"), ("mode", "u1")]).tobytes()
    sketch = bytes([3, 3, 9, 1, 0, 0, 0, 0]) + (4).to_bytes(8, "little") + (1 << 62).to_bytes(8, "little") + body
    with pytest.raises(TooManySplits, match=r"about 8 splits in one batch, but only 4 .*max_splits=16"):
        read(measure(sketch_lg=2), metric(latest=sketch))


def test_microseconds_survive_as_seconds_in_a_double() -> None:
    rng = np.random.default_rng(7)
    for limit in (10**15, 4 * 10**15):  # until the year 2096
        times = rng.integers(-(10**14), limit, 200_000)

        assert np.array_equal(_whole(times / 1e6, 1e6, "here"), times), "seed 7"


@pytest.mark.parametrize("column", ["a{b}", "a{", "{}", "a}", "{value}"])
def test_braces_in_a_columns_name_stay_as_they_are(monkeypatch: pytest.MonkeyPatch, column: str) -> None:
    def named(text: str) -> object:
        return SimpleNamespace(alias=lambda name: f"{text} as {name}")

    monkeypatch.setattr("pyspark.sql.functions.expr", named)
    plain, braces = (measure(key=SplitKey((name,), ("string",))).columns() for name in ("plain", column))

    assert braces == [str(text).replace("`plain`", f"`{column}`") for text in plain]


@since("4.2", "the largest event time of each split in the JVM")
def test_one_batch_as_the_jvm_measures_it(spark: SparkSession) -> None:
    """Every kind of row: good, in the future, without time, without split, before 1970; the guard hides no good row."""
    rows = [
        ("a", "2023-11-14 22:15:00.000001"),
        ("a", "2023-11-14 22:14:00"),
        ("a", "2099-01-01 00:00:00"),
        ("b", "2023-11-14 22:16:00"),
        ("b", None),
        (None, "2023-11-14 22:15:00"),
        (None, None),
        ("c", "1969-12-31 23:59:59.999999"),
        ("d", "9999-12-31 23:59:59"),
    ]
    df = spark.createDataFrame(rows, "split string, ts string").selectExpr("split", "cast(ts as timestamp) ts")
    made = measure()
    row = df.agg(*made.columns()).collect()[0].asDict()
    splits, seconds = decode_sketch(row["latest"], where="test")
    latest = dict(zip(splits.tolist(), _whole(seconds, 1e6, "test").tolist(), strict=True))
    seen = read(made, row)
    a, b, c = (KEY.split_id((name,)) for name in "abc")

    assert (latest[a], latest[b], latest[c]) == (us(100) + 1, us(160), -1)
    assert dict(seen.watermarks_us) == {split: PLAIN.watermark_of_max(latest_us) for split, latest_us in latest.items()}
    assert KEY.split_id(("d",)) not in latest
    assert seen.rows is not None
    assert (seen.first_us[a], seen.rows[a], seen.rows[b]) == (us(40), 2, 2)
    assert seen.counts == BatchCounts(9, future_rows=2, null_time_rows=1, null_split_rows=2, before_epoch_rows=1)
    assert {a: 1, KEY.split_id(("d",)): 1} == seen.future_rows, "whose clocks are wrong"
    assert seen.newest_us == 253_402_300_799_000_000, "native Spark has no guard"
    assert seen.names[c] == "c", "the row furthest behind shows its split's name"


@since("4.2", "the largest event time of each split in the JVM")
def test_a_split_of_one_integer_whose_clock_is_wrong_has_its_own_id(spark: SparkSession) -> None:
    future, past = "timestamp '2099-01-01 00:00:00'", "timestamp '2023-01-01 00:00:00'"
    df = spark.sql("select 3 `{p}`, " + future + " ts union all select 4, " + past)
    key = SplitKey(("{p}",), ("int",))
    made = measure(key=key, sample_names=False)
    seen = read(made, df.agg(*made.columns()).collect()[0].asDict())

    assert {key.split_id((3,)): 1} == seen.future_rows
    assert list(seen.watermarks_us) == [key.split_id((4,))]


@since("4.2", "the largest event time of each split in the JVM")
def test_without_a_guard_the_future_counts(spark: SparkSession) -> None:
    df = spark.sql("select 'a' split, timestamp '2099-01-01 00:00:00' ts")
    made = measure(future_guard_us=None)
    seen = read(made, df.agg(*made.columns()).collect()[0].asDict())

    assert (len(seen.watermarks_us), seen.future_rows) == (1, {})


@since("4.2", "the largest event time of each split in the JVM")
def test_rows_are_measured_in_a_session_that_reserves_the_words_of_the_sql_standard(spark: SparkSession) -> None:
    reserving = {"spark.sql.ansi.enforceReservedKeywords": "true", "spark.sql.ansi.doubleQuotedIdentifiers": "true"}
    with settings(spark, reserving):
        df = spark.sql("select 'a' `user`, timestamp '2023-01-01 00:00:00' `end`")
        made = measure(key=SplitKey(("user",), ("string",)), event_time="end")
        seen = read(made, df.agg(*made.columns()).collect()[0].asDict())

    assert list(seen.watermarks_us) == [KEY.split_id(("a",))]
