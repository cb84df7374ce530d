"""The fenced and indented blocks of a page, which readers copy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_FENCE = re.compile(r"( *)```(\w*)")


@dataclass(frozen=True)
class Block:
    """One block.

    Attributes:
        line: number of its first line, or of its fence.
        language: the language of its fence, "" for none.
        text: its lines without the indentation of the block.
    """

    line: int
    language: str
    text: str

    @property
    def begins(self) -> str:
        return self.text.split("\n", 1)[0].strip()


def blocks_of(text: str) -> list[Block]:
    """Return all blocks of a page, in their order."""
    lines = text.splitlines()
    found: list[Block] = []
    at = 0
    while at < len(lines):
        begin = at
        if fence := _FENCE.fullmatch(lines[at]):
            at += 1
            while lines[at].strip() != "```":
                at += 1
            inner = [line[len(fence[1]) :] for line in lines[begin + 1 : at]]
            found.append(Block(begin + 1, fence[2], "\n".join(inner)))
        elif lines[at].startswith("    ") and (at == 0 or not lines[at - 1].strip()):
            while at + 1 < len(lines) and (lines[at + 1].startswith("    ") or not lines[at + 1].strip()):
                at += 1
            found.append(Block(begin + 1, "", "\n".join(line[4:] for line in lines[begin : at + 1]).rstrip()))
        at += 1
    return found


def path_of(page: str) -> Path:
    """Return the path of a page, such as README.md or adopt.md."""
    return ROOT / page if page == "README.md" else ROOT / "docs" / page


def block(page: str, begins: str) -> str:
    """Return the text of the only block of a page that begins with these characters."""
    [found] = [each.text for each in blocks_of(path_of(page).read_text("utf-8")) if each.begins.startswith(begins)]
    return found


def read_all(code: str, instead: Mapping[str, str], names: dict[str, Any], checkpoint: Path) -> None:
    """Run a page's program that makes `events` of a source, and read all rows.

    Args:
        code: the program.
        instead: text in the program -> its replacement, such as an address.
        names: the names that the program expects to be defined.
        checkpoint: folder for the checkpoint of the query, which writes nothing.
    """
    for there, here in instead.items():
        assert there in code, there
        code = code.replace(there, here)
    exec(code, names)
    writer = names["events"].writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
