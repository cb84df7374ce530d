"""Both ends of `python_forks.py`, in one script that Python starts without packages.

    SCRIPT SOCKET                        imports, then forks for ever
    SCRIPT SOCKET -m MODULE ARGUMENT...  asks for a fork, waits for its end, and ends with its exit code

A fork has arguments, environment, folder, input, output and errors of the process that asked, and ends with it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

_LENGTH_BYTES = 8
_FILES = 3  # input, output, errors

IMPORTED = (
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.worker",
    "lowmark.integration.transport.heartbeat",
    "lowmark.integration.transport.mapped",
    "lowmark.integration.transport.planner_peer",
    "lowmark.integration.transport.recorder",
    "lowmark.sources.files",
    "lowmark.sources.generator",
    "lowmark.sources.kafka.planner",
    "lowmark.sources.spark.source",
    "confluent_kafka.admin",
    "pandas",  # which pyarrow imports for its first array
    "pyarrow",
)


def ask(path: str, arguments: list[str]) -> int:
    """Ask the process at a socket for a fork, and return the exit code of the fork."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        given = json.dumps([arguments, str(Path.cwd()), dict(os.environ)]).encode()
        socket.send_fds(server, [len(given).to_bytes(_LENGTH_BYTES, "big") + given], range(_FILES))
        code = server.recv(1)
    return code[0] if code else 1


def serve(path: str) -> None:
    """Import the modules once, then fork for each process that asks."""
    import gc
    import importlib
    import signal

    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system removes ended forks
    with socket.create_server(path, family=socket.AF_UNIX, backlog=128) as server:
        while True:
            asking, _ = server.accept()
            if os.fork() == 0:
                try:
                    server.close()
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    _run(asking)
                finally:
                    os._exit(1)
            asking.close()


def _run(asking: socket.socket) -> None:
    """Be `python -m MODULE ARGUMENT...` in a fork, and end with the process that asked."""
    import runpy
    import signal
    import threading
    import traceback

    received, files, _, _ = socket.recv_fds(asking, 65_536, _FILES)
    length, begin = int.from_bytes(received[:_LENGTH_BYTES], "big"), received[_LENGTH_BYTES:]
    with asking.makefile("rb") as rest:
        arguments, folder, environ = json.loads(begin + rest.read(length - len(begin)))
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    module, sys.argv, sys.orig_argv = arguments[1], arguments[1:], [sys.executable, *arguments]
    sys.path[:1] = [folder, *(each for each in environ.get("PYTHONPATH", "").split(os.pathsep) if each)]
    sys.modules.pop(module, None)

    def end_with_it() -> None:
        asking.recv(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_with_it, daemon=True).start()
    code: object = 1
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = 0 if ended.code is None else ended.code
    except BaseException:  # noqa: BLE001  # Python prints any exception and ends
        traceback.print_exc()
    finally:
        code = code & 0xFF if isinstance(code, int) else 1
        sys.stdout.flush()
        sys.stderr.flush()
        asking.send(bytes([code]))
        os._exit(code)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    else:
        sys.exit(ask(sys.argv[1], sys.argv[2:]))
