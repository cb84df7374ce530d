"""Values that Arrow has and Python has not, in the rows that functions of users see; no Spark here."""

from __future__ import annotations

import datetime as dt
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lowmark.integration.process.arrow_files import file_system
from lowmark.integration.transport.accumulated import BatchTrack
from lowmark.integration.transport.late_files import _is_written
from lowmark.integration.transport.mapped import BatchMap, MappedMeasure, _Reduction
from lowmark.integration.transport.measure import Measured
from lowmark.integration.transport.python_values import rows_of
from lowmark.integration.transport.split_key import SplitKey
from lowmark.watermark import WatermarkStrategy
from lowmark.watermark.generator import NoWatermarks
from lowmark.watermark.splits.events import BatchCounts

SECOND_US = 1_000_000
GOOD_US = 1_764_000_000 * SECOND_US
FAR_US = GOOD_US * 1_000  # a device sends milliseconds as seconds: the year 57868
FAR_DAY = 3_000_000  # the year 10183
NOBODY: Any = None  # nothing is sent


def times(*values_us: int | None, zone: str | None = "UTC") -> pa.Array[Any]:
    return pa.array(values_us, pa.int64()).cast(pa.timestamp("us", zone))


def days(*values: int | None) -> pa.Array[Any]:
    return pa.array(values, pa.int32()).cast(pa.date32())


def one_bad_clock() -> pa.RecordBatch:
    """The second row has times that Python does not have, in every column."""
    at, day = times(GOOD_US, FAR_US), days(20_000, FAR_DAY)
    both = pa.StructArray.from_arrays([at, day], ["at", "day"])
    no_and_both: Any = pa.array([0, 0, 2], pa.int32())
    columns: dict[str, Any] = {
        "device": pa.array(["good", "bad"]), "ts": at, "day": day, "local": times(GOOD_US, FAR_US, zone=None),
        "before": times(GOOD_US, -(10**18)), "both": both,
        "list": pa.ListArray.from_arrays(no_and_both, both),
        "map": pa.MapArray.from_arrays(no_and_both, pa.array(["a", "b"]), day),
    }  # fmt: skip
    return pa.record_batch(columns)


class Keeps(NoWatermarks):
    seen: list[Any] = []  # noqa: RUF012  # of all splits

    def on_event(self, event: object, timestamp_us: int, output: object) -> None:
        del output
        self.seen.append((event, timestamp_us))


def see(strategy: WatermarkStrategy, batch: pa.RecordBatch, split: str = "device") -> tuple[pa.RecordBatch, BatchTrack]:
    """Run a batch through the task of a strategy."""
    task = _Reduction(BatchMap("orders", (split,), False, "ts", strategy, NOBODY), cell=0)
    return task.see(batch), task.track(attempt=0)


def seen_by_a_function(batch: pa.RecordBatch) -> tuple[list[dict[str, Any]], pa.RecordBatch, BatchTrack]:
    """Return the rows that a timestamp assigner sees, and what becomes of the batch."""
    seen: list[dict[str, Any]] = []

    def assigner(row: Any, time_us: Any) -> Any:
        seen.append(row)
        return time_us

    return seen, *see(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(assigner), batch)


def measured(track: BatchTrack, key: SplitKey) -> Measured:
    accumulator: Any = SimpleNamespace(value={("query", 7): track})
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    found = MappedMeasure(accumulator, "orders", key, 16, detail=True).report("query", 7, {}, strategy)
    assert found is not None
    return found


def test_a_bad_clock_ends_no_query_with_a_generator() -> None:
    Keeps.seen.clear()
    strategy = WatermarkStrategy.for_generator(Keeps).with_future_guard("1 minute")
    given, track = see(strategy, one_bad_clock())

    assert given.column(1).cast(pa.int64()).to_pylist() == [GOOD_US, FAR_US], "Spark gets the row with its own time"
    assert [(event["device"], time_us) for event, time_us in Keeps.seen] == [("good", GOOD_US)]
    assert track.tracker.counts() == BatchCounts(2, future_rows=1), "as without a function in Python"


def test_a_function_sees_no_time_where_python_has_none() -> None:
    seen, given, track = seen_by_a_function(one_bad_clock())

    assert given.column(1).cast(pa.int64()).to_pylist() == [GOOD_US, FAR_US]
    assert track.tracker.counts() == BatchCounts(2, future_rows=1)
    good, bad = seen
    at, day = dt.datetime(2025, 11, 24, 16, tzinfo=dt.timezone.utc), dt.date(2024, 10, 4)
    assert good == {
        "device": "good", "ts": at, "day": day, "local": at.replace(tzinfo=None), "before": at,
        "both": {"at": at, "day": day}, "list": [], "map": [],
    }  # fmt: skip
    assert bad == {
        "device": "bad", "ts": None, "day": None, "local": None, "before": None,
        "both": {"at": None, "day": None}, "list": [{"at": at, "day": day}, {"at": None, "day": None}],
        "map": [("a", day), ("b", None)],
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["assigner", "both"])
def test_an_assigned_time_that_fits_no_timestamp_is_no_time(kind: str) -> None:
    """A device sends nanoseconds, and the assigner takes these for milliseconds."""
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    if kind == "both":
        strategy = WatermarkStrategy.for_generator(NoWatermarks)
    batch = pa.record_batch({"device": ["a"] * 3, "ms": [GOOD_US // 1_000, GOOD_US * 1_000, -GOOD_US * 1_000]})
    given, track = see(strategy.with_timestamp_assigner(lambda row, _: row["ms"] * 1_000), batch)
    assert given.column(2).cast(pa.int64()).to_pylist() == [GOOD_US, None, None]
    assert track.tracker.counts() == BatchCounts(3, null_time_rows=2)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
def test_a_time_that_only_its_zone_moves_out_of_reach_is_none(zone: str) -> None:
    last_us = 253_402_300_799 * SECOND_US  # the last second of the year 9999 in UTC
    (row,) = rows_of(pa.record_batch({"ts": times(last_us, zone=zone)}))
    assert (row["ts"] is None) == (zone == "Asia/Tokyo")


@pytest.mark.parametrize("generator", [None, NoWatermarks], ids=["by batches", "generator"])
def test_a_split_of_an_impossible_date_has_the_id_that_the_jvm_makes(generator: Any) -> None:
    key = SplitKey(("day",), ("date",))
    monotonous = WatermarkStrategy.for_monotonous_timestamps()
    strategy = monotonous if generator is None else WatermarkStrategy.for_generator(generator)
    batch = pa.record_batch({"day": days(20_000, FAR_DAY, None, FAR_DAY), "ts": times(*[GOOD_US] * 4)})
    _, track = see(strategy, batch, split="day")
    names = {key.split_id((dt.date(2024, 10, 4),)): "2024-10-04", key.split_id((FAR_DAY,)): str(FAR_DAY)}
    names[key.split_id((None,))] = "null"
    found = measured(track, key)
    assert found.names == names
    assert found.rows is not None
    assert found.rows[key.split_id((FAR_DAY,))] == 2


def broken_texts() -> pa.Array[Any]:
    """Spark casts binary to string as it is."""
    return pa.array([b"caf\xc3\xa9", b"caf\xe9", b"caf\xe8", None, b"caf\xe9"]).view(pa.string())


def test_a_function_sees_a_text_that_is_no_utf_8_as_java_does() -> None:
    texts = broken_texts()
    batch = pa.record_batch(
        {"device": texts, "in": pa.StructArray.from_arrays([texts], ["device"]), "ts": times(*[GOOD_US] * 5)}
    )
    seen, given, _ = seen_by_a_function(batch)
    assert given.column(0).equals(texts), "Spark gets the row with its own text"
    expected = ["café", "caf\ufffd", "caf\ufffd", None, "caf\ufffd"]
    assert [(row["device"], row["in"]["device"]) for row in seen] == [(text, text) for text in expected]
    exact = [row["device"] for row in rows_of(batch, exact=True)]
    assert exact == ["café", b"caf\xe9", b"caf\xe8", None, b"caf\xe9"], "where rows are compared"


@pytest.mark.parametrize("generator", [None, NoWatermarks], ids=["by batches", "generator"])
def test_splits_of_texts_that_are_no_utf_8_are_kept_apart(generator: Any) -> None:
    """The ids are those of the bytes, as the JVM makes them of a binary column."""
    key, by_bytes = SplitKey(("device",), ("string",)), SplitKey(("device",), ("binary",))
    monotonous = WatermarkStrategy.for_monotonous_timestamps()
    strategy = monotonous if generator is None else WatermarkStrategy.for_generator(generator)
    _, track = see(strategy, pa.record_batch({"device": broken_texts(), "ts": times(*[GOOD_US] * 5)}))
    names = {"café": "café", "caf\\udce9": b"caf\xe9", "caf\\udce8": b"caf\xe8", "null": None}
    expected = {by_bytes.split_id((v.encode() if isinstance(v, str) else v,)): name for name, v in names.items()}
    assert measured(track, key).names == expected


def test_rows_in_a_zone_that_only_java_knows_can_be_compared() -> None:
    at = times(GOOD_US, GOOD_US + 1, zone="GMT+8")
    batch = pa.record_batch({"ts": at, "in": pa.StructArray.from_arrays([at], ["ts"])})
    found = rows_of(batch, exact=True)
    assert found == [{"ts": us, "in": {"ts": us}} for us in (GOOD_US, GOOD_US + 1)]


def test_files_that_differ_in_an_impossible_time_have_different_rows(tmp_path: Path) -> None:
    """On HDFS, a finished file with the same rows stays."""
    files, folder = file_system(str(tmp_path))
    for other, same in (({}, True), ({"ts": times(GOOD_US, FAR_US + 1)}, False), ({"day": days(20_000, 0)}, False)):
        whole = io.BytesIO()
        batch = one_bad_clock()
        pq.write_table(pa.table({**dict(zip(batch.schema.names, batch.columns, strict=True)), **other}), whole)
        pq.write_table(pa.Table.from_batches([batch]), tmp_path / "a.parquet")
        assert _is_written(files, f"{folder}/a.parquet", whole) == same
