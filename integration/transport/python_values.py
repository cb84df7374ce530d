"""Rows of Arrow as values of Python, which has no time before the year 1 or after the year 9999, and no broken text.

Arrow raises an error for such a value. The error would end the query, and again after each restart, if one device sends
milliseconds as seconds, or one key is no UTF-8, because Spark casts binary to string without a look. So Python sees
another value, and the Arrow batch stays unchanged.

Executors import this module.
"""

from __future__ import annotations

import base64
import datetime as dt
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

BROKEN_TEXT = "surrogateescape"
"""The error handler by which Python keeps the bytes of a text that is no UTF-8, so that no two texts become one."""
_NO_VALUE = {False: (OverflowError, UnicodeDecodeError), True: (OverflowError, ValueError, LookupError)}
"""Errors of a value that Python does not have; where an integer will do, also those of a zone that only Java knows."""


def rows_of(batch: pa.RecordBatch, *, exact: bool = False) -> list[dict[str, Any]]:
    """Return the rows of a batch.

    Args:
        exact: a time that Python does not have is an integer, the time's number in Arrow; a text that is no UTF-8 is
            its bytes. Otherwise the time is None, and the text has U+FFFD in place of what is broken.
    """
    try:
        return batch.to_pylist()
    except _NO_VALUE[exact]:
        columns = [[_value(scalar, exact=exact) for scalar in column] for column in batch.columns]
        return [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def split_values(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> list[Any]:
    """Return the values of a split's column, each one different from the others.

    A date that Python does not have is its number of days since 1970. A text that is no UTF-8 has surrogates.
    """
    import pyarrow as pa

    if pa.types.is_date32(column.type):
        dates: list[Any] = np.asarray(column).tolist()
        return dates
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        texts = column.cast(pa.binary()).to_pylist()
        return [None if text is None else text.decode(errors=BROKEN_TEXT) for text in texts]


def to_json(value: dt.date | bytes) -> str:
    """Return a value of a split's column as Spark writes it into JSON, which has no dates and no binaries."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value.isoformat()


def from_json(value: Any, kind: str) -> Any:
    """Return a value of a split's column out of JSON, where a date and a binary are the texts of `to_json`."""
    if not isinstance(value, str):
        return bytes(value) if isinstance(value, bytearray) else value
    match kind:
        case "date":
            return dt.date.fromisoformat(value)
        case "binary":
            return base64.b64decode(value)
        case _:
            return value


def _value(scalar: Any, *, exact: bool) -> Any:
    import pyarrow as pa

    try:
        return scalar.as_py()
    except _NO_VALUE[exact]:
        match scalar:
            case pa.StructScalar():
                return {name: _value(each, exact=exact) for name, each in scalar.items()}
            case pa.MapScalar():
                return [tuple(_value(each, exact=exact) for each in pair.values()) for pair in scalar.values or ()]
            case pa.ListScalar():
                return [_value(each, exact=exact) for each in scalar.values or ()]
            case pa.StringScalar():
                content = scalar.as_buffer().to_pybytes()
                return content if exact else content.decode(errors="replace")
            case _:
                return scalar.value if exact else None
