"""The reader slots while the enumerator is restored from its snapshot."""

from __future__ import annotations

from dataclasses import dataclass

from lowmark.sources import SourceEvent, SourceSplit
from lowmark.sources.planning.slots import Slots


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
