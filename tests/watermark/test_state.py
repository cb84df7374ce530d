from __future__ import annotations

import pytest
from lowmark.watermark import SplitState
from lowmark.watermark.state import LEFT_OUT, TAKES_PART, TRANSITIONS, Signal, next_state

PENDING, ACTIVE, PAUSED, IDLE, FINISHED = SplitState


def test_each_state_has_exactly_one_influence_on_the_minimum() -> None:
    assert (frozenset({ACTIVE, PAUSED}), frozenset({IDLE, FINISHED})) == (TAKES_PART, LEFT_OUT)
    assert frozenset({PENDING}) == set(SplitState) - TAKES_PART - LEFT_OUT


def test_the_table_is_complete_but_for_a_report_of_a_finished_split() -> None:
    missing = {(state, signal) for state in SplitState for signal in Signal if TRANSITIONS[state][signal] is None}

    assert {(FINISHED, Signal.REPORT)} == missing
    assert next_state(FINISHED, Signal.REPORT, spoken=True) is None


@pytest.mark.parametrize("signal", Signal)
def test_finished_is_for_good(signal: Signal) -> None:
    assert next_state(FINISHED, signal, spoken=True) in (FINISHED, None)


@pytest.mark.parametrize("state", SplitState)
@pytest.mark.parametrize("signal", Signal)
def test_a_split_that_never_spoke_is_never_active(state: SplitState, signal: Signal) -> None:
    assert next_state(state, signal, spoken=False) is not ACTIVE


@pytest.mark.parametrize("state", SplitState)
@pytest.mark.parametrize("signal", [Signal.IDLE, Signal.WAKE, Signal.PAUSE, Signal.RESUME, Signal.FINISH])
def test_a_repeated_signal_changes_nothing(state: SplitState, signal: Signal) -> None:
    once = next_state(state, signal, spoken=True)

    assert once is not None
    assert once is next_state(once, signal, spoken=True)
