"""One entry of a checkpoint's offset log: the offset of each source when a batch was planned.

    v1                                     v2
    {"batchWatermarkMs": ..., ...}         {"batchWatermarkMs": ..., ...}
    {"orders":{"0":12}}                    0:{"orders":{"0":12}}
    -                                      1:-

In version 1 the id of a source is its place among the leaves of the query's plan, and Spark expects as many lines as
the query has sources. In version 2 (`spark.sql.streaming.offsetLog.formatVersion`) each line has an id: the same place,
or the source's name if `spark.sql.streaming.queryEvolution.enableSourceEvolution` is on; such a query may gain and lose
sources.
Source: `org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqLog`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lowmark.integration.errors import CheckpointUnreadable, UnknownFormat
from lowmark.integration.transport.heartbeat import HeartbeatOffset
from lowmark.sources.spark.settings import is_true
from lowmark.watermark.duration import rough_duration_us
from lowmark.watermark.moment import format_time_us
from lowmark.watermark.strategy import FUTURE_GUARD_US

if TYPE_CHECKING:
    from .checkpoint_store import CheckpointFiles

EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
LEFT_OUT = (
    "version 2 of the offset log leaves out a source that has read nothing yet: run the query as it was, until two "
    "batches after each has."
)
"""The remedy if an entry does not show the number of sources."""
COPY = "use a copy of the checkpoint from before."
_NONE = "-"
_VERSIONS = ("v1", "v2")
_PLACE_DIGITS = 4
_PLACE = re.compile(rf"0|[1-9][0-9]{{0,{_PLACE_DIGITS - 1}}}")
_METADATA = {"batchWatermarkMs", "batchTimestampMs", "conf"}
_METADATA_V2 = _METADATA | {"sourceMetadataInfo"}


class _CutShort(UnknownFormat):
    """An entry of the offset log is not whole, because the machine stopped during its write or a copy was cut."""


@dataclass(frozen=True)
class OffsetEntry:
    r"""One entry, as it was written.

    >>> entry = OffsetEntry.parse('v1\n{"batchWatermarkMs":5}\n{"logOffset":2}')
    >>> entry.sources, entry.watermark_ms
    ((('0', '{"logOffset":2}'),), 5)
    >>> entry.text()
    'v1\n{"batchWatermarkMs":5}\n{"logOffset":2}'
    """

    version: int
    metadata: str  # the second line
    # (id, offset) of each source, in the order of the lines; None: it has no offset. In version 1 the id is the place.
    sources: tuple[tuple[str, str | None], ...]

    @classmethod
    def parse(cls, text: str) -> OffsetEntry:
        """Read an entry. Raises `UnknownFormat` if the entry is not whole, or of an unknown version."""
        # splitlines would also end a line at characters that JSON does not escape.
        version, *lines = text.split("\n")
        if version not in _VERSIONS:
            kind = UnknownFormat if version else _CutShort
            raise kind(f"has version {version!r:.80}, expected 'v1' or 'v2'")
        if not lines:
            raise _CutShort("ends after its version")
        metadata, *offsets = lines
        if json_object(metadata) is None:
            raise _CutShort(f"has metadata that is no JSON: {metadata[:80]!r}")
        offsets = [line for line in offsets if line]
        if version == "v1":
            return cls(1, metadata, tuple((str(n), _some(line)) for n, line in enumerate(offsets)))
        found = [line.partition(":") for line in offsets]
        if any(not colon for _, colon, _ in found):
            raise UnknownFormat("has a line without the id of a source")
        return cls(2, metadata, tuple((id_, _some(offset)) for id_, _, offset in found))

    def text(self) -> str:
        lines = [_NONE if offset is None else offset for _, offset in self.sources]
        if self.version != 1:
            lines = [f"{id_}:{line}" for (id_, _), line in zip(self.sources, lines, strict=True)]
        return "\n".join([f"v{self.version}", self.metadata, *lines])

    @property
    def conf(self) -> Mapping[str, Any]:
        """The session settings that Spark keeps with a query."""
        conf = self._metadata().get("conf")
        return conf if isinstance(conf, dict) else {}

    @property
    def watermark_ms(self) -> int | None:
        """The watermark in force in the batch, None without one."""
        return _risen(self._metadata().get("batchWatermarkMs"))

    @property
    def named(self) -> bool:
        """Whether the query's sources have names, so that the query may gain and lose sources."""
        return self.version == 2 and is_true(self.conf.get(EVOLUTION))

    def placed(self, count: int) -> list[str | None]:
        r"""Return the offset at each place where a query uses a source; None: no offset. Not for named sources.

        Version 2 writes its lines in any order; a source without read data has no line, a source that is used twice has
        one. Raises `UnknownFormat`.

        >>> OffsetEntry.parse('v2\n{}\n2:{"c":1}\n0:{"a":1}').placed(4)
        ['{"a":1}', None, '{"c":1}', None]
        """
        if self.version == 1:
            return [offset for _, offset in self.sources]
        offsets = dict(self.sources)
        if (strange := next((id_ for id_ in offsets if not _PLACE.fullmatch(id_)), None)) is not None:
            raise UnknownFormat(f"numbers a source {strange!r:.80}, expected 0 to {10**_PLACE_DIGITS - 1:,}")
        return [offsets.get(str(n)) for n in range(max([count, *(int(id_) + 1 for id_ in offsets)]))]

    @property
    def heartbeats(self) -> dict[str, HeartbeatOffset]:
        """Id -> offset of the sources that are heartbeats. Raises `UnreadableHeartbeat`."""
        found = {id_: HeartbeatOffset.find(offset) for id_, offset in self.sources}
        return {id_: heartbeat for id_, heartbeat in found.items() if heartbeat is not None}

    @property
    def positions(self) -> dict[str, str | None]:
        """Id of a source -> its offset as text, without the heartbeats. Raises `UnreadableHeartbeat`."""
        heartbeats = self.heartbeats
        return {id_: offset for id_, offset in self.sources if id_ not in heartbeats}

    def check(self) -> None:
        """Refuse an entry with unknown parts, before it is changed. Raises `UnknownFormat`."""
        metadata = self._metadata()
        unknown = sorted(set(metadata) - (_METADATA if self.version == 1 else _METADATA_V2))
        if not metadata or unknown:
            raise UnknownFormat(
                f"has metadata that is not known here: {', '.join(unknown) or repr(self.metadata[:80])}"
            )
        if metadata.get("sourceMetadataInfo"):
            raise UnknownFormat("says more of its sources than is known here (sourceMetadataInfo)")
        for id_, offset in self.sources:
            try:
                json.loads("null" if offset is None else offset)
            except (ValueError, RecursionError):
                raise _CutShort(f"has an offset of source {id_} that is no JSON: {offset!r:.80}") from None
        ids = [id_ for id_, _ in self.sources]
        if not ids:
            raise UnknownFormat("has no source")
        if not self.named and {*ids} != {str(n) for n in range(len(ids))}:
            raise UnknownFormat(f"numbers its sources {', '.join(ids)}, expected 0 to {len(ids) - 1}; {LEFT_OUT}")

    def renumbered(self, places: Mapping[str, int], added: Mapping[int, str]) -> OffsetEntry:
        """Return the entry with the sources that have a new place, and with `added` ones: place -> offset."""
        kept = [(places[id_], offset) for id_, offset in self.sources if id_ in places]
        sources: Sequence[tuple[int, str | None]] = [*kept, *added.items()]
        if self.version == 1:
            sources = sorted(sources, key=lambda source: source[0])
        return replace(self, sources=tuple((str(place), offset) for place, offset in sources))

    def _metadata(self) -> Mapping[str, Any]:
        return json_object(self.metadata) or {}


def _some(line: str) -> str | None:
    return None if line == _NONE else line


def json_object(text: str | None) -> Mapping[str, Any] | None:
    """Return the JSON object in a text, such as an offset; None: the text has none."""
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _risen(watermark_ms: object) -> int | None:
    return watermark_ms if type(watermark_ms) is int and watermark_ms > 0 else None


def next_watermark_ms(commit: str) -> int | None:
    r"""The watermark after a batch, from the batch's entry in the commit log; None if the entry has none.

    Source: `org.apache.spark.sql.execution.streaming.checkpointing.CommitMetadata`.

    >>> next_watermark_ms('v1\n{"nextBatchWatermarkMs":5}'), next_watermark_ms("")
    (5, None)
    """
    _, _, metadata = commit.partition("\n")
    return _risen((json_object(metadata) or {}).get("nextBatchWatermarkMs"))


def ahead_of_clock(watermark_us: int, now_us: int) -> str | None:
    """Say where a native query's watermark stands if it is further ahead of the clock than event times can be.

    >>> ahead_of_clock(86_400_000_000, now_us=0)
    'stands at 1970-01-02 00:00:00.000 UTC, 1d ahead of the clock, where a timestamp of the future has put it'
    """
    ahead_us = watermark_us - now_us
    if ahead_us <= FUTURE_GUARD_US:
        return None
    return (
        f"stands at {format_time_us(watermark_us)}, {rough_duration_us(ahead_us)} ahead of the clock, where a "
        "timestamp of the future has put it"
    )


def planned_entry(files: CheckpointFiles, batch_id: int, hint: str) -> OffsetEntry:
    """Return the entry of a planned batch. Raises `CheckpointUnreadable`, with the hint if the format is unknown."""
    name = f"offsets/{batch_id}"
    try:
        text = files.read(name)
        if text is None:
            fact = f"batch {batch_id} is committed, and {name} is not there"
            raise CheckpointUnreadable(files.root, fact, "use a whole copy of the checkpoint.")
        return OffsetEntry.parse(text)
    except UnicodeDecodeError as failed:
        raise CheckpointUnreadable(files.root, f"{name} cannot be read (it is not UTF-8)", COPY) from failed
    except UnknownFormat as unknown:
        raise CheckpointUnreadable(files.root, f"{name} {unknown}", hint_for(unknown, hint)) from unknown


def hint_for(unknown: UnknownFormat, hint: str) -> str:
    """Return the remedy for an entry that cannot be read; `hint` for a whole entry of another version."""
    if isinstance(unknown, _CutShort):
        return f"did the machine stop while it was written? {COPY.capitalize()}"
    return hint
