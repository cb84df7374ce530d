"""ARCHITECTURE's glossary holds for the names of the product: one word, one meaning."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from tests.test_house import ROOT, modules, parsed

WORDS = ("coordinator", "run", "token", "task", "member", "epoch", "cap")
FIELDS = {
    "run_id": {"str"},
    "token": {"str"},
    "epoch": {"int"},
    "cap": {"Cap", "CapAnnounced", "Literal"},
    "cap_us": {"int"},
    "read_before_us": {"int"},
}
"""The fields that keep to the glossary, each with the types that fit its meaning."""
_NAMES = re.compile(r"`(\w+)`")


@dataclass
class Glossary:
    """The table of a text: the words with a meaning, and the classes that use a word or have a field."""

    classes: dict[str, set[str]] = field(default_factory=dict)
    fields: dict[str, set[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> Glossary:
        glossary = cls()
        for line in text.partition("\n## Words\n")[2].partition("\n## ")[0].splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if len(cells) != 3 or not cells[1].strip("-"):
                continue
            named = glossary.classes[cells[0]] = set()
            for part in cells[2].split("; "):
                name, has, classes = part.rpartition("` in `")
                if has:
                    glossary.fields[name.strip("`")] = set(_NAMES.findall(f"`{classes}"))
                else:
                    named.update(_NAMES.findall(part))
        del glossary.classes["word"]
        return glossary


def words_in(name: str) -> set[str]:
    """The words of the glossary in a class's name.

    >>> sorted(words_in("_TooManyTasks")), words_in("RunningQuery"), words_in("Capture")
    (['task'], set(), set())
    """
    parts = {part.lower() for part in re.findall(r"[A-Z][a-z0-9]*", name)}
    return {word for word in WORDS if {word, f"{word}s"} & parts}


def classes_of(text: str) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(parsed(text)) if isinstance(node, ast.ClassDef))


def fields_of(found: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """(name, type) of the fields that a class declares."""
    for each in found.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            yield each.target.id, ast.unparse(each.annotation)


def shared_names(texts: Mapping[str, str]) -> list[str]:
    """Return the classes whose names a class in another file has, in words. A private name belongs to its file."""
    first: dict[str, str] = {}
    return [
        f"{path}: class {found.name}: {first[found.name]} has one of this name, for another thing"
        for path, text in texts.items()
        for found in classes_of(text)
        if not found.name.startswith("_") and first.setdefault(found.name, path) != path
    ]


def faults(glossary: Glossary, texts: Mapping[str, str]) -> list[str]:
    """Return the names in these files that contradict the glossary, in words."""
    said, used, has = shared_names(texts), defaultdict(set), defaultdict(set)
    senses = {word: [row for row in glossary.classes if word in re.findall(r"\w+", row)] for word in WORDS}
    said += [f"{word}: it has no meaning in the glossary" for word in WORDS if not senses[word]]
    for path, text in texts.items():
        for found in classes_of(text):
            for word in words_in(found.name):
                used[word].add(found.name)
                listed = [row for row in senses[word] if found.name in glossary.classes[row]]
                if len(listed) != 1:
                    said.append(f"{path}: class {found.name}: {word} of which sense? {listed or senses[word]}")
            for name, kind in fields_of(found):
                if name == "run" and "str" in kind:
                    said.append(f"{path}: {found.name}.run is a text: call it token or run_id")
                if name not in FIELDS:
                    continue
                has[name].add(found.name)
                types = set(re.findall(r"\w+", kind)) - {"None"}
                if not types & FIELDS[name]:
                    said.append(f"{path}: {found.name}.{name} is {kind}, expected one of {sorted(FIELDS[name])}")
                if found.name not in glossary.fields.get(name, ()):
                    said.append(f"{path}: {found.name}.{name} is not in the glossary")
    for row, names in glossary.classes.items():
        gone = names - set().union(*(used[word] for word in WORDS if row in senses[word]))
        said += [f"{row}: the glossary names {name}, which is gone" for name in sorted(gone)]
    for name, classes in glossary.fields.items():
        said += [f"{name}: the glossary names {each}, which has no such field" for each in sorted(classes - has[name])]
    return said


def glossary_now() -> Glossary:
    return Glossary.read((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))


def test_names_of_the_product_keep_to_the_glossary() -> None:
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in modules()}
    assert faults(glossary_now(), texts) == []


SMALL = """
## Words

| word | means | in names |
|---|---|---|
| split | a partition | |
| task | a query on a stream | `TaskId` |
| token | a secret text | `token` in `Request`, `Reply` |

## Other

| word | means | in names |
|---|---|---|
| run | not of the glossary | |
"""
KEPT = "class TaskId: ...\nclass Request:\n    token: str\n"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("class Task: ...", "class Task: task of which sense? ['task']"),
        ("class _TaskRows: ...", "class _TaskRows: task of which sense? ['task']"),
        ("class Asked:\n    token: str", "Asked.token is not in the glossary"),
        ("class Reply:\n    token: int", "Reply.token is int, expected one of ['str']"),
        ("class TaskId: ...", "class TaskId: a.py has one of this name, for another thing"),
        ("class Asked:\n    run: str | None = None", "Asked.run is a text: call it token or run_id"),
        ("class Limits:\n    cap_us: int", "Limits.cap_us is not in the glossary"),
    ],
)
def test_a_name_against_the_glossary_is_a_fault(text: str, fault: str) -> None:
    glossary = Glossary.read(SMALL)
    before = faults(glossary, {"a.py": KEPT})
    assert [each for each in faults(glossary, {"a.py": KEPT, "b.py": text}) if each not in before] == [f"b.py: {fault}"]


def test_a_word_without_a_meaning_and_a_name_that_is_gone_are_faults() -> None:
    glossary = Glossary.read(SMALL)
    assert glossary == Glossary({"split": set(), "task": {"TaskId"}, "token": set()}, {"token": {"Request", "Reply"}})
    assert faults(glossary, {"a.py": "class Request:\n    token: str\n"}) == [
        *(f"{word}: it has no meaning in the glossary" for word in WORDS if word not in ("task", "token")),
        "task: the glossary names TaskId, which is gone",
        "token: the glossary names Reply, which has no such field",
    ]
    assert "token: the glossary names Request, which has no such field" in faults(
        glossary, {"a.py": "class TaskId: ..."}
    )
