"""Parts of a snapshot are encoded only after a change."""

from __future__ import annotations

import json

import pytest
from lowmark.watermark import TaskId
from lowmark.watermark.protocol import TaskRegistered
from lowmark.watermark.tasks.coordinator import LowWatermarkCoordinator
from lowmark.watermark.tasks.rounds import SourceRounds
from lowmark.watermark.tasks.snapshot import EncodedParts, json_object, to_json


class World:
    def __init__(self) -> None:
        self.lows_us = dict[str, int]()
        self.encoded = list[str]()
        self.parts = EncodedParts(self.part)

    def part(self, name: str) -> str | None:
        self.encoded.append(name)
        return to_json([name, self.lows_us[name]]) if name in self.lows_us else None

    def set(self, **lows_us: int) -> None:
        for name, low_us in lows_us.items():
            self.lows_us[name] = low_us
            self.parts.changed(name)

    def drop(self, name: str) -> None:
        del self.lows_us[name]
        self.parts.changed(name)

    def text(self) -> tuple[str, list[str]]:
        """Return the array, and the parts encoded for it."""
        text = self.parts.text()
        assert json.loads(text) == [[name, self.lows_us[name]] for name in sorted(self.lows_us)]
        encoded, self.encoded = self.encoded, []
        return text, sorted(encoded)


def test_only_what_was_changed_is_encoded_and_the_order_is_that_of_the_keys() -> None:
    world = World()
    world.set(c=3, a=1, b=2)

    assert world.text() == ('[["a",1],["b",2],["c",3]]', ["a", "b", "c"])
    assert world.text() == ('[["a",1],["b",2],["c",3]]', [])
    world.set(b=0)
    assert world.text() == ('[["a",1],["b",0],["c",3]]', ["b"])
    world.drop("a")
    assert world.text() == ('[["b",0],["c",3]]', ["a"])
    world.set(a=-1, d=4)
    world.drop("d")  # never encoded before
    assert world.text() == ('[["a",-1],["b",0],["c",3]]', ["a", "d"])


def test_what_is_encoded_in_advance_is_not_encoded_again_unless_it_changes() -> None:
    world = World()
    world.set(a=1, b=2, c=3, d=4)

    assert [world.parts.encode(2), world.encoded] == [True, ["a", "b"]]
    world.set(a=10)
    assert world.text() == ('[["a",10],["b",2],["c",3],["d",4]]', ["a", "a", "b", "c", "d"])
    assert [world.parts.encode(2), world.encoded] == [False, []]


def test_an_array_without_elements_and_an_object_without_fields() -> None:
    world = World()
    assert world.text() == ("[]", [])
    world.set(a=1)
    world.drop("a")
    assert world.text() == ("[]", ["a"])
    assert json_object({}, parts="[]") == '{"parts":[]}'


def test_keys_may_be_sorted_by_something_else() -> None:
    parts = EncodedParts[int](str, order=lambda number: -number)
    for number in (1, 3, 2):
        parts.changed(number)

    assert parts.text() == "[3,2,1]"


@pytest.mark.parametrize(("sources", "tasks"), [(1, 100), (100, 1), (7, 13)])
def test_no_portion_encodes_more_than_it_may_and_then_little_is_left(
    sources: int, tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded, encode = list[str](), SourceRounds._encoded_task

    def watched(rounds: SourceRounds, task_id: str) -> str | None:
        encoded.append(task_id)
        return encode(rounds, task_id)

    monkeypatch.setattr(SourceRounds, "_encoded_task", watched)
    coordinator = LowWatermarkCoordinator()
    for source in range(sources):
        for number in range(tasks):
            coordinator.handle(TaskRegistered(TaskId("job", f"s{source}", str(number)), "r"), now_us=0)
    portions, more = list[int](), True
    while more:
        before = len(encoded)
        more = coordinator.encode(10)
        portions.append(len(encoded) - before)

    assert max(portions) <= 10
    assert len(encoded) == sources * tasks
    assert len(portions) <= sources + sources * tasks // 10 + 1
    snapshot = coordinator.snapshot()
    assert len(encoded) == sources * tasks
    assert LowWatermarkCoordinator.restore(snapshot, now_us=0).snapshot() == snapshot
