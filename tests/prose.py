"""Counts the sentences of comments, docstrings, pages and texts that a reader has to decode.

A text is what a program says: each string of the code with six words or more, such as an error or a line of the log.

`python -m tests.prose [FOLDER ...]` lists these sentences and prints their share. Two kinds count:

inverted          The sentence begins with its object or with a negation: "Of a split ...", "Nor is ...", "What is ...".
full of pointers  Four words or more, and a quarter of all, stand for a thing named elsewhere: "it", "that", "which".
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.test_house import nodes, parsed

ROOT = Path(__file__).parents[1]

_POINTERS = frozenset(
    re.findall(
        r"\w+",
        """
        all another any anybody anything as both each either here it its itself neither nobody none nothing one ones
        other others so some somebody something such that theirs their them themselves then there thereby these they
        this those thus what whatever where which who whoever whom whose
        """,
    )
)
_FEWEST_WORDS, _FEWEST_POINTERS, _POINTER_SHARE = 6, 4, 0.25
_INVERTED = re.compile(
    r"(Of (?!course)|N(or|either) |Who(se|ever)? |What(ever)? |Were |Had |Should |Such |So (is|are|does|do|has|have) )"
)
_CODE = re.compile(r"`+[^`]*`+")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_BREAK = re.compile(r"\n\s*\n|\n\s*(?:[-*]|\d\.) |\n\s*[\w, ]+: ")
_SLOT = re.compile(r"%[a-z]|\{[^}]*\}")
_END = re.compile(r"(?<=[.;!?])\s+")


@dataclass(frozen=True)
class Sentence:
    """A sentence of at least six words, and where it stands."""

    place: str
    text: str

    @property
    def inverted(self) -> bool:
        return _INVERTED.match(self.text) is not None and not self.text.endswith("?")

    @property
    def full_of_pointers(self) -> bool:
        words = _words(self.text)
        pointers = sum(word.lower() in _POINTERS for word in words)
        return pointers >= max(_FEWEST_POINTERS, _POINTER_SHARE * len(words))


def sentences(paths: Iterable[Path]) -> list[Sentence]:
    """The sentences of Python files and pages, in order."""
    return [
        Sentence(f"{path.relative_to(ROOT)}:{line}", text)
        for path in paths
        for line, block in (_page(path) if path.suffix == ".md" else _module(path))
        for part in _BREAK.split(_CODE.sub("X", _LINK.sub(r"\1", block)))
        for text in _END.split(" ".join(part.split()))
        if len(_words(text)) >= _FEWEST_WORDS
    ]


def files(*places: str) -> list[Path]:
    """The Python files and pages below folders of the project, or the files themselves."""
    paths = [ROOT / place for place in places]
    return [
        each
        for path in paths
        for each in ([path] if path.is_file() else sorted([*path.rglob("*.py"), *path.rglob("*.md")]))
    ]


def _words(text: str) -> list[str]:
    return re.findall(r"[A-Za-z']+", text)


def _page(path: Path) -> Iterator[tuple[int, str]]:
    """Each paragraph of a page, without its code, tables and titles."""
    text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for paragraph in text.split("\n\n"):
        lines = [line for line in paragraph.splitlines() if not line.startswith(("|", "    ", "#", "<"))]
        yield text.count("\n", 0, text.index(paragraph)) + 1, "\n".join(lines)


def _module(path: Path) -> Iterator[tuple[int, str]]:
    """Each docstring of a module without its examples, each comment, and each text."""
    source = path.read_text("utf-8")
    yield from _texts(parsed(source))
    for node in nodes(source):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            lines = [line for line in text.splitlines() if not line.lstrip().startswith((">>>", "..."))]
            yield getattr(node, "lineno", 1), "\n".join(lines)
    read = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [each for each in read if each.type == tokenize.COMMENT]
    block: list[tokenize.TokenInfo] = []
    for comment, after in pairwise([*comments, None]):
        assert comment is not None
        block.append(comment)
        if after is None or after.start[0] != comment.start[0] + 1:
            yield block[0].start[0], " ".join(each.string.lstrip("# ") for each in block)
            block = []


def _texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Each string of the code that is no docstring; a value in it counts as a word."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(_literal(each) for each in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, _SLOT.sub("X", node.value)
        else:
            waiting += ast.iter_child_nodes(node)


def _literal(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else "X"


def main(*places: str) -> None:
    """List the sentences that have to be decoded."""
    read = sentences(files(*(places or ("watermark", "sources", "integration", "docs", "tests"))))
    for sentence in read:
        if sentence.inverted or sentence.full_of_pointers:
            print(f"{sentence.place}: {sentence.text}")
    for kind in ("inverted", "full_of_pointers"):
        share = 100 * sum(getattr(each, kind) for each in read) / max(1, len(read))
        print(f"{share:.2f} % of {len(read)} sentences: {kind.replace('_', ' ')}")


if __name__ == "__main__":
    main(*sys.argv[1:])
