"""The status of a stream for people, pages and metrics: as frozen data, as text and as a JSON object.

The reasons are data too, so that the page, the CLI and the log give the same reasons.

One file, because a field stands beside its text and JSON.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from lowmark.watermark.duration import format_duration_us, rough_duration_us
from lowmark.watermark.moment import format_time_us, none_first, us_of
from lowmark.watermark.printable import and_others, counted, printable
from lowmark.watermark.state import AllIdle, IdleClock, SplitState

from .events import BatchCounts

_PLAIN = frozenset({int, str, bool})  # what most values of a status are, and stay
_SPLITS_SHOWN = 10
_SPELLS_SHOWN = 3
_SILENT_US = 10_000_000


@dataclass(frozen=True, slots=True)
class SplitStatus:
    """One split.

    Attributes:
        watermark_us: its watermark, microseconds since the epoch; None before its first.
        rows: rows it delivered since its query started, from 0 after each start of the query; None: not counted.
        backlog_rows: its unread rows; None: unknown.
        first_us: smallest event time in its last batch; None: not measured.
        last_report: when it last delivered, UTC; None if it has not delivered since its query started.
        lagging: whether it has rows waiting, may be read, and delivered no row in the last batch.
        late_reports: least number of batches in which it delivered rows at or below the watermark in force.
        pending_since: since when it holds the low watermark without having spoken, UTC.
        why: the reason for its state.
        native_late_rows: least number of its rows that Spark's one watermark for the whole stream judges late.
        bound_us: its own bound with ``for_adaptive_out_of_orderness``, else None.
        beyond_bound: number of rows, or of batches of a wrapped stream, that came later than its bound at that time.
        late_rows: number of its rows at or below the watermark by which Spark drops rows in their batch; None: not
            counted. Exact, except where a `foreachBatch` function runs several actions (docs/limits.md).
    """

    state: SplitState
    watermark_us: int | None
    rows: int | None
    backlog_rows: int | None
    first_us: int | None
    last_report: datetime | None
    lagging: bool
    late_reports: int
    pending_since: datetime | None
    why: str
    native_late_rows: int = 0
    bound_us: int | None = None
    beyond_bound: int = 0
    late_rows: int | None = None


class Cause(str, Enum):
    """Why a low watermark stands, if the holder is more than the slowest split: the same word wherever it is shown."""

    QUERY_FAILED = "query failed"
    """The query ended with an error."""
    COORDINATOR_AWAY = "coordinator away"
    """The coordinator that publishes the low watermark, or allows reading on, does not answer."""
    NO_EVENT_TIME = "no event time"
    """No row so far has a plausible event time: see ``unusable_times``."""
    WRONG_CLOCK = "wrong clock"
    """All rows of the holder lie beyond the future guard."""
    SILENT_SPLIT = "silent split"
    """No row of the holder was reported for a while, but rows of other splits were."""


@dataclass(frozen=True, slots=True)
class WrongClock:
    """A split that sent rows beyond the future guard.

    Attributes:
        rows: number of these rows since the query started.
        since, last: when the first and the last of these rows were reported, UTC.
    """

    split: str
    rows: int
    since: datetime | None
    last: datetime | None

    def __str__(self) -> str:
        return (
            f"the clock of split {self.split} is wrong: {counted(self.rows, 'row')} since {_moment(self.since)} "
            f"(the last at {_moment(self.last)}) {'lies' if self.rows == 1 else 'lie'} further ahead of the clock than "
            f"the future guard allows, and {'moves' if self.rows == 1 else 'move'} nothing"
        )


@dataclass(frozen=True, slots=True)
class SetByHand:
    """A part of the strategy that a person set in a running query. The code's value counts again at the next start.

    Attributes:
        what: "delay" or "idleness".
        us, code_us: the value in force, and the value that the code says, microseconds; None: no split becomes idle.
        by, since: the person, and when, UTC.
    """

    what: str
    us: int | None
    code_us: int | None
    by: str
    since: datetime | None

    def __str__(self) -> str:
        value, code = ("off" if us is None else format_duration_us(us) for us in (self.us, self.code_us))
        return f"{self.what} {value}, set by {self.by} at {_moment(self.since)}; the code says {code}"


@dataclass(frozen=True, slots=True)
class HolderSpell:
    """A time in which one split held the low watermark back.

    Attributes:
        holder: the name of the split; None: no split held.
        since, until: begin and end, UTC; the last spell ends now.
    """

    holder: str | None
    since: datetime | None
    until: datetime | None


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """The status of one stream. Counts begin with this process.

    With a limit, ``splits`` has the splits that need attention first, in that order, ``left_out`` and ``passed_over``
    are at most as long as the limit, and ``states`` still counts all splits.

    Attributes:
        low_watermark_us: the published low watermark, microseconds since the epoch.
        holder: name of the split that keeps the low watermark from rising, or None.
        why: why the low watermark stands, one sentence.
        since: since when the low watermark has stood there, UTC.
        next: the event that would move the low watermark, one sentence.
        left_out: idle splits, by name, each with the reason; first those that a person left out.
        splits: every split by name.
        states: number of splits by state; every state is there.
        counts: rows of all batches.
        batches: number of batches counted.
        regressions: number of reports below their split's own watermark (their values are ignored).
        returned_late: how often a split came in below the low watermark.
        native_watermark_us: the present value of Spark's one watermark for the whole stream, if Spark used it.
        native_late_rows: least number of rows that Spark would have judged late by that watermark.
        passed_over: names of the splits that ``with_percentile`` passes now: their rows may be late.
        held: the holders of the low watermark in the last hour, newest first.
        silent_since: since when no split delivered, UTC, if that is longer than the timeout; None: the stream
            is not silent, or all its splits are idle by time alone.
        cause: the kind of reason with which ``why`` begins; None: the holder is merely slow, or no split holds.
        newest_us: largest event time of all rows, rows beyond the future guard included; None: not measured.
        fastest_us: the largest watermark of a split so far, microseconds since the epoch.
        wrong_clocks: up to ten splits that sent rows beyond the future guard, those with most rows first.
        by_hand: splits that a person left out, by name, each with the person and the end.
        set_by_hand: what a person set in this query, so that the query differs from the code until its next start.
    """

    name: str
    low_watermark_us: int | None
    holder: str | None
    why: str
    since: datetime | None
    next: str
    left_out: tuple[tuple[str, str], ...]
    splits: Mapping[str, SplitStatus]
    states: Mapping[str, int]
    counts: BatchCounts
    regressions: int
    returned_late: int
    native_watermark_us: int | None
    native_late_rows: int
    batches: int
    last_batch_id: int | None
    passed_over: tuple[str, ...] = ()
    held: tuple[HolderSpell, ...] = ()
    silent_since: datetime | None = None
    cause: Cause | None = None
    newest_us: int | None = None
    fastest_us: int | None = None
    wrong_clocks: tuple[WrongClock, ...] = ()
    by_hand: tuple[tuple[str, str], ...] = ()
    set_by_hand: tuple[SetByHand, ...] = ()  # empty from `view.py`: the driver knows the code

    @property
    def clocks_beside(self) -> tuple[WrongClock, ...]:
        """The wrong clocks, without the holder's if ``why`` tells of it as the cause."""
        told = self.holder if self.cause is Cause.WRONG_CLOCK else None
        return tuple(clock for clock in self.wrong_clocks if clock.split != told)

    def __repr__(self) -> str:
        """One line, because a stream may have thousands of splits."""
        states = ", ".join(f"{count} {state}" for state, count in self.states.items() if count) or "none"
        low = format_time_us(self.low_watermark_us)
        holder = "" if self.holder is None else f", held by {self.holder}"
        return printable(f"<StreamStatus {self.name}: low watermark {low}{holder}; splits: {states}>")

    def _repr_html_(self) -> str:
        return as_html(explain(self))


class Explanation(str):
    """A text for people. A notebook shows its lines as lines; elsewhere it is an ordinary string."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return as_html(self)


def as_html(text: str) -> str:
    """Escape a text for a notebook, line by line, so that markup in names is shown as text.

    >>> as_html("split <b>: idle")
    '<pre style="margin: 0">split &lt;b&gt;: idle</pre>'
    """
    return f'<pre style="margin: 0">{html.escape(text)}</pre>'


@dataclass(frozen=True, slots=True)
class Hold:
    """The facts about a low watermark that does not rise; ``hold_reasons`` puts them into words."""

    state: SplitState | None  # of the holder; None: no split holds
    name: str = ""
    watermark_us: int | None = None
    low_us: int | None = None
    live: int = 0  # splits that take part or hold
    silent: int = 0  # splits that hold because they never spoke
    known: int = 0
    idle: int = 0
    backlog_rows: int | None = None
    idle_timeout_us: int | None = None
    timeout_grows: bool = False  # with the age of the stream
    grace_left_us: int | None = None  # None: for ever
    all_idle: AllIdle = AllIdle.HOLD
    inherited_us: int | None = None  # the inherited watermark of a silent child of a reshard
    waits: bool = False  # whether the holder waits for its parents, which may still deliver
    clock: IdleClock = IdleClock.TIME  # counts silence
    grace_clock: IdleClock = IdleClock.TIME  # counts the grace
    silent_us: int | None = None  # how long no split delivered, once the stream is silent
    unreported_us: int | None = None  # how long no row of the holder was reported, while rows of others were
    unraised_us: int | None = None  # for how long rows of the holder were reported, and did not raise its watermark
    wrong_clock: WrongClock | None = None  # of the holder


def hold_reasons(hold: Hold) -> tuple[str, str]:
    """Return two sentences: the reason why the low watermark stands, and the event that would move it.

    >>> why, what_next = hold_reasons(Hold(SplitState.ACTIVE, "orders/7", watermark_us=0, low_us=0, live=3))
    >>> why
    'split orders/7 has the smallest watermark of 3 live splits.'
    """
    if hold.state is None:
        return _nobody_holds(hold)
    if hold.silent_us is not None:
        why, what_next = hold_reasons(replace(hold, silent_us=None))
        silence = f"the stream is silent: nothing of any split for {rough_duration_us(hold.silent_us)}"
        return f"{silence}, which is no evidence against any; {why}", what_next
    split = f"split {hold.name}"
    if hold.state is SplitState.IDLE:  # only a quorum lets an idle split hold
        why = f"{split} is idle, but fewer splits take part than with_quorum() asks, so idle splits hold"
        return f"{why}{_its_rows(hold)}.", f"Rows of {split}, or of enough other idle splits for with_quorum()."
    if hold.watermark_us is None:
        others = and_others(hold.silent - 1)
        stands = "" if hold.inherited_us is None else f"; it inherited {format_time_us(hold.inherited_us)}"
        return f"{split} has not spoken yet{others}{stands}{_its_rows(hold)}.", f"{_until_it_speaks(hold, split)}."
    if hold.low_us is not None and hold.watermark_us < hold.low_us:
        behind = rough_duration_us(hold.low_us - hold.watermark_us)
        why = f"{split} came back {behind} behind the low watermark, which does not go back{_its_rows(hold)}."
    elif hold.state is SplitState.PAUSED:
        paused = "alignment or a silent source holds it back"
        why = f"{split} has the smallest watermark of {hold.live:,} live splits, and {paused}."
    else:
        why = f"{split} has the smallest watermark of {hold.live:,} live splits{_its_rows(hold)}."
    if hold.state is SplitState.PAUSED:
        return why, f"{split} is read again."
    return why, f"Newer rows of {split}; {_unless_idle(hold)}."


def lost_reasons(batch_id: int, left_us: int) -> tuple[str, str]:
    """Say the same of a low watermark that stands because a report was lost.

    >>> lost_reasons(7, 40_000_000)[1]
    'The sources read for 40s more.'
    """
    lost = f"The report of batch {batch_id} was lost, as when its query is killed"
    read = f"The sources read for {rough_duration_us(max(0, left_us))} more."
    return f"{lost}: splits that were new in it are given time to speak.", read


def is_silent(hold: Hold) -> bool:
    """Whether the holder is silent while other splits are not, for long enough to tell people."""
    return hold.unreported_us is not None and hold.unreported_us >= _SILENT_US and hold.wrong_clock is None


def _its_rows(hold: Hold) -> str:
    if hold.unreported_us is not None and is_silent(hold):
        return f"; no row of it was reported for {rough_duration_us(hold.unreported_us)}"
    if hold.unraised_us is not None and hold.unraised_us >= _SILENT_US and hold.wrong_clock is None:
        return f"; for {rough_duration_us(hold.unraised_us)} rows of it were reported, and none raised its watermark"
    return ""


def _until_it_speaks(hold: Hold, split: str) -> str:
    if hold.waits:
        silence = "its silence counts from when its parents are done"
        return f"Newer rows of its parents, or the first row of {split}, or the end of its grace: {silence}"
    idle = "" if hold.idle_timeout_us is None else f"; {_unless_idle(hold)}"
    if hold.grace_left_us is None:
        if idle:
            return f"The first row of {split}{idle}"
        ends = "with_grace() would bound this wait, which has no end now"
    elif hold.grace_clock is IdleClock.TIME:
        when = f"in {rough_duration_us(hold.grace_left_us)}" if hold.grace_left_us > 0 else "now"
        ends = f"its grace ends {when}"
    else:
        ends = f"its grace ends after {rough_duration_us(hold.grace_left_us)} more in which others deliver"
    rows = f" ({_waiting(hold.backlog_rows)})" if hold.backlog_rows and not idle else ""
    return f"The first row of {split}{rows}, or the end of its grace: {ends}{idle}"


def _nobody_holds(hold: Hold) -> tuple[str, str]:
    if hold.known == 0:
        return "no split is known yet.", "The first split that is discovered and speaks."
    if hold.idle == 0:
        return "every split is finished.", "A new split."
    policy = {
        AllIdle.HOLD: "the low watermark stays (all idle: hold).",
        AllIdle.MAX: "it stands at the largest watermark seen (all idle: max).",
        AllIdle.ADVANCE: "it follows processing time (all idle: advance).",
    }[hold.all_idle]
    return f"every live split ({hold.idle:,}) is idle, and {policy}", "The next row of any split."


def _waiting(backlog_rows: int) -> str:
    return f"{counted(backlog_rows, 'row', ('is', 'are'))} waiting in it"


def _unless_idle(hold: Hold) -> str:
    if hold.idle_timeout_us is None:
        return "it is waited for even if it falls silent, as no idleness is set (with_idleness())"
    if hold.backlog_rows:
        return f"it cannot become idle, for {_waiting(hold.backlog_rows)}"
    meanwhile = "" if hold.clock is IdleClock.TIME else " while others deliver"
    if hold.timeout_grows:
        return f"or its silence for more than {rough_duration_us(hold.idle_timeout_us)} by now{meanwhile}"
    return f"or its silence for more than {format_duration_us(hold.idle_timeout_us)}{meanwhile}"


def _moment(at: datetime | None) -> str:
    return "an unknown time" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def explain(status: StreamStatus) -> str:
    """Format a status as several lines of plain text for people."""
    lines = [
        f"Stream {status.name}: low watermark {format_time_us(status.low_watermark_us)}",
        f"  why    {status.why}",
        f"  since  {format_time_us(None if status.since is None else us_of(status.since))}",
        f"  next   {status.next}",
        *_clock_lines(status),
        *(f"  set    {each}" for each in status.set_by_hand),
        *_held_lines(status.held),
        "  splits " + ", ".join(f"{count:,} {state}" for state, count in status.states.items()),
    ]
    shown = sorted(status.splits.items(), key=lambda item: by_need(item[1]))[:_SPLITS_SHOWN]
    lines += [f"    {name}: {_split_line(split)}" for name, split in shown]
    known = sum(status.states.values())
    if known > len(shown):
        lines.append(f"    and {known - len(shown):,} more")
    if status.passed_over:
        names = status.passed_over[:_SPLITS_SHOWN]
        first = f", the first {_SPLITS_SHOWN}" if len(names) == _SPLITS_SHOWN else ""
        lines.append(f"  passed over by with_percentile(){first}: {', '.join(names)}")
    left_out = status.left_out[:_SPLITS_SHOWN]
    lines += [f"  left out: {name}, {why}" for name, why in left_out]
    if (more := status.states[SplitState.IDLE.value] - len(left_out)) > 0:
        lines.append(f"  left out: {more:,} more")
    named = ((what.removesuffix("s").replace("_", " "), number) for what, number in asdict(status.counts).items())
    counts = ", ".join(counted(number, what) for what, number in named if number)
    lines.append(f"  batches {status.batches:,} ({counts or 'no rows'})")
    if status.returned_late or status.regressions:
        lines.append(
            f"  late   {counted(status.returned_late, 'return')} below the low watermark, "
            f"{counted(status.regressions, 'regressing report')}"
        )
    if status.native_late_rows:
        lines.append(
            f"  native Spark, with one watermark at {format_time_us(status.native_watermark_us)}, "
            f"would have judged at least {counted(status.native_late_rows, 'row')} late: a floor that may lie far "
            "below the truth, because a batch tells the first and the last event time of a split at most, and without "
            "`detail=True` not how many rows it had"
        )
    return "\n".join(map(printable, lines))


def _clock_lines(status: StreamStatus) -> list[str]:
    newest = ""
    if status.newest_us is not None:
        newest = f"; the largest event time of the stream is {format_time_us(status.newest_us)}"
    return [f"  clock  {clock}{newest}" for clock in status.clocks_beside]


def _held_lines(held: tuple[HolderSpell, ...]) -> list[str]:
    """The earlier holders, newest first, as one line; empty if there are no spells.

    >>> from lowmark.watermark.moment import utc
    >>> at = [utc(minutes * 60_000_000) for minutes in (0, 3, 15)]
    >>> _held_lines((HolderSpell("a", at[1], at[2]), HolderSpell("b", at[0], at[1])))
    ['  held   for 12m by a; before that for 3m by b']
    """
    told = [
        f"for {rough_duration_us((spell.until - spell.since) // timedelta(microseconds=1))} "
        f"by {'nobody' if spell.holder is None else spell.holder}"
        for spell in held[:_SPELLS_SHOWN]
        if spell.since is not None and spell.until is not None
    ]
    return [f"  held   {'; before that '.join(told)}"] if told else []


def to_json(status: StreamStatus) -> dict[str, object]:
    """Convert a status for ``json.dumps``: states by name, times in ISO-8601, watermarks in microseconds."""
    plain: dict[str, object] = _plain(status)  # type: ignore[assignment]
    return plain


def _plain(value: object) -> object:
    if value is None or type(value) in _PLAIN:
        return value
    if is_dataclass(value):
        return {field: _plain(getattr(value, field)) for field in value.__match_args__}  # type: ignore[union-attr]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return value.value if isinstance(value, SplitState | Cause) else value


_RANK = {
    SplitState.PENDING: 0,
    SplitState.ACTIVE: 1,
    SplitState.PAUSED: 1,
    SplitState.IDLE: 2,
    SplitState.FINISHED: 3,
}


def by_need(split: SplitStatus) -> tuple[int, bool, int]:
    """Sort key by need of attention: first silent splits, then the splits furthest behind, then idle and finished."""
    return need(split.state, split.watermark_us)


def need(state: SplitState, watermark_us: int | None) -> tuple[int, bool, int]:
    """``by_need`` before there is a ``SplitStatus``."""
    return (_RANK[state], *none_first(watermark_us))


def behind(status: StreamStatus) -> tuple[bool, int]:
    """Sort key: which of several queries on a stream is furthest behind."""
    return none_first(status.low_watermark_us)


def _split_line(split: SplitStatus) -> str:
    backlog = "backlog unknown" if split.backlog_rows is None else f"backlog {counted(split.backlog_rows, 'row')}"
    late = f", {counted(split.late_reports, 'late report')}" if split.late_reports else ""
    late += f", {counted(split.late_rows, 'row')} below Spark's watermark" if split.late_rows else ""
    late += f", natively {counted(split.native_late_rows, 'row')} late at least" if split.native_late_rows else ""
    if split.bound_us is not None:
        late += f", bound {format_duration_us(split.bound_us)}"
        late += f" ({split.beyond_bound:,} came later)" if split.beyond_bound else ""
    lagging = ", lagging" if split.lagging else ""
    return f"{split.state.value}{lagging}, watermark {format_time_us(split.watermark_us)}, {backlog}{late}"
