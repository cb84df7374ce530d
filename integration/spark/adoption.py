"""Adopts a native query's checkpoint in place, and gives it back: the state stays, and no row is read again.

Spark continues from a checkpoint if the newest two entries of its offset log have as many lines as the query has
sources. A wrapped stream has one more source, its heartbeat, which stands behind the sources of its stream. So `adopt`
adds a line with a heartbeat's first offset to these entries, and `leave` removes the line. If sources behind the
heartbeat change their place by this, their folders in ``sources/`` move with them.

Before a change begins, ``lowmark/changes/<n>.json`` records the entries before and after the change, so the file is the
backup, too. Then a sentence on which no Spark starts replaces the newest entry, so that neither query can run on a half
changed checkpoint; the newest entry is written last. A crash leaves the old state, the new state, or the sentence; the
same command then continues the change, and `--undo` takes it back.

No file shows whether another process still runs the query: Spark keeps no lock, and an idle query writes nothing.
Queries of a given session are found; otherwise, a log that was written seconds ago counts as a running query.

One file, because a crash between any two steps must leave one of three states, which a reader checks step by step.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from lowmark.integration.errors import AdoptionRefused, CheckpointUnreadable, SessionUnfit, UnknownFormat
from lowmark.watermark.names import unfit_character
from lowmark.watermark.printable import printable

from .adoption_plan import AdoptionPlan
from .changes import Action, Change, Entry, keep_change, last_change
from .checkpoint import CHANGES
from .checkpoint_store import CheckpointStore, LocalStore, alone_in, batches, is_elsewhere, local_path, open_store
from .offset_log import COPY, OffsetEntry, ahead_of_clock, hint_for, next_watermark_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("lowmark")

Streams = str | Sequence[str] | Mapping[str, Sequence[int] | None]

QUIET_SECONDS = 20.0  # after so long without a write, a query counts as stopped even if the user does not say so

_FOLDER = re.compile(r"[0-9]{1,9}")
_CLOSED = "lowmark is changing this checkpoint"


@dataclass(frozen=True)
class Adoption:
    """The result of `adopt` or `leave`.

    Attributes:
        number: number of the change, whose backup is ``lowmark/changes/<number>.json``; None without a change.
        done: False for a dry run.
        why_not_yet: in a dry run, why the same command would be refused now.
        warning: a problem that a query on the checkpoint will have, with lowmark or without.
    """

    checkpoint: str
    change: Change
    number: int | None
    done: bool
    why_nothing: str | None = None
    why_not_yet: str | None = None
    warning: str | None = None

    def __str__(self) -> str:
        if self.why_nothing is not None:
            return f"nothing to do: {self.why_nothing}"
        change = self.change
        names = ", ".join(f'"{name}"' for name in change.streams)
        if self.done:
            verb, moved = "added" if change.adds else "removed", "moved"
        else:
            verb, moved = "would add" if change.adds else "would remove", "would move"
        lines = [f"{verb} the heartbeat of {names}, in offsets/{', offsets/'.join(e.name for e in change.entries)}"]
        lines += [f"{moved} sources/{one} to sources/{to}" for one, to in change.moves]
        if self.number is not None:
            back = "" if change.undoes is not None else "; --undo goes back to it"
            lines.append(f"backup: {CHANGES}/{self.number}.json in the checkpoint{back}")
        if self.why_not_yet is not None:
            lines.append(f"not yet: {self.why_not_yet}")
        if self.warning is not None:
            lines.append(f"mind: {self.warning}")
        return "\n".join(lines)


def adopt(
    checkpoint: str | os.PathLike[str],
    streams: Streams | None = None,
    *,
    spark: SparkSession | None = None,
    dry_run: bool = False,
    stopped: bool = False,
    undo: bool = False,
) -> Adoption:
    """Let a query with lowmark continue from a native query's checkpoint: the state stays, and no row is read again.

    Stop the query before. Afterwards it starts with `LowWatermarkService.wrap` in place of `withWatermark`, and
    otherwise unchanged. Its watermark does not go back: rows behind it stay late until the low watermark has passed it.

    Args:
        checkpoint: the query's `checkpointLocation`.
        streams: the name that the query's stream will have in `wrap`. For several sources: the names of as many streams
            in the order of the query, or name -> numbers of the stream's sources (those of the folders in
            ``sources/``), such as ``{"orders": [0], "payments": [1]}``.
        spark: a session, for a checkpoint on HDFS, S3 or ABFS. Its running queries are checked, too.
        dry_run: report what would be done, without a change.
        stopped: the query is known to have ended, so do not look for signs that it still runs.
        undo: take the last change back, finished or not, as long as no batch was planned since.

    Returns:
        The change that was made.

    Raises:
        CheckpointUnreadable: no readable checkpoint was found.
        AdoptionRefused: with the reason and the remedy.
        SessionUnfit: the session is a Spark Connect session.
    """
    found = _Checkpoint(checkpoint, "adopt", spark, dry_run=dry_run, stopped=stopped)
    with found.alone():
        return found.undo() if undo else found.run(_names(checkpoint, streams))


def leave(
    checkpoint: str | os.PathLike[str],
    *,
    spark: SparkSession | None = None,
    dry_run: bool = False,
    stopped: bool = False,
    undo: bool = False,
) -> Adoption:
    """Let a native query continue from a wrapped query's checkpoint: the state stays, and no row is read again.

    Arguments, results and errors are those of `adopt`.
    """
    found = _Checkpoint(checkpoint, "leave", spark, dry_run=dry_run, stopped=stopped)
    with found.alone():
        return found.undo() if undo else found.run(None)


def _names(checkpoint: object, streams: Streams | None) -> Mapping[str, Sequence[int] | None]:
    given: Mapping[str, Sequence[int] | None]
    if streams is None:
        given = {}
    elif isinstance(streams, str):
        given = {streams: None}
    elif isinstance(streams, Mapping):
        untyped: Mapping[str, object] = streams
        for name, numbers in untyped.items():
            are_listed = isinstance(numbers, Sequence) and all(isinstance(number, int) for number in numbers)
            if numbers is not None and not are_listed:
                why = f"the sources of {name} are {numbers!r}, and no list of numbers"
                raise AdoptionRefused(str(checkpoint), why, "pass a list of numbers, such as [0].")
        given = streams
    else:
        given = dict.fromkeys(streams)
        if len(given) != len(streams):
            raise AdoptionRefused(str(checkpoint), "a stream is named twice", "give each its own name.")
    if not given:
        hint = "pass --stream NAME (streams=NAME), the name that it will have in wrap()."
        raise AdoptionRefused(str(checkpoint), "it is not said what the stream is called", hint)
    for name in given:
        if not name or (unfit := unfit_character(name)) is not None:
            what = "is empty" if not name else f"holds {unfit}"
            raise AdoptionRefused(str(checkpoint), f"the name of a stream {what}", "pass a name of one line.")
    return given


class _Checkpoint:
    """One checkpoint, and one command on it."""

    def __init__(
        self,
        checkpoint: str | os.PathLike[str],
        action: Action,
        spark: SparkSession | None,
        *,
        dry_run: bool,
        stopped: bool,
    ) -> None:
        self._given, self._action, self._spark = os.fspath(checkpoint), action, spark
        self._dry_run, self._stopped = dry_run, stopped
        self._store = self._open()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Refuse while another command works on the checkpoint, because each would move what the other has moved."""
        with alone_in(self._store) as alone:
            if not alone:
                raise self._refused(
                    "another `lowmark adopt` or `lowmark leave` works on it", "wait until that one has ended."
                )
            yield

    def run(self, streams: Mapping[str, Sequence[int] | None] | None) -> Adoption:
        number, last = last_change(self._store, self._refused)
        if last is not None and not last.done and self._has_begun(number, last):
            return self._go_on(number, last)
        entries = self._read_entries()
        why_not_yet = self._check_stopped(last)
        change = AdoptionPlan(self._action, entries, self._folders(), self._refused).change(streams)
        if isinstance(change, str):
            return Adoption(self._store.root, Change(self._action, (), (), ()), None, done=False, why_nothing=change)
        warning = self._look_ahead(entries) if self._action == "adopt" else _repeat_left_out(change)
        return self._begin(number + 1, change, why_not_yet, warning)

    def undo(self) -> Adoption:
        number, last = last_change(self._store, self._refused)
        if last is None or last.action != self._action:
            raise self._nothing_to_undo(number, last)
        if last.undoes is not None:
            if last.done or not self._stands(number, last):
                raise self._nothing_to_undo(number, last)
            return self._begin(number, last)
        why_not_yet = self._check_stopped(last)
        if not self._stands(number, last):
            other = "leave" if self._action == "adopt" else "adopt"
            raise self._refused(
                f"a batch was planned since it was {'adopted' if self._action == 'adopt' else 'left'}",
                f"run `lowmark {other}`, which goes on from where it is now.",
            )
        back = Change(
            self._action,
            tuple(Entry(entry.name, entry.after, entry.before) for entry in last.entries),
            # The move after these may be half done; a move that did not happen is skipped.
            tuple((to, one) for one, to in reversed(last.moves[: last.moved + 1])),
            last.streams,
            undoes=number,
        )
        return self._begin(number + 1, back, why_not_yet)

    def _nothing_to_undo(self, number: int, last: Change | None) -> AdoptionRefused:
        if last is None:
            return self._refused(
                f"no {self._action} is to be undone: there was none",
                "neither adopt nor leave has changed this checkpoint.",
            )
        # Since the change, only a query of the kind that it was made for can have run.
        if not last.done:
            hint = (
                f"run `{last.command}` again, which ends what it began."
                if self._stands(number, last)
                else "`lowmark leave --dry-run` says of which kind it is now."
            )
        elif last.adds:
            hint = "it is of a query with lowmark now; `lowmark leave` takes the heartbeats out."
        else:
            hint = "it is of a query without lowmark now; `lowmark adopt` with --stream takes it over."
        return self._refused(
            f"no {self._action} is to be undone: the last change was `{last.command}` ({CHANGES}/{number}.json)", hint
        )

    def _open(self) -> CheckpointStore:
        if self._spark is not None:
            if not hasattr(self._spark, "_jsparkSession"):
                raise SessionUnfit(
                    f"{self._action} needs the session of a driver",
                    "a Spark Connect session",
                    "call it in a driver that reaches the checkpoint, such as a pyspark shell; a checkpoint on this "
                    "machine needs no session.",
                )
            store: CheckpointStore = open_store(self._spark, self._given)
        elif is_elsewhere(self._given):
            name = "'NAME', " if self._action == "adopt" else ""
            call = f"lowmark.{self._action}({self._given!r}, {name}spark=spark)"
            raise self._refused(
                "it is not on this machine, and its file system is reached through Spark",
                f"call {call} in a session that is set up for it, such as a pyspark shell.",
            )
        else:
            store = LocalStore(local_path(self._given))
        if not store.exists("offsets"):
            hint = "pass the folder given as checkpointLocation"
            if not store.exists(""):
                raise CheckpointUnreadable(self._given, "there is no such folder", f"{hint}.")
            raise CheckpointUnreadable(
                self._given,
                "it has no planned batch (no folder offsets)",
                f"{hint}; a checkpoint in which no batch was planned needs no `lowmark {self._action}`: a query of "
                "either kind can start on it.",
            )
        return store

    def _read_entries(self) -> dict[str, OffsetEntry]:
        """Return the entries that a restart reads: the newest entry and the entry before it."""
        entries = {}
        names = [str(batch) for batch in batches(self._store, "offsets")[:2]]
        if not names:
            raise CheckpointUnreadable(
                self._given,
                "no batch was planned yet (no file in offsets/)",
                "a native query and a wrapped query can both start on this checkpoint.",
            )
        for name in names:
            try:
                entry = OffsetEntry.parse(self._read(f"offsets/{name}"))
                entry.check()
            except UnknownFormat as unknown:
                hint = "use the lowmark that knows this Spark, or a copy of the checkpoint from before."
                raise self._refused(f"offsets/{name} {unknown}", hint_for(unknown, hint)) from unknown
            entries[name] = entry
        return entries

    def _read(self, path: str) -> str:
        """Return the text of one of Spark's files; empty if it does not exist."""
        try:
            return self._store.read(path) or ""
        except UnicodeDecodeError as damaged:
            raise self._refused(f"{path} is not UTF-8", COPY) from damaged

    def _stands(self, number: int, last: Change) -> bool:
        """Whether the entries are those of the last change, finished or not; otherwise a query went on from it.

        Raises `AdoptionRefused` if a query went on in the middle of the change.
        """
        now = {entry.name: self._read(f"offsets/{entry.name}") for entry in last.entries}
        newest, changed = batches(self._store, "offsets")[:2], [int(entry.name) for entry in last.entries]
        if newest[:1] == changed[:1]:
            if newest != changed:
                raise self._refused(
                    f"{CHANGES}/{number}.json changes {_offsets(changed)}, and the newest are {_offsets(newest)}",
                    "a restart reads the newest two, so both are changed; use a copy of the checkpoint from before.",
                )
            return all(
                # Empty: cut short on a file system that cannot replace a file in one step.
                now[entry.name] in {entry.before, entry.after, ""} or now[entry.name].startswith(_CLOSED)
                for entry in last.entries
            )
        if any(text.startswith(_CLOSED) for text in now.values()):
            raise self._refused(
                f"offsets/{newest[0]} was written while offsets/{changed[0]} was being changed, so a query runs on it",
                f"stop it, and put offsets/{changed[0]} back by hand: {CHANGES}/{number}.json has it as it was.",
            )
        return False

    def _has_begun(self, number: int, last: Change) -> bool:
        """Whether it was stopped in the middle; before its first step, a query may have been started again."""
        newest = last.entries[0]
        return self._stands(number, last) and self._read(f"offsets/{newest.name}") != newest.before

    def _check_stopped(self, last: Change | None) -> str | None:
        """Refuse if a query seems to run; a dry run returns the reason instead."""
        found = self._query_here()
        if found is None and not self._stopped:
            found = self._sign_of_a_query(last)
        if found is None:
            return None
        fact, hint = found
        if self._dry_run:
            return f"{fact}; {hint}"
        raise self._refused(fact, hint)

    def _query_here(self) -> tuple[str, str] | None:
        """Return a query of the session that runs on it, and the remedy; None without one."""
        if self._spark is not None:
            for query in self._spark.streams.active:
                root = query._jsq.streamingQuery().resolvedCheckpointRoot()
                # By the real path, because a checkpoint of this machine has other names by links.
                if os.path.realpath(open_store(self._spark, root).root) == os.path.realpath(self._store.root):
                    return f"query {query.name or query.id} runs on it", "stop it first."
        return None

    def _look_ahead(self, entries: Mapping[str, OffsetEntry]) -> str | None:
        """Warn of a watermark that a future timestamp has moved ahead of the clock, because it never goes back."""
        name, newest = next(iter(entries.items()))
        reached_ms = (newest.watermark_ms, next_watermark_ms(self._read(f"commits/{name}")))
        at_us = max((ms * 1_000 for ms in reached_ms if ms is not None), default=0)
        where = ahead_of_clock(at_us, now_us=time.time_ns() // 1_000)
        return where and (
            f"Spark's watermark in it {where}. It does not go back: Spark drops all rows of before, with lowmark, too. "
            f"Start with a new checkpoint; for Kafka, `lowmark offsets {shlex.quote(self._given)}` says where."
        )

    def _sign_of_a_query(self, last: Change | None) -> tuple[str, str] | None:
        """Return a sign that a query runs on it somewhere, and the remedy; None without a sign."""
        hint = "stop the query; if it has ended, say so: --stopped (stopped=True)."
        planned, committed = (batches(self._store, folder)[:1] for folder in ("offsets", "commits"))
        if planned > committed:  # committed may be newer: people remove a plan to run its batch again
            return f"batch {planned[0]} is planned and not committed, so a query may be running it", hint
        files = [f"commits/{batch}" for batch in committed]
        if last is None or [last.entries[0].name] != [str(batch) for batch in planned]:  # else the change wrote it
            files += [f"offsets/{batch}" for batch in planned]
        ages = [age for file in files if (age := self._store.age_seconds(file)) is not None]
        if ages and min(ages) < QUIET_SECONDS:
            return (
                f"its log was written {max(0, round(min(ages)))} seconds ago, so a query may still run on it",
                f"wait until it is quiet for {QUIET_SECONDS:g} seconds, or {hint}",
            )
        return None

    def _folders(self) -> frozenset[int]:
        """Numbers of the sources with files; a query that is refused at its start leaves an empty folder."""
        numbers = [name for name in self._store.names("sources") if _FOLDER.fullmatch(name)]
        return frozenset(int(name) for name in numbers if self._store.names(f"sources/{name}"))

    def _go_on(self, number: int, last: Change) -> Adoption:
        if last.action != self._action or last.undoes is not None:
            back = "" if last.undoes is not None else f", or `{last.command} --undo`"
            fact = f"a `{last.command}` was stopped in the middle of it"
            raise self._refused(fact, f"run `{last.command}` again{back}.")
        return self._begin(number, last)

    def _begin(
        self, number: int, change: Change, why_not_yet: str | None = None, warning: str | None = None
    ) -> Adoption:
        done = not self._dry_run
        if done:
            self._apply(number, change)
        return Adoption(self._store.root, change, number, done, why_not_yet=why_not_yet, warning=warning)

    def _apply(self, number: int, change: Change) -> None:
        """Do all steps of a change that are not done yet."""
        newest, *others = change.entries
        keep_change(self._store, number, change)
        self._store.write(f"offsets/{newest.name}", self._at_work(change))
        for moved, (one, to) in enumerate(change.moves[change.moved :], change.moved + 1):
            if self._store.names(f"sources/{one}"):  # else moved already, or of no source
                self._store.move(f"sources/{one}", f"sources/{to}")
            change = msgspec.structs.replace(change, moved=moved)
            keep_change(self._store, number, change)
        for entry in others:
            self._store.write(f"offsets/{entry.name}", entry.after)
        self._store.write(f"offsets/{newest.name}", newest.after)
        keep_change(self._store, number, msgspec.structs.replace(change, done=True))

    def _at_work(self, change: Change) -> str:
        return f'{_CLOSED} and was stopped; run "{change.command} CHECKPOINT" again'

    def _refused(self, fact: str, hint: str) -> AdoptionRefused:
        return AdoptionRefused(printable(self._given), fact, hint)


def _repeat_left_out(change: Change) -> str | None:
    """Say that `leave` took out more than heartbeats, because a query may use a source twice by itself."""
    before, after = (OffsetEntry.parse(text).sources for text in (change.entries[0].before, change.entries[0].after))
    if len(before) - len(after) == len(change.streams):
        return None
    return (
        "the line of a source that late_to read once more goes, too. If the query itself uses this source twice, Spark "
        "refuses it, and `lowmark leave --undo` brings the line back."
    )


def _offsets(numbers: Sequence[int]) -> str:
    return " and ".join(f"offsets/{number}" for number in numbers)
