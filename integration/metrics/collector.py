"""Prometheus: metric families made from one snapshot of all runs at scrape time.

Times are Unix timestamps, never ages, because `time() - x` keeps counting when this process hangs. Labels are bounded:
of a stream with more than 100 splits, only the holder and the ten furthest behind have series.

Series of a query after its end:

    current values (watermarks, splits, backlog)  disappear with the next scrape, because values of an ended query would
                                                  raise false alerts
    counters of the query                         stay, and continue when the query is started again: the last scrape
                                                  before the end misses the last batch, and a missing counter could not
                                                  show the rows dropped in it
    losses of the query's source                  likewise: of `lowmark_source`, only the series `data_losses`
    running, failed, refused                      stay, to show a failed query

The service keeps these series until it stops, for the 100 queries that ended last.
"""

from __future__ import annotations

import heapq
import importlib.metadata
import logging
import threading
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

from lowmark.integration.errors import ServiceStopped
from lowmark.integration.process.clock import monotonic_us
from lowmark.integration.process.loop import LoopTimes
from lowmark.integration.run_status import GAP_BOUNDS_SECONDS, RunStatus
from lowmark.sources.kit.data_loss import LOSSES
from lowmark.sources.metric_group import added_up
from lowmark.watermark import SplitStatus
from lowmark.watermark.splits.status import behind, by_need
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from .exported import ALIGNMENT_GAUGES, CLOCK_GAUGES, COUNTERS, GAUGES, SPLIT_COUNTERS, SPLIT_GAUGES, STATES, Of, T

log = logging.getLogger("lowmark")

_MAX_SPLITS_SHOWN = 100
_LAGGARDS_SHOWN = 10
_ENDED_KEPT = 100
_SPLITS_ASKED = 1_000
"""Splits that a scrape asks for per query, those that need attention first, because the loop pays for each of them."""
_TOKENS_KEPT = 1_000  # more than the number of runs that a service remembers, the newest of each query left out
# Less than Prometheus' own 10 seconds, because a busy loop must not look like a driver that is gone.
_SNAPSHOT_SECONDS = 5.0
_GAP_BOUNDS = (*(f"{bound:.1f}" for bound in GAP_BOUNDS_SECONDS), "+Inf")
_GAP_SECONDS = "seconds of all gaps"

Labels = tuple[str, str]  # stream, query
_QUERY_LABELS = ("stream", "query")
_SPLIT_LABELS = (*_QUERY_LABELS, "split")


class Service(Protocol):
    """Gives the snapshot: a `LowWatermarkService`."""

    def run_statuses(
        self, *, without: Container[str] = (), seconds: float = ..., limit: int | None = None
    ) -> list[RunStatus]:
        """Return all other runs, at one moment; `limit` bounds the splits of each."""

    def loop_times(self) -> LoopTimes:
        """Return how busy the loop is that answers for the runs."""


@dataclass
class _Past:
    """The remains of a query's ended runs. Values that are not added up are those of the run that ended last."""

    counts: dict[str, float] = field(default_factory=dict)  # as in `_counts`
    # By split and metric. A split that comes back later begins anew: a restart for Prometheus, rightly.
    splits: dict[str, dict[str, float]] = field(default_factory=dict)
    losses: float = 0.0  # `data_losses` of the query's source
    failed: bool = False
    refused: bool = False
    last: str | None = None  # token of the run that ended last
    query_id: str | None = None

    def add(self, run: RunStatus) -> None:
        self.counts = added_up([self.counts, _counts(run)])
        self.splits = {name: self.split_counts(name, split) for name, split in run.status.splits.items()}
        self.losses += run.source_metrics.get(LOSSES, 0.0)
        self.failed, self.refused, self.last, self.query_id = run.failed, run.refused, run.token, run.query_id

    def split_counts(self, name: str, split: SplitStatus) -> dict[str, float]:
        """A split's counts over the ended runs and the current one."""
        now = {metric.name: metric.value(split) or 0.0 for metric in SPLIT_COUNTERS}
        return added_up([self.splits.get(name, {}), now])


def _counts(run: RunStatus) -> dict[str, float]:
    """The counts of a run: `COUNTERS` by name, seconds by state, gaps by their bound, seconds of all gaps."""
    return {
        **{metric.name: metric.value(run) or 0.0 for metric in COUNTERS},
        **{state: run.spent_us.get(state, 0) / 1e6 for state in STATES},
        **dict(zip(_GAP_BOUNDS, run.gaps.counts, strict=True)),
        _GAP_SECONDS: run.gaps.sum_us / 1e6,
    }


_NO_PAST = _Past()


class StreamCollector(Collector):
    """Collects every stream in every query from one snapshot: a scrape never mixes two moments.

    Without a snapshot (the loop is busy, the service was stopped) it gives only its own metrics: an alert on
    `lowmark_collect_errors_total` then shows that the others are missing.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = threading.Lock()  # scrapes come on several threads, and an ended run must be added once
        self._past: dict[Labels, _Past] = {}  # in the order of their newest ends
        self._buried: dict[str, None] = {}  # tokens of the runs in `_past`, in order; old ones are dropped
        self._errors = 0
        self._failing = False

    def collect(self) -> Iterator[Metric]:
        began_us = monotonic_us()
        with self._lock:
            # The wait for another scrape counts, because two Prometheus may scrape at the same time.
            left_seconds = _SNAPSHOT_SECONDS - (monotonic_us() - began_us) / 1e6
            families = self._families_or_none(max(0.0, left_seconds))
            took_us = monotonic_us() - began_us
            errors = self._errors
        if families is not None:
            yield from families
        yield InfoMetricFamily("lowmark_service", "The version of lowmark.", value={"version": _version()})
        yield GaugeMetricFamily(
            "lowmark_collect_duration_seconds", "How long this very collection took.", value=took_us / 1e6
        )
        yield from _loop_families(self._service.loop_times())
        yield CounterMetricFamily(
            "lowmark_collect_errors",
            "Collections that failed: all metrics of streams were missing in them.",
            value=errors,
        )

    def _families_or_none(self, seconds: float) -> list[Metric] | None:
        try:
            runs = self._service.run_statuses(without=self._buried, seconds=seconds, limit=_SPLITS_ASKED)
            families = self._families(runs)
        except Exception as failed:
            self._errors += 1
            # Once, not per scrape, and not of a service that was stopped, because no fault is to be found.
            if not self._failing and not isinstance(failed, ServiceStopped):
                log.exception("metrics of streams are missing until the service can be asked again")
            self._failing = True
            return None
        self._failing = False
        return families

    def _families(self, runs: list[RunStatus]) -> list[Metric]:
        live: dict[Labels, list[RunStatus]] = {}
        for run in runs:
            self._clear_former_names(run)
            if run.ended:
                self._bury(run)
            else:
                live.setdefault(_labels(run), []).append(run)
        self._forget(live)
        # Two sessions may each have a query of the same name, and a series can be there only once: what is counted is
        # added up, and of what is now the one furthest behind is shown.
        shown = {labels: min(same, key=lambda run: behind(run.status)) for labels, same in live.items()}
        return [
            *self._query_families(live),
            *self._counter_families(live),
            *_gauge_families(shown),
            self._source_family(shown),
            *self._split_families(shown),
        ]

    def _clear_former_names(self, run: RunStatus) -> None:
        """A query that began again under another name has not failed under its former name any more."""
        stream, name = _labels(run)
        for (of_stream, former), past in self._past.items():
            if of_stream == stream and former != name and past.query_id == run.query_id is not None:
                past.failed = past.refused = False

    def _bury(self, run: RunStatus) -> None:
        labels = _labels(run)
        past = self._past.pop(labels, None) or _Past()
        if past.last != run.token:  # a service remembers the newest run of a query for longer than `_buried`
            past.add(run)
        self._past[labels] = past
        self._buried[run.token] = None
        if len(self._buried) > _TOKENS_KEPT:
            del self._buried[next(iter(self._buried))]

    def _forget(self, live: Container[Labels]) -> None:
        ended = [labels for labels in self._past if labels not in live]
        for labels in ended[: max(0, len(ended) - _ENDED_KEPT)]:
            del self._past[labels]

    def _query_families(self, live: Mapping[Labels, list[RunStatus]]) -> list[Metric]:
        running = GaugeMetricFamily(
            "lowmark_query_running", "1 while the query runs, 0 when it has ended.", labels=_QUERY_LABELS
        )
        failed = GaugeMetricFamily("lowmark_query_failed", "1 if the query ended with an error.", labels=_QUERY_LABELS)
        refused = GaugeMetricFamily(
            "lowmark_query_refused",
            "1 if lowmark ends the query because the low watermark cannot be trusted in it; the reason is in the log.",
            labels=_QUERY_LABELS,
        )
        for labels in self._known(live):
            runs, past = live.get(labels, []), self._past.get(labels, _NO_PAST)
            running.add_metric(labels, bool(runs))
            failed.add_metric(labels, not runs and past.failed)
            refused.add_metric(labels, any(run.refused for run in runs) if runs else past.refused)
        return [running, failed, refused]

    def _counter_families(self, live: Mapping[Labels, list[RunStatus]]) -> list[Metric]:
        families = [CounterMetricFamily(metric.name, metric.help, labels=_QUERY_LABELS) for metric in COUNTERS]
        spent = CounterMetricFamily(
            "lowmark_state_seconds",
            "How long splits have been in each state, all of them added up: ten idle ones spend ten seconds a second.",
            labels=(*_QUERY_LABELS, "state"),
        )
        gaps = HistogramMetricFamily(
            "lowmark_report_gap_seconds", "Time between two reports of a query.", labels=_QUERY_LABELS
        )
        for labels in self._known(live):
            counts = added_up([self._past.get(labels, _NO_PAST).counts, *map(_counts, live.get(labels, []))])
            for family, metric in zip(families, COUNTERS, strict=True):
                family.add_metric(labels, counts[metric.name])
            for state in STATES:
                spent.add_metric((*labels, state), counts[state])
            up_to = accumulate(counts[bound] for bound in _GAP_BOUNDS)
            gaps.add_metric(labels, list(zip(_GAP_BOUNDS, up_to, strict=True)), counts[_GAP_SECONDS])
        return [*families, spent, gaps]

    def _source_family(self, shown: Mapping[Labels, RunStatus]) -> Metric:
        family = GaugeMetricFamily(
            "lowmark_source",
            "Counts of the enumerator, the planner and the readers of a lowmark source, by their own names.",
            labels=(*_QUERY_LABELS, "metric"),
        )
        for labels in self._known(shown):
            counts = dict(shown[labels].source_metrics) if labels in shown else {}
            if before := self._past.get(labels, _NO_PAST).losses:
                counts[LOSSES] = counts.get(LOSSES, 0.0) + before
            for own_name, value in counts.items():
                family.add_metric((*labels, _text(own_name)), value)
        return family

    def _known(self, live: Mapping[Labels, object]) -> list[Labels]:
        return sorted({*live, *self._past})

    def _split_families(self, shown: Mapping[Labels, RunStatus]) -> list[Metric]:
        some = (
            f"By split, for up to {_MAX_SPLITS_SHOWN} splits of a stream; a larger stream shows the holder and the "
            f"{_LAGGARDS_SHOWN} splits furthest behind (lowmark_splits_not_shown)."
        )
        gauges = [GaugeMetricFamily(m.name, f"{m.help} {some}", labels=_SPLIT_LABELS) for m in SPLIT_GAUGES]
        counters = [CounterMetricFamily(m.name, f"{m.help} {some}", labels=_SPLIT_LABELS) for m in SPLIT_COUNTERS]
        hidden = GaugeMetricFamily(
            "lowmark_splits_not_shown", "Splits without series of their own.", labels=_QUERY_LABELS
        )
        for labels, run in shown.items():
            splits = _splits_shown(run)
            hidden.add_metric(labels, sum(run.status.states.values()) - len(splits))
            past = self._past.get(labels, _NO_PAST)
            for name, split in splits.items():
                split_labels = (*labels, _text(name))
                _fill(gauges, SPLIT_GAUGES, split_labels, split, run.wall_ahead_us)
                counts = past.split_counts(name, split)
                for metric, counter in zip(SPLIT_COUNTERS, counters, strict=True):
                    if metric.value(split) is not None:
                        counter.add_metric(split_labels, counts[metric.name])
        return [*gauges, *counters, hidden]


def _loop_families(times: LoopTimes) -> Iterator[Metric]:
    """Metrics of the loop that decides low watermarks and answers heartbeats, even while it does not answer."""
    yield GaugeMetricFamily(
        "lowmark_loop_failed",
        "1 once an error has ended the service's loop: its queries end with their next heartbeat.",
        value=times.failed,
    )
    yield CounterMetricFamily("lowmark_loop_calls", "Calls that the service's loop has run.", value=times.calls)
    yield CounterMetricFamily(
        "lowmark_loop_busy_seconds", "Time that the service's loop was busy.", value=times.busy_us / 1e6
    )
    yield GaugeMetricFamily(
        "lowmark_loop_longest_call_seconds",
        "Time of the longest call of the service's loop; heartbeats wait meanwhile.",
        value=times.longest_us / 1e6,
    )
    yield GaugeMetricFamily(
        "lowmark_loop_waiting_calls", "Calls that wait for the service's loop.", value=times.waiting
    )


def _gauge_families(shown: Mapping[Labels, RunStatus]) -> list[Metric]:
    families = [GaugeMetricFamily(metric.name, metric.help, labels=_QUERY_LABELS) for metric in GAUGES]
    states = GaugeMetricFamily("lowmark_splits", "Splits by state.", labels=(*_QUERY_LABELS, "state"))
    holder = InfoMetricFamily(
        "lowmark_holder", "The split that holds the low watermark back, and its state.", labels=_QUERY_LABELS
    )
    cause = InfoMetricFamily(
        "lowmark_cause",
        "Why the low watermark stands, in a word, and the split that it is about; absent where it is merely the "
        "slowest split: coordinator away, no event time, wrong clock, silent split.",
        labels=_QUERY_LABELS,
    )
    clocks = [GaugeMetricFamily(m.name, m.help, labels=_SPLIT_LABELS) for m in CLOCK_GAUGES]
    by_hand = InfoMetricFamily(
        "lowmark_left_out_by_hand",
        "The splits that a person has left out of the low watermark, each with the person and the end.",
        labels=_QUERY_LABELS,
    )
    set_by_hand = InfoMetricFamily(
        "lowmark_set_by_hand",
        "What a person set in a running query, so that it differs from the code: delay or idleness, with value, person "
        "and time.",
        labels=_QUERY_LABELS,
    )
    alignment = [GaugeMetricFamily(m.name, m.help, labels=(*_QUERY_LABELS, "group")) for m in ALIGNMENT_GAUGES]
    for labels, run in shown.items():
        if (at := run.alignment) is not None:
            _fill(alignment, ALIGNMENT_GAUGES, (*labels, _text(at.group)), at, run.wall_ahead_us)
        _fill(families, GAUGES, labels, run, run.wall_ahead_us)
        for state in STATES:
            states.add_metric((*labels, state), run.status.states.get(state, 0))
        for clock in run.status.wrong_clocks:
            _fill(clocks, CLOCK_GAUGES, (*labels, _text(clock.split)), clock, run.wall_ahead_us)
        for split, why in run.status.by_hand[:_MAX_SPLITS_SHOWN]:
            by_hand.add_metric(labels, {"split": _text(split), "why": _text(why)})
        for each in run.status.set_by_hand:
            set_by_hand.add_metric(labels, {"what": each.what, "why": _text(str(each))})
        name = run.status.holder
        if run.status.cause is not None:
            cause.add_metric(labels, {"cause": run.status.cause.value, "split": "" if name is None else _text(name)})
        if name is not None:
            holder.add_metric(labels, {"split": _text(name), "state": run.status.splits[name].state.value})
    return [*families, *alignment, *clocks, states, holder, cause, by_hand, set_by_hand]


def _fill(
    gauges: Iterable[GaugeMetricFamily], metrics: Iterable[Of[T]], labels: Sequence[str], of: T, wall_ahead_us: int
) -> None:
    for gauge, metric in zip(gauges, metrics, strict=True):
        value = metric.exported(of, wall_ahead_us)
        if value is not None:
            gauge.add_metric(labels, value)


def _splits_shown(run: RunStatus) -> Mapping[str, SplitStatus]:
    splits = run.status.splits
    if len(splits) <= _MAX_SPLITS_SHOWN:
        return splits
    names = heapq.nsmallest(_LAGGARDS_SHOWN, splits, key=lambda name: by_need(splits[name]))
    holder = run.status.holder
    return {name: splits[name] for name in ([] if holder is None else [holder]) + names}


def _labels(run: RunStatus) -> Labels:
    return _text(run.status.name), "" if run.query is None else _text(run.query)


def _text(label: str) -> str:
    """Make a label valid UTF-8, because half of a surrogate pair in one name must not fail the whole scrape."""
    return label.encode(errors="backslashreplace").decode()


def _version() -> str:
    try:
        return importlib.metadata.version("lowmark")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
