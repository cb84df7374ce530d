"""The thread of a `SplitFetcherReader`: it alone calls the split reader, and puts what that fetches into a short queue.

Others hand it tasks (add, remove, pause, resume), which it runs between two fetches; a fetch that blocks meanwhile is
woken up. A wake-up may come just before the fetch that it is meant for: it is repeated with every look into the queue.

Source: `org.apache.flink.connector.base.source.reader.fetcher`: `SplitFetcher`, `PauseOrResumeSplitsTask`.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import islice
from typing import Generic

from lowmark.watermark import LowmarkError
from lowmark.watermark.log_record import Lines

from .api import Fetched, SplitReader, SplitsAddition, SplitsRemoval, SplitT

__all__ = ["SplitFetcher", "SplitPauseUnsupported", "SplitReadFailed"]

log = logging.getLogger("lowmark")

# A split reader that does not block, and has nothing, is asked again after this time.
_EMPTY_SECONDS = 0.01
_WAKE_SECONDS = 0.1
_SPLITS_NAMED = 10


class SplitReadFailed(LowmarkError, RuntimeError):
    """A split reader raised an error. What it raised is the cause.

    Attributes:
        source: whose reader.
        splits: ids of the splits it was reading, any of which may be at fault.
        action: what it was asked for.
        cause: type and text of the error.
    """

    def __init__(self, source: str, splits: tuple[str, ...], action: str, cause: str) -> None:
        super().__init__(source, splits, action, cause)
        self.source, self.splits, self.action, self.cause = source, splits, action, cause

    @classmethod
    def of(cls, source: str, splits: Collection[str], action: str, cause: BaseException) -> SplitReadFailed:
        """The error for what was raised."""
        return cls(source, tuple(splits), action, f"{type(cause).__name__}: {cause}")

    def __str__(self) -> str:
        named = ", ".join(repr(split) for split in islice(self.splits, _SPLITS_NAMED))
        more = len(self.splits) - _SPLITS_NAMED
        of = f" of {named}" + (f" and {more} more" if more > 0 else "") if self.splits else ""
        return (
            f"{self.source}: cannot {self.action}{of}: {self.cause}. Hint: no row is lost; the same rows are read "
            "again when the query goes on from its checkpoint, once the cause is gone."
        )


class SplitPauseUnsupported(LowmarkError, NotImplementedError):
    """A split should be paused, and its reader cannot do that.

    Attributes:
        source: whose reader.
        splits: ids of the splits to pause.
    """

    def __init__(self, source: str, splits: tuple[str, ...]) -> None:
        super().__init__(source, splits)
        self.source, self.splits = source, splits

    def __str__(self) -> str:
        named = ", ".join(repr(split) for split in islice(self.splits, _SPLITS_NAMED))
        return (
            f"{self.source}: cannot pause {named}: its reader does not support pausing single splits. Hint: implement "
            "pause_or_resume_splits, or set allow_unaligned_splits = True on the source to let them run ahead."
        )


class SplitFetcher(Generic[SplitT]):
    """Runs a split reader in a thread.

    Args:
        create: makes the split reader, in the thread.
        source: name for errors.
        name: of the thread.
        allow_unaligned: whether splits that cannot be paused run on.
        capacity: fetches that may wait in the queue, 1 or more.
    """

    def __init__(
        self,
        create: Callable[[], SplitReader[SplitT]],
        *,
        source: str,
        name: str,
        allow_unaligned: bool,
        capacity: int,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"queue_capacity: expected 1 or more, got {capacity}")
        self._create, self._source = create, source
        self._allow_unaligned, self._capacity = allow_unaligned, capacity
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._changed = threading.Condition()
        # Guarded by `_changed`:
        self._tasks: deque[Callable[[SplitReader[SplitT]], None]] = deque()
        self._queue: deque[Fetched] = deque()
        self._reader: SplitReader[SplitT] | None = None
        self._fetching = self._closing = self._signalled = False
        self._failure: Exception | None = None
        self._available: Future[None] | None = None
        # The thread's own:
        self._splits: dict[str, SplitT] = {}
        self._paused: set[str] = set()
        self._action = "make the split reader"

    # -- for the task's thread

    def start(self) -> None:
        """Begin; what was handed over before is done first."""
        self._thread.start()

    def add(self, splits: Sequence[SplitT]) -> None:
        """Read these too."""
        added = tuple(splits)
        if added:
            self._hand_over(lambda reader: self._add(reader, added))

    def remove(self, split: SplitT) -> None:
        """Read this no more; rows of it may be in the queue."""
        self._hand_over(lambda reader: self._remove(reader, split))

    def pause_or_resume(self, to_pause: Sequence[SplitT], to_resume: Sequence[SplitT]) -> None:
        """Stop and go on reading splits."""
        self._hand_over(lambda reader: self._pause_or_resume(reader, tuple(to_pause), tuple(to_resume)))

    def take(self) -> Fetched | None:
        """Return what was fetched first, None if there is nothing yet.

        Raises:
            Exception: what ended the thread; only when everything fetched before it was taken.
        """
        with self._changed:
            if self._queue:
                self._changed.notify_all()
                return self._queue.popleft()
            if self._failure is not None:
                raise self._failure
            sleeper = self._reader if self._tasks and self._fetching else None
        if sleeper is not None:
            sleeper.wake_up()
        return None

    @property
    def has_more(self) -> bool:
        """Whether `take` would return or raise something."""
        with self._changed:
            return bool(self._queue) or self._failure is not None

    def available(self) -> Future[None]:
        """Return a future that is done when there is something to take, or after `signal`."""
        with self._changed:
            if self._queue or self._failure is not None or self._signalled:
                done: Future[None] = Future()
                done.set_result(None)
                return done
            if self._available is None:
                self._available = Future()
                self._available.set_running_or_notify_cancel()  # from now on nobody can cancel it for the others
            return self._available

    def signal(self) -> None:
        """Complete `available`, from now on: the input is at its end."""
        with self._changed:
            self._signalled = True
        self._announce()

    def close(self, seconds: float) -> None:
        """Wake the thread up until it ends; leave it behind after `seconds`. May be called twice."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.ident is None:
            return  # never started: there is no split reader
        deadline = time.monotonic() + seconds
        while self._thread.is_alive() and (left := deadline - time.monotonic()) > 0:
            with self._changed:
                sleeper = self._reader if self._fetching else None
            if sleeper is not None:
                with suppress(Exception):  # it is closed all the same
                    sleeper.wake_up()
            self._thread.join(min(left, _WAKE_SECONDS))
        if self._thread.is_alive():
            frame = sys._current_frames().get(self._thread.ident)  # noqa: SLF001  # CPython's way to look at a thread
            stack = "".join(traceback.format_stack(frame)[-3:]) if frame is not None else "unknown"
            log.warning(
                "%s: %s did not end within %g seconds after wake_up, and is left behind; it stands in\n%s",
                self._source, self._action, seconds, Lines(stack),
            )  # fmt: skip

    def _hand_over(self, task: Callable[[SplitReader[SplitT]], None]) -> None:
        with self._changed:
            self._tasks.append(task)
            self._changed.notify_all()
            sleeper = self._reader if self._fetching else None
        if sleeper is not None:
            sleeper.wake_up()

    # -- the thread

    def _run(self) -> None:
        reader: SplitReader[SplitT] | None = None
        try:
            reader = self._create()
            with self._changed:
                self._reader = reader
            while self._step(reader):
                pass
        except LowmarkError as named:
            self._fail(named)  # it names its source and split itself
        except Exception as cause:  # noqa: BLE001  # poll_next raises it
            failure = SplitReadFailed.of(self._source, self._splits, self._action, cause)
            failure.__cause__ = cause
            self._fail(failure)
        finally:
            if reader is not None:
                self._close_reader(reader)

    def _step(self, reader: SplitReader[SplitT]) -> bool:
        """Run the tasks that wait, or else fetch once. False: the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._tasks or self._may_fetch())
            if self._closing:
                return False
            tasks = list(self._tasks)
            self._tasks.clear()
            self._fetching = not tasks
        for task in tasks:
            task(reader)
        if not tasks:
            self._fetch(reader)
        return True

    def _may_fetch(self) -> bool:
        return len(self._queue) < self._capacity and not self._splits.keys() <= self._paused

    def _fetch(self, reader: SplitReader[SplitT]) -> None:
        self._action = "fetch"
        try:
            fetched = reader.fetch()
        finally:
            with self._changed:
                self._fetching = False
        for split_id in fetched.finished_splits:
            self._splits.pop(split_id, None)
            self._paused.discard(split_id)
        if fetched.batches or fetched.finished_splits:
            with self._changed:
                self._queue.append(fetched)
            self._announce()
        else:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._tasks, timeout=_EMPTY_SECONDS)

    def _add(self, reader: SplitReader[SplitT], splits: tuple[SplitT, ...]) -> None:
        self._action = "add"
        self._splits.update((split.split_id, split) for split in splits)
        reader.handle_splits_changes(SplitsAddition(splits))

    def _remove(self, reader: SplitReader[SplitT], split: SplitT) -> None:
        self._action = "remove"
        self._paused.discard(split.split_id)
        if self._splits.pop(split.split_id, None) is not None:
            reader.handle_splits_changes(SplitsRemoval((split,)))

    def _pause_or_resume(
        self, reader: SplitReader[SplitT], to_pause: tuple[SplitT, ...], to_resume: tuple[SplitT, ...]
    ) -> None:
        self._action = "pause or resume"
        pause, resume = (
            tuple(split for split in splits if split.split_id in self._splits) for splits in (to_pause, to_resume)
        )
        try:
            reader.pause_or_resume_splits(pause, resume)
        except NotImplementedError as unsupported:
            if not self._allow_unaligned:
                raise SplitPauseUnsupported(self._source, tuple(split.split_id for split in pause)) from unsupported
            pause = tuple(split for split in pause if _can(reader, (split,), ()))
            resume = tuple(split for split in resume if _can(reader, (), (split,)))
        self._paused.update(split.split_id for split in pause)
        self._paused.difference_update(split.split_id for split in resume)

    def _fail(self, failure: Exception) -> None:
        with self._changed:
            self._failure = failure
        self._announce()

    def _announce(self) -> None:
        with self._changed:
            waiting, self._available = self._available, None
        if waiting is not None:
            waiting.set_result(None)

    def _close_reader(self, reader: SplitReader[SplitT]) -> None:
        self._action = "close"
        with self._changed:
            self._reader = None
        try:
            reader.close()
        except Exception:
            log.warning("%s: its split reader could not be closed", self._source, exc_info=True)


def _can(reader: SplitReader[SplitT], to_pause: tuple[SplitT, ...], to_resume: tuple[SplitT, ...]) -> bool:
    try:
        reader.pause_or_resume_splits(to_pause, to_resume)
    except NotImplementedError:
        return False
    return True
