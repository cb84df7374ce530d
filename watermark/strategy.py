"""How a stream's watermark is made: Flink's ``WatermarkStrategy``, as frozen data.

Every ``with_`` method returns a new strategy, and the order of the methods does not matter. Durations are ``timedelta``
or texts as in Spark and ISO-8601 ("10 seconds", "PT10S"); the fields hold microseconds.

One file, because a strategy is one frozen class, with the docstring and the check of each option.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from .duration import duration_us, format_duration_us
from .errors import InvalidStrategy, shown
from .generator import LOWEST_US, BoundedOutOfOrderness, NoWatermarks, WatermarkGenerator, bounded_watermark_us
from .moment import LEAST_US, MILLISECOND_US, MOST_US
from .names import MOST_NAME, unfit_character
from .state import AllIdle, IdleClock

Duration = str | timedelta
# Any, not object, so that type checkers accept a function of the user with a narrower row type.
TimestampAssigner = Callable[[Any, int | None], int]
GeneratorFactory = Callable[[], WatermarkGenerator]

FUTURE_GUARD_US = 5 * 60 * 1_000_000
"""The default future guard: 5 minutes."""

GROWN_AFTER_US = 3_600_000_000
"""The default age at which the idle timeout of progressive idleness has grown: 1 hour."""


@dataclass(frozen=True, slots=True)
class AlignmentParams:
    """Splits and streams of one group stay within a drift of each other.

    Raises:
        InvalidStrategy: a value is out of range.
    """

    group: str  # every stream with this name takes part
    max_drift_us: int  # how far ahead of the group's minimum a split may be read, 0 or more
    update_interval_us: int  # how often the cap is announced, more than 0

    def __post_init__(self) -> None:
        group: object = self.group  # callers may ignore the types
        if not isinstance(group, str) or not group:
            setting = "with_watermark_alignment(group=)"
            raise InvalidStrategy(setting, repr(group), "a name", "streams of one group name are aligned.")
        _check_least("with_watermark_alignment(max_drift=)", self.max_drift_us, 0)
        _check_least("with_watermark_alignment(update_interval=)", self.update_interval_us, 1)


@dataclass(frozen=True, slots=True)
class AdaptiveBound:
    """See `WatermarkStrategy.for_adaptive_out_of_orderness`."""

    coverage: float  # the share of rows that shall be in time: more than 0, less than 1
    at_least_us: int  # the smallest bound, whole milliseconds
    at_most_us: int  # the largest bound, whole milliseconds, not below `at_least_us`

    def __post_init__(self) -> None:
        given: object = self.coverage  # callers may ignore the types
        setting = "for_adaptive_out_of_orderness"
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < 1:
            expected = "more than 0, less than 1"
            raise InvalidStrategy(f"{setting}(coverage=)", repr(given), expected, "0.999 is all but one row in 1,000.")
        for name, us in (("at_least", self.at_least_us), ("at_most", self.at_most_us)):
            if us < 0 or us % MILLISECOND_US:
                where, got = f"{setting}({name}=)", format_duration_us(us)
                raise InvalidStrategy(where, got, "whole milliseconds", "Spark's watermark counts them.")
        if self.at_least_us > self.at_most_us:
            got = f"at_least={format_duration_us(self.at_least_us)}, at_most={format_duration_us(self.at_most_us)}"
            raise InvalidStrategy(setting, got, "at_least of at_most or less", "bounds stay between the two.")


@dataclass(frozen=True, slots=True)
class ProgressiveIdleness:
    """An idle timeout that is short when a stream begins and grows evenly with its age.

    Source: Confluent's progressive idleness for Flink.
    """

    at_start_us: int  # the timeout of a new stream
    over_us: int  # the age from which on the timeout is the whole timeout

    def timeout_us(self, whole_us: int, age_us: int) -> int:
        """The timeout of a stream of this age, rounded down.

        >>> grows = ProgressiveIdleness(at_start_us=10, over_us=100)
        >>> [grows.timeout_us(60, age_us) for age_us in (-1, 0, 50, 99, 100, 500)]
        [10, 10, 35, 59, 60, 60]
        """
        return self.at_start_us + (whole_us - self.at_start_us) * min(max(0, age_us), self.over_us) // self.over_us


@dataclass(frozen=True, slots=True)
class WatermarkStrategy:
    """How a stream's watermark is made. Build one with the ``for_`` methods.

    >>> strategy = (WatermarkStrategy.for_bounded_out_of_orderness("10 seconds")
    ...             .with_watermark_alignment(group="g", max_drift="30 seconds")
    ...             .with_idleness("1 minute"))
    >>> strategy.idle_timeout_us, strategy.alignment.max_drift_us, strategy.delay_ms
    (60000000, 30000000, 10000)

    Attributes:
        out_of_orderness_us: how late a row may be; ``dropDuplicatesWithinWatermark`` uses this delay too.
        generator: makes the generator of a split, or None for the built-in generator.
        timestamp_assigner: finds the event time of a row, or None for the row's own event time.
        idle_timeout_us: silence after which a split is left out, or None for never.
        progressive: how the idle timeout grows with the age of the stream, or None for a constant timeout.
        adaptive: how each split's bound is found, with `out_of_orderness_us` as the smallest; None: it is the bound.
        idle_clock: which time counts as silence; None: FLOW while the low watermark holds when all are idle, else TIME.
        future_guard_us: how far ahead of the clock an event time may be and still count, or None for any.
        grace_us: how long a silent new split may hold; None: 1 minute if it is known to be empty, else for ever.
        all_idle_delay_us: how far ``advance`` stays behind the time up to which the sources were read.
        quorum: share of the splits that must take part before idle splits are left out, or None for any share.
        percentile: share of the splits that the low watermark waits for, in per cent, or None for all splits.

    Raises:
        InvalidStrategy: a value is out of range, or a setting lacks another setting that it needs.
    """

    out_of_orderness_us: int = 0
    generator: GeneratorFactory | None = None
    timestamp_assigner: TimestampAssigner | None = None
    idle_timeout_us: int | None = None
    future_guard_us: int | None = FUTURE_GUARD_US
    alignment: AlignmentParams | None = None
    grace_us: int | None = None
    all_idle: AllIdle = AllIdle.HOLD
    all_idle_delay_us: int | None = None
    quorum: float | None = None
    percentile: float | None = None
    idle_clock: IdleClock | None = None
    adaptive: AdaptiveBound | None = None
    progressive: ProgressiveIdleness | None = None

    def __post_init__(self) -> None:
        _check_least("out-of-orderness", self.out_of_orderness_us, 0)
        _check_least("with_idleness", self.idle_timeout_us, 1)
        if self.progressive is not None:
            _check_progressive(self.progressive, self.idle_timeout_us)
        _check_least("with_future_guard", self.future_guard_us, 0)
        _check_least("with_grace", self.grace_us, 1)
        _check_least("with_all_idle(delay=)", self.all_idle_delay_us, 0)
        for setting, function in (("for_generator", self.generator), ("timestamp assigner", self.timestamp_assigner)):
            if function is not None and not callable(function):
                raise InvalidStrategy(
                    setting, repr(function), "a function", "pass the function itself, not its result."
                )
        if (self.all_idle is AllIdle.ADVANCE) != (self.all_idle_delay_us is not None):
            got = f"{self.all_idle.value!r} {'without' if self.all_idle_delay_us is None else 'with'} a delay"
            expected, hint = 'a delay with "advance", and only there', 'with_all_idle("advance", delay="1 minute").'
            raise InvalidStrategy("with_all_idle", got, expected, hint)
        if self.idle_clock is IdleClock.FLOW and self.all_idle is not AllIdle.HOLD:
            got = f'"flow" beside with_all_idle({self.all_idle.value!r})'
            hint = "by the flow no split is idle while all are silent, so nothing would ever follow."
            raise InvalidStrategy("with_idleness(clock=)", got, 'clock="time", or none', hint)
        _check_share("with_quorum", self.quorum, 1, "0.5 is half of the splits.")
        _check_share("with_percentile", self.percentile, 100, "99.0 passes the slowest 1 % of the splits.", above=1)
        if self.quorum is not None and self.all_idle is not AllIdle.HOLD:
            got = f"{self.quorum!r} beside with_all_idle({self.all_idle.value!r})"
            hint = "one goes on when no split takes part, and the other forbids that."
            raise InvalidStrategy("with_quorum", got, "only one of the two", hint)

    # -- the kind of watermark

    @classmethod
    def for_bounded_out_of_orderness(cls, bound: Duration) -> WatermarkStrategy:
        """Expect rows at most ``bound`` late: the watermark is the largest event time - bound - 1 ms."""
        return cls(out_of_orderness_us=duration_us(bound, what="out-of-orderness"))

    @classmethod
    def for_adaptive_out_of_orderness(
        cls, coverage: float = 0.999, at_least: Duration = "1 second", at_most: Duration = "10 minutes"
    ) -> WatermarkStrategy:
        """Measure the lateness of rows: each split has a bound of its own, which follows its rows.

        Until some hundred rows of a split were seen its bound is ``at_most``. A stream that our sources read is counted
        row by row: at most a share of 1 - ``coverage`` of a split's rows is later than its bound. In a wrapped stream
        Spark gives only the earliest row of each batch: ``coverage`` is then the share of rows in batches without a
        late row, and measuring it costs about a quarter more per row, as ``detail=True`` does. Lateness that comes back
        only after some thousand batches is forgotten meanwhile. ``dropDuplicatesWithinWatermark`` uses ``at_most`` as
        its delay.

        Args:
            coverage: the share of rows that shall be in time, more than 0, less than 1.
            at_least: the smallest bound; whole milliseconds.
            at_most: the largest bound; whole milliseconds.

        Raises:
            InvalidStrategy: a value is out of range.

        Source: Confluent's automatic watermarks for Flink.

        >>> strategy = WatermarkStrategy.for_adaptive_out_of_orderness(coverage=0.99, at_most="5 minutes")
        >>> strategy.adaptive.coverage, strategy.delay_ms
        (0.99, 300000)
        """
        least_us = duration_us(at_least, what="at_least")
        adaptive = AdaptiveBound(coverage, least_us, duration_us(at_most, what="at_most"))
        return cls(out_of_orderness_us=least_us, adaptive=adaptive)

    @classmethod
    def for_monotonous_timestamps(cls) -> WatermarkStrategy:
        """Expect rising event times in every split: a bound of 0."""
        return cls()

    @classmethod
    def for_generator(cls, factory: GeneratorFactory, out_of_orderness: Duration = "0 seconds") -> WatermarkStrategy:
        """Make watermarks in Python, by a generator for each split in each task of a batch.

        The largest watermark of a split counts, over its tasks and batches.

        Args:
            factory: makes one generator. A generator knows nothing of other tasks and earlier batches. The factory must
                be picklable where executors run it.
            out_of_orderness: how late a row may be; the generator does not use it,
                ``dropDuplicatesWithinWatermark`` does.
        """
        return cls(generator=factory, out_of_orderness_us=duration_us(out_of_orderness, what="out-of-orderness"))

    @classmethod
    def no_watermarks(cls) -> WatermarkStrategy:
        """Give the stream no watermark, so that nothing waits for its event time."""
        return cls(generator=NoWatermarks)

    # -- other settings

    def with_timestamp_assigner(self, assigner: TimestampAssigner) -> WatermarkStrategy:
        """Find the event time of a row in Python: ``assigner(row, own time or None)`` returns microseconds, UTC."""
        return replace(self, timestamp_assigner=assigner)

    def with_idleness(
        self,
        timeout: Duration,
        clock: str | IdleClock | None = None,
        *,
        at_start: Duration | None = None,
        over: Duration | None = None,
    ) -> WatermarkStrategy:
        """Leave a split out that is silent for longer than ``timeout`` and has no backlog. Off by default.

        Args:
            timeout: more than 0.
            clock: the time that counts as silence. "flow": only time in which other splits of the stream deliver. A gap
                between deliveries longer than half the timeout is a silence of all splits, and counts for a quarter of
                the timeout. So no split becomes idle in a pause, and after the pause the rows of each split have three
                quarters of the timeout to arrive, less the silence of the split before the pause. "time": all time, as
                in Flink. By default "flow"; "time" if ``with_all_idle`` lets the low watermark go on.
            at_start: progressive idleness: the timeout when the stream begins. From there the timeout grows evenly
                with the stream's age, so that a new query soon shows results and an old query is patient. A restart
                makes no stream young. None: always ``timeout``.
            over: the age from which on the timeout is ``timeout``; at least ``timeout``. By default 1 hour, or
                ``timeout`` if that is longer.

        Raises:
            InvalidStrategy: an unknown clock, "flow" with a ``with_all_idle`` other than "hold", ``at_start`` of 0
                or more than ``timeout``, or ``over`` without ``at_start`` or less than ``timeout``.

        >>> strategy = WatermarkStrategy().with_idleness("5 minutes", at_start="15 seconds", over="1 hour")
        >>> [strategy.progressive.timeout_us(strategy.idle_timeout_us, age_us) for age_us in (0, 1_800_000_000)]
        [15000000, 157500000]
        """
        try:
            counts = None if clock is None else IdleClock(clock)
        except ValueError:
            names = " or ".join(f'"{known.value}"' for known in IdleClock)
            hint = '"time" leaves out by the timeout alone, as Flink does.'
            raise InvalidStrategy("with_idleness(clock=)", repr(clock), names, hint) from None
        timeout_us = duration_us(timeout, what="idleness")
        progressive = None
        if at_start is not None:
            over_us = max(GROWN_AFTER_US, timeout_us) if over is None else duration_us(over, what="idleness over")
            progressive = ProgressiveIdleness(duration_us(at_start, what="idleness at the start"), over_us)
        elif over is not None:
            hint = 'with_idleness("5 minutes", at_start="15 seconds", over="1 hour").'
            raise InvalidStrategy("with_idleness(over=)", repr(over), "at_start beside it", hint)
        return replace(self, idle_timeout_us=timeout_us, idle_clock=counts, progressive=progressive)

    def with_future_guard(self, ahead: Duration | None) -> WatermarkStrategy:
        """Let rows further ahead of the clock than ``ahead`` not move the watermark; None switches the guard off."""
        return replace(self, future_guard_us=None if ahead is None else duration_us(ahead, what="future guard"))

    def with_watermark_alignment(
        self, group: str | None = None, max_drift: Duration | None = None, update_interval: Duration = "1 second"
    ) -> WatermarkStrategy:
        """Read no split further ahead than ``max_drift`` of the slowest in the group.

        Raises:
            InvalidStrategy: group or drift is missing, the group has no name, or the interval is 0.

        Source: FLIP-182, FLIP-217, FLIP-296.
        """
        if group is None or max_drift is None:
            got, example = f"group={group!r}, max_drift={max_drift!r}", '(group="orders", max_drift="30 seconds")'
            hint = f"with_watermark_alignment{example}, or without_watermark_alignment() for an unlimited drift."
            raise InvalidStrategy("with_watermark_alignment", got, "both group and max_drift", hint)
        drift_us = duration_us(max_drift, what="max drift")
        interval_us = duration_us(update_interval, what="update interval")
        aligned = replace(self, alignment=AlignmentParams(group, drift_us, interval_us))
        # Not checked in AlignmentParams, because a coordinator goes on with the names in its journal.
        setting, hint = "with_watermark_alignment(group=)", "the name stands in log lines and metrics."
        if (unfit := unfit_character(group)) is not None:
            raise InvalidStrategy(setting, repr(group), f"a name without {unfit}", hint)
        if len(group) > MOST_NAME:
            raise InvalidStrategy(setting, shown(group), f"{MOST_NAME:,} characters at most", hint)
        return aligned

    def without_watermark_alignment(self) -> WatermarkStrategy:
        """Let splits drift apart without limit: the default."""
        return replace(self, alignment=None)

    def with_grace(self, grace: Duration | None) -> WatermarkStrategy:
        """Limit how long a silent new split may hold the low watermark, with or without rows waiting."""
        return replace(self, grace_us=None if grace is None else duration_us(grace, what="grace"))

    def with_all_idle(self, what: str | AllIdle, delay: Duration | None = None) -> WatermarkStrategy:
        """Say what the low watermark does while all splits are idle.

        Args:
            what: "hold" (the low watermark stays), "max" (it jumps to the largest watermark seen) or "advance" (it
                follows processing time at a distance of ``delay``, up to when the sources were read: not while a batch
                runs, and after a restart not before the sources were asked).
            delay: required for "advance", refused otherwise.
        """
        try:
            policy = AllIdle(what)
        except ValueError:
            names = ", ".join(f'"{policy.value}"' for policy in AllIdle)
            raise InvalidStrategy("with_all_idle", repr(what), f"one of {names}", 'the default is "hold".') from None
        delay_us = None if delay is None else duration_us(delay, what="all-idle delay")
        return replace(self, all_idle=policy, all_idle_delay_us=delay_us)

    def with_quorum(self, share: float) -> WatermarkStrategy:
        """Leave idle splits out only while at least this share of the unfinished splits takes part.

        Guards against an outage that silences most splits and would let the few other splits run ahead. The price:
        while fewer splits than the quorum take part, every idle split holds with its watermark, as if idleness were
        off, and a split that never spoke stops the low watermark.

        Args:
            share: more than 0, at most 1; 1 leaves no idle split out.

        Raises:
            InvalidStrategy: another share, or another ``with_all_idle`` than "hold".

        Source: Samza's ``WatermarkStates``.
        """
        return replace(self, quorum=share)

    def with_percentile(self, percentile: float) -> WatermarkStrategy:
        """Let the low watermark pass the slowest splits: 99.0 waits for all but the slowest 1 % of them.

        The price: the guarantee that no row is late. Spark drops rows of a passed split at or below the watermark in
        force; the status names the passed splits, silent splits first, and ``late_reports`` counts. With fewer than
        100 splits 99.0 passes no split.

        Args:
            percentile: in per cent, more than 1, at most 100, which is the true minimum; 0.99 is refused, because it
                would pass nearly all splits.

        Raises:
            InvalidStrategy: another percentile.

        Source: MillWheel (VLDB 2013), section 7.2, the 99 % low watermark.
        """
        return replace(self, percentile=percentile)

    # -- derived values

    @property
    def emits(self) -> bool:
        """Whether the stream has a watermark: False for ``no_watermarks()``."""
        return self.generator is not NoWatermarks

    @property
    def silence_clock(self) -> IdleClock:
        """``idle_clock``, with the default filled in."""
        if self.idle_clock is not None:
            return self.idle_clock
        return IdleClock.FLOW if self.all_idle is AllIdle.HOLD else IdleClock.TIME

    @property
    def runs_python(self) -> bool:
        """Whether rows must pass through Python: a timestamp assigner or a generator is set."""
        return self.timestamp_assigner is not None or (self.generator is not None and self.emits)

    @property
    def delay_ms(self) -> int:
        """The out-of-orderness for Spark's column metadata: milliseconds, rounded up."""
        bound_us = self.out_of_orderness_us if self.adaptive is None else self.adaptive.at_most_us
        return -(-bound_us // MILLISECOND_US)

    def create_generator(self) -> WatermarkGenerator:
        """Make the generator of one split and batch: the user's, or one with the strategy's bound."""
        return BoundedOutOfOrderness(self.out_of_orderness_us) if self.generator is None else self.generator()

    def watermark_of_max(self, max_us: int) -> int:
        """The watermark of a split whose largest event time is ``max_us``: a multiple of 1,000 us, perhaps negative.

        >>> WatermarkStrategy.for_bounded_out_of_orderness("10 seconds").watermark_of_max(60_000_999)
        49999000
        """
        return bounded_watermark_us(max_us, self.out_of_orderness_us)

    def watermarks_of_max(self, max_us: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Do ``watermark_of_max`` for many splits at once; shape (n,) in and out.

        >>> WatermarkStrategy(out_of_orderness_us=10_000).watermarks_of_max(np.array([1_337_000, -(2**63)])).tolist()
        [1326000, -9223372036854775000]
        """
        lost_us = self.out_of_orderness_us + MILLISECOND_US
        return (np.maximum(max_us, LOWEST_US + lost_us) - lost_us) // MILLISECOND_US * MILLISECOND_US

    def first_time_beyond(self, watermark_us: int) -> int:
        """The first event time whose watermark is beyond ``watermark_us``: the inverse of ``watermark_of_max``.

        A split that is allowed up to ``watermark_us`` reads the rows before the returned time.

        >>> WatermarkStrategy.for_bounded_out_of_orderness("10 seconds").first_time_beyond(49_999_000)
        60001000
        """
        if watermark_us < LOWEST_US:
            return LEAST_US
        return min(self.out_of_orderness_us + (watermark_us // MILLISECOND_US + 2) * MILLISECOND_US, MOST_US)


def _check_least(setting: str, got_us: int | None, least_us: int) -> None:
    if got_us is not None and got_us < least_us:
        expected = "more than 0" if least_us else "0 or more"
        raise InvalidStrategy(setting, format_duration_us(got_us), expected, "leave it out to keep the default.")


def _check_progressive(grows: ProgressiveIdleness, timeout_us: int | None) -> None:
    if timeout_us is None or not 0 < grows.at_start_us <= timeout_us:
        got, setting = format_duration_us(grows.at_start_us), "with_idleness(at_start=)"
        raise InvalidStrategy(setting, got, "more than 0, at most the timeout", "it grows from there to the timeout.")
    if grows.over_us < timeout_us:
        got, setting = format_duration_us(grows.over_us), "with_idleness(over=)"
        # because otherwise the timeout could grow as fast as a silence
        raise InvalidStrategy(setting, got, "the timeout or more", 'a stream is old after hours: over="1 hour".')


def _check_share(setting: str, got: float | None, most: int, hint: str, above: int = 0) -> None:
    given: object = got  # callers may ignore the types
    if given is None or (isinstance(given, (int, float)) and not isinstance(given, bool) and above < given <= most):
        return
    raise InvalidStrategy(setting, repr(got), f"more than {above}, at most {most}", hint)
