"""Common parts of the live tests of the Kinesis source: batches by hand, without Spark, and a writer."""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from lowmark.sources.kinesis import KinesisSource
from lowmark.sources.kinesis.split import KinesisSplit
from lowmark.sources.planning.offset import BatchOffset
from lowmark.sources.planning.options import PlanOptions
from lowmark.sources.planning.peer import Guidance, Planned
from lowmark.sources.planning.planner import BatchPlanner
from lowmark.sources.reading.slices import read_slices

from tests.servers.kinesis import Kinesis
from tests.servers.local import wait_until


def source_of(server: Kinesis, *streams: str, endpoint: str | None = None, **options: Any) -> KinesisSource:
    """A source of these streams that polls often, because the server has no limits."""
    which: dict[str, Any] = {"streams": list(streams)} if streams else {}
    fast: dict[str, Any] = {
        "discover_every": "200 milliseconds", "poll_every": "50 milliseconds", "reads_per_second": None,
        "bytes_per_second": None, "give_up_after": "20 seconds",
    }  # fmt: skip
    return KinesisSource(**{"region": "eu-west-1", "endpoint_url": endpoint or server.url, **fast, **which, **options})


def reshard(server: Kinesis, stream: str, rng: random.Random) -> str:
    """Split a shard, or merge two adjacent shards; return the kind."""
    there = server.shards(stream, only_open=True)
    if len(there) < 3 or (len(there) < 5 and rng.random() < 0.5):
        shard = rng.choice(there)
        server.split(stream, shard)
        return f"split {shard}"
    at = rng.randrange(len(there) - 1)
    server.merge(stream, there[at], there[at + 1])
    return f"merged {there[at]} and {there[at + 1]}"


@dataclass
class Writer:
    """Puts numbered rows; `sent` has them in the order of each partition key."""

    server: Kinesis
    stream: str
    keys: int = 20
    sent: list[str] = field(default_factory=list)

    def put(self, rows: int) -> None:
        new = [(f"k{(len(self.sent) + n) % self.keys}", f"{len(self.sent) + n}") for n in range(rows)]
        self.server.put(self.stream, [(key, value.encode()) for key, value in new])
        self.sent += [value for _, value in new]


class Reading:
    """A query by hand: plans and reads batches by offsets as in Spark's checkpoint.

    Attributes:
        rows: the rows read, batch after batch: (split id, its rows).
        told: the planner's answer for each batch.
    """

    def __init__(self, source: KinesisSource, *, slots: int = 2, max_rows: int | None = None) -> None:
        self.source, self.max_rows = source, max_rows
        self.rows: list[tuple[str, pa.Table]] = []
        self.told: list[Planned] = []
        self.slots = slots
        self._planner = self._new()
        self.offset: dict[str, Any] = self._planner.initial().to_json()

    def ask(self, run: str) -> Guidance:
        return Guidance()

    def tell(self, run: str, planned: Planned) -> None:
        self.told.append(planned)

    def plan(self) -> BatchOffset:
        """Plan the next batch and keep its offset before reading."""
        start = self._at()
        return self._planner.plan(start, self.max_rows)

    def slices(self, end: BatchOffset) -> list[KinesisSplit]:
        return [split for task in self._planner.tasks(self._at(), end) for split in task.splits]

    def read(self, end: BatchOffset) -> dict[str, pa.Table]:
        """Read a batch, known by its offset alone."""
        end = BatchOffset.find(json.loads(json.dumps(end.to_json())))  # type: ignore[assignment]
        parts: dict[str, list[pa.RecordBatch]] = {}
        for part in read_slices(self.source, self.slices(end), stalled_seconds=30):
            parts.setdefault(part.split_id, []).append(part.rows)
        return {name: pa.Table.from_batches(batches) for name, batches in parts.items()}

    def commit(self, end: BatchOffset) -> None:
        self._planner.committed(end)
        self.offset = json.loads(json.dumps(end.to_json()))

    def batch(self) -> bool:
        """Plan, read and commit; return whether the batch had rows."""
        end = self.plan()
        if end == self._at():
            return False
        self.rows += self.read(end).items()
        self.commit(end)
        return True

    def until(self, rows: int, *, seconds: float = 60) -> None:
        """Read until the total number of rows is reached."""

        def enough() -> bool:
            self.batch()
            return len(self.values()) >= rows

        wait_until(enough, f"{rows} rows", seconds=seconds)

    def values(self) -> list[str]:
        """The data of all rows, in reading order."""
        return [value for _, table in self.rows for value in strings(table, "data")]

    def by_key(self) -> dict[str, list[int]]:
        """The row numbers of each partition key, in reading order."""
        found: dict[str, list[int]] = {}
        for _, table in self.rows:
            for key, value in zip(strings(table, "partitionKey"), strings(table, "data"), strict=True):
                found.setdefault(key, []).append(int(value))
        return found

    @property
    def live(self) -> set[str]:
        """The unfinished splits."""
        return set(self.offset["positions"])

    def restart(self, source: KinesisSource | None = None) -> None:
        """Continue as another process would, from the checkpoint."""
        self._planner.close()
        if source is not None:
            self.source = source
        self._planner = self._new()

    def close(self) -> None:
        self._planner.close()

    def _at(self) -> BatchOffset:
        found = BatchOffset.find(self.offset)
        assert found is not None
        return found

    def _new(self) -> BatchPlanner[KinesisSplit]:
        return BatchPlanner(
            self.source, name="orders", options=PlanOptions(slots=self.slots, future_guard_us=None),
            now_us=lambda: time.time_ns() // 1_000, peer=self,
        )  # fmt: skip


def strings(table: pa.Table, column: str) -> list[str]:
    """A column as text, whatever it is."""
    values: list[Any] = table[column].to_pylist()
    return [value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in values]
