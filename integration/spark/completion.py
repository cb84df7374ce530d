"""How far a query's sink is complete, read out of its checkpoint alone.

A time T is passed if everything of the query up to T can be read in its sink. Batch N proves this once Spark has
recorded it in ``commits/N``, because the sink has its rows before. Its entry ``offsets/N`` has two watermarks:

    low       in the heartbeat's offset. All rows up to it were in batch N or before: the service makes it of the
              reports of batches before N, and of the plan of batch N.
    in force  ``batchWatermarkMs``. Stateful operators of batch N emit what is over at this watermark: Spark puts the
              low watermark of batch N into force in batch N + 1.

So a query without state is complete until the low watermark of its newest committed batch. A query with state is
complete until the watermark in force in that batch, and no further than the low watermark. A batch that was planned and
not committed proves nothing. ``nextBatchWatermarkMs`` of a commit proves nothing either, because the windows that it
closes are emitted by the next batch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowmark.integration.errors import CheckpointUnreadable, SessionUnfit, UnreadableHeartbeat
from lowmark.watermark.duration import rough_duration_us
from lowmark.watermark.moment import format_time_us, none_first

from .arrow_store import ArrowStore
from .checkpoint_store import CheckpointFiles, all_planned, batches, is_elsewhere, local_store, open_store
from .offset_log import planned_entry
from .webhdfs_store import WebHdfsStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_OTHER = "this is no entry as Spark writes it; is `lowmark adopt` at work there?"


@dataclass(frozen=True, slots=True)
class Completion:
    """How far the sink of a query is complete, for one of its streams.

    Attributes:
        stream: name of the stream.
        until_us: the sink has everything up to this time, microseconds since 1970; None: nothing is sure yet.
        low_watermark_us: the low watermark of the newest committed batch, microseconds; None without one.
        with_state: whether the query has stateful operators, such as windows.
        batch_id: the newest committed batch; None before the first.
        age_seconds: age of this batch's commit, or of the first planned batch before the first commit.
        planned_batch_id: the newest planned batch, which may be the committed one.
    """

    stream: str
    until_us: int | None
    low_watermark_us: int | None
    with_state: bool
    batch_id: int | None
    age_seconds: float
    planned_batch_id: int

    def has_passed(self, time_us: int) -> bool:
        """Whether everything up to a time can be read in the sink.

        >>> Completion("orders", 5_000, 5_000, False, 7, 1.0, 7).has_passed(5_000)
        True
        """
        return self.until_us is not None and self.until_us >= time_us

    @property
    def why(self) -> str:
        """Return in words why the sink is not complete further."""
        age = rough_duration_us(max(0, round(self.age_seconds * 1_000_000)))
        if self.batch_id is None:
            return f"no batch is committed yet; batch {self.planned_batch_id} was planned {age} ago"
        parts = [f"the newest committed batch is {self.batch_id}, {age} old"]
        if self.planned_batch_id > self.batch_id:
            parts.append(f"batch {self.planned_batch_id} is planned and not committed, so it does not count")
        if self.low_watermark_us is None:
            parts.append("there is no low watermark yet")
        elif self.until_us is None or self.until_us < self.low_watermark_us:
            low = format_time_us(self.low_watermark_us)
            parts.append(
                f"its low watermark is {low}, and windows that it closes are emitted by the next batch, in a query of "
                "several streams once all of them have passed it"
            )
        return "; ".join(parts)


def complete_until(low_us: int | None, in_force_us: int | None, *, with_state: bool) -> int | None:
    """Return how far a committed batch makes the sink complete, microseconds; None: nothing is sure.

    `low_us` is the low watermark in the batch's heartbeat, `in_force_us` the watermark that Spark used in the batch.

    >>> complete_until(20, 10, with_state=False), complete_until(20, 10, with_state=True)
    (20, 10)
    >>> complete_until(20, 0, with_state=True)
    """
    if not with_state or low_us is None:
        return low_us
    return min(low_us, in_force_us) if in_force_us else None


def completions(checkpoint: str | os.PathLike[str], *, spark: SparkSession | None = None) -> list[Completion]:
    """Return the `Completion` of each of the query's streams, sorted by name."""
    files = _opened(os.fspath(checkpoint), spark)
    if found := completions_in(files):
        return found
    raise CheckpointUnreadable(
        files.root,
        "it is of a query without lowmark, whose watermark does not say how far its splits are read",
        "pass the checkpoint of a wrapped query; `lowmark adopt` makes one of it.",
    )


def _opened(place: str, spark: SparkSession | None) -> CheckpointFiles:
    if spark is not None:
        if not hasattr(spark, "_jsparkSession"):
            raise SessionUnfit(
                "completion needs the session of a driver",
                "a Spark Connect session",
                "call it without spark=, on a machine that reaches the checkpoint; or in a driver that reaches it, "
                "such as a pyspark shell.",
            )
        return open_store(spark, place)
    if place.startswith("webhdfs://"):
        return WebHdfsStore(place)
    return ArrowStore(place) if is_elsewhere(place) else local_store(place)


def completions_in(files: CheckpointFiles) -> list[Completion]:
    """Return the same as `completions`, from a checkpoint that is open; nothing of a query without lowmark."""
    # The commits first: a committed batch is planned, and its state is there.
    committed = batches(files, "commits")
    planned = all_planned(files)
    done = committed[0] if committed else None
    entry = planned_entry(files, planned[0] if done is None else done, _OTHER)
    try:
        heartbeats = sorted(entry.heartbeats.values(), key=lambda offset: offset.stream)
    except UnreadableHeartbeat as unreadable:
        raise CheckpointUnreadable(files.root, str(unreadable), "use the lowmark that wrote it.") from unreadable
    with_state = bool(files.names("state"))
    in_force_us = None if entry.watermark_ms is None else entry.watermark_ms * 1_000
    age_seconds = files.age_seconds(f"offsets/{planned[0]}" if done is None else f"commits/{done}") or 0.0
    return [
        Completion(
            stream=offset.stream,
            until_us=None if done is None else complete_until(offset.low_us, in_force_us, with_state=with_state),
            low_watermark_us=None if done is None else offset.low_us,
            with_state=with_state,
            batch_id=done,
            age_seconds=age_seconds,
            planned_batch_id=max(planned[0], -1 if done is None else done),
        )
        for offset in heartbeats
    ]


def completion(
    checkpoint: str | os.PathLike[str], stream: str | None = None, *, spark: SparkSession | None = None
) -> Completion:
    """Return how far the sink of a query is complete, out of its checkpoint: without Spark, service or driver.

    Args:
        checkpoint: the query's checkpointLocation: a folder of this machine, or an address such as ``s3a://bucket/orders``.
        stream: the name of a stream; None: the query's only stream, or the one that is furthest behind.
        spark: a session that reads the checkpoint as its queries do; None: it is read without Spark.

    Raises:
        CheckpointUnreadable: the checkpoint cannot be read, is not there, is of a query without lowmark, or of a query
            without a stream of that name.
        SessionUnfit: the session is a Spark Connect session.

    >>> completion("/no/such/folder", "orders")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    lowmark.integration.errors.CheckpointUnreadable: checkpoint "/no/such/folder": there is no such folder. Hint: ...
    """
    found = completions(checkpoint, spark=spark)
    if stream is not None and not any(each.stream == stream for each in found):
        names = ", ".join(f'"{each.stream}"' for each in found)
        raise CheckpointUnreadable(
            os.fspath(checkpoint), f'it has no stream "{stream}", but {names}', "pass the name given to wrap or read."
        )
    mine = [each for each in found if stream in (None, each.stream)]
    return min(mine, key=lambda each: none_first(each.until_us))
