"""Decides when a task with a silent stream is left out: rule 7 of ``rounds.py``, by ``FlowClock`` of the splits."""

from __future__ import annotations

from collections.abc import Iterable

from lowmark.watermark.splits.idleness import FlowClock


class SourceSilence:
    """Counts the time of silence of a source's tasks. O(1), and O(n) once in a round.

    >>> silence = SourceSilence()
    >>> silence.be_as_patient_as([40, None])
    >>> for at_us in (100, 120, 140): silence.delivered(at_us)
    >>> silence.runs_out(100), silence.runs_out(99)     # exactly the patience is not yet too long
    (False, True)
    """

    def __init__(self) -> None:
        self._patience_us: int | None = None
        self._clock: FlowClock | None = None
        self._newest_us: int | None = None  # of all deliveries, also those before the clock began

    def be_as_patient_as(self, patience_us: Iterable[int | None]) -> None:
        """Use the longest patience of the tasks for all of them.

        The clock goes on while that patience grows, as it does with progressive idleness, because the time that the
        clock has counted is never too long for a longer patience. A shorter patience starts the clock anew.
        """
        before_us, longest_us = self._patience_us, max((us for us in patience_us if us is not None), default=None)
        self._patience_us = longest_us
        if longest_us is None:
            self._clock = None
        elif self._clock is None or before_us is None or longest_us < before_us:
            self._clock = FlowClock(longest_us)
        else:
            self._clock.measure(longest_us)

    def delivered(self, at_us: int) -> None:
        if self._newest_us is None or at_us > self._newest_us:
            self._newest_us = at_us
            if self._clock is not None:
                self._clock.delivered(at_us)

    def runs_out(self, heard_us: int | None) -> bool:
        """Whether other tasks delivered for too long since a task was heard; False if that time is unknown."""
        if heard_us is None or self._clock is None or self._patience_us is None:
            return False
        return self._clock.total_us - self._clock.at(heard_us) > self._patience_us
