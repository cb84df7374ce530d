"""A real HDFS on this machine, a name node and a data node, for checkpoints that are not on the local file system."""

from __future__ import annotations

import json
import os
import string
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from tests.servers.local import (
    LOCALHOST,
    ROOT,
    Process,
    free_ports,
    http_get,
    opener,
    port_open,
    require_jars,
    require_java,
    tail,
)

_SITE = "<configuration>{}</configuration>"
_PROPERTY = "<property><name>{}</name><value>{}</value></property>"
_NODES = "org.apache.hadoop.hdfs.server"


def _site(settings: dict[str, object]) -> str:
    return _SITE.format("".join(_PROPERTY.format(name, value) for name, value in settings.items()))


@dataclass(frozen=True)
class Hdfs:
    """A running HDFS.

    Attributes:
        address: such as ``hdfs://127.0.0.1:9000``.
        web: such as ``webhdfs://127.0.0.1:9870``.
    """

    address: str
    web: str
    name_node: Process
    data_node: Process

    def put(self, path: str, content: bytes) -> None:
        """Write a file, over HTTP."""
        address = f"{self.web.replace('webhdfs', 'http')}/webhdfs/v1{quote(path)}?op=CREATE&noredirect=true"
        with opener.open(urllib.request.Request(address, method="PUT"), timeout=30) as told:
            data_node = quote(json.loads(told.read())["Location"], safe=string.punctuation)
        with opener.open(urllib.request.Request(data_node, content, method="PUT"), timeout=30):
            pass


@contextmanager
def hdfs_server(folder: Path) -> Iterator[Hdfs]:
    """Start a name node and a data node, and yield their addresses.

    The other jars of Hadoop's client come with Spark 4.2, in the same version as the servers.
    """
    java, [servers] = require_java(), require_jars("hdfs")
    [sparks] = (ROOT / ".venv").glob("lib/python*/site-packages/pyspark/jars")
    rpc, http = free_ports(2)
    address = f"hdfs://{LOCALHOST}:{rpc}"
    conf = folder / "conf"
    conf.mkdir(parents=True)
    (conf / "core-site.xml").write_text(_site({"fs.defaultFS": address, "hadoop.tmp.dir": folder / "tmp"}))
    settings: dict[str, object] = {
        "dfs.replication": 1,
        "dfs.namenode.http-address": f"{LOCALHOST}:{http}",
        "dfs.datanode.address": f"{LOCALHOST}:0",
        "dfs.datanode.ipc.address": f"{LOCALHOST}:0",
        "dfs.datanode.http.address": f"{LOCALHOST}:0",
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        "dfs.namenode.safemode.extension": 0,
        "dfs.permissions.enabled": "false",
    }
    (conf / "hdfs-site.xml").write_text(_site(settings))
    classpath = os.pathsep.join([str(conf), str(servers), f"{sparks}/*"])
    run = [java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-cp", classpath]
    log = folder / "format.log"
    with log.open("wb") as output:
        made = subprocess.run(
            [*run, f"{_NODES}.namenode.NameNode", "-format", "-nonInteractive"],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False,
        )  # fmt: skip
    assert made.returncode == 0, tail(log)

    def has_data_node() -> bool:
        # A data node is live before it has told its space, and until then the name node refuses a file with 403.
        status, told = http_get(f"http://{LOCALHOST}:{http}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState")
        beans = json.loads(told)["beans"] if status == 200 else []
        return bool(beans) and beans[0]["NumLiveDataNodes"] > 0 and beans[0]["CapacityRemaining"] > 0

    nodes = [
        Process("a name node", [*run, f"{_NODES}.namenode.NameNode"], folder / "namenode.log"),
        Process("a data node", [*run, f"{_NODES}.datanode.DataNode"], folder / "datanode.log"),
    ]
    try:
        nodes[0].start(lambda: port_open(rpc) and port_open(http))
        nodes[1].start(has_data_node)
        yield Hdfs(address, f"webhdfs://{LOCALHOST}:{http}", *nodes)
    finally:
        for node in reversed(nodes):
            node.stop()
