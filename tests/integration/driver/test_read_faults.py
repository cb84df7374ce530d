"""Faults while Spark reads a source of ours: the error that a user sees, and no loss of rows after the repair.

The start of a query takes seconds, so faults follow each other in one checkpoint: a *story* runs a query into a fault,
repairs it, runs the query into the next fault, and at last to its end. The tests read the story.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from lowmark.integration import LowWatermarkService
from lowmark.sources import FailoverPolicy, SourceSplit, check_source
from lowmark.sources.files import FileSource
from lowmark.sources.planning.options import PlanOptions
from lowmark.sources.planning.planner import BatchPlanner
from lowmark.sources.testing import SourceBroken
from lowmark.watermark import LowmarkError, format_time_us
from pyarrow import parquet
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.integration.feed import us
from tests.integration.log import Faults, FaultyLog, Log, LogSource
from tests.servers.local import wait_until
from tests.sources.planning.test_batches import Peer

ROWS = {"a": 40, "b": 20}
ALL = sorted((split, number) for split, rows in ROWS.items() for number in range(rows))
ROWS_PER_BATCH = 30
FOR_EVER = 1_000
SOON = FailoverPolicy(most=2, backoff="100 milliseconds")

Rows = list[tuple[str, int]]
AfterBatch = Callable[[int], None]


@dataclass
class Run:
    """One run of a query.

    Attributes:
        rows: (split, number), in the order of their arrival.
        said: the error text of a failed run, "" if the run succeeded.
    """

    rows: Rows = field(default_factory=list)
    said: str = ""


@dataclass
class Story:
    """A query that runs again and again from one checkpoint.

    Attributes:
        df: the stream.
        checkpoint: the checkpoint of all runs.
        runs: fault -> the run that met it; "" is the last run, without a fault.
        failed: the runs that the service shows as failed.
        restores: number of restores of the enumerator in the last run.
    """

    df: DataFrame
    checkpoint: str
    runs: dict[str, Run] = field(default_factory=dict)
    failed: list[bool] = field(default_factory=list)
    restores: float = 0

    def run(self, fault: str = "", after_batch: AfterBatch | None = None) -> None:
        """Read the available rows; `after_batch` is called after the sink took the rows of a batch."""
        run = self.runs[fault] = Run()

        def take(batch: DataFrame, batch_id: int) -> None:
            run.rows.extend((row.split_id, row.v) for row in batch.collect())
            if after_batch is not None:
                after_batch(batch_id)

        writer = self.df.select("split_id", "v").writeStream.foreachBatch(take).trigger(availableNow=True)
        query = writer.option("checkpointLocation", self.checkpoint).start()
        try:
            assert query.awaitTermination(100), f"the query that runs into {fault!r} does not end"
        except StreamingQueryException as failure:
            run.said = str(failure)
        assert bool(fault) == bool(run.said), f"the query that runs into {fault!r}: {run.said}"

    def said(self, fault: str) -> str:
        return self.runs[fault].said

    @property
    def rows(self) -> Rows:
        return [row for run in self.runs.values() for row in run.rows]


def filled_log(folder: Path) -> Log:
    log = Log(folder / "log")
    for split, rows in ROWS.items():
        log.append(split, *range(0, 10 * rows, 10))
    return log


def shorten(file: Path) -> None:
    """Leave two rows."""
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]))


def fail(batch_id: int) -> None:
    raise RuntimeError(f"the sink cannot take batch {batch_id}")


@pytest.fixture(scope="module")
def planning(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Faults of the enumerator and of the planner; no row may be lost or come twice."""
    folder = tmp_path_factory.mktemp("planning")
    log, faults = filled_log(folder), Faults(folder)
    file = log.folder / "a"
    whole = file.read_text()
    with LowWatermarkService(spark) as service:
        df = service.read(
            FaultyLog(log, faults),
            name="log",
            tasks=2,
            max_rows_per_batch=ROWS_PER_BATCH,
            failover=SOON,
            timeout="2 seconds",
        )
        story = Story(df, str(folder / "checkpoint"))
        for fault in ("discover", "hang", "latest"):
            faults.cause(fault, times=FOR_EVER if fault == "discover" else 1)
            story.run(fault)
            faults.mend(fault)
        story.run("behind", lambda _: shorten(file))
        file.write_text(whole)
        wait_until(lambda: service.run_statuses()[-1].ended, "the service's word on the failed query", seconds=30)
        story.failed = [run.failed for run in service.run_statuses()]
        faults.cause("discover", times=1)
        faults.cause("snapshot", times=1)
        story.run()
        story.restores = service.run_statuses()[-1].source_metrics["enumerator_restores"]
    return story


def test_an_enumerator_that_fails_again_and_again_fails_the_query_with_the_cause(planning: Story) -> None:
    said = planning.said("discover")
    assert (
        "SourceFailed: source 'log': cannot handle the result of FaultyLog.discover (it was restored 2 times within 10 "
        "minutes): DiscoveryFailed: FaultyLog"
    ) in said
    assert "ConnectionError: cannot discover: nobody answers. Hint: check that the system can be reached" in said


def test_an_enumerator_that_hangs_fails_the_query_in_time_and_says_where_it_stands(planning: Story) -> None:
    said = planning.said("hang")
    assert "CoordinatorHangs: source 'log': cannot " in said
    assert "it is still to start the enumerator, at wait (threading.py:" in said
    assert "start (log.py:" in said


def test_what_could_not_be_done_because_of_it_is_said(planning: Story) -> None:
    expected = "CoordinatorHangs: source 'log': cannot start the enumerator and register its readers within 2 seconds"
    assert expected in planning.said("hang")


class SilentLog(LogSource):
    """A log whose discovery neither answers nor fails."""

    def discover(self) -> Sequence[SourceSplit]:
        threading.Event().wait()
        return ()


def test_a_discovery_that_hangs_is_not_taken_for_an_empty_source(tmp_path: Path) -> None:
    source, options = SilentLog(filled_log(tmp_path).folder), PlanOptions(start_seconds=0.2)
    planner = BatchPlanner(source, name="log", options=options, now_us=lambda: us(0))
    planner.stop_at_present()
    with closing(planner), pytest.raises(LowmarkError, match=r"source 'log'.* within 0.2 seconds"):
        planner.plan(planner.initial(), None)


def test_a_discovery_that_finds_nothing_for_long_says_so_long_before_it_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("lowmark.sources.planning.enumeration.SAY_AGAIN_SECONDS", 0.1)
    source, options = SilentLog(filled_log(tmp_path).folder), PlanOptions(start_seconds=0.4)
    peer = Peer()
    with closing(BatchPlanner(source, name="log", options=options, now_us=lambda: us(0), peer=peer)) as planner:
        planner.plan(planner.initial(), None)
    assert len(peer.told) > 1  # reports while it waits are its signs of life
    missing = f"the enumerator has not said what there is since {format_time_us(us(0))}. Does it exist, "
    assert {planned.missing for planned in peer.told} == {f"{missing}and can it be reached?"}
    said = [record.getMessage() for record in caplog.records]
    assert 'source "log": no split was found for 0.1 seconds, and it is waited for 0.4: is the system reachable?' in (
        said
    )
    assert "source 'log': its enumerator has neither assigned a split" in said[-1]


def test_a_query_that_found_nothing_to_read_yet_says_so_in_its_status(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    log = Log(tmp_path / "log")
    log.folder.mkdir()
    with LowWatermarkService(spark) as service:
        writer = service.read(LogSource(log.folder), name="log").writeStream.format("noop")
        query = writer.option("checkpointLocation", checkpoint).trigger(processingTime="100 milliseconds").start()
        try:
            missing = "no split is known yet: the enumerator found none since "
            wait_until(lambda: service.status("log").why.startswith(missing), "the status says what is missing")
            assert missing in service.explain("log")
            assert [status.why.startswith(missing) for _, status in service.statuses()] == [True]
            log.append("a", 1, 2, 3)
            wait_until(lambda: service.status("log").low_watermark_us is not None, "it is read")
            assert "no split" not in service.status("log").why
        finally:
            query.stop()


def test_a_planner_that_fails_fails_the_query_with_the_cause(planning: Story) -> None:
    assert "ConnectionError: cannot latest: nobody answers" in planning.said("latest")


def test_a_split_that_ends_before_its_start_is_named(planning: Story) -> None:
    expected = "InvalidPosition: split 'a': latest() answered position 2, expected its start, "
    assert expected in planning.said("behind")
    assert "nothing was planned. Hint: positions of a split never go back" in planning.said("behind")


@pytest.mark.parametrize("fault", ["latest", "behind"])
def test_what_a_planner_raises_comes_with_the_name_of_its_source(planning: Story, fault: str) -> None:
    assert "source 'log': cannot plan batch " in planning.said(fault)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("discover", "ConnectionError: cannot discover: nobody answers"),
        ("hang", "CoordinatorHangs: source 'log': cannot start the enumerator"),
        ("latest", "source 'log': cannot plan batch 1: ConnectionError: cannot latest: nobody answers. Hint: "),
        ("behind", "InvalidPosition: split 'a': latest() answered position 2"),
    ],
)
def test_what_happened_stands_in_the_first_line_with_one_hint(planning: Story, fault: str, words: str) -> None:
    first, _, rest = planning.said(fault).partition("\n")
    assert words in first
    assert "Traceback" not in first + rest
    assert (first + rest).count("Hint: ") == 1


def test_the_service_says_that_the_query_has_failed(planning: Story) -> None:
    assert planning.failed
    assert all(planning.failed)


def test_an_enumerator_that_fails_once_is_restored_and_the_query_goes_on(planning: Story) -> None:
    assert planning.restores == 2


def test_no_row_is_lost_or_comes_twice_when_planning_failed(planning: Story) -> None:
    assert sorted(planning.rows) == ALL


# -- faults of readers, and rows that differ on a second read


@pytest.fixture(scope="module")
def reading(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """A batch that is planned once, and read again and again."""
    folder = tmp_path_factory.mktemp("reading")
    faults = Faults(folder)
    with LowWatermarkService(spark) as service:
        df = service.read(FaultyLog(filled_log(folder), faults), name="log", tasks=1)
        story = Story(df, str(folder / "checkpoint"))
        faults.cause("read", times=1)
        story.run("read")
        faults.cause("fewer", times=1)
        story.run("fewer")
        story.run("sink", fail)
        faults.cause("other", times=1)
        story.run("other", fail)
        story.run()
    return story


def test_a_reader_that_fails_in_a_task_names_source_split_and_cause(reading: Story) -> None:
    expected = "SplitReadFailed: FaultyLog: cannot fetch of 'a', 'b': ConnectionError: cannot read: nobody answers"
    assert expected in reading.said("read")
    assert reading.runs["read"].rows == []


@pytest.mark.parametrize("fault", ["read", "fewer"])
def test_what_a_task_could_not_read_is_all_that_its_process_says(reading: Story, fault: str) -> None:
    said = reading.said(fault)
    # Spark 4.0 says "... worker. Please see the stack trace below.", even without a stack trace.
    assert re.search(r"thrown from the Python worker[^\n]*\n[\w.]+: FaultyLog: ", said), said


def test_fewer_rows_than_were_planned_fail_the_query(reading: Story) -> None:
    assert "BrokenSplitReader: FaultyLog: split 'a' ended at position 39; expected rows up to 40" in reading.said(
        "fewer"
    )
    assert reading.runs["fewer"].rows == []


def test_other_rows_than_before_are_not_noticed_by_spark(reading: Story) -> None:
    """Spark does not keep earlier rows, so `check_source` alone finds such a connector: see the next test."""
    assert sorted(reading.runs["sink"].rows) == ALL
    assert sorted(reading.runs["other"].rows) == sorted((s, -1 - n if s == "a" else n) for s, n in ALL)


@pytest.mark.parametrize("fault", ["fewer", "other"])
def test_check_source_finds_rows_that_differ_when_read_again(tmp_path: Path, fault: str) -> None:
    faults = Faults(tmp_path)
    source = FaultyLog(filled_log(tmp_path), faults)
    faults.cause(fault, times=1)
    with pytest.raises(SourceBroken) as broken:
        check_source(source)
    assert re.search("FaultyLog breaks the law of (reading|replay): split 'a'", str(broken.value)), str(broken.value)


def test_no_row_is_lost_when_reading_failed(reading: Story) -> None:
    assert sorted(reading.runs[""].rows) == ALL


# -- files


def write_parquet(folder: Path) -> None:
    folder.mkdir()
    for split, rows in ROWS.items():
        times = pa.array([us(10 * n) for n in range(rows)], pa.timestamp("us", tz="UTC"))
        parquet.write_table(pa.table({"ts": times, "v": range(rows)}), folder / split, row_group_size=5)


def damage(file: Path) -> None:
    """Damage a file and keep its size and time, so that only a read shows the damage."""
    stat = file.stat()
    file.write_bytes(b"\0" * stat.st_size)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.fixture(scope="module")
def files(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """A parquet file that cannot be read, and is put back as it was."""
    folder = tmp_path_factory.mktemp("files")
    file = folder / "in" / "a"
    write_parquet(file.parent)
    whole, stat = file.read_bytes(), file.stat()

    def mend() -> None:
        file.unlink(missing_ok=True)
        file.write_bytes(whole)
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    with LowWatermarkService(spark) as service:
        schema = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("v", pa.int64())])
        source = FileSource(str(file.parent), event_time="ts", schema=schema)
        story = Story(
            service.read(source, name="files", tasks=2, max_rows_per_batch=ROWS_PER_BATCH), str(folder / "checkpoint")
        )
        damage(file)
        story.run("damaged, not planned")
        mend()
        story.run("gone", lambda _: file.unlink())
        mend()
        damage(file)
        story.run("damaged, planned")
        mend()
        story.run()
    return story


FILE = r"file \S+/in/a \(split 'a'\)"
UNREADABLE = r"FileUnreadable: FileSource\(.*cannot read "
WAS = FILE + r" was \d+ bytes, modified 20\S+ \S+ when it was found, and is"


@pytest.mark.parametrize(
    ("fault", "said", "hint"),
    [
        ("damaged, not planned", rf"{UNREADABLE}the index of {FILE}: ArrowInvalid", "skip"),
        ("gone", rf"FileChanged: FileSource\(.*{WAS} gone", "put the file back as it was, with its time"),
        ("damaged, planned", rf"{UNREADABLE}the rows of {FILE}: ArrowInvalid", "skip"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_named_with_what_to_do(files: Story, fault: str, said: str, hint: str) -> None:
    assert re.search(f"{said}.*Hint: .*{hint}", files.said(fault)), files.said(fault)


def test_no_row_is_lost_or_comes_twice_when_a_file_could_not_be_read(files: Story) -> None:
    assert sorted(files.rows) == ALL
