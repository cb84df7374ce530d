"""Spark's checkpoint folder: reads Spark's files, and adds small files of lowmark's.

The added file, ``lowmark/<token>``, holds the state of a run after its last report. A heartbeat can carry a report
only into the next batch, so a query that ends, or is killed, after a batch would forget it. A file ``lowmark/done-...``
holds the partitions that are still to be marked as done.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from lowmark.integration.errors import CheckpointUnreadable, CheckpointUnwritable
from lowmark.watermark.moment import least_us

from . import completion
from .checkpoint_store import CheckpointStore, all_planned, batches, is_elsewhere, local_path, local_store, open_store
from .kafka_offsets import Starting, starting_at
from .offset_log import OffsetEntry, json_object, planned_entry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHANGES = "lowmark/changes"  # the records of `adopt` and `leave`, beside the farewells
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TEMPORARY = re.compile(r"temporary-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""The folder that Spark makes for a query without checkpointLocation."""


class Farewell(msgspec.Struct, frozen=True):
    """The state that a run leaves for the next run."""

    token: str  # of the run; also in the checkpoint's last heartbeat offset
    epoch: int  # of the last answer to the run's reader; the state fits the offset of that answer and older ones
    batch_id: int
    state: str  # of the splits' watermarks, base64; empty: the state in that offset is the newest


class FarewellFiles:
    """The farewells in a checkpoint on any file system, and some of Spark's own files.

    Every failure is a `CheckpointUnreadable` or a `CheckpointUnwritable`; an entry of Spark's that is not in its format
    is an `UnknownFormat`, and a file that is no text a `UnicodeDecodeError`.

    Args:
        checkpoint: the root, as Spark resolved it; the attribute is the root as a user would write it.
    """

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self._spark, self._checkpoint = spark, checkpoint.rstrip("/")
        self._opened: CheckpointStore | None = None
        self.checkpoint = self._checkpoint if is_elsewhere(self._checkpoint) else str(local_path(self._checkpoint))

    @property
    def _store(self) -> CheckpointStore:
        # No `cached_property`: before Python 3.12 it locks all objects of the class while one file system is reached.
        if self._opened is None:
            self._opened = open_store(self._spark, self._checkpoint)
        return self._opened

    def write(self, farewell: Farewell) -> None:
        """Write a farewell, unless the checkpoint is gone."""
        try:
            self._write(f"lowmark/{farewell.token}", msgspec.json.encode(farewell).decode())
        except CheckpointUnwritable:
            if self._store.exists(""):
                raise

    def read(self, token: str) -> Farewell | None:
        """Return the farewell of a run, None without one. Raises `msgspec.DecodeError` for a file that is none.

        A farewell of a batch that is not committed here is none: Spark's files were set back, as by a copy from before,
        and rows that are read again would be late.
        """
        if not _TOKEN.fullmatch(token):
            return None  # a path, in an offset from an unknown writer
        text = self._store.read(f"lowmark/{token}")
        farewell = None if text is None else msgspec.json.decode(text, type=Farewell)
        return farewell if farewell is not None and self.committed(farewell.batch_id) else None

    def read_done(self, name: str) -> str | None:
        return self._store.read(f"lowmark/{name}")

    def write_done(self, name: str, text: str) -> None:
        self._write(f"lowmark/{name}", text)

    def _write(self, path: str, text: str) -> None:
        """Write a file, but none into a temporary checkpoint, because Spark deletes the checkpoint at the same time."""
        if not _TEMPORARY.fullmatch(self._checkpoint.rpartition("/")[2]):
            self._store.write(path, text)

    def newest_commit(self) -> tuple[int, int | None]:
        """Return the newest committed batch, else -1, and until when the sink has all of each stream, microseconds."""
        committed = batches(self._store, "commits")
        if not committed:
            return -1, None
        return committed[0], least_us(each.until_us for each in completion.completions_in(self._store))

    def kafka_start(self, source: int) -> Mapping[str, Any] | None:
        """Return the first offset of a Kafka source, by its number: the progress of the first batch lacks it."""
        return json_object(initial_offset(self._store, str(source)))

    def newest_entry(self) -> OffsetEntry | None:
        """Return the entry of the newest planned batch; None before the first batch."""
        batch_id = self.newest_batch()
        return None if batch_id is None else self.entry(batch_id)

    def entry(self, batch_id: int) -> OffsetEntry | None:
        """Return the entry of a planned batch; None if Spark has removed it."""
        text = self._store.read(f"offsets/{batch_id}")
        return None if text is None else OffsetEntry.parse(text)

    def newest_batch(self) -> int | None:
        planned = batches(self._store, "offsets")
        return planned[0] if planned else None

    def committed(self, batch_id: int) -> bool:
        return self._store.exists(f"commits/{batch_id}")

    def lost_batch(self, resumes: str, *, runs: bool, left_behind: Farewell | None) -> int | None:
        """Return the batch that was committed before a run and never reported; None if no such batch had rows.

        Args:
            resumes: the token in the offset that the run starts from; another query's is not in this checkpoint.
            runs: the query has finished a batch since it was started.
        """
        planned = self.newest_batch()
        written = None if planned is None else self.entry(planned)
        if planned is None or written is None:
            return None
        if not any(resumes in (offset or "") for _, offset in written.sources):
            return None  # another query of the stream
        # A batch that a restart ran again is reported; the state in its offset comes from the report before it.
        over = planned if not runs and self.committed(planned) else planned - 1
        reported = planned - 1 if left_behind is None else left_behind.batch_id
        return over if reported < over and self._went_on(reported, over) else None

    def _went_on(self, before: int, until: int) -> bool:
        """Whether a source of rows went on after one batch, until the end of another, or Spark kept no entry."""
        first, last = self.entry(before), self.entry(until)
        return first is None or last is None or first.positions != last.positions

    def may_be_native(self) -> bool:
        """Whether a query without lowmark may have begun the checkpoint: after an adoption, or with named sources."""
        if self._store.exists(CHANGES):
            return True
        newest = self.newest_entry()
        return newest is not None and newest.named

    def forget(self, token: str) -> None:
        """Delete a farewell after its state has gone into an offset."""
        if _TOKEN.fullmatch(token):
            self._store.remove(f"lowmark/{token}")


def initial_offset(store: CheckpointStore, source: str) -> str | None:
    """Return the first offset of a Kafka source, by its number; None if it recorded none in a known format."""
    # A zero byte, "v1", then the offset. Source: `org.apache.spark.sql.kafka010.KafkaSourceInitialOffsetWriter`.
    version, _, offset = (store.read(f"sources/{source}/0") or "").lstrip("\0").partition("\n")
    return offset if version == "v1" else None


def kafka_starting_offsets(checkpoint: str | os.PathLike[str], *, committed: bool = True) -> Starting:
    """Return the `startingOffsets` with which a new query continues where a checkpoint's query stopped.

    Args:
        checkpoint: a folder on this machine; its query read Kafka by Spark's own source, or by lowmark's.
        committed: start behind the last committed batch, so that a sink that saw it gets no row twice; False: start
            behind the last planned batch.

    Raises:
        CheckpointUnreadable: the checkpoint has no offsets, or none of a Kafka source.
        UnreadableOffset: an offset of a source of lowmark's is broken.
    """
    store = local_store(checkpoint)
    batch_id = all_planned(store)[0]
    if committed:
        done = batches(store, "commits")
        if not done:
            raise CheckpointUnreadable(
                store.root,
                "no batch was committed yet",
                "there is nothing to continue from: start the new query with the same startingOffsets as the old one.",
            )
        batch_id = min(batch_id, done[0])
    hint = "this Spark writes a format that this version of lowmark does not read."
    found = starting_at(offset for _, offset in planned_entry(store, batch_id, hint).sources)
    if not found:
        raise CheckpointUnreadable(
            store.root,
            "none of its sources is Kafka",
            "only Kafka offsets can be given to a new query as startingOffsets.",
        )
    return found
