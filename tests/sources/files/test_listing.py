"""Listings of file systems that are none of Arrow's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lowmark.sources.files import FileSource
from pyarrow import fs


class Cached:
    """A file system of fsspec over a folder. It keeps a listing for ever, as those of FTP, S3 and Azure do."""

    protocol = "cached"

    def __init__(self) -> None:
        self.listings: dict[str, dict[str, dict[str, Any]]] = {}

    def isdir(self, path: str) -> bool:
        return Path(path).is_dir()

    def info(self, path: str) -> dict[str, Any]:
        here = Path(path)
        return {"size": here.stat().st_size, "type": "directory" if here.is_dir() else "file"}

    def find(self, path: str, **_: object) -> dict[str, dict[str, Any]]:
        if path not in self.listings:
            self.listings[path] = {str(each): self.info(str(each)) for each in Path(path).iterdir()}
        return self.listings[path]

    def invalidate_cache(self, path: str | None = None) -> None:
        self.listings.clear()


def test_new_files_are_found_on_a_file_system_that_keeps_its_listings(tmp_path: Path) -> None:
    system = fs.PyFileSystem(fs.FSSpecHandler(Cached()))  # type: ignore[abstract]  # the stubs miss its methods
    source = FileSource(str(tmp_path), format="csv", filesystem=system)
    (tmp_path / "a.csv").write_text("id\n1\n")
    assert [split.split_id for split in source.discover()] == ["a.csv"]
    (tmp_path / "b.csv").write_text("id\n2\n")

    assert [split.split_id for split in source.discover()] == ["a.csv", "b.csv"]
