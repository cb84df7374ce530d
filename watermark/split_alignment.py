"""The reader's side of alignment: given a cap, which splits to pause and which to resume.

Pure, and buffered: everything told is only remembered until ``decide`` is asked. A split beyond the cap is paused,
a split at the cap is not. Pausing waits for as many samples as the buffer holds, one per update interval: a cap
is old news when it comes, and a reader that stops for it at once would go through a backlog at no more than the
drift per interval, whatever it could do (FLINK-37399). Resuming never waits. A source that plans its batches asks
the cap before it reads anything and needs no buffer: ``samples=0``.

Which states a pause may meet says ``state.py``: an idle split is not paused, a paused one is never idle.

Source: FLIP-217, Flink's ``SourceOperator`` and ``WatermarkSampler``; FLINK-39073, 39728, 40093.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from .cap import Cap, CapAnnounced
from .errors import DuplicateSplit, UnknownSplit
from .state import Signal, SplitId, SplitState, next_state, split_order

PAUSE_SAMPLES = 3
"""How many update intervals a pause waits by default, as in Flink (``pipeline.watermark-alignment.buffer-size``)."""


class WatermarkSampler:
    """The newest value, and the oldest of the last few samples of it.

    Args:
        capacity: how many samples are kept; 0: the oldest is always the newest value.

    >>> sampler = WatermarkSampler(2)
    >>> sampler.add(13); sampler.sample(); sampler.oldest_us
    >>> sampler.add(42); sampler.sample(); sampler.oldest_us, sampler.latest_us
    (13, 42)
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 0:
            raise ValueError(f"a sampler keeps 0 samples or more, got {capacity}")
        self._samples: deque[int | None] = deque(maxlen=capacity)
        self._capacity = capacity
        self.latest_us: int | None = None
        """The newest value; None before the first."""

    @property
    def oldest_us(self) -> int | None:
        """The oldest sample that is kept; None until as many were taken as there is room for."""
        if self._capacity == 0:
            return self.latest_us
        return self._samples[0] if len(self._samples) == self._capacity else None

    def add(self, watermark_us: int) -> None:
        """Set the newest value."""
        self.latest_us = watermark_us

    def sample(self) -> None:
        """Keep the newest value as a sample, and drop the oldest if there is no room."""
        self._samples.append(self.latest_us)


@dataclass(frozen=True, slots=True)
class PauseOrResume:
    """What a reader is to do with its splits, each tuple in the order of the ids.

    Attributes:
        paused: splits not to be read any more.
        resumed: splits that may be read again.
    """

    paused: tuple[SplitId, ...] = ()
    resumed: tuple[SplitId, ...] = ()


@dataclass(slots=True)
class _Split:
    state: SplitState
    sampler: WatermarkSampler


class SplitAlignment:
    """The splits of one reader, and the newest cap it was told.

    Args:
        samples: how many update intervals a split must have been beyond the cap before it is paused.
        cap: the cap before the first announcement. Flink's readers run free until then (``Cap.free()``); ours wait,
            so that a fast one does not run away before the slow one spoke.

    >>> alignment = SplitAlignment(samples=0, cap=Cap.up_to(4))
    >>> for split, watermark_us in (("a", 5), ("b", 4)): alignment.assign(split); alignment.observe(split, watermark_us)
    >>> alignment.decide()
    PauseOrResume(paused=('a',), resumed=())
    """

    def __init__(self, *, samples: int = PAUSE_SAMPLES, cap: Cap | None = None) -> None:
        self._samples = samples
        self._epoch: int | None = None
        self.cap = Cap.hold() if cap is None else cap
        """The newest cap."""
        self._splits: dict[SplitId, _Split] = {}

    @property
    def paused(self) -> frozenset[SplitId]:
        """The splits that are paused by what was decided."""
        return frozenset(split for split, entry in self._splits.items() if entry.state is SplitState.PAUSED)

    def __contains__(self, split: object) -> bool:
        return split in self._splits

    def hear(self, announced: CapAnnounced) -> bool:
        """Take an announcement, unless it is a repeated or overtaken one. Returns whether it was taken."""
        if self._epoch is not None and announced.epoch <= self._epoch:
            return False
        self._epoch, self.cap = announced.epoch, announced.cap
        return True

    def assign(self, split: SplitId) -> None:
        """Make a split known. Raises DuplicateSplit."""
        if split in self._splits:
            raise DuplicateSplit(split)
        self._splits[split] = _Split(SplitState.PENDING, WatermarkSampler(self._samples))

    def observe(self, split: SplitId, watermark_us: int) -> None:
        """Rows of a split were read; an idle one is active again. Raises UnknownSplit."""
        entry = self._find(split)
        entry.sampler.add(watermark_us)
        self._signal(split, entry, Signal.REPORT)

    def idle(self, split: SplitId) -> None:
        """A split is quiet and caught up: nothing to pause, until it is observed again. Raises UnknownSplit."""
        self._signal(split, self._find(split), Signal.IDLE)

    def remove(self, split: SplitId) -> bool:
        """Forget a split that finished or was given away. Returns whether it was known."""
        return self._splits.pop(split, None) is not None

    def sample(self) -> None:
        """An update interval passed."""
        for entry in self._splits.values():
            entry.sampler.sample()

    def decide(self) -> PauseOrResume:
        """Compare every split with the cap. O(n), and sorted; asked again, it answers that nothing changed."""
        paused: list[SplitId] = []
        resumed: list[SplitId] = []
        for split in sorted(self._splits, key=split_order):
            entry = self._splits[split]
            before, beyond = entry.state, not self.cap.allows(entry.sampler.oldest_us)
            self._signal(split, entry, Signal.PAUSE if beyond else Signal.RESUME)
            if entry.state is not before:
                (paused if entry.state is SplitState.PAUSED else resumed).append(split)
        return PauseOrResume(tuple(paused), tuple(resumed))

    def _find(self, split: SplitId) -> _Split:
        entry = self._splits.get(split)
        if entry is None:
            raise UnknownSplit.among(split, self._splits.keys())
        return entry

    def _signal(self, split: SplitId, entry: _Split, signal: Signal) -> None:
        after = next_state(entry.state, signal, spoken=entry.sampler.latest_us is not None)
        assert after is not None, f"{split!r} finished and is still here"
        entry.state = after
