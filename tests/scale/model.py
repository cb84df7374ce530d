"""The model: costs of parts by size, rules that add them up, and limits that say what breaks first.

A cost between two measured sizes lies on the straight line through both; beyond the largest size it grows by the power
that the last two have. The model learns from the sizes of `KNOTS` only; every other measured size tests it (`checks`).

Rules, each for one application with `queries` queries of `splits` splits and a trigger of `trigger_seconds`:

    loop      queries x (report + answer) / trigger + queries x status / scrape interval: the busy share of its loop
    wait      the time that a heartbeat waits for its answer: the loop as a queue on a virtual clock (`heartbeat_waits`)
    offset    bytes that Spark writes into the checkpoint with each batch
    scrape    queries x (status + text): Prometheus gives up after 10 seconds
    page      the first frame of one stream

and for one coordinator, whose real code runs on a virtual clock: a report of each query in each second
(`coordinator_shares`).
"""

from __future__ import annotations

import heapq
import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lowmark.watermark.splits.events import Tick
from lowmark.watermark.tasks.message_check import MOST_TASKS

from .parts import PARTS, SECOND_US, SEED, START_US, Figure, registered, reply_of

KNOTS = (1_000, 10_000, 100_000, 1_000_000)
AGREES = 0.2
SCRAPE_SECONDS = 15.0
MORE_THAN_LINEAR = 1.15
"""An exponent above this is more than linear; the processor's caches and the logarithm of a sort explain less."""


class Costs:
    """The cost of each part at any size.

    >>> costs = Costs([Figure("report", 1_000, 2.0), Figure("report", 10_000, 20.0)])
    >>> round(costs.at("report", 3_000), 6), round(costs.at("report", 100_000), 6), costs.exponent("report")
    (6.0, 200.0, 1.0)
    """

    def __init__(self, figures: Iterable[Figure]) -> None:
        self._known: dict[str, dict[int, float]] = {}
        for figure in figures:
            if figure.size in KNOTS:
                self._known.setdefault(figure.part, {})[figure.size] = figure.value

    def at(self, part: str, size: float) -> float:
        """The cost at a size, in the unit of the part."""
        known = self._known[part]
        sizes = sorted(known)
        if len(sizes) == 1:
            return known[sizes[0]] * size / sizes[0]
        upper = next((n for n in sizes[1:] if size <= n), sizes[-1])
        lower = sizes[sizes.index(upper) - 1]
        if size > upper:
            return known[upper] * math.pow(size / upper, self._slope(part, lower, upper))
        return max(0.0, known[lower] + (known[upper] - known[lower]) * (size - lower) / (upper - lower))

    def exponent(self, part: str) -> float:
        """How the cost grows between the two largest sizes: 1.0 is linear. Rounded to two digits."""
        sizes = sorted(self._known[part])
        return 1.0 if len(sizes) < 2 else round(self._slope(part, *sizes[-2:]), 2)

    def largest(self, part: str) -> int:
        """The largest size that the model learned from."""
        return max(self._known[part])

    def _slope(self, part: str, lower: int, upper: int) -> float:
        known = self._known[part]
        return math.log(known[upper] / known[lower]) / math.log(upper / lower)


@dataclass(frozen=True, slots=True)
class Check:
    """A measured size that the model did not learn from.

    Attributes:
        what: part and size.
        measured, modelled: in the unit of the part.
        unit: "ms" or "bytes".
    """

    what: str
    measured: float
    modelled: float
    unit: str

    @property
    def off(self) -> float:
        """How far the model is off, as a share of the measured value; positive: the model says too much."""
        return self.modelled / self.measured - 1

    @property
    def agrees(self) -> bool:
        return abs(self.off) <= AGREES


def checks(figures: Sequence[Figure], costs: Costs) -> list[Check]:
    """Compare the model with every measured size that it did not learn from."""
    found = []
    for figure in figures:
        if figure.size not in KNOTS:
            part = PARTS[figure.part]
            what = f"{part.what}, {figure.size:,} {part.of}"
            found.append(Check(what, figure.value, costs.at(figure.part, figure.size), part.unit))
    return found


# -- rules


@dataclass(frozen=True, slots=True)
class Application:
    """One application.

    Attributes:
        queries: number of queries.
        splits: splits of each query.
        trigger_seconds: a batch of each query begins this often.
    """

    queries: int
    splits: int
    trigger_seconds: float = 10.0


def loop_share(app: Application, costs: Costs) -> float:
    """The share of time for which the loop of an application is busy."""
    batch_ms = costs.at("report", app.splits) + costs.at("answer", app.splits)
    status_ms = costs.at("status", app.splits)
    return app.queries * (batch_ms / app.trigger_seconds + status_ms / SCRAPE_SECONDS) / 1_000


def scrape_seconds(app: Application, costs: Costs) -> float:
    return app.queries * costs.at("scrape", app.splits) / 1_000


def heartbeat_waits(app: Application, costs: Costs, seconds: float = 600.0) -> tuple[float, list[float]]:
    """Play an application's loop on a virtual clock: one thread, first come, first served.

    Each query asks at its own moment of the trigger, and a scrape comes every 15 seconds.

    Returns:
        The busy share of the loop, and for each batch the seconds from its question to the answer.
    """
    rng = random.Random(SEED)
    batch_s = (costs.at("report", app.splits) + costs.at("answer", app.splits)) / 1_000
    scrape_s = app.queries * costs.at("status", app.splits) / 1_000
    arrivals = [(rng.random() * app.trigger_seconds, app.trigger_seconds, batch_s, True) for _ in range(app.queries)]
    arrivals.append((rng.random() * SCRAPE_SECONDS, SCRAPE_SECONDS, scrape_s, False))
    heapq.heapify(arrivals)
    free_at, busy_s, waits = 0.0, 0.0, list[float]()
    while arrivals[0][0] < seconds:
        at, every, takes, is_batch = heapq.heappop(arrivals)
        free_at = max(free_at, at) + takes
        busy_s += takes
        if is_batch:
            waits.append(free_at - at)
        # Spark asks again at its trigger, or when the answer came, if the answer came later.
        heapq.heappush(arrivals, (max(at + every, free_at), every, takes, is_batch))
    return busy_s / max(seconds, free_at), waits


@dataclass(frozen=True, slots=True)
class Shares:
    """A coordinator on a virtual clock.

    Attributes:
        busy: the share of time for which its loop is busy.
        p99_ms: 99th percentile of the time from a message's arrival to its effects.
    """

    busy: float
    p99_ms: float


def coordinator_shares(tasks: int, group: Callable[[int], str | None], seconds: int = 5) -> Shares:
    """Play the real coordinator on a virtual clock: each task reports once a second, at its own moment.

    The duration of each call of the real code is measured, and the virtual coordinator is busy for as long.
    """
    coordinator, known = registered(tasks, group=group, source=lambda n: f"orders-{n}")
    rng = random.Random(SEED)
    moments = [rng.randrange(SECOND_US) for _ in known]
    arrivals: list[tuple[int, int]] = [
        (second * SECOND_US + at_us, n) for second in range(seconds) for n, at_us in enumerate(moments)
    ]
    arrivals += [(tick * 10_000, -1) for tick in range(seconds * 100)]
    free_us, busy_us, spent_us = 0.0, 0.0, list[float]()
    for at_us, n in sorted(arrivals):
        event = Tick() if n < 0 else reply_of(known[n], at_us, START_US + at_us)
        began_ns = time.thread_time_ns()  # processor time, because other programs share the machine
        coordinator.handle(event, now_us=at_us)
        took_us = (time.thread_time_ns() - began_ns) / 1_000
        free_us = max(free_us, at_us) + took_us
        busy_us += took_us
        spent_us.append(free_us - at_us)
    spent_us.sort()
    return Shares(busy_us / max(seconds * SECOND_US, free_us), spent_us[int(0.99 * len(spent_us))] / 1_000)


# -- limits


@dataclass(frozen=True, slots=True)
class Limit:
    """The size at which one thing breaks.

    Attributes:
        what: the thing.
        of: the thing that is counted: "splits of one query", "queries of one application".
        size: the largest size that holds.
        setting: the thing to do or to set.
        measured: whether the size lies within measured sizes; otherwise the model went beyond them.
    """

    what: str
    of: str
    size: int
    setting: str
    measured: bool


def largest(holds: Callable[[int], bool], most: int = 1 << 34) -> int:
    """The largest size at which a rule holds, by bisection; 0: it never holds.

    >>> largest(lambda n: n * n <= 1_000_000)
    1000
    """
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def limits(costs: Costs, trigger_seconds: float = 10.0) -> list[Limit]:
    """The limits in the order of their sizes, for each of three ways to grow."""
    one, many, tasks = "splits of one query", "queries of 1,000 splits in one application", "streams at one coordinator"

    def of_splits(n: int) -> Application:
        return Application(1, n, trigger_seconds)

    def of_queries(n: int) -> Application:
        return Application(n, 1_000, trigger_seconds)

    def batch_ms(n: int) -> float:
        return costs.at("report_half", n) + costs.at("answer", n)

    longer, coarser, drivers = "a longer trigger", "coarser splits", "more drivers"
    rules: Mapping[str, list[tuple[str, Callable[[int], bool], str]]] = {
        one: [
            ("page: the first frame takes a second", lambda n: costs.at("page", n) <= 1_000, "`lowmark explain`"),
            ("loop: busy for 2 % of the time", lambda n: loop_share(of_splits(n), costs) <= 0.02, longer),
            ("batch: a second longer", lambda n: batch_ms(n) <= 1_000, f"{longer}, {coarser}"),
            ("scrape: takes 5 seconds, and fails", lambda n: scrape_seconds(of_splits(n), costs) <= 5, coarser),
            ("checkpoint: 10 MB with each batch", lambda n: costs.at("offset", n) <= 1e7, coarser),
            ("loop: busy for half of the time", lambda n: loop_share(of_splits(n), costs) <= 0.5, longer),
        ],
        many: [
            ("loop: busy for 2 % of the time", lambda n: loop_share(of_queries(n), costs) <= 0.02, longer),
            ("scrape: takes 5 seconds, and fails", lambda n: scrape_seconds(of_queries(n), costs) <= 5, drivers),
            ("loop: busy for half of the time", lambda n: loop_share(of_queries(n), costs) <= 0.5, drivers),
        ],
        tasks: [
            ("one group: its reports take half of the time", lambda n: costs.at("group", n) <= 500, "several groups"),
            ("round: takes its second", lambda n: costs.at("round", n) <= 1_000, "a longer --interval"),
            ("coordinator: refuses a further task", lambda n: n <= MOST_TASKS, "a second coordinator"),
        ],
    }
    learned = {one: costs.largest("report"), many: 10**9, tasks: costs.largest("round")}
    found = []
    for of, each in rules.items():
        sized = sorted((largest(holds), what, setting) for what, holds, setting in each)
        found += [Limit(what, of, size, setting, size <= learned[of]) for size, what, setting in sized]
    return found
