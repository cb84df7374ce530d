"""The generator as a Spark source: exact rows, whatever the batches; readers that hold nothing."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lowmark.sources.generator import SplitScript, StreamScript
from lowmark.sources.spark import GENERATOR, GeneratorReader, GeneratorSource, generator_options
from pyspark.sql.streaming.datasource import ReadAllAvailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPT = StreamScript(
    (
        SplitScript("a", 3, last_us=60_000_000),
        SplitScript("b", 2, behind_us=4_000_000),
        SplitScript("c", 1, silent_from_tick=2),
    ),
    start_us=1_700_000_000_000_000,
    ticks=10,
    tick_us=1_000_000,
    shuffle_us=2_000_000,
)


def reader(ticks_per_batch: int = 4) -> GeneratorReader:
    return GeneratorReader(SCRIPT, seed=1, ticks_per_batch=ticks_per_batch, tasks=2)


def planned(each: GeneratorReader) -> list[dict[str, int]]:
    """The offsets of all batches, as Spark would ask for them."""
    offsets = [each.initialOffset()]
    while True:
        end = each.latestOffset(offsets[-1], each.getDefaultReadLimit())
        if end == offsets[-1]:
            return offsets
        offsets.append(end)


def test_a_batch_takes_its_ticks_and_the_end_is_the_end() -> None:
    assert planned(reader()) == [{"tick": 0}, {"tick": 4}, {"tick": 8}, {"tick": 11}]
    assert reader().latestOffset({"tick": 3}, ReadAllAvailable()) == {"tick": 11} == reader().reportLatestOffset()


def test_planning_depends_on_nothing_but_the_offset() -> None:
    each = reader()
    fresh = pickle.loads(pickle.dumps(each))  # noqa: TID251  # as Spark does with it
    planned(each)
    assert each.latestOffset({"tick": 2}, each.getDefaultReadLimit()) == {"tick": 6}
    assert vars(fresh) == vars(each)
    assert fresh.partitions({"tick": 2}, {"tick": 6}) == each.partitions({"tick": 2}, {"tick": 6})


def test_nothing_is_planned_where_nothing_is() -> None:
    assert reader().partitions({"tick": 4}, {"tick": 4}) == []
    assert [p.splits for p in reader().partitions({"tick": 4}, {"tick": 5})] == [("a",), ("b",)]  # c is silent


def test_an_option_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^option ticks_per_batch of lowmark_script: expected 1 or more, got 0$"):
        reader(ticks_per_batch=0)


def test_options_are_sorted_json_so_that_one_script_is_one_text() -> None:
    options = generator_options(SCRIPT, seed=1, ticks_per_batch=4)
    assert options["script"] == json.dumps(json.loads(options["script"]), sort_keys=True)
    assert options["tasks"] == "3"


@pytest.mark.parametrize("ticks_per_batch", [3, 11])
def test_rows_are_the_same_for_any_batches_in_spark(spark: SparkSession, tmp_path: Path, ticks_per_batch: int) -> None:
    spark.dataSource.register(GeneratorSource)
    options = generator_options(SCRIPT, seed=1, ticks_per_batch=ticks_per_batch, tasks=2)
    frame = spark.readStream.format(GENERATOR).options(**options).load()
    query = (
        frame.selectExpr("split", "number", "unix_micros(event_time) us")
        .writeStream.format("memory")
        .queryName(f"generated_{ticks_per_batch}")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)
    got = {tuple(row) for row in spark.table(f"generated_{ticks_per_batch}").collect()}
    batches = [p for p in query.recentProgress if p.numInputRows]
    want = {
        (split.name, number, us)
        for split in SCRIPT.splits
        for number, us in enumerate(SCRIPT.times_us(split.name, 0, SCRIPT.end, seed=1).tolist())
    }
    assert got == want
    assert sum(p.numInputRows for p in batches) == len(want)
    assert len(batches) == -(-SCRIPT.end // ticks_per_batch)
