"""Escapes the values of a log record, so that they do not control a terminal or forge a log line.

Names of splits, tasks and applications, and answers of other processes, come from outside and may have any characters.
The owner of a logger adds ``escape_record`` to it as a filter; this module logs nothing.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from numbers import Number
from typing import Any, Literal

from .printable import printable

_INDENT = "    "


class Lines(str):
    """A value with several lines on purpose, such as a stack. Each line is escaped by itself and indented."""

    __slots__ = ()


class _Escaped:
    """A value with its escaped text, for every conversion of the log line."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return _shown(str(self._value), lines=isinstance(self._value, Lines))

    def __repr__(self) -> str:
        return printable(repr(self._value))


def escape_record(record: Any) -> Literal[True]:
    r"""Escape the values of a ``logging.LogRecord`` in place, and indent its traceback; the template is ours.

    >>> import logging
    >>> record = logging.LogRecord("lowmark", logging.INFO, "", 0, "task %s came, %d", ("a\nERROR\x1b[2J", 7), None)
    >>> escape_record(record), record.getMessage()
    (True, 'task a\\nERROR\\x1b[2J came, 7')
    """
    if isinstance(record.args, Mapping):
        record.args = {name: _escaped(value) for name, value in record.args.items()}
    elif record.args:
        record.args = tuple(map(_escaped, record.args))
    error = record.exc_info
    if error and error[1] is not None and record.exc_text is None:
        # Handlers show this text, if any. It is indented, because its lines could look like log lines.
        text = "".join(traceback.format_exception(*error)).rstrip("\n")
        record.exc_text = _INDENT + _shown(text, lines=True)
    return True  # a filter keeps the record


def _escaped(value: object) -> object:
    # Most values need no escape and keep their type, for handlers that look at values.
    if value is None or isinstance(value, Number) or (type(value) is str and value.isprintable()):
        return value
    return _Escaped(value)


def _shown(text: str, *, lines: bool) -> str:
    return f"\n{_INDENT}".join(map(printable, text.split("\n"))) if lines else printable(text)
