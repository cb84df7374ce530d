"""The options of `spark.readStream.format("lowmark_...")`, in Spark's spelling, for sources and batches.

    lowmark_kafka       Spark's own Kafka options: see `kafka.spark_options`
    lowmark_kinesis     Databricks' own Kinesis options: see `kinesis.spark_options`
    lowmark_files       path, fileFormat, eventTime, recursive, discoverEvery, bounded, onUnreadable, onVanished
    lowmark_pravega     controller, scope, streams, start, eventTime and others: see `pravega.spark_options`
    lowmark_generator   script (JSON, `StreamScript.to_plain`), seed, bounded, ticksPerBatch

and for every format:

    maxRowsPerBatch     rough number of rows in a batch; for Kafka also maxOffsetsPerTrigger
    maxBytesPerBatch    rough number of bytes in a batch, if the source knows sizes
    maxSlice            longest span of event time of a batch, "10 minutes"
    byTime              false: a fair share of each split instead of all splits up to one event time
    tasks               number of tasks that read a batch
    splitColumn         name of a column with the split's id
    name                name of the stream, in logs and errors

Names are matched without case, as in Spark. Does not import Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from lowmark.sources.api import Source
from lowmark.sources.planning.options import PlanOptions
from lowmark.watermark import LowmarkError, duration_us
from lowmark.watermark.errors import shown
from lowmark.watermark.moment import INT64

_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")


class InvalidOption(LowmarkError, ValueError):
    """An option of a format is missing, unknown or invalid."""

    format_name: str  # the format
    option: str  # its option
    got: str  # the given value, as text
    expected: str  # the accepted values
    _fact = 'format("{format_name}"): option {option} is {got}, expected {expected}.'
    _hint = ""


@dataclass(frozen=True)
class FormatOptions:
    """The options of one stream, read."""

    source: Source[Any, Any]
    name: str
    batches: PlanOptions
    split_column: str | None  # name of the column with the split's id; None: no column

    @classmethod
    def read(cls, format_name: str, options: Mapping[str, str], schema: pa.Schema | None = None) -> FormatOptions:
        """Read the user's options of a key of `FORMATS`.

        `schema` has the columns in Spark's types, including the split's column; None: not known yet. An option that is
        missing, unknown or wrong raises `InvalidOption`, or the error of its connector.

        >>> given = {"kafka.bootstrap.servers": "b:9092", "subscribe": "orders", "maxRowsPerBatch": "1000"}
        >>> FormatOptions.read("lowmark_kafka", given).batches.max_rows
        1000
        """
        given = _Given(format_name, {name.lower(): value for name, value in options.items()}, schema)
        if format_name == "lowmark_kafka" and (most := given.take("maxOffsetsPerTrigger")) is not None:
            given.options.setdefault("maxrowsperbatch", most)
        batches = PlanOptions(
            slots=given.number("tasks") or 1,
            max_rows=given.number("maxRowsPerBatch"),
            max_bytes=given.number("maxBytesPerBatch"),
            max_slice_us=None if (span := given.take("maxSlice")) is None else duration_us(span, what="maxSlice"),
            by_time=given.flag("byTime", default=True),
        )
        split_column, name = given.take("splitColumn"), given.take("name")
        if schema is not None and split_column in schema.names:
            given.schema = schema.remove(schema.get_field_index(split_column))  # not a column of the source
        return cls(FORMATS[format_name](given), name or format_name, batches, split_column)


@dataclass
class _Given:
    """Given options that were not read yet, by their names in lower case; reading an option removes it."""

    format_name: str
    options: dict[str, str]
    schema: pa.Schema | None  # the columns of the source; None: not known yet

    def take(self, option: str) -> str | None:
        return self.options.pop(option.lower(), None)

    def need(self, option: str) -> str:
        value = self.take(option)
        if value is None:
            raise InvalidOption(self.format_name, option, "missing", "a value")
        return value

    def number(self, option: str, *, least: int = 1) -> int | None:
        value = self.take(option)
        if value is None:
            return None
        if not _NUMBER.fullmatch(value) or int(value) not in INT64:
            raise InvalidOption(self.format_name, option, shown(value), "a whole number in 64 bits")
        if int(value) < least:
            raise InvalidOption(self.format_name, option, shown(value), f"a whole number, {least} or more")
        return int(value)

    def flag(self, option: str, *, default: bool) -> bool:
        value = self.take(option)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise InvalidOption(self.format_name, option, shown(value), "true or false")
        return value.lower() == "true"

    def end(self, known: str) -> None:
        """Refuse the remaining options, because a misspelt option would otherwise have no effect."""
        for option, value in self.options.items():
            raise InvalidOption(self.format_name, option, shown(value), f"one of {known}")


def _kafka(given: _Given) -> Source[Any, Any]:
    from lowmark.sources.kafka import KafkaSource

    return KafkaSource.from_options(given.options)


def _kinesis(given: _Given) -> Source[Any, Any]:
    from lowmark.sources.kinesis import KinesisSource

    return KinesisSource.from_options(given.options)


def _files(given: _Given) -> Source[Any, Any]:
    from lowmark.sources.files import FileSource

    settings: dict[str, Any] = {name: given.flag(name, default=False) for name in ("recursive", "bounded")}
    texts = {"discover_every": "discoverEvery", "on_unreadable": "onUnreadable", "on_vanished": "onVanished"}
    settings |= {ours: value for ours, name in texts.items() if (value := given.take(name)) is not None}
    path, kind, event_time = given.need("path"), given.take("fileFormat"), given.take("eventTime")
    given.end("path, fileFormat, eventTime, recursive, bounded, discoverEvery, onUnreadable, onVanished")
    return FileSource(path, format=kind or "parquet", schema=given.schema, event_time=event_time, **settings)


def _generator(given: _Given) -> Source[Any, Any]:
    from lowmark.sources.generator import GeneratorSource, StreamScript

    text, seed = given.need("script"), given.number("seed", least=INT64.start) or 0
    try:
        script = StreamScript.from_plain(json.loads(text))
    except (ValueError, RecursionError) as wrong:
        expected = f"a script as JSON ({str(wrong).removesuffix('.')})"
        raise InvalidOption(given.format_name, "script", shown(text), expected) from wrong
    bounded, ticks_per_batch = given.flag("bounded", default=False), given.number("ticksPerBatch")
    given.end("script, seed, bounded, ticksPerBatch")
    return GeneratorSource(script, seed=seed, bounded=bounded, ticks_per_batch=ticks_per_batch)


def _pravega(given: _Given) -> Source[Any, Any]:
    from lowmark.sources.pravega import PravegaSource

    return PravegaSource.from_options(given.options)


FORMATS: Mapping[str, Callable[[_Given], Source[Any, Any]]] = {
    "lowmark_kafka": _kafka,
    "lowmark_kinesis": _kinesis,
    "lowmark_files": _files,
    "lowmark_generator": _generator,
    "lowmark_pravega": _pravega,
}
"""Format -> the function that makes its source."""
