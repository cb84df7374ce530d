"""The sources of a `HybridSource` in their order; a deferred source is made at the switch to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from lowmark.sources.api import Boundedness, Source, SplitEnumerator
from lowmark.watermark import LowmarkError
from lowmark.watermark.errors import shown

AnySource = Source[Any, Any]
AnyEnumerator = SplitEnumerator[Any, Any]


class InvalidHybrid(LowmarkError, ValueError):
    """Sources that cannot be read one after the other."""

    index: int  # the source at fault, from 0
    reason: str  # the fault
    hint: str  # what to do
    _fact = "source {index} of a HybridSource: {reason}"


class DeferredSourceFailed(LowmarkError, RuntimeError):
    """A deferred source cannot be made, so the splits in a checkpoint cannot be read yet."""

    index: int  # the source, from 0
    cause: str  # type and text of the error
    _fact = "source {index} of a HybridSource cannot be made: {cause}"
    _hint = "the checkpoint is whole: the query goes on from it once DeferredSource.create returns the source."
    _cause_knows_best = True


@dataclass(frozen=True, slots=True)
class DeferredSource:
    """A source that is made at the switch to it.

    Attributes:
        create: gets the enumerator of the previous source, which has ended and is not closed yet; None on executors,
            and after a restart once the source has looked for splits. It makes a source with the same `stop=` each
            time. A module's function, or another picklable callable.
        boundedness: boundedness of the source that it makes.
        requires: modules that reading this source needs, as `Source.requires`.
    """

    create: Callable[[AnyEnumerator | None], AnySource]
    boundedness: Boundedness = Boundedness.BOUNDED
    requires: tuple[str, ...] = ()


class Succession:
    """The sources of a `HybridSource`. The boundedness of the whole is that of the last source."""

    def __init__(self, *sources: AnySource | DeferredSource) -> None:
        if len(sources) < 2:
            hint = "give them one by one, as in HybridSource(archive, live); read a single one as it is."
            raise InvalidHybrid(0, f"expected two sources or more, got {len(sources)}", hint)
        if isinstance(sources[0], DeferredSource):
            raise InvalidHybrid(0, "nothing comes before it, so it cannot be deferred", "give the source itself.")
        for index, source in enumerate(sources[:-1]):
            if source.boundedness is not Boundedness.BOUNDED:
                raise InvalidHybrid(index, "it is unbounded, so nothing would ever follow", "bound it, or put it last.")
        self.first, self.last_index, self.boundedness = sources[0], len(sources) - 1, sources[-1].boundedness
        self.requires = tuple(dict.fromkeys(module for source in sources for module in source.requires))
        self._sources = sources
        self._made: dict[int, AnySource] = {}
        for index, source in enumerate(sources):
            if not isinstance(source, DeferredSource):
                self._made[index] = self._checked(index, source)
        named = {source.event_time for source in self._made.values()} - {None}
        # The event-time column of the sources that are not deferred; None without one, or with several.
        self.event_time = named.pop() if len(named) == 1 else None

    def __iter__(self) -> Iterator[AnySource]:
        """The sources that are known now."""
        return iter(self._made.values())

    def __getitem__(self, index: int) -> AnySource:
        """Return a source; a deferred source without a switch in this process is made without an enumerator."""
        if index not in self._made:
            self.switch_to(index, None)
        return self._made[index]

    def is_deferred(self, index: int) -> bool:
        return isinstance(self._sources[index], DeferredSource)

    def switch_to(self, index: int, previous: AnyEnumerator | None) -> AnySource:
        """Make a deferred source from the end of the previous source; return other sources as they are."""
        source = self._sources[index]
        if isinstance(source, DeferredSource):
            made: object = source.create(previous)
            if not isinstance(made, Source):
                reason = f"DeferredSource.create returned {shown(made)}, expected a Source"
                raise InvalidHybrid(index, reason, "return the source that create makes.")
            if made.boundedness is not source.boundedness:
                reason = f"it was announced as {source.boundedness.value} and is {made.boundedness.value}"
                raise InvalidHybrid(index, reason, "give DeferredSource the boundedness of what it makes.")
            if None not in (self.event_time, made.event_time) and made.event_time != self.event_time:
                reason = f"its event time is {made.event_time!r}, and that of the other sources is {self.event_time!r}"
                hint = "name one column, because the stream takes the times that each source has passed for its own."
                raise InvalidHybrid(index, reason, hint)
            self._made[index] = self._checked(index, made)
        return self._made[index]

    def _checked(self, index: int, source: AnySource) -> AnySource:
        for unlike, what in (
            (source.externally_induced, "it decides itself where batches end"),
            (source.event_serializer is not None, "its readers send events, and an event does not name its source"),
        ):
            if unlike:
                raise InvalidHybrid(index, what, "read it as a stream of its own, and unite the streams.")
        first, other = self.first.schema, source.schema
        if not first.equals(other):
            differing = [
                f"{name}: {_type_of(first, name)} in source 0, {_type_of(other, name)} here"
                for name in dict.fromkeys([*first.names, *other.names])
                if _type_of(first, name) != _type_of(other, name)
            ]
            reason = "; ".join(differing) if differing else f"columns in the order {other.names}, not {first.names}"
            raise InvalidHybrid(index, f"its columns differ: {reason}", "select and cast until all have one schema.")
        return source


def _type_of(schema: pa.Schema, name: str) -> str:
    return str(schema.field(name).type) if name in schema.names else "missing"
