"""The timers equal their definition: silent for longer than the timeout, while readable, with no known backlog.

The timeout is constant, or grows with the age of the stream.
"""

from __future__ import annotations

from itertools import count

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from lowmark.watermark import SplitId
from lowmark.watermark.splits.idleness import Idleness
from lowmark.watermark.strategy import ProgressiveIdleness

from tests.laws.strategies import LAWS, splits

TIMEOUT_US = 10


class IdlenessIsItsDefinition(RuleBasedStateMachine):
    grows: ProgressiveIdleness | None = None

    @initialize()
    def begin(self) -> None:
        self.idleness = Idleness(TIMEOUT_US, grows=self.grows)
        self.idleness.read(0)
        self.now_us = 0
        self.readable: dict[str, list[bool]] = {}  # timed split -> readable, by microsecond since heard
        self.paused: set[str] = set()

    def timeout_us(self, at_us: int) -> int:
        return TIMEOUT_US if self.grows is None else self.grows.timeout_us(TIMEOUT_US, at_us)

    @rule(us=st.integers(1, 12))
    def wait(self, us: int) -> None:
        self.now_us += us
        for split, history in self.readable.items():
            history += [split not in self.paused] * us

    @rule(split=splits)
    def heard(self, split: str) -> None:
        self.idleness.heard(split, self.now_us)
        self.readable[split] = []

    @rule(split=splits)
    def pause(self, split: str) -> None:
        self.idleness.pause(split, self.now_us)
        if split in self.readable:
            self.paused.add(split)

    @rule(split=splits)
    def resume(self, split: str) -> None:
        self.idleness.resume(split, self.now_us)
        self.paused.discard(split)

    @rule(split=splits)
    def forget(self, split: str) -> None:
        self.idleness.forget(split)
        self.readable.pop(split, None)
        self.paused.discard(split)

    @rule(backlog=st.dictionaries(splits, st.sampled_from((0, 1, 5))))
    def ask(self, backlog: dict[SplitId, int]) -> None:
        expected = sorted(
            split
            for split, history in self.readable.items()
            if split not in self.paused and sum(history) > self.timeout_us(self.now_us) and backlog.get(split, 0) == 0
        )
        self.idleness.read(self.now_us)
        assert expected == self.idleness.quiet(self.now_us, backlog)
        for split in expected:
            del self.readable[split]

    @invariant()
    def the_next_deadline_is_not_late(self) -> None:
        due = [
            next(at_us for at_us in count(self.now_us) if sum(history) + at_us - self.now_us > self.timeout_us(at_us))
            for split, history in self.readable.items()
            if split not in self.paused and sum(history) <= self.timeout_us(self.now_us)
        ]
        deadline_us = self.idleness.next_deadline_us()
        if due:
            assert deadline_us is not None
            assert deadline_us <= min(due)


class ProgressiveIdlenessIsItsDefinition(IdlenessIsItsDefinition):
    grows = ProgressiveIdleness(at_start_us=3, over_us=25)


class SteepIdlenessIsItsDefinition(IdlenessIsItsDefinition):
    grows = ProgressiveIdleness(at_start_us=1, over_us=10)


TestProgressiveIdlenessIsItsDefinition = ProgressiveIdlenessIsItsDefinition.TestCase
TestProgressiveIdlenessIsItsDefinition.settings = LAWS
TestSteepIdlenessIsItsDefinition = SteepIdlenessIsItsDefinition.TestCase
TestSteepIdlenessIsItsDefinition.settings = LAWS
TestIdlenessIsItsDefinition = IdlenessIsItsDefinition.TestCase
TestIdlenessIsItsDefinition.settings = LAWS
