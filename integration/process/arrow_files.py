"""The file systems that Arrow reaches, by the address of a file or folder: also where there is no JVM of Spark's.

S3, Google's storage and Azure's need no JVM. HDFS is reached through Hadoop's own library, ``libhdfs``, which starts a
JVM in this process and needs an installation of Hadoop. Arrow finds credentials, region and address as the clients of
each system do, for S3 in ``AWS_ACCESS_KEY_ID``, ``AWS_REGION`` and ``AWS_ENDPOINT_URL``.

Executors import this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_AS_ARROW = {"s3a": "s3", "s3n": "s3", "abfs": "abfss", "wasb": "abfss", "wasbs": "abfss"}
"""Schemes that Hadoop and Arrow write differently."""


def file_system(address: str) -> tuple[FileSystem, str]:
    """Return the file system of an address, and the path in it, which is taken literally, as Hadoop takes it.

    Args:
        address: an absolute path of this machine, or an address with a scheme, such as ``s3a://bucket/folder``.

    Raises:
        OSError, ValueError, ArrowException: Arrow does not reach it.

    >>> file_system("/data/late")[1]
    '/data/late'
    """
    from pyarrow import fs

    found: tuple[FileSystem, str] = fs.FileSystem.from_uri(address if address.startswith("/") else _uri(address))
    return found


def _uri(address: str) -> str:
    """Return an address as Arrow reads it, which wants a URI and decodes the path of it.

    >>> _uri("s3a://bucket/dt=2026-11-23 10%3A00")
    's3://bucket/dt%3D2026-11-23%2010%253A00'
    """
    scheme, colon, rest = address.partition("://")
    host, slash, path = rest.partition("/")
    return f"{_AS_ARROW.get(scheme, scheme)}{colon}{host}{slash}{quote(path)}"
