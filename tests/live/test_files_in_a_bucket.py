"""`FileSource` in a bucket, by Arrow's own client of S3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pytest
from lowmark.sources.files import FileSource, FileSplit
from lowmark.sources.kit.discovery import DiscoveredSplits, DiscoveryFailed
from lowmark.sources.testing import ManualEnumeratorContext

from tests.servers.kinesis import KINESIS_ACCESS
from tests.servers.local import LOCALHOST
from tests.servers.s3 import s3

pytestmark = pytest.mark.live


def test_a_folder_of_a_bucket_may_lose_all_its_files_once_it_had_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 has no folders: a folder without a file is not there."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KINESIS_ACCESS["aws_access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KINESIS_ACCESS["aws_secret_access_key"])
    with s3(tmp_path / "s3") as (port, _):
        address = f"http://{LOCALHOST}:{port}"
        client = boto3.client("s3", endpoint_url=address, **KINESIS_ACCESS)
        paths = [f"s3://checkpoints/{name}?scheme=http&endpoint_override={LOCALHOST}:{port}" for name in ("in", "more")]
        source = FileSource(paths, format="csv", schema=pa.schema({"id": pa.int64()}))

        def put(key: str) -> None:
            client.put_object(Bucket="checkpoints", Key=key, Body=b"id\n1\n")

        def begun(state: DiscoveredSplits[FileSplit]) -> tuple[Any, ManualEnumeratorContext[FileSplit]]:
            context = ManualEnumeratorContext[FileSplit]()
            context.register(0)
            enumerator = source.restore_enumerator(context, state)
            enumerator.start()
            context.run_async()
            return enumerator, context

        put("more/a.csv")
        with pytest.raises(DiscoveryFailed, match="Path does not exist 'checkpoints/in/'"):
            begun(DiscoveredSplits())
        put("in/a.csv")
        enumerator, context = begun(DiscoveredSplits())
        client.delete_object(Bucket="checkpoints", Key="in/a.csv")
        for _ in range(3):
            context.next_period()
        put("more/b.csv")
        context.next_period()
        assert {split.split_id for _, split in context.assigned} == {"in/a.csv", "more/a.csv", "more/b.csv"}

        _, context = begun(enumerator.snapshot_state(1))
        put("in/b.csv")
        context.next_period()
        assert [split.split_id for _, split in context.assigned] == ["in/b.csv"]
