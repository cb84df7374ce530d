"""Writes hashes.txt: the pins of constraints.txt with the SHA-256 of each of their files in the package registry.

hashes-tools.txt has the hashes of the tools, which are installed first.

Run `python -m tests.hashes` after a pin has changed. The command needs uv, because pip cannot list all files of a
version. Pins for older Pythons get a second call of uv, because uv takes one version of a package in each call.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HASHED, TOOLS = ROOT / "hashes.txt", ROOT / "hashes-tools.txt"
# pip needs these to build pyspark, which is published as a source package only; wheel needs packaging.
_TOOLS = ("pip==", "setuptools==", "wheel==", "packaging==")
_HEAD = """\
# The pins of constraints.txt with the hashes of all their files, for all platforms; made by `python -m tests.hashes`.
"""


def pins(text: str) -> dict[str, str]:
    """Map each `package==version` of a requirements file, normalized as by pip, to its marker, "" for none."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)(?:\s*;\s*([^\\\n]+?))?\s*\\?$", text, re.MULTILINE)
    return {f"{re.sub('[-_.]+', '-', name).lower()}=={version}": marker for name, version, marker in found}


def _compiled(requirements: list[str]) -> str:
    uv = shutil.which("uv")
    if uv is None:
        sys.exit("hashes.txt needs uv, which is not on PATH. Hint: pip install uv.")
    told = [uv, "pip", "compile", "-", "--no-deps", "--generate-hashes", "--no-header", "--no-annotate", "--quiet",
            "--no-emit-index-url", "--no-emit-find-links", "--python", sys.executable]  # fmt: skip
    return subprocess.run(told, input="\n".join(requirements), capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Write both files."""
    known = pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    old = [pin for pin, marker in known.items() if "<" in marker]
    text = _compiled([pin for pin in known if pin not in old]) + _compiled(old)
    hashed = re.findall(r"^(\S+==\S+).*\\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.MULTILINE)
    lines = [f"{pin}{f' ; {known[pin]}' if known[pin] else ''} \\\n{files.rstrip()}\n" for pin, files in sorted(hashed)]
    HASHED.write_text(_HEAD + "".join(lines), encoding="utf-8")
    tools = [line for line in lines if line.startswith(_TOOLS)]
    TOOLS.write_text(_HEAD + "".join(tools), encoding="utf-8")


if __name__ == "__main__":
    main()
