"""A server that speaks Kinesis (`kinesis_service`), and its streams."""

from __future__ import annotations

import json
import sys
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.local import LOCALHOST, Process, free_ports, http_get, opener, started


@dataclass
class Kinesis:
    """A running stand-in for Kinesis (`kinesis_service.py`), which keeps its streams in memory only.

    Attributes:
        url: its endpoint for clients of AWS.
        process: the server.
    """

    url: str
    process: Process

    def ready(self) -> bool:
        """Whether it answers."""
        return http_get(f"{self.url}/moto-api/data.json")[0] == 200

    @property
    def client(self) -> Any:
        """A client of boto3, made once."""
        if not hasattr(self, "_client"):
            import boto3

            self._client = boto3.client("kinesis", endpoint_url=self.url, **KINESIS_ACCESS)
        return self._client

    def create_stream(self, shards: int = 1, name: str | None = None) -> str:
        """Create a stream and return its name, by default a new unique name."""
        name = f"s-{uuid.uuid4().hex[:12]}" if name is None else name
        self.client.create_stream(StreamName=name, ShardCount=shards)
        return name

    def put(self, stream: str, rows: Sequence[tuple[str, bytes]]) -> None:
        """Put (partition key, data) records, 500 per request."""
        for begin in range(0, len(rows), 500):
            records = [{"PartitionKey": key, "Data": data} for key, data in rows[begin : begin + 500]]
            self.client.put_records(StreamName=stream, Records=records)

    def shards(self, stream: str, *, only_open: bool = False) -> list[str]:
        """Ids of the shards of a stream; open ones in the order of their hash keys, so neighbours can be merged."""
        found = self.described(stream)
        if only_open:
            found = [each for each in found if "EndingSequenceNumber" not in each["SequenceNumberRange"]]
            found.sort(key=lambda each: int(each["HashKeyRange"]["StartingHashKey"]))
        return [each["ShardId"] for each in found]

    def described(self, stream: str) -> list[dict[str, Any]]:
        """The shards of a stream from all pages of ListShards."""
        page = self.client.list_shards(StreamName=stream)
        found = list(page["Shards"])
        while page.get("NextToken"):
            page = self.client.list_shards(NextToken=page["NextToken"])
            found += page["Shards"]
        return found

    def split(self, stream: str, shard: str) -> None:
        """Split a shard in the middle."""
        [found] = [each for each in self.described(stream) if each["ShardId"] == shard]
        middle = sum(int(key) for key in found["HashKeyRange"].values()) // 2
        self.client.split_shard(StreamName=stream, ShardToSplit=shard, NewStartingHashKey=str(middle))

    def merge(self, stream: str, one: str, other: str) -> None:
        """Merge two adjacent shards."""
        self.client.merge_shards(StreamName=stream, ShardToMerge=one, AdjacentShardToMerge=other)

    def expire(self, stream: str, shard: str, records: int) -> None:
        """Expire the first records of a shard; a closed shard without records vanishes."""
        self._ask("expire", {"stream": stream, "shard": shard, "records": records})

    def expire_iterator(self, shard: str) -> None:
        """Expire the iterator for the next read of a shard with this id."""
        self._ask("iterators", {"shard": shard})

    @contextmanager
    def clock(self, ahead_ms: int) -> Iterator[None]:
        """Set the service's clock ahead of ours, or behind, until the block ends."""
        self._ask("clock", {"ahead_ms": ahead_ms})
        try:
            yield
        finally:
            self._ask("clock", {"ahead_ms": 0})

    def _ask(self, what: str, asked: Mapping[str, object]) -> None:
        request = urllib.request.Request(f"{self.url}/_service/{what}", json.dumps(asked).encode(), method="POST")
        opener.open(request, timeout=10).close()


KINESIS_ACCESS = {
    "region_name": "eu-west-1",
    "aws_access_key_id": "AKIATESTTESTTESTTEST",
    "aws_secret_access_key": "only-for-tests",
}


@contextmanager
def kinesis_server(folder: Path) -> Iterator[Kinesis]:
    """A server that speaks Kinesis, with its log in `folder`, stopped at the end."""
    folder.mkdir(parents=True, exist_ok=True)

    def start(attempt: int) -> Kinesis:
        [port] = free_ports(1)
        command = [sys.executable, "-m", "tests.servers.kinesis_service", str(port)]
        server = Kinesis(f"http://{LOCALHOST}:{port}", Process("Kinesis", command, folder / f"kinesis-{attempt}.log"))
        server.process.start(server.ready)
        return server

    server = started(start)
    try:
        yield server
    finally:
        server.process.stop()
