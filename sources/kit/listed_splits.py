"""Checks the splits that a `discover` lists, because a checkpoint that has a wrong value cannot be read back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from graphlib import CycleError, TopologicalSorter
from typing import Any

from lowmark.sources.api import SourceSplit
from lowmark.watermark.errors import shown
from lowmark.watermark.moment import is_int64


def fault_of(found: object) -> str | None:
    """Say what is wrong with an answer of `discover`; None: nothing is."""
    if not isinstance(found, Collection):
        return f"a {type(found).__name__} was returned, expected a list. Hint: return a list of SourceSplits."
    given: Any  # callers may ignore the types
    for given in found:
        if not isinstance(given, SourceSplit) or not _has_its_types(given):
            return (
                f"{shown(given)} is listed, expected a SourceSplit with a text in UTF-8 as split_id, whole numbers "
                "below 2**63 as start and stop, and a tuple of such texts as parents. Hint: str() and int() make "
                "Python's own values of numpy's, and a tuple of one id is (\"a\",)."
            )
        if given.stop is not None and given.start > given.stop:
            return f"split {given.split_id!r} starts at {given.start}, after its stop, {given.stop}"
    counted = Counter(split.split_id for split in found)
    twice = min((name for name, count in counted.items() if count > 1), default=None)
    if twice is not None:
        return f"split {twice!r} is listed twice"
    try:
        TopologicalSorter({split.split_id: split.parents for split in found if split.parents}).prepare()
    except CycleError as circle:
        return (
            f"splits {circle.args[1]!r:.200} carry each other on, so each would wait for the others for ever. Hint: "
            "parents are the ids of other splits, whose rows come before."
        )
    return None


def _has_its_types(split: Any) -> bool:
    """Whether a checkpoint can have a split: it takes no subclass of a type, such as a bool or a text of numpy."""
    numbers = (split.start, split.start if split.stop is None else split.stop)
    return (
        all(map(is_int64, numbers))
        and isinstance(split.parents, tuple | list | set | frozenset)
        and all(type(name) is str and _is_utf8(name) for name in (split.split_id, *split.parents))
    )


def _is_utf8(text: str) -> bool:
    return text.isascii() or text.encode(errors="replace").decode() == text
