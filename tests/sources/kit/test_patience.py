"""One rule for a question that a system does not answer: say it once, pause longer each time, give up."""

from __future__ import annotations

import random

import pytest
from lowmark.sources.kit.patience import Patience


class Clock:
    """A clock that goes on in pauses only."""

    def __init__(self, ends_after: float = float("inf")) -> None:
        self.now, self.pauses, self._ends_after = 0.0, list[float](), ends_after

    def seconds(self) -> float:
        return self.now

    def pause(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        self.now += seconds
        return self.now >= self._ends_after


def patience(clock: Clock, seconds: float = 20.0, **more: float) -> Patience:
    return Patience("Redis at me:s3cret@shop:6379", "read orders", seconds, now_seconds=clock.seconds,
                    pause=clock.pause, **more)  # type: ignore[arg-type]  # fmt: skip


def attempts(asked: Patience, cause: str = "refused") -> int:
    """Number of attempts until it is given up."""
    tried = 1
    while asked.goes_on(cause):
        tried += 1
    return tried


def test_pauses_double_up_to_the_longest_and_never_exceed_the_time_that_is_left() -> None:
    clock = Clock()
    asked = patience(clock, 4.0)

    assert attempts(asked) == 8
    assert clock.pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 0.5])
    assert (asked.spent_seconds, asked.left_seconds) == (4.0, 0.0)


@pytest.mark.timeout(20)
def test_a_rest_of_the_time_that_rounding_swallows_does_not_keep_it_asking_for_ever() -> None:
    random.seed(seed := 11)
    for began in (random.uniform(0.0, 100.0) for _ in range(200)):
        clock = Clock()
        clock.now = began
        assert attempts(patience(clock, 2.0, jitter=True)) < 100, f"seed {seed}, began at {began!r}"


def test_a_question_that_waits_is_told_once_without_a_login(caplog: pytest.LogCaptureFixture) -> None:
    attempts(patience(Clock(), 5.0), "no leader")
    assert not caplog.messages, "a short silence is nobody's business"

    attempts(patience(Clock()), "cannot reach http://me:s3cret@node:1")

    [said] = caplog.messages
    assert said == (
        "Redis at shop:6379: cannot read orders for 6 seconds by now, and tries again for 20 seconds in all: "
        "cannot reach http://node:1"
    )


def test_a_part_of_the_answer_renews_it() -> None:
    clock = Clock()
    asked = patience(clock, 4.0)
    for _ in range(10):
        assert asked.goes_on("no bytes came")
        clock.now += 3.0
        asked.renew()

    assert clock.pauses == [0.1] * 10
    assert asked.left_seconds == 4.0


def test_clients_that_were_refused_together_come_back_apart_but_not_later() -> None:
    seed = 7
    random.seed(seed)
    first, second = Clock(), Clock()
    for clock in (first, second):
        attempts(patience(clock, 30.0, jitter=True, longest_pause_seconds=5.0))

    assert first.pauses[:5] != second.pauses[:5], seed
    assert all(pause <= longest for pause, longest in zip(first.pauses, [0.1, 0.2, 0.4, 0.8, 1.6], strict=False)), seed
    assert first.now == second.now == 30.0, seed


def test_a_pause_that_is_ended_gives_the_question_up() -> None:
    clock = Clock(ends_after=0.5)

    assert attempts(patience(clock)) == 3
    assert clock.now == pytest.approx(0.7)
