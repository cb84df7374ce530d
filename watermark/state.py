"""The states of a split, with their effects on the minimum and their transitions.

    state      what it means                      effect on the minimum
    PENDING    known, silent so far               absorbs    the low watermark stays where it is
    ACTIVE     has a watermark                    takes part its watermark is one of the values
    PAUSED     held back, or out of reach         takes part likewise, and no silence makes it idle
    IDLE       quiet and caught up                left out   until it reports again
    FINISHED   will never deliver again           left out   for good; the largest stands at the end of the input

A split is in exactly one state, so "idle" and "paused" cannot contradict each other (in Flink they are two
flags, and their combinations were bugs: FLINK-32496, 35886, 39073, 40093). A split that takes part but has no
watermark yet absorbs: the minimum with an unknown is unknown. Signals about a split are advisory: a signal that makes
no sense in the present state changes nothing (FLINK-39728). The exception is a report of a finished split, because it
contradicts that state.
"""

from __future__ import annotations

from enum import Enum

SplitId = int | str
"""A split's identity: a 63-bit hash if Spark measures, a name if a source gives it. One kind per stream."""


class SplitState(Enum):
    """The state of a split; see the table above."""

    PENDING = "pending"
    ACTIVE = "active"
    PAUSED = "paused"
    IDLE = "idle"
    FINISHED = "finished"

    __hash__ = object.__hash__  # members are compared by identity; Enum's own hash is Python code, and slow


class Signal(Enum):
    """An event of a split."""

    REPORT = "report"  # it delivered rows
    IDLE = "idle"  # it was quiet for long enough
    WAKE = "wake"  # it is known to have rows again, before they are read
    PAUSE = "pause"  # alignment holds it back, or its source gives no answer
    RESUME = "resume"  # it is read again
    FINISH = "finish"  # its last row was processed

    __hash__ = object.__hash__


class AllIdle(Enum):
    """The policy for the low watermark while every live split is idle.

    HOLD: the low watermark stays, once it has the smallest watermark of the idle splits. ADVANCE: the low watermark
        follows processing time at a distance, up to when the sources were read. MAX: the low watermark jumps to the
        largest watermark seen.
    """

    HOLD = "hold"
    ADVANCE = "advance"
    MAX = "max"


class IdleClock(Enum):
    """The part of a split's readable time that counts as its silence.

    FLOW: only time in which splits of the stream delivered, so that a silence of all splits makes no split idle.
    TIME: all of that time, as in Flink: a split is idle after the timeout, even if all splits are silent.
    """

    FLOW = "flow"
    TIME = "time"


_PENDING, _ACTIVE, _PAUSED, _IDLE, _FINISHED = SplitState

TAKES_PART = frozenset((_ACTIVE, _PAUSED))
LEFT_OUT = frozenset((_IDLE, _FINISHED))

# The columns are the signals, in their order: REPORT, IDLE, WAKE, PAUSE, RESUME, FINISH. The only forbidden pair is a
# report of a finished split. A split without a watermark becomes PENDING where the table says ACTIVE. Alignment does
# not pause an idle split, because an idle split holds nothing back (FLINK-39073); it is paused when it comes back.
_AFTER = {
    _PENDING: (_ACTIVE, _IDLE, _PENDING, _PAUSED, _PENDING, _FINISHED),
    _ACTIVE: (_ACTIVE, _IDLE, _ACTIVE, _PAUSED, _ACTIVE, _FINISHED),
    _PAUSED: (_PAUSED, _PAUSED, _PAUSED, _PAUSED, _ACTIVE, _FINISHED),
    _IDLE: (_ACTIVE, _IDLE, _ACTIVE, _IDLE, _IDLE, _FINISHED),
    _FINISHED: (None, _FINISHED, _FINISHED, _FINISHED, _FINISHED, _FINISHED),
}
TRANSITIONS = {state: dict(zip(Signal, after, strict=True)) for state, after in _AFTER.items()}


def next_state(state: SplitState, signal: Signal, *, spoken: bool) -> SplitState | None:
    """The state after ``signal``, or None if the signal is forbidden.

    Args:
        spoken: whether the split has a watermark (for a report: after the report).

    >>> next_state(SplitState.IDLE, Signal.WAKE, spoken=False)
    <SplitState.PENDING: 'pending'>
    >>> next_state(SplitState.PAUSED, Signal.IDLE, spoken=True)
    <SplitState.PAUSED: 'paused'>
    """
    after = TRANSITIONS[state][signal]
    return _PENDING if after is _ACTIVE and not spoken else after


def split_order(split: SplitId) -> tuple[bool, SplitId]:
    """Sort key of split ids, for deterministic output: numbers by value, names alphabetically."""
    return isinstance(split, str), split
