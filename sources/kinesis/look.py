"""A planner's knowledge of one shard: its next records, its present end, and the number of rows between.

Kinesis cannot say how many records a shard has or which record is the last. So a few records after the split's place
are looked at. If these records reach the end, the rest is known exactly; this holds while reading keeps up with the
stream. Otherwise a second look, at the records that arrived last, finds an end, and the rows between are estimated from
the density in both looks. The estimate only decides how far a batch goes: the ends of a batch are places in the shard.

Looking costs reads, and a shard allows five reads a second for all its readers. So the planner looks at most every
`poll_seconds`, with one read while there are no new records, and some hundred records or 2 MB ahead.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, dropwhile, islice
from typing import Any

from .client import Expired, KinesisClient, Page, arrived_ms, sequence_of
from .columns import rows_in
from .errors import KinesisUnavailable
from .split import KinesisSplit, after, at, at_time, time_ms_of

AHEAD_RECORDS = 500
"""How many records the planner looks ahead."""
AHEAD_BYTES = 2 << 20
"""After so many bytes ahead a look ends, because a shard gives no more in a second."""
PAGE_RECORDS = 10_000
MOST_KEPT = 1_000
EXPIRIES = 5
EMPTY_PAGES = 100
"""How many empty answers are taken before the search stops: the service sometimes sends none although more follow."""
RECENT_MS = 1_000
"""The span of last arrivals in which an end is searched, if the records ahead do not reach the end."""
LONG_MS = 10_000
"""A look reads on if the newest record is at most this far ahead of the known end; otherwise the look searches."""
TAIL_PAGES = 20
MOST_ROWS = 2**40


@dataclass(frozen=True, slots=True)
class Seen:
    """A record that was looked at."""

    sequence: int
    time_ms: int
    rows: int
    size_bytes: int
    end: int = 0  # the position after the record


class IteratorsExpired(KinesisUnavailable):
    """Iterators of a shard had expired as soon as they were made."""


@dataclass(slots=True)
class Reading:
    """Reads on from a place in a shard, page after page, with a new iterator after an expired one."""

    split: KinesisSplit
    place: str
    patience_seconds: float | None = None  # how long one answer may take; None: the time of the settings
    _iterator: str | None = None

    def page(self, client: KinesisClient, limit: int) -> Page:
        """Return the next page; after the end of a closed shard its end again. Raises as `KinesisClient`."""
        split, patience = self.split, self.patience_seconds
        for _ in range(EXPIRIES):
            try:
                if self._iterator is None:
                    self._iterator = client.iterator(split.stream, split.shard, self.place, patience_seconds=patience)
                page = client.records(split.stream, split.shard, self._iterator, limit, patience_seconds=patience)
            except Expired:
                self._iterator = None
                continue
            self._iterator = page.iterator
            if page.records:
                self.place = after(sequence_of(page.records[-1]))
            return page
        raise IteratorsExpired(
            client.settings.place, f"read {split.split_id}", 0.0, f"{EXPIRIES} iterators in a row had expired at once"
        )


@dataclass(slots=True)
class ShardLook:
    """The knowledge of one shard. For one thread at a time."""

    base: str  # the place where the records ahead begin
    start: int
    ahead: list[Seen] = field(default_factory=list)
    closed: bool = False  # whether they end at the final end of a closed shard
    children: frozenset[str] = frozenset()  # what the last page of a closed shard names as its successors
    at_tip: bool = False  # whether they reach the present end of the shard
    tip: Seen | None = None  # the last known record, if they do not
    behind_ms: int = 0  # how far their end is behind the newest record
    looked_ms: int = 0  # when it was last looked, by the service's clock
    looked_seconds: float | None = None  # the same by the own clock; None: a look is due
    tail_seconds: float | None = None  # when the newest record was last looked for, by the own clock
    dense: float = 0.0  # largest number of rows in a millisecond that a look has found
    dense_bytes: float = 0.0
    highest_ms: int = 0
    answers: int = 0  # number of pages read, ahead or at the end
    _record_bytes: float = 0.0  # mean size of the records of the last page; 0: unknown
    _reading: Reading | None = None  # reads on after the records ahead
    _read: list[Seen] = field(default_factory=list)  # the records ahead, and some records before them
    _origin: str = ""  # the place where `_read` begins
    _origin_start: int = 0  # the position where `_read` begins

    def __post_init__(self) -> None:
        self._origin, self._origin_start = self.base, self.start

    def align(self, split: KinesisSplit) -> None:
        """Begin where a split goes on; forget the records before. A step forward makes a new look due."""
        if split.cursor == self.base:
            if split.start != self.start:
                self.start = split.start
                self._renumber()
            return
        kept = self._from(split.cursor)
        if self.tip is not None and not _is_before(split.cursor, self.tip.sequence):
            self.tip = None
        self.base, self.start = split.cursor, split.start
        if kept is None:
            self.ahead, self.closed, self.at_tip, self._reading = [], False, False, None
            self._read, self._origin, self._origin_start = [], split.cursor, split.start
            self.looked_seconds = None
            return
        self.ahead = kept
        if not self.at_tip or not kept:
            self.looked_seconds = None
        self._renumber()

    def _from(self, cursor: str) -> list[Seen] | None:
        """The records from a place on, None if the place was not looked at. A batch planned again begins earlier."""
        if cursor == self._origin:
            return list(self._read)
        kind, _, number = cursor.partition(" ")
        if kind not in {"AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"}:
            return None
        place = bisect_left(self._read, int(number), key=_sequence)
        if place == len(self._read) or self._read[place].sequence != int(number):
            return None
        place += kind == "AFTER_SEQUENCE_NUMBER"
        if place > MOST_KEPT:
            self._origin_start = max(seen.time_ms for seen in self._read[:place]) + 1
            self._read, place, self._origin = self._read[place:], 0, cursor
        return self._read[place:]

    def _renumber(self) -> None:
        position, ahead = self.start, list[Seen]()
        for seen in self.ahead:
            position = max(position, seen.time_ms + 1, self.start + 1)
            ahead.append(replace(seen, end=position))
        self.ahead = ahead
        if self.tip is not None:
            self.tip = replace(self.tip, end=max(position + 1, self.tip.time_ms + 1))

    def refresh(
        self, client: KinesisClient, split: KinesisSplit, *, now_seconds: Callable[[], float], poll_seconds: float,
        patience_seconds: float,
    ) -> None:  # fmt: skip
        """Look, if a look is due."""
        now = now_seconds()
        if self.looked_seconds is not None and (self.closed or now < self.looked_seconds + poll_seconds):
            return
        self._read_on(client, split, patience_seconds)
        if not self.at_tip and (self.tail_seconds is None or now >= self.tail_seconds + poll_seconds):
            self._look_at_tail(client, split, patience_seconds)
            self.tail_seconds = now
        self.looked_seconds = now

    def _read_on(self, client: KinesisClient, split: KinesisSplit, patience_seconds: float) -> None:
        """Look further ahead, until `_is_far`. Do nothing for a shard that is not read and has as many ahead."""
        if self._is_far():
            return
        self.at_tip = False
        for _ in range(EMPTY_PAGES):
            limit = self._fitting(AHEAD_RECORDS - len(self.ahead))
            if self._reading is None:
                self._reading = Reading(split, after(self.ahead[-1].sequence) if self.ahead else self.base)
            self._reading.patience_seconds = patience_seconds
            page = self._heard(self._reading.page(client, limit))
            found = list(map(_seen, page.records if self.ahead else from_time(split, page.records)))
            # Kept at once, because the next page may fail, and this page is not read again.
            self.ahead += found
            self._read += found
            self.behind_ms = page.behind_ms
            self.closed, self.children = page.iterator is None, page.children
            # A full page may be followed by records of its last millisecond.
            self.at_tip = self.closed or (page.behind_ms == 0 and len(page.records) < limit)
            self._renumber()
            if self.at_tip or self._is_far():
                break
        self.looked_ms = client.now_ms()
        if self.at_tip or (self.tip is not None and self.ahead and self.ahead[-1].sequence >= self.tip.sequence):
            self.tip = None
        self._renumber()
        self._note(self.ahead)

    def _is_far(self) -> bool:
        return len(self.ahead) >= AHEAD_RECORDS or sum(seen.size_bytes for seen in self.ahead) >= AHEAD_BYTES

    def _heard(self, page: Page) -> Page:
        self.answers += 1
        if page.records:
            self._record_bytes = sum(len(record["Data"]) for record in page.records) / len(page.records)
        return page

    def _fitting(self, records: int) -> int:
        """As many records as one answer can have in about `AHEAD_BYTES`, because the pace pauses after larger ones."""
        return max(1, min(records, int(AHEAD_BYTES / max(1.0, self._record_bytes))))

    def _look_at_tail(self, client: KinesisClient, split: KinesisSplit, patience_seconds: float) -> None:
        """Find the newest record, or a record near it: read on after the known last record, or search by time."""

        def read(place: str) -> tuple[Page, Reading]:
            reading = Reading(split, place, patience_seconds)
            return self._some(client, reading, AHEAD_RECORDS), reading

        tail = None if self.tip is None else read(after(self.tip.sequence))
        if tail is None or tail[0].behind_ms > LONG_MS:
            tail = self._search_newest(read, client.now_ms())
        newest, reading = tail
        found = list(map(_seen, newest.records))
        for _ in range(TAIL_PAGES):
            if newest.iterator is None or newest.behind_ms == 0:
                break
            newest = self._some(client, reading, PAGE_RECORDS)
            found += map(_seen, newest.records)
        self._note(found)
        known = max((seen.sequence for seen in (self.tip, *self.ahead[-1:]) if seen is not None), default=-1)
        if found and found[-1].sequence > known:
            self.tip = found[-1]
            if self.ahead:
                self.behind_ms = max(self.behind_ms, self.tip.time_ms - self.ahead[-1].time_ms)
            self._renumber()

    @staticmethod
    def _search_newest(read: Callable[[str], tuple[Page, Reading]], now_ms: int) -> tuple[Page, Reading]:
        """Return the records that arrived last, or the first of them, by a search for the time of the last arrival.

        Without the search, a shard that was busy until an hour ago would be read from an hour ago on.
        """
        begin_ms, empty_ms = max(0, now_ms - RECENT_MS), now_ms
        newest, reading = read(at_time(begin_ms))
        while not newest.records and begin_ms > 0:
            begin_ms, empty_ms = max(0, now_ms - 4 * (now_ms - begin_ms)), begin_ms
            newest, reading = read(at_time(begin_ms))
        while newest.records and newest.behind_ms > 0 and empty_ms - begin_ms > RECENT_MS:
            middle_ms = (begin_ms + empty_ms) // 2
            later, later_reading = read(at_time(middle_ms))
            if later.records:
                newest, reading, begin_ms = later, later_reading, middle_ms
            else:
                empty_ms = middle_ms
        return newest, reading

    def _some(self, client: KinesisClient, reading: Reading, limit: int) -> Page:
        """Read until a record or the end comes, because the service sometimes sends empty answers."""
        page = self._heard(reading.page(client, self._fitting(limit)))
        for _ in range(EMPTY_PAGES):
            if page.records or page.iterator is None or page.behind_ms == 0:
                break
            page = self._heard(reading.page(client, self._fitting(limit)))
        return page

    def _note(self, seen: Sequence[Seen]) -> None:
        if not seen:
            return
        self.highest_ms = max(self.highest_ms, *(each.time_ms for each in seen))
        span_ms = max(1, seen[-1].time_ms - seen[0].time_ms + 1)
        self.dense = max(sum(each.rows for each in seen) / span_ms, self.dense / 2)
        self.dense_bytes = max(sum(each.size_bytes for each in seen) / span_ms, self.dense_bytes / 2)

    @property
    def end(self) -> int:
        """The position after the last known record."""
        if self.tip is not None:
            return self.tip.end
        return self.ahead[-1].end if self.ahead else self.start

    def rows_before(self, position: int) -> int:
        """The number of rows before a position: counted for records that were looked at, otherwise estimated."""
        return self._count(position, lambda seen: seen.rows, self.dense)

    def bytes_before(self, position: int) -> int:
        return self._count(position, lambda seen: seen.size_bytes, self.dense_bytes)

    def _count(self, position: int, of: Callable[[Seen], int], dense: float) -> int:
        counted = sum(of(seen) for seen in self.ahead if seen.end <= position)
        begin = self.ahead[-1].end if self.ahead else self.start
        if self.tip is None or position <= begin:
            return counted
        position = min(position, self.tip.end)
        span_ms = position - begin if self.ahead else min(position - begin, self.behind_ms + 1)
        return counted + min(MOST_ROWS, max(1, round(dense * span_ms)))

    def after_rows(self, rows: int, end: int) -> int:
        """The position after about `rows` rows: a step has all records before one position."""
        steps: dict[int, int] = {}
        counted = 0
        for seen in self.ahead:
            counted += seen.rows
            if seen.end <= end:
                steps[seen.end] = counted
        fits = [position for position, held in steps.items() if held <= rows]
        if not fits:
            return next(iter(steps), end)
        if len(fits) < len(steps) or self.tip is None or fits[-1] >= end:
            return fits[-1]
        return min(end, fits[-1] + (int((rows - counted) / self.dense) if self.dense else 0))

    def find_time(self, time_ms: int) -> int | None:
        """The position of the first record that arrived at a time or later, None if no such record is known.

        Returns the position after the previous record, so that a reader at the position has read everything earlier.
        Records that were not looked at are assumed to be earlier than the time.
        """
        if time_ms > max(self.highest_ms, self.start - 1):
            return None
        if time_ms <= self._origin_start:
            return time_ms
        position = self._origin_start
        read = islice(self._read, len(self._read) - len(self.ahead))
        # A record that is not read yet has a position after the start, also if it arrived late.
        for seen in chain(read, self.ahead):
            if seen.time_ms >= time_ms:
                return position
            position = max(position, seen.time_ms + 1, seen.end)
        return position if self.at_tip else time_ms

    def before_next(self, place: str) -> str:
        """The same place, named by the record that follows, if that record was looked at.

        Only this name shows later whether the record has expired: after an expired record the service goes on with the
        next record that is there. A time or "TRIM_HORIZON" is such a place as well.
        """
        if place == self.base and self.ahead:
            return at(self.ahead[0].sequence)
        kind, _, number = place.partition(" ")
        follows = bisect_right(self.ahead, int(number), key=_sequence) if kind == "AFTER_SEQUENCE_NUMBER" else None
        return place if follows is None or follows == len(self.ahead) else at(self.ahead[follows].sequence)

    def find_place(self, client: KinesisClient, split: KinesisSplit, stop: int) -> str | None:
        """Return the place at a position, None if no unread record lies before the position."""
        before = [seen for seen in self.ahead if seen.end <= stop]
        last = self.ahead[-1] if self.ahead else None
        if last is None and self.tip is None:
            return None
        if self.tip is not None and stop >= self.tip.end:
            return after(self.tip.sequence)
        if last is not None and (stop < last.end or self.tip is None):
            return after(before[-1].sequence) if before else None
        return self._search(client, split, stop)

    def _search(self, client: KinesisClient, split: KinesisSplit, stop: int) -> str:
        """Ask for the first record that arrived at a time or later."""
        assert self.tip is not None, "else it is among those ahead"
        last = self.ahead[-1].sequence if self.ahead else -1
        reading = Reading(split, at_time(max(0, stop - 1)))
        for _ in range(EMPTY_PAGES):
            page = reading.page(client, self._fitting(AHEAD_RECORDS))
            for record in page.records:
                sequence = sequence_of(record)
                if arrived_ms(record) >= stop:
                    # If times go back, the answer may be a record that was looked at or read already.
                    return at(sequence) if sequence > last else after(last)
                if sequence >= self.tip.sequence:
                    return after(sequence)
            if page.iterator is None or (page.behind_ms == 0 and not page.records):
                break
        return after(self.tip.sequence)


def _is_before(cursor: str, sequence: int) -> bool:
    """Whether a place lies before a record, as far as the place shows."""
    kind, _, number = cursor.partition(" ")
    if kind == "AT_SEQUENCE_NUMBER":
        return int(number) <= sequence
    return kind != "AFTER_SEQUENCE_NUMBER" or int(number) < sequence


def _sequence(seen: Seen) -> int:
    return seen.sequence


def _seen(record: dict[str, Any]) -> Seen:
    return Seen(sequence_of(record), arrived_ms(record), rows_in(record), len(record["Data"]))


def from_time(split: KinesisSplit, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop records before the split's cursor, because the service may begin a little before a time."""
    begin_ms = time_ms_of(split.cursor)
    return records if begin_ms is None else list(dropwhile(lambda record: arrived_ms(record) < begin_ms, records))
