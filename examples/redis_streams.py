"""Redis Streams as a source of your own: each stream is a split, and its orders are counted by minute into parquet.

    make wheel && pip install dist/lowmark-*.whl redis    # in a checkout; nothing is published yet
    python examples/redis_streams.py --redis redis://localhost:6379 --streams 'orders:*' --out /tmp/orders

`RedisStreams` is a connector in six methods; docs/connectors.md walks through it. The time of an entry is that of its
id, so Redis itself finds where a time begins, and a stream that is hours behind loses no entry. The program reads all
entries and ends; the next run goes on from there, also after a kill.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from lowmark import LowWatermarkService, WatermarkStrategy
from lowmark.sources import Patience, SimpleSource, SourceSplit, SourceUnavailable, SplitEnd
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

AnswerT = TypeVar("AnswerT")

SEQUENCE_BITS = 20
"""An id is "milliseconds-sequence"; the other 43 bits of a position hold milliseconds up to the year 2248."""
MOST_COUNTED = 100_000
CHUNK = 10_000
COLUMNS: list[tuple[str, pa.DataType]] = [
    ("id", pa.string()),
    ("ts", pa.timestamp("us", tz="UTC")),
    ("fields", pa.map_(pa.string(), pa.string())),
]

COUNT = """
local found = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[2], 'COUNT', ARGV[3])
return {#found, #found > 0 and found[#found][1] or ''}
"""
"""Counts entries on the server, so that a plan of many entries costs no traffic."""


def position_of(entry: str) -> int:
    """Pack an id into a position: positions grow along a stream, with gaps."""
    milliseconds, _, sequence = entry.partition("-")
    if int(sequence) >> SEQUENCE_BITS:
        raise ValueError(
            f"entry {entry}: expected a sequence number below {1 << SEQUENCE_BITS}. Hint: let Redis make the ids."
        )
    return int(milliseconds) << SEQUENCE_BITS | int(sequence)


def entry_of(position: int) -> str:
    """Unpack a position."""
    return f"{position >> SEQUENCE_BITS}-{position & (1 << SEQUENCE_BITS) - 1}"


def deleted(stream: str, entries: str) -> RuntimeError:
    """Return the error of a stream that may have lost entries."""
    return RuntimeError(
        f"stream {stream!r}: {entries} were deleted, perhaps before they were read. "
        "Hint: keep the last read entry, or begin with a new checkpoint."
    )


class RedisStreams(SimpleSource[SourceSplit]):
    """Reads the entries of Redis Streams.

    Args:
        url: such as "redis://localhost:6379".
        pattern: the keys of the streams, as in SCAN.
        give_up_seconds: how long Redis may be away.
    """

    schema = pa.schema(COLUMNS)
    event_time = "ts"
    discover_every = "10 seconds"
    requires = ("redis",)

    def __init__(self, url: str, pattern: str, give_up_seconds: float = 60.0) -> None:
        self.url, self.pattern, self.give_up_seconds = url, pattern, give_up_seconds
        self.client: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Planner and readers are other processes, and a connection cannot be sent there: each copy makes its own."""
        return {**self.__dict__, "client": None}

    def discover(self) -> Sequence[SourceSplit]:
        """List the streams, each from its first entry on. An empty one is found when it has an entry."""

        def asked(client: Any) -> Sequence[SourceSplit]:
            names = sorted(client.scan_iter(match=self.pattern, count=1_000, _type="stream"))
            firsts = self.each(client, names, lambda pipe, name: pipe.xrange(name, count=1))
            return [SourceSplit(split_id=n, start=position_of(found[0][0])) for n, found in firsts.items() if found]

        return self.ask("list the streams", asked)

    def latest(self, splits: Sequence[SourceSplit]) -> Mapping[str, SplitEnd]:
        """The position after the last entry of each stream; all streams in one question."""
        names = [split.split_id for split in splits]
        lasts = self.ask(
            "look up the ends of streams",
            lambda client: self.each(client, names, lambda pipe, name: pipe.xrevrange(name, count=1)),
        )
        for name, found in lasts.items():
            if not found:  # it had an entry when it was discovered
                raise deleted(name, "all entries")
        ends = {name: position_of(found[0][0]) + 1 for name, found in lasts.items()}
        for split in splits:
            if ends[split.split_id] < split.start:  # the last read entry is gone
                raise deleted(split.split_id, f"entries from {entry_of(ends[split.split_id])} on")
        return {name: SplitEnd(end) for name, end in ends.items()}

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.RecordBatch, int]]:
        """The entries in [start, stop), in chunks, each with the position after it because ids have gaps."""
        at, stop = split.start, split.stop
        assert stop is not None
        while at < stop:
            entries = self.entries(split.split_id, at, stop)
            at = position_of(entries[-1][0]) + 1 if len(entries) == CHUNK else stop
            self.check_trimmed(split)
            rows = [
                {"id": entry, "ts": int(entry.partition("-")[0]) * 1_000, "fields": list(fields.items())}
                for entry, fields in entries
            ]
            yield pa.RecordBatch.from_pylist(rows, schema=self.schema), at

    def find_time(self, splits: Sequence[SourceSplit], time_us: int) -> Mapping[str, int | None]:
        """The first entry at a time or later: ids are times, so a range of ids is a range of times."""
        since = entry_of(-(-time_us // 1_000) << SEQUENCE_BITS) if time_us > 0 else "-"
        names = [split.split_id for split in splits]
        found = self.ask(
            "look up a time",
            lambda client: self.each(client, names, lambda pipe, name: pipe.xrange(name, since, count=1)),
        )
        return {name: position_of(entries[0][0]) if entries else None for name, entries in found.items()}

    def after_rows(self, split: SourceSplit, rows: int, end: SplitEnd) -> int:
        """Return the position after a number of entries. Redis counts the entries, because positions are not rows."""
        count, last = self.counted(split, end.position, max(1, rows))
        return position_of(last) + 1 if count >= max(1, rows) else end.position

    def rows_before(self, split: SourceSplit, position: int) -> int:
        """How many entries lie before a position; of very many entries, the number of all is an upper bound."""
        if position <= split.start:
            return 0
        count, _ = self.counted(split, position, MOST_COUNTED)
        if count < MOST_COUNTED:
            return count
        return int(self.ask(f"count {split.split_id}", lambda client: client.xlen(split.split_id)))

    def counted(self, split: SourceSplit, position: int, most: int) -> tuple[int, str]:
        """Return the number of entries from the split's start to a position, at most so many, and the last one's id."""
        count, last = self.ask(
            f"count {split.split_id}",
            lambda client: client.eval(COUNT, 1, split.split_id, entry_of(split.start), entry_of(position - 1), most),
        )
        return int(count), str(last)

    def entries(self, stream: str, start: int, stop: int) -> list[tuple[str, dict[str, str]]]:
        """Return the first entries between two positions, at most a chunk of them."""
        begin, end = entry_of(start), entry_of(stop - 1)
        return self.ask(f"read {stream}", lambda client: client.xrange(stream, begin, end, CHUNK))

    def check_trimmed(self, split: SourceSplit) -> None:
        """Fail if entries may have been deleted before they were read, which XTRIM and XADD with MAXLEN do.

        The range begins at an entry or after the last read one. Redis trims the oldest entries first, so an entry at
        the begin proves that the range is whole. Keep the last read entry: trim with MINID and the id of a read entry.
        """
        around = entry_of(max(0, split.start - 1)), entry_of(split.start)
        if not self.ask(f"read {split.split_id}", lambda client: client.xrange(split.split_id, *around, count=1)):
            raise deleted(split.split_id, f"entries up to {around[1]}")

    def ask(self, action: str, question: Callable[[Any], AnswerT]) -> AnswerT:
        """Ask Redis again until it answers; the errors that waiting does not cure are raised at once."""
        import redis

        if self.client is None:
            self.client = redis.Redis.from_url(self.url, decode_responses=True, socket_timeout=10.0)
        place = self.url.rpartition("@")[2]  # without a password
        patience = Patience(f"Redis at {place}", action, self.give_up_seconds)
        while True:
            try:
                return question(self.client)
            except redis.exceptions.AuthenticationError:
                raise
            except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as error:
                if not patience.goes_on(str(error)):
                    raise SourceUnavailable(place, action, patience.spent_seconds, str(error)) from error

    @staticmethod
    def each(client: Any, names: Sequence[str], question: Callable[[Any, str], Any]) -> dict[str, Any]:
        """Ask the same question about each stream, in one request."""
        with client.pipeline(transaction=False) as pipe:
            for name in names:
                question(pipe, name)
            return dict(zip(names, pipe.execute(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("--redis", "--streams", "--out"):
        parser.add_argument(option, required=True)
    parser.add_argument("--rows-per-batch", type=int, default=100_000, help="how many entries a batch has at most")
    options = parser.parse_args()
    spark = SparkSession.builder.appName("orders").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    with LowWatermarkService(spark) as service:
        # The entries of a stream are in the order of their ids; a stream that is silent while others go on is idle.
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_idleness("10 minutes")
        orders = service.read(
            RedisStreams(options.redis, options.streams), name="orders", strategy=strategy,
            max_rows_per_batch=options.rows_per_batch,
        )  # fmt: skip
        minutes = (
            orders.groupBy("split_id", F.window("ts", "1 minute").alias("minute"))
            .agg(F.count("id").alias("orders"))
            .select("split_id", F.col("minute.start").alias("minute"), "orders")
        )
        query = (
            minutes.writeStream.format("parquet")
            .option("path", f"{options.out}/minutes")
            .option("checkpointLocation", f"{options.out}/checkpoint")
            .outputMode("append")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        print(service.explain("orders"))
    spark.stop()


if __name__ == "__main__":
    main()
