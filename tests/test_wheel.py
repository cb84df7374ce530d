"""The wheel that `make wheel` builds, installed into an environment of its own, and the source distribution.

The environment of the tests lends the dependencies, so that pip asks no registry. `test_demo` runs the demo from the
wheel.
"""

from __future__ import annotations

import email
import importlib.metadata
import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.installed import site_packages
from tests.packages import build, built_once, repacked
from tests.servers.local import ROOT

pytestmark = pytest.mark.slow


def make_environment(folder: Path, package: Path, lent: Sequence[str]) -> Path:
    """Make an environment with a package and without this checkout; return its folder of programs.

    Args:
        folder: folder of the environment.
        package: the file to install.
        lent: folders with the dependencies, in the order of the search.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    # A .pth file in a lent folder has no effect.
    (packages / "lent.pth").write_text("".join(f"{each}\n" for each in lent))
    install(folder / "bin", "--no-deps", "--no-build-isolation", "--ignore-installed", str(package))
    return folder / "bin"


def install(bin_: Path, *what: str) -> None:
    """Run `pip install` in an environment, without a registry."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(bin_ / "python")]
    subprocess.run([*pip, "install", "--quiet", "--no-index", *what], check=True, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Wheel and source distribution."""
    return built_once(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def wheel(packages: tuple[Path, Path]) -> Path:
    return packages[0]


@pytest.fixture(scope="module")
def bin_(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel."""
    return make_environment(tmp_path_factory.mktemp("wheel") / "environment", wheel, site_packages())


def run(bin_: Path, program: str, *arguments: str) -> str:
    """Run a program in an empty home, without an activated environment, and return its output."""
    home = bin_.parent / "home"
    home.mkdir(exist_ok=True)
    keep = {key: value for key, value in os.environ.items() if key in {"PATH", "JAVA_HOME", "LD_LIBRARY_PATH"}}
    ran = subprocess.run(
        [str(bin_ / program), *arguments],
        env={**keep, "HOME": str(home)}, cwd=home, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_one_commit_gives_the_same_bytes_twice_and_an_index_takes_them(
    packages: tuple[Path, Path], tmp_path: Path
) -> None:
    again = build(tmp_path)
    assert [file.name for file in again] == [file.name for file in packages]
    assert [file.read_bytes() for file in again] == [file.read_bytes() for file in packages]

    checked = [sys.executable, "-m", "twine", "check", "--strict", *map(str, packages)]
    ran = subprocess.run(checked, capture_output=True, text=True, check=False, env={**os.environ, "NO_COLOR": "1"})
    assert ran.returncode == 0, ran.stdout
    assert ran.stdout.count("PASSED") == 2


def test_an_archive_that_is_packed_again_keeps_names_and_contents_only() -> None:
    def archive(names: Sequence[str], mtime: int) -> bytes:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as made:
            for name in names:
                entry = tarfile.TarInfo(name)
                entry.size, entry.mtime, entry.uid, entry.uname = len(name), mtime, mtime, f"user {mtime}"
                made.addfile(entry, io.BytesIO(name.encode()))
        return packed.getvalue()

    one, other = archive(["a", "b/c"], 1_000), archive(["b/c", "a"], 2_000)
    assert one != other
    assert repacked(one, 3_000) == repacked(other, 3_000) != repacked(one, 3_001)
    with tarfile.open(fileobj=io.BytesIO(repacked(other, 3_000))) as files:
        assert [(each.name, each.mtime, each.uid, each.mode) for each in files] == [
            ("a", 3_000, 0, 0o644), ("b/c", 3_000, 0, 0o644),
        ]  # fmt: skip
        member = files.extractfile("b/c")
        assert member is not None
        assert member.read() == b"b/c"


def test_pip_makes_the_same_wheel_of_the_source_distribution(packages: tuple[Path, Path], tmp_path: Path) -> None:
    """So what runs from the wheel runs from the source distribution."""
    with tarfile.open(packages[1]) as files:
        epoch = files.getmembers()[0].mtime
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    subprocess.run(
        [*pip, "--no-build-isolation", "--no-index", "--wheel-dir", str(tmp_path), str(packages[1])],
        check=True, stdin=subprocess.DEVNULL, env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
    )  # fmt: skip
    assert (tmp_path / packages[0].name).read_bytes() == packages[0].read_bytes()


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as files:
        [name] = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(files.read(name))


def test_what_is_imported_by_the_names_of_the_readme(bin_: Path) -> None:
    code = """
import json, sys, time
import lowmark
lean = sorted({"pyspark", "grpc", "numpy"} & {*sys.modules})
import pyspark.sql, pyspark.sql.streaming, pyspark.sql.datasource
begun = time.process_time()
from lowmark import LowWatermarkService, WatermarkStrategy, LowmarkError, adopt, leave, ship
spent = time.process_time() - begun
from lowmark import audit_table
print(json.dumps([lean, spent, lowmark.__version__, lowmark.__file__, dir(lowmark)]))
"""
    lean, seconds, version, file, names = json.loads(run(bin_, "python", "-c", code))
    assert lean == []
    assert seconds < 1, "of the processor, beyond pyspark's own"
    assert version == importlib.metadata.version("lowmark")
    assert Path(file).is_relative_to(bin_.parent)
    assert {"LowWatermarkService", "WatermarkStrategy", "__version__"} <= {*names}


def test_a_name_that_is_not_there(bin_: Path) -> None:
    code = "import lowmark\ntry: lowmark.Service\nexcept AttributeError as missing: print(missing)"
    assert run(bin_, "python", "-c", code) == "module 'lowmark' has no attribute 'Service'\n"


def test_the_command_and_the_files_for_grafana(bin_: Path, tmp_path: Path) -> None:
    assert (
        run(bin_, "python", str(bin_ / "lowmark"), "--version") == f"lowmark {importlib.metadata.version('lowmark')}\n"
    )
    out = tmp_path / "some" / "folder"
    told = run(bin_, "python", str(bin_ / "lowmark"), "grafana", "--out", str(out))
    for name in ("overview.json", "lowmark.json", "source.json", "alerts.yml"):
        assert (out / name).read_bytes() == (ROOT / "grafana" / name).read_bytes()
        assert str(out / name) in told


def test_what_the_package_says_of_itself(wheel: Path) -> None:
    said = metadata(wheel)
    described = str(said.get_payload())
    assert said["Description-Content-Type"] == "text/markdown"
    assert "# lowmark" in described
    assert "# Changelog" in described
    assert "watermark" in said["Keywords"].split(",")
    assert said["License-Expression"] == "Apache-2.0"


def test_every_extra_can_be_had_beside_the_rest(wheel: Path) -> None:
    """The pins satisfy the ranges of the base install and of each extra."""
    said = metadata(wheel)
    extras = said.get_all("Provides-Extra") or []
    assert "kafka" in extras
    needed = [Requirement(text) for text in said.get_all("Requires-Dist") or []]
    for extra in ["", *extras]:
        mine = [each for each in needed if each.marker is None or each.marker.evaluate({"extra": extra})]
        assert mine
        assert [
            str(each)
            for each in mine
            if not each.specifier.contains(importlib.metadata.version(each.name), prereleases=True)
        ] == []


def test_every_module_of_the_checkout_is_in_it_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        inside = {name for name in files.namelist() if name.endswith(".py")}
    ours = {
        f"lowmark/{f.relative_to(ROOT)}".replace("integration/namespace/", "")
        for top in ("watermark", "sources", "integration")
        for f in (ROOT / top).rglob("*.py")
    }
    assert inside == ours
