"""The splits of each reader slot, and its slices in a batch."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Generic

from lowmark.sources.api import SourceEvent, SplitT

from .offset import Placed


@dataclass(frozen=True, slots=True)
class SlotWork(Generic[SplitT]):
    """The work of one reader slot in one batch."""

    subtask: int
    checkpoint: int
    splits: tuple[SplitT, ...]
    events: tuple[SourceEvent, ...] = ()  # of the enumerator; none if the batch is read again after a crash


class Slots(Generic[SplitT]):
    """The reader slots, as readers for the coordinator: keeps splits and events until a batch takes them."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._lock = threading.Condition()
        self._arrived: dict[str, Placed[SplitT]] = {}
        self._known: frozenset[str] = frozenset()
        self.had_any = False  # whether a split was in an offset
        self._snapshot: frozenset[str] = frozenset()
        self._ended: frozenset[int] = frozenset()  # the slots that were told that they get no more splits
        self._ended_in_snapshot: frozenset[int] = frozenset()
        self._events: dict[int, list[SourceEvent]] = {}
        self._events_in_snapshot: dict[int, int] = {}  # number of each slot's events that were sent before it

    def add_splits(self, subtask: int, splits: Sequence[SplitT]) -> None:
        with self._lock:
            for split in splits:
                # A known split may be assigned again by an enumerator restored from before its assignment.
                if split.split_id not in self._known:
                    self._arrived.setdefault(split.split_id, Placed(subtask, split))
            self._lock.notify_all()

    def no_more_splits(self, subtask: int) -> None:
        with self._lock:
            self._ended |= {subtask}
            self._lock.notify_all()

    @property
    def complete(self) -> bool:
        with self._lock:
            return len(self._ended) == self._count

    def wait(self, seconds: float) -> bool:
        """Wait for a first split, or for the news that no split comes; return whether either came."""
        with self._lock:
            return self._lock.wait_for(lambda: bool(self._arrived) or self.complete, seconds)

    def source_event(self, subtask: int, event: SourceEvent) -> Future[None]:
        sent: Future[None] = Future()
        with self._lock:
            self._events.setdefault(subtask, []).append(event)
        sent.set_result(None)
        return sent

    def backlog(self, subtask: int, is_processing_backlog: bool) -> None:  # noqa: FBT001  # the gateway's interface
        """Do nothing: the coordinator shows the backlog as a metric, and slots read the plan in any case."""

    def checkpointed(self, checkpoint_id: int) -> None:
        del checkpoint_id  # always the newest
        with self._lock:
            self._snapshot = frozenset(self._arrived)
            self._ended_in_snapshot = self._ended
            self._events_in_snapshot = {subtask: len(events) for subtask, events in self._events.items()}

    def restored(self, checkpoint_id: int | None) -> None:
        del checkpoint_id  # always the newest
        with self._lock:
            self._arrived = {name: placed for name, placed in self._arrived.items() if name in self._snapshot}
            self._ended = self._ended_in_snapshot
            self._events = {subtask: self._events[subtask][:sent] for subtask, sent in self._events_in_snapshot.items()}

    def in_snapshot(self) -> dict[str, Placed[SplitT]]:
        """The splits that had arrived when the enumerator's state was taken, so that the state does not have them."""
        with self._lock:
            return {name: placed for name, placed in self._arrived.items() if name in self._snapshot}

    def arrived(self) -> dict[str, Placed[SplitT]]:
        with self._lock:
            return dict(self._arrived)

    def settle(self, known: Iterable[str]) -> None:
        """Note that these splits are in an offset now, or were finished in it."""
        with self._lock:
            self._known = frozenset(known)
            self.had_any |= bool(self._known)
            self._arrived = {name: placed for name, placed in self._arrived.items() if name not in self._known}

    def take_events(self) -> dict[int, tuple[SourceEvent, ...]]:
        with self._lock:
            taken = {subtask: tuple(events) for subtask, events in self._events.items()}
            self._events.clear()
            self._events_in_snapshot.clear()
            return taken


def spread(live: Sequence[Placed[SplitT]], slots: int) -> Sequence[Placed[SplitT]]:
    """Return splits in their slots; in turn if a slot is gone, or if a slot has no split and another has several."""
    used = {placed.subtask for placed in live}
    if max(used, default=0) < slots and len(used) == min(slots, len(live)):
        return live
    return [replace(placed, subtask=turn % slots) for turn, placed in enumerate(live)]
