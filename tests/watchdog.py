"""Ends a test process that hangs longer than its test may take, and prints the stack of each of its threads.

pytest-timeout raises an error in the Python code of the main thread. The error never comes while that thread waits in
C, such as in the destructor of a client, and it comes only once, so a `finally` that waits for ever hangs after it. A
process that hangs would keep the whole run waiting. pytest-xdist reports the test of an ended process as failed.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator

import pytest

GRACE_SECONDS = 60
"""How much longer than its time (`timeout`) each of setup, call and teardown of a test may take."""

_STDERR = pytest.StashKey[int]()  # the process's own; pytest captures file descriptor 2 while tests run


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_STDERR] = os.dup(2)


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[_STDERR])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Watch over one phase of a test. Each phase begins anew, because pytest stops the watch after a failed phase."""
    marker = item.get_closest_marker("timeout")
    seconds = float(marker.args[0] if marker is not None else item.config.getini("timeout"))
    faulthandler.dump_traceback_later(seconds + GRACE_SECONDS, file=item.config.stash[_STDERR], exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup
