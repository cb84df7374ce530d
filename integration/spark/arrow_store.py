"""The files of a checkpoint on another machine, read without Spark, through the file systems of Arrow."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Any

from lowmark.integration.process.arrow_files import file_system
from lowmark.watermark.printable import in_one_line

from .checkpoint_store import MOST_BYTES, check_size, reading


class ArrowStore:
    """A checkpoint on S3, HDFS, Google's storage or Azure's."""

    def __init__(self, checkpoint: str) -> None:
        self.root = checkpoint.rstrip("/")
        with self._reading(""):
            from pyarrow import fs

            self._arrow: Any = fs
            self._files, self._path = file_system(self.root)

    def names(self, folder: str) -> list[str]:
        with self._reading(folder):
            chosen = self._arrow.FileSelector(self._at(folder), allow_not_found=True)
            # Asked again, because the client of S3 takes an answer that is cut in its headers for an empty one.
            listed = self._files.get_file_info(chosen) or self._files.get_file_info(chosen)
            return sorted(found.base_name for found in listed)

    def read(self, path: str) -> str | None:
        with self._reading(path):
            found = self._look_at(path)
            if found.type != self._arrow.FileType.File:
                return None
            check_size(found.size)
            with self._files.open_input_stream(self._at(path)) as file:
                text: bytes = file.read(MOST_BYTES + 1)
            check_size(len(text))
            return text.decode()

    def age_seconds(self, path: str) -> float | None:
        with self._reading(path):
            found = self._look_at(path)
            return None if found.mtime is None else time.time() - found.mtime.timestamp()

    def _look_at(self, path: str) -> Any:
        return self._files.get_file_info(self._at(path))

    def _at(self, path: str) -> str:
        return f"{self._path}/{path}".rstrip("/")

    def _reading(self, path: str) -> AbstractContextManager[None]:
        from pyarrow import ArrowException

        kinds = (OSError, ValueError, ArrowException)
        return reading(self.root, path or "it", kinds, in_one_line, _hint(self.root))


def _hint(root: str) -> str:
    if root.startswith(("hdfs:", "viewfs:")):
        return (
            "pass webhdfs://NAMENODE:9870/PATH, the HTTP address of the name node, which needs no library of Hadoop. "
            "hdfs:// needs Hadoop's libhdfs: HADOOP_HOME, ARROW_LIBHDFS_DIR, and CLASSPATH with the output of `hadoop "
            "classpath --glob`. Or call lowmark.completion(..., spark=spark) in a session that reaches it."
        )
    if root.startswith(("s3:", "s3a:", "s3n:")):
        return (
            "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, or a role; for a system that is not Amazon's "
            "also AWS_ENDPOINT_URL."
        )
    return "call it where the place can be reached, with credentials for it."
