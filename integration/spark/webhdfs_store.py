"""The files of a checkpoint on HDFS, read without Spark and without Hadoop's libraries: over HTTP, by WebHDFS.

A name node answers at its HTTP address, and sends a reader of a file on to a data node. An answer other than "there is
no such file" is an error and never an empty folder, because a query whose folder ``state`` seems empty would be
complete too early.
"""

from __future__ import annotations

import getpass
import http.client
import os
import time
import urllib.error
import urllib.request
from contextlib import AbstractContextManager, suppress
from urllib.parse import quote, urlencode, urlsplit

import msgspec
from lowmark.watermark.printable import in_one_line

from .checkpoint_store import MOST_BYTES, check_size, reading

_PORT = 9870  # of a name node's HTTP address, unless dfs.namenode.http-address has another
_ANSWER_SECONDS = 30.0
_HINT = (
    "pass webhdfs://HOST:PORT/PATH with the HTTP address of the active name node (dfs.namenode.http-address) or of "
    "HttpFS. A cluster with Kerberos or TLS is read in a session: lowmark.completion(..., spark=spark)."
)


class _File(msgspec.Struct, frozen=True, rename="camel"):
    path_suffix: str  # name in the listed folder
    type: str
    length: int
    modification_time: int  # milliseconds since 1970


class _Files(msgspec.Struct, frozen=True, rename="pascal"):
    file_status: list[_File]


class _Listed(msgspec.Struct, frozen=True, rename="pascal"):
    file_statuses: _Files


class _LookedAt(msgspec.Struct, frozen=True, rename="pascal"):
    file_status: _File


class _Fault(msgspec.Struct, frozen=True):
    exception: str
    message: str = ""


class WebHdfsStore:
    """A checkpoint on HDFS.

    Args:
        checkpoint: such as ``webhdfs://namenode:9870/orders``. The user is that of the address (``webhdfs://me@...``),
            else ``HADOOP_USER_NAME``, else that of this process, as for Hadoop's own clients.
    """

    def __init__(self, checkpoint: str) -> None:
        self.root = checkpoint.rstrip("/")
        with self._reading(""):
            # Only the host is split, because urlsplit would end a path at "?" and "#", which a folder's name may have.
            authority, slash, path = self.root.partition("://")[2].partition("/")
            parts = urlsplit(f"//{authority}")
            if not parts.hostname:
                raise ValueError("the address names no host")
            host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
            self._address = f"http://{host}:{parts.port or _PORT}/webhdfs/v1{quote(slash + path)}"
            self._user = parts.username or os.environ.get("HADOOP_USER_NAME") or _user_here()

    def names(self, folder: str) -> list[str]:
        with self._reading(folder):
            listed = self._ask("LISTSTATUS", folder)
            if listed is None:
                return []
            return sorted(
                file.path_suffix for file in msgspec.json.decode(listed, type=_Listed).file_statuses.file_status
            )

    def read(self, path: str) -> str | None:
        with self._reading(path):
            found = self._look_at(path)
            if found is None or found.type != "FILE":
                return None
            check_size(found.length)
            text = self._ask("OPEN", path)
            return None if text is None else text.decode()

    def age_seconds(self, path: str) -> float | None:
        with self._reading(path):
            found = self._look_at(path)
            return None if found is None else time.time() - found.modification_time / 1_000

    def _look_at(self, path: str) -> _File | None:
        told = self._ask("GETFILESTATUS", path)
        return None if told is None else msgspec.json.decode(told, type=_LookedAt).file_status

    def _ask(self, operation: str, path: str) -> bytes | None:
        """Return the answer to a question about a file or folder; None if the path does not exist."""
        asked = urlencode({"op": operation} | ({"user.name": self._user} if self._user else {}))
        address = f"{self._address}/{quote(path)}".rstrip("/") + f"?{asked}"
        try:
            with urllib.request.urlopen(address, timeout=_ANSWER_SECONDS) as answer:  # noqa: S310  # always http
                told: bytes = answer.read(MOST_BYTES + 1)
                check_size(len(told))
                if (left := answer.length) is not None and left > 0:
                    raise OSError(f"the answer ended {left} bytes too early")
                return told
        except urllib.error.HTTPError as refused:
            with refused:
                told = refused.read(1 << 20)
            try:
                given = msgspec.json.decode(told, type=dict[str, msgspec.Raw])["RemoteException"]
                fault = msgspec.json.decode(given, type=_Fault)
            except (msgspec.DecodeError, KeyError):
                raise refused from None
            if fault.exception == "FileNotFoundException":
                return None
            raise OSError(f"{fault.exception}: {fault.message}") from refused

    def _reading(self, path: str) -> AbstractContextManager[None]:
        kinds = (OSError, ValueError, http.client.HTTPException)
        return reading(self.root, path or "it", kinds, in_one_line, _HINT)


def _user_here() -> str | None:
    with suppress(KeyError, OSError):  # a container may run under a number without a name
        return getpass.getuser()
    return None
