"""Pravega's standalone, whose clients are told another port of its segment store: that of a proxy in front of it.

    python -m tests.live.pravega_service PUBLISHED_PORT CLASSPATH JVM_OPTIONS...

Its settings have no such port: it is the default of one that the standalone leaves out.
"""

from __future__ import annotations

import sys
import threading

from .servers import LOCALHOST


def main(published: int, classpath: str, options: list[str]) -> None:
    """Run it until the process is ended."""
    import jpype

    jpype.startJVM("-Xrs", *options, classpath=classpath.split(":"), convertStrings=False)
    config = jpype.JClass("io.pravega.segmentstore.server.store.ServiceConfig")
    default = jpype.JClass("io.pravega.common.util.Property").class_.getDeclaredField("defaultValue")
    default.setAccessible(True)
    default.set(config.PUBLISHED_PORT, jpype.JClass("java.lang.Integer").valueOf(published))
    default.set(config.PUBLISHED_IP_ADDRESS, jpype.JString(LOCALHOST))
    jpype.JClass("io.pravega.local.LocalPravegaEmulator").main([])
    threading.Event().wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
