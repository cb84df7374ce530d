"""Files of late rows on HDFS, where a rename does not replace a file, and a checkpoint there, read over HTTP.

Arrow reaches HDFS by a library that only an installation of Hadoop has. So the file system here has Arrow's methods and
asks the real name node over HTTP; a rename is the name node's own.
"""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lowmark.integration import completion
from lowmark.integration.errors import CheckpointUnreadable
from lowmark.integration.spark.webhdfs_store import WebHdfsStore
from lowmark.integration.transport.late_files import _put, file_name
from lowmark.watermark import format_time_us
from pyarrow.fs import FileInfo, FileSelector, FileType

from tests.integration.cli.test_cli import call
from tests.integration.feed import us
from tests.integration.spark.test_completion import at
from tests.live.test_completion_elsewhere import two_of_three_committed
from tests.servers.hdfs import Hdfs, hdfs_server
from tests.servers.local import opener

NAME = file_name("orders", "q", 4)


class Killed(Exception):
    """The task is killed before it renames."""


class WebFileSystem:
    """Arrow's methods on a real HDFS."""

    type_name = "hdfs"

    def __init__(self, hdfs: Hdfs) -> None:
        self._hdfs, self.killed = hdfs, False

    def ask(self, method: str, path: str, op: str, **more: str) -> bytes:
        asked = urlencode({"op": op, "user.name": "root", **more})
        address = f"{self._hdfs.web.replace('webhdfs', 'http')}/webhdfs/v1{quote(path)}?{asked}"
        with opener.open(urllib.request.Request(address, method=method), timeout=30) as told:
            content: bytes = told.read()
            return content

    def create_dir(self, path: str) -> None:
        self.ask("PUT", path, "MKDIRS")

    def open_output_stream(self, path: str) -> Any:
        stream = io.BytesIO()
        whole, hdfs = stream.close, self._hdfs

        def close() -> None:
            hdfs.put(path, stream.getvalue())
            whole()

        stream.close = close  # type: ignore[method-assign]
        return stream

    def open_input_file(self, path: str) -> Any:
        return pa.BufferReader(self.ask("GET", path, "OPEN"))

    def move(self, path: str, to: str) -> None:
        if self.killed:
            raise Killed
        if not json.loads(self.ask("PUT", path, "RENAME", destination=to))["boolean"]:
            raise OSError(f"cannot rename {path} to {to}")

    def delete_file(self, path: str) -> None:
        self.ask("DELETE", path, "DELETE")

    def get_file_info(self, asked: str | FileSelector) -> Any:
        if isinstance(asked, FileSelector):
            found = json.loads(self.ask("GET", asked.base_dir, "LISTSTATUS"))["FileStatuses"]["FileStatus"]
            return [FileInfo(f"{asked.base_dir}/{each['pathSuffix']}", FileType.File) for each in found]
        try:
            self.ask("GET", asked, "GETFILESTATUS")
        except urllib.error.HTTPError as refused:
            if refused.code == 404:
                return FileInfo(asked, FileType.NotFound)
            raise
        return FileInfo(asked, FileType.File)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    with hdfs_server(tmp_path_factory.mktemp("hdfs")) as hdfs:
        yield hdfs


@pytest.fixture
def files(server: Hdfs, tmp_path: Path) -> WebFileSystem:
    return WebFileSystem(server)


def put(files: WebFileSystem, folder: str, *values: int) -> None:
    whole = io.BytesIO()
    pq.write_table(pa.table({"v": values, "of": [{"a": [each]} for each in values]}), whole)
    whole.seek(0)
    files.create_dir(folder)
    _put(files, f"{folder}/{NAME}", whole)  # type: ignore[arg-type]  # it has the methods


def values(files: WebFileSystem, folder: str) -> list[int]:
    return [int(each) for each in pq.read_table(files.open_input_file(f"{folder}/{NAME}"))["v"].to_numpy()]


def parts(files: WebFileSystem, folder: str) -> int:
    return len(files.get_file_info(FileSelector(f"{folder}/.parts")))


def test_a_late_task_of_a_dead_driver_that_is_killed_before_it_renames_takes_no_file_away(
    files: WebFileSystem,
) -> None:
    put(files, "/killed", 1, 2, 3)
    files.killed = True
    with suppress(Killed):
        put(files, "/killed", 3, 1, 2)
    assert values(files, "/killed") == [1, 2, 3]
    assert parts(files, "/killed") == 0, "it has nothing to rename"


def test_a_batch_that_was_planned_anew_replaces_its_file(files: WebFileSystem) -> None:
    for rows in ((1, 2, 3), (1, 2), (1, 2, 2), (1, 1, 2)):
        put(files, "/anew", *rows)
        assert values(files, "/anew") == [*rows]
    files.killed = True
    with pytest.raises(Killed):
        put(files, "/anew", 7)
    files.killed = False
    put(files, "/anew", 7)  # the batch runs again
    assert values(files, "/anew") == [7]


def test_a_file_that_is_broken_is_replaced(files: WebFileSystem, server: Hdfs) -> None:
    server.put(f"/broken/{NAME}", b"no parquet")
    put(files, "/broken", 1)
    assert values(files, "/broken") == [1]


def test_a_checkpoint_is_read_without_any_library_of_hadoop(server: Hdfs, tmp_path: Path) -> None:
    """The last test, because it kills the server."""
    written = two_of_three_committed(tmp_path / "cp")
    place = f"{server.web}/q/orders of größe 100%"
    for file in written.folder.rglob("*"):
        if file.is_file():
            server.put(f"/q/orders of größe 100%/{file.relative_to(written.folder)}", file.read_bytes())
    for asked in (place, f"{place}/"):
        found = completion(asked, "orders")
        assert (found.until_us, found.batch_id, found.planned_batch_id) == (us(100), 9, 10)
        assert found.with_state
        assert 0 <= found.age_seconds < 600
    wait = ["wait", "orders", "--checkpoint", place, "--timeout", "0s"]
    assert call(*wait, "--past", at(100))[0] == 0
    assert call(*wait, "--past", at(101))[0] == 1
    code, out, _ = call("watermark", place)
    assert (code, out.split(";")[0]) == (0, f"orders: complete until {format_time_us(us(100))}")
    with pytest.raises(CheckpointUnreadable, match="no planned batch"):
        completion(f"{server.web}/q")
    with pytest.raises(CheckpointUnreadable, match="no planned batch"):
        completion(f"{server.web}/nowhere")
    files = WebHdfsStore(place)
    assert files.read("offsets") is None, "a folder"
    assert files.age_seconds("offsets/7") is None
    server.data_node.kill()
    with pytest.raises(CheckpointUnreadable, match="offsets/9 cannot be read"):
        completion(place)
    server.name_node.kill()
    with pytest.raises(CheckpointUnreadable, match=r"Connection refused.*HTTP address of the active name node"):
        completion(place)
