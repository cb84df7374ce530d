"""Splits that are held back: paused, and never idle meanwhile; tests/laws has them in random histories."""

from __future__ import annotations

import pytest
from lowmark.watermark import SplitId
from lowmark.watermark.splits.events import Polled, SplitsPaused, SplitsResumed

from tests.watermark.splits.history import PLAIN, History, at, batch, history_of


def test_a_paused_split_is_never_idle_and_its_pause_is_no_silence() -> None:
    history = history_of(a=50, b=90)

    assert history.on(4, SplitsPaused(("a", "x"))) == [("a", "paused")]
    assert history.on(100, Polled(at(100)))[1:] == []
    assert history.state("a") == "paused"
    assert history.on(100, SplitsResumed(("a", "x"))) == [("a", "active")]
    assert history.on(106, Polled(at(106))) == []
    assert history.on(107, Polled(at(106.000001))) == [("a", "idle")]


def test_a_split_that_was_paused_before_a_restart_is_not_timed_until_it_goes_on() -> None:
    history = history_of(a=50, b=90)
    history.on(1, SplitsPaused(("a",)))
    history.restart(2)
    history.on(60, batch(1, 60, {"b": 100}))
    assert history.state("a") == "paused"

    history.on(61, SplitsResumed(("a",)))
    history.on(69, batch(2, 69, {"b": 101}))
    assert history.state("a") == "active"
    history.on(72, batch(3, 72, {"b": 102}))
    assert history.state("a") == "idle"


def test_a_report_that_was_planned_in_a_pause_and_arrives_after_it_starts_no_silence_in_the_pause() -> None:
    history = History(PLAIN.with_idleness("1 minute", clock="time"))
    history.on(0, batch(0, 0, {"a": 10}))
    history.on(50, SplitsPaused(("a",)))
    history.on(100, SplitsResumed(("a",)))
    history.on(100, batch(1, 60, {"a": 20}))

    assert history.on(121, Polled(at(121))) == []
    assert history.on(161, Polled(at(160.000001))) == [("a", "idle")]


@pytest.mark.parametrize("comes_back", [{"a": 51}, {}])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_split_that_was_idle_when_it_was_held_back_is_paused_once_it_comes_back(
    comes_back: dict[SplitId, int], restarts: bool
) -> None:
    """Its row was planned before, or its rows wait; nobody would pause it again, and silence would pass its rows."""
    history = history_of(a=50, b=90)
    assert history.on(11, Polled(at(10.000001)))[0] == ("a", "idle")
    assert history.on(12, SplitsPaused(("a",))) == []
    if restarts:
        history.restart(12)
    came = batch(1, 13, {**comes_back, "b": 110}, backlog={"a": 5})

    assert history.on(13, came)[0] == ("a", "paused")
    assert history.on(60, Polled(at(60))) == [("b", "idle")]
    assert history.on(61, SplitsResumed(("a",))) == [("a", "active")]
