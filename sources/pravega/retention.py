"""Tells Pravega how far a query has read, so that retention by consumption keeps what it has not.

A reader group whose retention is moved by hand is a subscriber of its streams: Pravega truncates them, within the
limits of their retention policies, only up to where every subscriber has released them. A query releases what a batch
has read once Spark has committed that batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from .client import StreamCut
from .errors import PravegaAccessDenied, PravegaStreamMissing, PravegaUnavailable
from .segment import PravegaSplit

__all__ = ["Retention", "Subscriber"]

log = logging.getLogger("lowmark")


class Subscriber(Protocol):
    """The calls to a `PravegaGroup`."""

    def subscribe(self, cuts: Mapping[str, StreamCut]) -> None: ...
    def release(self, cuts: Mapping[str, StreamCut]) -> None: ...
    def close(self) -> None: ...


class Retention:
    """Keeps and releases what a query reads.

    Args:
        group: makes the group, when it is needed.
        cuts: positions by split -> the StreamCuts at which they stand.
        subscribes: whether it makes the group; otherwise somebody else does.
    """

    def __init__(
        self,
        group: Callable[[], Subscriber],
        cuts: Callable[[Mapping[str, int]], Mapping[str, StreamCut]],
        *,
        subscribes: bool,
    ) -> None:
        self._make_group, self._cuts, self._subscribes = group, cuts, subscribes
        self._group: Subscriber | None = None
        self._failed = False

    def keep(self, splits: Sequence[PravegaSplit]) -> None:
        """Be a subscriber, from before the first batch on.

        Raises:
            PravegaGroupTaken, PravegaAccessDenied, PravegaUnavailable, PravegaStreamMissing: see there.
        """
        if self._subscribes and splits:
            self._group = self._make_group()
            self._group.subscribe(self._standing(splits))
            self._subscribes = False

    def release(self, splits: Sequence[PravegaSplit]) -> None:
        """Release the events before the splits' starts. What fails now is made good with the next batch."""
        if not splits:
            return
        try:
            if self._group is None:
                self._group = self._make_group()
            self._group.release(self._standing(splits))
        except (PravegaUnavailable, PravegaAccessDenied, PravegaStreamMissing) as failed:
            if not self._failed:
                log.warning("what was read is not released to Pravega's retention: %s", failed)
            self._failed = True
            self._forget()  # its generation may be an old one, where the group was reset meanwhile
        else:
            self._failed = False

    def close(self) -> None:
        self._forget()

    def _forget(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None

    def _standing(self, splits: Sequence[PravegaSplit]) -> Mapping[str, StreamCut]:
        return self._cuts({split.split_id: split.start for split in splits})
