"""Marks partitions of a table as done, beside the query that writes them.

`observe` collects the numbers of the partitions of the rows that the query writes. Each committed batch brings these
numbers and how far the sink is complete (`Partitions`). The checkpoint keeps the partitions that are not marked yet, in
``lowmark/done-<hash>``, written after each batch and each mark. A thread of its own makes one mark after the other, so
the query never waits for a mark.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import msgspec
from lowmark.integration.errors import CheckpointUnreadable, WrapRefused
from lowmark.integration.process.loop import Loop
from lowmark.integration.spark.classic import RunningQuery
from lowmark.integration.spark.completion import complete_until
from lowmark.integration.spark.progress import Progress
from lowmark.integration.spark.sessions import Query, called
from lowmark.integration.spark.versions import observes_splits
from lowmark.integration.transport.observed import decode_sketch
from lowmark.integration.transport.split_key import SplitKey, quoted
from lowmark.sources.worker import Worker
from lowmark.watermark import duration_us, format_duration_us
from lowmark.watermark.errors import shown
from lowmark.watermark.moment import datetime_of, least_us
from lowmark.watermark.printable import counted
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from . import check
from .done_partition import DonePartition, is_shared, name_at, poster, success_files_in, takes_post
from .insist import insist
from .partitions import Due, Kept, Partitions, has_times

log = logging.getLogger("lowmark")

_METRIC = "lowmark:done:"
_STOP_SECONDS = 10.0
_NAMES_SHOWN = 100
_SKETCH_LG = 12
_KEY = SplitKey(("partition",), ("bigint",))
_ANOTHER = "wrap the source under another name for each table that is marked."


def marking_of(
    spark: SparkSession,
    stream: str,
    time: str,
    partition: str | timedelta,
    layout: str,
    delay: str | timedelta,
    *,
    success_files: str | os.PathLike[str] | None,
    call: Callable[[DonePartition], object] | None,
    post: str | None,
) -> Marking:
    """Return the marking that the arguments of `LowWatermarkService.mark_done` describe; errors as there."""
    width_us = duration_us(partition, what="partition")
    if width_us == 0:
        raise WrapRefused(stream, "a partition of 0 seconds has no rows", 'pass partition="1 hour".')
    acts: list[Callable[[DonePartition], object]] = []
    if success_files is not None:
        hint = 'pass success_files="/data/table" or success_files="s3a://bucket/table".'
        check.folder(stream, "mark_done: success_files", success_files, hint)
        acts.append(success_files_in(spark, os.fspath(success_files), width_us))
    if call is not None:
        check.function(stream, "mark_done: call", call)
        acts.append(call)
    if post is not None:
        acts.append(poster(post))
    if len(acts) != 1:
        fact = f"mark_done has {len(acts)} ways to mark a partition, expected one"
        raise WrapRefused(stream, fact, "pass success_files=, call= or post=.")
    if post is not None and not takes_post(post):
        expected = "http:// or https:// and a host, a port up to 65535, without a login or a blank"
        fact = f"mark_done: post is {shown(post)}, expected {expected}"
        raise WrapRefused(stream, fact, 'pass post="http://localhost:8080/done".')
    hint = 'pass layout="dt=%Y-%m-%d/hour=%H".'
    try:
        name = name_at(datetime_of(0), layout)
    except ValueError as unfit:
        raise WrapRefused(stream, f"layout {layout!r:.80} is none that strftime takes ({unfit})", hint) from unfit
    if success_files is not None and not {"/", ".."}.isdisjoint(PurePosixPath(name).parts):
        raise WrapRefused(stream, f"layout {layout!r:.80} leads out of the table", hint)
    if success_files is not None and is_shared(layout, width_us):
        fact = (
            f"layout {layout!r:.80} has one folder for several partitions of {format_duration_us(width_us)}, so "
            "_SUCCESS would stand in it before the last of them is done"
        )
        raise WrapRefused(stream, fact, "pass a layout that names each partition, or longer partitions.")
    return Marking(stream, time, width_us, duration_us(delay, what="delay"), layout, acts[0])


class Marking:
    """The marks of one stream's queries; `act` marks a partition, and is repeated until it returns."""

    def __init__(
        self, stream: str, time: str, width_us: int, delay_us: int, layout: str, act: Callable[[DonePartition], object]
    ) -> None:
        self.stream, self._time, self._width_us, self._delay_us = stream, time, width_us, delay_us
        self.metric = f"{_METRIC}{uuid.uuid4()}:{stream}"  # another one for each marking
        self._layout, self._act = layout, act
        self.rows_after_mark: dict[str, int] = {}  # that came to a marked partition, by the partition's name
        self._changed, self._stopped = threading.Condition(), threading.Event()
        self._query: RunningQuery | None = None
        self._partitions = Partitions(Kept(width_us), delay_us)
        self._named, self._counts = "", False
        self._writer: Loop | None = None
        self._actor: Worker | None = None
        self._fails = False  # the last try of a mark has failed
        self._unsaved = False  # a write of the file waits for its turn

    @property
    def file(self) -> str:
        """Name of the file in the checkpoint's folder ``lowmark``."""
        return f"done-{hashlib.sha256(self.stream.encode()).hexdigest()[:16]}"

    def observe(self, df: DataFrame) -> DataFrame:
        """Return the rows that the query writes with the measurement of their partitions. Raises `WrapRefused`."""
        kind = dict(df.dtypes).get(self._time)
        if kind != "timestamp":
            raise WrapRefused(
                self.stream,
                f'mark_done: the time "{self._time}" is {kind or "no column"}, expected a timestamp column',
                "pass time= with the column that the partitions are made of.",
            )
        micros = f"unix_micros({quoted(self._time)})"
        number = f"({micros} - pmod({micros}, {self._width_us}L)) div {self._width_us}L"
        columns: list[Column] = [F.expr(f"collect_set({number})").alias("numbers")]
        if observes_splits(df.sparkSession):  # otherwise a marked partition's late rows count as one for each batch
            sketch = f"tuple_sketch_agg_double({number}, 1.0D, {_SKETCH_LG}, 'sum')"
            columns.append(F.expr(sketch).alias("rows"))
        return df.observe(self.metric, *columns)

    def begin(self, query: RunningQuery) -> None:
        """Take hold of a query before its first batch of this run, if the query writes the measured rows.

        A query that begins leaves its file before its first batch, so no later crash can take the first batch away.
        Reads and writes a checkpoint, so it is called beside the loop, and holds no lock meanwhile.

        Raises:
            CheckpointUnreadable: the file cannot be read; the query ends with this error before its first batch.
            WrapRefused: the query writes the rows of an earlier marking of the stream, or another query writes these;
                or the checkpoint has the marks of partitions of another length.
        """
        observed = query.observed()
        if any(_stream_of(metric) == self.stream for metric in observed - {self.metric}):
            fact = "a later call of mark_done replaced the one of this query, so nothing would mark its partitions"
            if self.metric in observed:
                fact = "its rows come from mark_done twice, under one name, under which a checkpoint keeps one marking"
            raise WrapRefused(self.stream, fact, _ANOTHER)
        if self.metric not in observed:
            return
        kept = self._read(query)
        if kept is not None and kept.width_us != self._width_us:
            before, now = map(format_duration_us, (kept.width_us, self._width_us))
            fact = f"mark_done has partitions of {now}, and the checkpoint has the marks of partitions of {before}"
            hint = f"pass partition= as before; or remove lowmark/{self.file}, and mark what was open by hand."
            raise WrapRefused(self.stream, fact, hint)
        with self._changed:
            if kept is not None and (not self._has(query) or kept.batch_id < self._partitions.batch_id):
                if not self._has(query) and self.running is not None:
                    fact = f"query {self.running} writes the rows of this mark_done, and would be marked no more"
                    raise WrapRefused(self.stream, fact, _ANOTHER)
                self._named = called(query)
                self._partitions = Partitions(kept, self._delay_us)
            self._query = query
            self._act_and_write()
            self._changed.notify_all()

    @property
    def running(self) -> str | None:
        """Name, or else id, of the query whose partitions are marked; None if the query has ended."""
        return self._named if self._query is not None and self._query.active else None

    @property
    def query_id(self) -> str | None:
        """Id of the query whose partitions are marked; None before the query has begun."""
        return None if self._query is None else self._query.query_id

    def _has(self, query: Query) -> bool:
        return self.query_id == query.query_id

    def take(self, progress: Progress, query: Query) -> None:
        """Take a committed batch of a query on the stream. On the service's loop."""
        if not self._has(query):
            return  # another query of the stream
        # The stream that is furthest behind decides, because the query may write rows of each of its streams.
        low_us = least_us(offset.low_us for _, offset in progress.heartbeats())
        with_state = bool(progress.state_operators)
        until_us = complete_until(low_us, progress.watermark_us, with_state=with_state)
        self._act_and_write()
        with self._changed:
            if self._partitions.begins_with_a_gap(progress.batch_id):
                log.warning(
                    'stream "%s": nothing tells which rows came before batch %d. A partition that is older than all '
                    "that come now may have rows and is not marked done",
                    self.stream, progress.batch_id,
                )  # fmt: skip
            rows = self._rows(progress.observed_metrics.get(self.metric), progress.batch_id)
            if rows is None and not with_state and progress.num_input_rows == 0:
                rows = {}
            now_us = time.time_ns() // 1_000
            late = self._partitions.report(progress.batch_id, rows, until_us=until_us, now_us=now_us)
            self._changed.notify_all()
        self._save()
        for number, count in sorted(late.items()):
            name = self.name(number)
            self.rows_after_mark[name] = self.rows_after_mark.get(name, 0) + count
            log.warning(
                'stream "%s": %s%s in batch %d came to partition %s after it was marked done (%d so far)',
                self.stream, "" if self._counts else "at least ", counted(count, "row"), progress.batch_id, name,
                self.rows_after_mark[name],
            )  # fmt: skip

    def name(self, number: int) -> str:
        return name_at(datetime_of(number * self._width_us), self._layout)

    def stop(self) -> None:
        """Make the marks that are due, a bounded time; the log names the first that is left for the next start.

        A mark that has failed is not waited for, because it is repeated too late; nor one that stops the service.
        """
        deadline = time.monotonic() + _STOP_SECONDS
        with self._changed:
            while self._marks_soon and (left_seconds := deadline - time.monotonic()) > 0:
                self._changed.wait(left_seconds)
            self._stopped.set()
            self._changed.notify_all()
        if self._actor is not None:
            self._actor.join(1.0)
        with self._changed:
            if (due := self._partitions.due()) is not None:
                text = 'stream "%s": mark_done stops before partition %s is marked; a new start of the query marks it'
                log.warning(text, self.stream, self.name(due.number))
        if self._writer is not None:
            self._writer.stop()

    @property
    def _marks_soon(self) -> bool:
        """Whether a mark is due, and nothing keeps the thread from it."""
        runs = self._actor is not None and not (self._actor.ended or self._actor.is_current or self._fails)
        return runs and self._partitions.due() is not None

    def _read(self, query: RunningQuery) -> Kept | None:
        """Return the content of the file in a query's checkpoint; None: it is known, and the checkpoint not set back.

        A query without the file gets it first. An error ends the query, because without the content the marks of all
        open partitions would be lost.
        """
        files = query.farewells
        try:
            done, until_us = files.newest_commit()
            if self._has(query) and done >= self._partitions.batch_id:
                return None
            text = files.read_done(self.file)
            if text is None:
                return self._first_kept(query, done, until_us)
            kept = msgspec.json.decode(text, type=Kept)
            if done < kept.batch_id:  # Spark's files were set back; later batches come again, and may have other rows
                kept = msgspec.structs.replace(kept, batch_id=done, until_us=until_us)
            return kept
        except (msgspec.DecodeError, UnicodeDecodeError) as broken:
            fact = f"lowmark/{self.file} is not as mark_done has written it ({broken})"
            hint = "bring the file back; or remove it, and mark the partitions that were open by hand."
            raise CheckpointUnreadable(files.checkpoint, fact, hint) from broken
        except Exception as failed:  # py4j and file systems have no common base class of errors
            fact = f"lowmark/{self.file}, which has the partitions to be marked, cannot be read or begun ({failed})"
            hint = "start the query again when the file system answers; no mark is lost."
            raise CheckpointUnreadable(files.checkpoint, fact, hint) from failed

    def _act_and_write(self) -> None:
        """Have both threads at work, also in place of those that an error has ended."""
        if self._stopped.is_set():
            return
        if self._writer is None or self._writer.failed is not None:
            self._writer, self._unsaved = Loop("lowmark-done-files"), False
        if self._actor is None or self._actor.ended:
            self._actor = Worker("lowmark-done", self._run)
            self._actor.start()

    def _first_kept(self, query: RunningQuery, done: int, until_us: int | None) -> Kept:
        """Write the file of a query that has none, by its newest commit, and return its content."""
        unsure = None
        if until_us is not None:  # rows of before this marking
            now_us = max(time.time_ns() // 1_000, until_us)  # as in `Partitions.report`
            unsure = (until_us - self._delay_us) // self._width_us, now_us // self._width_us
        # Without a time, nothing says how old the rows of before are, as after a crash that took their reports.
        kept = Kept(self._width_us, -1 if until_us is None else done, until_us=until_us, unsure=unsure)
        query.farewells.write_done(self.file, msgspec.json.encode(kept).decode())
        return kept

    def _rows(self, metric: Mapping[str, Any] | None, batch_id: int) -> dict[int, int] | None:
        if metric is None or metric.get("numbers") is None:
            return None
        numbers = [int(number) for number in metric["numbers"]]
        rows: dict[int, int] = {}
        if (sketch := metric.get("rows")) is not None:
            self._counts = True
            ids, counts = decode_sketch(sketch, where=f'stream "{self.stream}", batch {batch_id}, partitions')
            rows = dict(zip(ids.tolist(), (int(count) for count in counts.tolist()), strict=True))
        fit = [number for number in numbers if has_times(number, self._width_us)]
        if len(fit) < len(numbers):
            log.warning(
                'stream "%s", batch %d: rows have times before the year 1 or after the year 9999. Their partitions are '
                "not marked done",
                self.stream, batch_id,
            )  # fmt: skip
        return {number: rows.get(_KEY.split_id((number,)), 1) for number in fit}

    def _save(self) -> None:
        """Have the file written soon; one write is enough for all marks until its turn."""
        if self._writer is None:
            return
        with self._changed:
            waits, self._unsaved = self._unsaved, True
        if not waits:
            self._writer.post(self._write)

    def _write(self) -> None:
        with self._changed:
            kept, query, self._unsaved = self._partitions.kept, self._query, False
        assert query is not None, "the thread begins with a query"
        try:
            query.farewells.write_done(self.file, msgspec.json.encode(kept).decode())
        except Exception as failed:  # noqa: BLE001  # py4j and file systems have no common base class of errors
            log.warning(
                'stream "%s": lowmark/%s cannot be written to the checkpoint (%s). It is tried again after the next '
                "batch; a crash before that may mark a partition twice",
                self.stream, self.file, failed,
            )  # fmt: skip

    def _run(self) -> None:
        while (found := self._wait()) is not None:
            partitions, due, partition = found
            named = partition.name if due.since is None else f"{self.name(due.since)} to {partition.name}"
            said = f'marking partition {named} of stream "{self.stream}"'
            if not insist(partial(self._try, partition), said, self._stopped):
                return
            with self._changed:
                partitions.mark(due.number)
                self._changed.notify_all()
            self._save()
            empty = ", ".join(partition.empty_before[:10])
            log.info(
                'stream "%s": partition %s is done%s%s', self.stream, named,
                "" if partition.has_rows else ", its rows are not known",
                f"; {partition.empty_count} without rows before it: {empty}" if empty else "",
            )  # fmt: skip

    def _try(self, partition: DonePartition) -> None:
        fails = True
        try:
            self._act(partition)
            fails = False
        finally:
            with self._changed:
                self._fails = fails
                self._changed.notify_all()

    def _wait(self) -> tuple[Partitions, Due, DonePartition] | None:
        """Return the next partition to be marked, of the query's partitions; None when the service stops."""
        with self._changed:
            while not self._stopped.is_set():
                if (due := self._partitions.due()) is not None:
                    return self._partitions, due, self._shown(due)
                self._changed.wait()
        return None

    def _shown(self, due: Due) -> DonePartition:
        first, last = due.empty or (0, -1)
        until_us = self._partitions.until_us
        assert until_us is not None, "nothing is due before a time is known"
        return DonePartition(
            stream=self.stream,
            query=self._named,
            name=self.name(due.number),
            start=datetime_of((due.number if due.since is None else due.since) * self._width_us),
            end=datetime_of((due.number + 1) * self._width_us),
            complete_until=datetime_of(until_us),
            has_rows=due.has_rows,
            empty_before=tuple(self.name(n) for n in range(first, min(last + 1, first + _NAMES_SHOWN))),
            empty_count=last + 1 - first,
        )


def _stream_of(metric: str) -> str | None:
    """Return the stream of a marking's metric; None: the metric is of another kind."""
    return metric[len(_METRIC) :].partition(":")[2] if metric.startswith(_METRIC) else None
