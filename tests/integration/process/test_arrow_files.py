"""Addresses of folders, as Hadoop takes them and as Arrow does: nothing is reached over a network."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import pytest
from lowmark.integration.process.arrow_files import file_system

STRANGE = "a b/100%/x%20y/dt=2026-11-23 10:00/größe#1?v@2"


@pytest.mark.parametrize("bucket", ["s3a://bucket", "s3://bucket", "gs://bucket"])
def test_a_path_in_a_bucket_is_taken_literally(monkeypatch: pytest.MonkeyPatch, bucket: str) -> None:
    """Arrow wants a URI, and Hadoop encodes nothing in a path."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "eu-central-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert file_system(f"{bucket}/{STRANGE}")[1] == f"bucket/{STRANGE}"
    assert file_system(bucket)[1] == "bucket"


def test_a_path_on_hdfs_is_taken_literally(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a Hadoop, so the test sees only what Arrow is asked for."""
    asked = list[str]()
    monkeypatch.setattr("pyarrow.fs.FileSystem", SimpleNamespace(from_uri=asked.append))
    file_system(f"hdfs://user@nn:8020/{STRANGE}")
    [uri] = asked
    assert uri.isascii()
    assert " " not in uri
    assert unquote(uri) == f"hdfs://user@nn:8020/{STRANGE}"
    assert uri.startswith("hdfs://user@nn:8020/a%20b/100%25/x%2520y/")


def test_a_path_of_this_machine_is_taken_literally(tmp_path: Path) -> None:
    path = f"{tmp_path}/x://y/{STRANGE}"
    assert file_system(path)[1] == path
    assert file_system(f"file://{tmp_path}/{STRANGE}")[1] == f"{tmp_path}/{STRANGE}"
