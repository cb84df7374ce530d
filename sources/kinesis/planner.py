"""Says how far shards can be read and where a time begins in them, and fixes batches by sequence numbers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from lowmark.sources.api import SplitEnd
from lowmark.sources.kit.asking_planner import AskingPlanner
from lowmark.watermark import format_time_us
from lowmark.watermark.moment import first_ms_from

from .client import KinesisClient, PlaceRefused, ShardGone, parents_of
from .connections import KinesisSettings
from .errors import KinesisStreamMissing, KinesisStreamReplaced, KinesisUnavailable
from .look import ShardLook
from .split import KinesisLosses, KinesisSplit, split_id, stream_name

THREADS = 16
PATIENCE_SECONDS = 2.0
"""How long a shard is asked again while others wait; the next batch asks again."""
ANSWER_SECONDS = 5.0
"""How long an answer may take; the answers to a planner are small."""
HUNG_SECONDS = 3
"""How long to wait for a look without an answer: longer than questions to a throttled shard are repeated."""
MARGIN_MS = 2_000
"""How long after a time the time counts as over in a shard without later arrivals: the largest error of the service's
times."""
RETENTION_SECONDS = 300.0
LOOKED_MS = 3_600_000
"""How old the last look in an offset may be: after a restart only the offset shows that somebody has looked."""


@dataclass(slots=True)
class _ShardList:
    """The shards of a stream, listed once for all of its shards that have ended."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    by_id: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    children: dict[str, frozenset[str]] = field(default_factory=dict)  # of each parent

    def take(self, shards: Sequence[Mapping[str, Any]]) -> None:
        children: dict[str, set[str]] = {}
        for shard in shards:
            for parent in parents_of(shard):
                children.setdefault(parent, set()).add(str(shard["ShardId"]))
        self.children = {parent: frozenset(names) for parent, names in children.items()}
        self.by_id = {str(shard["ShardId"]): shard for shard in shards}


class KinesisPlanner(AskingPlanner[KinesisSplit]):
    """Plans shards. A position is an arrival time in milliseconds; see `split.py` and `look.py`.

    A shard that was closed (split or merged) is finished when it is read to its end and all its children are known,
    because otherwise the watermark could pass rows of its children.

    Attributes:
        metrics: counts `data_losses`, `unanswered_shards`, `throttled_requests`; shows `millis_behind_latest`.

    Args:
        named: whether streams are given by name: a missing one is an error even if losses are passed.
        searchable: whether rows have the searched time.
        disorder_us: how far arrival times may go back along a shard, microseconds: claims stay this far behind.
        subscribes: whether a stream of that name shall still be read.
    """

    def __init__(
        self,
        settings: KinesisSettings,
        *,
        go_on: bool,
        named: bool = True,
        searchable: bool = True,
        bounded: bool = False,
        poll_seconds: float = 1.0,
        disorder_us: int = 1_000_000,
        subscribes: Callable[[str], bool] = lambda _: True,
        client: KinesisClient | None = None,
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(f"Kinesis at {settings.place}", "shards", now_seconds)
        self._settings, self._named, self._searchable, self._bounded = settings, named, searchable, bounded
        self._poll_seconds = poll_seconds
        self._client = client if client is not None else KinesisClient(settings, answer_seconds=ANSWER_SECONDS)
        self._asking: dict[str, Future[None]] = {}  # looks that hang and are not waited for
        self._failures: dict[str, KinesisUnavailable] = {}  # why the last look at a shard that ended got no answer
        self._loss = KinesisLosses(go_on=go_on, metrics=self.metrics)
        self._disorder_us, self._subscribes = max(disorder_us, 1_000), subscribes
        self._looks: dict[str, ShardLook] = {}
        self._children: dict[str, frozenset[str]] = {}  # closed split -> its children
        self._lists: dict[str, _ShardList] = {}  # by stream, of the present question
        self._retention: dict[str, tuple[float, int]] = {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="lowmark-kinesis")
        self.metrics.gauge("throttled_requests", lambda: self._client.throttled)
        # A list, because a look that is not waited for may add a shard meanwhile.
        self.metrics.gauge(
            "millis_behind_latest", lambda: max((look.behind_ms for look in list(self._looks.values())), default=0)
        )

    def latest(self, splits: Sequence[KinesisSplit]) -> Mapping[str, SplitEnd]:
        """Return the present end of each shard, by the last look.

        A shard without an answer within two seconds, such as a throttled shard, is missing in the answer. If no shard
        answers, that is an error after the allowed time (`give_up_after`). Raises KinesisDataLost,
        KinesisStreamMissing, KinesisStreamReplaced, KinesisRefused, KinesisUnavailable.
        """
        ends = self._drop_unsubscribed(splits, lambda split: self._subscribes(stream_name(split.stream)))
        for split in splits:
            if split.stop is not None and split.start >= split.stop:
                ends[split.split_id] = SplitEnd(split.start, rows=0, finished=True)
        asked = [split for split in splits if split.split_id not in ends]
        failures = self._look_at(asked)
        self._check_failures(failures, len(asked))
        known = {split.split_id for split in splits}
        for name in self._long_not_asked(splits):
            for kept in (self._looks, self._children, self._failures):
                kept.pop(name, None)
        for split in asked:
            if split.split_id not in failures:
                ends[split.split_id] = self._end(split, self._looks[split.split_id], known)
        return ends

    def _look_at(self, splits: Sequence[KinesisSplit]) -> Mapping[str, KinesisUnavailable | None]:
        """Look at shards side by side; return why shards have not answered: None if the pace lets the look wait.

        A look that hangs delays only its own shard, which is asked again after the look has ended.
        """
        self._asking = {name: look for name, look in self._asking.items() if not look.done()}
        self._lists = {}
        looks = {
            split.split_id: self._asking.get(split.split_id) or self._threads.submit(self._look, split)
            for split in splits
        }
        self._wait_for({name: look for name, look in looks.items() if name not in self._asking})
        silent: dict[str, KinesisUnavailable | None] = {}
        for split in splits:
            name = split.split_id
            if name in self._asking:  # even if its thread ends now: the shard has no end in this plan
                hangs = KinesisUnavailable(self._settings.place, f"read {name}", HUNG_SECONDS, "no answer comes")
                is_due = self._client.pace.is_due_since(split.stream, split.shard, HUNG_SECONDS)
                silent[name] = self._failures.get(name) or (hangs if is_due else None)
                continue
            looks[name].result()
            if (failed := self._failures.get(name)) is not None:
                silent[name] = failed
        return silent

    def _wait_for(self, looks: Mapping[str, Future[None]]) -> None:
        """Wait until looks have ended, except looks without answers. A look in the queue is waiting, not silent."""
        quiet_seconds, answers = dict.fromkeys(looks, 0), {name: self._answers(name) for name in looks}
        left = dict(looks)
        while left:
            wait(left.values(), 1.0)
            for name, look in list(left.items()):
                now = self._answers(name)
                quiet_seconds[name] = quiet_seconds[name] + 1 if look.running() and now == answers[name] else 0
                answers[name] = now
                if look.done():
                    del left[name]
                elif quiet_seconds[name] >= HUNG_SECONDS or len(self._asking) >= THREADS:
                    self._asking[name] = left.pop(name)

    def _answers(self, name: str) -> int:
        look = self._looks.get(name)
        return 0 if look is None else look.answers

    def _look(self, split: KinesisSplit) -> None:
        """Look at one shard; keep why it did not answer."""
        try:
            self._try_look(split)
        except KinesisUnavailable as silent:
            self._failures[split.split_id] = silent
        else:
            self._failures.pop(split.split_id, None)

    def _try_look(self, split: KinesisSplit) -> None:
        with self._handling_gone(split):
            look = self._looks.get(split.split_id)
            if look is None:
                self._check_retention(split)
                look = self._looks[split.split_id] = ShardLook(split.cursor, split.start)
            look.align(split)
            self._refresh(look, split, min(PATIENCE_SECONDS, self._settings.give_up_seconds))
            if look.closed and not self._bounded and split.split_id not in self._children:
                self._find_children(split, look)
            if look.ahead or look.at_tip:
                self._loss.check_first(split, look.ahead[0].sequence if look.ahead else None)

    @contextmanager
    def _handling_gone(self, split: KinesisSplit) -> Iterator[None]:
        """Handle the errors of questions about a deleted shard or a stream that was made anew.

        If the loss is passed, the split has a new look, without records, afterwards.
        """
        try:
            yield
        except PlaceRefused as refused:
            raise KinesisStreamReplaced(split.split_id, split.cursor, str(refused)) from None
        except ShardGone as gone:
            self._pass_gone(split, str(gone))
        except KinesisStreamMissing as missing:
            self._pass_gone(split, f"{missing.missing} not found")  # without its hint, which is about names

    def _pass_gone(self, split: KinesisSplit, cause: str) -> None:
        """Take a missing shard as a loss, if it is one."""
        try:
            created_ms = self._client.created_ms(split.stream)
        except KinesisStreamMissing:
            if self._named:
                raise
            reason = "the stream is not there any more"
        else:
            if 0 < split.looked_ms < created_ms - MARGIN_MS:
                made = f"it was made at {format_time_us(created_ms * 1_000)}, after the split was last looked at"
                raise KinesisStreamReplaced(split.split_id, split.cursor, made)
            reason = "the shard is not there any more"
        self._loss.found(split, f"{reason} ({cause})")
        self._looks[split.split_id] = ShardLook(split.cursor, split.start, closed=True, at_tip=True)
        self._children[split.split_id] = frozenset()

    def _check_retention(self, split: KinesisSplit) -> None:
        """Report a loss if a split was not looked at for the whole retention, because records may have expired."""
        if not split.looked_ms:
            return
        asked_seconds, retention_ms = self._retention.get(split.stream, (None, 0))
        if asked_seconds is None or self._now_seconds() > asked_seconds + RETENTION_SECONDS:
            retention_ms = self._client.retention_ms(split.stream)
            self._retention[split.stream] = self._now_seconds(), retention_ms
        if split.looked_ms < self._client.now_ms() - retention_ms:
            hours = retention_ms / 3_600_000
            self._loss.found(split, f"nobody looked for longer than the {hours:g} hours for which records are kept")

    def _find_children(self, split: KinesisSplit, look: ShardLook) -> None:
        """Find the children of a closed shard: the shards that its last page names, and those in the list of shards.

        The list may be older than the end of the shard; then the next look reads the end of the shard again.
        """
        listed = self._lists.setdefault(split.stream, _ShardList())
        with listed.lock:
            if not listed.by_id:
                listed.take(self._client.shards(split.stream))
        own, children = listed.by_id.get(split.shard), listed.children.get(split.shard, frozenset())
        if own is not None:  # else the shard has expired, and its children may have expired, too
            children = children | look.children
            if not children and not own["SequenceNumberRange"].get("EndingSequenceNumber"):
                look.closed = False
                return
        self._children[split.split_id] = frozenset(split_id(split.stream, child) for child in children)

    def _end(self, split: KinesisSplit, look: ShardLook, known: set[str]) -> SplitEnd:
        name = split.split_id
        complete = look.closed and (self._bounded or self._children[name] <= known)
        if look.closed and not complete:
            del self._children[name]  # ask again, because a child may have been split and have expired
        position, finished = look.end, complete
        if split.stop is not None and not finished:
            over = look.highest_ms >= split.stop or look.looked_ms >= split.stop + MARGIN_MS
            there = look.at_tip or look.highest_ms >= split.stop
            finished = over and there
            position = split.stop if finished else min(position, split.stop - 1)
        elif split.stop is not None:
            position = split.stop
        position = max(position, split.start)
        if position == split.start and not finished and split.stop is None and self._is_old(split, look):
            position += 1  # a batch without rows takes the time of the look into an offset
        rows = 0 if position == split.start else look.rows_before(position)
        return SplitEnd(position, rows=rows, size_bytes=look.bytes_before(position), finished=finished)

    @staticmethod
    def _is_old(split: KinesisSplit, look: ShardLook) -> bool:
        return look.at_tip and 0 < split.looked_ms < look.looked_ms - LOOKED_MS

    def _check_failures(self, failures: Mapping[str, KinesisUnavailable | None], asked: int) -> None:
        silent = [(name, error) for name, error in failures.items() if error is not None]
        if not silent:
            self._unanswered.see(0, asked)
            return
        name, error = silent[0]
        self._unanswered.see(len(silent), asked, name, error.cause)
        silent_seconds = self._unanswered.all_silent_seconds
        if silent_seconds > self._settings.give_up_seconds:
            raise KinesisUnavailable(error.place, error.action, silent_seconds, error.cause)

    def after_rows(self, split: KinesisSplit, rows: int, end: SplitEnd) -> int:
        look = self._aligned(split)
        if look is None:
            return end.position
        return max(split.start + 1, min(look.after_rows(rows, end.position), end.position))

    def rows_before(self, split: KinesisSplit, position: int) -> int:
        look = self._aligned(split)
        return 0 if look is None or position <= split.start else look.rows_before(position)

    def find_time(self, splits: Sequence[KinesisSplit], time_us: int) -> Mapping[str, int | None] | None:
        """Find the position of an arrival time, without a question, because positions are times.

        The last look shows whether records lie before the position, and whether a record follows.
        """
        if not self._searchable:
            return None
        time_ms = first_ms_from(time_us)
        found: dict[str, int | None] = {}
        for split in splits:
            if (look := self._known(split)) is not None:
                found[split.split_id] = look.find_time(time_ms)
        return found

    def claim_us(self, split: KinesisSplit, position: int, time_us: int) -> int:
        """Claim an earlier time, because arrival times may go back, and two records may have the same time."""
        del split, position
        return time_us - self._disorder_us

    def _known(self, split: KinesisSplit) -> ShardLook | None:
        """Return the last look at a shard; None before a first look, and while a look hangs, which may change it."""
        return None if split.split_id in self._asking else self._looks.get(split.split_id)

    def _aligned(self, split: KinesisSplit) -> ShardLook | None:
        look = self._known(split)
        if look is not None and (look.base, look.start) != (split.cursor, split.start):
            with self._handling_gone(split):
                look.align(split)
                self._refresh(look, split, self._settings.give_up_seconds)
            look = self._looks[split.split_id]
        return look

    def _refresh(self, look: ShardLook, split: KinesisSplit, patience_seconds: float) -> None:
        look.refresh(
            self._client, split, now_seconds=self._now_seconds, poll_seconds=self._poll_seconds,
            patience_seconds=patience_seconds,
        )  # fmt: skip

    def cut(self, stops: Sequence[tuple[KinesisSplit, int]]) -> Sequence[tuple[KinesisSplit, KinesisSplit]]:
        """Cut splits at positions: each slice has the sequence numbers of its first record and of its end.

        If a batch ends beyond the records that were looked at, the record at that time is searched.
        """
        if len(stops) < 2:
            return [self._cut(*each) for each in stops]
        return list(self._threads.map(lambda each: self._cut(*each), stops))

    def _cut(self, split: KinesisSplit, stop: int) -> tuple[KinesisSplit, KinesisSplit]:
        look = self._aligned(split)
        looked_ms = split.looked_ms
        if look is not None and (look.at_tip or look.ahead):
            looked_ms = max(looked_ms, look.looked_ms)
        place = None
        if look is not None and stop > split.start:
            with self._handling_gone(split):
                place = look.find_place(self._client, split, stop)
            look = self._looks[split.split_id]
        if place is None or look is None:  # no record lies between
            nothing = replace(split, stop=stop, until=split.cursor)
            cursor = split.cursor if look is None else look.before_next(split.cursor)
            return nothing, replace(split, start=stop, cursor=cursor, looked_ms=looked_ms)
        part = replace(
            split, stop=stop, cursor=look.before_next(split.cursor), until=place, looked_ms=0,
            records=max(1, look.rows_before(stop)),
            wait_ms=int(self._client.pace.lend(split.stream, split.shard) * 1_000),
        )  # fmt: skip
        return part, replace(split, start=stop, cursor=look.before_next(place), looked_ms=looked_ms)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
