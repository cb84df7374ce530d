"""The common part of planners that ask a system: counts, silent splits, and unsubscribed splits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Generic

from lowmark.sources.api import SplitEnd, SplitPlanner, SplitT
from lowmark.sources.metric_group import MetricGroup
from lowmark.watermark.printable import some_of

from .unanswered import Unanswered

log = logging.getLogger("lowmark")

FORGET_SECONDS = 600.0
"""How long a split is remembered after the last question about it."""


class AskingPlanner(SplitPlanner[SplitT], Generic[SplitT]):
    """A planner that asks a system about its splits.

    Args:
        system: the system and its place, such as "Kafka at broker:9092".
        splits: what its splits are called.
    """

    def __init__(self, system: str, splits: str, now_seconds: Callable[[], float]) -> None:
        self.metrics = MetricGroup()
        self._system, self._now_seconds = system, now_seconds
        self._unanswered = Unanswered(system, splits, self.metrics, now_seconds=now_seconds)
        self._asked_seconds: dict[str, float] = {}  # when each split was last asked about
        self._dropped: set[str] = set()

    def metric_values(self) -> Mapping[str, float]:
        return self.metrics.values()

    def trouble(self) -> str | None:
        return self._unanswered.text

    def _drop_unsubscribed(
        self, splits: Sequence[SplitT], wants: Callable[[SplitT], bool], again: str = "from their first record"
    ) -> dict[str, SplitEnd]:
        """Finish splits that are no longer wanted, because they would hold the watermark for ever."""
        dropped = [split for split in splits if not wants(split)]
        if new := sorted({split.split_id for split in dropped} - self._dropped):
            self._dropped.update(new)
            log.warning(
                "%s: %s are not subscribed any more: they are read no further and hold the watermark no longer. If "
                "they are subscribed again, they are read like new ones, %s.",
                self._system, some_of(new), again,
            )  # fmt: skip
        return {split.split_id: SplitEnd(split.start, rows=0, finished=True) for split in dropped}

    def _long_not_asked(self, splits: Sequence[SplitT]) -> list[str]:
        """Note a question about these splits; return, once, the splits without a question for too long.

        A stream may have had many splits over years. A single question is no proof, because it may be about some of
        the splits.
        """
        now = self._now_seconds()
        self._asked_seconds |= {split.split_id: now for split in splits}
        names = [name for name, seconds in self._asked_seconds.items() if now > seconds + FORGET_SECONDS]
        for name in names:
            del self._asked_seconds[name]
        self._dropped.difference_update(names)
        return names
