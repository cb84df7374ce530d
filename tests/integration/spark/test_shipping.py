"""Shipped packages can be imported on executors without lowmark installed; live/test_cluster.py does it."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lowmark.integration.spark import shipping, workers
from lowmark.integration.spark.shipping import ShipSource, compiled, lend, package, ship
from pyspark import SparkFiles

from tests.installed import link_packages, site_packages


def in_python(code: str, *places: str | Path) -> subprocess.CompletedProcess[str]:
    """Run code in a Python that finds packages in these places only, beside the standard library."""
    found = [str(place) for place in places]
    command = [sys.executable, "-S", "-c", f"import sys; sys.path += {found}\n{code}"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_archive_alone_is_enough_on_an_executor(tmp_path: Path) -> None:
    """With -S Python has site-packages with numpy and pyspark, but not the links that make lowmark importable."""
    archive = package(tmp_path / "lowmark.zip")
    code = (
        "from lowmark.integration.transport.heartbeat import HeartbeatReader\n"
        "from lowmark.integration.transport.mapped import BatchMap\n"
        "reader = HeartbeatReader(address='unix:/x', stream_id='s', stream='orders', delay_ms=0)\n"
        "print([*reader.readBetweenOffsets(reader.initialOffset(), reader.initialOffset())], 'grpc' in sys.modules)\n"
        "import lowmark.watermark; print(lowmark.watermark.__file__)"
    )
    ran = in_python(code, archive, *site_packages())

    assert ran.returncode == 0, ran.stderr
    rows, where = ran.stdout.splitlines()
    assert rows == "[] False"
    assert where.startswith(str(archive))


def test_what_is_pure_python_is_shipped(tmp_path: Path) -> None:
    """All requirements in pure Python are shipped, and sources run from the archive, too."""
    archive = package(tmp_path / "lowmark.zip")
    compiled = tmp_path / "compiled"
    compiled.mkdir()
    link_packages(("pyspark", "py4j", "pyarrow", "numpy", "mmh3", "xxhash", "msgspec"), compiled)
    code = (
        "import lowmark.sources.spark, lowmark.sources.kafka, lowmark.sources.files, lowmark.sources.hybrid\n"
        "import lowmark.integration.transport.planner_peer, lowmark.integration.transport.accumulated\n"
        "import sortedcontainers\n"
        "print(sortedcontainers.__file__)"
    )
    ran = in_python(code, archive, compiled)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(str(archive))


def test_a_driver_that_has_lowmark_from_a_zip_ships_nothing_rather_than_an_empty_package(tmp_path: Path) -> None:
    archive = package(tmp_path / "lowmark.zip")
    code = (
        "from pathlib import Path\n"
        "from lowmark.integration.spark.shipping import package\n"
        f"package(Path({str(tmp_path / 'again.zip')!r}))"
    )
    ran = in_python(code, archive, *site_packages())

    assert ran.returncode == 1
    assert "NotADirectoryError" in ran.stderr


@pytest.mark.slow
def test_what_is_compiled_comes_in_an_archive_that_a_worker_finds(tmp_path: Path) -> None:
    """With only pyspark, pyarrow and numpy: lowmark/__init__.py in the zip file puts the archive on the path."""
    archive = package(tmp_path / "lowmark.zip")
    root = tmp_path / "root"
    with tarfile.open(compiled(tmp_path / "compiled.tar.gz")) as packed:
        packed.extractall(root / "lowmark-compiled", filter="data")
    bare = tmp_path / "bare"
    bare.mkdir()
    link_packages(("pyspark", "py4j", "pyarrow", "numpy"), bare)
    code = (
        "from pyspark import SparkFiles\n"
        f"SparkFiles._root_directory, SparkFiles._is_running_on_worker = {str(root)!r}, True\n"
        "import lowmark.sources.spark, lowmark.sources.kafka, lowmark.integration.transport.accumulated\n"
        "import msgspec, mmh3, xxhash, confluent_kafka\n"
        "print(confluent_kafka.libversion()[0], mmh3.hash64(b'a'), xxhash.xxh64_intdigest(b'a'), msgspec.__file__)"
    )
    ran = in_python(code, archive, bare)

    assert ran.returncode == 0, ran.stderr
    assert str(root) in ran.stdout


def test_wrapped_rows_need_nothing_compiled_but_pyarrow_and_numpy() -> None:
    """Executors that run heartbeats, or reduce rows for the JVM, have these two because Spark needs them."""
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['msgspec', 'grpc', 'mmh3', 'xxhash', 'confluent_kafka']))\n"
        "import lowmark.integration.transport.heartbeat, lowmark.integration.transport.mapped"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


class ClientSession:
    """A session of a client; its server is a folder with the files of the session."""

    def __init__(self, name: str, root: Path) -> None:
        self.session_id, self.folder = name, root / name
        self.folder.mkdir(parents=True)
        self.added, self.options_ = 0, dict[str, str]()

    def addArtifacts(self, path: str, *, pyfile: bool = False, archive: bool = False) -> None:
        name, _, alias = path.partition("#")
        assert pyfile != archive
        self.added += 1
        if pyfile:
            shutil.copy(name, self.folder)
            return
        with tarfile.open(name) as packed:
            packed.extractall(self.folder / alias, filter="data")

    dataSource = SimpleNamespace(register=lambda _: None)  # noqa: N815  # Spark's name
    read = property(lambda self: self)
    format = property(lambda self: lambda _: self)
    load = property(lambda self: lambda: self)

    def options(self, **options: str) -> ClientSession:
        self.options_ = options
        return self

    @property
    def schema(self) -> object:
        return ShipSource(self.options_).schema()


@pytest.mark.slow
def test_a_client_ships_once_to_its_session_and_to_the_readers_of_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With only pyspark, pyarrow and numpy besides, as in the Python of a server; live/test_connect.py does it."""
    monkeypatch.setattr(shipping, "register_class", lambda *_: None)
    root, bare = tmp_path / "root", tmp_path / "bare"
    bare.mkdir()
    link_packages(("pyspark", "py4j", "pyarrow", "numpy"), bare)
    a, b = ClientSession("a", root), ClientSession("b", root)
    for session in (a, a, b):
        monkeypatch.setattr(SparkFiles, "getRootDirectory", lambda folder=session.folder: str(folder))
        ship(session)  # type: ignore[arg-type]
        assert session.added == 2
    shutil.rmtree(root / "a")
    shutil.rmtree(root / "b")  # sessions end
    streams = root / "streaming_job"
    unpacked, zipped = sorted(streams.iterdir(), key=lambda path: path.suffix)
    assert (zipped.suffix, unpacked.is_dir()) == (".zip", True)
    code = (
        "from pyspark import SparkFiles\n"
        f"SparkFiles._root_directory, SparkFiles._is_running_on_worker = {str(streams)!r}, True\n"
        "from lowmark.integration.transport.told import TellSource, ToldClient\n"
        "from lowmark.integration.transport.heartbeat import HeartbeatSource\n"
        "print(TellSource({}).schema().names, ToldClient('told:x').silent_since)"
    )
    ran = in_python(code, zipped, bare)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "['told'] None"


@pytest.mark.parametrize("end", ["in order", "by SIGKILL"])
def test_a_driver_that_ends_leaves_no_copy_of_its_packages_on_its_disk(tmp_path: Path, end: str) -> None:
    """Until then Spark serves the files from there. After a kill Spark's JVM removes its own folder."""
    of_spark = tmp_path / "of_spark"
    of_spark.mkdir()
    code = (
        "import os\n"
        "import signal\n"
        "from pathlib import Path\n"
        "from types import SimpleNamespace\n"
        "from lowmark.integration.spark import shipping\n"
        "shipping.workers.check = shipping.prefer_own_python = lambda _: None\n"
        "added = []\n"
        "context = SimpleNamespace(applicationId='a', addArchive=added.append, addPyFile=added.append)\n"
        f"context._temp_dir = {str(of_spark)!r}\n"
        "shipping.ship(SimpleNamespace(_jsparkSession=None, sparkContext=context))\n"
        "print(*[Path(each.partition('#')[0]).is_file() for each in added], flush=True)\n"
    ) + ("os.kill(os.getpid(), signal.SIGKILL)" if end == "by SIGKILL" else "")
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == (-signal.SIGKILL if end == "by SIGKILL" else 0), ran.stderr
    assert ran.stdout.split() == ["True", "True"]
    assert list(tmp_path.iterdir()) == [of_spark]
    if end == "in order":
        assert list(of_spark.iterdir()) == []


def test_what_pip_has_left_of_a_removed_package_hinders_no_shipping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zipped = package(tmp_path / "lowmark.zip")
    named = shipping._content(zipped, ["msgspec", "no-such-package"])
    (tmp_path / "packages" / "~umpy-2.0.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "packages")

    assert shipping._content(zipped, ["msgspec", "no-such-package"]) == named
    assert shipping._content(zipped, ["msgspec", "mmh3"]) != named


def test_a_copy_that_was_killed_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    packages, into = tmp_path / "session" / "packages", tmp_path / "streams"
    packages.mkdir(parents=True)
    for name in ("a.py", "b.py"):
        (packages / name).write_text(name)
    code = (
        "import os, shutil, signal, sys\n"
        "from pathlib import Path\n"
        "from lowmark.integration.spark.shipping import lend\n"
        "whole = shutil.copytree\n"
        "def die(*names):\n"
        "    shutil.copy2(*names)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "shutil.copytree = lambda source, into: whole(source, into, copy_function=die)\n"
        "lend(*map(Path, sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, str(packages), str(into)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert not (into / "packages").exists()
    [left] = into.glob("*/packages")
    assert len([*left.iterdir()]) == 1, "killed between the two files"

    lend(packages, into)
    assert {path.name: path.read_text() for path in (into / "packages").iterdir()} == {"a.py": "a.py", "b.py": "b.py"}


def test_a_copy_that_fails_leaves_nothing_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full must not get fuller with each attempt."""
    packages, zipped, into = tmp_path / "packages", tmp_path / "lowmark.zip", tmp_path / "streams"
    packages.mkdir()
    (packages / "a.py").write_text("a")
    zipped.write_text("zip")

    def full(*_: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def half(_: Path, target: Path) -> None:
        target.mkdir()
        (target / "a.py").touch()
        full()

    with monkeypatch.context() as disk:
        disk.setattr(shutil, "copytree", half)
        with pytest.raises(OSError, match="No space left"):
            lend(packages, into)
        disk.setattr(Path, "rename", full)
        for source in (zipped, packages):
            with pytest.raises(OSError, match="No space left"):
                lend(source, into)
    assert list(into.iterdir()) == []

    for source in (zipped, packages):
        lend(source, into)
    assert sorted(path.name for path in into.iterdir()) == ["lowmark.zip", "packages"]


def test_a_folder_that_another_session_has_made_meanwhile_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages, into = tmp_path / "packages", tmp_path / "streams"
    packages.mkdir()
    (packages / "a.py").write_text("a")
    rename = Path.rename

    def after_another(part: Path, target: Path) -> Path:
        shutil.copytree(packages, target)
        return rename(part, target)

    monkeypatch.setattr(Path, "rename", after_another)
    lend(packages, into)
    assert [path.name for path in into.rglob("*")] == ["packages", "a.py"]


def test_a_driver_whose_disk_was_full_ships_when_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark takes each name of a file once."""
    added: dict[str, str] = {}

    def add(path: str) -> None:
        assert added.setdefault(Path(path).name, path) == path, "already registered with a different path"

    def full(_: Path) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shipping, "prefer_own_python", lambda _: None)
    monkeypatch.setattr(workers, "check", lambda _: None)
    monkeypatch.setattr(shipping, "compiled", lambda target: target)
    context = SimpleNamespace(applicationId="full", addArchive=add, addPyFile=add, _temp_dir=str(tmp_path))
    session: Any = SimpleNamespace(_jsparkSession=None, sparkContext=context)
    with monkeypatch.context() as disk:
        disk.setattr(shipping, "package", full)
        with pytest.raises(OSError, match="No space left"):
            ship(session)
    ship(session)
    assert sorted(added) == ["lowmark-compiled.tar.gz#lowmark-compiled", "lowmark.zip"]
