"""Reads exact slices of shards: from the record at the cursor up to the end of the slice.

A slice is at its end when its last record was read, when a later record comes, or at the end of a closed shard. The
planner has seen the record at which a slice ends, so if the shard ends before that record, records are lost.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lowmark.sources.api import Fetched, SplitChange, SplitReader, SplitRows, SplitsAddition
from lowmark.sources.metric_group import MetricGroup

from .aggregated import MalformedPacket
from .client import KinesisClient, PlaceRefused, ShardGone, sequence_of
from .columns import KinesisColumns
from .connections import KinesisSettings
from .errors import KinesisStreamReplaced
from .look import IteratorsExpired, Reading, from_time
from .split import KinesisLosses, KinesisSplit

MOST_RECORDS = 10_000
"""The service's limit for one read, beside 10 MB."""
FEW_RECORDS = 100
EMPTY_SECONDS = 30.0
"""How long reading waits at an end when planned records do not come."""
LONGEST_WAIT_SECONDS = 0.5
"""How long a fetch waits before it returns without rows."""

MOST_NAMED = 1_000
_log = logging.getLogger("lowmark")
_named: set[str] = set()  # streams with a malformed packet that this process has logged


@dataclass(slots=True)
class _Slice:
    """The progress of a slice."""

    split: KinesisSplit
    reading: Reading
    left: int
    begun: bool = False  # whether a record of it was read
    empty_since: float | None = None


class KinesisSplitReader(SplitReader[KinesisSplit]):
    """Reads slices in turn, with one page in each fetch.

    Attributes:
        metrics: counts `data_losses`, and `malformed_packets`: records that begin as a packet of the producer library
            but cannot be unpacked; each gives one row, unchanged.
    """

    def __init__(
        self,
        settings: KinesisSettings,
        columns: KinesisColumns,
        *,
        go_on: bool,
        records_per_read: int = MOST_RECORDS,
        client: KinesisClient | None = None,
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self.metrics = MetricGroup()
        self._columns, self._now_seconds = columns, now_seconds
        self._loss = KinesisLosses(go_on=go_on, metrics=self.metrics)
        self._malformed = self.metrics.counter("malformed_packets")
        self._most_records = records_per_read
        self._woken = threading.Event()
        self._client = client if client is not None else KinesisClient(settings, pause=self._woken.wait)
        self._slices: dict[str, _Slice] = {}

    def handle_splits_changes(self, change: SplitChange[KinesisSplit]) -> None:
        for split in change.splits:
            if isinstance(change, SplitsAddition):
                if split.wait_ms:
                    self._client.pace.hold(split.stream, split.shard, split.wait_ms / 1_000)
                self._slices[split.split_id] = _Slice(split, Reading(split, split.cursor), split.records)
            else:
                self._slices.pop(split.split_id, None)

    def fetch(self) -> Fetched:
        if not self._slices:
            self._woken.wait(LONGEST_WAIT_SECONDS)
            self._woken.clear()
            return Fetched()
        each = next(iter(self._slices.values()))
        if each.split.cursor == each.split.until:
            return self._finish(each, [])
        wait_seconds = self._client.pace.wait_seconds(each.split.stream, each.split.shard)
        if wait_seconds > 0 and self._woken.wait(min(wait_seconds, LONGEST_WAIT_SECONDS)):
            self._woken.clear()
            return Fetched()
        if wait_seconds > LONGEST_WAIT_SECONDS:
            return Fetched()
        return self._read(each)

    def wake_up(self) -> None:
        self._woken.set()

    def metric_values(self) -> Mapping[str, float]:
        return self.metrics.values()

    def _read(self, each: _Slice) -> Fetched:
        split, limit = each.split, min(max(FEW_RECORDS, each.left + each.left // 8), self._most_records)
        try:
            page = each.reading.page(self._client, limit)
        except IteratorsExpired:
            return Fetched()  # asked again; `CheckedReader` ends a slice that brings nothing for too long
        except ShardGone as gone:
            self._loss.found(split, f"the shard, or its stream, is not there any more ({gone})")
            return self._finish(each, [])
        except PlaceRefused as refused:
            raise KinesisStreamReplaced(split.split_id, split.cursor, str(refused)) from None
        records = page.records if each.begun else from_time(split, page.records)
        if records and not each.begun:
            self._loss.check_first(split, sequence_of(records[0]))
        taken, over = _up_to(split.until, records)
        if records:
            each.begun, each.empty_since = True, None
            each.left = max(0, each.left - len(records))
        if over:
            return self._finish(each, taken)
        if page.iterator is None or (not records and page.behind_ms == 0 and self._has_waited(each)):
            self._loss.found(split, f"they expired since they were planned, up to {split.until}")
            return self._finish(each, taken)
        return Fetched((self._rows(split, taken, split.start),) if taken else ())

    def _has_waited(self, each: _Slice) -> bool:
        """Whether the reader has waited long enough for records that the planner had seen."""
        now = self._now_seconds()
        if each.empty_since is None:
            each.empty_since = now
        return now > each.empty_since + EMPTY_SECONDS

    def _rows(self, split: KinesisSplit, records: list[dict[str, Any]], position: int) -> SplitRows:
        rows = self._columns.batch(split, records, lambda record, why: self._note_malformed(split, record, why))
        return SplitRows(split.split_id, rows, position)

    def _note_malformed(self, split: KinesisSplit, record: dict[str, Any], why: MalformedPacket) -> None:
        """Count a malformed packet, and log the first of a stream."""
        self._malformed.inc()
        if split.stream not in _named and len(_named) < MOST_NAMED:
            _named.add(split.stream)
            _log.warning(
                "Kinesis split %s: record %s begins as a packet of the producer library and cannot be unpacked, "
                "because %s. It is one row, as it is. Further such records of the stream are counted and not named.",
                split.split_id, record["SequenceNumber"], why,
            )  # fmt: skip

    def _finish(self, each: _Slice, taken: list[dict[str, Any]]) -> Fetched:
        split = each.split
        del self._slices[split.split_id]
        assert split.stop is not None, "slices have one"
        rows = (self._rows(split, taken, split.stop),) if taken else ()
        return Fetched(rows, frozenset([split.split_id]))


def _up_to(until: str, records: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], bool]:
    """Return the records before a place, and whether the place was reached.

    >>> _up_to("AT_SEQUENCE_NUMBER 7", [{"SequenceNumber": "5"}, {"SequenceNumber": "9"}])
    ([{'SequenceNumber': '5'}], True)
    >>> _up_to("AFTER_SEQUENCE_NUMBER 9", [{"SequenceNumber": "5"}, {"SequenceNumber": "9"}])[1]
    True
    """
    kind, _, number = until.partition(" ")
    keep = bisect_left(records, int(number) + (kind == "AFTER_SEQUENCE_NUMBER"), key=sequence_of)
    return records[:keep], bool(records) and sequence_of(records[-1]) >= int(number)
