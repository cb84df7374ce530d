"""The coalescer equals its definition, for every history.

Goal: after every step the fast structure agrees with the low watermark recomputed from plain states and values.
Method: a state machine draws steps, mirrors them in ``Definition``, and compares after each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from hypothesis import given, note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from lowmark.watermark import AllIdle, SplitId, SplitState
from lowmark.watermark.splits.coalescer import Coalescer
from lowmark.watermark.state import Signal

from tests.laws.strategies import LAWS, SPLITS, splits, watermarks_us
from tests.watermark.splits.invariants import check

numbers = st.integers(0, 3)

PENDING, ACTIVE, PAUSED, IDLE, FINISHED = SplitState


@dataclass
class Definition:
    """The meaning of the low watermark, without regard to speed."""

    policy: AllIdle
    low_us: int | None = None
    passed_share: Fraction = Fraction(0)
    quorum: Fraction = Fraction(0)
    state: dict[int, SplitState] = field(default_factory=dict)
    watermark_us: dict[int, int] = field(default_factory=dict)
    regressions: int = 0
    ended: bool = False

    def report(self, split: int, watermark_us: int) -> None:
        own_us = self.watermark_us.get(split, watermark_us)
        self.regressions += watermark_us < own_us
        self.watermark_us[split] = max(watermark_us, own_us)
        if self.state[split] is not PAUSED:
            self.state[split] = ACTIVE

    def advance(self, now_us: int) -> None:
        after_us = self.minimum_us(now_us)
        if after_us is not None:
            self.low_us = after_us if self.low_us is None else max(self.low_us, after_us)

    def counted(self) -> list[tuple[int | float, int]]:
        """The numbers that count, the slowest first: numbers without a watermark, then by watermark, then by id."""
        live = [split for split, state in self.state.items() if state in (PENDING, ACTIVE, PAUSED)]
        idle = [split for split, state in self.state.items() if state is IDLE]
        speaking = [split for split in live if split in self.watermark_us]
        if len(speaking) < self.quorum * len(live + idle):
            live += idle
        return sorted((self.watermark_us.get(split, float("-inf")), split) for split in live)

    def holder(self) -> tuple[int | float, int] | None:
        """The first of the counted numbers after the passed share."""
        counted = self.counted()
        if not counted:
            return None
        slow = max(k for k in range(len(counted)) if k <= len(counted) * self.passed_share)
        value = counted[slow][0]
        return min(one for one in counted if one[0] == value)

    def stripped(self) -> frozenset[SplitId]:
        holder = self.holder()
        if holder is None or holder[0] == float("-inf"):
            return frozenset()
        return frozenset(split for value, split in self.counted() if value < holder[0])

    def minimum_us(self, now_us: int) -> int | None:
        idle = [split for split, state in self.state.items() if state is IDLE]
        holder = self.holder()
        if holder is not None:
            return self.watermark_us.get(holder[1])
        if not idle:  # every split is finished
            return max(self.watermark_us.values(), default=None) if self.ended else None
        if self.policy is AllIdle.ADVANCE:
            return (now_us - 7) // 1_000 * 1_000
        known_us = [self.watermark_us[split] for split in idle if split in self.watermark_us]
        return (min if self.policy is AllIdle.HOLD else max)(known_us, default=None)


class CoalescerIsItsDefinition(RuleBasedStateMachine):
    @initialize(
        policy=st.sampled_from(AllIdle),
        low_us=st.none() | watermarks_us,
        percentile=st.none() | st.sampled_from((100, 99.0, 75.0, 66.6, 50.0, 0.1)),
        quorum=st.none() | st.sampled_from((0.3, 0.5, 1)),
    )
    def begin(self, policy: AllIdle, low_us: int | None, percentile: float | None, quorum: float | None) -> None:
        policy = policy if quorum is None else AllIdle.HOLD
        delay_us = 7 if policy is AllIdle.ADVANCE else None
        self.coalescer = Coalescer(low_us, policy, all_idle_delay_us=delay_us, percentile=percentile, quorum=quorum)
        passed = (100 - Fraction(str(100 if percentile is None else percentile))) / 100
        self.definition = Definition(policy, low_us, passed, Fraction(str(0 if quorum is None else quorum)))
        self.published: list[int | None] = [low_us]

    @rule(split=numbers)
    def assign(self, split: int) -> None:
        if split not in self.definition.state:
            self.coalescer.assign(split)
            self.definition.state[split] = PENDING

    @rule(split=numbers, watermark_us=watermarks_us)
    def report(self, split: int, watermark_us: int) -> None:
        if self.definition.state.get(split, FINISHED) is not FINISHED:
            self.coalescer.report(split, watermark_us)
            self.definition.report(split, watermark_us)

    @rule(watermarks=st.dictionaries(numbers, watermarks_us))
    def report_array(self, watermarks: dict[int, int]) -> None:
        """In any order; a split that takes no part reports by itself."""
        live = [split for split, state in self.definition.state.items() if state in (ACTIVE, PAUSED)]
        together = [split for split in watermarks if split in live and split in self.definition.watermark_us]
        if together:
            values_us = np.array([watermarks[split] for split in together], np.int64)
            self.coalescer.report_array(np.array(together, np.uint64), values_us)
        for split, watermark_us in watermarks.items():
            if split in together:
                self.definition.report(split, watermark_us)
            else:
                self.report(split, watermark_us)

    @rule(split=numbers, signal=st.sampled_from(("idle", "wake", "pause", "resume", "finish")))
    def signal(self, split: int, signal: str) -> None:
        before = self.definition.state.get(split)
        if before is None:
            return
        live = ACTIVE if split in self.definition.watermark_us else PENDING
        after = {
            "idle": IDLE if before in (PENDING, ACTIVE) else before,
            "wake": live if before is IDLE else before,
            "pause": PAUSED if before in (PENDING, ACTIVE) else before,
            "resume": live if before is PAUSED else before,
            "finish": FINISHED,
        }[signal]
        self.definition.state[split] = after

        assert (before is not after) == self.coalescer.signal(split, Signal(signal))

    @rule()
    def end(self) -> None:
        self.definition.ended = True
        self.coalescer.end()

    @rule(data=st.data())
    def finish_all(self, data: st.DataObject) -> None:
        for split in data.draw(st.permutations(sorted(self.definition.state))):
            self.signal(split, "finish")

    @rule(split=numbers)
    def remove(self, split: int) -> None:
        known = split in self.definition.state
        self.definition.state.pop(split, None)
        self.definition.watermark_us.pop(split, None)
        assert known == self.coalescer.remove(split)

    @rule(now_us=watermarks_us)
    def advance(self, now_us: int) -> None:
        before_us = self.coalescer.low_us
        risen_us = self.coalescer.advance(now_us)
        self.definition.advance(now_us)
        self.published.append(self.coalescer.low_us)

        assert self.definition.low_us == self.coalescer.low_us
        assert risen_us == (None if self.coalescer.low_us == before_us else self.coalescer.low_us)

    @invariant()
    def agrees(self) -> None:
        state, watermark_us = self.definition.state, self.definition.watermark_us
        note(f"{state} {watermark_us}")
        check(self.coalescer)
        assert state == {split: self.coalescer.state(split) for split in state}
        assert watermark_us == {s: w for s in state if (w := self.coalescer.watermark_us(s)) is not None}
        assert self.definition.regressions == self.coalescer.regressions
        live = [split for split in state if state[split] in (PENDING, ACTIVE, PAUSED)]
        silent = sorted(split for split in live if split not in watermark_us)
        holder = self.definition.holder()
        assert (None if holder is None else holder[1]) == self.coalescer.holder
        assert frozenset(silent) == self.coalescer.pending
        assert self.definition.stripped() == self.coalescer.stripped
        assert (not live and IDLE in state.values()) == self.coalescer.all_idle

    @invariant()
    def never_goes_back(self) -> None:
        known = [low_us for low_us in self.published if low_us is not None]
        assert sorted(known) == known


TestCoalescerIsItsDefinition = CoalescerIsItsDefinition.TestCase
TestCoalescerIsItsDefinition.settings = LAWS


@LAWS
@given(st.lists(st.tuples(splits, watermarks_us), max_size=12), st.randoms(use_true_random=False))
def test_reports_of_one_batch_commute_and_repeat(batch: list[tuple[str, int]], rng: object) -> None:
    def play(reported: list[tuple[str, int]]) -> tuple[object, ...]:
        coalescer = Coalescer()
        for split in SPLITS:
            coalescer.assign(split)
        for split, watermark_us in reported:
            coalescer.report(split, watermark_us)
        coalescer.advance()
        return coalescer.low_us, coalescer.holder, [coalescer.watermark_us(split) for split in SPLITS]

    turned = [*batch, *batch]
    rng.shuffle(turned)  # type: ignore[attr-defined]
    assert play(batch) == play(turned)
