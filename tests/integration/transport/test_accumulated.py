"""How the measurements of tasks merge on their way to the driver."""

from __future__ import annotations

from dataclasses import fields

from lowmark.integration.transport.accumulated import BatchTrack


def test_a_track_takes_over_every_field_of_another() -> None:
    full = BatchTrack(
        watermarks_us={1: 5},
        names={1: "a"},
        events={0: [(0, 1, b"event")]},
        lateness={(1, 0): {0: 1}},
        counted={0: {"losses": 1.0}},
        times={(1, 0): {5: 1}},
        late={(1, 0): 1},
        partitions={7: 1},
    )
    full.tracker.observe(1, 5)
    made, empty = BatchTrack(), BatchTrack()
    assert all(getattr(full, field.name) != getattr(empty, field.name) for field in fields(BatchTrack))
    made.absorb(full)
    assert made == full
