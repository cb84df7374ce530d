"""Two applications that share a low watermark through a coordinator, in one process: a small world for injected faults.

A model checks each low watermark: it is never below the previous low watermark, and never above the smallest value
that a task of the job has reported.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lowmark.integration.coordinator.access import Caller, Door
from lowmark.integration.coordinator.client import CoordinatorClient
from lowmark.integration.coordinator.journal import Journal
from lowmark.integration.coordinator.server import restore
from lowmark.watermark import LowmarkError, TaskId
from lowmark.watermark.strategy import AlignmentParams

from tests.integration.coordinator.serving import beginning, report, serving, task

PLACES = ("watermark", "integration/coordinator", "integration/process", "sources/worker.py")
BACK_WITHIN_SECONDS = 10.0
STEPS = 6
_ALIGNED = AlignmentParams("group", max_drift_us=1_000, update_interval_us=20_000)


def in_a_client(thread: str) -> bool:
    """Whether a thread of that name belongs to an application."""
    return thread.startswith("lowmark-client")


def in_the_server(thread: str) -> bool:
    """Whether a thread of that name belongs to the coordinator; also true for some threads of gRPC that serve both."""
    return not in_a_client(thread) and thread != "MainThread"


class World:
    """A coordinator with a journal, and two applications of one job.

    Attributes:
        said_us: the newest reported value of each task.
        heard_us: every low watermark that a task has received, in order.
        wrong: violations of the model's rules; must stay empty.
        ended: the error that ended the coordinator, or None.
        given_up: the errors of failed tasks, by the token of the task's only run: the text of its id.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.journal = folder, folder / "state" / "journal"
        self.said_us: dict[TaskId, int] = {}
        self.heard_us: dict[TaskId, list[int]] = {}
        self.wrong: list[str] = []
        self.ended: BaseException | None = None
        self.given_up: dict[str, LowmarkError] = {}
        self.clients: list[CoordinatorClient] = []

    def play(self) -> None:
        """Let both applications report growing values, and wait each time until both have the smaller value."""
        with ExitStack() as stack:
            self._serve_again_if_it_ends(stack)
            for number in range(2):
                client = CoordinatorClient(
                    Caller(f"unix:{self.folder}/c.sock"),
                    on_low=self._hear,
                    on_given_up=self.given_up.__setitem__,
                    deadline_seconds=1.0,
                )
                stack.callback(client.close, seconds=0.2)
                self.clients.append(client)
                self._register(number)
            third = task(7, "clicks")  # comes and goes
            self.clients[0].register(beginning(third, token=str(third), low_watermark_us=5, alignment=_ALIGNED))
            for step in range(1, STEPS + 1):
                for number in range(2):
                    self._say(number, 1_000 * step + number)
                if step == STEPS // 2:
                    with self._or_loud(third):
                        self.clients[0].deregister(third)
                self._wait_until_heard(1_000 * step)

    def _register(self, number: int) -> None:
        who = task(number)
        self.clients[number].register(beginning(who, token=str(who), alignment=_ALIGNED, expected_tasks=2))

    def _say(self, number: int, low_us: int) -> None:
        who = task(number)
        self.said_us[who] = low_us  # before the report, because the answer may come at once
        with self._or_loud(who):
            report(self.clients[number], who, low_us)

    @contextmanager
    def _or_loud(self, who: TaskId) -> Iterator[None]:
        try:
            yield
        except LowmarkError:
            if str(who) not in self.given_up:
                raise

    def _hear(self, who: TaskId, low_us: int) -> None:
        if who.source_id != "orders":
            return
        heard, most_us = self.heard_us.setdefault(who, []), min(self.said_us.values())
        if heard and low_us < heard[-1]:
            self.wrong.append(f"{who} heard {low_us} after {heard[-1]}")
        if len(self.said_us) < 2 or low_us > most_us:
            self.wrong.append(f"{who} heard {low_us}, and the smallest that was said is {most_us}")
        heard.append(low_us)

    def _wait_until_heard(self, low_us: int) -> None:
        def done() -> bool:
            return bool(self.wrong) or all(self._is_over(n) or self._has_heard(n, low_us) for n in range(2))

        deadline, again = time.monotonic() + BACK_WITHIN_SECONDS, time.monotonic() + 1
        while not done():
            if time.monotonic() > again:  # like a query's heartbeat, which asks each second
                again += 1
                for number in range(2):
                    self._say(number, self.said_us[task(number)])
            if time.monotonic() > deadline:
                told = [(each.connected, each.why) for each in self.clients]
                self.wrong.append(f"{low_us} was not heard in time: heard {self.heard_us}, members {told}")
                return
            threading.Event().wait(0.003)

    def _has_heard(self, number: int, low_us: int) -> bool:
        return self.heard_us.get(task(number), [-1])[-1] >= low_us

    def _is_over(self, number: int) -> bool:
        """Whether the query of that task, or a query that it waits for, has ended with a reason."""
        return bool(self.given_up)

    def _serve_again_if_it_ends(self, stack: ExitStack) -> None:
        """Serve as a supervisor does: restart a coordinator that ends with an error."""
        begun, over, played = threading.Event(), threading.Event(), threading.Event()

        def keep() -> None:
            for _ in range(2):
                try:
                    with serving(Door(f"unix:{self.folder}/c.sock"), journal=self.journal, over=over):
                        begun.set()
                        over.wait()
                    return
                except Exception as ended:  # noqa: BLE001  # it is what the test looks at
                    self.ended = ended
                    over.clear()
                    if played.is_set():
                        return

        keeper = threading.Thread(target=keep)
        keeper.start()
        stack.callback(keeper.join, 20)
        stack.callback(over.set)
        stack.callback(played.set)
        assert begun.wait(BACK_WITHIN_SECONDS), "no coordinator listens in time"

    def check(self) -> None:
        """Raise AssertionError if a rule was violated."""
        assert not self.wrong, self.wrong
        journal = Journal(self.journal)
        try:
            state = restore(journal, 0)  # raises if the state in the journal is inconsistent
        finally:
            journal.close()
        low_us, told_us = state.low_watermark_us("job", "orders"), [lows[-1] for lows in self.heard_us.values() if lows]
        assert low_us is None or low_us <= min(self.said_us.values()), f"{low_us} is above {self.said_us}"
        assert not told_us or (low_us is not None and low_us >= max(told_us)), f"{low_us} is below {told_us}"
