"""The rows of a state, put together for a restart, and the types of their values.

Types are checked here, because a value of another type would fail later in the middle of other work. The parts
themselves check missing and unknown fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

from lowmark.watermark.errors import CorruptSnapshot
from lowmark.watermark.protocol import TaskId

from . import alignment, rounds
from .snapshot import Key

_OWNER = {"task": "source", "member": "group"}
_INNER = {"source": "tasks", "group": "members"}


def decode(rows: Mapping[Key, str]) -> dict[str, Any]:
    """Put the rows together: a list of each kind, sorted; the tasks of a source and the members of a group in it.

    >>> decode({("lost",): "3", ("run", "job", "orders", "0"): '["job","orders","0","run-1"]'})["run"]
    [['job', 'orders', '0', 'run-1']]

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
        if kind not in _ROWS or not _ROWS[kind](value):
            raise CorruptSnapshot(f"its contents do not make sense (in {kind})", size)
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

_Check = Callable[[Any], bool]


def _check(kind: Any) -> _Check:
    """The check of a type: JSON has a dict of the fields for a dataclass, a list for a tuple, a text for an enum."""
    if is_dataclass(kind):
        kind = get_type_hints(kind)
    if isinstance(kind, dict):
        fields = {name: _check(each) for name, each in kind.items()}
        return lambda value: (
            isinstance(value, dict) and all(check(value[name]) for name, check in fields.items() if name in value)
        )
    parts = get_args(kind) or (kind,)
    if get_origin(kind) is tuple and parts[-1] is ...:
        element = _check(parts[0])
        return lambda value: isinstance(value, list) and all(map(element, value))
    if get_origin(kind) is tuple:
        places = [_check(part) for part in parts]
        return lambda value: (
            isinstance(value, list)
            and len(value) == len(places)
            and all(check(each) for check, each in zip(places, value, strict=True))
        )
    if any(is_dataclass(part) or get_args(part) for part in parts):
        checks = [_check(part) for part in parts]
        return lambda value: any(check(value) for check in checks)
    types = {str if issubclass(part, Enum) else part for part in parts}
    return lambda value: type(value) in types  # so that True is no number


_ROWS: dict[str, _Check] = {
    kind: _check(of)
    for kind, of in {
        "lost": int,
        "run": tuple[str, str, str, str],
        "retired": tuple[str, str, str, str, int],
        "source": rounds.ROW,
        "task": {"task_id": str, "low_us": int | None, **get_type_hints(rounds.Answer)},
        "group": alignment.ROW,
        "member": {"task": TaskId, **get_type_hints(alignment.Member)},
        "group_of": tuple[str, str, str, str],
        "spoke_us": tuple[str, str, str, int],
    }.items()
}
