"""Builds what an index of packages takes, the wheel and the source distribution: the same bytes from the same commit.

    python -m tests.packages FOLDER

Both are made of the files that git knows, in a copy, so nothing else of the checkout gets in. Times in the archives are
the time of the commit. setuptools gives the wheel that time itself; its source distribution is packed again, sorted
and without owners. The wheel is built from the source distribution, which proves that nothing is missing there.
"""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("watermark", "sources", "integration", "grafana", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE")
_SDIST = "import setuptools.build_meta as b, sys; b.build_sdist(sys.argv[1])"
_WHEEL = "import setuptools.build_meta as b, sys; b.build_wheel(sys.argv[1])"


def build(folder: Path) -> tuple[Path, Path]:
    """Build into an empty folder.

    Returns:
        (the wheel, the source distribution).

    Raises:
        subprocess.CalledProcessError: git or a build failed.
    """
    epoch = int(_git("log", "-1", "--format=%ct"))
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0"}
    before = os.umask(0o022)  # the archives keep the modes of files
    try:
        with tempfile.TemporaryDirectory() as scratch:
            copy = Path(scratch, "checkout")
            for name in _git("ls-files", *PARTS).splitlines():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, copy / name)
            made = Path(scratch, "made")
            made.mkdir()
            _run([sys.executable, "-c", _SDIST, str(made)], copy, environment)
            [packed] = made.glob("*.tar.gz")
            folder.mkdir(parents=True, exist_ok=True)
            sdist = folder / packed.name
            sdist.write_bytes(repacked(packed.read_bytes(), epoch))
            with tarfile.open(sdist) as files:
                files.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.10.11 and older have none
                files.extractall(scratch)
            source = Path(scratch, packed.name.removesuffix(".tar.gz"))
            _run([sys.executable, "-c", _WHEEL, str(folder.resolve())], source, environment)
    finally:
        os.umask(before)
    [wheel] = folder.glob("*.whl")
    return wheel, sdist


def built_once(run: Path) -> tuple[Path, Path]:
    """Return what `build` returns, built once for all processes that share the tests of a run.

    Args:
        run: the temporary folder of this process; those of the run's processes lie in one folder.
    """
    place = (run.parent if "PYTEST_XDIST_WORKER" in os.environ else run) / "packages"
    if not place.exists():
        made = Path(tempfile.mkdtemp(dir=run))
        build(made)
        with suppress(OSError):  # another process was faster
            made.rename(place)
    [wheel], [sdist] = place.glob("*.whl"), place.glob("*.tar.gz")
    return wheel, sdist


def repacked(archive: bytes, epoch: int) -> bytes:
    """Return a compressed tar archive whose bytes depend only on names, contents and the time."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(archive)) as old, tarfile.open(fileobj=plain, mode="w") as new:
        for entry in sorted(old.getmembers(), key=lambda each: each.name):
            entry.mtime, entry.mode = epoch, 0o755 if entry.isdir() else 0o644
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.pax_headers = {}
            new.addfile(entry, old.extractfile(entry) if entry.isfile() else None)
    return gzip.compress(plain.getvalue(), mtime=epoch)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True).stdout


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    subprocess.run(
        command, cwd=folder, env=environment, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )


if __name__ == "__main__":
    for built in build(Path(sys.argv[1])):
        print(f"lowmark: made {built}")
