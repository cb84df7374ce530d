"""Which splits a planner gets no answer for, in words: what `SplitPlanner.trouble` says."""

from __future__ import annotations

import time
from collections.abc import Callable

from lowmark.watermark import format_time_us
from lowmark.watermark.errors import without_login

__all__ = ["Trouble"]


class Trouble:
    """Remembers since when some splits are not answered for.

    Args:
        system: the one that does not answer, and where.
        splits: what its splits are called.
        now_us: the wall clock, microseconds since the epoch.

    Attributes:
        text: what is amiss; None: nothing.

    >>> trouble = Trouble("Kinesis at eu-west-1", "shards", now_us=lambda: 1_767_268_800_000_000)
    >>> trouble.see(2, 8, "orders/shardId-000000000001", "ThrottlingException: slow down")
    >>> trouble.text.partition(", such as ")[0]
    'Kinesis at eu-west-1 gives no answer for 2 of 8 shards since 2026-01-01 12:00:00.000 UTC'
    >>> trouble.see(0, 8)
    >>> trouble.text is None
    True
    """

    def __init__(
        self, system: str, splits: str, *, now_us: Callable[[], int] = lambda: time.time_ns() // 1_000
    ) -> None:
        self._system, self._splits, self._now_us = system, splits, now_us
        self._since_us = 0
        self.text: str | None = None

    def see(self, silent: int, asked: int, example: str = "", cause: str = "") -> None:
        """Take in that so many of those that were asked about have not answered.

        Args:
            silent: how many of them.
            asked: how many were asked about.
            example: id of one of the silent.
            cause: why, without secrets.
        """
        if not silent:
            self.text = None
            return
        if self.text is None:
            self._since_us = self._now_us()
        self.text = (
            f"{without_login(self._system)} gives no answer for {silent} of {asked} {self._splits} since "
            f"{format_time_us(self._since_us)}, such as {example}: {without_login(cause):.300}"
        )
