"""docs/audit.md shows what the command prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.integration.audit_example import write

ROOT = Path(__file__).resolve().parents[2]
COMMAND = ["audit", "files", "orders", "--window", "1 minute"]
COMMAND += ["--delay", "10 seconds", "--delay", "10 minutes", "--delay", "1 hour"]
BLOCK = re.compile(r"<!-- printed by: lowmark audit files -->\n```\n(.*?)```", re.DOTALL)


def printed(folder: Path) -> str:
    """The output; days are those of yesterday, and how far a bad clock is ahead depends on the hour."""
    write(folder / "orders")
    lowmark = [sys.executable, "-c", "from lowmark.integration.cli.main import main; main()"]
    run = subprocess.run(
        [*lowmark, *COMMAND],
        cwd=folder,
        env={**os.environ, "COLUMNS": "150"},
        capture_output=True,
        text=True,
        check=True,
    )
    return "\n".join(line.rstrip() for line in run.stdout.splitlines())


def settled(text: str) -> str:
    return re.sub(r"36\dd( \d+h)? ahead", "DAYS ahead", re.sub(r"\d{4}-\d\d-\d\d", "DAY", text)).strip()


def test_the_page_shows_what_is_printed(tmp_path: Path) -> None:
    shown = BLOCK.search((ROOT / "docs" / "audit.md").read_text(encoding="utf-8"))
    assert shown
    assert settled(shown[1]) == settled(printed(tmp_path))


if __name__ == "__main__":  # writes it anew: python -m tests.integration.test_audit_docs FOLDER
    page = ROOT / "docs" / "audit.md"
    text = printed(Path(sys.argv[1]))
    page.write_text(
        BLOCK.sub(lambda _: f"<!-- printed by: lowmark audit files -->\n```\n{text}\n```", page.read_text("utf-8")),
        encoding="utf-8",
    )
