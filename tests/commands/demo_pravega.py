"""`make demo-pravega`: a real Pravega, the demo on it, and nothing left running afterwards."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from lowmark.integration.spark.session import java_problem

from tests.commands.demo_kafka import as_exit, run
from tests.servers.local import ROOT, jars
from tests.servers.pravega import JARS, pravega_server


def main(arguments: list[str]) -> int:
    """Run the demo with these further arguments; its exit code."""
    problem = java_problem()
    if problem:
        print(f"lowmark: Spark and Pravega need Java 17 or newer, and {problem}", file=sys.stderr)
        return 2
    if not jars("pravega") or not jars("pravega-client"):
        print("lowmark: Pravega's jars are missing; run make jars (it needs Maven)", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, as_exit)
    with tempfile.TemporaryDirectory(prefix="lowmark-pravega-") as folder, pravega_server(Path(folder)) as server:
        print(f"lowmark: Pravega answers on {server.controller}", file=sys.stderr)
        command = [sys.executable, str(ROOT / "examples" / "demo_pravega.py")]
        command += ["--controller", server.controller, "--jars", JARS]
        return subprocess.run([*command, *arguments], check=False).returncode


if __name__ == "__main__":
    run(main)
