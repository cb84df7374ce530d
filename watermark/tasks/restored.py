"""The rows of a state, put together for a restart, with their values in the types of the parts.

Types are checked here, because a value of another type would fail later in the middle of other work.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypedDict, get_type_hints

import msgspec
from lowmark.watermark.errors import CorruptSnapshot
from lowmark.watermark.protocol import TaskId

from . import alignment, rounds
from .snapshot import Key

_OWNER = {"task": "source", "member": "group"}
_INNER = {"source": "tasks", "group": "members"}


def decode(rows: Mapping[Key, str]) -> dict[str, Any]:
    """Put the rows together: a list of each kind, sorted; the tasks of a source and the members of a group in it.

    >>> decode({("lost",): "3", ("run", "job", "orders", "0"): '["job","orders","0","run-1"]'})["run"]
    [('job', 'orders', '0', 'run-1')]

    Raises:
        CorruptSnapshot: a row is of an unknown kind, is not JSON, or belongs to nothing.
    """
    state: dict[str, Any] = {**{kind: [] for kind in _ROWS if kind not in _OWNER}, "lost": 0}
    owners: dict[Key, list[Any]] = {}
    size = sum(map(len, rows.values()))
    for key in sorted(rows):  # a source comes before its tasks' kind, and a group before its members' kind
        kind, *parts = key
        try:
            value = json.loads(rows[key])
        except (ValueError, RecursionError) as error:
            raise CorruptSnapshot(f"the row {key} is not JSON", size) from error
        try:
            value = msgspec.convert(value, _ROWS[kind])
        except (KeyError, msgspec.ValidationError) as error:
            raise CorruptSnapshot(f"its contents do not make sense (in {kind})", size) from error
        if kind == "lost":
            state["lost"] = value
        elif kind in _OWNER:
            owner = owners.get((_OWNER[kind], *parts[: 2 if kind == "task" else 1]))
            if owner is None:
                raise CorruptSnapshot(f"its contents do not make sense (the row {key} belongs to nothing)", size)
            owner.append(value)
        else:
            if kind in _INNER:
                value[_INNER[kind]] = owners[key] = []
            state[kind].append(value)
    state["retired"].sort(key=lambda run: run[-1])
    return state


# -- types of the parts


def _row(fields: Mapping[str, Any]) -> Any:
    """The type of a row that is an object; the part itself notices a missing field."""
    return TypedDict("Row", fields, total=False)  # type: ignore[operator]


_ROWS: dict[str, Any] = {
    "lost": int,
    "run": tuple[str, str, str, str],
    "retired": tuple[str, str, str, str, int],
    "source": _row(rounds.ROW),
    "task": _row({"task_id": str, "low_us": int | None, **get_type_hints(rounds.Answer)}),
    "group": _row(alignment.ROW),
    "member": _row({"task": TaskId, **get_type_hints(alignment.Member)}),
    "group_of": tuple[str, str, str, str],
    "spoke_us": tuple[str, str, str, int],
}
