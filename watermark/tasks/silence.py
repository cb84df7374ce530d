"""When may a task that asks to be left out, because its stream is silent, be left out? One level above the splits.

A task is to its source what a split is to its stream, and so is the rule (``splits/idleness.py``): the silence of
everybody is no evidence against anybody. A job whose producers pause together has tasks that all ask to be left out.
Were they, the first whose rows come back would move the low watermark that all of them share, and the rows of the
others would be late. So such a task counts on until other tasks delivered for longer than it is patient.

Groups do otherwise: a silent member holds none of them, whatever the others do. A group holds reading back, so that
waiting for one member would end the flow of the others, and with it the evidence; and nobody's rows are late by a cap.
"""

from __future__ import annotations

from collections.abc import Iterable

from lowmark.watermark.splits.idleness import FlowClock, flow_clock


class SourceSilence:
    """What time counts as the silence of a source's tasks. O(1), and O(n) once in a round.

    >>> silence = SourceSilence()
    >>> silence.be_as_patient_as([40, None])
    >>> for at_us in (100, 120, 140): silence.delivered(at_us)
    >>> silence.runs_out(100), silence.runs_out(99)     # exactly the patience is not yet too long
    (False, True)
    """

    def __init__(self) -> None:
        self._patience_us: int | None = None
        self._clock: FlowClock | None = None

    def be_as_patient_as(self, patience_us: Iterable[int | None]) -> None:
        """The longest of the tasks' counts for all of them, for it says what a pause is. Another one begins anew."""
        longest_us = max((us for us in patience_us if us is not None), default=None)
        if longest_us != self._patience_us:
            self._patience_us = longest_us
            self._clock = None if longest_us is None else flow_clock(longest_us)

    def delivered(self, at_us: int) -> None:
        """Some task had rows at this moment. Older than the last one: no-op."""
        if self._clock is not None:
            self._clock.delivered(at_us)

    def runs_out(self, heard_us: int | None) -> bool:
        """Whether the others delivered for too long since a task was heard; None: nobody knows when that was."""
        if heard_us is None or self._clock is None or self._patience_us is None:
            return False
        return self._clock.total_us - self._clock.at(heard_us) > self._patience_us
