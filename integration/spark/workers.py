"""Checks once per session whether the Python of Spark's workers can run the code that lowmark sends there.

By default Spark runs `python3` of the PATH, on the driver's host as well, and not the Python of an application that was
started as `.venv/bin/python app.py`. The result is twenty lines of Spark's that end in "No module named 'lowmark'". So
a local session uses its own Python (see `lowmark.sources.spark`); another configured Python, and the Python of
executors elsewhere, are checked before the first query.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from lowmark.integration.errors import WorkersUnfit
from lowmark.watermark.printable import first_line

if TYPE_CHECKING:
    from lowmark.sources import Source
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

log = logging.getLogger("lowmark")

_OWN = "lowmark"
_ALWAYS = dict.fromkeys(("pyarrow", "numpy", "lowmark.integration.transport.heartbeat"), _OWN)
_TO_READ = dict.fromkeys(("mmh3", "xxhash", "msgspec"), _OWN)
_TO_ASK = dict.fromkeys(("msgspec", "grpc"), _OWN)  # the readers on the driver's host ask the service
_SECONDS = 60.0
_ATTEMPTS = 5

# Text, because it runs in any Python, where lowmark may be missing.
_PROBE = """\
import importlib, json, sys

def probe(modules):
    missing = []
    try:
        import lowmark  # what was shipped is found through it
    except Exception:
        pass
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as failed:
            missing.append((module, "%s: %s" % (type(failed).__name__, failed)))
    return sys.executable, "%d.%d" % sys.version_info[:2], missing
"""

_Probed = tuple[str, str, list[tuple[str, str]]]
"""The answer of `probe`."""

_checked: set[tuple[str, str, str]] = set()  # (application, Python, module)
_checking = threading.Lock()


def needed(source: Source[Any, Any] | None = None) -> dict[str, str]:
    """Return the modules that workers import for a wrapped or a read stream, each with the name of its importer."""
    if source is None:
        return dict(_ALWAYS)
    own = {**_ALWAYS, **_TO_READ}
    return {**dict.fromkeys(source.requires, type(source).__name__), **own}


def check(spark: SparkSession, modules: Mapping[str, str] = _ALWAYS) -> None:
    """Check whether workers can import modules, as `needed` returns them; a second call checks only new modules.

    Costs nothing for a local session with this Python. Executors elsewhere take a small job. Raises `WorkersUnfit`.
    """
    context = spark.sparkContext
    python, application = context.pythonExec, context.applicationId
    with _checking:
        new = {module: user for module, user in modules.items() if (application, python, module) not in _checked}
        if not new:
            return
        if not _is_own(python):
            _check_here(context, python, {**_TO_ASK, **new})
        if str(context.master).partition("[")[0] != "local":
            _check_executors(context, python, new)
        _checked.update((application, python, module) for module in new)


@contextmanager
def on_the_server() -> Iterator[None]:
    """Raise `WorkersUnfit` for an analysis that fails because a Spark Connect server's Python cannot import lowmark."""
    try:
        yield
    except Exception as failed:
        cause = _telling_line(str(failed), "No module named", "cannot import name", "PYTHON_VERSION_MISMATCH")
        if cause is None:
            raise
        missing = (_OWN,) if f"'{_OWN}" in cause else ()
        raise WorkersUnfit("beside the server of Spark Connect", "the server's Python", cause, missing) from failed


def _is_own(python: str) -> bool:
    """Whether a path is this interpreter under any name, and not another environment of the same program."""
    found = shutil.which(python)
    if found is None:
        return False
    one, other = Path(found).absolute(), Path(sys.executable).absolute()
    return one == other or (one.parent == other.parent and one.resolve() == other.resolve())


def _check_here(context: SparkContext, python: str, modules: Mapping[str, str]) -> None:
    command = [python, "-c", f"{_PROBE}\nprint(json.dumps(probe(sys.argv[1:])))", *modules]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(_python_path(context))}
    try:
        ran = subprocess.run(command, capture_output=True, check=False, timeout=_SECONDS, env=environment)
    except (OSError, subprocess.TimeoutExpired) as failed:
        raise WorkersUnfit("on this host", python, f"it does not run ({failed})", ()) from failed
    if ran.returncode != 0:
        said = ran.stderr.decode(errors="replace").strip()
        raise WorkersUnfit("on this host", python, f"it does not run ({said[-200:]})", ())
    try:
        found = msgspec.json.decode(ran.stdout.strip().rpartition(b"\n")[2], type=_Probed)
    except ValueError as strange:
        said = ran.stdout.decode(errors="replace").strip()
        raise WorkersUnfit("on this host", python, f"it does not answer as Python ({said[-200:]})", ()) from strange
    _judge("on this host", modules, *found)


def _python_path(context: SparkContext) -> list[str]:
    """Where workers look for modules besides their Python's own folders."""
    from pyspark import SparkFiles
    from pyspark.find_spark_home import _find_spark_home

    spark = sorted(map(str, Path(_find_spark_home(), "python", "lib").glob("*.zip")))
    shipped = [SparkFiles.get(name) for name in context._python_includes or ()]
    users = os.environ.get("PYTHONPATH")
    return [*spark, *shipped, *([users] if users else [])]


def _check_executors(context: SparkContext, python: str, modules: Mapping[str, str]) -> None:
    from py4j.protocol import Py4JJavaError

    probe, wanted = _PROBE, tuple(modules)

    # A nested function is pickled by value, because executors may have no lowmark to import it from.
    def run(_: Iterable[int]) -> Iterator[Any]:
        import os
        import socket

        from pyspark import SparkFiles

        space: dict[str, Any] = {}
        exec(probe, space)  # noqa: S102  # the text above
        executor = os.path.abspath(SparkFiles.getRootDirectory())  # noqa: PTH100  # "." in a folder of its own
        yield (socket.gethostname(), f"{socket.gethostname()}:{executor}", *space["probe"](wanted))

    tag = f"lowmark-{uuid.uuid4().hex}"
    late = threading.Event()

    def give_up() -> None:
        late.set()
        context.cancelJobsWithTag(tag)

    timer = threading.Timer(_SECONDS, give_up)
    seen: dict[str, tuple[str, str, str, Sequence[tuple[str, str]]]] = {}  # by executor
    context.addJobTag(tag)
    timer.start()
    try:
        for attempt in range(_ATTEMPTS):
            # Spark places tasks where there is room, so start more tasks than executors until each executor had a task.
            tasks = max(context.defaultParallelism, 2 * _executors(context)) * (attempt + 1)
            for host, executor, *answer in context.parallelize(range(tasks), tasks).mapPartitions(run).collect():
                seen[executor] = (host, *answer)
            if len(seen) >= _executors(context):
                break
        else:
            log.warning("%d of %d executors were not looked at", _executors(context) - len(seen), _executors(context))
    except Py4JJavaError as failed:
        if late.is_set():
            log.warning("no executor told within %g seconds whether its Python has %s", _SECONDS, ", ".join(modules))
            return
        raise WorkersUnfit("on executors", python, f"it does not run ({_cause(failed)})", ()) from failed
    finally:
        timer.cancel()
        context.removeJobTag(tag)
    for host, *answer in sorted(seen.values()):
        others = len({each[0] for each in seen.values() if each[1:] == (*answer,)}) - 1
        _judge(f"on executor {host}" + (f" and {others} other hosts" if others else ""), modules, *answer)


def _executors(context: SparkContext) -> int:
    infos: Any = context._jsc.sc().statusTracker().getExecutorInfos()
    return max(1, len(infos) - 1)  # without the driver


def _cause(failed: Any) -> str:
    said = str(failed.java_exception.getMessage())
    telling = _telling_line(said, "Cannot run program", "PYTHON_VERSION_MISMATCH", "No module named")
    return (telling or first_line(said))[:300]


def _telling_line(text: str, *signs: str) -> str | None:
    return next((line.strip() for line in text.splitlines() if any(sign in line for sign in signs)), None)


def _judge(
    where: str, modules: Mapping[str, str], python: str, version: str, missing: Sequence[tuple[str, str]]
) -> None:
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    if version != own:
        raise WorkersUnfit(where, python, f"it is Python {version}, and the driver's is {own}", ())
    if missing:
        reasons: dict[str, list[str]] = {}
        for module, why in missing:
            reasons.setdefault(modules[module], []).append(why)
        parts = [f"what {user} needs there ({'; '.join(whys)})" for user, whys in reasons.items()]
        packages = tuple(dict.fromkeys(_package(module) for module, _ in missing))
        raise WorkersUnfit(where, python, f"it cannot import {', nor '.join(parts)}", packages)


def _package(module: str) -> str:
    """Return the installed package that has a module; the module's name if there is none."""
    top = module.partition(".")[0]
    return importlib.metadata.packages_distributions().get(top, [top])[0]
