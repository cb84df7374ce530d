"""A source as a streaming DataFrame: exact rows for any batches."""

from __future__ import annotations

import gc
import importlib
import json
import subprocess
import sys
import threading
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lowmark.sources import (
    InputStatus,
    ReaderOutput,
    SourceEvent,
    SourceReader,
    SourceReaderContext,
    SourceSplit,
    worker_costs,
)
from lowmark.sources.generator import SplitScript, StreamScript
from lowmark.sources.kit.discovery import DiscoveredSplits
from lowmark.sources.planning.options import PlanOptions
from lowmark.sources.planning.slots import SlotWork
from lowmark.sources.reading.checked_reader import SplitReadFailed
from lowmark.sources.serializer import DataclassSerializer
from lowmark.sources.spark import Binding, SourceStreamReader, load, register
from lowmark.sources.spark.errors import EventNotTaken, SourceNotPicklable, SplitColumnTaken
from lowmark.sources.spark.options import InvalidOption
from lowmark.sources.spark.source import SlotInput, _bound_by_options, _data_source
from pyspark import cloudpickle

from tests.sources.numbered import Numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPT = StreamScript(
    (
        SplitScript("a", 3, last_us=60_000_000),
        SplitScript("b", 2, behind_us=4_000_000),
        SplitScript("c", 1, silent_from_tick=2),
    ),
    start_us=1_700_000_000_000_000,
    ticks=10,
    tick_us=1_000_000,
    shuffle_us=2_000_000,
)


def test_a_format_is_registered_in_each_session_of_a_thread(spark: SparkSession) -> None:
    """The thread's active session stays the first one, as where notebooks share a driver."""
    other = spark.newSession()
    for session in (spark, other, other, spark):
        register(session)
        stream = session.readStream.format("lowmark_generator").option("script", json.dumps(SCRIPT.to_plain()))
        assert stream.load().isStreaming
    active: Any = spark.getActiveSession()
    assert active._jsparkSession.equals(spark._jsparkSession)


@pytest.mark.parametrize("ticks_per_batch", [3, 11])
def test_a_paced_generator_gives_its_rows_in_batches_of_whole_ticks(
    spark: SparkSession, tmp_path: Path, ticks_per_batch: int
) -> None:
    register(spark)
    options = {"seed": 1, "ticksPerBatch": ticks_per_batch, "tasks": 2}
    stream = spark.readStream.format("lowmark_generator").option("script", json.dumps(SCRIPT.to_plain()))
    frame = stream.options(**options).load()
    query = (
        frame.selectExpr("split", "number", "unix_micros(event_time) us")
        .writeStream.format("memory")
        .queryName(f"generated_{ticks_per_batch}")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    query.processAllAvailable()

    rows = spark.table(f"generated_{ticks_per_batch}").collect()
    assert sorted(tuple(row) for row in rows) == sorted(
        (split.name, number, us)
        for split in SCRIPT.splits
        for number, us in enumerate(SCRIPT.times_us(split.name, 0, SCRIPT.end, seed=1).tolist())
    )
    edges = [*range(0, SCRIPT.end, ticks_per_batch), SCRIPT.end]
    assert [p.numInputRows for p in query.recentProgress if p.numInputRows] == [
        sum(SCRIPT.count_rows(split.name, start, end) for split in SCRIPT.splits) for start, end in pairwise(edges)
    ]


class Hanging(SourceReader[SourceSplit]):
    """A reader without rows; `available` decides whether it reports new rows, and `says` what it says of more."""

    says = InputStatus.NOTHING_AVAILABLE

    def __init__(self, *, available: bool) -> None:
        self.available, self.closed = available, False

    def start(self) -> None: ...
    def add_splits(self, splits: Sequence[SourceSplit]) -> None: ...
    def notify_no_more_splits(self) -> None: ...

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        output.collect("a", pa.RecordBatch.from_pylist([], Numbered.schema))
        return self.says

    def is_available(self) -> Future[None]:
        future: Future[None] = Future()
        if self.available:
            future.set_result(None)
        return future

    def snapshot_state(self, checkpoint_id: int) -> Sequence[SourceSplit]:
        raise NotImplementedError

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("available", [False, True])
def test_a_reader_that_brings_nothing_ends_its_task_and_says_which_split_and_slot_hang(available: bool) -> None:
    made: list[Hanging] = []

    class Stuck(Numbered):
        def create_reader(self, context: SourceReaderContext) -> Hanging:
            made.append(Hanging(available=available))
            return made[-1]

    from pyspark.sql.pandas.types import from_arrow_schema

    source = Stuck()
    binding = Binding(source, "numbers", PlanOptions(timeout_seconds=0.05))
    reader = SourceStreamReader(binding, from_arrow_schema(source.schema))
    task = SlotWork(3, 17, (SourceSplit(split_id="a", stop=4),))
    with pytest.raises(SplitReadFailed) as hung:
        list(reader.read(SlotInput(task)))

    for part in ("'a'", "Hanging", "slot 3", "batch 17", "0.05 seconds", "timeout="):
        assert part in str(hung.value), str(hung.value)
    assert made[0].closed


@pytest.mark.parametrize("says", [InputStatus.MORE_AVAILABLE, None])
def test_a_reader_that_says_more_for_ever_ends_its_task(says: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from lowmark.sources.spark import source as module
    from pyspark.sql.pandas.types import from_arrow_schema

    monkeypatch.setattr(module, "STALLED_SECONDS", 0.05)
    monkeypatch.setattr(Hanging, "says", says)
    source = Numbered()
    monkeypatch.setattr(source, "create_reader", lambda context: Hanging(available=True))
    reader = SourceStreamReader(Binding(source, "numbers"), from_arrow_schema(source.schema))
    with pytest.raises(SplitReadFailed, match=f"of 'a': .* has brought no row and said {getattr(says, 'name', says)}"):
        list(reader.read(SlotInput(SlotWork(3, 17, (SourceSplit(split_id="a", stop=4),)))))


def test_an_error_of_a_sources_own_reader_is_not_hidden_by_that_of_its_close() -> None:
    class Failing(Hanging):
        def poll_next(self, output: ReaderOutput) -> InputStatus:
            raise OSError("the disk is full")

        def close(self) -> None:
            super().close()
            raise RuntimeError("it cannot be closed")

    class Broken(Numbered):
        def create_reader(self, context: SourceReaderContext) -> Failing:
            return made

    from pyspark.sql.pandas.types import from_arrow_schema

    made = Failing(available=True)
    reader = SourceStreamReader(Binding(Broken(), "numbers"), from_arrow_schema(Broken.schema))
    with pytest.raises(OSError, match="the disk is full"):
        list(reader.read(SlotInput(SlotWork(3, 17, (SourceSplit(split_id="a", stop=4),)))))
    assert made.closed


class Counting(SourceReader[SourceSplit]):
    """A reader that has skipped some rows, and ends."""

    def __init__(self, context: SourceReaderContext) -> None:
        self.skipped = context.metric_group.counter("skipped_rows")

    def start(self) -> None: ...
    def add_splits(self, splits: Sequence[SourceSplit]) -> None: ...
    def notify_no_more_splits(self) -> None: ...
    def close(self) -> None: ...

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        self.skipped.inc(7)
        return InputStatus.END_OF_INPUT

    def is_available(self) -> Future[None]:
        raise AssertionError("there is an end at once")

    def snapshot_state(self, checkpoint_id: int) -> Sequence[SourceSplit]:
        raise NotImplementedError


def test_the_counts_of_a_sources_own_reader_are_recorded() -> None:
    class Skipping(Numbered):
        def create_reader(self, context: SourceReaderContext) -> Counting:
            return Counting(context)

    from pyspark.sql.pandas.types import from_arrow_schema

    counted: list[Mapping[str, float]] = []
    recorder: Any = SimpleNamespace(begin=lambda task: SimpleNamespace(count=counted.append, end=lambda: None))
    source = Skipping()
    reader = SourceStreamReader(Binding(source, "numbers", recorder=recorder), from_arrow_schema(source.schema))
    assert list(reader.read(SlotInput(SlotWork(3, 17, ())))) == []
    assert counted == [{"skipped_rows": 7}]


def test_a_schema_that_is_none_of_arrows_is_named_with_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Numbered, "schema", "number long")
    with pytest.raises(TypeError, match=r"""stream "orders": Numbered\.schema is 'number long', expected a pyarrow"""):
        Binding(Numbered(), "orders").arrow_schema()


def test_a_source_that_cannot_be_pickled_is_named_with_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    from lowmark.sources.spark import source as module
    from pyspark.serializers import CloudPickleSerializer

    no_session: Any = None
    pickler: Any = CloudPickleSerializer()
    source = Numbered()
    monkeypatch.setattr(source, "lock", threading.Lock(), raising=False)
    monkeypatch.setattr(module, "prefer_own_python", lambda spark: None)
    monkeypatch.setattr(module, "register_class", lambda spark, kind: pickler.dumps(kind))
    with pytest.raises(SourceNotPicklable, match=r'stream "orders": Numbered cannot be .*_thread.lock.*Hint: keep'):
        load(no_session, Binding(source, "orders"))


def test_split_types_of_a_script_are_pickled_after_splits_of_them_were_read() -> None:
    @dataclass(frozen=True)
    class Place:
        host: str

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Shard(SourceSplit):  # Spark pickles a class of a function or script by its value
        places: tuple[Place, ...] = ()

    # Both names as annotations of classes find them: in the module.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "Place", Place)
        split = Shard(split_id="a", places=(Place("b"),))
        states = DiscoveredSplits(discovered=True, pending=(split,))
        for kind, value in ((Shard, split), (DiscoveredSplits[Shard], states)):
            serializer: DataclassSerializer[Any] = DataclassSerializer(kind)
            assert serializer.deserialize(1, serializer.serialize(value)) == value
            cloudpickle.dumps((serializer, value))  # type: ignore[no-untyped-call]


def test_a_column_for_the_split_that_is_taken_is_refused_with_what_there_is() -> None:
    binding = Binding(Numbered(), "numbers", split_column="number")
    with pytest.raises(SplitColumnTaken, match='stream "numbers": split_column is "number", a column that') as taken:
        binding.arrow_schema()
    assert "expected a new name beside number" in str(taken.value)
    assert str(taken.value).endswith("Hint: pass another name."), "service.read refuses None"


@pytest.mark.parametrize("changed", ["names", "types", "order"])
def test_a_schema_that_is_not_that_of_the_source_is_refused(changed: str) -> None:
    """The rows of the source came under the user's names."""
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    options = {"script": json.dumps(SCRIPT.to_plain()), "splitColumn": "id"}
    source = _data_source("lowmark_generator", partial(_bound_by_options, "lowmark_generator"))(options)
    own = source.schema()
    assert isinstance(own, StructType)
    source.streamReader(own)
    split, number, *others = own.fields
    given = {
        "names": [StructField("city", StringType()), StructField("price", LongType()), *others],
        "types": [split, StructField("number", StringType()), *others],
        "order": [number, split, *others],
    }
    schema = StructType(given[changed])
    with pytest.raises(InvalidOption) as refused:
        source.streamReader(schema)
    assert str(refused.value).startswith(
        f'format("lowmark_generator"): option schema is {schema.simpleString()}, expected none, or the source\'s own, '
        "struct<split:string,number:bigint,event_time:timestamp,id:string>"
    )


@dataclass(frozen=True)
class Seen(SourceEvent):
    """An event from a reader to its enumerator."""

    rows: int


def test_an_event_that_nobody_takes_to_the_enumerator_is_an_error_that_says_how_it_would_be() -> None:
    class Telling(Numbered):
        def create_reader(self, context: SourceReaderContext) -> None:
            context.send_source_event_to_coordinator(Seen(7))

    from pyspark.sql.pandas.types import from_arrow_schema

    source = Telling()
    reader = SourceStreamReader(Binding(source, "numbers"), from_arrow_schema(source.schema))
    with pytest.raises(EventNotTaken, match=r'stream "numbers": reader 3 sends the event Seen\(rows=7\)'):
        list(reader.read(SlotInput(SlotWork(3, 17, ()))))


def test_a_worker_is_spared_the_search_of_its_imports_after_its_first_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark collects garbage after each task, 40 ms with all that a worker has imported."""
    from pyspark.sql.pandas.types import from_arrow_schema

    spared: list[int] = []
    read: list[pa.RecordBatch] = []
    monkeypatch.setattr(gc, "freeze", lambda: spared.append(len(read)))
    worker_costs._leave_out_imports.cache_clear()
    source = Numbered()
    reader = SourceStreamReader(Binding(source, "numbers"), from_arrow_schema(source.schema))
    for batch_id in (1, 2):
        read.extend(reader.read(SlotInput(SlotWork(0, batch_id, (SourceSplit(split_id="a", stop=4),)))))
    worker_costs._leave_out_imports.cache_clear()
    assert spared == [1], "once, and after the rows, whose arrays import what Arrow needs"


def test_a_worker_does_not_read_the_list_of_pyspark_zip_before_each_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark empties the caches of all finders before each task, and each package in an archive has a finder."""
    archive = tmp_path / "pyspark.zip"
    with zipfile.ZipFile(archive, "w") as files:
        for name in ("__init__", "first", "second"):
            files.writestr(f"in_archive/{name}.py", f"name = {name!r}")
    monkeypatch.syspath_prepend(str(archive))
    finders = {str(archive), f"{archive}/in_archive"}
    assert importlib.import_module("in_archive.first").name == "first"
    assert finders <= sys.path_importer_cache.keys()
    worker_costs.spare_next_task()

    assert finders.isdisjoint(sys.path_importer_cache)
    assert importlib.import_module("in_archive.second").name == "second"


_READS_PARQUET = """
import sys
from dataclasses import replace

import pyarrow as pa
import pyspark.worker
from lowmark.sources.files import FileSource
from lowmark.sources.planning.slots import SlotWork
from lowmark.sources.spark.source import Binding, SlotInput, SourceStreamReader
from pyspark.sql.pandas.types import from_arrow_schema

source = FileSource(sys.argv[1], format="parquet", event_time="ts")
split = source.discover()[0]
split = replace(split, stop=source.latest([split])[split.split_id].position)
schema = from_arrow_schema(source.schema.append(pa.field("split", pa.string())))
reader = SourceStreamReader(Binding(source, "files", split_column="split"), schema)
batches = list(reader.read(SlotInput(SlotWork(0, 1, (split,)))))
assert str(batches[0].column("split")[1]) == "Nürnberg.parquet", batches
print("pandas" in sys.modules)
"""


@pytest.mark.slow  # starts a process
def test_a_worker_that_reads_parquet_files_does_not_import_pandas(tmp_path: Path) -> None:
    """The import takes a quarter of a second, in each new worker before its first rows."""
    pq.write_table(pa.table({"ts": pa.array([1, 2], pa.timestamp("us", "UTC"))}), tmp_path / "Nürnberg.parquet")
    ran = subprocess.run([sys.executable, "-c", _READS_PARQUET, tmp_path], capture_output=True, text=True, check=False)

    assert ran.stdout == "False\n", ran.stderr
