"""`audit_table` reports of a bronze table the same as `lowmark audit` of the table's topic."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from lowmark import audit_table
from lowmark.integration.audit import table as module
from lowmark.integration.audit.audit import Audit, Question
from lowmark.integration.audit.cuts import ByTime, Proportional
from lowmark.integration.audit.event_time import EventTimes
from lowmark.integration.errors import AuditImpossible
from lowmark.integration.transport.split_key import SplitKey
from lowmark.watermark.replay.replay import Batches
from lowmark.watermark.replay.report import AuditReport
from pyarrow import parquet

from tests.integration.audit.test_audit import NAMED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECOND_US = 1_000_000
START_US = 1_700_000_000 * SECOND_US
ROWS = 600


def times_of(split: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    chance = np.random.default_rng(split)
    disorder_us = chance.integers(0, 20 * SECOND_US, ROWS)
    return START_US + np.arange(ROWS) * SECOND_US - disorder_us - (100 * SECOND_US if split == 1 else 0)


@pytest.fixture
def bronze(spark: SparkSession, tmp_path: Path) -> DataFrame:
    columns = {
        "topic": ["orders"] * 3 * ROWS,
        "partition": pa.array(np.repeat([0, 1, 2], ROWS), pa.int32()),
        "offset": np.tile(np.arange(ROWS), 3) + 1_000,
        "timestamp": pa.array(START_US + np.tile(np.arange(ROWS), 3) * SECOND_US, pa.timestamp("us", "UTC")),
        "at": pa.array(np.concatenate([times_of(split) for split in range(3)]), pa.timestamp("us", "UTC")),
    }
    table = pa.table(columns)
    shuffled = table.take(np.random.default_rng(0).permutation(len(table)))
    parquet.write_table(shuffled, tmp_path / "bronze.parquet")
    return spark.read.parquet(str(tmp_path / "bronze.parquet"))


def expected(*, timed: bool) -> AuditReport:
    """The report on the same rows, given to the audit by hand."""
    cut = ByTime(3, 10 * SECOND_US) if timed else Proportional([1_000] * 3, [1_000 + ROWS] * 3, 90, 2 * START_US)
    audit = Audit(
        [f"orders/{split}" for split in range(3)], cut, Question(rows_per_batch=90), 2 * START_US, timed=timed
    )
    written_us = START_US + np.arange(ROWS) * SECOND_US
    for split in range(3):
        times = EventTimes(times_of(split), np.ones(ROWS, np.bool_), np.zeros(ROWS, np.bool_))
        keys = written_us if timed else np.arange(ROWS) + 1_000
        audit.add(split, keys, times, written_us=written_us if timed else None)
        cut.end(split)
    return audit.report(what="", order="", event_time="", complete=True, notes=())


@pytest.mark.parametrize("at_once", [1_000_000, 500])
def test_a_table_says_what_its_topic_says(bronze: DataFrame, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """The same holds if only some rows at a time come to the driver."""
    monkeypatch.setattr(module, "ROWS", at_once)
    split = ["topic", "partition"]
    for order, more in (("offset", {"rows_per_batch": 90}), ("timestamp", {})):
        found = audit_table(bronze, split=split, event_time="at", order=order, rows=None, **more).to_json()  # type: ignore[arg-type]
        wanted = expected(timed=order == "timestamp").to_json()
        for what in ("native", "lowmark", "splits", "strategy", "native_smallest_delay_us", "rows", "batches"):
            assert found[what] == wanted[what], f"{order}: {what}"
        assert found["native"][0]["rows_dropped"] > 0


def test_a_split_has_the_name_that_the_service_gives_it(spark: SparkSession) -> None:
    key = SplitKey(tuple(NAMED), ("string", "int", "boolean", "binary", "date"))
    rows: list[tuple[Any, ...]] = [tuple(NAMED.values()), ("", None, None, None, None)]
    schema = ", ".join(f"{name} {kind}" for name, kind in zip(key.columns, key.types, strict=True))
    table = spark.createDataFrame(rows, schema).selectExpr("*", "timestamp'2026-01-02 00:00:00' at", "0 offset")
    found = audit_table(table, split=list(NAMED), event_time="at", order="offset").to_json()
    assert set(found["splits"]) == {key.name(row) for row in rows}


def test_the_newest_rows_are_enough(bronze: DataFrame) -> None:
    for order in ("offset", "timestamp"):
        found = audit_table(bronze, split="partition", event_time="at", order=order, rows=900)
        assert 800 <= found.report.rows <= 1_000, order
        assert "newest 900 of 1,800" in found.report.notes[0]
        assert "<svg" in found.to_html()


@pytest.mark.parametrize("rows", [None, 1_200])
def test_the_rows_of_all_do_not_wait_for_a_split_that_fell_silent(
    bronze: DataFrame, monkeypatch: pytest.MonkeyPatch, rows: int | None
) -> None:
    monkeypatch.setattr(module, "ROWS", 300)
    waiting, drain = list[int](), ByTime.drain

    def drained(cut: ByTime) -> Batches | None:
        made = drain(cut)
        waiting.append(max(len(each.keys) for each in cut._waiting))
        return made

    monkeypatch.setattr(ByTime, "drain", drained)
    seen = bronze.where("partition <> 1 or offset < 1010")  # ten rows at the beginning
    found = audit_table(seen, split="partition", event_time="at", order="timestamp", rows=rows)
    assert found.report.rows > 1_000
    assert len(waiting) > 2
    assert max(waiting) <= 10, "a batch is 10 seconds, with a row of each partition in each"


def test_what_cannot_be_audited_is_refused(bronze: DataFrame, spark: SparkSession, tmp_path: Path) -> None:
    for given, words in (
        ({"event_time": "when"}, "there is no column 'when'"),
        ({"event_time": "offset"}, "expected timestamp"),
        ({"order": "topic"}, "expected a whole number or a timestamp"),
        ({"window": "0 seconds"}, "window: expected a millisecond or more"),
        ({"trigger": timedelta(0), "order": "timestamp"}, "trigger: expected a millisecond or more"),
        ({"trigger": "1 second"}, "trigger: order column 'offset' is no time"),
        ({"trigger": "1 second", "order": "timestamp", "rows_per_batch": 9}, "trigger: a number of rows cuts batches"),
        ({"rows_per_batch": 0}, "rows_per_batch: expected 1 or more, got 0"),
        ({"rows_per_batch": 2.5}, r"rows_per_batch: expected 1 or more, got 2\.5"),
        ({"rows": 0}, "rows: expected 1 or more, got 0"),
    ):
        arguments = {"split": "partition", "event_time": "at", "order": "offset", **given}
        with pytest.raises(AuditImpossible, match=words):
            audit_table(bronze, **arguments)  # type: ignore[arg-type]
    with pytest.raises(AuditImpossible, match="holds no row"):
        audit_table(bronze.where("offset < 0"), split="partition", event_time="at", order="offset")
    stream = spark.readStream.schema("partition int, offset long, at timestamp").parquet(str(tmp_path))
    with pytest.raises(AuditImpossible, match="is a stream"):
        audit_table(stream, split="partition", event_time="at", order="offset")
