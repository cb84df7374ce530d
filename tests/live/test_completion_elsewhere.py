"""A checkpoint in a bucket is read without Spark, by Arrow, with the address and the login of S3's own clients."""

from __future__ import annotations

from pathlib import Path

import boto3
import pytest
from lowmark.integration import completion
from lowmark.integration.errors import CheckpointUnreadable

from tests.integration.feed import us
from tests.integration.test_cli import call
from tests.integration.test_completion import Written, at
from tests.live.s3_server import s3
from tests.live.servers import KINESIS_ACCESS, LOCALHOST

pytestmark = pytest.mark.live


def test_a_checkpoint_in_a_bucket_says_how_far_its_sink_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = Written(tmp_path / "cp", with_state=True)
    for batch, low, in_force in ((8, 100, 50), (9, 200, 100), (10, 300, 200)):
        written.plan(batch, low, in_force)
    written.commit(8)
    written.commit(9)
    (written.folder / "state/0/1.delta").write_text("")
    with s3(tmp_path / "s3") as (port, _):
        address = f"http://{LOCALHOST}:{port}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        monkeypatch.setenv("AWS_REGION", KINESIS_ACCESS["region_name"])
        client = boto3.client("s3", endpoint_url=address, **KINESIS_ACCESS)
        for file in written.folder.rglob("*"):
            if file.is_file():
                client.upload_file(str(file), "checkpoints", f"q/cp/{file.relative_to(written.folder)}")
        for place in ("s3a://checkpoints/q/cp", "s3://checkpoints/q/cp/"):
            found = completion(place, "orders")
            assert (found.until_us, found.batch_id, found.planned_batch_id) == (us(100), 9, 10)
            assert found.with_state
            assert 0 <= found.age_seconds < 600
        asked = ["wait", "--checkpoint", "s3a://checkpoints/q/cp", "--stream", "orders", "--timeout", "0s"]
        assert call(*asked, "--past", at(100))[0] == 0
        assert call(*asked, "--past", at(101))[0] == 1
        with pytest.raises(CheckpointUnreadable, match="no planned batch"):
            completion("s3a://checkpoints/q")
    with pytest.raises(CheckpointUnreadable, match=r"cannot be read.*AWS_ENDPOINT_URL"):
        completion("s3a://checkpoints/q/cp")
