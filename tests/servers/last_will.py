"""Ends the processes of a test run that was killed, or interrupted before its fixtures ended them.

A process beside the run reads from a pipe whose other end the run holds. The pipe closes when the run ends in any
way; then the process ends the run's remaining sessions, by their process ids.
"""

from __future__ import annotations

import atexit
import subprocess
import sys
import threading

_EXECUTOR = """
import os, signal, sys
left = set()
for line in sys.stdin:
    (left.add if line[0] == "+" else left.discard)(int(line[1:]))
for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
    try:
        with open(f"/proc/{name}/stat") as stat:
            session = int(stat.read().rpartition(")")[2].split()[3])
        if session in left:
            os.kill(int(name), signal.SIGKILL)
    except (OSError, ValueError):
        pass
for pid in left:
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass
"""
_lock = threading.Lock()
_executor: subprocess.Popen[str] | None = None


def end_with_us(session: int) -> None:
    """End a process and its whole session when this process ends.

    Args:
        session: the id of a process that was started with `start_new_session`.
    """
    global _executor  # one for all, started when it is needed
    with _lock:
        if _executor is None or _executor.poll() is not None:
            _executor = subprocess.Popen(
                [sys.executable, "-S", "-c", _EXECUTOR], stdin=subprocess.PIPE, text=True, start_new_session=True
            )
            atexit.register(_executor.communicate)  # otherwise Python warns of a process that still runs
    _tell(f"+{session}\n")


def ended(session: int) -> None:
    """Report the end of a session, because another process may get its id."""
    _tell(f"-{session}\n")


def _tell(line: str) -> None:
    with _lock:
        if _executor is not None and _executor.stdin is not None and _executor.poll() is None:
            _executor.stdin.write(line)
            _executor.stdin.flush()
