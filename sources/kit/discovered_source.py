"""The part of a source that follows from its enumerator, which is, or has, a `DiscoveringEnumerator`."""

from __future__ import annotations

from typing import Any, Generic

from lowmark.sources.api import (
    Boundedness,
    Source,
    SourceSplit,
    SplitEnumerator,
    SplitEnumeratorContext,
    SplitT,
    StateT,
    VersionedSerializer,
)
from lowmark.sources.serializer import DataclassSerializer

from .discovery import DiscoveredSplits, PackedSerializer


class DiscoveredSource(Source[SplitT, StateT], Generic[SplitT, StateT]):
    """See above; `_state_type` is the type of the enumerator's state."""

    split_type: type[SourceSplit] = SourceSplit
    bounded: bool = False

    @property
    def _state_type(self) -> Any:
        return DiscoveredSplits[self.split_type]  # type: ignore[name-defined]

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED if self.bounded else Boundedness.CONTINUOUS_UNBOUNDED

    @property
    def split_serializer(self) -> VersionedSerializer[SplitT]:
        # The class attribute cannot be of the class's parameter.
        return DataclassSerializer(self.split_type)  # type: ignore[arg-type]

    @property
    def enumerator_state_serializer(self) -> VersionedSerializer[StateT]:
        return PackedSerializer(self._state_type)

    def create_enumerator(self, context: SplitEnumeratorContext[SplitT]) -> SplitEnumerator[SplitT, StateT]:
        return self.restore_enumerator(context, self._state_type())
