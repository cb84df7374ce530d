"""Listings of relative paths, and of file systems that are none of Arrow's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lowmark.sources.files import FileSource, InvalidFileOption
from pyarrow import fs


class Cached:
    """A file system of fsspec over a folder. It keeps a listing for ever, as those of FTP, S3 and Azure do."""

    protocol = "cached"

    def __init__(self) -> None:
        self.listings: dict[str, dict[str, dict[str, Any]]] = {}

    def isdir(self, path: str) -> bool:
        return self._there(path).is_dir()

    def info(self, path: str) -> dict[str, Any]:
        here = self._there(path)
        return {"size": here.stat().st_size, "type": "directory" if here.is_dir() else "file"}

    def find(self, path: str, **_: object) -> dict[str, dict[str, Any]]:
        if path not in self.listings:
            self.listings[path] = {str(each): self.info(str(each)) for each in self._there(path).iterdir()}
        return self.listings[path]

    def invalidate_cache(self, path: str | None = None) -> None:
        self.listings.clear()

    def _there(self, path: str) -> Path:
        return Path("/" + path.removeprefix("cached:").lstrip("/"))


def source_of(path: str) -> FileSource:
    system = fs.PyFileSystem(fs.FSSpecHandler(Cached()))  # type: ignore[abstract]  # the stubs miss its methods
    return FileSource(path, format="csv", filesystem=system)


def test_new_files_are_found_on_a_file_system_that_keeps_its_listings(tmp_path: Path) -> None:
    source = source_of(str(tmp_path))
    (tmp_path / "a.csv").write_text("id\n1\n")
    assert [split.split_id for split in source.discover()] == ["a.csv"]
    (tmp_path / "b.csv").write_text("id\n2\n")

    assert [split.split_id for split in source.discover()] == ["a.csv", "b.csv"]


def test_a_folder_may_begin_without_the_slash_of_its_files_and_not_with_a_scheme(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    folder = str(tmp_path).lstrip("/")
    assert [split.split_id for split in source_of(folder).discover()] == ["a.csv"]

    for path in (f"cached://{folder}", f"cached://{folder}/*.csv"):
        with pytest.raises(InvalidFileOption, match=r"got 'cached://.*Hint: leave out the scheme"):
            source_of(path).discover()


@pytest.mark.parametrize("path", ["in", "i*", "in/a.csv"])
def test_a_relative_path_begins_in_the_folder_where_its_source_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Spark's Python processes are in the folder where its JVM was started."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("id\n1\n")
    monkeypatch.chdir(tmp_path)
    source = FileSource(path, format="csv", schema=pa.schema([("id", pa.int64())]))
    monkeypatch.chdir("/")

    assert [source.listing.path(split.split_id) for split in source.discover()] == [f"{tmp_path}/in/a.csv"]
