"""`late_to=` in a bucket: by Arrow's own client of S3, from Spark's Python workers."""

from __future__ import annotations

import io
from pathlib import Path

import boto3
import pyarrow.parquet as pq
import pytest
from lowmark.integration import LowWatermarkService
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.integration.feed import Feed, lose_commit, start
from tests.servers.kinesis import KINESIS_ACCESS
from tests.servers.local import LOCALHOST
from tests.servers.s3 import s3

pytestmark = pytest.mark.live


def test_a_bucket_has_each_late_row_once_also_when_a_batch_runs_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed, checkpoint = Feed(spark, tmp_path / "feed"), str(tmp_path / "checkpoint")
    with s3(tmp_path / "s3") as (port, _), LowWatermarkService(spark) as service:
        address = f"http://{LOCALHOST}:{port}"
        login = {
            "AWS_ENDPOINT_URL": address,
            "AWS_REGION": KINESIS_ACCESS["region_name"],
            "AWS_ACCESS_KEY_ID": KINESIS_ACCESS["aws_access_key_id"],
            "AWS_SECRET_ACCESS_KEY": KINESIS_ACCESS["aws_secret_access_key"],
        }
        for name, value in login.items():
            monkeypatch.setitem(spark.sparkContext.environment, name, value)  # what Spark's Python workers get
            monkeypatch.setenv(name, value)
        client = boto3.client("s3", endpoint_url=address, **KINESIS_ACCESS)

        def late() -> list[object]:
            listed = client.list_objects_v2(Bucket="checkpoints", Prefix="late/").get("Contents", [])
            files = [each["Key"] for each in listed if each["Key"].endswith(".parquet")]
            bodies = [client.get_object(Bucket="checkpoints", Key=file)["Body"].read() for file in files]
            return [v for body in bodies for v in pq.read_table(io.BytesIO(body)).column("v").to_pylist()]

        def wrap(bucket: str = "checkpoints") -> None:
            df = service.wrap(
                feed.df, name="orders", event_time="ts", split="split", splits=["a"], late_to=f"s3a://{bucket}/late"
            )
            ran = start(df, checkpoint)
            ran.settle()
            ran.query.stop()

        for v in (10, 20, 30, 5):
            feed.put(("a", v, v))
        wrap()
        assert late() == [5]
        lose_commit(checkpoint)
        feed.put(("a", 6, 6))
        with pytest.raises(StreamingQueryException, match=r'could not write its late rows to "s3a://nowhere/late"'):
            wrap("nowhere")
        wrap()
        assert late() == [5, 6]
