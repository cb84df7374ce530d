"""A test run that is killed leaves no server behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.local import ROOT, wait_until

pytestmark = [pytest.mark.live]

RUN = """
import sys
from pathlib import Path
from tests.servers.local import Process
server = Process("a server", ["sh", "-c", "sleep 600 & sleep 601"], Path(sys.argv[1]))
server.start(lambda: True)
ended = Process("another", ["sleep", "602"], Path(sys.argv[1]))
ended.start(lambda: True)
ended.stop()
print(server.running.pid, flush=True)
sys.stdin.read()
"""


def commands(session: int) -> list[str]:
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(each.name)) == session:
                found.append((each / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip())
        except OSError:  # the process has ended
            continue
    return sorted(command for command in found if command)


def test_servers_of_a_run_that_was_killed_end_with_it(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path / "log")], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as run:
        assert run.stdout is not None
        session = int(run.stdout.readline())
        wait_until(lambda: len(commands(session)) == 3, "the server and what it has started")
        run.kill()
        wait_until(lambda: not commands(session), "the end of all of it")
