"""Completion on S3, and of a table of Delta Lake.

A checkpoint in a bucket is read without Spark, by Arrow, with the address and the login of S3's own clients.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import boto3
import pytest
from lowmark.integration import completion
from lowmark.integration.errors import CheckpointUnreadable

from tests.integration.feed import us
from tests.integration.test_cli import call
from tests.integration.test_completion import Recorded, Written, at, time_of
from tests.live.s3_server import s3
from tests.live.servers import KINESIS_ACCESS, LOCALHOST, ROOT, require_jars

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


class RecordedDelta(Recorded):
    def readable(self, at: Path) -> list[dict[str, Any]]:
        from deltalake import DeltaTable

        if not list((at / "sink/_delta_log").glob("*.json")):
            return []
        rows: list[dict[str, Any]] = DeltaTable(str(at / "sink")).to_pyarrow_table().to_pylist()
        return rows


def test_windows_in_a_delta_table_can_be_read_once_they_are_complete(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    jars = ",".join(str(jar) for jar in require_jars("delta"))
    command = [sys.executable, "-m", "tests.live.completion_driver", str(run), jars]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-3_000:]
    recorded, told = RecordedDelta(run, time_of), set()
    for last, folder in recorded.moments(tmp_path / "moment"):
        if (folder / "checkpoint/offsets").is_dir():
            found = completion(folder / "checkpoint")
            told.add(found.until_us)
            if found.until_us is not None:
                assert not (gone := recorded.missing(folder, found.until_us)), f"after {last}: {found}, missing: {gone}"
    assert len(told) >= 3
    assert len(recorded.readable(run)) >= 3
