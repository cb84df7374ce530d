"""Plans the changes of the two entries that a restart will read, and the moves of folders; writes nothing."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence

from lowmark.integration.errors import AdoptionRefused
from lowmark.integration.transport.heartbeat import HeartbeatOffset
from lowmark.sources.planning.offset import BatchOffset
from lowmark.watermark.printable import counted

from .changes import Action, Change, Entry, layout, pairs, spots, without_heartbeats, without_repeats
from .kafka_offsets import read_positions
from .logical_plan import WATERMARK_POLICY, is_max
from .offset_log import LEFT_OUT, OffsetEntry


class AdoptionPlan:
    """Plans one `adopt` or `leave`.

    Args:
        entries: the newest two entries of the offset log, by name, the newest first.
        folders: numbers of the folders in ``sources/`` that are not empty.
        refused: makes an error from a fact and a hint.
    """

    def __init__(
        self,
        action: Action,
        entries: Mapping[str, OffsetEntry],
        folders: frozenset[int],
        refused: Callable[[str, str], AdoptionRefused],
    ) -> None:
        self._action, self._entries, self._folders, self._refused = action, entries, folders, refused
        self._newest = next(iter(entries.values()))

    def change(self, streams: Mapping[str, Sequence[int] | None] | None) -> Change | str:
        """Return the change; a text says why there is nothing to do. Raises `AdoptionRefused`.

        Args:
            streams: name -> numbers of its sources, or None to go by the order; None: remove all heartbeats.
        """
        entries, newest = self._entries, self._newest
        if newest.named:
            return (
                "its sources have names (source evolution), so Spark lets it gain and lose sources. Start the query "
                "with `wrap`, or without"
            )
        if streams is None:
            self._check_readers(newest)
        kept = entries if streams is not None else self._without_repeats()
        native = {name: without_heartbeats(entry) for name, entry in kept.items()}
        counts = {len(entry.sources) for entry in native.values()}
        if len(counts) > 1:
            raise self._refused(
                f"offsets/{' and offsets/'.join(entries)} are of another number of sources each",
                LEFT_OUT
                if newest.version == 2
                else "was a query started that was then changed? Use a copy of the checkpoint from before.",
            )
        [count] = counts
        layouts = {layout(entry) for entry in entries.values()}
        known = [heartbeat.stream for heartbeat in newest.heartbeats.values()]
        if streams is None:
            wanted: dict[int, str] = {}
            if layouts == {()}:
                return "no heartbeat is in it, so it is of a query without lowmark"
            self._check_distinct(next(iter(kept.values())))
        else:
            wanted = self._places(native, streams)
            target = tuple(sorted(wanted.items()))
            if layouts == {target}:
                return "the heartbeat is there already"
            if layouts - {(), target}:
                names = ", ".join(f'"{name}"' for name in known)
                raise self._refused(f"it is of a query with lowmark already ({names})", "run `lowmark leave` first.")
        before = dict(next(iter(layouts))) if len(layouts) == 1 else {}
        moves = self._moves(count, before, wanted)
        if moves and len(layouts) > 1:
            raise self._refused("its newest entries disagree about where heartbeats stand", "use a copy from before.")
        places = {str(place): spot for place, spot in enumerate(spots(count, wanted))}
        added = {place: json.dumps(HeartbeatOffset(stream).to_json()) for place, stream in wanted.items()}
        after = {name: entry.renumbered(places, added).text() for name, entry in native.items()}
        changed = tuple(Entry(name, entry.text(), after[name]) for name, entry in entries.items())
        return Change(self._action, changed, tuple(moves), tuple(wanted.values() if wanted else known))

    def _places(self, native: Mapping[str, OffsetEntry], streams: Mapping[str, Sequence[int] | None]) -> dict[int, str]:
        """Place -> stream of each heartbeat after the change: behind the last source of its stream."""
        newest = next(iter(native.values()))
        count = len(newest.sources)
        self._check_distinct(self._newest)
        if len(streams) > 1 and is_max(newest.conf.get(WATERMARK_POLICY)):
            raise self._refused(
                f"{WATERMARK_POLICY} is max in it, so the stream that is ahead would decide",
                "several wrapped streams need min, which only a new checkpoint can have.",
            )
        if len(streams) > count:
            raise self._refused(
                f"{len(streams)} streams are named ({', '.join(streams)}), and it has {counted(count, 'source')}",
                "name the streams that the query wraps, each once.",
            )
        numbered = " ".join(f"--stream {shlex.quote(f'{name}={n}')}" for n, name in enumerate(streams))
        unsaid = [name for name, numbers in streams.items() if numbers is None]
        if unsaid and not (len(unsaid) == len(streams) and len(streams) == count):
            raise self._refused(
                f"it has {counted(count, 'source')}, and the sources of {', '.join(unsaid)} are not given",
                f"pass their numbers, such as {numbered}; several are separated by commas, and sources/ has a folder "
                "for each.",
            )
        last: dict[int, str] = {}
        taken: set[int] = set()
        for n, (name, numbers) in enumerate(streams.items()):
            mine = sorted({n} if numbers is None else set(numbers))
            if not mine or mine != list(range(mine[0], mine[0] + len(mine))) or mine[0] < 0 or mine[-1] >= count:
                raise self._refused(
                    f"the sources of {name} are {', '.join(map(str, mine)) or 'none'}, and it has 0 to {count - 1}",
                    "a stream is made of sources that follow each other in the query."
                    + (f" {LEFT_OUT.capitalize()}" if newest.version == 2 else ""),
                )
            if taken & set(mine):
                raise self._refused(f"source {min(taken & set(mine))} is of two streams", "give each to one.")
            taken |= set(mine)
            last[mine[-1]] = name
        return {source + 1 + n: last[source] for n, source in enumerate(sorted(last))}

    def _without_repeats(self) -> dict[str, OffsetEntry]:
        """Return the entries without the lines of `late_to`, which reads the sources of its stream once more.

        Two different sources may stand at the same offsets, but a source that keeps files, as Kafka's, has a folder.
        """
        kept = {name: without_repeats(entry) for name, entry in self._entries.items()}
        counts = {len(entry.sources) - len(kept[name].sources) for name, entry in self._entries.items()}
        count = max(counts)
        end = len(self._newest.sources)
        repeats, heartbeat = range(end - count, end), end - count - 1
        if len(counts) > 1 or self._folders & {*repeats}:
            return dict(self._entries)
        if not self._folders.issuperset(range(heartbeat - count, heartbeat)):
            raise self._refused(
                "its last sources stand at the offsets of the sources before them, and no folder in sources/ tells "
                "whether late_to reads those once more or they are sources of their own",
                "start with a new checkpoint; `lowmark offsets` prints where.",
            )
        return kept

    def _check_distinct(self, entry: OffsetEntry) -> None:
        """Refuse a query that reads one source twice: it has two lines and one folder, so folders do not follow lines.

        If the last line of a native source has a folder of its number, each line has a number of its own.
        """
        heartbeats, folders = entry.heartbeats, self._folders
        lines = sorted((int(id_), offset) for id_, offset in entry.sources if id_ not in heartbeats)
        offsets = [offset for _, offset in lines]
        twice = [place for n, (place, offset) in enumerate(lines) if offset is not None and offset in offsets[:n]]
        if not twice or lines[-1][0] in folders:
            return
        if folders and (self._action == "adopt" or max(folders) >= twice[0]):
            raise self._refused(
                "its query seems to read one source twice (a self-join, a union with itself, or late_to before another "
                "source)",
                f"that cannot be {'adopted' if self._action == 'adopt' else 'left'}; start with a new checkpoint, see "
                "`lowmark offsets`.",
            )

    def _check_readers(self, newest: OffsetEntry) -> None:
        streams = {heartbeat.stream for heartbeat in newest.heartbeats.values()}
        for _, offset in newest.sources:
            found = BatchOffset.find(offset)
            if found is not None and found.source in streams:
                raise self._refused(
                    f'stream "{found.source}" is read by service.read, and no source of Spark\'s knows its offsets',
                    "start with a new checkpoint; `lowmark offsets` prints where."
                    if read_positions(found)
                    else "start with a new checkpoint, at a place that you choose: Spark's own source takes none of "
                    "these positions, which are in offsets/.",
                )

    def _moves(self, count: int, before: Mapping[int, str], wanted: Mapping[int, str]) -> list[tuple[str, str]]:
        """(from, to) of the folders of sources that change their place, in an order that overwrites no folder."""
        folders, moves = self._folders, []
        for old, new in pairs(count, before, wanted):
            if new in folders:
                raise self._refused(
                    f"sources/{new} is there and of no source that is known",
                    f"a query that was started on it by mistake may have left it; look into it, move it away, and run "
                    f"`lowmark {self._action}` again.",
                )
            if old in folders:
                moves.append((str(old), str(new)))
                folders = folders - {old} | {new}
        return moves
