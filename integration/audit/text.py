"""A report on a terminal, and what the page has in common with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from lowmark.integration.console import EscapingConsole, Sheet, print_lines
from lowmark.watermark import format_duration_us, format_time_us
from lowmark.watermark.duration import rough_duration_us
from lowmark.watermark.printable import counted, printable
from lowmark.watermark.replay.report import AuditReport, SplitReport

_NAMES_SHOWN = 4
_SPLIT_COLUMNS = (
    "split", "rows", "spans", "99 % lie behind", "99.99 %", "all", "behind at most", "silent at most", "bad rows",
)  # fmt: skip


def show(report: AuditReport, console: EscapingConsole, limit: int) -> None:
    """Print a report with `limit` splits, those that lose most first; 0: all."""
    hint = " (--window: by the end of its window)" if report.window_us is None else ""
    head = [
        f"{report.what}: {report.order}",
        f"event time: {report.event_time}; {when_late(report)}{hint}",
        *(f"note: {note}" for note in report.notes),
        "",
    ]
    print_lines("\n".join(map(printable, head)), console)
    splits = by_loss(report)
    shown = splits[:limit] if limit else splits
    console.print(
        Sheet(
            _SPLIT_COLUMNS,
            [_split_row(split) for split in shown],
            whole=("split", "rows"),
            right=("rows",),
            title="Rows, and how far each lies behind the largest before it in its split",
            left_out=len(splits) - len(shown),
        )
    )
    print_lines("", console)
    console.print(
        Sheet(
            ("delay", "native Spark drops", "of rows", "of splits", "keeps rows", "lowmark drops", "keeps"),
            delay_rows(report, _NAMES_SHOWN),
            whole=("delay", "native Spark drops"),
            right=("native Spark drops", "of rows", "keeps rows", "lowmark drops", "keeps"),
            title="Lost rows by withWatermark's delay and by lowmark's bound",
        )
    )
    tail = ["", lost_line(report), "", *report.advice.code().split("\n")]
    print_lines("\n".join(map(printable, tail)), console)


def lost_line(report: AuditReport) -> str:
    """A sentence on the delay at which native Spark loses no row, and its cost."""
    kept = report.smallest_kept_rows
    state = "" if kept is None else f", and keeps up to {kept:,} of the {report.rows:,} rows in state for it"
    late = report.before_epoch_rows
    always = f" {counted(late, 'row', ('is', 'are'))} from before 1970, which every watermark drops." if late else ""
    if report.smallest_delay_us == 0:
        return f"Native Spark drops no row, whatever the delay.{always}"
    return f"Native Spark drops none from a delay of {format_duration_us(report.smallest_delay_us)} on{state}.{always}"


def by_loss(report: AuditReport) -> list[SplitReport]:
    """The splits in the order of the rows that native Spark drops at all delays together, most first."""
    lost = Counter[str]()
    for outcome in report.native:
        lost.update(outcome.splits)
    return sorted(report.splits, key=lambda split: (-lost[split.name], split.name))


def when_late(report: AuditReport) -> str:
    """When a row is late, as the end of a sentence."""
    if report.window_us is None:
        return "a row is late by its own time"
    return f"a row is late once its window of {format_duration_us(report.window_us)} is over"


def _split_row(split: SplitReport) -> tuple[str, ...]:
    """A split's cells below `_SPLIT_COLUMNS`."""
    profile = split.profile
    span = ""
    if profile.first_us is not None and profile.last_us is not None:
        span = f"{format_time_us(profile.first_us)[:19]} + {rough_duration_us(profile.last_us - profile.first_us)}"
    silent = split.longest_without_row_us
    ended = " to the end" if silent and silent == (split.empty_for_us or 0) else ""
    return (
        split.name,
        f"{profile.rows:,}",
        span,
        *how_late(split),
        f"{rough_duration_us(silent)}{ended}" if silent else "",
        ", ".join(_bad_rows(split)),
    )


def how_late(split: SplitReport) -> tuple[str, ...]:
    """How far 99 %, 99.99 % and all rows lie behind, and how far the split was behind at most."""
    disorder = split.profile.disorder
    return (
        rough_duration_us(disorder.quantile_us(0.99)),
        rough_duration_us(disorder.quantile_us(0.9999)),
        rough_duration_us(disorder.largest_us),
        "" if split.most_behind_us is None else rough_duration_us(split.most_behind_us),
    )


def _bad_rows(split: SplitReport) -> Iterator[str]:
    profile = split.profile
    for rows, what in (
        (profile.null_rows, "without time"),
        (profile.unreadable_rows, "unreadable"),
        (profile.before_epoch_rows, "before 1970"),
        (profile.future_rows, "in the future"),
    ):
        if rows:
            yield f"{rows:,} {what}"


def delay_rows(report: AuditReport, most_splits: int) -> list[tuple[str, ...]]:
    """For each delay, what native Spark drops and keeps, with the worst splits, and what lowmark drops and keeps."""
    rows: list[tuple[str, ...]] = []
    for native, low in zip(report.native, report.lowmark, strict=True):
        worst = sorted(native.splits.items(), key=lambda item: -item[1])
        named = [f"{name}: {lost:,}" for name, lost in worst[:most_splits]]
        named += [f"{len(worst) - most_splits} more"] if len(worst) > most_splits else []
        rows.append(
            (
                format_duration_us(native.delay_us),
                f"{native.rows_dropped:,}",
                f"{100 * native.rows_dropped / max(1, report.rows):.2f} %",
                ", ".join(named),
                "" if native.kept_rows is None else f"{native.kept_rows:,}",
                f"{low.rows_dropped:,}",
                "" if low.kept_rows is None else f"{low.kept_rows:,}",
            )
        )
    return rows
