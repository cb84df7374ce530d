"""A source that reads several sources in turn: first history, then live data (FLIP-150).

    files of last year ──► files of this year ──► Kafka
    bounded                bounded                may be unbounded

The switch to the next source comes when every reader has finished the present source: the enumerator has told the
reader that there are no more splits, and every split of the reader was planned to its end (`handle_splits_finished`).
Splits carry the index of their source, also in their id ("0:orders/3"). A source sees only its own splits and ids.

The start of a source may depend on the end of the previous source: `DeferredSource` makes the source at the switch.
Another process that needs the source, after a restart or on an executor, makes it without the previous source; so
facts that are known only at the switch belong into the splits.

Source: `org.apache.flink.connector.base.source.hybrid`, FLIP-150.
"""

from __future__ import annotations

import pyarrow as pa
from lowmark.sources.api import Boundedness, Fetching, Source, SplitEnumeratorContext, VersionedSerializer
from lowmark.sources.serializer import DataclassSerializer, UnreadableState
from lowmark.sources.worker import described

from .enumerator import HybridEnumerator, HybridState
from .planner import HybridPlanner
from .reader import HybridSplitReader
from .split import HybridSplit
from .succession import AnySource, DeferredSource, DeferredSourceFailed, Succession


class HybridSource(Source[HybridSplit, HybridState]):
    """Reads sources one after the other.

    Args:
        sources: two or more sources, all bounded except the last, all with one schema. The first is not deferred.

    Raises:
        InvalidHybrid: the sources break one of these rules; for a deferred source, when it is made.
    """

    def __init__(self, *sources: AnySource | DeferredSource) -> None:
        self._sources = Succession(*sources)
        self.requires = self._sources.requires

    @property
    def schema(self) -> pa.Schema:
        return self._sources.first.schema

    @property
    def event_time(self) -> str | None:
        """The event-time column of the sources; a source without such a column is not searched by time."""
        return self._sources.event_time

    @property
    def boundedness(self) -> Boundedness:
        return self._sources.boundedness

    @property
    def fetching(self) -> Fetching:  # type: ignore[override]
        """The most threads of a source, which read the other sources, too, and the least of all limits."""
        parts = [source.fetching for source in self._sources]
        at_once = min((each.splits_at_once for each in parts if each.splits_at_once is not None), default=None)
        return Fetching(max(each.threads for each in parts), at_once, min(each.ahead_bytes for each in parts))

    @property
    def split_serializer(self) -> VersionedSerializer[HybridSplit]:
        return _SplitSerializer(self._sources)

    @property
    def enumerator_state_serializer(self) -> VersionedSerializer[HybridState]:
        return _StateSerializer(self._sources)

    def create_enumerator(self, context: SplitEnumeratorContext[HybridSplit]) -> HybridEnumerator:
        return HybridEnumerator(self._sources, context, None)

    def restore_enumerator(self, context: SplitEnumeratorContext[HybridSplit], state: HybridState) -> HybridEnumerator:
        return HybridEnumerator(self._sources, context, state)

    def create_planner(self) -> HybridPlanner:
        return HybridPlanner(self._sources)

    def create_split_reader(self) -> HybridSplitReader:
        return HybridSplitReader(self._sources)


# -- formats


_SPLIT = DataclassSerializer(tuple[int, int, bytes], name="HybridSplit")
_STATE = DataclassSerializer(tuple[int, int, bytes, tuple[int, ...], tuple[str, ...]], name="HybridState")


class _SplitSerializer:
    version = _SPLIT.version

    def __init__(self, sources: Succession) -> None:
        self._sources = sources

    def serialize(self, value: HybridSplit) -> bytes:
        inner = self._sources[value.source_index].split_serializer
        return _SPLIT.serialize((value.source_index, inner.version, inner.serialize(value.unwrap())))

    def deserialize(self, version: int, data: bytes) -> HybridSplit:
        index, inner_version, split = _SPLIT.deserialize(version, data)
        inner = _known(self._sources, index).split_serializer
        return HybridSplit.wrap(index, inner.deserialize(inner_version, split))


class _StateSerializer:
    version = _STATE.version

    def __init__(self, sources: Succession) -> None:
        self._sources = sources

    def serialize(self, value: HybridState) -> bytes:
        inner = self._sources[value.source_index].enumerator_state_serializer
        state = inner.serialize(value.state)
        return _STATE.serialize((value.source_index, inner.version, state, value.complete, value.unfinished))

    def deserialize(self, version: int, data: bytes) -> HybridState:
        index, inner_version, state, complete, unfinished = _STATE.deserialize(version, data)
        inner = _known(self._sources, index).enumerator_state_serializer
        return HybridState(index, inner.deserialize(inner_version, state), complete, unfinished)


def _known(sources: Succession, index: int) -> AnySource:
    if not 0 <= index <= sources.last_index:
        raise UnreadableState(
            "HybridSource",
            f"the checkpoint is of source {index} of a HybridSource that has sources 0 to {sources.last_index} now",
            "sources may be added behind the last one, and none taken away that was read.",
        )
    try:
        return sources[index]
    except Exception as cause:  # of the user's function
        raise DeferredSourceFailed(index, described(cause)) from cause
