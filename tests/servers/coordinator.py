"""`lowmark serve` as a process of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers.local import LOWMARK


@dataclass
class Served:
    """A coordinator's process."""

    process: subprocess.Popen[str]
    address: str
    journal: Path

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def peak_mib(self) -> int:
        """The peak of its memory so far."""
        return self._memory_mib("VmHWM:")

    def resident_mib(self) -> int:
        """Its present memory."""
        return self._memory_mib("VmRSS:")

    def _memory_mib(self, field: str) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.partition(field)[2].split()[0]) >> 10


@contextmanager
def served(
    folder: Path, *options: str, address: str | None = None, lease: str = "30 seconds", before: tuple[str, ...] = ()
) -> Iterator[Served]:
    """Start a coordinator, with `before` as a prefix of its command, and wait until it listens."""
    process = subprocess.Popen(
        [
            *before, *LOWMARK, "serve", "--json", "--address", address or f"unix:{folder}/c.sock", "--lease", lease,
            "--journal", str(folder / "journal"), "--interval", "50 milliseconds", *options,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise AssertionError(f"it ended with {process.wait()}: {process.stderr.read()}")
        yield Served(process, json.loads(line)["address"], folder / "journal")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
