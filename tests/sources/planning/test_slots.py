"""The reader slots after a restart, and while the enumerator is restored from its snapshot."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

import pytest
from lowmark.sources import SourceEvent, SourceSplit
from lowmark.sources.planning.options import PlanOptions
from lowmark.sources.planning.planner import BatchPlanner
from lowmark.sources.planning.slots import Slots

from tests.sources.planning.test_batches import Rows


@dataclass(frozen=True, slots=True)
class Told(SourceEvent):
    what: str


def test_slots_forget_what_a_restored_enumerator_will_assign_again() -> None:
    slots: Slots[SourceSplit] = Slots(1)
    slots.add_splits(0, [SourceSplit(split_id="before")])
    slots.checkpointed(1)
    slots.add_splits(0, [SourceSplit(split_id="after")])
    slots.restored(1)

    assert set(slots.arrived()) == set(slots.in_snapshot()) == {"before"}


def test_slots_keep_what_was_sent_before_the_state_of_a_restored_enumerator() -> None:
    slots: Slots[SourceSplit] = Slots(2)
    slots.source_event(0, Told("before"))
    slots.checkpointed(1)
    for subtask in (0, 1):
        slots.source_event(subtask, Told("after"))
    slots.restored(1)
    assert slots.take_events() == {0: (Told("before"),)}

    slots.source_event(0, Told("after"))
    slots.restored(1)
    assert slots.take_events() == {}


@pytest.mark.parametrize(("before", "now", "splits"), [(2, 8, [1] * 8), (8, 5, [2, 2, 2, 1, 1]), (1, 3, [3, 3, 2])])
def test_a_restart_with_another_number_of_tasks_reads_by_all_of_them(before: int, now: int, splits: list[int]) -> None:
    source = Rows(**{f"s{n}": range(100) for n in range(8)})
    with closing(BatchPlanner(source, name="rows", options=PlanOptions(slots=before))) as planner:
        start = planner.plan(planner.initial(), 80)
    with closing(BatchPlanner(source, name="rows", options=PlanOptions(slots=now))) as planner:
        tasks = planner.tasks(start, planner.plan(start, 80))

    assert [len(task.splits) for task in tasks] == splits


def test_a_restart_with_the_same_number_of_tasks_leaves_each_split_where_it_was() -> None:
    source, placed = Rows(**{f"s{n}": range(100) for n in range(8)}), list[list[tuple[str, ...]]]()
    start = BatchPlanner(source, name="rows", options=PlanOptions()).initial()
    for _ in range(2):
        with closing(BatchPlanner(source, name="rows", options=PlanOptions(slots=3))) as planner:
            end = planner.plan(start, 80)
            placed.append([tuple(split.split_id for split in task.splits) for task in planner.tasks(start, end)])
            start = end

    assert placed[0] == placed[1]
