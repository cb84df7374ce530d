"""Where sources meet Spark: the one file in this folder that imports pyspark.

`GeneratorSource` reads a scripted stream (`lowmark.sources.generator`). Its offset is the next tick:

    {"tick": 36}

The offset fixes the rows: `read` makes them from nothing but (script, seed, split, ticks), so a batch that Spark runs
again, in another process, on another day, holds the same rows, wherever the batches were cut.
"""

# ruff: noqa: N802  # Spark calls readers by Java's names

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from .generator import StreamScript

__all__ = ["GENERATOR", "GeneratorReader", "GeneratorSource", "generator_options"]

GENERATOR = "lowmark_generator"
_SCHEMA = "split string, number bigint, event_time timestamp"


def generator_options(
    script: StreamScript, *, seed: int, ticks_per_batch: int, tasks: int | None = None
) -> dict[str, str]:
    """Return the options of `GENERATOR` for `spark.readStream.options(**...)`.

    Args:
        script: what to make.
        seed: any integer.
        ticks_per_batch: how many ticks a batch takes, 1 or more.
        tasks: how many Spark tasks share the splits of a batch; None: one per split.
    """
    return {
        "script": json.dumps(script.to_plain(), sort_keys=True),
        "seed": str(seed),
        "ticks_per_batch": str(ticks_per_batch),
        "tasks": str(len(script.splits) if tasks is None else tasks),
    }


@dataclass
class SplitRanges(InputPartition):
    """What one task makes: the same ticks of some splits.

    Attributes:
        splits: their names.
        start, end: the ticks, end not included.
    """

    splits: tuple[str, ...]
    start: int
    end: int


class GeneratorSource(DataSource):
    """Spark's handle on a scripted stream. Options: see `generator_options`."""

    @classmethod
    def name(cls) -> str:
        return GENERATOR

    def schema(self) -> str:
        return _SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        del schema  # always ours
        return GeneratorReader(
            StreamScript.from_plain(json.loads(self.options["script"])),
            seed=int(self.options["seed"]),
            ticks_per_batch=int(self.options["ticks_per_batch"]),
            tasks=int(self.options["tasks"]),
        )


class GeneratorReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans tick ranges and makes their rows. Holds nothing that changes: Spark pickles it and starts it anew.

    Args:
        script: what to make.
        seed: any integer.
        ticks_per_batch: how many ticks a batch takes unless Spark asks for all that there are.
        tasks: how many tasks share the splits.
    """

    def __init__(self, script: StreamScript, *, seed: int, ticks_per_batch: int, tasks: int) -> None:
        for what, value in (("ticks_per_batch", ticks_per_batch), ("tasks", tasks)):
            if value < 1:
                raise ValueError(f"option {what} of {GENERATOR}: expected 1 or more, got {value}")
        self._script, self._seed = script, seed
        self._ticks_per_batch, self._tasks = ticks_per_batch, tasks

    def initialOffset(self) -> dict[str, Any]:
        return _offset(0)

    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark knows no limit by ticks. The number is what they hold at most; `latestOffset` counts ticks.
        most = max(self._script.count_rows(s.name, 0, self._script.end) for s in self._script.splits)
        return ReadMaxRows(most * len(self._script.splits))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        ticks = self._script.end if isinstance(limit, ReadAllAvailable) else self._ticks_per_batch
        return _offset(max(start["tick"], min(start["tick"] + ticks, self._script.end)))

    def reportLatestOffset(self) -> dict[str, Any]:
        return _offset(self._script.end)

    def prepareForTriggerAvailableNow(self) -> None:
        # The whole stream is available from the start: there is no target to remember.
        pass

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = start["tick"], end["tick"]
        names = [s.name for s in self._script.splits if self._script.count_rows(s.name, first, last)]
        shares = [tuple(names[task :: self._tasks]) for task in range(self._tasks)]
        return [SplitRanges(share, first, last) for share in shares if share]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SplitRanges), "Spark hands back what partitions() gave"
        for split in partition.splits:
            yield self._script.rows(split, partition.start, partition.end, seed=self._seed)


def _offset(tick: int) -> dict[str, Any]:
    return {"tick": tick}
