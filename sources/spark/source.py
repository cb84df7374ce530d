"""Connects sources to Spark.

Batches are planned by `BatchPlanner`, in a process of its own on the driver's host, and read in Python workers.
"""

# ruff: noqa: N802  # Spark calls readers by Java's names

from __future__ import annotations

import logging
import os
import struct
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field
from functools import partial
from pickle import PicklingError
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from lowmark.sources.api import InputStatus, Source, SourceEvent, SourceReader, SplitRows
from lowmark.sources.closing import closed_on_error
from lowmark.sources.metric_group import MetricGroup
from lowmark.sources.planning.offset import BatchOffset, UnreadableOffset
from lowmark.sources.planning.options import PlanOptions
from lowmark.sources.planning.peer import PlanPeer
from lowmark.sources.planning.planner import BatchPlanner
from lowmark.sources.planning.slots import SlotWork
from lowmark.sources.reading.checked_reader import SplitReadFailed, count_nothing
from lowmark.sources.reading.slices import STALLED_SECONDS, read_slices
from lowmark.sources.spark.versions import PASSES_LIMITS, arrow_schema
from lowmark.sources.worker_costs import spare_next_task
from lowmark.watermark.errors import shown
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from . import startup
from .briefly import saying_briefly
from .errors import EventNotTaken, SourceNotPicklable, SplitColumnTaken
from .naming import named_reader
from .options import FORMATS, FormatOptions, InvalidOption

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
elif PASSES_LIMITS:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
else:
    SupportsTriggerAvailableNow = object

log = logging.getLogger("lowmark")

_registering = threading.Lock()  # because each registration changes an environment that the session has once


class Recording(Protocol):
    """Records the reading of one task."""

    def see(self, rows: SplitRows) -> None:
        """Record rows that were read."""

    def send(self, event: SourceEvent) -> None:
        """Record an event from the reader to the enumerator."""

    def count(self, counted: Mapping[str, float]) -> None:
        """Record a reader's counts, by name. Called from any thread."""

    def end(self) -> None:
        """Report the recording, after every row was handed on."""


class Recorder(Protocol):
    """Records the reading of tasks. Picklable."""

    def begin(self, task: SlotWork[Any]) -> Recording:
        """Begin a task, on an executor."""


@dataclass(frozen=True)
class Binding:
    """A source with the settings for Spark. Picklable."""

    source: Source[Any, Any]
    name: str  # of the stream
    options: PlanOptions = field(default_factory=PlanOptions)
    split_column: str | None = None  # name of the column with the split's id; None: no column
    peer: PlanPeer | None = None
    recorder: Recorder | None = None

    def arrow_schema(self) -> pa.Schema:
        schema = self.source.schema
        given: object = schema  # connectors may ignore the types
        if not isinstance(given, pa.Schema):
            source = type(self.source).__name__
            raise TypeError(f'stream "{self.name}": {source}.schema is {shown(given)}, expected a pyarrow.Schema')
        if self.split_column is None:
            return schema
        if self.split_column in schema.names:
            raise SplitColumnTaken(self.name, self.split_column, ", ".join(schema.names))
        return schema.append(pa.field(self.split_column, pa.string()))


def bound_source(binding: Binding, format_name: str) -> type[DataSource]:
    """Return a class for `spark.dataSource.register`, whose format is `format_name`.

    Each call makes a new class, which is pickled together with the binding.
    """
    return _data_source(format_name, lambda _options, _schema: binding)


def _data_source(format_name: str, bind: Callable[[Mapping[str, str], StructType | None], Binding]) -> type[DataSource]:
    """Return the class of a format. `bind` gets the user's options and the user's schema, None before it is known."""

    class OurSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return format_name

        def schema(self) -> StructType:
            return from_arrow_schema(bind(self.options, None).arrow_schema())

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return SourceStreamReader(bind(self.options, schema), schema)

    return OurSource


def prefer_own_python(spark: SparkSession) -> None:
    """Let the workers of a local session run the Python of this process, unless another Python is named.

    Spark takes `python3` from the PATH, which is another Python if a user runs `.venv/bin/python app.py`. In Spark
    Connect, the server decides.
    """
    if is_connect(spark):
        return
    context = spark.sparkContext
    if "PYSPARK_PYTHON" in os.environ or not str(context.master).startswith("local") or not sys.executable:
        return
    named = context.getConf().get("spark.pyspark.python")  # only spark-submit uses this setting by itself
    context.pythonExec = sys.executable if named is None else named


def register_class(spark: SparkSession, source: type[DataSource]) -> None:
    """Make a data source known to a session. Its Python processes start as `startup/sitecustomize.py` describes."""
    if is_connect(spark):
        spark.dataSource.register(source)
        return
    environment = spark.sparkContext.environment  # Spark copies the environment at each registration
    # Where the thread's active session is another one, Spark refuses each source that the other session knows.
    jvm, session = spark._jvm, spark._jsparkSession  # noqa: SLF001  # there is no other way to Spark's Java objects
    sessions: Any = getattr(jvm, "org.apache.spark.sql.classic.SparkSession")
    active = sessions.getActiveSession()
    with _registering:
        before = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([*startup.__path__, *([before] if before else [])])
        try:
            sessions.setActiveSession(session)
            spark.dataSource.register(source)
        finally:
            del environment["PYTHONPATH"]
            if before is not None:
                environment["PYTHONPATH"] = before
            if active.isDefined():
                sessions.setActiveSession(active.get())
            else:
                sessions.clearActiveSession()


def is_connect(spark: object) -> bool:
    """Whether an object is a session of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def register(spark: SparkSession) -> None:
    """Make the formats of our sources known to a session: `format("lowmark_kafka")` and the other `FORMATS`.

    A plain `spark.readStream` has no low watermark and no alignment; `LowWatermarkService.read` has both.

    >>> register(spark)                                                                         # doctest: +SKIP
    >>> spark.readStream.format("lowmark_kafka").option("subscribe", "orders")                  # doctest: +SKIP
    """
    prefer_own_python(spark)
    for format_name in FORMATS:
        register_class(spark, _data_source(format_name, partial(_bound_by_options, format_name)))


def _bound_by_options(format_name: str, options: Mapping[str, str], schema: StructType | None) -> Binding:
    read = FormatOptions.read(format_name, options, None if schema is None else arrow_schema(schema))
    binding = Binding(read.source, read.name, read.batches, read.split_column)
    if schema is not None and format_name != "lowmark_files":  # files are read in the user's schema
        own, got = from_arrow_schema(binding.arrow_schema()).simpleString(), schema.simpleString()
        if got != own:  # rows would come under the user's names
            raise InvalidOption(format_name, "schema", got, f"none, or the source's own, {own}")
    return binding


def load(spark: SparkSession, binding: Binding) -> DataFrame:
    """Return the rows of a source as a plain streaming DataFrame, without watermark and alignment.

    >>> df = load(spark, Binding(source, "orders"))                                             # doctest: +SKIP
    """
    prefer_own_python(spark)
    format_name = f"lowmark_{uuid.uuid4().hex[:12]}"
    try:
        register_class(spark, bound_source(binding, format_name))
    except PicklingError as cause:
        raise SourceNotPicklable(binding.name, type(binding.source).__name__, str(cause)) from cause
    return named_reader(spark, "source", binding.name).format(format_name).load()


class SlotInput(InputPartition):
    """The task of one reader slot in one batch."""

    def __init__(self, task: SlotWork[Any]) -> None:
        super().__init__(task.subtask)
        self.task = task


class SourceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark's handle on any source."""

    def __init__(self, binding: Binding, schema: StructType) -> None:
        self._binding = binding
        self._schema = arrow_schema(schema)
        self._planner: BatchPlanner[Any] | None = None
        self._planned: dict[str, Any] | None = None  # the end of the last batch, for Spark versions that do not tell it

    @saying_briefly()
    def initialOffset(self) -> dict[str, Any]:
        return self._batches().initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows  # earlier Sparks do not ask

        rows = self._binding.options.max_rows
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    @saying_briefly()
    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        if start is None or limit is None:  # before 4.2, Spark runs a batch for each new offset
            start = self.initialOffset() if self._planned is None else self._planned
            max_rows = self._binding.options.max_rows
        else:
            max_rows = getattr(limit, "max_rows", None)  # only a ReadMaxRows has it
        self._planned = self._batches().plan(self._offset(start), max_rows).to_json()
        return self._planned

    @saying_briefly()
    def prepareForTriggerAvailableNow(self) -> None:
        self._batches().stop_at_present()

    @saying_briefly()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if self._planned is None:
            self._planned = end  # a restart begins with the last planned batch, even if it was committed
        return [SlotInput(task) for task in self._batches().tasks(self._offset(start), self._offset(end))]

    @saying_briefly()
    def commit(self, end: dict[str, Any]) -> None:
        self._batches().committed(self._offset(end))

    def stop(self) -> None:
        if self._planner is not None:
            try:
                self._planner.close()
            except Exception:  # after a failure Spark stops the reader, too, and would show this error instead
                log.warning('source "%s": its planner could not be closed', self._binding.name, exc_info=True)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SlotInput), "Spark hands back what partitions() gave"
        binding, task = self._binding, partition.task
        with saying_briefly():
            recording = None if binding.recorder is None else binding.recorder.begin(task)
            for rows in _rows_of(binding, task, recording):
                if recording is not None:
                    recording.see(rows)
                if len(rows.rows):
                    yield self._shaped(rows)
            if recording is not None:
                recording.end()
        spare_next_task()

    def _shaped(self, rows: SplitRows) -> pa.RecordBatch:
        columns = rows.rows.columns
        if self._binding.split_column is not None:
            columns = [*columns, pa.repeat(_scalar(rows.split_id), len(rows.rows))]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _batches(self) -> BatchPlanner[Any]:
        if self._planner is None:
            binding = self._binding
            self._planner = BatchPlanner(binding.source, name=binding.name, options=binding.options, peer=binding.peer)
        return self._planner

    def _offset(self, offset: dict[str, Any]) -> BatchOffset:
        found = BatchOffset.find(offset)
        if found is None:
            raise UnreadableOffset(self._binding.name, f"expected one of lowmark's, got {offset!r:.200}")
        return found


def _scalar(text: str) -> Any:
    """Return a text for Arrow without `pa.scalar`, which imports pandas, a quarter of a second in each new worker."""
    encoded = text.encode()
    begin_and_end = struct.pack("ii", 0, len(encoded))
    return pa.StringArray.from_buffers(1, pa.py_buffer(begin_and_end), pa.py_buffer(encoded))[0]


def _rows_of(binding: Binding, task: SlotWork[Any], recording: Recording | None) -> Iterator[SplitRows]:
    """Read a task's slices, by the source's own reader if it has one."""
    context = _SlotContext(binding.name, task.subtask, recording)
    count = count_nothing if recording is None else recording.count
    reader = binding.source.create_reader(context)
    if reader is None:
        return read_slices(binding.source, task.splits, count=count)
    return _polled(reader, task, binding, lambda: count(context.metric_group.values()))


def _polled(
    reader: SourceReader[Any], task: SlotWork[Any], binding: Binding, count: Callable[[], None]
) -> Iterator[SplitRows]:
    output, silent_since = _Output(), time.monotonic()
    with closed_on_error(reader.close):
        reader.add_splits(task.splits)
        reader.start()
        for event in task.events:
            reader.handle_source_event(event)
        reader.notify_no_more_splits()
        while (status := reader.poll_next(output)) is not InputStatus.END_OF_INPUT:
            taken = output.taken()
            yield from taken
            waits = status is InputStatus.NOTHING_AVAILABLE
            limit_seconds = binding.options.timeout_seconds if waits else STALLED_SECONDS
            left_seconds = silent_since + limit_seconds - time.monotonic()
            if any(rows.rows.num_rows for rows in taken):
                silent_since = time.monotonic()
            elif not (_becomes_available(reader, left_seconds) if waits else left_seconds > 0):
                hint = " (timeout= is how long a source may hang)" if waits else ""
                raise SplitReadFailed(
                    repr(binding.source), tuple(split.split_id for split in task.splits), "read the rows",
                    f"{type(reader).__name__}, the reader of slot {task.subtask}, has brought no row and said "
                    f"{getattr(status, 'name', status)} for {limit_seconds:g} seconds, though batch {task.checkpoint} "
                    f"was planned with rows that are there{hint}",
                )  # fmt: skip
        yield from output.taken()
        count()
    reader.close()


def _becomes_available(reader: SourceReader[Any], seconds: float) -> bool:
    available = reader.is_available()
    if wait([available], max(0.0, seconds)).done:
        available.result()  # may raise an error
        return seconds > 0
    return False


class _Output:
    def __init__(self) -> None:
        self._rows: list[SplitRows] = []

    def collect(self, split_id: str, rows: pa.RecordBatch) -> None:
        self._rows.append(SplitRows(split_id, rows, position=0))

    def release(self, split_id: str) -> None:
        """Do nothing, because the plan of the batch knows the splits that end with it."""

    def taken(self) -> list[SplitRows]:
        taken, self._rows = self._rows, []
        return taken


class _SlotContext:
    def __init__(self, name: str, subtask: int, recording: Recording | None) -> None:
        self.subtask = subtask
        self.metric_group = MetricGroup()
        self._name, self._recording = name, recording

    def send_split_request(self) -> None:
        """Do nothing, because all splits of the batch were given before it began."""

    def send_source_event_to_coordinator(self, event: SourceEvent) -> None:
        if self._recording is None:
            raise EventNotTaken(self._name, self.subtask, f"{event!r:.200}")
        self._recording.send(event)
