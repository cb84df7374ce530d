"""When is a quiet split idle? Time is an argument: nothing here reads a clock.

A split is idle when it was silent for *strictly longer* than the timeout, counting only the time in which the split
could be read, and is not known to have rows waiting. Unknown backlog: the timeout alone decides. Known
backlog: never; a split with a backlog is lagging, not idle.

The given times are moments up to which the source was read, not the wall clock: while a batch runs for five minutes,
nothing else is read, so the silence of other splits proves nothing.

A silence of all splits makes no split idle, because a producer may pause, a broker may be away, or the night may be
quiet. So unless the user asks for time alone, only time in which splits of the stream delivered counts. A gap
between two deliveries of up to half the timeout counts wholly. A longer gap is a silence of all splits, and counts for
a quarter of the timeout, whatever its length. The consequences:

- If the splits deliver at least every half of the timeout, a dead split is left out with the first delivery after
  the timeout, so after one and a half timeouts at the latest.
- A pause of all splits leaves out no split that was heard within ``p`` before the pause and comes back within ``x``
  after the first split, if ``p + x`` is at most three quarters of the timeout (half of the timeout, if the pause is no
  longer than half of the timeout).
- If the splits deliver less often, a dead split is left out with the fifth delivery. If long gaps did not count at
  all, the stream would wait for the dead split for ever.

With progressive idleness the timeout is short when the stream begins and grows evenly with the age of the stream, which
begins when its first split becomes known. The rules above hold for the present timeout.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from lowmark.watermark.state import IdleClock, SplitId, split_order
from lowmark.watermark.strategy import ProgressiveIdleness
from sortedcontainers import SortedList

FLOW_SHARE = 2
"""A gap between deliveries counts wholly up to the timeout divided by this number."""

PAUSE_SHARE = 4
"""A longer gap counts as the timeout divided by this number."""

_PAUSES_KEPT = 16
_SPANS_KEPT = 1_000


class FlowClock:
    """Counts time only where a stream delivers, for silences with a timeout of some microseconds, more than 0.

    >>> clock = FlowClock(timeout_us=40)
    >>> for at_us in (100, 120, 600): clock.delivered(at_us)    # 10, then 20, then 10 of the long gap
    >>> clock.total_us, clock.at(110), clock.at(300), clock.at(595)
    (40, 20, 30, 35)
    """

    def __init__(self, timeout_us: int) -> None:
        self.measure(timeout_us)
        self.total_us = 0
        """The time counted up to now."""
        self._starts_us: list[int] = []  # spans that count, disjoint,
        self._ends_us: list[int] = []
        self._before_us: list[int] = []  # and the time counted before each span

    def measure(self, timeout_us: int) -> None:
        """Take another timeout from the next delivery on."""
        self._short_us, self._pause_us = max(1, timeout_us // FLOW_SHARE), max(1, timeout_us // PAUSE_SHARE)

    def delivered(self, at_us: int) -> None:
        """Note that a split had rows when the source was read up to ``at_us``. Old news changes nothing."""
        last_us = self._ends_us[-1] if self._ends_us else None
        if last_us is not None and at_us <= last_us:
            return
        if last_us is not None and at_us - last_us <= self._short_us:
            self._ends_us[-1] = at_us
            self.total_us += at_us - last_us
            return
        self._starts_us.append(at_us - self._pause_us)
        self._ends_us.append(at_us)
        self._before_us.append(self.total_us)
        self.total_us += self._pause_us
        if len(self._starts_us) > _SPANS_KEPT:  # the oldest span lies many timeouts back
            del self._starts_us[0], self._ends_us[0], self._before_us[0]

    def at(self, us: int) -> int:
        """The time counted up to a moment. For moments after the last delivery the answer may grow later."""
        span = bisect_right(self._starts_us, us) - 1
        if span < 0:
            return self._before_us[0] if self._before_us else 0
        return self._before_us[span] + min(us, self._ends_us[span]) - self._starts_us[span]


@dataclass(slots=True, eq=False)
class _Timer:
    heard_us: int  # never decreases
    paused_at_us: int | None = None
    pauses: tuple[tuple[int, int], ...] = ()  # (from, to) of the pauses that ended after ``heard_us``
    bound_us: int | None = None  # the key of the timer in the queue


class Idleness:
    """Timers of silence, one for each split that is not idle. O(log n) amortised.

    A sorted queue holds each timer that may run out, once, under a lower bound of the begin of its silence: hearing a
    split is a look-up, and its timer is queued again when the bound comes up. Paused timers are not in the queue.

    Args:
        timeout_us: how long a split may be silent, microseconds, more than 0.
        clock: which time counts; ``FLOW`` counts the time given to ``delivered`` and ignores ``until_us``.
        grows: how the timeout grows with the time given to ``read``, or None: the timeout is constant.
        began_us: when the stream began, for ``grows``; None: with the first ``begin`` or ``read``.

    Source: Flink's ``WatermarksWithIdleness``; Kafka Streams' ``PartitionGroup.readyToProcess`` (KIP-695) for the
        backlog; FLIP-471 for pauses.
    """

    def __init__(
        self,
        timeout_us: int,
        clock: IdleClock = IdleClock.TIME,
        *,
        grows: ProgressiveIdleness | None = None,
        began_us: int | None = None,
    ) -> None:
        self._whole_us, self._grows, self._began_us = timeout_us, grows, began_us
        self.timeout_us = timeout_us if grows is None else grows.timeout_us(timeout_us, 0)
        """The present timeout, microseconds; never decreases."""
        self._flow = FlowClock(self.timeout_us) if clock is IdleClock.FLOW else None
        self._timers: dict[SplitId, _Timer] = {}
        self._queue: SortedList[tuple[int, bool, SplitId]] = SortedList()
        self._overdue: dict[SplitId, _Timer] = {}  # splits silent for too long that are not idle for their backlog

    def __len__(self) -> int:
        return len(self._timers)

    @property
    def young_since_us(self) -> int | None:
        """When the stream began, while its timeout grows; None before, afterwards, and for a constant timeout."""
        return None if self.timeout_us == self._whole_us else self._began_us

    def begin(self, at_us: int) -> None:
        """Count the age of the stream from here, unless it began already."""
        if self._grows is not None and self._began_us is None:
            self._began_us = at_us

    def read(self, until_us: int) -> None:
        if self._grows is None:
            return
        self.begin(until_us)
        assert self._began_us is not None
        self.timeout_us = max(self.timeout_us, self._grows.timeout_us(self._whole_us, until_us - self._began_us))
        if self._flow is not None:
            self._flow.measure(self.timeout_us)

    def delivered(self, at_us: int) -> None:
        """See `FlowClock.delivered`."""
        if self._flow is not None:
            self._flow.delivered(at_us)

    def heard(self, split: SplitId, at_us: int) -> None:
        """Note that a split delivered rows, or became known, at ``at_us``. Old news changes nothing."""
        timer = self._hear(split, at_us)
        if self._waits(split, timer):
            self._queue.add(self._entry(split, timer))

    def heard_all(self, heard_us: Iterable[tuple[SplitId, int]]) -> None:
        timers = [(split, self._hear(split, at_us)) for split, at_us in heard_us]
        self._queue.update([self._entry(split, timer) for split, timer in timers if self._waits(split, timer)])

    def pause(self, split: SplitId, at_us: int) -> None:
        """Stop counting the silence of a split that is not read from now on. Unknown or paused already: no-op."""
        timer = self._timers.get(split)
        if timer is not None and timer.paused_at_us is None:
            timer.paused_at_us = at_us
            self._overdue.pop(split, None)
            self._dequeue(split, timer)

    def resume(self, split: SplitId, at_us: int) -> None:
        """Count the silence of a split again; the time since ``pause`` does not count. Not paused: no-op."""
        timer = self._timers.get(split)
        if timer is not None and timer.paused_at_us is not None:
            if at_us > max(timer.paused_at_us, timer.heard_us):
                # A pause is kept until the split is heard after it, because a report of an earlier plan may still come.
                timer.pauses = _few((*timer.pauses, (timer.paused_at_us, at_us)))
            timer.paused_at_us = None
            self._queue.add(self._entry(split, timer))

    def forget(self, split: SplitId) -> None:
        """Stop timing a split: it finished, was removed, or is left out for another reason."""
        timer = self._timers.pop(split, None)
        if timer is not None:
            self._overdue.pop(split, None)
            self._dequeue(split, timer)

    def forget_all(self, splits: Collection[SplitId]) -> None:
        if len(splits) * 4 < len(self._timers):
            for split in splits:
                self.forget(split)
            return
        for split in splits:
            if self._timers.pop(split, None) is not None:
                self._overdue.pop(split, None)
        self._queue = SortedList(entry for entry in self._queue if entry[2] in self._timers)

    def counts_from(self, split: SplitId, at_us: int) -> bool:
        """Whether a timed split was last heard at this moment, and not paused since."""
        timer = self._timers.get(split)
        return timer is not None and timer.heard_us == at_us and timer.paused_at_us is None and not timer.pauses

    def runs_out(self, heard_us: int, until_us: int) -> bool:
        """Whether a split last heard at ``heard_us``, and read since, is silent for too long at ``until_us``."""
        return self._now(until_us) - self._at(heard_us) > self.timeout_us

    def deadline_us(self, since_us: int) -> int:
        """The first moment at which a silence that begins at ``since_us`` is too long, by the time that counts."""
        at_us, grows, began_us = since_us + self.timeout_us + 1, self._grows, self._began_us
        if grows is None or began_us is None or self.timeout_us == self._whole_us:
            return at_us
        # The first moment after since + start + (whole - start) * (moment - began) / over, while the timeout grows.
        more_us, over_us = self._whole_us - grows.at_start_us, grows.over_us
        whole_at_us = since_us + self._whole_us + 1
        if more_us < over_us:
            crossed_us = (since_us + grows.at_start_us) * over_us - more_us * began_us
            whole_at_us = min(whole_at_us, crossed_us // (over_us - more_us) + 1)
        return max(at_us, whole_at_us)

    def left_us(self, split: SplitId, until_us: int) -> int | None:
        """How much more silence makes this split idle, by the clock that counts; None if the split is not timed."""
        timer = self._timers.get(split)
        if timer is None or timer.paused_at_us is not None:
            return None
        return self.timeout_us - (self._now(until_us) - self._since(timer))

    def quiet(self, until_us: int, backlog_rows: Mapping[SplitId, int]) -> list[SplitId]:
        """Name the splits that became idle, sorted; their timers begin again with their next ``heard``.

        Args:
            until_us: the moment up to which the source was read; same clock as ``heard``.
            backlog_rows: unread rows of each split; the backlog of a missing split is unknown.
        """
        now_us = self._now(until_us)
        while self._queue and self._queue[0][0] + self.timeout_us < now_us:
            bound_us, _, split = self._queue.pop(0)
            timer = self._timers[split]
            timer.bound_us = None
            if self._since(timer) > bound_us:
                self._queue.add(self._entry(split, timer))
            else:
                self._overdue[split] = timer
        named = [
            split
            for split, timer in self._overdue.items()
            if not backlog_rows.get(split, 0) > 0 and now_us - self._since(timer) > self.timeout_us
        ]
        for split in named:
            self.forget(split)
        return sorted(named, key=split_order)

    def next_deadline_us(self) -> int | None:
        """The first moment at which silence alone could make a split idle; None if only an event does.

        Overdue splits with rows waiting do not count, because time alone changes nothing for them.
        """
        while self._flow is None and self._queue:
            bound_us, _, split = self._queue[0]
            timer = self._timers[split]
            if self._since(timer) == bound_us:
                return self.deadline_us(bound_us)
            self._dequeue(split, timer)
            self._queue.add(self._entry(split, timer))
        return None

    # -- how

    def _hear(self, split: SplitId, at_us: int) -> _Timer:
        timer = self._timers.get(split)
        if timer is None:
            timer = self._timers[split] = _Timer(at_us)
        elif at_us > timer.heard_us:
            timer.heard_us = at_us
            if timer.pauses:
                timer.pauses = tuple(pause for pause in timer.pauses if pause[1] > at_us)
            self._overdue.pop(split, None)
        return timer

    def _now(self, until_us: int) -> int:
        return until_us if self._flow is None else self._flow.total_us

    def _at(self, us: int) -> int:
        return us if self._flow is None else self._flow.at(us)

    def _since(self, timer: _Timer) -> int:
        """The begin of its silence on the clock, moved later by the length of its pauses; never decreases."""
        since_us = self._at(timer.heard_us)
        for from_us, to_us in timer.pauses:
            since_us += self._at(to_us) - self._at(max(from_us, timer.heard_us))
        return since_us

    def _waits(self, split: SplitId, timer: _Timer) -> bool:
        return timer.bound_us is None and timer.paused_at_us is None and split not in self._overdue

    def _entry(self, split: SplitId, timer: _Timer) -> tuple[int, bool, SplitId]:
        timer.bound_us = self._since(timer)
        return timer.bound_us, *split_order(split)

    def _dequeue(self, split: SplitId, timer: _Timer) -> None:
        if timer.bound_us is not None:
            self._queue.remove((timer.bound_us, *split_order(split)))
            timer.bound_us = None


class NeverIdle:
    """The timers of a stream without an idle timeout: no silence is too long, so nothing is kept.

    >>> timers = NeverIdle()
    >>> timers.heard("a", 0); timers.quiet(10**18, {}), timers.next_deadline_us()
    ([], None)
    """

    timeout_us: None = None
    young_since_us: None = None

    def _nothing(self, *_: object) -> None: ...

    begin = read = delivered = heard = heard_all = pause = resume = forget = forget_all = _nothing

    def deadline_us(self, _heard_us: int) -> None:
        return None

    def next_deadline_us(self) -> None:
        return None

    def counts_from(self, _split: SplitId, _at_us: int) -> bool:
        return True

    def runs_out(self, _heard_us: int, _until_us: int) -> bool:
        return False

    def quiet(self, _until_us: int, _backlog_rows: Mapping[SplitId, int]) -> list[SplitId]:
        return []


def _few(pauses: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Limit the number of pauses: the two oldest become one of their length, just before the end of the second."""
    if len(pauses) <= _PAUSES_KEPT:
        return pauses
    (first_us, until_us), (from_us, to_us), *rest = pauses
    return (from_us - (until_us - first_us), to_us), *rest
