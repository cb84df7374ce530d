"""`make demo-kinesis`: a server that speaks Kinesis, the demo on it, and nothing left running afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from lowmark.integration.spark.session import java_problem

from tests.commands.demo_kafka import as_exit, run
from tests.servers.kinesis import KINESIS_ACCESS, kinesis_server
from tests.servers.local import ROOT


def main(arguments: list[str]) -> int:
    """Run the demo with these further arguments; its exit code."""
    problem = java_problem()
    if problem:
        print(f"lowmark: Spark needs Java 17 or newer, and {problem}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, as_exit)
    with tempfile.TemporaryDirectory(prefix="lowmark-kinesis-") as folder, kinesis_server(Path(folder)) as server:
        print(f"lowmark: Kinesis answers on {server.url}", file=sys.stderr)
        region = KINESIS_ACCESS["region_name"]
        command = [sys.executable, str(ROOT / "examples" / "demo_kinesis.py"), "--endpoint", server.url]
        command += ["--region", region, *arguments]
        access = {
            "AWS_ACCESS_KEY_ID": KINESIS_ACCESS["aws_access_key_id"],
            "AWS_SECRET_ACCESS_KEY": KINESIS_ACCESS["aws_secret_access_key"],
        }
        return subprocess.run(command, check=False, env={**os.environ, **access}).returncode


if __name__ == "__main__":
    run(main)
