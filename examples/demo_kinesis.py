"""`lowmark demo` on Kinesis: its rows in a stream with one shard per split, read by `format("lowmark_kinesis")`.

    python examples/demo_kinesis.py --region eu-west-1

It makes a stream of eight shards in your account, and deletes it. Credentials are found by boto3 (extra `kinesis`);
`--endpoint` names another server, as `make demo-kinesis` does. Further options and exit codes are those of the demo.
While both queries run batch n, the rows of batch n + 1 are put.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from lowmark.integration.cli.common import Debug, Json
from lowmark.integration.cli.demo import Keep, MetricsPort, Seed, compare
from lowmark.integration.cli.main import app
from lowmark.integration.demo.feed import SteppedFeed
from lowmark.integration.errors import DemoImpossible
from lowmark.sources.generator import StreamScript

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RECORDS = 500  # in one request, the service's limit
_WAIT_SECONDS = 2


class KinesisFeed(SteppedFeed):
    """Creates a stream, fills it batch by batch, and reads it. Use as a context manager around the queries.

    Args:
        script, seed: the rows.
        endpoint: where Kinesis answers; None: the region's.
        region: of AWS; None: boto3's own.
        stream: a name that does not exist yet and is kept; None: a new one, deleted at the end.

    Raises:
        DemoImpossible: boto3 is missing, the service does not answer, or it refuses the stream.
    """

    split = "shardId"

    def __init__(
        self,
        script: StreamScript,
        seed: int,
        *,
        endpoint: str | None = None,
        region: str | None = None,
        stream: str | None = None,
    ) -> None:
        super().__init__(script, seed)
        self._endpoint, self._region, self._keep = endpoint, region, stream is not None
        self._stream = f"lowmark-demo-{uuid.uuid4().hex[:8]}" if stream is None else stream
        self._hash_keys: list[str] = []
        try:
            import boto3
        except ImportError as missing:
            raise DemoImpossible(
                "the demo on Kinesis needs the package boto3, which is not installed", 'pip install "lowmark[kinesis]".'
            ) from missing
        from botocore.exceptions import BotoCoreError

        try:
            self._client: Any = boto3.client("kinesis", endpoint_url=endpoint, region_name=region)
        except (BotoCoreError, ValueError) as wrong:
            raise DemoImpossible(f"Kinesis cannot be reached: {wrong}", "give --region, and credentials.") from wrong

    def create(self) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            self._client.create_stream(StreamName=self._stream, ShardCount=len(self.script.splits))
            self._client.get_waiter("stream_exists").wait(
                StreamName=self._stream, WaiterConfig={"Delay": _WAIT_SECONDS, "MaxAttempts": 60}
            )
            shards, more = [], {"StreamName": self._stream}
            while more:  # a page after the first is named by its token alone
                page = self._client.list_shards(**more)
                shards += page["Shards"]
                more = {"NextToken": page["NextToken"]} if page.get("NextToken") else {}
        except (BotoCoreError, ClientError) as refused:
            raise DemoImpossible(
                f"Kinesis refused stream {self._stream}: {refused}",
                f"the demo creates a stream of {len(self.script.splits)} shards; is the endpoint right?",
            ) from refused
        self._hash_keys = [str(shard["HashKeyRange"]["StartingHashKey"]) for shard in shards]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._keep:
            self._client.delete_stream(StreamName=self._stream)

    def read(self, spark: SparkSession) -> DataFrame:
        from lowmark.sources.spark import register

        register(spark)
        options = {
            "streamName": self._stream, "initialPosition": "TRIM_HORIZON", "region": self._region,
            "endpoint": self._endpoint, "pollEvery": "10 milliseconds", "tasks": "2",
        }  # fmt: skip
        given = {name: value for name, value in options.items() if value is not None}
        return self.rows(spark.readStream.format("lowmark_kinesis").options(**given).load(), "data")

    def splits(self) -> Sequence[object] | None:
        return [f"shardId-{number:012}" for number in range(len(self.script.splits))]

    def name(self, value: object) -> str:
        return self.script.splits[int(str(value).rpartition("-")[2])].name

    def write(self, batch: Sequence[Sequence[str]]) -> None:
        for split, hash_key, rows in zip(self.script.splits, self._hash_keys, batch, strict=True):
            records = [{"Data": row.encode(), "PartitionKey": split.name, "ExplicitHashKey": hash_key} for row in rows]
            for begin in range(0, len(records), _RECORDS):
                self._put_all(records[begin : begin + _RECORDS])

    def _put_all(self, rows: list[dict[str, Any]]) -> None:
        while rows:
            answer = self._client.put_records(StreamName=self._stream, Records=rows)
            refused = [number for number, each in enumerate(answer["Records"]) if each.get("ErrorCode")]
            if not refused:
                return
            rows = [rows[number] for number in refused]
            time.sleep(1.0)


@app.command("demo-kinesis")
def main(
    *,
    endpoint: Annotated[
        str | None, typer.Option(help="Where Kinesis answers, a URL; without it, the region's.", show_default=False)
    ] = None,
    region: Annotated[
        str | None, typer.Option(help="Region of AWS; without it, boto3's own.", show_default=False)
    ] = None,
    seed: Seed = 42,
    metrics_port: MetricsPort = None,
    keep: Keep = 0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run the demo's rows in a Kinesis stream through native Spark and through lowmark, and compare."""
    feed_of = partial(KinesisFeed, endpoint=endpoint, region=region)
    compare(feed_of, {}, seed=seed, metrics_port=metrics_port, keep=keep, as_json=as_json, debug=debug)


if __name__ == "__main__":
    app(["demo-kinesis", *sys.argv[1:]])
