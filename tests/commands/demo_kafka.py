"""`make demo-kafka`: a real broker, `lowmark demo` on it, and nothing left running afterwards."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from lowmark.integration.spark.session import java_problem

from tests.servers.kafka import kafka_broker
from tests.servers.local import ServerError, jars


def main(arguments: list[str]) -> int:
    """Run the demo with these further arguments; its exit code."""
    problem = java_problem()
    if problem:
        print(f"lowmark: Spark and Kafka need Java 17 or newer, and {problem}", file=sys.stderr)
        return 2
    connector = jars("spark-kafka")
    if not connector or not jars("kafka"):
        print("lowmark: Kafka's jars are missing; run make jars (it needs Maven)", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, as_exit)
    with tempfile.TemporaryDirectory(prefix="lowmark-kafka-") as folder, kafka_broker(Path(folder)) as broker:
        print(f"lowmark: Kafka answers on {broker.bootstrap}", file=sys.stderr)
        lowmark = Path(sys.executable).with_name("lowmark")
        command = [str(lowmark), "demo", "--source", "kafka", "--bootstrap", broker.bootstrap]
        command += ["--jars", ",".join(str(jar) for jar in connector), *arguments]
        return subprocess.run(command, check=False).returncode


def as_exit(number: int, _frame: FrameType | None) -> None:
    """Exit by an exception on a signal, so that the broker is stopped."""
    raise SystemExit(128 + number)


def run(main: Callable[[list[str]], int]) -> NoReturn:
    """Exit with what the command of this process returns."""
    try:
        sys.exit(main(sys.argv[1:]))
    except ServerError as failed:
        sys.exit(f"lowmark: {failed}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    run(main)
