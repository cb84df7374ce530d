"""A test that hangs where Python cannot end it ends the run, which names the test and prints the stacks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

HANG = """\
import ctypes, pytest, time
def hang():
    lock = ctypes.create_string_buffer(64)
    while True:
        ctypes.PyDLL(None).pthread_mutex_lock(lock)  # the second time in C, with Python's own lock held
"""
BODIES = {
    "in C": "def test_hangs(): hang()\n",
    "in a finally after the error of the timeout": (
        "def test_hangs():\n    try:\n        time.sleep(60)\n    finally:\n        hang()\n"
    ),
    "in a teardown after a failed test": (
        "@pytest.fixture\ndef server():\n    yield\n    hang()\ndef test_hangs(server): assert False\n"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("body", BODIES.values(), ids=list(BODIES))
def test_a_test_that_hangs_for_ever_ends_the_run_with_its_name_and_stack(tmp_path: Path, body: str) -> None:
    (tmp_path / "test_it.py").write_text(HANG + body)
    # A file that is finished before, as in pytest-xdist's issue 1378.
    (tmp_path / "test_first.py").write_text("def test_passes(): ...\n")
    (tmp_path / "conftest.py").write_text("from tests import watchdog\nwatchdog.GRACE_SECONDS = 0.5\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 0.5\n")
    [options] = re.findall(r"--dist loadfile.*(?= \$\(PYTEST_ARGS)", (ROOT / "Makefile").read_text())
    plugins = [option for name in ("tests.watchdog", "xdist", "pytest_timeout") for option in ("-p", name)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "--numprocesses", "1", *options.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "crashed while running 'test_it.py::test_hangs'" in done.stdout, done.stdout
    assert 'test_it.py", line 5 in hang' in done.stderr, done.stderr
    assert done.returncode == 1
