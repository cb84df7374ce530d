"""A test that `make check` runs fails if it starts a JVM or a server, and the failure names the missing mark."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.halves import MARKS, QUICK

ROOT = Path(__file__).resolve().parents[1]

HEAD = """\
import subprocess, sys, pytest
from contextlib import suppress
"""
TESTS = {
    "a_jvm": "subprocess.run(['java', '-version'])",
    "a_jvm_by_its_home": "import os; subprocess.run([os.environ['JAVA_HOME'] + '/bin/java', '-version'])",
    "a_jvm_of_a_child": "subprocess.run([sys.executable, '-c', 'import os; os.system(\"java -version\")'])",
    "a_jvm_whose_failure_is_hidden": "with suppress(OSError): subprocess.run(['java'], capture_output=True)",
    "a_server": "with suppress(OSError): subprocess.Popen(['/opt/prometheus', '--web.listen-address=127.0.0.1:0'])",
    "a_server_by_a_shell": "subprocess.run('sleep 0', shell=True)",
    "another_program": "subprocess.run(['sleep', '0'])",
}


def outcomes(folder: Path, body: str, *options: str) -> tuple[str, str]:
    """Run a file of tests by pytest: (last line, whole output)."""
    (folder / "test_it.py").write_text(HEAD + body)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n" + "".join(f"    {mark}\n" for mark in MARKS))
    command = [sys.executable, "-m", "pytest", "-p", "tests.halves", "-p", "no:cacheprovider", "-q", *options]
    done = subprocess.run(
        [*command, f"--rootdir={folder}", str(folder / "test_it.py")],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.splitlines()[-1], done.stdout


def test_what_starts_a_jvm_or_a_server_fails_in_the_quick_half(tmp_path: Path) -> None:
    body = "".join(f"def test_{name}():\n    {line}\n" for name, line in TESTS.items())
    last, said = outcomes(tmp_path, body)
    assert re.match(rf"{len(TESTS)} passed, {len(TESTS)} errors", last), said
    for name in TESTS:
        assert re.search(rf"test_{name} started [^;]+; it is in the quick half", said), said


def test_what_is_marked_may_and_is_not_in_the_quick_half(tmp_path: Path) -> None:
    body = "".join(f"@pytest.mark.{m}\ndef test_{m}():\n    subprocess.run(['sleep', '0'])\n" for m in MARKS)
    assert outcomes(tmp_path, body)[0].startswith(f"{len(MARKS)} passed in")
    assert outcomes(tmp_path, body, "-m", QUICK)[0].startswith(f"{len(MARKS)} deselected")


def test_fixtures_are_seen_too_and_what_serves_nobody_may_be_started(tmp_path: Path) -> None:
    body = (
        "@pytest.fixture(scope='module')\ndef server():\n    subprocess.run(['sleep', '0'])\n    yield\n"
        "def test_it(server): pass\n"
        "def test_quiet():\n    subprocess.run([sys.executable, '-c', ''], check=True)\n    subprocess.run(['true'])\n"
    )
    last, said = outcomes(tmp_path, body)
    assert last.startswith("2 passed, 1 error"), said
    assert "test_it started sleep" in said


def test_make_check_runs_the_quick_half() -> None:
    assert f'-m "{QUICK}"' in (ROOT / "Makefile").read_text(encoding="utf-8")
