"""An enumerator that looks for splits from time to time, and gives each to a reader by its id.

Sources whose splits are read where they are found (Kafka's partitions, files, shards) need no other enumerator:

    discover()  -> new ids  -> prepare(new splits)  -> pending  -> assigned
    worker         here        worker                  here        the reader's, from the next checkpoint on

`discover` lists every split there is; what is new is decided here, by id. `prepare` may complete new splits with facts
that take time to find, such as the offset where a partition begins. It runs once for each split, before any checkpoint
has the split; the split keeps the facts.

The state has every id that was ever assigned, so that nothing is read twice, and the pending splits. A stamp of splits,
such as a file's time of modification, tells old splits from new splits and bounds the state:

    keep        splits that are so much older than the newest are never new, and are not remembered
    remember    the ids of so many of the newest splits are in the state, and one stamp for all that are older. A
                process that begins takes what is older than that stamp for read, so a split that came with an old stamp
                while no process ran is not read; a warning says so where more such splits are listed than were read. A
                process remembers every id that it saw, so a split with an old stamp that comes while it runs is read.
                Nothing is read twice.

Source: `KafkaSourceEnumerator` (callAsync, two steps), FLIP-288 (late splits), Spark's `SeenFilesMap` (forgetting).
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from typing import Generic

from lowmark.sources.api import SplitEnumerator, SplitEnumeratorContext, SplitsAssignment, SplitT
from lowmark.sources.serializer import DataclassSerializer, UnreadableState, ValueT
from lowmark.sources.worker import described
from lowmark.watermark import LowmarkError
from lowmark.watermark.packed import pack, unpack

from .listed_splits import fault_of

log = logging.getLogger("lowmark")

_LONGEST_END = 200  # characters


@dataclass(frozen=True)  # no slots: a frozen generic with slots cannot be made as DiscoveredSplits[MySplit](...)
class DiscoveredSplits(Generic[SplitT]):
    """The state of a `DiscoveringEnumerator`."""

    discovered: bool = False  # whether the first discovery is done; splits found afterwards are late splits
    assigned: tuple[str, ...] = ()  # ids that were given to a reader at some time, sorted
    stamps: tuple[int, ...] = ()  # their stamps, in the same order; empty where the source has none
    newest_stamp: int | None = None  # the largest stamp ever seen
    pending: tuple[SplitT, ...] = ()  # splits that no reader has yet, in the order in which they were found
    # `assigned` has all ids with this stamp or a larger one; those with a smaller one were assigned too, and are
    # forgotten. None: nothing was forgotten by number.
    oldest_stamp: int | None = None
    forgotten: int = 0  # the largest possible number of forgotten ids, when splits were listed last
    root: str = ""  # the folder, or the like, that ids are relative to; "" without one
    end: str | None = None  # the end that all these splits keep, in words; None: unknown, or they keep none
    complete: bool = False  # whether no split is looked for any more


class PackedSerializer(DataclassSerializer[ValueT]):
    """The format of states with ids of splits: msgpack, deflated, because ids resemble each other."""

    def serialize(self, value: ValueT) -> bytes:
        return pack(super().serialize(value), 6)

    def _unpacked(self, data: bytes) -> bytes:
        return unpack(data)


def still_wanted(known: DiscoveredSplits[SplitT], wants: Callable[[str], bool]) -> DiscoveredSplits[SplitT]:
    """Return a state without splits that are no longer subscribed; if they are subscribed again, they are new.

    Args:
        wants: whether a split of that id is subscribed.
    """
    pending = tuple(split for split in known.pending if wants(split.split_id))
    return replace(known, assigned=tuple(filter(wants, known.assigned)), pending=pending)


class EvenSpread:
    """Chooses for every split the reader with the fewest splits, so that readers differ by at most one split.

    If several readers have the fewest, the split's id fixes where the search among them begins, so that sources do not
    all begin with the same reader. The checkpoint keeps the reader of each split: a restart repeats no choice.

    >>> spread = EvenSpread()
    >>> [spread.owner(f"orders/{n}", 4) for n in range(6)]
    [2, 0, 3, 1, 3, 1]
    >>> spread.owner("orders/0", 4)
    2
    """

    def __init__(self) -> None:
        self._given: list[int] = []  # by reader
        self._waiting: dict[str, int] = {}  # split id -> the chosen reader

    def owner(self, split_id: str, num_subtasks: int) -> int:
        """Return the reader for a split; the same until the split is `placed`, or the number of readers changes."""
        if num_subtasks != len(self._given):
            self._given, self._waiting = [0] * num_subtasks, {}
        if split_id not in self._waiting:
            fewest, first = min(self._given), zlib.crc32(split_id.encode()) % num_subtasks
            turn = (step % num_subtasks for step in range(first, first + num_subtasks))
            owner = self._waiting[split_id] = next(subtask for subtask in turn if self._given[subtask] == fewest)
            self._given[owner] += 1
        return self._waiting[split_id]

    def placed(self, split_id: str) -> None:
        self._waiting.pop(split_id, None)


class DiscoveryFailed(LowmarkError, RuntimeError):
    """Splits could not be looked for, too often, or the answer cannot be right."""

    source: str  # whose splits
    action: str  # what failed
    failures: int  # how often in a row
    cause: str  # type and text of the last error
    _fact = "{source}: cannot {action}, {_times}: {cause}"
    _hint = (
        "check that the system can be reached and what it is asked for exists; the query goes on from its checkpoint."
    )
    _cause_knows_best = True

    @property
    def _times(self) -> str:
        return "at the first attempt" if self.failures == 1 else f"{self.failures} times in a row"


class DiscoveringEnumerator(SplitEnumerator[SplitT, DiscoveredSplits[SplitT]], Generic[SplitT]):
    """Looks for splits, assigns the new ones, and says when there will be none.

    Every discovery runs by `call_async`; the gauge `discoveries` says how many succeeded (a restored bounded source,
    which does not look again, counts the one before). A discovery that fails is repeated at the next period. It fails
    the enumerator when none has succeeded yet (a wrong address, a missing right: nothing could be read), after
    `max_failures` in a row, and at once without a period. Further metrics: `discovery_failures`, `known_splits`,
    `unassigned_splits`.

    Args:
        discover: lists all splits there are; runs on a worker thread.
        period_seconds: from one discovery to the next; None: only one.
        bounded: no splits are looked for after the first discovery that succeeded, also not after a restart, and
            readers are told that there will be none. After an unbounded source, splits are looked for once more.
        assign: (split id, number of readers) -> reader; by default they are spread evenly. A split waits until its
            reader has registered.
        known: the state to go on from.
        prepare: (new splits, whether they are late, that is, not of the first discovery) -> the same splits,
            completed; runs on a worker thread. The next look finds splits that appear meanwhile, and late splits that
            are left out.
        stamp_of: split -> a number that is larger for a younger split, such as a file's modification time.
        keep: splits whose stamp is more than this below the newest one are never new, so their ids are forgotten.
        remember: of how many splits, the newest by stamp, ids are in the state at least; see the module. None: of all.
        root: what the ids are relative to, for the state.
        end: where the source ends, in words, if splits keep their end from their discovery on; "None" for a source
            that never ends. After a restart with another end, splits would end where nobody expects. None: splits keep
            no end of the source.
        max_failures: failures in a row that fail the enumerator, 1 or more.
        source: name for errors.

    Raises:
        ValueError: `stamp_of` is given without `keep` and `remember`, or one of these without `stamp_of`.
        UnreadableState: `known` has no stamps, and `stamp_of` is given; or `known` has another `end`.
    """

    def __init__(
        self,
        context: SplitEnumeratorContext[SplitT],
        discover: Callable[[], Sequence[SplitT]],
        *,
        period_seconds: float | None,
        bounded: bool = False,
        assign: Callable[[str, int], int] | None = None,
        known: DiscoveredSplits[SplitT] | None = None,
        prepare: Callable[[Sequence[SplitT], bool], Sequence[SplitT]] | None = None,
        stamp_of: Callable[[SplitT], int] | None = None,
        keep: int | None = None,
        remember: int | None = None,
        root: str = "",
        end: str | None = None,
        max_failures: int = 3,
        source: str = "source",
    ) -> None:
        if (stamp_of is None) != (keep is None and remember is None):
            raise ValueError(
                "stamp_of and keep or remember: expected both or none. Hint: ids are forgotten by their stamp."
            )
        state = known if known is not None else DiscoveredSplits[SplitT]()
        self._context, self._discover, self._prepare = context, discover, prepare
        self._spread = EvenSpread()
        self._assign = self._spread.owner if assign is None else assign
        self._period_seconds, self._bounded = None if bounded else period_seconds, bounded
        self._stamp_of, self._keep = stamp_of, keep
        self._max_failures, self._source, self._root = max_failures, source, root
        self._discovered = state.discovered
        # With an `end` a state of an unbounded source is refused; one of an earlier version does not have `complete`.
        self._complete = bounded and state.discovered and (state.complete or end is not None)
        if stamp_of is not None and len(state.stamps) != len(state.assigned):
            raise UnreadableState(
                "DiscoveredSplits",
                f"it has {len(state.stamps)} stamps of {len(state.assigned)} splits, and {source} needs all",
                "a source that had no stamps wrote the checkpoint: start with a new one.",
            )
        given = None if end is None else _briefly(end)
        self._end = state.end if state.discovered else given
        if given is not None and self._end not in (given, None):
            raise UnreadableState(
                source,
                f"the checkpoint has the end {self._end}, and the source is given {given}",
                "give the end as before (stop=), because splits keep theirs, or start with a new checkpoint, whose "
                "start= says where this one ended.",
            )
        stamps = (0,) * len(state.assigned) if stamp_of is None else state.stamps
        self._assigned = dict(zip(state.assigned, stamps, strict=True))
        self._newest_stamp, self._oldest_stamp = state.newest_stamp, state.oldest_stamp
        self._forgotten = state.forgotten
        self._remember = remember
        self._forget_from = 0 if remember is None else _with_slack(remember)
        # Ids that the state does not have any more; None: the first look of this process will tell.
        self._older: set[str] | None = None if state.oldest_stamp is not None else set()
        self._began_empty = False  # whether the first lists of this process were empty
        self._pending = {split.split_id: split for split in state.pending}
        self._preparing = False
        self._discoveries = 1 if self._complete else 0
        self._failures = 0
        self._snapshot: DiscoveredSplits[SplitT] | None = None
        metrics = context.metric_group
        self._all_failures = metrics.counter("discovery_failures")
        metrics.gauge("discoveries", lambda: self._discoveries)
        metrics.gauge("known_splits", lambda: len(self._assigned) + self._forgotten + len(self._pending))
        metrics.gauge("unassigned_splits", lambda: len(self._pending))

    # -- what the coordinator calls

    def start(self) -> None:
        if not self._complete:
            self._context.call_async(self._discover, self._handle_discovered, period=self._period_seconds)

    def add_reader(self, subtask: int) -> None:
        self._assign_pending()
        if self._complete:
            self._context.signal_no_more_splits(subtask)

    def handle_split_request(self, subtask: int, requester_hostname: str | None) -> None:
        """Splits are given without being asked for."""

    def snapshot_state(self, checkpoint_id: int) -> DiscoveredSplits[SplitT]:
        del checkpoint_id
        if self._snapshot is None:
            assigned = sorted(self._assigned)
            self._snapshot = DiscoveredSplits(
                discovered=self._discovered,
                assigned=tuple(assigned),
                stamps=tuple(self._assigned[name] for name in assigned) if self._stamp_of is not None else (),
                newest_stamp=self._newest_stamp,
                pending=tuple(self._pending.values()),
                oldest_stamp=self._oldest_stamp,
                forgotten=self._forgotten,
                root=self._root,
                end=self._end,
                complete=self._complete,
            )
        return self._snapshot

    # -- discovery

    def _handle_discovered(self, found: Sequence[SplitT] | None, error: BaseException | None) -> None:
        if found is None:
            self._failed("discover splits", error)
            return
        if (fault := fault_of(found)) is not None:
            raise DiscoveryFailed(self._source, "discover splits", 1, fault)
        if self._preparing:
            return  # a look counts when its splits are prepared; the next look finds them, too
        new = self._new(found)
        if new and self._prepare is not None:
            prepare, late = self._prepare, self._discovered
            self._preparing = True
            self._context.call_async(
                lambda: prepare(new, late), lambda splits, failed: self._handle_prepared(new, splits, failed)
            )
        else:
            self._add(new)

    def _handle_prepared(
        self, new: Sequence[SplitT], splits: Sequence[SplitT] | None, error: BaseException | None
    ) -> None:
        self._preparing = False
        if splits is None:
            self._failed(f"prepare {len(new)} new splits", error)
        else:
            self._add(splits)

    def _new(self, found: Sequence[SplitT]) -> list[SplitT]:
        if self._stamp_of is not None and self._keep is not None and found:
            newest = max(map(self._stamp_of, found))
            self._newest_stamp = newest if self._newest_stamp is None else max(newest, self._newest_stamp)
            oldest, stamp_of = self._newest_stamp - self._keep, self._stamp_of
            found = [split for split in found if stamp_of(split) >= oldest]
            self._assigned = {name: stamp for name, stamp in self._assigned.items() if stamp >= oldest}
            self._snapshot = None
        if self._remember is not None:
            self._count_forgotten(found)
        known = (self._assigned, self._pending, self._older or ())
        return [split for split in found if not any(split.split_id in ids for ids in known)]

    def _count_forgotten(self, found: Sequence[SplitT]) -> None:
        """Count the listed splits whose ids the state does not have. The first list tells them by their stamps."""
        if self._older is None:
            if not found:
                self._began_empty = True  # as a folder that is not mounted yet: the next list tells
                return
            assert self._stamp_of is not None, "checked at the beginning"
            assert self._oldest_stamp is not None, "otherwise nothing was forgotten"
            known = (self._assigned, self._pending)
            self._older = {
                split.split_id
                for split in found
                if self._stamp_of(split) < self._oldest_stamp and not any(split.split_id in ids for ids in known)
            }
            if self._began_empty and not any(split.split_id in self._assigned for split in found):
                self._older = set()  # not even the newest came back, so all that was read is deleted
            if (more := len(self._older) - self._forgotten) > 0:
                log.warning(
                    "%s: %d splits or more came while the query was stopped, with stamps older than the newest %d that "
                    "were read. They cannot be told from splits that were read, so they are not read. Hint: make them "
                    "younger (touch the files).", self._source, more, len(self._assigned),
                )  # fmt: skip
        forgotten = sum(split.split_id in self._older for split in found)
        if forgotten != self._forgotten:
            self._forgotten, self._snapshot = forgotten, None

    def _forget_oldest(self) -> None:
        """Keep the state small: it has the ids of the newest splits only. O(1) a split, over time."""
        if self._remember is None or len(self._assigned) <= self._forget_from or self._preparing:
            return
        oldest = nlargest(self._remember, self._assigned.values())[-1]
        # A split that waits unassigned must not be taken for read when it is found anew.
        oldest = min([oldest, *(self._stamp_of(split) for split in self._pending.values() if self._stamp_of)])
        gone = [name for name, stamp in self._assigned.items() if stamp < oldest]
        for name in gone:
            del self._assigned[name]
        if self._older is not None:
            self._older.update(gone)
        self._forgotten += len(gone)
        if gone:
            self._oldest_stamp = oldest if self._oldest_stamp is None else max(oldest, self._oldest_stamp)
        self._forget_from = _with_slack(max(self._remember, len(self._assigned)))

    def _add(self, splits: Sequence[SplitT]) -> None:
        self._failures, first = 0, not self._discovered
        self._discoveries += 1
        self._discovered, self._complete = True, self._bounded
        if splits or first or self._complete:
            self._snapshot = None
        self._pending.update((split.split_id, split) for split in splits)
        self._assign_pending()
        if self._complete:
            for subtask in sorted(self._context.registered_readers):
                self._context.signal_no_more_splits(subtask)

    def _failed(self, action: str, error: BaseException | None) -> None:
        self._failures += 1
        self._all_failures.inc()
        never = self._discoveries == 0
        if never or self._period_seconds is None or self._failures >= self._max_failures:
            cause = "nothing was returned" if error is None else described(error)
            raise DiscoveryFailed(self._source, action, self._failures, cause) from error

    # -- assignment

    def _assign_pending(self) -> None:
        readers, count = self._context.registered_readers, self._context.num_subtasks
        ready: dict[int, list[SplitT]] = {}
        for split in self._pending.values() if readers else ():
            if (owner := self._assign(split.split_id, count)) in readers:
                ready.setdefault(owner, []).append(split)
        if not ready:
            return
        self._context.assign_splits(SplitsAssignment(ready))
        for splits in ready.values():
            for split in splits:
                del self._pending[split.split_id]
                self._spread.placed(split.split_id)
                self._assigned[split.split_id] = 0 if self._stamp_of is None else self._stamp_of(split)
        self._snapshot = None
        self._forget_oldest()


def _briefly(end: str) -> str:
    """An end with many positions, cut and with a checksum, because the checkpoint of each batch has it."""
    return end if len(end) <= _LONGEST_END else f"{end[:_LONGEST_END]}... ({zlib.crc32(end.encode()):08x})"


def _with_slack(many: int) -> int:
    return many + many // 4
