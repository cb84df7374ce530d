"""A partition of a table that is done, its name, and two ways to tell of it: a file ``_SUCCESS``, and HTTP."""

from __future__ import annotations

import json
import logging
import re
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from lowmark.integration.errors import CheckpointUnreadable, CheckpointUnwritable, SuccessFileNotWritten
from lowmark.integration.spark.checkpoint_store import open_store
from lowmark.watermark.moment import datetime_of
from pyspark.sql import SparkSession

from .partitions import has_times

log = logging.getLogger("lowmark")

_ZONE = "spark.sql.session.timeZone"
_AS_UTC = frozenset({"UTC", "Etc/UTC", "GMT", "Etc/GMT", "Z", "+00:00"})
_POST_SECONDS = 30.0
_HTTP_ADDRESS = re.compile(
    r"https?://(\[[0-9a-f:.]+\]|[^\s/?#@:\[\]]+)(:(?P<port>[0-9]{1,5}))?([/?][!-~]*)?", re.IGNORECASE
)
_LAST_PORT = 65_535
_WITH_YEAR = re.compile("%([%FGY])")
_DAY_US = 86_400_000_000
# In 1970 a layout repeats after these times if it lacks the half of the day, the day, week, month or year.
_REPEATING_DAYS = (0.5, 1, 7, 31, 365)
_ESCAPED = re.compile(r"""[\x01-\x1f"#%'*/:=?\\\x7f{\[\]^]""")


@dataclass(frozen=True, slots=True)
class DonePartition:
    """A partition whose rows are all in the sink.

    Attributes:
        stream: name of the stream.
        query: name of the query, else its id.
        name: the partition, as the layout names it: "dt=2026-11-23/hour=10".
        start, end: its times, UTC; the end is exclusive.
        complete_until: the sink is complete until this time.
        has_rows: False: it may have rows, because a crash took the report of a batch away. If more than 10,000
            partitions in a row may have rows, one mark stands for the oldest of them: from the `start` of the first one
            to the `end` of the last one, whose name it has.
        empty_before: names of the partitions without rows since the partition before, at most the first 100.
        empty_count: number of all of them.
    """

    stream: str
    query: str
    name: str
    start: datetime
    end: datetime
    complete_until: datetime
    has_rows: bool
    empty_before: tuple[str, ...]
    empty_count: int

    def to_json(self) -> dict[str, Any]:
        """Return it for ``json.dumps``."""
        return {
            "stream": self.stream,
            "query": self.query,
            "partition": self.name,
            "start": self.start.isoformat(),
            "end": self.end.isoformat(),
            "complete_until": self.complete_until.isoformat(),
            "has_rows": self.has_rows,
            "empty_before": list(self.empty_before),
            "empty_count": self.empty_count,
        }


def name_at(time: datetime, layout: str) -> str:
    """Return the name of a partition that begins at a time, as Spark names the partition's folder.

    Spark writes a year with four digits; the C library of Linux writes years before 1000 with fewer. Spark escapes some
    characters of a column's name and value.

    >>> name_at(datetime(999, 7, 1, 5), "dt=%Y-%m-%d/hour=%H")
    'dt=0999-07-01/hour=05'
    >>> name_at(datetime(2026, 11, 23, 10), "ts=%Y-%m-%d %H:%M:%S"), name_at(datetime(2026, 11, 23, 10), "%F/%R")
    ('ts=2026-11-23 10%3A00%3A00', '2026-11-23/10:00')
    """
    years = {"Y": f"{time.year:04}", "F": f"{time.year:04}-%m-%d", "G": f"{time.isocalendar().year:04}", "%": "%%"}
    folders = [time.strftime(_WITH_YEAR.sub(lambda found: years[found[1]], each)) for each in layout.split("/")]
    return "/".join(map(_escaped, folders))


def is_shared(layout: str, width_us: int) -> bool:
    """Whether several partitions have one name: the first two since 1970, or two that are half a day to a year apart.

    >>> is_shared("%F/%H", 3_600_000_000), is_shared("%F/%I", 3_600_000_000), is_shared("%m-%d", 86_400_000_000)
    (False, True, True)
    """
    others = (round(days * _DAY_US / width_us) for days in _REPEATING_DAYS)
    names = {
        number: name_at(datetime_of(number * width_us), layout)
        for number in (0, 1, *others)
        if has_times(number, width_us)
    }
    return len(names) > len(set(names.values()))


def _escaped(folder: str) -> str:
    """Return the folder of a column's value as Spark names it; other folders stay as they are.

    Source: `org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils.escapePathName`.
    """
    column, is_of_column, value = folder.partition("=")
    if not is_of_column:
        return folder
    return "=".join(_ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", each) for each in (column, value))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Makes a redirect an error, because `urllib` would follow most of them by a GET without the JSON."""

    def redirect_request(self, *_: object) -> None:
        return None


def takes_post(address: str) -> bool:
    """Whether this is an HTTP address to which `urllib` can post: it takes no login and no blank.

    >>> takes_post("https://hooks.example/done?key=1"), takes_post("localhost:8080/done"), takes_post("http:///done")
    (True, False, False)
    >>> takes_post("http://localhost:65535/done"), takes_post("http://localhost:65536/done")
    (True, False)
    """
    found = _HTTP_ADDRESS.fullmatch(address)
    return found is not None and int(found["port"] or 0) <= _LAST_PORT


def poster(address: str) -> Callable[[DonePartition], None]:
    """Return a function that posts a partition to an HTTP address as JSON; each answer but 2xx is an error."""
    opener = urllib.request.build_opener(_NoRedirect)

    def post(partition: DonePartition) -> None:
        body = json.dumps(partition.to_json()).encode()
        request = urllib.request.Request(address, body, {"Content-Type": "application/json"}, method="POST")  # noqa: S310
        with opener.open(request, timeout=_POST_SECONDS) as answer:
            answer.read()

    return post


def success_files_in(spark: SparkSession, folder: str, width_us: int) -> Callable[[DonePartition], None]:
    """Return a function that writes ``_SUCCESS`` into a partition's folder, on any of Hadoop's file systems.

    A partition that may have no rows gets the file only if its folder is there. A mark of many such partitions writes
    no file, because the folders would be looked for one by one.
    """
    if (zone := spark.conf.get(_ZONE)) not in _AS_UTC:
        log.warning(
            'the partitions of "%s" are named in UTC, and %s is "%s": a folder named by date_format has rows '
            "of other hours, so it may get _SUCCESS hours before they are complete. Hint: set %s to UTC.",
            folder, _ZONE, zone, _ZONE,
        )  # fmt: skip

    def write(partition: DonePartition) -> None:
        if partition.end - partition.start > timedelta(microseconds=width_us):
            log.warning(
                'stream "%s": partitions from %s to %s may have rows, because a crash took the report of a batch away. '
                'They are too many to look for the folder of each, so none of them gets _SUCCESS in "%s"',
                partition.stream, partition.start, partition.end, folder,
            )  # fmt: skip
            return
        try:
            store = open_store(spark, folder)
            if partition.has_rows or store.exists(partition.name):
                store.write(f"{partition.name}/_SUCCESS", "")
        except (CheckpointUnreadable, CheckpointUnwritable) as failed:
            cause = failed.fact if isinstance(failed, CheckpointUnreadable) else failed.cause
            raise SuccessFileNotWritten(partition.stream, partition.name, folder, cause) from failed

    return write
