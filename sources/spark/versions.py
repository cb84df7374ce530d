"""The supported versions of pyspark, and their differences in reading rows.

                            4.0, 4.1                           4.2, 4.3
    a reader plans a batch  `latestOffset()`: it knows its     `latestOffset(start, limit)`
                            position, and limits itself
    AvailableNow            the reader is not told             `prepareForTriggerAvailableNow()`
    a schema for Arrow      `timestamp_utc=True`               `timezone="UTC"`

Differences of running sessions are in `lowmark.integration.spark.versions`, above this floor.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyspark
from lowmark.watermark import LowmarkError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

SUPPORTED = ">=4.0,<5"
NEWEST_TRIED = (4, 3)
"""The newest version that every test has run on. A newer one below 5 is taken, with a warning."""
_OLDEST, _NEXT = (4, 0), (5, 0)
TRIED = " to ".join(f"{major}.{minor}" for major, minor in (_OLDEST, NEWEST_TRIED))
"""The versions that every test has run on, for errors: "4.0 to 4.3"."""


class UnsupportedSpark(LowmarkError, ImportError):
    """A version of Spark that lowmark does not support."""

    what: str  # the owner of the version: pyspark, or the Spark of a session
    version: str  # its version
    supported: str  # the supported range
    _fact = "{what} is version {version}, and lowmark works with Spark {supported}"
    _hint = 'install one of these versions (pip install "pyspark{supported}").'


def major_minor(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version of Spark; (0, 0) for a text that is no version.

    >>> major_minor("4.1.4"), major_minor("4.3.0-SNAPSHOT")
    ((4, 1), (4, 3))
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def check_version(version: str, what: str = "pyspark") -> None:
    """Refuse a version of Spark outside the range, such as "3.5.1"."""
    if not _OLDEST <= major_minor(version) < _NEXT:
        raise UnsupportedSpark(what, version, SUPPORTED)


check_version(pyspark.__version__)  # before `source.py` imports modules that older versions lack

PASSES_LIMITS = major_minor(pyspark.__version__) >= (4, 2)
"""Spark passes start and limit to `latestOffset`, and tells readers of AvailableNow.

By the version, because a newer Spark that has moved a module must fail there and not pass for 4.1.
"""


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return a schema in the form that Spark expects from Python: timestamps in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    in_utc: dict[str, Any] = {"timezone": "UTC"} if PASSES_LIMITS else {"timestamp_utc": True}
    return to_arrow_schema(schema, **in_utc)
