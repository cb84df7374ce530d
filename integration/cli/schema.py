"""The JSON Schema of `lowmark status --json`: `docs/status.schema.json`, and `lowmark status --json-schema`.

Made from the types of the status, and from the classes below for the objects that `run_json` writes by hand. Later
versions may add fields; within a major version no field is renamed or removed.
"""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from inspect import cleandoc
from typing import Any, Literal, get_type_hints

import msgspec
from lowmark.watermark import StreamStatus


class AlignmentJson(msgspec.Struct, kw_only=True):
    """A query in an alignment group. Where a coordinator keeps the group, it alone knows minimum and drift."""

    group: str
    max_drift_us: int
    cap: Literal["hold", "up_to", "free"] | None
    cap_us: int | None
    throttled: bool
    minimum_us: int | None
    ahead_us: int | None
    waiting: bool
    why: str
    kept_at: str | None


class CoordinatorJson(msgspec.Struct, kw_only=True):
    """The coordinator that a query takes part in; `holds`: while it does not answer, the low watermark is held."""

    address: str
    connected: bool
    since: datetime | None
    why: str
    holds: bool


class RunJson(msgspec.Struct, kw_only=True):
    """What only the query knows, from its start to its end."""

    mark: str
    emits: bool
    ended: bool
    failed: bool
    refused: bool
    unmeasured_batches: int
    backlog_rows: int | None
    complete_until_us: int | None
    now: datetime | None
    asked_at: datetime | None
    reported_at: datetime | None
    rows_at: datetime | None
    batch_since: datetime | None
    seen_at: datetime | None
    alignment: AlignmentJson | None
    coordinator: CoordinatorJson | None
    rises: list[tuple[int, int]]


_STREAM_TYPES = get_type_hints(StreamStatus)
StreamJson: Any = msgspec.defstruct(
    "StreamJson",
    [
        ("query", str | None),
        *((field.name, _STREAM_TYPES[field.name]) for field in fields(StreamStatus)),
        ("run", RunJson),
        ("verdict", str),
        ("splits_not_shown", int),
    ],
    namespace={"__doc__": f"A stream in a query. {StreamStatus.__doc__}"},
    kw_only=True,
)


class ServiceJson(msgspec.Struct, kw_only=True):
    """A service: one LowWatermarkService in a driver."""

    address: str
    application: str
    pid: int
    streams: list[StreamJson]


class StatusJson(msgspec.Struct, kw_only=True):
    """What `lowmark status --json` prints; `error` only where something went wrong."""

    services: list[ServiceJson]
    coordinators: list[dict[str, Any]]
    error: str | msgspec.UnsetType = msgspec.UNSET


def status_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of `lowmark status --json`."""
    schema = msgspec.json.schema(StatusJson)
    for each in schema["$defs"].values():  # Python before 3.13 and msgspec before 0.23 leave docstrings indented
        if "description" in each:
            each["description"] = cleandoc(each["description"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
