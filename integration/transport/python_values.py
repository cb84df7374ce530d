"""Rows of Arrow as values of Python, which has no time before the year 1 or after the year 9999.

Arrow raises an error for such a time. One device with a wrong clock, whose milliseconds arrive as seconds, would end
its query with that error, and again after each restart. So Python sees another value there, and the Arrow batch stays
as it is.

Executors import this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa


def rows_of(batch: pa.RecordBatch, *, exact: bool = False) -> list[dict[str, Any]]:
    """Return the rows of a batch.

    Args:
        exact: a time that Python does not have is an integer, the time's number in Arrow. Otherwise it is None.
    """
    try:
        return batch.to_pylist()
    except OverflowError:
        columns = [[_value(scalar, exact=exact) for scalar in column] for column in batch.columns]
        return [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def split_values(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> list[Any]:
    """Return the values of a split's column; a date that Python does not have is its number of days since 1970."""
    import pyarrow as pa

    return np.asarray(column).tolist() if pa.types.is_date32(column.type) else column.to_pylist()


def _value(scalar: Any, *, exact: bool) -> Any:
    import pyarrow as pa

    try:
        return scalar.as_py()
    except OverflowError:
        match scalar:
            case pa.StructScalar():
                return {name: _value(each, exact=exact) for name, each in scalar.items()}
            case pa.MapScalar():
                return [tuple(_value(each, exact=exact) for each in pair.values()) for pair in scalar.values]
            case pa.ListScalar():
                return [_value(each, exact=exact) for each in scalar.values]
            case _:
                return scalar.value if exact else None
