"""The real parts of a driver and of a coordinator, each at a size of choice, timed in this process without Spark.

A driver here is the real `Desks` with one stream, whose report is a real progress event with a real sketch. Nothing is
replaced but Spark: the sketch is built as Spark's library writes it, and the offset is not sent to a heartbeat reader.
"""

from __future__ import annotations

import gc
import itertools
import json
import random
import statistics
import struct
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from lowmark.integration.driver.audited import Audits
from lowmark.integration.driver.standing import Standing, in_words
from lowmark.integration.driver.stream import Stream, metric_of
from lowmark.integration.driver.stream_run import StreamRun
from lowmark.integration.metrics.collector import StreamCollector
from lowmark.integration.page.picture import Picture
from lowmark.integration.process.loop import Loop, LoopTimes
from lowmark.integration.run_status import RunStatus, run_json
from lowmark.integration.spark.progress import Progress
from lowmark.integration.transport.accumulated import BatchTrack, TrackParam
from lowmark.integration.transport.driver_rpc import HeartbeatReply, HeartbeatRequest, StatusReply, StatusRequest
from lowmark.integration.transport.heartbeat import HeartbeatOffset
from lowmark.integration.transport.observed import ObservedMeasure, decode_sketch
from lowmark.integration.transport.split_key import SplitKey
from lowmark.sources import SourceSplit, SplitEnd
from lowmark.sources.kit.simple import SimpleSource
from lowmark.sources.planning.offset import BatchOffset
from lowmark.sources.planning.options import PlanOptions
from lowmark.sources.planning.planner import BatchPlanner
from lowmark.watermark import TaskId, WatermarkStrategy
from lowmark.watermark.protocol import ReplyLowWatermark, RetrieveLowWatermark, TaskRegistered
from lowmark.watermark.splits.events import Tick
from lowmark.watermark.strategy import AlignmentParams
from lowmark.watermark.tasks.coordinator import LowWatermarkCoordinator
from prometheus_client import CollectorRegistry, generate_latest

from tests.integration.driver.reported import NoQueries, answer_of, desks_of, report_of

SEED = 7
SECOND_US = 1_000_000
START_US = 1_700_000_000 * SECOND_US
SPREAD_US = 600 * SECOND_US  # the splits of a batch lie so far apart
_ENTRY = np.dtype([("split", "<u8"), ("value", "<f8"), ("mode", "u1")])
_KEY = SplitKey(("device",), ("string",))
_ROWS = "null_split_rows", "null_time_rows", "before_epoch_rows"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured size of one part.

    Attributes:
        part: name of the part, a key of `PARTS`.
        size: number of splits, tasks or members.
        value: the median of the turns, in the unit of the part.
    """

    part: str
    size: int
    value: float


@dataclass(frozen=True, slots=True)
class Part:
    """A part that is measured.

    Attributes:
        what: the part in the words of a user.
        of: the thing that `size` counts.
        unit: unit of the value: "ms" or "bytes".
        when: how often the part is paid for: "batch", "scrape", "page", "restart", "second", or "once".
    """

    what: str
    of: str
    unit: str
    when: str


PARTS: Mapping[str, Part] = {
    "decode": Part("a sketch decoded", "splits", "ms", "batch"),
    "report": Part("a batch's report taken, all splits have rows", "splits", "ms", "batch"),
    "report_half": Part("a batch's report taken, half of the splits have rows", "splits", "ms", "batch"),
    "answer": Part("a heartbeat answered, with the state encoded", "splits", "ms", "batch"),
    "offset": Part("the heartbeat's offset in the checkpoint", "splits", "bytes", "batch"),
    "restore": Part("the state read back after a restart", "splits", "ms", "restart"),
    "status": Part("the status for a scrape, on the driver's loop", "splits", "ms", "scrape"),
    "scrape": Part("a scrape, with its status", "splits", "ms", "scrape"),
    "scrape_bytes": Part("the text of a scrape", "splits", "bytes", "scrape"),
    "page": Part("the page's first frame", "splits", "ms", "page"),
    "page_next": Part("the page's next frame after a batch", "splits", "ms", "page"),
    "page_bytes": Part("the page's first frame", "splits", "bytes", "page"),
    "merge": Part("reports of Python tasks merged, four splits in a task", "tasks", "ms", "batch"),
    "plan": Part("a batch of `read` planned, without the system's answers", "splits", "ms", "batch"),
    "plan_offset": Part("the source's offset in the checkpoint", "splits", "bytes", "batch"),
    "round": Part("a coordinator's round: every task asked and answered", "tasks", "ms", "second"),
    "group": Part("one report by each member of a single alignment group", "tasks", "ms", "second"),
    "groups": Part("one report by each of two members, in as many groups", "groups", "ms", "second"),
    "coordinator_status": Part("a status of the coordinator, ten tasks shown", "tasks", "ms", "scrape"),
}


# -- a driver


@dataclass
class Driver:
    """A driver's service without Spark: one loop, and as many streams as are added.

    Attributes:
        splits: number of splits of each stream.
    """

    splits: int
    streams: list[Stream] = field(default_factory=list)
    batch_id: int = 0
    _limit: int | None = None  # the collector's newest

    def __post_init__(self) -> None:
        queries: Any = NoQueries()
        self.desks = desks_of(queries, notify=lambda _: None)
        self.standing = Standing(self.desks.runs, Audits(self.desks.runs.clock))
        self.rng = np.random.default_rng(SEED)
        self.ids = self.rng.integers(0, 2**63, self.splits, dtype=np.uint64)
        self.names = {split: f"device-{n:07}" for n, split in enumerate(self.ids.tolist())}

    def add(self) -> str:
        """Add a stream with a query; return the query's token. All splits are known after its first batch."""
        token = f"t{len(self.streams)}"
        stream_id = f"s{len(self.streams)}"
        strategy = WatermarkStrategy.for_bounded_out_of_orderness("10 seconds")
        metric = metric_of(stream_id)
        measure = ObservedMeasure(metric, stream_id, _KEY, "ts", None, 26, detail=False, sample_names=True)
        stream = Stream(
            name=f"stream-{len(self.streams)}", stream_id=stream_id, strategy=strategy, key=_KEY, measure=measure,
            sources=1, kafka=False, declared={}, names=dict(self.names),
        )  # fmt: skip
        self.streams.append(stream)
        self.desks.runs.streams.add(stream)
        answer_of(self.desks, HeartbeatRequest(stream_id, token, first=True))
        for _ in range(3):  # the first batches bring the splits and find that they report together
            self.take(token, self.batch(token))
        return token

    def run(self, token: str) -> StreamRun:
        run = self.desks.runs.get(token)
        assert run is not None
        return run

    def latest_us(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The largest event time of each split in the next batch; a batch follows a batch after ten seconds."""
        before_us = self.rng.integers(0, SPREAD_US, self.splits)
        return START_US + SPREAD_US + 10 * SECOND_US * self.batch_id - before_us

    def batch(self, token: str, share: float = 1.0) -> Progress:
        """Make the progress event of the next batch, which has rows of this share of the splits, drawn by lot."""
        self.batch_id += 1
        speak = slice(None) if share == 1.0 else self.rng.random(self.splits) < share
        ids, latest_us = self.ids[speak], self.latest_us()[speak]
        metric = {"latest": sketch_of(ids, latest_us), "rows": len(ids), **dict.fromkeys(_ROWS, 0)}
        event = report_of(self.batch_id, [{"numInputRows": len(ids)}, {}])
        return msgspec.structs.replace(event, observed_metrics={self.run(token).stream.metric: metric})

    def take(self, token: str, progress: Progress) -> None:
        now_us = self.desks.runs.clock.now_us()
        self.run(token).report(progress, 1, planned_at_us=now_us, now_us=now_us)

    def answer(self, token: str) -> HeartbeatReply:
        reply = answer_of(self.desks, HeartbeatRequest(self.run(token).stream.stream_id, token))
        assert reply.refusal is None, reply.refusal
        return reply

    def offset_bytes(self, token: str, reply: HeartbeatReply) -> int:
        """Size of the offset that Spark writes with each batch."""
        name = self.run(token).stream.name
        offset = HeartbeatOffset(name, reply.low_watermark_us, token, reply.epoch, reply.state)
        return len(json.dumps(offset.to_json()))

    def run_statuses(
        self, *, without: Container[str] = (), seconds: float = 0.0, limit: int | None = None
    ) -> list[RunStatus]:
        """Answer the collector as `LowWatermarkService` does."""
        self._limit = limit
        return self.standing.run_statuses(without, limit)

    def scraped(self) -> list[RunStatus]:
        """The part of a scrape that runs on the loop."""
        return self.standing.run_statuses(limit=self._limit)

    def loop_times(self) -> LoopTimes:
        return LoopTimes()

    def look(self, request: StatusRequest, _: str | None) -> dict[str, StatusReply]:
        """Answer the page as `LowWatermarkService` does."""
        shown = self.standing.shown(stream=request.stream, limit=request.limit)
        words = [in_words(run.status, run.others) for run in shown]
        return {"here": StatusReply("scale", 1, [run_json(run) for run in shown], words)}


def sketch_of(ids: np.ndarray[Any, Any], latest_us: np.ndarray[Any, Any]) -> bytes:
    """Write a sketch as Spark's library does: two preamble longs, a count, 17 bytes an entry."""
    entries = np.empty(len(ids), _ENTRY)
    entries["split"], entries["value"], entries["mode"] = ids, latest_us / 1e6, 2
    return struct.pack("<BBBBBBHII", 2, 3, 9, 0, 0, 0, 0, len(ids), 0) + entries.tobytes()


def timed(work: Callable[[], object]) -> float:
    """Milliseconds of processor time of one call, because other programs share the machine."""
    gc.collect()
    began_ns = time.process_time_ns()
    work()
    return (time.process_time_ns() - began_ns) / 1e6


def turns_of(size: int) -> int:
    """How often a size is measured: more often where a turn is short."""
    return 9 if size <= 10_000 else 3 if size <= 100_000 else 1


def driver_figures(size: int, turns: int | None = None) -> list[Figure]:
    """Measure each part of a driver with one stream of `size` splits."""
    driver, found = Driver(size), dict[str, list[float]]()
    token = driver.add()
    turns = turns_of(size) if turns is None else turns
    reply = driver.answer(token)

    def note(part: str, value: float) -> None:
        found.setdefault(part, []).append(value)

    collector = StreamCollector(driver)
    registry = CollectorRegistry()
    registry.register(collector)
    generate_latest(registry)  # from now on the driver knows how many splits a scrape asks for
    picture = _Page(driver)
    for _ in range(turns):
        progress = driver.batch(token)
        sketch = progress.observed_metrics[driver.run(token).stream.metric]["latest"]
        note("decode", timed(partial(decode_sketch, sketch, where="here")))
        note("report", timed(partial(driver.take, token, progress)))
        note("answer", timed(lambda: driver.answer(token)))
        reply = driver.answer(token)
        note("offset", driver.offset_bytes(token, reply))
        note("status", timed(driver.scraped))
        note("scrape", timed(lambda: generate_latest(registry)))
        note("page_next", timed(picture.next))
    for _ in range(min(turns, 3)):
        progress = driver.batch(token, 0.5)
        note("report_half", timed(partial(driver.take, token, progress)))
    note("scrape_bytes", len(generate_latest(registry)))
    stream = driver.run(token).stream
    for _ in range(min(turns, 3)):
        note("page", timed(lambda: note("page_bytes", picture.first())))
        note("restore", timed(lambda: stream.watermarks("again", reply.state, START_US)))
    return [Figure(part, size, statistics.median(values)) for part, values in found.items()]


class _Page:
    """A browser on the page of a driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver, self._now_us, self._version = driver, START_US, ""
        self._picture = Picture(driver.look, lambda: self._now_us)
        self.first()

    def first(self) -> int:
        """Take the whole stream; return the size of the frame, bytes."""
        self._version = ""
        return self.next()

    def next(self) -> int:
        """Take the changes of a second; return the size of the frame, bytes."""
        self._now_us += SECOND_US
        frame = self._picture.since(self._version, None)
        self._version = frame["version"]
        return len(json.dumps(frame))


def loop_busy_ms(queries: int, splits: int, batches: int) -> float:
    """Milliseconds for which the real loop was busy with so many batches of each query."""
    driver, loop = Driver(splits), Loop("scale")
    tokens = [driver.add() for _ in range(queries)]
    for token in tokens:
        driver.answer(token)
    busy_ms = 0.0
    try:
        for _ in range(batches):
            for token in tokens:
                progress = driver.batch(token)
                for work in (partial(driver.take, token, progress), partial(driver.answer, token)):
                    busy_ms += timed(partial(loop.call, work, "take a batch", seconds=600))
        return busy_ms
    finally:
        loop.stop()


# -- tasks of Python, and a planner


def merge_figure(tasks: int, splits_a_task: int = 4, turns: int | None = None) -> Figure:
    """Measure the merge of the tracks of tasks, as Spark's accumulator calls it in the driver."""
    param, rng = TrackParam(), random.Random(SEED)
    sent = []
    for task in range(tasks):
        track = BatchTrack()
        for n in range(splits_a_task):
            split = task * splits_a_task + n
            track.tracker.observe(split, START_US + rng.randrange(SPREAD_US), task)
            track.names[split] = f"device-{split:07}"
        sent.append({("q", 1): track})

    def merge() -> None:
        whole = param.zero({})
        for each in sent:
            whole = param.addInPlace(whole, each)

    return Figure("merge", tasks, statistics.median(timed(merge) for _ in range(turns or turns_of(tasks))))


class _Ticks(SimpleSource[SourceSplit]):
    """A source that answers at once. Each of its splits has one row in each second."""

    schema = pa.schema([("at", pa.int64())])
    event_time = "at"
    discover_every = None

    def __init__(self, splits: int) -> None:
        self._splits, self.seconds = splits, 0

    def discover(self) -> Sequence[SourceSplit]:
        return [SourceSplit(split_id=f"orders/{n:07}") for n in range(self._splits)]

    def latest(self, splits: Sequence[SourceSplit]) -> Mapping[str, SplitEnd]:
        end = SplitEnd(self.seconds)
        return {split.split_id: end for split in splits}

    def find_time(self, splits: Sequence[SourceSplit], time_us: int) -> Mapping[str, int | None]:
        second = max(0, -(-(time_us - START_US) // SECOND_US))
        return {split.split_id: second if second < self.seconds else None for split in splits}

    def read(self, split: SourceSplit) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError("only planned")


def _plan_into(ends: list[BatchOffset], planner: BatchPlanner[SourceSplit]) -> None:
    ends.append(planner.plan(ends[-1], None))


def plan_figures(splits: int, turns: int | None = None) -> list[Figure]:
    """Measure the real planner, whose source answers at once: discovery is paid for once and left out."""
    source = _Ticks(splits)

    plans = itertools.count()

    def steady_us() -> int:
        """A second later at each call, because an empty plan lasts for a moment."""
        return time.monotonic_ns() // 1_000 + next(plans) * SECOND_US

    planner = BatchPlanner(
        source,
        name="orders",
        options=PlanOptions(slots=64),
        now_us=lambda: START_US + SPREAD_US,
        steady_us=steady_us,
    )
    took = list[float]()
    try:
        at = planner.initial()
        source.seconds, until = 1, time.monotonic() + 120
        while len(at.positions) < splits:  # the enumerator assigns the splits meanwhile
            at = planner.plan(at, None)
            if time.monotonic() > until:
                raise RuntimeError(f"of {splits} splits {len(at.positions)} were assigned")
        for _ in range(turns or 3):
            source.seconds += 1
            ends = [at]
            took.append(timed(partial(_plan_into, ends, planner)))
            at = ends[-1]
            assert set(at.positions.values()) == {source.seconds}, "each batch takes a second of each split"
    finally:
        planner.close()
    size = len(json.dumps(at.to_json()))
    return [Figure("plan", splits, statistics.median(took)), Figure("plan_offset", splits, size)]


# -- a coordinator


def registered(
    tasks: int, *, group: Callable[[int], str | None] = lambda n: None, source: Callable[[int], str]
) -> tuple[LowWatermarkCoordinator, list[TaskId]]:
    """A coordinator with tasks of a hundred applications."""
    coordinator, known = LowWatermarkCoordinator(), []
    for n in range(tasks):
        task = TaskId(f"app-{n % 100}", source(n), str(n))
        params = None if (name := group(n)) is None else AlignmentParams(name, 60 * SECOND_US, SECOND_US)
        coordinator.handle(TaskRegistered(task, f"run-{n}", alignment=params), now_us=0)
        known.append(task)
    return coordinator, known


def reply_of(task: TaskId, asked_us: int, low_us: int) -> ReplyLowWatermark:
    return ReplyLowWatermark(task.job_id, task.source_id, task.task_id, asked_us, low_us, token=f"run-{task.task_id}")


def coordinator_figures(tasks: int, turns: int | None = None) -> list[Figure]:
    """Measure rounds of one source whose tasks are everywhere, a single group, and many groups of two."""
    turns = turns or 3
    found = [_round_figure(tasks, turns)]
    for part, group, count in (("group", lambda n: "all", tasks), ("groups", lambda n: f"g{n // 2}", 2 * tasks)):
        coordinator, known = registered(count, group=group, source=lambda n: f"orders-{n}")
        took = []
        for turn in range(1, 1 + turns):
            at_us = turn * SECOND_US
            replies = [reply_of(task, at_us, START_US + at_us + n) for n, task in enumerate(known)]
            took.append(timed(partial(_report_all, coordinator, replies, at_us)))
        found.append(Figure(part, tasks, statistics.median(took)))
    return found


def _report_all(coordinator: LowWatermarkCoordinator, replies: Sequence[ReplyLowWatermark], at_us: int) -> None:
    coordinator.handle(Tick(), now_us=at_us)
    for reply in replies:
        coordinator.handle(reply, now_us=at_us)
    coordinator.take_changes()


def _round_figure(tasks: int, turns: int) -> Figure:
    coordinator, took = LowWatermarkCoordinator(), []
    for n in range(tasks):
        coordinator.handle(TaskRegistered(TaskId("app", "orders", str(n)), f"run-{n}"), now_us=0)
    for turn in range(1, 1 + turns):
        at_us = turn * SECOND_US

        def whole_round(at_us: int = at_us) -> None:
            asked = coordinator.handle(Tick(), now_us=at_us)
            for question in asked:
                assert isinstance(question, RetrieveLowWatermark)
                coordinator.handle(reply_of(question.task, question.timestamp, START_US + at_us), now_us=at_us)
            coordinator.take_changes()
            assert len(asked) == tasks

        took.append(timed(whole_round))
    return Figure("round", tasks, statistics.median(took))


def coordinator_status_figure(tasks: int, turns: int | None = None) -> Figure:
    coordinator, _ = registered(tasks, source=lambda n: f"orders-{n % 100}")
    took = [timed(lambda: coordinator.status(0, limit=10)) for _ in range(turns or 3)]
    return Figure("coordinator_status", tasks, statistics.median(took))
