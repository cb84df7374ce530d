"""A query of Spark Connect, as the events of the client's listener tell it."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import plan_text
from .logical_plan import WATERMARK_POLICY, fault_of
from .progress import Progress

if TYPE_CHECKING:
    from .client_checkpoint import ClientCheckpoint

_REMEMBERED = 100  # batches, as in Spark


class ConnectQuery:
    """See `RunningQuery`.

    Args:
        explained: returns Spark's plan of a running query as text, by the query's id.
        setting: returns a setting of the session.
        silence: says for how long the server has not answered; None: it answers.
    """

    def __init__(
        self,
        explained: Callable[[str], str],
        setting: Callable[[str, str], str | None],
        query_id: str,
        run_id: str,
        name: str | None,
        farewells: ClientCheckpoint,
        silence: Callable[[], str | None],
    ) -> None:
        self.query_id, self.run_id, self.name, self.farewells = query_id, run_id, name, farewells
        self.active = True
        self.failure: str | None = None  # only the event of its end has the text
        self.heartbeats: list[tuple[str, list[int]]] = []  # before the first batch unknown, and later nobody asks
        self._explained, self._setting, self._silence = explained, setting, silence
        self._plan: list[plan_text.Node] = []
        self._policy: str | None = None
        self._batches: deque[Progress] = deque(maxlen=_REMEMBERED)
        self._streams: dict[str, None] = {}

    def expect(self, progress: Progress) -> None:
        """Learn of a batch that `newest` does not return yet."""
        self.name, self.farewells.begins = progress.name, progress
        for metric in progress.observed_metrics:
            owner, _, rest = metric.partition(":")
            stream_id, _, heartbeat = rest.partition(":")
            if (owner, heartbeat) == ("lowmark", "heartbeat"):
                self._streams[stream_id] = None

    def look(self) -> None:
        """Ask the server for the plan of the running query, until it was read once."""
        if self.active and not self._plan:
            self._policy = self._setting(WATERMARK_POLICY, "min")
            self._plan = plan_text.nodes(self._explained(self.query_id))

    @property
    def trouble(self) -> str | None:
        return self._silence()

    def take(self, progress: Progress) -> None:
        """Let a batch be the newest."""
        self._batches.append(progress)

    def newest(self, after: int | None = None) -> Progress | None:
        newest = self._batches[-1] if self._batches else None
        return None if newest is None or newest.batch_id == after else newest

    def history(self) -> list[Progress]:
        return [*self._batches]

    def streams(self) -> list[str]:
        return [*self._streams]

    def source_kinds(self) -> list[bool]:
        return []

    def source_numbers(self) -> frozenset[int]:
        return frozenset()

    def stream_sources(self) -> Mapping[int, Sequence[int]]:
        """Read each heartbeat's sources off the plan.

        Without a plan that fits the progress, as after an end with the first batch, they are the sources since the
        heartbeat before, because a union lists its rows first.
        """
        if (placed := self._placed()) is not None:
            return placed
        newest = self.newest()
        found: dict[int, list[int]] = {}
        first = 0
        for heartbeat, _ in [] if newest is None else newest.heartbeats():
            found[heartbeat] = [*range(first, heartbeat)]
            first = heartbeat + 1
        return found

    def _placed(self) -> dict[int, list[int]] | None:
        """The sources of each heartbeat by the plan; None: the plan is unknown or does not fit the progress."""
        newest = self.newest()
        found, number = plan_text.stream_sources(self._plan)
        if newest is None or number != len(newest.sources):
            return None
        return found if sorted(found) == [place for place, _ in newest.heartbeats()] else None

    def tell_late(self) -> None:
        pass  # `wrap` refuses a column of late rows for a client

    def fault(self, *, tells_late: bool) -> str | None:  # noqa: ARG002  # always False, as above
        if len(self._streams) > 1 and self._plan and self._placed() is None:
            return (
                "the query has several wrapped streams, and the text of its plan does not tell a client of Spark "
                "Connect which source belongs to which stream. Hint: run it in the driver itself."
            )
        stacked, number = plan_text.nested_watermarks(self._plan), plan_text.watermarks(self._plan)
        return fault_of(stacked=stacked, watermarks=number, policy=self._policy)


def progress_of(told: Any) -> Progress:
    """Return a client's `StreamingQueryProgress`, typed.

    A progress that a query remembers lacks the sum of the rows, and each metric in it is values beside a schema.
    """
    fields = _by_name(json.loads(told.json))
    fields.setdefault("numInputRows", sum(source["numInputRows"] for source in fields["sources"]))
    return Progress.from_json(json.dumps(fields))


def _by_name(value: Any) -> Any:
    """Return JSON with each row of Spark, {"values": ..., "schema": ...}, as an object."""
    match value:
        case {"values": [*values], "schema": {"fields": [*columns]}}:
            return {column["name"]: _by_name(each) for column, each in zip(columns, values, strict=True)}
        case dict():
            return {name: _by_name(each) for name, each in value.items()}
        case list():
            return [_by_name(each) for each in value]
    return value


class ClientEvent:
    """See `JavaEvent`."""

    def __init__(self, event: Any) -> None:
        self._event = event
        told = getattr(event, "progress", event)
        self.query_id, self.run_id = str(told.id), str(told.runId)
        self.batch_id: int = getattr(told, "batchId", -1)
        self.failure: str | None = getattr(event, "exception", None)

    def progress(self) -> Progress:
        return progress_of(self._event.progress)

    def readers(self) -> list[tuple[str, str]]:
        """Return (name of the stream, token) of each heartbeat reader, also of a report that cannot be read."""
        ends = [source.get("endOffset") for source in json.loads(self._event.progress.json)["sources"]]
        found = [(end.get("lowmark"), end.get("token")) for end in ends if isinstance(end, dict)]
        return [(name, token) for name, token in found if isinstance(name, str) and isinstance(token, str)]
