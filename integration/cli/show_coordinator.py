"""Output of `lowmark status` and `explain` for a coordinator that applications share."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import msgspec
from lowmark.integration.console import Sheet, ago
from lowmark.integration.coordinator.access import Caller
from lowmark.integration.coordinator.messages import StatusAnswer
from lowmark.integration.errors import UnknownStream
from lowmark.watermark import SplitState, format_time_us
from lowmark.watermark.printable import counted, printable, some_of
from lowmark.watermark.splits.status import need
from lowmark.watermark.state import LEFT_OUT
from lowmark.watermark.tasks.alignment import GroupStatus
from lowmark.watermark.tasks.status import CoordinatorStatus, SourceStatus, TaskStatus
from rich.console import Console

_NAMED = 10  # in a sentence


def only(name: str, answer: StatusAnswer) -> StatusAnswer:
    """The sources of one name in any job, and the groups of their tasks. Raises UnknownStream."""
    seen = answer.coordinator
    sources = tuple(source for source in seen.sources if source.source_id == name)
    if not sources:
        raise UnknownStream(name, tuple(sorted({source.source_id for source in seen.sources})))
    names = {task.group for source in sources for task in source.tasks}
    groups = tuple(group for group in seen.groups if group.group in names)
    return msgspec.structs.replace(answer, coordinator=replace(seen, sources=sources, groups=groups))


def status_json(address: str, answer: StatusAnswer) -> dict[str, Any]:
    """The whole answer for ``json.dumps``."""
    return {"address": address, **msgspec.to_builtins(answer, enc_hook=str)}


def explanations(seen: CoordinatorStatus, caller: Caller) -> dict[str, list[dict[str, str]]]:
    """Explain in words every source and every group of a coordinator, with commands that this caller can run."""
    return {
        "sources": [
            {"job_id": each.job_id, "source_id": each.source_id, "explanation": _source_in_words(each, caller)}
            for each in seen.sources
        ],
        "groups": [{"group": each.group, "explanation": _group_in_words(each)} for each in seen.groups],
    }


def sink_in_words(source: SourceStatus) -> str:
    """Say how far the sinks of all tasks of a source are complete, and which task's sink is the last."""
    last = source.least_complete
    if last is None:
        return "no task is registered, so no sink is known."
    if source.missing:
        return f"the sinks of {source.missing} of {source.expected} expected tasks are not known."
    if source.complete_until_us is None:
        return f"the sink of task {last.task_id} is not known to be complete until any time."
    until = format_time_us(source.complete_until_us)
    return f"all sinks are complete until {until}; the sink of task {last.task_id} is the last."


def show_coordinator(address: str, answer: StatusAnswer, console: Console, *, now_us: int) -> None:
    """Print an answer as tables."""
    seen = answer.coordinator
    watching = f"{counted(answer.applications, 'application')} connected"
    console.print(
        f"coordinator, process {answer.pid}, {address}, {watching}", style="dim", highlight=False, soft_wrap=True
    )
    if (again := answer.begun_again) is not None:
        console.print(
            "  went on from its journal, because an error may have left its state half changed: "
            f"{counted(again.times, 'time')}, the last at {format_time_us(again.at_us)}: {printable(again.why)}",
            style="yellow",
            highlight=False,
            soft_wrap=True,
        )
    if not seen.sources:
        console.print("  no task is registered")
    for source in seen.sources:
        console.print(_source_table(source, now_us))
    for group in seen.groups:
        console.print(_group_table(group))


def _source_in_words(source: SourceStatus, caller: Caller) -> str:
    held = "nobody holds it" if source.holder is None else f"task {source.holder.task_id} holds it"
    low = format_time_us(source.low_watermark_us)
    since = "it has not risen yet" if source.since_us is None else f"it rose last at {format_time_us(source.since_us)}"
    left_out = [task for task in source.tasks if task.state in LEFT_OUT][:_NAMED]
    more = sum(source.states[state.value] for state in LEFT_OUT) - len(left_out)
    lines = [
        f"{source.source_id} of {source.job_id}: the low watermark is {low}; {since}; {held}.",
        f"Why: {source.why}",
        f"Sinks: {sink_in_words(source)}",
    ]
    if left_out or more:
        named = [f"{task.task.task_id} ({task.why})" for task in left_out]
        lines.append(
            f"Left out: {', '.join(named)}{' and ' if named and more else ''}{f'{more:,} more' if more else ''}."
        )
    if source.away:
        away = [task for task in source.tasks if _is_away(task)][:_NAMED]
        shown = ", ".join(f"{task.task.task_id} ({task.why})" for task in away)
        others = f" and {source.away - len(away):,} more" if source.away > len(away) else ""
        names = source.job_id, source.source_id
        dashes = ("--",) if any(name.startswith("-") for name in names) else ()  # otherwise it would be an option
        forget = f"lowmark forget {shlex.join((*_options(caller), *dashes, *names))} QUERY"
        lines.append(f"Away: {shown}{others}.")
        if source.expected > 1:
            lines.append(
                f"Hint: if one is gone for good, run `{forget}`, or restart the others with a smaller job_queries."
            )
    if source.missing:
        lines.append(
            f"Hint: the low watermark stays until {source.expected} queries have begun, because one of those that "
            f"run says job_queries={source.expected}; restart it with a smaller number if there are fewer."
        )
    if source.returned_late:
        lines.append(f"Times a task came in below the low watermark: {source.returned_late}.")
    return "\n".join(map(printable, lines))


def _options(caller: Caller) -> list[str]:
    """The options of a command that reaches the coordinator as this caller does."""
    options = {
        "--coordinator": caller.address,
        "--tls-ca": caller.tls_ca,
        "--token-file": caller.token_file,
        "--tls-cert": caller.tls_cert,
        "--tls-key": caller.tls_key,
    }
    return [part for option, value in options.items() if value is not None for part in (option, str(value))]


def _group_in_words(group: GroupStatus) -> str:
    free = [str(member.task) for member in group.members if not member.throttled]
    waiting = [member for member in group.members if member.waiting]
    lines = [f"Group {group.group}: the cap is {group.cap}.", f"Why: {group.why}"]
    lines += [f"Waiting: {member.task}: {member.why}" for member in waiting[:_NAMED]]
    if len(waiting) > _NAMED:
        lines.append(f"Waiting: {len(waiting) - _NAMED:,} more")
    if free:
        lines.append(f"Not throttled, they only take part in the minimum: {some_of(free, _NAMED)}.")
    return "\n".join(map(printable, lines))


def _source_table(source: SourceStatus, now_us: int) -> Sheet:
    rows, grouped = [], any(task.group is not None for task in source.tasks)
    for task in sorted(source.tasks, key=lambda task: need(task.state, task.low_watermark_us)):
        low_us = task.low_watermark_us
        at, behind = format_time_us(low_us).removesuffix(" UTC"), ago(low_us, now_us)
        state = "away" if _is_away(task) else task.state.value
        group = (task.group or "",) if grouped else ()
        rows.append((task.task.task_id, state, at, behind, *group, task.why))
    return Sheet(
        ("task", "state", "low watermark (UTC)", "behind", *(("group",) if grouped else ()), "why"),
        rows,
        title=f"{source.source_id} of {source.job_id}: {format_time_us(source.low_watermark_us)}, {source.why}",
        whole=("low watermark (UTC)", "behind"),
        right=("behind",),
        left_out=source.tasks_not_shown,
    )


def _is_away(task: TaskStatus) -> bool:
    """Whether the task is absent and waited for."""
    return task.away_since_us is not None and task.state is not SplitState.FINISHED


def _group_table(group: GroupStatus) -> Sheet:
    return Sheet(
        ("task", "state", "low watermark", "cap", "obeys the cap", "why"),
        [
            (
                str(member.task),
                member.state.value,
                format_time_us(member.low_us),
                str(member.cap),
                "yes" if member.throttled else "no",
                member.why,
            )
            for member in group.members
        ],
        title=f"group {group.group}: cap {group.cap}, {group.why}",
        whole=("low watermark", "cap"),
        left_out=group.members_not_shown,
    )
