"""Audits a table, such as a bronze table with Kafka's partition and offset and an event time.

Spark filters and counts. Three values of each row come to the driver, a bounded number of rows at a time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from lowmark.integration.console import EscapingConsole
from lowmark.integration.errors import AuditImpossible
from lowmark.integration.transport.split_key import quoted
from lowmark.watermark.printable import counted
from lowmark.watermark.replay.advice import Advice
from lowmark.watermark.replay.open_rows import starts_of
from lowmark.watermark.replay.report import AuditReport
from lowmark.watermark.strategy import Duration

from . import ROWS
from .audit import Audit, Question
from .cuts import Cut, by_offset, by_time_of_writing
from .event_time import EventTimes
from .page import page
from .text import show

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_MOST_SPLITS = 20_000
_SPLIT, _TIME, _ORDER = "lowmark_split", "lowmark_time", "lowmark_order"


@dataclass(frozen=True, slots=True)
class Audited:
    """The result of an audit: print it, show it in a notebook, or write its page to a file."""

    report: AuditReport

    @property
    def strategy(self) -> Advice:
        """The strategy that fits the rows, as an object (`.strategy`) and as Python to paste (`.code()`)."""
        return self.report.advice

    def to_json(self) -> dict[str, Any]:
        """Return the report for `json.dumps`, as `lowmark audit --json` prints it."""
        return self.report.to_json()

    def to_html(self) -> str:
        """Return one self-contained page."""
        return page(self.report)

    def show(self, limit: int = 50) -> None:
        """Print the report with `limit` splits, those that lose most first; 0: all."""
        show(self.report, EscapingConsole(), limit)

    def _repr_html_(self) -> str:
        return self.to_html()


def audit_table(
    df: DataFrame,
    *,
    split: str | Sequence[str],
    event_time: str,
    order: str,
    delays: Sequence[Duration] = (),
    window: Duration | None = None,
    rows_per_batch: int | None = None,
    trigger: Duration | None = None,
    rows: int | None = ROWS,
) -> Audited:
    """Find the rows of a table that native Spark would have lost, and the strategy that fits the rows.

    Args:
        df: a batch DataFrame; nothing is written.
        split: the column or columns that say which split a row came from.
        event_time: the TIMESTAMP column.
        order: the column by which rows of a split were read: an offset, or the time of appending (TIMESTAMP). With
            offsets, batches are cut as Spark's Kafka source shares out a backlog; with times, as in a query that keeps
            up.
        delays: the delays to try; by default none, 10 seconds, 1 minute, 10 minutes and 1 hour.
        window: length of the query's windows; None: a row is late by its own time.
        rows_per_batch: rows in a batch.
        trigger: time between batches if `order` is a time; by default 10 seconds.
        rows: approximate number of the newest rows; None: all rows, a bounded number at a time.

    Raises:
        AuditImpossible: there is nothing to audit, or a column has a wrong type; the text says which.
    """
    from pyspark.sql import functions as F

    columns = [split] if isinstance(split, str) else list(split)
    timed = _check(df, columns, event_time, order)
    question = Question.of(delays, window, rows_per_batch, trigger, rows=rows)
    if trigger is not None and not timed:
        raise AuditImpossible(f"trigger: order column {order!r} is no time", "leave trigger out.")
    named = F.concat_ws("/", *(_shown(df, each) for each in columns))
    at = F.unix_micros(quoted(order)) if timed else F.col(quoted(order)).cast("long")
    narrow = df.select(named.alias(_SPLIT), F.unix_micros(quoted(event_time)).alias(_TIME), at.alias(_ORDER)).where(
        F.col(_ORDER).isNotNull()
    )
    return Audited(_Table(narrow, question, timed=timed, event_time=event_time, order=order).run())


def _check(df: Any, columns: Sequence[str], event_time: str, order: str) -> bool:
    """Refuse a table that cannot be audited, and return whether a time orders its rows."""
    from pyspark.sql import DataFrame
    from pyspark.sql.types import ByteType, IntegerType, LongType, ShortType, TimestampType

    if not isinstance(df, DataFrame):
        raise AuditImpossible(f"expected a DataFrame to audit, got {df!r:.100}", "pass what spark.read gives.")
    if df.isStreaming:
        raise AuditImpossible(
            "the DataFrame is a stream", "audit_table reads a table; of a running query service.audit tells."
        )
    types = {each.name: each.dataType for each in df.schema.fields}
    for name in (*columns, event_time, order):
        if name not in types:
            known = ", ".join(sorted(types))
            raise AuditImpossible(f"there is no column {name!r:.100}; there are: {known:.300}", "check the spelling.")
    if not isinstance(types[event_time], TimestampType):
        raise AuditImpossible(
            f"event time column {event_time!r} is {types[event_time].simpleString()}, expected timestamp",
            "convert it first: F.timestamp_millis(...), F.timestamp_seconds(...) or F.to_timestamp(...).",
        )
    if not isinstance(types[order], TimestampType | ByteType | ShortType | IntegerType | LongType):
        raise AuditImpossible(
            f"order column {order!r} is {types[order].simpleString()}, expected a whole number or a timestamp",
            "name the offset, or when rows were appended.",
        )
    return isinstance(types[order], TimestampType)


def _shown(df: DataFrame, name: str) -> Column:
    """The text of a split column's value, as `split_name` makes it."""
    from pyspark.sql import functions as F

    column = F.col(quoted(name))
    match df.schema[name].dataType.typeName():
        case "boolean":
            text = F.initcap(column.cast("string"))
        case "binary":
            text = F.lower(F.hex(column))
        case _:
            text = column.cast("string")
    return F.when(column.isNull(), "null").when(text == "", '""').otherwise(text)


@dataclass
class _Table:
    df: DataFrame
    question: Question
    timed: bool
    event_time: str
    order: str

    def run(self) -> AuditReport:
        from pyspark.sql import functions as F

        bounds = self.df.groupBy(_SPLIT).agg(
            F.count(F.lit(1)).alias("rows"), F.min(_ORDER).alias("first"), F.max(_ORDER).alias("last")
        )
        splits = sorted(tuple(row) for row in bounds.limit(_MOST_SPLITS + 1).collect())
        if not splits:
            raise AuditImpossible("the table holds no row with a value in the order column", "audit it once it does.")
        if len(splits) > _MOST_SPLITS:
            raise AuditImpossible(
                f"there are more than {_MOST_SPLITS:,} splits", "name another column, or fewer, as split."
            )
        total = sum(count for _, count, _, _ in splits)
        names = [name for name, _, _, _ in splits]
        notes: list[str] = []
        share = 1.0
        rows = self.question.rows
        if rows is not None and total > rows:
            share = rows / total
            notes.append(f"the newest {rows:,} of {total:,} rows, about (rows=None reads all of them)")
        begins, ends = [first for _, _, first, _ in splits], [last + 1 for _, _, _, last in splits]
        position = self._position(splits)
        edges = self._edges(position, share, total)
        if share < 1 and not self.timed:
            # Exactly the part that Spark would find between these offsets.
            begins = [begin + int((end - begin) * (1 - share)) for begin, end in zip(begins, ends, strict=True)]
        cut, order = self._cut(begins, ends, total=round(total * share))
        audit = Audit(names, cut, self.question, time.time_ns() // 1_000, timed=self.timed)
        numbers = {name: number for number, name in enumerate(names)}
        begun = np.array(begins, np.int64)
        for low, high in pairwise(edges):
            piece = self.df.where((position >= F.lit(low)) & (position < F.lit(high)))
            self._add(piece.orderBy(_SPLIT, _ORDER).toArrow(), audit, numbers, None if self.timed else begun)
            if self.timed:
                for number, (_, _, _, last) in enumerate(splits):
                    if last < high:
                        cut.end(number)  # else the rows of all others would wait in memory for a split that fell silent
            if high != edges[-1]:
                audit.advance()
        if (why := audit.why_no_times()) is not None:
            raise AuditImpossible(
                f"none of {audit.rows:,} rows has a usable time in {self.event_time!r}: {why}",
                "name another column as event_time.",
            )
        return audit.report(
            what=f"a table, {counted(audit.rows, 'row')} of {counted(len(names), 'split')}",
            order=order,
            event_time=f"column {self.event_time}",
            complete=True,
            notes=notes,
        )

    def _position(self, splits: Sequence[tuple[str, int, int, int]]) -> Column:
        """A row's time, or its share of its split, 0 to 1; all splits are read at this pace."""
        from pyspark.sql import functions as F

        if self.timed:
            return F.col(_ORDER)
        begins = F.create_map(*[F.lit(each) for name, _, first, _ in splits for each in (name, first)])
        sizes = F.create_map(*[F.lit(each) for name, _, first, last in splits for each in (name, last + 1 - first)])
        return (F.col(_ORDER) - begins[F.col(_SPLIT)]) / sizes[F.col(_SPLIT)]

    def _edges(self, position: Column, share: float, total: int) -> list[float]:
        """Positions at which one piece ends and the next begins, for about `ROWS` rows each."""
        from pyspark.sql import functions as F

        pieces = max(1, -(-round(total * share) // ROWS))
        shares = [1 - share + share * at / pieces for at in range(pieces)]
        if not self.timed:
            return [*shares, 2.0]
        found = self.df.agg(F.percentile_approx(position, shares, 10_000), F.min(position), F.max(position)).first()
        assert found is not None, "an aggregate without groups is one row"
        inner, low, high = found
        return [low if share == 1.0 else inner[0], *sorted(set(inner[1:]) - {inner[0]}), high + 1]

    def _cut(self, begins: Sequence[int], ends: Sequence[int], *, total: int) -> tuple[Cut, str]:
        question = self.question
        if self.timed:
            cut, batches = by_time_of_writing(len(begins), question.rows_per_batch, question.trigger_us)
            return cut, f"by {self.order}, {batches}"
        cut, batches = by_offset(begins, ends, question.rows_per_batch, total=total, now_us=time.time_ns() // 1_000)
        return cut, f"as Spark's rate limiting reads a backlog, of each split in proportion, {batches}"

    def _add(self, table: pa.Table, audit: Audit, numbers: dict[str, int], begins: np.ndarray[Any, Any] | None) -> None:
        if not len(table):
            return
        names = table.column(_SPLIT).combine_chunks().dictionary_encode()
        of_row = np.array([numbers[str(name)] for name in names.dictionary.to_pylist()])[np.asarray(names.indices)]
        order = np.asarray(table.column(_ORDER).combine_chunks())
        micros = table.column(_TIME).combine_chunks()
        timed = np.asarray(micros.is_valid())
        times_us = np.asarray(micros.fill_null(0))
        starts = starts_of(of_row)
        for first, after in zip(starts.tolist(), [*starts[1:].tolist(), len(of_row)], strict=True):
            number = int(of_row[first])
            part = slice(first, after)
            if begins is not None:
                part = slice(first + int(np.searchsorted(order[part], begins[number])), after)
            times = EventTimes(times_us[part], timed[part], ~timed[part])
            keys = order[part].astype(np.int64)
            written_us = keys if self.timed else None
            if len(keys):
                audit.add(number, keys, times, written_us=written_us)
