"""Records of `adopt` and `leave` in a checkpoint, each written before the change begins: ``lowmark/changes/<n>.json``.

The file is the backup, too. Anyone who can write in the checkpoint can write the file, so lowmark obeys it only if one
of the two commands could have written it: it adds heartbeats to entries of the offset log or removes them, with the
lines of a branch that reads the sources again, moves the folders in ``sources/`` that must follow, and changes nothing
else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Literal

import msgspec
from lowmark.integration.errors import AdoptionRefused, UnknownFormat, UnreadableHeartbeat
from lowmark.watermark.names import unfit_character

from .checkpoint import CHANGES
from .checkpoint_store import CheckpointStore
from .offset_log import OffsetEntry

_FORMAT = 1
_FILE = re.compile(r"([1-9][0-9]{0,17})\.json")

Action = Literal["adopt", "leave"]
Number = Annotated[str, msgspec.Meta(pattern=r"\A(0|[1-9][0-9]{0,18})\Z")]


class Entry(msgspec.Struct, frozen=True):
    """An entry of the offset log before and after a change."""

    name: Number
    before: str
    after: str


class Change(msgspec.Struct, frozen=True):
    """A change of a checkpoint."""

    action: Action
    entries: Annotated[tuple[Entry, ...], msgspec.Meta(min_length=1, max_length=2)]  # the newest first
    moves: tuple[tuple[Number, Number], ...]  # (from, to) of folders in `sources/`, in order
    streams: tuple[str, ...]  # names of those whose heartbeats are added or removed
    undoes: Annotated[int, msgspec.Meta(ge=1)] | None = None  # number of the change that is taken back
    moved: Annotated[int, msgspec.Meta(ge=0)] = 0  # number of the moves that are done
    done: bool = False
    format: int = _FORMAT

    @property
    def command(self) -> str:
        return f"lowmark {self.action}" if self.undoes is None else f"lowmark {self.action} --undo"

    @property
    def adds(self) -> bool:
        """Whether it adds heartbeats, so that the checkpoint is a wrapped query's afterwards."""
        return (self.action == "adopt") is (self.undoes is None)


def last_change(store: CheckpointStore, refused: Callable[[str, str], AdoptionRefused]) -> tuple[int, Change | None]:
    """Return number and content of the last change of a checkpoint; 0 and None if there was none.

    Raises `AdoptionRefused`, which `refused` makes from a fact and a hint.
    """
    numbers = [int(found[1]) for name in store.names(CHANGES) if (found := _FILE.fullmatch(name))]
    if not numbers:
        return 0, None
    number = max(numbers)
    file = f"{CHANGES}/{number}.json"
    try:
        text = store.read(file) or ""
        form = msgspec.json.decode(text, type=dict).get("format")
        if form != _FORMAT:
            raise refused(
                f"{file} has format {form!r:.80}, and this lowmark knows {_FORMAT}",
                "use the later version of lowmark that wrote it.",
            )
        change = msgspec.json.decode(text, type=Change)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as broken:
        raise refused(f"{file} cannot be read ({broken})", "remove it if you are sure of the rest.") from broken
    try:
        _check(change, number)
    except (UnknownFormat, UnreadableHeartbeat) as foreign:
        raise refused(
            f"{file} is not one that lowmark writes: {foreign}",
            "nothing was touched. Find out who put it there; remove it if you are sure of the rest.",
        ) from foreign
    return number, change


def keep_change(store: CheckpointStore, number: int, change: Change) -> None:
    """Write a change into the checkpoint, or what is done of it by now."""
    store.write(f"{CHANGES}/{number}.json", msgspec.json.encode(change).decode())


def layout(entry: OffsetEntry) -> tuple[tuple[int, str], ...]:
    """(place, stream) of each heartbeat, sorted."""
    return tuple(sorted((int(id_), heartbeat.stream) for id_, heartbeat in entry.heartbeats.items()))


def without_heartbeats(entry: OffsetEntry) -> OffsetEntry:
    """Return the entry as native Spark would have it, with sources numbered from 0."""
    heartbeats = entry.heartbeats
    kept = [id_ for id_, _ in entry.sources if id_ not in heartbeats]
    if not entry.named:
        kept.sort(key=int)
    return entry.renumbered({id_: place for place, id_ in enumerate(kept)}, {})


def without_repeats(entry: OffsetEntry) -> OffsetEntry:
    """Return the entry without the lines behind its last heartbeat, if they repeat the lines before the heartbeat.

    A branch of a wrapped stream that reads its sources once more, as `late_to` does, stands behind the heartbeat. Only
    version 1 has a line for each use of a source.
    """
    heartbeats = entry.heartbeats
    if entry.version != 1 or not heartbeats:
        return entry
    last = max(map(int, heartbeats))
    before, repeats = entry.sources[:last], entry.sources[last + 1 :]
    found = [offset for _, offset in repeats]
    if not found or [offset for _, offset in before[-len(found) :]] != found:
        return entry
    return replace(entry, sources=entry.sources[: last + 1])


def spots(count: int, heartbeats: Mapping[int, str]) -> list[int]:
    """The places of `count` sources, between the places of the heartbeats."""
    return [place for place in range(count + len(heartbeats)) if place not in heartbeats]


def pairs(count: int, before: Mapping[int, str], after: Mapping[int, str]) -> list[tuple[int, int]]:
    """(old, new) place of each source that changes its place, in an order that overwrites no source.

    Args:
        count: number of the sources, without heartbeats.
        before: place -> stream of each heartbeat.
        after: the same after the change; one of the two is empty.

    >>> pairs(3, {}, {1: "a", 3: "b", 5: "c"})
    [(2, 4), (1, 2)]
    """
    found = [(old, new) for old, new in zip(spots(count, before), spots(count, after), strict=True) if old != new]
    return sorted(found, reverse=bool(after))


def _is_same_native(before: OffsetEntry, after: OffsetEntry) -> bool:
    return without_heartbeats(before) == without_heartbeats(after) or (
        without_heartbeats(without_repeats(before)) == without_heartbeats(without_repeats(after))
    )


def _check(change: Change, number: int) -> None:
    """Refuse a change that neither command makes. Raises `UnknownFormat` or `UnreadableHeartbeat`."""
    numbers = [int(entry.name) for entry in change.entries]
    if numbers != sorted({*numbers}, reverse=True):
        raise UnknownFormat(f"it names entries {', '.join(map(str, numbers))}, expected the newest first")
    if change.moved > len(change.moves):
        raise UnknownFormat(f"{change.moved} of {len(change.moves)} moves are done in it")
    if change.undoes is not None and change.undoes >= number:
        raise UnknownFormat(f"it undoes change {change.undoes}, which is not before it")
    if any(unfit_character(name) is not None for name in change.streams):
        raise UnknownFormat("the name of a stream has a character that none may have")
    for each in change.entries:
        before, after = (OffsetEntry.parse(text) for text in (each.before, each.after))
        before.check()
        after.check()
        if not _is_same_native(before, after):
            raise UnknownFormat(f"it changes more of offsets/{each.name} than heartbeats")
    before, after = (OffsetEntry.parse(text) for text in (change.entries[0].before, change.entries[0].after))
    left = iter(pairs(len(without_heartbeats(before).sources), dict(layout(before)), dict(layout(after))))
    for one, to in change.moves:
        if (int(one), int(to)) not in left:  # advances the iterator, so the order counts, too
            raise UnknownFormat(f"it moves sources/{one} to sources/{to}, which its entries do not ask for")
