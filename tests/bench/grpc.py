"""A thousand streams of several applications at one `lowmark serve`, with its journal: the time of a message.

Each application is a separate process with a `CoordinatorClient`, as in a Spark driver; each of its streams reports
once a second, at its own moment of the second. Coordinator and applications share the machine's cores. The benchmark
measures by the application's clock:

    message until answered          from the send of a message to gRPC until its answer is handled: the time of gRPC on
                                    both ends, of the coordinator, and in the queues of both processes
    report until acknowledged       from the call of `report`: the same, and before it the member's batching (reports
                                    within 5 ms of the last message go together) and any message under way
    question until low watermark    a round, from its question to the new watermark, including the journal
    report until low watermark      the same with the wait for the next round
    generator late                  the delay of reports in the load generator itself: with milliseconds here the
                                    machine lacked a spare core, and all other figures suffer from the lack

Registration at the start and deregistration at the end are not measured.
"""

from __future__ import annotations

import heapq
import json
import random
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lowmark.integration.coordinator.access import Caller
from lowmark.integration.coordinator.client import CoordinatorClient
from lowmark.watermark import NotifyNewLowWatermark, TaskId
from lowmark.watermark.protocol import ReplyLowWatermark, RetrieveLowWatermark, TaskRegistered
from lowmark.watermark.strategy import AlignmentParams

from tests.servers.local import LOWMARK, wait_until

from .measure import Bound, Row

SERVE = [*LOWMARK, "serve", "--json"]
MOST_MS = 10  # the limit of the 99th percentile
WARM_SECONDS = 3
START_SECONDS = 60


def run(folder: Path, *, streams: int, applications: int, seconds: int) -> list[Row]:
    private = folder / "grpc"
    private.mkdir(mode=0o700)
    address, table = f"unix:{private}/c.sock", []
    shapes = {
        "streams": f"{streams:,} streams",
        "aligned": f"{streams:,} streams of 1 alignment group",
        "tasks": f"1 stream of {streams:,} tasks",
    }
    for shape, what in shapes.items():
        with subprocess.Popen(
            [*SERVE, "--address", address, "--journal", str(private / f"{shape}.journal")],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as server:
            assert server.stdout is not None
            try:
                assert json.loads(server.stdout.readline())["address"] == address
                measured = _measure(address, shape, streams, applications, seconds)
            finally:
                server.terminate()
        section = f"gRPC: {what} of {applications} applications report once a second, journal on; ms"
        table += _rows(section, measured)
    return table


def _measure(address: str, shape: str, streams: int, applications: int, seconds: int) -> dict[str, list[float]]:
    share = streams // applications
    clients = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.bench.grpc", address, shape, str(number * share), str(share), str(seconds)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(applications)
    ]
    measured: dict[str, list[float]] = {}
    try:
        for client in clients:
            said, _ = client.communicate(timeout=seconds + 2 * START_SECONDS)
            for what, ms in json.loads(said).items():
                measured.setdefault(what, []).extend(ms)
    finally:
        for client in clients:
            client.kill()
            client.wait()
    return measured


def _rows(section: str, measured: dict[str, list[float]]) -> list[Row]:
    rows = []
    for what, ms in measured.items():
        ranked = sorted(ms)
        if not ranked:
            raise RuntimeError(f"{section}: nothing was measured of: {what}; let it run for longer")
        for name, rank in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
            value = ranked[min(int(rank * len(ranked)), len(ranked) - 1)]
            bound = Bound(MOST_MS, "at most") if what in (MESSAGE, REPORT) and name == "p99" else None
            rows.append(Row(section, f"{what}, {name}", "ms", None, value, bound=bound, note=f"{len(ms):,} measured"))
    return rows


# -- an application

MESSAGE, REPORT = "message until answered", "report until acknowledged"
ROUND, HEARD, LATE = "question until low watermark", "report until low watermark", "generator late"


class _Timed:
    """Times a client from outside, in its own thread, which handles the messages."""

    def __init__(self, link: CoordinatorClient) -> None:
        self.ms: dict[str, list[float]] = {MESSAGE: [], REPORT: [], ROUND: [], HEARD: [], LATE: []}
        self.begun = float("inf")  # earlier times do not count, because connections are made and files read
        self.ended = float("inf")  # later starts do not count
        self._sent = 0.0
        self._link = link
        self._reported: dict[TaskId, list[tuple[int, float]]] = {}  # not yet acknowledged
        self._unheard: dict[TaskId, list[tuple[int, float]]] = {}
        self._asked: dict[TaskId, float] = {}
        state = link._state
        self._told, self._answered, self._take, self._state = state.told, state.answered, state.take, state
        state.told = self._hear  # type: ignore[method-assign]
        state.answered = self._acknowledge  # type: ignore[method-assign]
        state.take = self._send  # type: ignore[method-assign]

    def report(self, task: TaskId, low_us: int, due: float) -> None:
        now = time.perf_counter()
        self._note(LATE, due, now)
        self._reported.setdefault(task, []).append((low_us, now))
        self._unheard.setdefault(task, []).append((low_us, now))
        self._link.report(ReplyLowWatermark(*task.parts, 0, low_us))

    def _hear(self, messages: Iterable[Any]) -> None:
        now = time.perf_counter()
        for message in messages:
            task = message.task
            if isinstance(message, RetrieveLowWatermark):
                self._asked[task] = now
            elif isinstance(message, NotifyNewLowWatermark):
                if task in self._asked:
                    self._note(ROUND, self._asked.pop(task), now)
                self._reach(HEARD, self._unheard.get(task, []), message.new_low_watermark, now)
        self._told(messages)

    def _send(self, now_us: int) -> Any:
        said = self._take(now_us)
        if said is not None:
            self._sent = time.perf_counter()
        return said

    def _acknowledge(self, answers: Sequence[Any], now_us: int) -> None:
        now = time.perf_counter()
        self._note(MESSAGE, self._sent, now)
        for statement in self._state._under_way or ():
            if isinstance(statement, ReplyLowWatermark) and statement.current_low_watermark is not None:
                task = statement.task
                self._reach(REPORT, self._reported.get(task, []), statement.current_low_watermark, now)
        self._answered(answers, now_us)

    def _reach(self, what: str, open_: list[tuple[int, float]], low_us: int, now: float) -> None:
        while open_ and open_[0][0] <= low_us:
            self._note(what, open_.pop(0)[1], now)

    def _note(self, what: str, since: float, now: float) -> None:
        if self.begun <= since < self.ended:
            self.ms[what].append(1_000 * (now - since))


def _application(address: str, shape: str, first: int, count: int, seconds: int) -> dict[str, list[float]]:
    numbers = range(first, first + count)
    tasks = [
        TaskId("bench", "all", str(n)) if shape == "tasks" else TaskId("bench", f"stream-{n}", "0") for n in numbers
    ]
    alignment = AlignmentParams("bench", 60_000_000, 1_000_000) if shape == "aligned" else None
    with CoordinatorClient(Caller(address)) as link:
        timed = _Timed(link)
        for task in tasks:
            link.register(TaskRegistered(task, uuid.uuid4().hex, alignment=alignment))
        wait_until(lambda: link.connected and link._state.quiet, "registered")
        phases, pause = random.Random(first), threading.Event()
        start = time.perf_counter()
        timed.begun = start + WARM_SECONDS
        due = [(start + phases.random(), task) for task in tasks]
        heapq.heapify(due)
        while due[0][0] < start + WARM_SECONDS + seconds:
            at, task = heapq.heappop(due)
            pause.wait(max(0, at - time.perf_counter()))
            timed.report(task, int(1e6 * (at - start)), at)
            heapq.heappush(due, (at + 1, task))
        timed.ended = time.perf_counter()
        wait_until(lambda: link._state.quiet, "everything was said")
        for task in tasks:
            link.deregister(task)
    return timed.ms


def main(arguments: Iterable[str]) -> None:
    address, shape, *numbers = arguments
    first, count, seconds = map(int, numbers)
    print(json.dumps(_application(address, shape, first, count, seconds)))


if __name__ == "__main__":
    main(sys.argv[1:])
