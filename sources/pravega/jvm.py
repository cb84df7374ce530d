"""The Java machine inside a Python process: started once, on first use, and never ended.

A Python worker of Spark lives longer than a task, so the second batch finds the machine of the first batch (its start
takes half a second). A machine cannot be started twice in a process or with other jars, and does not survive a fork.
"""

from __future__ import annotations

import gc
import glob
import os
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from lowmark.watermark.printable import first_line

from .errors import InvalidPravegaOption, PravegaClientMissing

JARS_VARIABLE = "LOWMARK_PRAVEGA_JARS"
DEFAULT_JVM_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""A small machine, because the client only copies bytes and waits, while tasks need the memory and the cores."""
_SIGNALS_ARE_PYTHONS = "-Xrs"
_LOGGING_IS_OURS = "java.util.logging.config.file"
_CLIENT = "io.pravega.client.ClientConfig"

_starting = threading.Lock()
_started_by: int | None = None


def resolve_jars(places: Sequence[str]) -> list[str]:
    """Return the jars at some places: jars, folders of jars, or patterns; without places, the environment's jars."""
    named = list(places) or [place for place in os.environ.get(JARS_VARIABLE, "").split(os.pathsep) if place]
    if not named:
        raise PravegaClientMissing(
            "nobody says where its jars are",
            f"pass jars=, or set {JARS_VARIABLE} for the driver and the executors, to a folder with pravega-client and "
            "what it needs.",
        )
    found: list[str] = []
    for place in named:
        folder = Path(place)
        jars = sorted(map(str, folder.glob("*.jar"))) if folder.is_dir() else sorted(glob.glob(place))  # noqa: PTH207
        jars = [jar for jar in jars if jar.endswith(".jar")]
        if not jars:
            raise PravegaClientMissing(f"there is no jar at {place}", "jars= is a folder, a jar or a pattern.")
        found += jars
    return found


def start_java(jars: Sequence[str], options: Sequence[str] | None) -> None:
    """Start Java in this process, unless it runs; the options of the first start count, None: `DEFAULT_JVM_OPTIONS`.

    Raises PravegaClientMissing, InvalidPravegaOption.
    """
    global _started_by  # there is one machine in a process
    with _starting:
        if _started_by == os.getpid():
            if jars:
                _check_jars(tuple(jars))
            return
        try:
            import jpype
        except ImportError as missing:
            raise PravegaClientMissing(
                f"the package JPype1 is missing ({missing})", 'pip install "lowmark[pravega]", on executors too.'
            ) from None
        if _started_by is not None:
            raise PravegaClientMissing(
                f"Java was started in process {_started_by}, of which this one, {os.getpid()}, is a fork",
                "start processes that read Pravega by spawn.",
            )
        if not jpype.isJVMStarted():
            _start(jpype, resolve_jars(jars), DEFAULT_JVM_OPTIONS if options is None else options)
        try:
            jpype.JClass(_CLIENT)
        except TypeError:
            raise PravegaClientMissing(
                f"the jars have no class {_CLIENT}",
                "add pravega-client and what it needs; to those of who else has started Java in this process, too.",
            ) from None
        _started_by = os.getpid()
        os.register_at_fork(after_in_child=_leave_alone)


@lru_cache
def _check_jars(places: tuple[str, ...]) -> None:
    """Refuse places without jars, even if Java runs already with other jars."""
    resolve_jars(places)


def _start(jpype: Any, jars: Sequence[str], options: Sequence[str]) -> None:
    try:
        jpype.startJVM(_SIGNALS_ARE_PYTHONS, *options, classpath=list(jars), convertStrings=False, interrupt=False)
    except jpype.JVMNotFoundException as missing:
        raise PravegaClientMissing(
            f"no Java was found ({first_line(missing)})", "install Java 11 or newer, or set JAVA_HOME."
        ) from None
    except (OSError, RuntimeError) as refused:
        named = " ".join(option.partition("=")[0] for option in options)  # without values, which may be passwords
        hint = f"{refused}; Java names the option in the log of the process."
        raise InvalidPravegaOption("jvm_options", named, "options of this Java", hint) from None
    if not any(_LOGGING_IS_OURS in option for option in options):
        # Important errors are raised; other log lines of Java would stand between Python's lines.
        quiet = "".join(f"{name}.level=OFF\n" for name in ("io.pravega", "io.grpc", "io.netty"))
        told = jpype.JClass("java.io.ByteArrayInputStream")(jpype.JArray(jpype.JByte)(quiet.encode()))
        jpype.JClass("java.util.logging.LogManager").getLogManager().readConfiguration(told)


def _leave_alone() -> None:
    """In a fork, collect garbage without calls into Java, because Java's threads do not exist there."""
    gc.callbacks[:] = [each for each in gc.callbacks if getattr(each, "__module__", "") != "_jpype"]


def leave_java() -> None:
    """Detach the calling thread, which is about to end, from Java. Java would otherwise keep its state for ever."""
    if threading.current_thread() is not threading.main_thread() and _started_by == os.getpid():
        import jpype

        jpype.JClass("java.lang.Thread").detach()


def java_class(name: str) -> Any:
    """Return a class of the running Java."""
    import jpype

    return jpype.JClass(name)
