"""The JSON Schema of `lowmark status --json`: `docs/status.schema.json`, and `lowmark status --json-schema`.

Made from the types of the status, and from the classes below for the objects that `run_json` writes by hand. Later
versions may add fields; within a major version no field is renamed or removed.
"""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
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


def status_type() -> type:
    """The type of the whole object, for `msgspec.convert`."""
    hints = get_type_hints(StreamStatus)
    stream = msgspec.defstruct(
        "StreamJson",
        [
            ("query", str | None),
            *((field.name, hints[field.name]) for field in fields(StreamStatus)),
            ("run", RunJson),
            ("verdict", str),
            ("splits_not_shown", int),
        ],
        namespace={"__doc__": f"A stream in a query. {StreamStatus.__doc__}"},
        kw_only=True,
    )
    service = msgspec.defstruct(
        "ServiceJson",
        [("address", str), ("application", str), ("pid", int), ("streams", list[stream])],  # type: ignore[valid-type]
        namespace={"__doc__": "A service: one LowWatermarkService in a driver."},
        kw_only=True,
    )
    return msgspec.defstruct(
        "StatusJson",
        [
            ("services", list[service]),  # type: ignore[valid-type]
            ("coordinators", list[dict[str, Any]]),
            ("error", str | msgspec.UnsetType, msgspec.UNSET),
        ],
        namespace={"__doc__": "What `lowmark status --json` prints; `error` only where something went wrong."},
        kw_only=True,
    )


def status_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of `lowmark status --json`."""
    schema = msgspec.json.schema(status_type())
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
