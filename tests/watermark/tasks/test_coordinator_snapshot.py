"""Rows of the state are encoded and taken only after a change."""

from __future__ import annotations

import pytest
from lowmark.watermark import TaskId
from lowmark.watermark.protocol import TaskRegistered
from lowmark.watermark.strategy import AlignmentParams
from lowmark.watermark.tasks.coordinator import LowWatermarkCoordinator
from lowmark.watermark.tasks.restored import decode
from lowmark.watermark.tasks.rounds import SourceRounds
from lowmark.watermark.tasks.snapshot import Key, RowChanges, to_json

from tests.watermark.tasks.coordinator_world import A, World, snapshot_of, taken


class Lows:
    """Low watermarks by name, and the names that were encoded."""

    def __init__(self) -> None:
        self.lows_us, self.encoded = dict[str, int](), list[str]()
        self.changes = RowChanges(self.row)

    def row(self, key: Key) -> str | None:
        self.encoded.append(key[0])
        return to_json(self.lows_us[key[0]]) if key[0] in self.lows_us else None

    def set(self, **lows_us: int) -> None:
        self.lows_us |= lows_us
        for name in lows_us:
            self.changes.mark(name)

    def drop(self, name: str) -> None:
        del self.lows_us[name]
        self.changes.mark(name)

    def take(self) -> tuple[dict[str, str | None], list[str]]:
        """Return the changed rows by name, and the names encoded for them."""
        rows = {key[0]: state for key, state in self.changes.take().items()}
        encoded, self.encoded = self.encoded, []
        return rows, encoded


def test_only_what_was_changed_is_encoded_and_taken_once() -> None:
    world = Lows()
    world.set(b=2, a=1)
    assert world.take() == ({"b": "2", "a": "1"}, ["b", "a"])
    assert world.take() == ({}, [])
    world.set(b=0)
    world.drop("a")
    assert world.take() == ({"b": "0", "a": None}, ["b", "a"])


def test_what_is_encoded_in_advance_is_not_encoded_again_unless_it_changes() -> None:
    world = Lows()
    world.set(a=1, b=2, c=3, d=4)
    assert [world.changes.encode(2), world.encoded] == [True, ["a", "b"]]
    world.set(a=10)
    world.drop("b")
    assert world.take() == ({"a": "10", "b": None, "c": "3", "d": "4"}, ["a", "b", "c", "d", "a", "b"])
    assert [world.changes.encode(2), world.encoded] == [False, []]


@pytest.mark.parametrize(("sources", "tasks"), [(1, 100), (100, 1), (7, 13)])
def test_no_portion_encodes_more_than_it_may_and_then_nothing_is_left(
    sources: int, tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded, encode = list[str](), SourceRounds.encoded

    def watched(rounds: SourceRounds, task_id: str | None = None) -> str | None:
        encoded.append(str(task_id))
        return encode(rounds, task_id)

    monkeypatch.setattr(SourceRounds, "encoded", watched)
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
    assert len(encoded) == sources * tasks + sources
    rows = taken({}, coordinator)
    assert len(encoded) == sources * tasks + sources
    assert snapshot_of(LowWatermarkCoordinator.restore(rows, now_us=0)) == rows


def test_rows_are_put_together_sorted_and_ended_runs_in_the_order_of_their_end() -> None:
    world = World()
    for token in ("3", "1", "2", "4"):
        world.handle(TaskRegistered(A, token, alignment=AlignmentParams("g", 10, 1_000)))
    state = decode(dict(reversed(world.rows().items())))
    assert [run[3] for run in state["retired"]] == ["3", "1", "2"]
    assert [task["task_id"] for task in state["source"][0]["tasks"]] == ["a"]
    assert [member["task"].task_id for member in state["group"][0]["members"]] == ["a"]


def test_a_report_changes_the_row_of_its_task_and_not_those_of_its_source_and_group() -> None:
    world = World()
    world.handle(TaskRegistered(A, "1", alignment=AlignmentParams("g", 10, 10**7)))
    world.coordinator.take_changes()
    world.reply(A, 5)
    assert sorted(world.coordinator.take_changes()) == [
        ("member", "g", *A.parts),
        ("spoke_us", *A.parts),
        ("task", *A.parts),
    ]
