"""Make one function of the product raise once, at one of its calls.

Usage: run the code twice, first to count its function calls, then with a fault drawn from these calls.

    with Injector(["watermark/tasks", "integration/coordinator/server.py"]) as seen:
        run()
    fault = draw(seen.calls, Random(seed))
    with Injector(["watermark/tasks", "integration/coordinator/server.py"], fault) as injector:
        run()
    assert injector.raised, f"seed {seed}: {fault} was not reached"     # threads may make fewer calls: draw again

Folders and files are relative to the root of the project. An `Injector` sees the threads that start while it is
entered: enter it before creating a service, a server or a query. With ``here=True`` it also sees the calling thread.
``threads`` picks threads by their names.

A `Failpoint` does the same in other processes. A folder keeps the calls of these processes, and whether one of them has
raised. For the command line, run `python -m tests.failpoints.inject ARGUMENTS` instead of `lowmark ARGUMENTS`, with the
environment `Failpoint.variable`. A process that unpickles a `Failpoint` calls `Failpoint.arm`.

A fault is raised in the frame of the function, before its first line or after its last, so no `try` of the function
itself sees the fault. Each resumption of a generator or a coroutine counts as a call.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from types import CodeType, FrameType
from typing import Any

ERRORS: Mapping[str, type[Exception]] = {
    error.__name__: error
    for error in (MemoryError, KeyError, ValueError, OSError, RuntimeError, AssertionError, RecursionError)
}
"""The possible errors, by name."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One error at one call.

    Attributes:
        function: its name in `Injector.calls`: file, first line and name.
        call: the number of the call, 1 or more.
        error: a name in `ERRORS`.
        after: raise at the function's return instead of its beginning.
    """

    function: str
    call: int = 1
    error: str = "RuntimeError"
    after: bool = False

    def __str__(self) -> str:
        return f"{self.error} {'after' if self.after else 'at'} call {self.call} of {self.function}"


def draw(calls: Mapping[str, int], random: Random) -> Fault:
    """Draw a fault: all functions are equally likely, and so are all calls of a function."""
    function = random.choice(sorted(calls))
    return Fault(function, random.randint(1, calls[function]), random.choice(sorted(ERRORS)), random.random() < 0.25)


def name_of(function: Callable[..., object]) -> str:
    """Return the name of a function of the product, for a `Fault`."""
    name = _name(inspect.unwrap(function).__code__)
    assert name is not None, f"{function} is no function of lowmark"
    return name


class Injector:
    """Counts the calls of the product's functions, and makes one call raise.

    Args:
        places: folders and files below the root of the project.
        fault: the fault to raise; None: only count.
        threads: whether to trace a thread of that name; None: trace all threads.
        here: trace the calling thread, too.
        failpoint: keeps the calls, and decides whether this process may raise; None: this process is the only one.

    Attributes:
        calls: how often each function was called.
        raised: whether the fault was raised.
    """

    def __init__(
        self,
        places: Collection[str],
        fault: Fault | None = None,
        *,
        threads: Callable[[str], bool] | None = None,
        here: bool = False,
        failpoint: Failpoint | None = None,
    ) -> None:
        self._failpoint = failpoint
        self.calls: Counter[str] = Counter()
        self.raised = False
        self._places, self._fault, self._threads, self._here = tuple(places), fault, threads, here
        self._names: dict[CodeType, str | None] = {}
        self._lock = threading.Lock()
        self._due: set[FrameType] = set()  # frames that raise the fault on return
        self._before: tuple[Any, Any] = (None, None)

    def __enter__(self) -> Injector:  # noqa: PYI034  # Self is not in Python 3.10
        self._before = threading.getprofile(), sys.getprofile()
        threading.setprofile(self._look)
        if self._here:
            sys.setprofile(self._look)
        return self

    def __exit__(self, *_: object) -> None:
        threading.setprofile(self._before[0])
        if self._here:
            sys.setprofile(self._before[1])
        self._places, self._fault = (), None  # traced threads still call this object
        self._names.clear()

    def _look(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            code = frame.f_code
            name = self._names[code] if code in self._names else self._name(code)
            if name is None or not self._wanted():
                return
            with self._lock:
                self.calls[name] += 1
                if self._failpoint is not None:
                    self._failpoint.note_call(name)
                if self._fault is None or (name, self.calls[name]) != (self._fault.function, self._fault.call):
                    return
                if self._fault.after:
                    self._due.add(frame)
                    return
            self._raise()
        elif event == "return" and frame in self._due:
            self._due.discard(frame)
            self._raise()

    def _raise(self) -> None:
        fault = self._fault
        if fault is not None and (self._failpoint is None or self._failpoint.acquire()):
            self.raised = True
            raise ERRORS[fault.error](f"injected: {fault}")

    def _wanted(self) -> bool:
        return self._threads is None or self._threads(threading.current_thread().name)

    def _name(self, code: CodeType) -> str | None:
        """Return the name of a function of these places; None for others, and for the bodies of modules and classes."""
        name = _name(code)
        path = "" if name is None else name.partition(":")[0]
        ours = any(path == place or path.startswith(f"{place}/") for place in self._places)
        self._names[code] = name if ours and code.co_flags & inspect.CO_NEWLOCALS else None
        return self._names[code]


def _name(code: CodeType) -> str | None:
    _, found, path = code.co_filename.replace(os.sep, "/").rpartition("/lowmark/")
    return f"{path}:{code.co_firstlineno} {getattr(code, 'co_qualname', code.co_name)}" if found else None


@dataclass(frozen=True, slots=True)
class Failpoint:
    """One error in other processes, whichever of them comes first to the call. Picklable.

    Attributes:
        places: folders and files below the root of the project.
        fault: the fault to raise; None: only count.
        folder: an existing folder for what these processes write.
    """

    places: tuple[str, ...]
    fault: Fault | None
    folder: str

    @property
    def calls(self) -> Counter[str]:
        """How often each function was called, in the process that called it most often."""
        most = Counter[str]()
        for file in Path(self.folder).glob("calls-*"):
            most |= Counter(file.read_text().splitlines())
        return most

    @property
    def raised(self) -> bool:
        """Whether a process has raised the fault."""
        return Path(self.folder, "raised").exists()

    @property
    def variable(self) -> dict[str, str]:
        """The environment for `main`."""
        return {"LOWMARK_FAILPOINT": json.dumps(asdict(self))}

    def arm(self) -> Injector:
        """Return an entered injector in this process, for its present thread and all threads that start later."""
        return Injector(self.places, self.fault, here=True, failpoint=self).__enter__()

    def note_call(self, name: str) -> None:
        """Write down a call while the calls are counted; at once, because such a process may be killed."""
        if self.fault is None:
            with Path(self.folder, f"calls-{os.getpid()}").open("a", encoding="utf-8") as file:
                file.write(f"{name}\n")

    def acquire(self) -> bool:
        """Return True to the first caller of all processes, and False to all later ones."""
        try:
            Path(self.folder, "raised").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def main() -> None:
    """Run the command line of lowmark with the failpoint in the environment."""
    logging.basicConfig(level=logging.INFO)
    wanted = json.loads(os.environ["LOWMARK_FAILPOINT"])
    fault = None if wanted["fault"] is None else Fault(**wanted["fault"])
    from lowmark.integration.cli.main import main as command

    with Failpoint(tuple(wanted["places"]), fault, wanted["folder"]).arm():
        command()


if __name__ == "__main__":
    main()
