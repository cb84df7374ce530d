"""Reads slices ahead by threads, some side by side, and gives their rows in the order of the slices.

Each thread has a split reader of its own and takes the next group of slices when it has finished a group. Rows wait for
their turn: the rows of the present group come out first, the rows of later groups are kept, up to a limit of bytes for
all. The thread of the present group may always add to an empty queue, so that the limit never stops reading for good.

Source: FLIP-27; `org.apache.flink.connector.base.source.reader.fetcher.SplitFetcherManager`.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from typing import Generic

from lowmark.sources.api import Fetching, SplitRows, SplitT
from lowmark.watermark.log_record import Lines

from .checked_reader import CheckedReader

log = logging.getLogger("lowmark")

CLOSE_SECONDS = 30.0
"""How long the end of reading waits for a fetch that does not wake up. After that its thread is abandoned."""
_WAKE_SECONDS = 0.1


def read_ahead(
    name: str,
    make: Callable[[], CheckedReader[SplitT]],
    groups: Sequence[Sequence[SplitT]],
    fetching: Fetching,
    *,
    close_seconds: float = CLOSE_SECONDS,
) -> Generator[SplitRows]:
    """Read groups of slices by threads, a group by one reader; yield group after group.

    An error of a reader is raised at once, because the rows of a failed batch are useless. The end waits for the
    threads, at most `close_seconds`.
    """
    ahead = _Ahead(groups, fetching.ahead_bytes)
    readers = [make() for _ in range(min(fetching.threads, len(groups)))]
    started: list[tuple[threading.Thread, CheckedReader[SplitT]]] = []
    try:
        for n, reader in enumerate(readers):
            thread = threading.Thread(
                target=_fetch, args=(ahead, reader), name=f"lowmark-fetcher-{name}-{n}", daemon=True
            )
            thread.start()  # raises if the system has no thread left, and the started ones have to end
            started.append((thread, reader))
        yield from ahead.rows()
    finally:
        ahead.close()
        _end(name, started, close_seconds)
    ahead.check()  # raises if a reader could not be closed


class _Ahead(Generic[SplitT]):
    def __init__(self, groups: Sequence[Sequence[SplitT]], most_bytes: int) -> None:
        self._groups, self._most_bytes = groups, most_bytes
        self._changed = threading.Condition()
        # Guarded by `_changed`:
        self._queues: list[deque[SplitRows]] = [deque() for _ in groups]
        self._read = [False] * len(groups)
        self._begun = 0  # number of groups taken by threads: the first groups
        self._out = 0  # the group whose rows come out now
        self._bytes = 0
        self._failure: BaseException | None = None
        self._closed = False

    # -- for the task's thread

    def rows(self) -> Iterator[SplitRows]:
        for index in range(len(self._groups)):
            with self._changed:
                self._out = index
                self._changed.notify_all()
            while (part := self._take(index)) is not None:
                yield part

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _take(self, index: int) -> SplitRows | None:
        queue = self._queues[index]
        with self._changed:
            self._changed.wait_for(lambda: queue or self._read[index] or self._failure is not None)
            self.check()
            if not queue:
                return None
            part = queue.popleft()
            self._bytes -= part.rows.nbytes
            self._changed.notify_all()
            return part

    # -- for the threads that fetch

    def next_group(self) -> tuple[int, Sequence[SplitT]] | None:
        """Take the next group to read, None if no group is left."""
        with self._changed:
            if self._closed or self._failure is not None or self._begun == len(self._groups):
                return None
            self._begun += 1
            return self._begun - 1, self._groups[self._begun - 1]

    def put(self, index: int, part: SplitRows) -> bool:
        """Add rows when there is room; False if the caller wants no more rows."""
        size, queue = part.rows.nbytes, self._queues[index]
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self._bytes + size <= self._most_bytes or (index == self._out and not queue)
            )
            if self._closed:
                return False
            queue.append(part)
            self._bytes += size
            self._changed.notify_all()
            return True

    def done(self, index: int) -> None:
        with self._changed:
            self._read[index] = True
            self._changed.notify_all()

    def fail(self, failure: BaseException) -> None:
        with self._changed:
            if self._failure is None:
                self._failure = failure
            self._changed.notify_all()


def _fetch(ahead: _Ahead[SplitT], reader: CheckedReader[SplitT]) -> None:
    try:
        with reader:
            while (taken := ahead.next_group()) is not None:
                index, splits = taken
                for part in reader.read(splits):
                    if not ahead.put(index, part):
                        return
                ahead.done(index)
    except BaseException as failure:  # noqa: BLE001  # the task's thread raises it
        ahead.fail(failure)


def _end(name: str, started: Sequence[tuple[threading.Thread, CheckedReader[SplitT]]], seconds: float) -> None:
    """Wake threads until they end. Wake-ups are repeated, because a wake-up may come just before its fetch."""
    deadline = time.monotonic() + seconds
    left = list(started)
    while left and (left_seconds := deadline - time.monotonic()) > 0:
        for _, reader in left:
            with suppress(Exception):  # wait for the thread all the same
                reader.stop()
        left[0][0].join(min(left_seconds, _WAKE_SECONDS))
        left = [(thread, reader) for thread, reader in left if thread.is_alive()]
    for thread, _ in left:
        frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001  # CPython's way to look at a thread
        stack = "".join(traceback.format_stack(frame)[-3:]) if frame is not None else "unknown"
        log.warning(
            "%s: a fetch did not end within %g seconds after wake_up, and is left behind; it stands in\n%s",
            name, seconds, Lines(stack),
        )  # fmt: skip
