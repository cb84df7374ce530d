"""When a silent task of a source is left out, by the deliveries of the other tasks."""

from __future__ import annotations

from lowmark.watermark.tasks.silence import SourceSilence

S = 1_000_000


def rounds_until_left_out(patience_us: list[int]) -> int | None:
    """Let another task deliver every second; return how many rounds a task that was heard at 0 is waited for."""
    silence = SourceSilence()
    for number, us in enumerate(patience_us):
        silence.be_as_patient_as([us, None])
        silence.delivered(number * S)
        if silence.runs_out(0):
            return number
    return None


def test_a_patience_that_grows_does_not_start_the_clock_anew() -> None:
    growing = [15 * S + 10_000 * number for number in range(600)]

    assert rounds_until_left_out([15 * S] * 600) == 16
    assert rounds_until_left_out(growing) == 16


def test_a_longer_patience_is_waited_for_and_a_shorter_one_starts_the_clock_anew() -> None:
    assert rounds_until_left_out([15 * S] * 10 + [60 * S] * 600) == 61
    assert rounds_until_left_out([60 * S] * 10 + [15 * S] * 600) == 22
    silence = SourceSilence()
    silence.be_as_patient_as([15 * S])
    silence.be_as_patient_as([None])
    silence.delivered(0)
    silence.delivered(S)
    assert not silence.runs_out(0)
