"""Tells Pravega how far a query has read, so that retention by consumption keeps unread events.

A reader group with manual retention is a subscriber of its streams: within the limits of their retention policies,
Pravega truncates streams only up to the position that every subscriber has released. A query releases the events of a
batch once Spark has committed that batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from .errors import PravegaAccessDenied, PravegaStreamMissing, PravegaUnavailable
from .group import GroupReset, PravegaGroup
from .segment import PravegaSplit

log = logging.getLogger("lowmark")


class Retention:
    """Keeps and releases the events of a query.

    Args:
        subscribes: whether to make the group; otherwise another part makes it.
    """

    def __init__(self, group: Callable[[], PravegaGroup], *, subscribes: bool) -> None:
        self._make_group, self._subscribes = group, subscribes
        self._kept: frozenset[str] = frozenset()  # the streams of the group
        self._group: PravegaGroup | None = None
        self._failed = False

    def keep(self, splits: Sequence[PravegaSplit]) -> None:
        """Become a subscriber of the streams of all splits that go on, again when a stream has come."""
        streams = frozenset(split.stream for split in splits)
        if self._subscribes and not streams <= self._kept:
            if self._group is None:
                self._group = self._make_group()
            self._group.subscribe(splits)
            self._kept |= streams

    def release(self, splits: Sequence[PravegaSplit]) -> None:
        """Release the events before the splits' starts. After a failure the next batch releases them."""
        if not splits:
            return
        try:
            if self._group is None:
                self._group = self._make_group()
            self._group.release(splits, self._kept)
        except (PravegaUnavailable, PravegaAccessDenied, PravegaStreamMissing, GroupReset) as failed:
            if isinstance(failed, GroupReset):
                self._kept = frozenset()  # the next plan makes the group again
            if not self._failed:
                log.warning("what was read is not released to Pravega's retention: %s", failed)
            self._failed = True
            self.close()  # its generation may be old, if the group was reset meanwhile
        else:
            self._failed = False

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None
