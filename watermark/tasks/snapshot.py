"""The coordinator's state as rows, one for each part that changes by itself: a task, a run, a source, a member.

    ("task", job, source, task)  ->  '{"task_id":"0","low_us":42,...}'        the row's key, and its state as JSON

A caller keeps the rows. Most tasks have said nothing since the rows were taken last, so only changed rows are taken:
whatever changes a part marks the part's key in ``Changes``. Nothing depends on time or memory, so equal states give
equal rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from lowmark.watermark.errors import CorruptSnapshot

VERSION = 1
"""Grows with each change of the rows' form."""

Key = tuple[str, ...]
Rows = dict[Key, str]
ChangedRows = dict[Key, str | None]
Mark = Callable[..., None]
"""Called with the key of each row that changes."""

to_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
"""Encode a value as JSON, without spaces and with keys in their order."""


class Changes:
    """The rows that changed since they were taken.

    Args:
        encoded: gives the state of a key as JSON; None if the part has gone.
    """

    def __init__(self, encoded: Callable[[Key], str | None]) -> None:
        self._encoded = encoded
        self._marked: dict[Key, None] = {}
        self._rows: ChangedRows = {}

    def mark(self, *key: str) -> None:
        """Mark a part as new, changed or gone. O(1)."""
        self._marked[key] = None

    def encode(self, most: int) -> bool:
        """Encode up to ``most`` rows now, so that less is left for ``take``. Returns whether any are left."""
        for key in list(islice(self._marked, most)):
            del self._marked[key]
            self._rows[key] = self._encoded(key)
        return bool(self._marked)

    def take(self) -> ChangedRows:
        """The rows that changed since the last call; None for a part that has gone."""
        self.encode(len(self._marked))
        rows, self._rows = self._rows, {}
        return rows


def nobody_keeps(*_key: str) -> None:
    """Mark nothing: for parts whose rows nobody takes."""


def decode(rows: Mapping[Key, str]) -> dict[str, Any]:
    """Put the rows together: a list of each kind, sorted; the tasks of a source and the members of a group in it.

    >>> decode({("lost",): "3", ("run", "job", "orders", "0"): '["job","orders","0","run-1"]'})["runs"]
    [['job', 'orders', '0', 'run-1']]

    Raises:
        CorruptSnapshot: a row is of an unknown kind, is not JSON, or belongs to nothing.
    """
    state: dict[str, Any] = {"lost": 0, **{name: [] for name in _LISTS.values()}}
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
            state[_LISTS[kind]].append(value)
    state["retired"].sort(key=lambda run: run[-1])
    return state


# -- types of the parts
# Types are checked here, because a value of another type would fail later in the middle of other work. The parts
# themselves check missing and unknown fields.

_Check = Callable[[Any], bool]
_LISTS = {
    "run": "runs",
    "retired": "retired",
    "source": "sources",
    "group": "groups",
    "group_of": "group_of",
    "spoke_us": "spoke_us",
}
_OWNER = {"task": "source", "member": "group"}
_INNER = {"source": "tasks", "group": "members"}


def _number(value: Any) -> bool:
    return type(value) is int


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _maybe(check: _Check) -> _Check:
    return lambda value: value is None or check(value)


def _all(check: _Check) -> _Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _row(*checks: _Check) -> _Check:
    return lambda value: (
        isinstance(value, list)
        and len(value) == len(checks)
        and all(check(each) for check, each in zip(checks, value, strict=True))
    )


def _fields(**checks: _Check) -> _Check:
    return lambda value: (
        isinstance(value, dict) and all(check(value[name]) for name, check in checks.items() if name in value)
    )


_TASK = _fields(job_id=_text, source_id=_text, task_id=_text)
_ANSWER = _fields(
    task_id=_text,
    low_us=_maybe(_number),
    order=_maybe(_all(lambda value: isinstance(value, int))),
    left_out=_maybe(_text),
    next_wanted_us=_maybe(_number),
    counted=_flag,
    passed=_flag,
    expected=_number,
    patience_us=_maybe(_number),
    away_since_us=_maybe(_number),
    away_limit_us=_maybe(_number),
    waited_us=_number,
    excused=_flag,
    complete_until_us=_maybe(_number),
)
_MEMBER = _fields(
    task=_TASK,
    throttled=_flag,
    floor_us=_maybe(_number),
    report=_maybe(_fields(at_us=_number, active=_flag, next_wanted_us=_maybe(_number))),
    low_us=_maybe(_number),
    low_at_us=_maybe(_number),
)
_ROWS: dict[str, _Check] = {
    "lost": _number,
    "run": _row(_text, _text, _text, _text),
    "retired": _row(_text, _text, _text, _text, _number),
    "source": _fields(
        job_id=_text,
        source_id=_text,
        low_us=_maybe(_number),
        rose_at_us=_maybe(_number),
        last_asked_us=_maybe(_number),
        returned_late=_number,
    ),
    "task": _ANSWER,
    "group": _fields(
        name=_text,
        params=_maybe(_fields(group=_text, max_drift_us=_number, update_interval_us=_number)),
        next_us=_maybe(_number),
        announced_us=_maybe(_number),
        version=_number,
    ),
    "member": _MEMBER,
    "group_of": _row(_text, _text, _text, _text),
    "spoke_us": _row(_text, _text, _text, _number),
}
