"""Explains why a query failed where Spark's own words do not."""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from collections.abc import Collection, Mapping
from typing import NamedTuple

from lowmark.integration.spark.conflict import conflict
from lowmark.integration.spark.sessions import Query
from lowmark.watermark.printable import first_line

from .stream import Stream

log = logging.getLogger("lowmark")


class _Fault(NamedTuple):
    """A fault by the signs of Spark's text, of which one suffices, and its meaning, which the text does not tell."""

    signs: tuple[str, ...]
    meaning: str
    place: str = ""  # what the text needs beside a sign


_FAULTS = (
    # Spark says only this when a process that it talks to is gone. A sink that loses a connection says the same.
    _Fault(
        ("Connection reset", "Broken pipe", "EOFException"),
        "a Python process that Spark reads from is gone: the heartbeat, or the planner of a source. It was killed, or "
        "the host ran out of memory. Nothing is lost: start the query again, it goes on from its checkpoint with the "
        "low watermark it had.",
        place="PythonStreamingSourceRunner",
    ),
    _Fault(
        ("Python worker failed to connect back", "Python worker to connect back"),
        "a Python process of the query did not start within the 10 seconds that Spark waits for it (60 for one of a "
        "task, since Spark 4.2), because the host was busy. No setting of Spark's changes that, "
        "spark.python.authenticate.socketTimeout neither. Nothing is lost: start the query again. Hint: start queries "
        "one after the other rather than at once, or give the driver more cores (spark.driver.cores).",
    ),
    # Kafka connector 4.1 fails here when it reports a batch that a restart ran without asking for offsets.
    _Fault(
        ("KafkaMicroBatchStream$.metrics",),
        "Spark's Kafka connector cannot report the batch that a restart ran again (SPARK-55271, with lowmark or "
        "without). The batch is committed, and nothing is lost: start the query again.",
    ),
    # Spark 4.2 looks here for a setting that version 2 of the offset log lacks.
    _Fault(
        ("OfflineStateRepartitionUtils$.isRepartitionBatch",),
        "Spark 4.2 cannot run a batch again that was not committed if spark.sql.streaming.offsetLog.formatVersion is 2 "
        "(SPARK-59662, with lowmark or without). Nothing is lost: start it with Spark 4.3; or remove the newest entry "
        "of offsets/ in its checkpoint, and that batch is planned anew, maybe with other rows.",
    ),
)
_ENDED = "terminated with exception: "
_TRACEBACK = "Traceback (most recent call last):"
_OUR_ERROR = re.compile(r".*?\blowmark(?:\.\w+)*\.[A-Z]\w*: ")
_MOST_BRIEF = 1_000  # characters
_explaining = threading.Lock()
_explained: deque[str] = deque(maxlen=100)
"""Runs of queries whose failure is logged already: every service on a session hears of the same failure."""


def brief(failure: str | None) -> str | None:
    r"""Say in a sentence or two why a query failed: the known meaning of Spark's text, else its first line.

    Where the first line begins the traceback of a user's Python function, the error at its end says why. An error of
    lowmark is told without Spark's words before it, because they say nothing of the cause and would cut its hint off.

    Args:
        failure: Spark's text of the failure; None or empty if the query did not fail.

    >>> brief("org.apache.spark.SparkException: Python worker failed to connect back.")[:60]
    'a Python process of the query did not start within the 10 se'
    >>> brief("StreamingQueryException: [STREAM_FAILED] Query [id = 1] terminated with exception: no disk\nat java...")
    'no disk'
    """
    if not failure:
        return None
    if (meaning := _meaning(failure)) is not None:
        return meaning
    first = first_line(failure)
    if first.endswith(_TRACEBACK):
        first = _raised(failure) or first
    _, _, cause = first.partition(_ENDED)
    return _OUR_ERROR.sub("", cause or first, count=1)[:_MOST_BRIEF]


def _raised(failure: str) -> str | None:
    """Return the error that the first traceback in Spark's text ends with; None if the text is cut before it."""
    python, _, _ = failure.partition("\n\tat ")  # then comes Java's own traceback
    raised, in_frames = None, False
    for line in python.splitlines():
        if line.endswith(_TRACEBACK):
            in_frames = True
        elif in_frames and line.strip() and not line[0].isspace():
            raised, in_frames = line, False
        elif not in_frames and _OUR_ERROR.match(line):  # the cause in the text of an error of Spark
            raised = line
    return raised


def explain(
    failure: str, query: Query | None, *, query_id: str, names: Collection[str], streams: Mapping[str, Stream]
) -> dict[str, str]:
    """Log the known reason of a query's failure, if any.

    Args:
        failure: Spark's text of the failure.
        query: None if it is no longer known.
        names: those of the query's streams; empty for a query without lowmark.
        streams: all streams of the service, by id.

    Returns:
        What a wrong checkpoint explains, by the name of the stream; also if another service has logged it.
    """
    known: dict[str, str] = {}
    if query is not None and query.newest() is None:
        known = _explain_checkpoint(query, streams)
    if (meaning := _meaning(failure)) is not None:
        where = f' on "{", ".join(sorted(names))}"' if names else ""
        log.error("query %s%s: %s", query_id, where, meaning)
    return known


def _meaning(failure: str) -> str | None:
    told = (each for each in _FAULTS if each.place in failure and any(sign in failure for sign in each.signs))
    return next((fault.meaning for fault in told), None)


def conflict_of(query: Query, streams: Mapping[str, Stream]) -> str | None:
    """Say why a query without a finished batch cannot go on from its checkpoint; None if lowmark is not the reason."""
    try:
        placed = query.heartbeats
        if placed and not any(stream_id in streams for stream_id, _ in placed):
            return None  # a query of another service
        # For a heartbeat of another service in the same query, only its place is known.
        own = [(streams[stream_id], numbers) for stream_id, numbers in placed if stream_id in streams]
        written = query.farewells.newest_entry()
        # Named sources may come and go.
        if written is None or written.named or len(own) < len(placed):
            return None
        kinds, renumbered = query.source_kinds(), False
        if written.version == 2:  # this version has one line per source, however often the query uses the source
            own = [each for n, each in enumerate(own) if each[0] not in [stream for stream, _ in own[:n]]]
            renumbered = not {id_ for id_, _ in written.sources} <= set(map(str, query.source_numbers()))
        return conflict(
            written.placed(len(kinds)),
            [stream.name for stream, _ in own if not stream.reads],
            [stream.name for stream, _ in own if stream.reads],
            {stream.name: numbers for stream, numbers in own},
            checkpoint=query.farewells.checkpoint,
            kinds=kinds,
            uses=len(kinds) if written.version == 1 else None,
            renumbered=renumbered,
        )
    except Exception as failed:  # noqa: BLE001  # py4j and file systems have no common base class of errors
        log.debug("query %s: its checkpoint could not be looked at: %s", query.query_id, failed)
        return None


def _explain_checkpoint(query: Query, streams: Mapping[str, Stream]) -> dict[str, str]:
    """Explain a failure before the first batch by a wrong checkpoint, which Spark's own text does not name."""
    why = conflict_of(query, streams)
    if why is None:
        return {}
    with _explaining:
        new = query.run_id not in _explained
        if new:
            _explained.append(query.run_id)
    if new:
        log.error("query %s: %s", query.query_id, why)
    return {streams[stream_id].name: why for stream_id in query.streams() if stream_id in streams}
