"""Spark's checkpoint folder: what lowmark reads from it and the one small file it adds.

Offsets lie in ``offsets/<batch>``: a version line, a metadata line, then one line per source ("-" for none).
Source: `org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqLog`.

The added file, ``lowmark/<token>``, holds the state of a run after its last report. A heartbeat can carry a report
only into the next batch, so a query that ends, or is killed, after a batch would forget it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from lowmark.integration.errors import CheckpointUnreadable, UnknownFormat

from .checkpoint_store import is_elsewhere, local_path
from .kafka_offsets import kafka_positions
from .offset_log import OffsetEntry, json_object

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession

__all__ = ["CHANGES", "Farewell", "FarewellFiles", "kafka_starting_offsets", "last_offsets"]

CHANGES = "changes"  # the folder of what `adopt` and `leave` have done, beside the farewells
_BATCH = re.compile(r"[0-9]{1,19}")


class Farewell(msgspec.Struct, frozen=True):
    """What a run leaves behind for the next one.

    Attributes:
        token: the run's token, which is also in the checkpoint's last heartbeat offset.
        epoch: epoch of the last offset the run wrote; the state is only good on top of that very offset.
        batch_id: newest batch in the state.
        state: the coordinator's state, base64; empty: it is the one in that offset.
    """

    token: str
    epoch: int
    batch_id: int
    state: str


class FarewellFiles:
    """The farewells in one checkpoint, on whatever file system it lies (Hadoop's own client reads and writes it).

    And what is read there of Spark's own.

    Args:
        spark: a session, for Hadoop's configuration.
        checkpoint: the checkpoint's root, as Spark resolved it.

    Attributes:
        checkpoint: the root, as a user would write it.
    """

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self._spark, self._checkpoint = spark, checkpoint.rstrip("/")
        self._root = f"{self._checkpoint}/lowmark"
        self.checkpoint = self._checkpoint if is_elsewhere(self._checkpoint) else str(local_path(self._checkpoint))

    def write(self, farewell: Farewell) -> None:
        """Leave a farewell; whole or not at all."""
        path = self._path(farewell.token)
        files = path.getFileSystem(self._conf())
        part = self._hadoop_path(f"{self._root}/.{farewell.token}.part")
        out = files.create(part, True)
        try:
            out.write(bytearray(msgspec.json.encode(farewell)))
            if out.hasCapability("hsync"):
                out.hsync()
        finally:
            out.close()
        self._sync_local(part)
        files.delete(path, False)
        if not files.rename(part, path):
            raise OSError(f"could not rename {part} to {path}")

    def read(self, token: str) -> Farewell | None:
        """Read the farewell of a run, None if it left none."""
        text = self._text(self._path(token))
        return None if text is None else msgspec.json.decode(text, type=Farewell)

    def kafka_start(self, source: int) -> Mapping[str, Any] | None:
        """Where a Kafka source began, as one of its offsets: a progress event does not say so of the first batch.

        Args:
            source: its place among the query's sources.
        """
        text = self._text(self._hadoop_path(f"{self._checkpoint}/sources/{source}/0"))
        if text is None:
            return None
        # A zero byte, "v1", then the offset. Source: `org.apache.spark.sql.kafka010.KafkaSourceInitialOffsetWriter`.
        version, _, offset = text.lstrip("\0").partition("\n")
        return json_object(offset) if version == "v1" else None

    def newest_entry(self) -> OffsetEntry | None:
        """What was planned last: the offsets of each source; None before the first batch.

        Raises:
            UnknownFormat: it is not as Spark writes it.
        """
        batch_id = self.newest_batch()
        text = None if batch_id is None else self._text(self._hadoop_path(f"{self._checkpoint}/offsets/{batch_id}"))
        return None if text is None else OffsetEntry.parse(text)

    def newest_batch(self) -> int | None:
        """Return the batch that was planned last; None before the first."""
        path = self._hadoop_path(f"{self._checkpoint}/offsets")
        files = path.getFileSystem(self._conf())
        if not files.exists(path):
            return None
        names = [status.getPath().getName() for status in files.listStatus(path)]
        return max((int(name) for name in names if _BATCH.fullmatch(name)), default=None)

    def committed(self, batch_id: int) -> bool:
        """Return whether a batch is over, as far as Spark wrote it down."""
        path = self._hadoop_path(f"{self._checkpoint}/commits/{batch_id}")
        return bool(path.getFileSystem(self._conf()).exists(path))

    def may_be_native(self) -> bool:
        """Whether a query without lowmark may have begun it: it was adopted, or has named sources, which need not be.

        Raises:
            UnknownFormat: what was planned last is not as Spark writes it.
        """
        changes = self._hadoop_path(f"{self._root}/{CHANGES}")
        if changes.getFileSystem(self._conf()).exists(changes):
            return True
        newest = self.newest_entry()
        return newest is not None and newest.named

    def forget(self, token: str) -> None:
        """Delete the farewell of a run, once its state has gone into an offset."""
        path = self._path(token)
        path.getFileSystem(self._conf()).delete(path, False)

    def _path(self, token: str) -> JavaObject:
        return self._hadoop_path(f"{self._root}/{token}")

    def _text(self, path: JavaObject) -> str | None:
        files = path.getFileSystem(self._conf())
        if not files.exists(path):
            return None
        stream = files.open(path)
        try:
            text: str = self._jvm().org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        return text

    def _sync_local(self, path: JavaObject) -> None:
        """Hadoop's local file system syncs nothing: a host that dies would leave an empty file under the new name."""
        if path.getFileSystem(self._conf()).getUri().getScheme() != "file":
            return
        file = Path(path.toUri().getPath())
        for name in (file, file.with_name(f".{file.name}.crc")):
            if name.exists():
                with name.open("rb") as written:
                    os.fsync(written.fileno())

    def _hadoop_path(self, path: str) -> JavaObject:
        return self._jvm().org.apache.hadoop.fs.Path(path)

    def _jvm(self) -> Any:
        return self._spark._jvm

    def _conf(self) -> JavaObject:
        return self._spark._jsparkSession.sessionState().newHadoopConf()


def last_offsets(checkpoint: str | os.PathLike[str]) -> tuple[int, list[str | None]]:
    """Return the last batch that a checkpoint planned and the offset of each of its sources, as text.

    Args:
        checkpoint: a folder on this machine.

    Raises:
        CheckpointUnreadable: there is no such folder, no offsets in it, or none that can be read.
    """
    folder = local_path(checkpoint)
    if is_elsewhere(os.fspath(checkpoint)):
        raise CheckpointUnreadable(
            os.fspath(checkpoint),
            "it is not on this machine",
            "copy its folders offsets, commits and sources into one here, and pass that.",
        )
    if not folder.is_dir():
        raise CheckpointUnreadable(
            str(folder), "there is no such folder", "pass the folder given as checkpointLocation."
        )
    batches = _batches(folder, "offsets")
    if not batches:
        raise CheckpointUnreadable(
            str(folder),
            "it has no planned batch (no file in offsets/)",
            "pass the folder given as checkpointLocation, not one above or below it.",
        )
    return batches[-1], _offsets_of(folder, batches[-1])


def kafka_starting_offsets(checkpoint: str | os.PathLike[str], *, committed: bool = True) -> dict[str, dict[str, int]]:
    """Return the `startingOffsets` with which a new query goes on where a checkpoint's query stopped.

    Args:
        checkpoint: a folder on this machine.
        committed: start behind the last committed batch (nothing is processed twice into a sink that saw it);
            False: start behind the last planned one.

    Returns:
        topic -> partition -> offset of the next record, sorted.

    Raises:
        CheckpointUnreadable: no offsets, or none of a Kafka source.
    """
    folder = local_path(checkpoint)
    planned, offsets = last_offsets(checkpoint)
    if committed:
        done = _batches(folder, "commits")
        if not done:
            raise CheckpointUnreadable(
                str(folder),
                "no batch was committed yet",
                "there is nothing to continue from: start the new query with the same startingOffsets as the old one.",
            )
        if done[-1] < planned:
            offsets = _offsets_of(folder, done[-1])
    found: dict[str, dict[str, int]] = {}
    for text in offsets:
        for (topic, partition), position in sorted(kafka_positions(json_object(text)).items()):
            mine = found.setdefault(topic, {})
            # Two sources on one topic: the earlier position loses nothing.
            mine[str(partition)] = min(position, mine.get(str(partition), position))
    if not found:
        raise CheckpointUnreadable(
            str(folder),
            "none of its sources is Kafka",
            "only Kafka offsets can be given to a new query as startingOffsets.",
        )
    return found


def _batches(folder: Path, log: str) -> list[int]:
    """The batches in one of a checkpoint's logs, in order; its other files are not the log's."""
    try:
        names = [file.name for file in (folder / log).iterdir()]
    except FileNotFoundError:
        return []
    except OSError as failed:
        raise _unreadable(folder, log, failed) from failed
    return sorted(int(name) for name in names if _BATCH.fullmatch(name))


def _offsets_of(folder: Path, batch_id: int) -> list[str | None]:
    name = f"offsets/{batch_id}"
    try:
        text = (folder / name).read_text(encoding="utf-8")
        return [offset for _, offset in OffsetEntry.parse(text).sources]
    except (OSError, UnicodeDecodeError) as failed:
        raise _unreadable(folder, name, failed) from failed
    except UnknownFormat as unknown:
        hint = "this Spark writes a format that this version of lowmark does not read."
        if unknown.found.startswith("has version ''"):
            hint = "did the machine stop while it was written? Use a copy of the checkpoint from before."
        raise CheckpointUnreadable(str(folder), f"{name} {unknown}", hint) from unknown


def _unreadable(folder: Path, name: str, failed: OSError | UnicodeDecodeError) -> CheckpointUnreadable:
    why = failed.strerror if isinstance(failed, OSError) else "it is not UTF-8"
    return CheckpointUnreadable(
        str(folder), f"{name} cannot be read ({why})", "check that the folder is whole and yours to read."
    )
