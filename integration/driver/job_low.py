"""The low watermark that a query shares with the other queries of its job, beside that of the query's own splits."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

_ROUND_US = 5_000_000
"""A low watermark that a query reported so long ago is in the job's, because a round takes about a second."""


@dataclass
class JobLow:
    """One query's knowledge of the low watermark of a job. Times are microseconds.

    >>> job = JobLow(low_us=None, since_us=0)
    >>> job.rise(5_000, now_us=1), job.rise(5_000, now_us=2), job.low_us, job.since_us
    (True, False, 5000, 1)
    """

    low_us: int | None  # published by the coordinator; first the one in the offset that the run started from
    since_us: int  # when it last rose, or else when the run began
    rises: int = 0
    _own_rises: deque[tuple[int, int]] = field(default_factory=deque)  # when the splits' low watermark rose, to what
    _told_us: int | None = None
    _told_plan: int | None = None  # the unreported plan when the splits' low watermark was told; None: no such plan
    _sure_us: int | None = None

    def rise(self, low_us: int | None, now_us: int) -> bool:
        """Take a published low watermark; the job's never goes back. Return whether it rose."""
        if low_us is None or (self.low_us is not None and low_us <= self.low_us):
            return False
        self.rises += 1  # before the value, because an epoch without news does no harm
        self.low_us, self.since_us = low_us, now_us
        return True

    def note_own(self, low_us: int | None, now_us: int) -> None:
        """Note the splits' low watermark; of its rises before the last round only the newest is kept."""
        rises = self._own_rises
        if low_us is not None and (not rises or low_us > rises[-1][1]):
            rises.append((now_us, low_us))
            while len(rises) > 1 and rises[1][0] <= now_us - _ROUND_US:
                rises.popleft()

    def held_by_others(self, now_us: int) -> bool:
        """Whether the query's splits were beyond the job's low watermark a round ago already."""
        rises = [low_us for at_us, low_us in self._own_rises if at_us <= now_us - _ROUND_US]
        return bool(rises) and (self.low_us is None or self.low_us < rises[-1])

    def tell(self, own_us: int | None, plan: int | None) -> None:
        """Call before the reader is answered, with the splits' low watermark and the number of the unreported plan.

        A newer plan proves that Spark wrote the previous answer.
        """
        if plan != self._told_plan:
            self._sure_us = self._told_us
        self._told_us, self._told_plan = own_us, plan

    def sure_us(self, own_us: int | None, plan: int | None) -> int | None:
        """The splits' low watermark without a plan that may not be written, because a restart may plan less."""
        return own_us if plan is None else self._sure_us
