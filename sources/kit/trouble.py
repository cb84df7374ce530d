"""Says in words which splits of a planner get no answer, for `SplitPlanner.trouble`."""

from __future__ import annotations

import time
from collections.abc import Callable

from lowmark.watermark import format_time_us
from lowmark.watermark.errors import without_login

__all__ = ["Trouble"]


class Trouble:
    """Remembers since when some splits get no answer.

    Args:
        system: the system that does not answer, and its place.
        splits: the system's word for its splits.
        now_us: the wall clock, microseconds since the epoch.

    Attributes:
        text: the trouble in words; None: no trouble.

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
        """Note how many splits got no answer.

        Args:
            silent: number of splits without an answer.
            asked: number of splits in the question.
            example: id of a split without an answer.
            cause: the reason, without secrets.
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
