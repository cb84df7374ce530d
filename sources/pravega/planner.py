"""Says how far segments can be read, and where events and times begin in them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf

import numpy as np
from lowmark.sources.api import EARLIEST_US, SplitEnd
from lowmark.sources.kit.asking_planner import AskingPlanner
from lowmark.watermark.printable import counted

from .chunks import Chunk, chunks
from .client import OPENED_TOGETHER, PravegaClient, SegmentState, Silent
from .errors import PravegaStreamMissing, PravegaUnavailable
from .event_time import NO_TIME, EventTime
from .events import payloads
from .index import LEAST_EVENT_BYTES, Integers, SegmentIndex
from .jvm import leave_java
from .marks import MarkWindow
from .notes import SegmentNotes, notes_of
from .retention import Retention
from .segment import PravegaLosses, PravegaSplit, segment_of, split_of
from .segment_bytes import SegmentBytes, Truncated
from .settings import PravegaSettings

log = logging.getLogger("lowmark")

PATIENCE_SECONDS = 2.0
"""How long one plan waits for segment stores; the next plan asks again."""
EXACT_BYTES = 64 << 10
"""Up to this size, bytes are read to count their events instead of estimating the number."""
LAST_MARK_SECONDS = 30.0
"""How long after a stream was sealed its last mark may come: some of Pravega's intervals."""
READERS = 4


class PravegaPlanner(AskingPlanner[PravegaSplit]):
    """Plans segments: a position is a byte between two events.

    A sealed segment is finished only when all of its successors are among the planned splits: until they are
    found, the segment holds the watermark at which they will begin.

    Attributes:
        metrics: counts `lost_bytes`, `data_losses` and `unanswered_segments`, and shows `indexed_events`, the number of
            events whose positions and times the planner has read.

    Args:
        event_time: how to find the time of an event; None: segments are searched by noted times, or not by time.
        noted_unit_us: unit of the times that writers note, so that segments are read only up to the newest of them;
            None: noted times are not read.
        retention: is told the read positions; None: no retention.
        subscribes: whether a stream of that name shall still be read.
        client: makes the client, on first use.
    """

    def __init__(
        self,
        settings: PravegaSettings,
        *,
        event_time: EventTime | None,
        noted_unit_us: int | None = None,
        go_on: bool,
        retention: Retention | None = None,
        subscribes: Callable[[str], bool] = lambda _: True,
        client: Callable[[], PravegaClient],
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(f"Pravega at {settings.place}", "segments", now_seconds)
        self._settings, self._client = settings, client
        self._event_time, self._noted_unit_us = event_time, noted_unit_us
        self._notes: dict[str, SegmentNotes] = {}
        self._windows: dict[str, MarkWindow] = {}  # by stream
        self._standing: dict[str, PravegaSplit] = {}  # splits at their present starts
        self._open_seconds: dict[str, float] = {}  # when a segment with notes was last seen open
        self._silence_told = False
        self._retention, self._subscribes = retention, subscribes
        self._loss = PravegaLosses(go_on=go_on, metrics=self.metrics)
        self._indexes: dict[str, SegmentIndex] = {}
        self._opened: dict[str, SegmentBytes] = {}  # open segments, each at the end of its index
        self._ends: dict[str, SplitEnd] = {}
        self._heads: dict[str, int] = {}
        self._successors: dict[str, frozenset[str]] = {}  # for sealed segments
        self.metrics.gauge("indexed_events", lambda: sum(index.rows for index in self._indexes.values()))

    def latest(self, splits: Sequence[PravegaSplit]) -> Mapping[str, SplitEnd]:
        """Say where each segment ends now.

        Segments without an answer are missing; after `give_up_seconds` without an answer there is an error. Raises
        PravegaDataLost, PravegaStreamMissing, PravegaAccessDenied, PravegaUnavailable.
        """
        dropped = self._drop_unsubscribed(splits, lambda split: self._subscribes(split.stream), "from start= on")
        return {**dropped, **self._latest([split for split in splits if split.split_id not in dropped])}

    def _latest(self, splits: Sequence[PravegaSplit]) -> Mapping[str, SplitEnd]:
        if not splits:
            return {}
        if self._retention is not None:
            self._retention.keep(splits)
        asked = {split.split_id: (split.stream, split.segment) for split in splits}
        try:
            states = self._client().states(asked.values(), patience_seconds=PATIENCE_SECONDS)
        except Silent as silent:
            self._wait(asked, str(silent))
            return {}
        unheard = [name for name, key in asked.items() if key not in states]
        self._unanswered.see(
            len(unheard), len(asked), "".join(unheard[:1]), f"nothing within {PATIENCE_SECONDS:g} seconds"
        )
        self._note(splits)
        names = {split.split_id for split in splits}
        answered = [split for split in splits if asked[split.split_id] in states]
        self._look_up_successors(answered, states)
        ends = {split.split_id: self._end(split, states[asked[split.split_id]], names) for split in answered}
        self._ends |= ends
        self._index_small(answered)
        self._forget(splits)
        return {split.split_id: self._sized(split, ends[split.split_id]) for split in answered}

    def after_rows(self, split: PravegaSplit, rows: int, end: SplitEnd) -> int:
        index = self._index(split)
        start = self._from(split)
        index.extend(start)
        wanted = index.rows_before(start) + max(1, rows)
        index.extend(end.position, rows=wanted)
        found = min(index.after_rows(wanted), end.position)
        # If bytes were truncated just now, nothing was indexed; the task goes on after those bytes.
        return found if found > split.start else end.position

    def rows_before(self, split: PravegaSplit, position: int) -> int:
        start = self._from(split)
        if position <= start:
            return 0
        index = self._index(split)
        if position - index.end <= EXACT_BYTES and position <= self._known_end(split):
            index.extend(position)
        elif index.end < start:
            return -(-(position - start) // LEAST_EVENT_BYTES)
        return index.rows_before(position) - index.rows_before(start)

    def find_time(self, splits: Sequence[PravegaSplit], time_us: int) -> Mapping[str, int | None] | None:
        """Find the first event with that time or a later time; bytes without an index are read, once.

        A split that was not in the last `latest` gets no answer.
        """
        if self._event_time is None and self._noted_unit_us is None:
            return None
        known = [split for split in splits if split.split_id in self._ends]
        if self._event_time is None:
            return {split.split_id: self._noted_at(split, time_us) for split in known}
        self._index_all(known)
        return {split.split_id: self._index(split).find_time(time_us) for split in known}

    def claim_us(self, split: PravegaSplit, position: int, time_us: int) -> int:
        """Claim that time, or the noted time if it is earlier."""
        if self._noted_unit_us is None or self._event_time is None:
            return time_us
        noted_us = self._noted_us(split, position)
        return EARLIEST_US if noted_us is None else min(time_us, noted_us)

    def passed_us(self, split: PravegaSplit) -> int | None:
        """Return the time noted at its start, if the noted time is the source's event time."""
        return self._noted_us(split, split.start) if self._event_time is None else None

    def _noted_us(self, split: PravegaSplit, position: int) -> int | None:
        """Return the time of the mark at or before a position."""
        notes = self._notes.get(split.split_id)
        noted_us = NO_TIME if notes is None else int(notes.at_us(np.array([position]))[0])
        return noted_us if noted_us > EARLIEST_US else None

    def cut(self, stops: Sequence[tuple[PravegaSplit, int]]) -> Sequence[tuple[PravegaSplit, PravegaSplit]]:
        """Cut splits at positions; both parts carry the place of their first needed mark, and the counted losses."""
        parts = []
        for split, stop in stops:
            told = replace(split, lost_before=self._loss.told_to(split.split_id, split.lost_before))
            read = replace(told, stop=stop, noted_from=self._noted_from(split, split.start))
            parts.append((read, replace(told, start=stop, noted_from=self._noted_from(split, stop))))
        return parts

    def _noted_from(self, split: PravegaSplit, position: int) -> int:
        window = self._windows.get(split.stream)
        return split.noted_from if window is None else window.floor_place(split, position)

    def notify_checkpoint_complete(self, splits: Sequence[PravegaSplit]) -> None:
        if self._retention is not None:
            self._retention.release(splits)

    def close(self) -> None:
        if self._retention is not None:
            self._retention.close()

    def _end(self, split: PravegaSplit, state: SegmentState | None, names: set[str]) -> SplitEnd:
        start = split.start
        if split.stop is not None and start >= split.stop:
            return SplitEnd(start, rows=0, finished=True)
        if state is None:
            there = self._client().exists(split.stream)
            if not there or split.split_id not in self._successors:  # a truncated segment has successors
                gone = f"it was deleted{' and made anew' if there else ''}"
                when = f"{gone}; {split.split_id} was read up to byte {start}"
                raise PravegaStreamMissing(self._settings.scope, split.stream, self._settings.place, when)
            self._loss.found(split, start, None)
            # A split with a stop ends there, also if the bytes before the stop are gone.
            return SplitEnd(start, rows=0, finished=split.stop is not None or self._over(split, names))
        if state.tail < start:
            self._loss.found(split, start, None, state.tail)
            # Positions do not go back. The segment may grow again, but the bytes up to a stop count as lost.
            return SplitEnd(start, rows=0, finished=split.stop is not None)
        self._heads[split.split_id] = state.head
        if state.head > start:
            self._loss.found(split, start, state.head)
        notes = self._notes.get(split.split_id)
        tail = state.tail if notes is None or self._has_last_mark(split, state) else min(state.tail, notes.known)
        stop = max(start, tail if split.stop is None else min(tail, split.stop))
        over = stop == split.stop or (state.sealed and stop == state.tail and self._over(split, names))
        return SplitEnd(stop, finished=over)

    def _sized(self, split: PravegaSplit, end: SplitEnd) -> SplitEnd:
        rows = self.rows_before(replace(split, stop=None), end.position)
        return replace(end, rows=rows, size_bytes=max(0, end.position - self._from(split)))

    def _note(self, splits: Sequence[PravegaSplit]) -> None:
        """Read how far writers have noted the time."""
        self._standing |= {split.split_id: split for split in splits}
        if self._noted_unit_us is None:
            return
        for stream in sorted({split.stream for split in splits}):
            window = self._windows.setdefault(stream, MarkWindow(self._client(), stream))
            standing = [split for split in self._standing.values() if split.stream == stream]
            before = window.changes
            window.read_on(standing)
            for split in standing:
                if window.changes != before or split.split_id not in self._notes:
                    self._notes[split.split_id] = notes_of(window.marks, split, self._noted_unit_us)
        if not self._silence_told and not any(notes.known for notes in self._notes.values()):
            self._silence_told = True
            log.warning(
                "Pravega at %s: no writer of %s has noted a time (noteTime) yet, so nothing is read. Hint: let writers "
                "note it, or read without noted_time.",
                self._settings.place, ", ".join(sorted({split.stream for split in splits})[:10]),
            )  # fmt: skip

    def _noted_at(self, split: PravegaSplit, time_us: int) -> int | None:
        at = self._notes[split.split_id].find_time(time_us) if split.split_id in self._notes else None
        return at if at is not None and at < self._known_end(split) else None

    def _has_last_mark(self, split: PravegaSplit, state: SegmentState) -> bool:
        """Whether no mark follows, because the stream was sealed; events behind the last mark would never be read."""
        now = self._now_seconds()
        if not state.sealed:
            self._open_seconds[split.split_id] = now
        is_last = state.sealed and self._successors.get(split.split_id) == frozenset()
        return is_last and now >= self._open_seconds.get(split.split_id, -inf) + LAST_MARK_SECONDS

    def _over(self, split: PravegaSplit, names: set[str]) -> bool:
        successors = self._successors.get(split.split_id)
        return successors is not None and successors <= names

    def _look_up_successors(
        self, splits: Sequence[PravegaSplit], states: Mapping[tuple[str, int], SegmentState | None]
    ) -> None:
        """Ask once for the successors of sealed or truncated segments, for all segments of a stream at once.

        While a stream is scaled, a segment is sealed before its successors are known, and is asked about again.
        """
        asked: dict[str, list[int]] = {}
        for split in splits:
            state = states[split.stream, split.segment]
            if split.split_id not in self._successors and (state is None or state.sealed):
                asked.setdefault(split.stream, []).append(split.segment)
        for stream, segments in asked.items():
            with suppress(PravegaStreamMissing):  # `_end` reports it, with the split's position
                answers = self._client().successors(stream, segments)
                scales = not all(answers.values()) and bool(self._client().open_segments(stream))
                for segment, found in answers.items():
                    if found or not scales:
                        after = frozenset(split_of(stream, each).split_id for each in found)
                        self._successors[split_of(stream, segment).split_id] = after

    def _wait(self, asked: Collection[str], cause: str) -> None:
        segments = len(asked)
        self._unanswered.see(segments, segments, next(iter(asked)), cause)
        waited = self._unanswered.all_silent_seconds
        if waited >= self._settings.give_up_seconds:
            action = f"look up where {counted(segments, 'segment', ('ends', 'end'))}"
            raise PravegaUnavailable(self._settings.place, action, waited, cause)

    def _forget(self, splits: Sequence[PravegaSplit]) -> None:
        """Forget segments without questions for too long."""
        for name in self._long_not_asked(splits):
            kept = (self._indexes, self._ends, self._heads, self._notes, self._successors, self._standing)
            for each in (*kept, self._open_seconds):
                each.pop(name, None)
            self._client().forget(*segment_of(name))
        if len(self._windows) > 1:
            streams = {split.stream for split in self._standing.values()}
            self._windows = {stream: window for stream, window in self._windows.items() if stream in streams}

    def _from(self, split: PravegaSplit) -> int:
        """The position of its first present event: after its start if the start was truncated."""
        return max(split.start, self._heads.get(split.split_id, 0))

    def _known_end(self, split: PravegaSplit) -> int:
        end = self._ends.get(split.split_id)
        return split.start if end is None else end.position

    def _index(self, split: PravegaSplit) -> SegmentIndex:
        start, index = self._from(split), self._indexes.get(split.split_id)
        gone = index is not None and index.end < self._heads.get(split.split_id, 0)  # the next bytes to index
        if index is None or gone or start < index.begin or (self._event_time is None and start > index.end):
            index = self._indexes[split.split_id] = SegmentIndex(start, partial(self._events, split), self._times_us)
        index.forget(start)
        return index

    def _events(self, split: PravegaSplit, start: int, stop: int) -> Iterator[Chunk]:
        try:
            yield from chunks(self._client(), split, start, stop, opened=self._opened.pop(split.split_id, None))
        except Truncated:
            state = self._client().segment_state(split.stream, split.segment)
            self._indexes.pop(split.split_id, None)  # the next plan begins after the truncated bytes
            # An index is ahead of the unread bytes, and a block of it may begin before them.
            unread = self._standing.get(split.split_id, split)
            if state is None or state.head > unread.start:
                self._loss.found(unread, unread.start, None if state is None else state.head)

    def _index_small(self, splits: Sequence[PravegaSplit]) -> None:
        """Index the segments with few unindexed bytes. They are opened together."""
        behind = [split for split in splits if 0 < self._known_end(split) - self._index(split).end <= EXACT_BYTES]
        for begin in range(0, len(behind), OPENED_TOGETHER):
            some = behind[begin : begin + OPENED_TOGETHER]
            try:
                for split in some:
                    with suppress(Truncated):  # reported when the segment is read
                        at = self._index(split).end
                        self._opened[split.split_id] = self._client().open_ahead(split.stream, split.segment, at)
                for split in some:
                    self._index(split).extend(self._known_end(split))
            finally:
                for opened in self._opened.values():
                    opened.close()
                self._opened.clear()

    def _index_all(self, splits: Sequence[PravegaSplit]) -> None:
        """Read the unindexed bytes of some splits, a few splits at a time."""
        behind = [split for split in splits if self._index(split).end < self._known_end(split)]
        if len(behind) == 1:
            self._index(behind[0]).extend(self._known_end(behind[0]))
        elif behind:
            with ThreadPoolExecutor(min(READERS, len(behind))) as pool:
                list(pool.map(self._index_one, behind))

    def _index_one(self, split: PravegaSplit) -> None:
        try:
            self._index(split).extend(self._known_end(split))
        finally:
            leave_java()

    def _times_us(self, chunk: Chunk) -> Integers:
        if self._event_time is None:
            return np.full(len(chunk.ends), NO_TIME)
        return self._event_time.times_us(payloads(chunk.data, chunk.ends))
