"""One query on a stream, as seen by metrics and the command line."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from lowmark.watermark import StreamStatus, to_json
from lowmark.watermark.moment import utc
from lowmark.watermark.tasks.cap import Cap
from lowmark.watermark.tasks.status import run_mark


@dataclass(frozen=True, slots=True)
class Alignment:
    """The standing of a run in its alignment group.

    Attributes:
        max_drift_us: how far a member may be ahead of the group's minimum.
        cap: how far this run may read now; None: not known yet.
        throttled: whether it obeys the cap; a stream that Spark itself reads takes part without obeying.
        minimum_us: smallest low watermark of the members that take part; None: there is none.
        ahead_us: how far this run's low watermark is ahead of the minimum.
        waiting: whether the cap keeps it from going on.
        why: why it waits or is left out, or its current activity.
        kept_at: address of the coordinator that keeps the group; it alone knows minimum_us, ahead_us, waiting and why.
            None: the driver keeps the group.
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
    """A driver's link to the `lowmark serve` of one of its runs.

    Attributes:
        since_us: when `connected` last changed; None: no attempt to connect has ended yet.
        why: why the coordinator does not answer; empty if it does.
        holds: whether its absence holds the run's low watermark, or the reading of its stream.
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
        counts: for each of `GAP_BOUNDS_SECONDS`, the number of gaps up to it and longer than the bound before; the last
            number counts the gaps longer than all bounds.
        missed_batches: number of batches between two reports that were not reported.

    >>> ReportGaps().longer(2_000_000, missed_batches=1)
    ReportGaps(counts=(0, 1, 0, 0, 0, 0, 0, 0), sum_us=2000000, missed_batches=1)
    """

    counts: tuple[int, ...] = (0,) * (len(GAP_BOUNDS_SECONDS) + 1)
    sum_us: int = 0
    missed_batches: int = 0

    def longer(self, gap_us: int, *, missed_batches: int) -> ReportGaps:
        """Return these gaps with one more."""
        at = bisect_left(GAP_BOUNDS_SECONDS, gap_us / 1_000_000)
        counts = tuple(count + (n == at) for n, count in enumerate(self.counts))
        return ReportGaps(counts, self.sum_us + gap_us, self.missed_batches + missed_batches)


@dataclass(frozen=True, slots=True)
class RunStatus:
    """One run for metrics: the stream's status, and facts that only the run knows. Times are on the service's clock.

    Attributes:
        token: names the run; two runs of one query have two.
        query: the query's name, else its id; None until the first batch tied them.
        query_id: the query's id, which stays the same under another name; None until the first batch.
        emits: whether the stream has a watermark at all.
        unmeasured_batches: batches with rows but without a measurement.
        refused: whether the service ends the query, for a reason in the log.
        ended: whether the query has ended, after which this status does not change.
        asked_at_us: time of the heartbeat's last question.
        reported_at_us: when the last batch was reported, None before the first.
        seen_at_us: when Spark last showed that the query lives: it finished a batch, or found nothing to do.
        late_reports: how often, at least, a split delivered rows at or below the watermark in force; removed splits
            included.
        rows_at_us: when a report last brought rows, None before the first.
        backlog_rows: known unread rows of all splits together; None: not known for any split.
        batch_since_us: start of the running batch of a source of ours; None: no batch runs.
        spent_us: time that splits have spent in each state, by the state's name, all splits added up.
        lost_reports: number of batches committed before it whose report a kill took away.
        others: a sentence on the query's relation to other queries, as in `explain`, or None.
        complete_until_us: the query's sink has everything of the stream up to this time, microseconds; None: not known.
        rises: (when, low watermark) of the last hour, microseconds, oldest first; empty if splits were limited.
        now_us: time of this status; None: not known. Compare its times with this one and not with a wall clock, because
            the service's clock never steps.
        wall_ahead_us: how far the wall clock is ahead of the service's clock.
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
    complete_until_us: int | None = None
    rises: tuple[tuple[int, int], ...] = ()
    now_us: int | None = None
    wall_ahead_us: int = 0
    query_id: str | None = None


def run_json(run: RunStatus) -> dict[str, object]:
    """Return the run for ``json.dumps``; `lowmark status --json-schema` describes it (`cli/schema.py`)."""
    return {
        "query": run.query,
        **to_json(run.status),
        "run": {
            "mark": run_mark(run.token),  # the token itself would let others speak for the run
            "emits": run.emits,
            "ended": run.ended,
            "failed": run.failed,
            "refused": run.refused,
            "unmeasured_batches": run.unmeasured_batches,
            "backlog_rows": run.backlog_rows,
            "complete_until_us": run.complete_until_us,
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
    cap = at.cap
    of_cap = {"cap": None if cap is None else cap.kind.name.lower(), "cap_us": None if cap is None else cap.us}
    return {**asdict(at), **of_cap}


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
