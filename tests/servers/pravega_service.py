"""Pravega's standalone that publishes to clients the port of a proxy in front of its segment store.

    python -m tests.servers.pravega_service PUBLISHED_PORT CLASSPATH JVM_OPTIONS...

The standalone has no setting for this port, so this module changes the default of the segment store's setting.
"""

from __future__ import annotations

import sys
import threading

from tests.servers.local import LOCALHOST


def main(published: int, classpath: str, options: list[str]) -> None:
    """Run the standalone until the process ends."""
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
