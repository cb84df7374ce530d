"""Checks that hold for a coalescer after every call."""

from __future__ import annotations

from lowmark.watermark.splits.coalescer import _IDENTITY, Coalescer
from lowmark.watermark.state import LEFT_OUT, TAKES_PART, SplitState


def check(it: Coalescer) -> None:
    """Assert that columns, counts and the remembered minimum agree. O(n)."""
    count = len(it._ids)
    assert it._row_of == {split: row for row, split in enumerate(it._ids)}
    assert count == len(it._state) == len(it._takes_part) == len(it._aside_us) <= len(it._watermarks_us)
    assert all(it._watermarks_us[count:] == _IDENTITY), "a row beyond the last is in use"
    for row, (split, state) in enumerate(zip(it._ids, it._state, strict=True)):
        takes_part = state in TAKES_PART and it._own_us(row) is not None
        assert it._takes_part[row] == takes_part, split
        assert (split in it._holding) == (state not in LEFT_OUT and not takes_part), split
        assert takes_part or it._watermarks_us[row] == _IDENTITY, f"{split!r} takes no part and has a value"
        assert not takes_part or it._aside_us[row] is None, f"{split!r} has two watermarks"
    assert it.states == {state: it._state.count(state) for state in SplitState}
    assert it._taking_part == sum(it._takes_part)
    assert it._holding <= it._row_of.keys()
    if it._found:
        lowest_us, lowest_row = it._lowest_us, it._lowest_row
        assert lowest_row == it._look(), "the holder changed unnoticed"
        assert lowest_row is None or lowest_us == it._lowest_us, "the lowest moved unnoticed"
