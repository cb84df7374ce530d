"""Completion on S3, and of tables of Delta Lake and Iceberg; `test_hdfs` has that on HDFS, `test_marking` of a topic.

A checkpoint in a bucket is read without Spark, by Arrow, with the address and the login of S3's own clients.
"""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import boto3
import pytest
from lowmark.integration import completion
from lowmark.integration.errors import CheckpointUnreadable
from lowmark.watermark import format_time_us
from lowmark.watermark.moment import us_of

from tests.commands.version_table import environments
from tests.drivers.completion import PROPERTY, SNAPSHOTS
from tests.integration.cli.test_cli import call
from tests.integration.feed import us
from tests.integration.spark.test_completion import Recorded, Written, at, time_of
from tests.servers.kinesis import KINESIS_ACCESS
from tests.servers.local import LOCALHOST, ROOT, require_jars, unavailable
from tests.servers.s3 import s3

pytestmark = pytest.mark.live


def two_of_three_committed(folder: Path) -> Written:
    """Write a checkpoint with state, whose batch 10 is planned and not committed."""
    written = Written(folder, with_state=True)
    for batch, low, in_force in ((8, 100, 50), (9, 200, 100), (10, 300, 200)):
        written.plan(batch, low, in_force)
    written.commit(8)
    written.commit(9)
    (written.folder / "state/0/1.delta").write_text("")
    return written


def test_a_checkpoint_in_a_bucket_says_how_far_its_sink_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = two_of_three_committed(tmp_path / "cp")
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
        asked = ["wait", "orders", "--checkpoint", "s3a://checkpoints/q/cp", "--timeout", "0s"]
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

    def properties(self, at: Path) -> Mapping[str, str]:
        from deltalake import DeltaTable

        if not list((at / "sink/_delta_log").glob("*.json")):
            return {}
        return DeltaTable(str(at / "sink")).metadata().configuration


class RecordedIceberg(Recorded):
    def readable(self, at: Path) -> list[dict[str, Any]]:
        rows: dict[str, list[dict[str, Any]]] = json.loads((self.folder / SNAPSHOTS).read_text())
        return rows.get(str(self._metadata(at).get("current-snapshot-id")), [])

    def properties(self, at: Path) -> Mapping[str, str]:
        found: Mapping[str, str] = self._metadata(at).get("properties", {})
        return found

    def _metadata(self, at: Path) -> dict[str, Any]:
        """The newest version of the table, as its catalog finds it."""
        versions = {int(file.name[1:].split(".")[0]): file for file in (at / "sink/metadata").glob("v*.metadata.json")}
        return json.loads(versions[max(versions)].read_text()) if versions else {}


@pytest.mark.parametrize(
    ("kind", "recorded_as", "version"), [("delta", RecordedDelta, None), ("iceberg", RecordedIceberg, "4.1.4")]
)
def test_windows_in_a_table_can_be_read_once_they_are_complete(
    kind: str, recorded_as: type[RecordedDelta | RecordedIceberg], version: str | None, tmp_path: Path
) -> None:
    """And the property of the table is never early. Iceberg is tried on the newest Spark that it has a runtime for."""
    python = Path(sys.executable) if version is None else environments()[version]
    if not python.exists():
        unavailable(f"the environment of Spark {version}", "run make sparks")
    jars = ",".join(str(jar) for jar in require_jars(kind))
    command = [str(python), "-m", "tests.drivers.completion", kind, str(tmp_path), jars]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-3_000:]
    for name in ("native", "batches"):
        recorded, told, stored = recorded_as(tmp_path / name, time_of), set[int | None](), set[int | None]()
        for last, folder in recorded.moments(tmp_path / f"moment-{name}"):
            until_us = completion(folder / "checkpoint").until_us if (folder / "checkpoint/offsets").is_dir() else None
            until = recorded.properties(folder).get(PROPERTY)
            stored_us = None if until is None else us_of(dt.datetime.fromisoformat(until))
            for said_us, before in ((until_us, told), (stored_us, stored)):
                if said_us is not None and said_us not in before:  # later moments have more rows, and say nothing new
                    gone = recorded.missing(folder, said_us)
                    assert not gone, f"{name} after {last}: {format_time_us(said_us)}, missing: {gone}"
                before.add(said_us)
        assert len(told) >= 3
        assert len(stored) >= (3 if name == "batches" else 1)
        assert len(recorded.readable(tmp_path / name)) >= 3
