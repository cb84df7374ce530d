"""Writes the golden files: `python -m tests.golden.write FOLDER`. Needs Java, for the two checkpoints.

The files beside this script were written under pyspark 4.2. Until the first release they are written anew whenever a
format changes. A released version's files are not written again, because users' checkpoints hold such bytes: a new
kind of bytes then gets a new file, and the old files stay.
"""

from __future__ import annotations

import base64
import json
import struct
import sys
from pathlib import Path
from typing import Any

import msgspec
from lowmark.integration import LowWatermarkService
from lowmark.integration.coordinator.journal import Journal
from lowmark.integration.spark.session import local_session
from lowmark.sources.planning.offset import BatchOffset
from lowmark.watermark.splits.snapshot import encode
from pyspark.sql import SparkSession

from tests.golden import values
from tests.golden.queries import QUERIES, emitted
from tests.watermark.tasks.coordinator_world import snapshot_of

RUNS: tuple[dict[str, bool], ...] = ({"availableNow": True}, {"once": True})
"""Runs of four ticks each. No offset has the report of the last batch; a file beside the offsets has it."""


def main() -> None:
    folder = Path(sys.argv[1])
    states = {name: text(encode(snapshot)) for name, snapshot in values.SNAPSHOTS.items()}
    offsets = {name: as_spark(values.heartbeat(name, state).to_json()) for name, state in states.items()}
    offsets["first"] = as_spark(values.FIRST_HEARTBEAT.to_json())
    save(folder / "heartbeats.json", offsets)
    (folder / "farewell.json").write_bytes(msgspec.json.encode(values.FAREWELL))

    save(folder / "splits.json", {kind: splits(kind) for kind in values.KEPT})
    save(folder / "enumerators.json", {kind: text(enumerator(kind)) for kind in values.KEPT})
    save(folder / "batches.json", {kind: as_spark(batch(kind)) for kind in values.KEPT})

    save(folder / "messages.json", {name: text(values.encoded(name)) for name in values.MESSAGES})

    journal = Journal(folder / "coordinator.journal")
    journal.write(snapshot_of(values.coordinator()))
    journal.close()

    with local_session("golden") as (spark, _):
        spark.conf.set("spark.sql.shuffle.partitions", "1")
        for kind in QUERIES:
            save(folder / f"{kind}.json", run(spark, kind, folder / kind))
    for leftover in {*folder.rglob("*.crc"), *folder.rglob(".*")}:
        leftover.unlink()


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def as_spark(offset: dict[str, Any]) -> str:
    """An offset as Spark writes it into a checkpoint."""
    return json.dumps(offset)


def save(path: Path, what: object) -> None:
    path.write_text(json.dumps(what, indent=1, sort_keys=True) + "\n")


def splits(kind: str) -> list[object]:
    serializer = values.KEPT[kind].split_serializer
    return [serializer.version, *(text(serializer.serialize(split)) for split in values.KEPT_SPLITS[kind])]


def enumerator(kind: str) -> bytes:
    """The bytes of the coordinator's checkpoint: a header, and the enumerator's state."""
    serializer = values.KEPT[kind].enumerator_state_serializer
    state = serializer.serialize(values.KEPT_ENUMERATORS[kind])
    return struct.pack(">iii", 1, serializer.version, len(state)) + state


def batch(kind: str) -> dict[str, Any]:
    state = values.batch_state(kind, enumerator(kind))
    serializer = values.KEPT[kind].split_serializer
    return BatchOffset.encode(f"source {kind}", 17, "run-1", state, serializer).to_json()


def run(spark: SparkSession, kind: str, checkpoint: Path) -> list[list[object]]:
    """The output of the query's first batches, which end in the middle of the stream."""
    rows: list[list[object]] = []
    for trigger in RUNS:
        with LowWatermarkService(spark) as service:
            rows += emitted(QUERIES[kind](spark, service, 4), checkpoint, **trigger).rows
    return rows


if __name__ == "__main__":
    main()
