"""The streams of a service by id, and the names of released streams. Belongs to the loop."""

from __future__ import annotations

from .stream import Stream


class Streams(dict[str, Stream]):
    """Streams that were wrapped, read or audited, by id."""

    def __init__(self) -> None:
        super().__init__()
        self._released: dict[str, str] = {}  # id -> name

    def add(self, stream: Stream) -> None:
        """Add a stream, whose name no other one has."""
        self[stream.stream_id] = stream

    def named(self, name: str) -> Stream | None:
        return next((stream for stream in self.values() if stream.name == name), None)

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(stream.name for stream in self.values()))

    def release(self, name: str) -> None:
        """Forget the stream with this name, and close its measurement; without such a stream, do nothing."""
        if (stream := self.named(name)) is not None:
            del self[stream.stream_id]
            self._released[stream.stream_id] = name
            stream.measure.close()

    def why_released(self, stream_id: str) -> str | None:
        """Say that a stream was released, for a query that is about to begin with it; None if it was not."""
        name = self._released.get(stream_id)
        if name is None:
            return None
        return (
            f'stream "{name}": this DataFrame was released, or its name was given to another since. '
            "Hint: start a query on the newer one."
        )

    def close(self) -> None:
        """Drop the measurements of queries that still run."""
        for stream in self.values():
            stream.measure.close()
