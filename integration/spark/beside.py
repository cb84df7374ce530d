"""Finds the offsets at which a query with a new checkpoint starts beside an old one, so that no window is torn.

The rows that the old query counted in open windows stay in its state. The new query reads these rows again, so it must
start at the first row of the oldest open window, and must leave out windows that the old query closed. Both follow from
the old checkpoint, because native Spark's watermark after a batch is the largest event time up to it, minus the delay.
So as long as

    watermark after batch k + delay < beginning of the oldest open window

batch k and the batches before it hold no row of that window.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import PurePosixPath

from lowmark.integration.errors import CheckpointUnreadable
from lowmark.sources.planning.offset import BatchOffset
from lowmark.watermark.moment import format_time_us

from .checkpoint import CHANGES, initial_offset, kafka_starting_offsets
from .checkpoint_store import LocalStore, batches, local_store
from .kafka_offsets import Starting, starting_at
from .offset_log import COPY, OffsetEntry, ahead_of_clock, planned_entry


@dataclass(frozen=True)
class Beside:
    """The start of the new query, and the windows to leave out."""

    starting: Starting
    stopped: Starting  # the first records that the old query would read
    watermark_us: int | None  # the old query has emitted the windows until here; None: it has emitted none

    @property
    def read_again(self) -> int:
        """Number of offsets that both queries read."""
        old = [(topic, partition, at) for topic, known in self.stopped.items() for partition, at in known.items()]
        return sum(at - self.starting[topic][partition] for topic, partition, at in old)

    @property
    def filter(self) -> str | None:
        """A condition in Spark SQL that leaves out the old query's windows from the new query's; None: not needed.

        >>> Beside({}, {}, 1_763_800_000_000_000).filter
        'window.end > timestamp_millis(1763800000000)'
        """
        return None if self.watermark_us is None else f"window.end > timestamp_millis({self.watermark_us // 1_000})"

    @property
    def watermark(self) -> str | None:
        return None if self.watermark_us is None else format_time_us(self.watermark_us)


def reach_back(checkpoint: str | os.PathLike[str], *, window_us: int, delay_us: int) -> Beside:
    """Find the start of a new query whose windows shall be whole.

    Args:
        checkpoint: of a native query on Kafka with one `withWatermark`, in append mode; a folder on this machine. No
            query with lowmark ran on it.

    Raises:
        CheckpointUnreadable: the checkpoint is of another kind, or its entries do not reach back far enough.
    """
    store = local_store(checkpoint)
    stopped = kafka_starting_offsets(checkpoint)
    done = batches(store, "commits")[0]
    newest = planned_entry(store, done, COPY)
    entries = {batch: planned_entry(store, batch, COPY) for batch in batches(store, "offsets") if batch < done}
    entries[done] = newest
    if any(BatchOffset.find(offset) for _, offset in newest.sources):
        raise CheckpointUnreadable(
            store.root,
            "a source of lowmark's read its rows, and does not say how far their times have come",
            "begin a new checkpoint at the offsets that `lowmark offsets` prints without --window.",
        )
    left = [name for name in store.names("lowmark") if name != PurePosixPath(CHANGES).name]  # reports of its runs
    if left or any(entry.heartbeats for entry in entries.values()):
        raise CheckpointUnreadable(
            store.root,
            "a query with lowmark runs or ran on it, whose watermark does not say how far its rows have come",
            "keep it, because `lowmark adopt` and `lowmark leave` take it over with all its state; or begin a new "
            "checkpoint at the offsets that `lowmark offsets` prints without --window, and lose the windows that are "
            "open.",
        )
    watermark_ms = newest.watermark_ms
    if watermark_ms is None:
        return Beside(_initial(store, newest, stopped), stopped, None)
    if (where := ahead_of_clock(watermark_ms * 1_000, now_us=time.time_ns() // 1_000)) is not None:
        raise CheckpointUnreadable(
            store.root,
            f"its watermark {where}, so it does not say which windows are open",
            "begin a new checkpoint at the offsets that `lowmark offsets` prints without --window.",
        )
    open_us = watermark_ms * 1_000 - window_us
    passed = [
        batch
        for batch in sorted(entries)
        if batch + 1 in entries and (entries[batch + 1].watermark_ms or 0) * 1_000 + delay_us < open_us
    ]
    if passed:
        starting = starting_at(offset for _, offset in entries[passed[-1]].sources)
        return Beside(_with_new(starting, stopped), stopped, watermark_ms * 1_000)
    if 0 not in entries:
        raise CheckpointUnreadable(
            store.root,
            f"its oldest batch is {min(entries)}, and rows of a window that is still open may have been read before",
            f'start with .option("startingTimestamp", "{max(0, open_us // 1_000)}") if event times are never later '
            "than the records' own, or adopt the checkpoint.",
        )
    return Beside(_initial(store, newest, stopped), stopped, watermark_ms * 1_000)


def _initial(store: LocalStore, newest: OffsetEntry, stopped: Starting) -> Starting:
    """The start of the old query, as its Kafka sources recorded it. Raises `CheckpointUnreadable`."""
    found = {id_: initial_offset(store, id_) for id_, offset in newest.sources if starting_at([offset])}
    if (unknown := next((id_ for id_, offset in found.items() if offset is None), None)) is not None:
        fact = f"sources/{unknown}/0 does not say where its rows begin"
        raise CheckpointUnreadable(store.root, fact, "use a whole copy of the checkpoint.")
    return _with_new(starting_at(found.values()), stopped)


def _with_new(starting: Starting, stopped: Starting) -> Starting:
    """Add later partitions, which Spark reads from their beginning."""
    return {
        topic: {partition: starting.get(topic, {}).get(partition, 0) for partition in partitions}
        for topic, partitions in stopped.items()
    }
