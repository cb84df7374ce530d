"""S3 on this machine, and a session that reaches it through Hadoop's own S3A: for checkpoints in a bucket.

The client is the real one. The server is moto, which keeps objects in memory and speaks S3.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers.kinesis import KINESIS_ACCESS
from tests.servers.local import LOCALHOST, Process, free_ports, http_get, require_jars, started
from tests.sparks import CHECKSUMS, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"


@contextmanager
def s3a(spark: SparkSession, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield a bucket's address, such as ``s3a://checkpoints``, and the log of its requests, a line per request.

    The session keeps S3A for the rest of its life.
    """
    jars = require_jars("s3a")
    with s3(folder) as (port, log):
        client = {
            "fs.s3a.impl": _S3A,
            "fs.s3a.endpoint": f"http://{LOCALHOST}:{port}",
            "fs.s3a.endpoint.region": KINESIS_ACCESS["region_name"],
            "fs.s3a.access.key": KINESIS_ACCESS["aws_access_key_id"],
            "fs.s3a.secret.key": KINESIS_ACCESS["aws_secret_access_key"],
            "fs.s3a.path.style.access": "true",
        }
        _add_to_class_path(spark, jars)
        # S3A keeps what it uploads in files of the class of Hadoop that has checksums.
        with settings(spark, {**client, **CHECKSUMS}):
            yield "s3a://checkpoints", log


@contextmanager
def s3(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield the port of a server with the bucket ``checkpoints``, and the log of its requests."""
    folder.mkdir(parents=True, exist_ok=True)

    def start(attempt: int) -> tuple[int, Path, Process]:
        [port] = free_ports(1)
        log = folder / f"s3-{attempt}.log"
        server = Process("S3", [sys.executable, "-m", "moto.server", "-H", LOCALHOST, "-p", str(port)], log)
        server.start(lambda: http_get(f"http://{LOCALHOST}:{port}/moto-api/data.json")[0] == 200)
        return port, log, server

    port, log, server = started(start)
    try:
        _create_bucket(port, "checkpoints")
        yield port, log
    finally:
        server.stop()


def _create_bucket(port: int, name: str) -> None:
    import boto3

    client = boto3.client("s3", endpoint_url=f"http://{LOCALHOST}:{port}", **KINESIS_ACCESS)
    client.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": KINESIS_ACCESS["region_name"]})


def _add_to_class_path(spark: SparkSession, jars: list[Path]) -> None:
    """Add jars as `--packages` does at a session's start, because all tests share one session."""
    loader = spark.sparkContext._jsc.hadoopConfiguration().getClassLoader()
    for jar in jars:
        loader.addURL(spark._jvm.java.io.File(str(jar)).toURI().toURL())  # type: ignore[union-attr]
