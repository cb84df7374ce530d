"""If a user's machine lacks something, make says so in one line, with the remedy."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The part of a fresh checkout that make reads before it sets up the environment."""
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def make(clone: Path, *arguments: str, **environment: str) -> tuple[int, list[str]]:
    """Run make: (exit code, printed lines without make's own error line)."""
    if shutil.which("make") is None:
        pytest.skip("make is missing")
    # A make that runs the tests passes its flags on; these runs must not inherit them.
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS", "PYTHON"))}
    done = subprocess.run(
        ["make", "--no-print-directory", "-C", str(clone), *arguments],
        env={**inherited, "JAVA_HOME": "", "LC_ALL": "C", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, [line for line in done.stdout.splitlines() if not line.startswith("make: ***")]


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_help_lists_the_targets_a_user_runs(clone: Path) -> None:
    code, lines = make(clone)
    assert code == 0
    told = {line.split()[1] for line in lines}
    assert told >= {
        "venv", "demo", "demo-kafka", "check", "test", "lint", "format", "bench", "torture", "clean", "help",
    }  # fmt: skip


def test_no_python_that_is_new_enough(clone: Path) -> None:
    old = program(clone / "old" / "python3", 'case "$*" in *version_info*) exit 1;; esac')
    code, lines = make(clone, "venv", f"PYTHON={old}")
    assert code != 0
    assert lines == [
        (
            f"lowmark: Python 3.10 or newer is needed, and {old} is not that; install it "
            "(Debian: apt install python3 python3-venv) or name one: make PYTHON=/path/to/python3"
        )
    ]


def test_a_python_that_cannot_make_environments(clone: Path) -> None:
    bare = program(clone / "bare" / "python3", 'case "$*" in *ensurepip*) exit 1;; esac')
    code, lines = make(clone, "venv", f"PYTHON={bare}")
    assert code != 0
    assert lines == [
        (
            f"lowmark: {bare} cannot make an environment; install the missing part "
            "(Debian: apt install python3-venv) or name another: make PYTHON=/path/to/python3"
        )
    ]


def test_no_java(clone: Path) -> None:
    code, lines = make(clone, "demo", JAVA_HOME=str(clone / "nowhere"))
    assert code != 0
    assert lines == [
        (
            f"lowmark: Spark needs Java 17 or newer, and {clone}/nowhere/bin/java does not run; install it "
            "(Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME"
        )
    ]


@pytest.mark.parametrize("may", [True, False], ids=["permitted", "not permitted"])
def test_without_java_the_demo_installs_it_where_it_may_and_says_the_command_where_not(clone: Path, may: bool) -> None:
    shutil.copytree(
        ROOT / "tests" / "servers", clone / "tests" / "servers", ignore=shutil.ignore_patterns("__pycache__")
    )
    bin_ = clone / "bin"
    for name in ("bash", "sh", "make", "mkdir", "touch", "sed", "head", "dirname", "cat", "env", "tail", "chmod", "rm"):
        bin_.mkdir(exist_ok=True)
        (bin_ / name).symlink_to(str(shutil.which(name)))
    java = f'echo \'#!/bin/sh\necho "openjdk version \\"17.0.1\\" 2024" >&2\' > {bin_}/java; chmod +x {bin_}/java'
    program(bin_ / "id", "echo 0")
    program(bin_ / "apt-get", f'case "$*" in *openjdk-17-jre-headless*) {java if may else "exit 1"};; esac')
    code, lines = make(clone, "java", PATH=str(bin_))
    said = "\n".join(lines)

    assert (code == 0) == may, said
    assert "lowmark: installing the Debian package openjdk-17-jre-headless" in said
    assert may or "apt install openjdk-17-jre-headless) or set JAVA_HOME" in said


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22", "16"])
def test_an_old_java(clone: Path, version: str) -> None:
    java = program(clone / "bin" / "java", f"echo 'openjdk version \"{version}\" 2024-01-16' >&2")
    code, lines = make(clone, "demo", JAVA_HOME=str(clone))
    assert code != 0
    assert lines == [
        (
            f"lowmark: Spark needs Java 17 or newer, and {java} is version {version}; install it "
            "(Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME"
        )
    ]


@pytest.mark.parametrize("version", ["17.0.15", "17", "21.0.2", "25-ea"])
def test_a_java_that_fits(clone: Path, version: str) -> None:
    program(clone / "bin" / "java", f"echo 'openjdk version \"{version}\" 2024-01-16' >&2")
    assert make(clone, "java", JAVA_HOME=str(clone)) == (0, [])


@pytest.mark.slow  # makes an environment
def test_no_registry(clone: Path) -> None:
    code, lines = make(clone, "venv", PIP_NO_INDEX="1")
    assert code != 0
    assert lines[1:] == [
        (
            "lowmark: cannot reach the package registry; check the network, the proxy and pip's own settings, "
            "then run make again (pip's output: .venv/pip.log)"
        )
    ]
    assert lines[0].startswith("lowmark: setting up .venv with Python 3.")


def only_for_tests() -> list[str]:
    """The modules of packages that only the extra `test` installs, which a user's environment lacks."""
    extras: dict[str, set[str]] = {}  # package -> its extras, with "" for the base install
    for each in importlib.metadata.requires("lowmark") or []:
        found = re.search(r"extra == [\"'](\w+)", each)
        extras.setdefault(re.split(r"[^\w.-]", each, maxsplit=1)[0], set()).add(found[1] if found else "")
    hidden = {name for name, wanted in extras.items() if wanted == {"test"}}
    provided = importlib.metadata.packages_distributions()
    return sorted(module for module, names in provided.items() if hidden & set(names))


def test_the_demo_on_kafka_needs_no_package_of_the_tests() -> None:
    """In a fresh clone `make demo` sets up an environment without the packages of the tests."""
    hidden = only_for_tests()
    assert {"pytest", "hypothesis", "mypy"} <= set(hidden)
    script = f"import sys; sys.modules.update(dict.fromkeys({hidden}))\nimport tests.commands.demo_kafka"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
