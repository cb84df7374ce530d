"""One query on a stream, as metrics and the command line see it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

from lowmark.watermark import Cap, StreamStatus, to_json
from lowmark.watermark.splits.status import utc
from lowmark.watermark.tasks.status import run_mark

__all__ = ["GAP_BOUNDS_SECONDS", "Alignment", "CoordinatorLink", "ReportGaps", "RunStatus", "run_json"]


@dataclass(frozen=True, slots=True)
class Alignment:
    """A run in its alignment group.

    Attributes:
        group: its name.
        max_drift_us: how far a member may be ahead of the group's minimum.
        cap: how far this run may read by now; None: not known yet.
        throttled: it obeys the cap; a stream that Spark reads by itself takes part and does not.
        minimum_us: the smallest low watermark of the members that take part.
        ahead_us: how far this run's low watermark is ahead of it.
        waiting: the cap keeps it from going on.
        why: why it waits or is left out, or what it is doing.
        kept_at: address of the coordinator that keeps the group, which alone knows the last four; None: the driver.
    """

    group: str
    max_drift_us: int
    cap: Cap | None
    throttled: bool
    minimum_us: int | None = None
    ahead_us: int | None = None
    waiting: bool = False
    why: str = ""
    kept_at: str | None = None


@dataclass(frozen=True, slots=True)
class CoordinatorLink:
    """A driver's view of the `lowmark serve` that one of its runs takes part in.

    Attributes:
        address: the coordinator's.
        connected: it answers.
        since_us: since when that is so; None: no attempt to connect has ended yet.
        why: why it does not answer; empty if it does.
        holds: while it does not answer, the run's low watermark is held, or its stream is read no further.
    """

    address: str
    connected: bool
    since_us: int | None
    why: str
    holds: bool


GAP_BOUNDS_SECONDS = (1, 5, 15, 60, 300, 900, 3_600)


@dataclass(frozen=True, slots=True)
class ReportGaps:
    """The times between the reports of a run.

    Attributes:
        counts: how many were at most as long as each of `GAP_BOUNDS_SECONDS` and longer than the bound before it; the
            last number is of those that were longer than all.
        sum_us: all of them together.
        missed_batches: batches between two reports of which none came.

    >>> ReportGaps().longer(2_000_000, missed_batches=1)
    ReportGaps(counts=(0, 1, 0, 0, 0, 0, 0, 0), sum_us=2000000, missed_batches=1)
    """

    counts: tuple[int, ...] = (0,) * (len(GAP_BOUNDS_SECONDS) + 1)
    sum_us: int = 0
    missed_batches: int = 0

    def longer(self, gap_us: int, *, missed_batches: int) -> ReportGaps:
        """With one more."""
        at = bisect_left(GAP_BOUNDS_SECONDS, gap_us / 1_000_000)
        counts = tuple(count + (n == at) for n, count in enumerate(self.counts))
        return ReportGaps(counts, self.sum_us + gap_us, self.missed_batches + missed_batches)


@dataclass(frozen=True, slots=True)
class RunStatus:
    """One run as metrics see it: the stream's status, and what only the run knows. Times are on the service's clock.

    Attributes:
        token: names the run; two runs of one query have two.
        query: the query's name, or its id where it has none; None until the first batch tied them.
        status: where the stream stands in this query.
        emits: the stream has a watermark at all.
        unmeasured_batches: batches with rows but without a measurement.
        refused: the service ends the query, for a reason in the log.
        failed: the query ended with an error.
        ended: the query has ended; nothing of this will change any more.
        asked_at_us: when the heartbeat asked last.
        reported_at_us: when the last batch was reported, None before the first.
        seen_at_us: when Spark last said that the query lives: it finished a batch, or found nothing to do.
        source_metrics: of its source, where that is one of ours, by name.
        late_reports: how often a split delivered rows at or below the watermark in force, of splits that are gone, too.
        rows_at_us: when a report last brought rows, None before the first.
        backlog_rows: rows that are known to be unread, of all splits together; None: of no split is it known.
        batch_since_us: since when rows of its source are being read, where that is one of ours; None: no batch runs.
        alignment: where it stands in its alignment group, None without one.
        spent_us: how long splits have been in each state, by its name, all of them added up.
        gaps: the times between its reports.
        lost_reports: batches that were committed before it, and whose report a kill took away.
        others: what it has to do with others, one sentence as `explain` has it, or None.
        coordinator: the coordinator that it takes part in; None: none.
        rises: (when, low watermark) of the last hour, microseconds, oldest first; empty where splits were limited.
        now_us: when this was so; None: not said. The service's clock never steps, so its times are compared with this
            time, and not with a wall clock.
    """

    token: str
    query: str | None
    status: StreamStatus
    emits: bool
    unmeasured_batches: int
    refused: bool
    failed: bool
    ended: bool
    asked_at_us: int
    reported_at_us: int | None
    seen_at_us: int
    source_metrics: Mapping[str, float] = field(default_factory=dict)
    late_reports: int = 0
    rows_at_us: int | None = None
    backlog_rows: int | None = None
    batch_since_us: int | None = None
    alignment: Alignment | None = None
    spent_us: Mapping[str, int] = field(default_factory=dict)
    gaps: ReportGaps = ReportGaps()
    lost_reports: int = 0
    others: str | None = None
    coordinator: CoordinatorLink | None = None
    rises: tuple[tuple[int, int], ...] = ()
    now_us: int | None = None


def run_json(run: RunStatus) -> dict[str, object]:
    """The run for ``json.dumps``: its query, all that ``to_json`` says of the stream, and what only the run knows."""
    return {
        "query": run.query,
        **to_json(run.status),
        "run": {
            "token": run_mark(run.token),  # with itself one could speak for the run at its coordinator
            "emits": run.emits,
            "ended": run.ended,
            "failed": run.failed,
            "refused": run.refused,
            "unmeasured_batches": run.unmeasured_batches,
            "backlog_rows": run.backlog_rows,
            "now": _time(run.now_us),
            "asked_at": _time(run.asked_at_us),
            "reported_at": _time(run.reported_at_us),
            "rows_at": _time(run.rows_at_us),
            "batch_since": _time(run.batch_since_us),
            "seen_at": _time(run.seen_at_us),
            "alignment": None if run.alignment is None else _alignment_json(run.alignment),
            "rises": [list(rise) for rise in run.rises],
            "coordinator": None if run.coordinator is None else _coordinator_json(run.coordinator),
        },
    }


def _alignment_json(at: Alignment) -> dict[str, object]:
    return {
        "group": at.group,
        "max_drift_us": at.max_drift_us,
        "cap": None if at.cap is None else at.cap.kind.name.lower(),
        "cap_us": None if at.cap is None else at.cap.us,
        "throttled": at.throttled,
        "minimum_us": at.minimum_us,
        "ahead_us": at.ahead_us,
        "waiting": at.waiting,
        "why": at.why,
        "kept_at": at.kept_at,
    }


def _coordinator_json(link: CoordinatorLink) -> dict[str, object]:
    return {
        "address": link.address,
        "connected": link.connected,
        "since": _time(link.since_us),
        "why": link.why,
        "holds": link.holds,
    }


def _time(at_us: int | None) -> str | None:
    at = utc(at_us)
    return None if at is None else at.isoformat()
