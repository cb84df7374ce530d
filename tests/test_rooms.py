"""Rooms, and the imports between them that are allowed.

A room is a package. The modules beside subpackages (such as `watermark/state.py`) are a room below them. The
`__init__.py` that hands on the names of subpackages is a room above them. Every import counts, also an import inside a
function or for the type checker alone.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.test_house import nodes

ROOT = Path(__file__).resolve().parents[1]
LAYERS = ("watermark", "sources", "integration")

# From the ground up. A room imports lower floors only, and no room of its own floor.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("watermark",),
    ("watermark/splits",),
    ("watermark/replay", "watermark/tasks"),
    ("watermark/__init__.py",),
    ("sources",),
    ("sources/coordinator", "sources/hybrid", "sources/reading", "sources/slicing"),
    ("sources/kit", "sources/planning", "sources/testing"),
    (
        "sources/files",
        "sources/generator",
        "sources/kafka",
        "sources/kinesis",
        "sources/pravega",
        "sources/spark/startup",
    ),
    ("sources/spark",),
    ("sources/__init__.py", "sources/formats.py"),
    ("integration",),
    ("integration/process",),
    ("integration/coordinator", "integration/metrics", "integration/transport"),
    ("integration/page",),
    ("integration/spark",),
    ("integration/driver",),
    ("integration/audit", "integration/demo"),
    ("integration/cli",),
    ("integration/__init__.py",),
    ("integration/namespace",),  # installed as lowmark/__init__.py, above the folders
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


@dataclass(frozen=True)
class Arrow:
    """One import: a file and line of ours, the imported name, and the file of that name."""

    file: str
    line: int
    name: str
    target: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.name}"


def sources_of_the_product() -> dict[str, str]:
    """Path below the root -> text."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
        for layer in LAYERS
        for path in sorted((ROOT / layer).rglob("*.py"))
    }


def room_of(file: str) -> str:
    """Return the room of a file: the file itself if it has a floor of its own, else its folder."""
    return file if file in FLOOR else str(Path(file).parent)


def arrows(files: Mapping[str, str]) -> Iterator[Arrow]:
    """Every import of one file by another."""
    for file, text in files.items():
        for node in nodes(text):
            if isinstance(node, ast.Import):
                imported = [(alias.name, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                package = ["lowmark", *Path(file).parent.parts]
                base = ".".join([*package[: len(package) + 1 - node.level], *([node.module] if node.module else [])])
                base = base if node.level else node.module or ""
                imported = [(base, f"{base}.{alias.name}") for alias in node.names]
            else:
                continue
            for module, name in imported:
                target = file_of(name, files) or file_of(module, files)
                if target is not None and target != file:
                    yield Arrow(file, node.lineno, name, target)


def file_of(module: str, files: Mapping[str, str]) -> str | None:
    """The file of a module, by its dotted name."""
    path = module.removeprefix("lowmark.").replace(".", "/")
    return next((each for each in (f"{path}.py", f"{path}/__init__.py") if each in files), None)


def arrows_that_run_up(files: Mapping[str, str]) -> list[str]:
    """List the imports that do not point down, a sentence each."""
    wrong = []
    for arrow in arrows(files):
        room, target = room_of(arrow.file), room_of(arrow.target)
        if room == target or room not in FLOOR or target not in FLOOR:
            continue
        if FLOOR[target] >= FLOOR[room]:
            way = "up" if FLOOR[target] > FLOOR[room] else "sideways"
            wrong.append(
                f"{arrow}: {way} from {room} (floor {FLOOR[room]}) to {target} (floor {FLOOR[target]}). "
                "Hint: move what both need to a lower floor."
            )
    return wrong


def circles(files: Mapping[str, str]) -> list[str]:
    """Find loops of imports between files, also within a room: one sentence a loop."""
    known: dict[str, list[Arrow]] = {file: [] for file in files}
    for arrow in arrows(files):
        known[arrow.file].append(arrow)
    done, found = set[str](), []

    def visit(file: str, path: list[Arrow]) -> None:
        for arrow in known[file]:
            on_path = [each.file for each in path] + [file]
            if arrow.target in on_path:
                loop = [*path, arrow][on_path.index(arrow.target) :]
                found.append("; ".join(map(str, loop)))
            elif arrow.target not in done:
                visit(arrow.target, [*path, arrow])
        done.add(file)

    for file in files:
        if file not in done:
            visit(file, [])
    return found


def rooms_without_a_floor(files: Mapping[str, str]) -> list[str]:
    """Compare the table of floors with the folders."""
    rooms = {room_of(file) for file in files}
    return [
        *(
            f"{room} has no floor: give it one in FLOORS, above all that it imports"
            for room in sorted(rooms - set(FLOOR))
        ),
        *(f"{room} has a floor and is not there" for room in sorted(set(FLOOR) - rooms)),
    ]


@pytest.mark.parametrize("rule", [rooms_without_a_floor, arrows_that_run_up, circles])
def test_arrows_point_down(rule: Callable[[Mapping[str, str]], list[str]]) -> None:
    assert rule(sources_of_the_product()) == []


NOTHING = {
    "watermark/state.py": "",
    "watermark/splits/stream.py": "",
    "watermark/__init__.py": "",
    "sources/api.py": "",
}


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("watermark/a.py", "from lowmark.watermark.splits.stream import X", "up from watermark (floor 0) to"),
        ("watermark/a.py", "from .splits import stream", "watermark/a.py:1 imports lowmark.watermark.splits.stream"),
        ("watermark/tasks/a.py", "def f():\n    from lowmark.sources.api import Source", "a.py:2 imports"),
        ("watermark/tasks/a.py", "if TYPE_CHECKING:\n    import lowmark.sources.api", "(floor 4)"),
        ("watermark/splits/a.py", "from lowmark.watermark import Cap", "up from watermark/splits"),
        ("sources/kafka/a.py", "from lowmark.sources.files.source import FileSource", "sideways from sources/kafka"),
    ],
)
def test_an_arrow_that_runs_up_is_told_with_file_line_import_and_rooms(file: str, text: str, words: str) -> None:
    files = {**NOTHING, "sources/files/source.py": "", file: text}
    [wrong] = arrows_that_run_up(files)
    assert words in wrong


def test_a_circle_within_a_room_is_told_with_all_its_imports() -> None:
    files = {
        "sources/kafka/a.py": "from .b import x",
        "sources/kafka/b.py": "from . import c",
        "sources/kafka/c.py": "def f():\n    from .a import y",
        "sources/kafka/d.py": "from .a import x",
    }
    [loop] = circles(files)
    assert loop.split("; ") == [
        "sources/kafka/a.py:1 imports lowmark.sources.kafka.b.x",
        "sources/kafka/b.py:1 imports lowmark.sources.kafka.c",
        "sources/kafka/c.py:2 imports lowmark.sources.kafka.a.y",
    ]


def test_a_room_that_nobody_placed_is_told() -> None:
    files = {f"{room}/a.py" if not room.endswith(".py") else room: "" for room in FLOOR}
    assert rooms_without_a_floor(files) == []
    assert rooms_without_a_floor({**files, "sources/elsewhere/a.py": ""}) == [
        "sources/elsewhere has no floor: give it one in FLOORS, above all that it imports"
    ]
    del files["sources/kit/a.py"]
    assert rooms_without_a_floor(files) == ["sources/kit has a floor and is not there"]


WITHOUT_TESTS = ("commands", "drivers", "servers", "worlds")


def misplaced_tests(files: Iterable[str], rooms: frozenset[str]) -> list[str]:
    """List the files of tests that CONTRIBUTING.md would not lead to, a sentence each."""
    wrong = []
    for file in files:
        _, *folders, name = file.split("/")
        room = "/".join(folders)
        if folders[:1] and folders[0] in LAYERS and room not in rooms:
            wrong.append(f"{file}: the product has no room {room}/")
        if folders[:1] and folders[0] in WITHOUT_TESTS and name.startswith("test_"):
            wrong.append(f"{file}: tests/{folders[0]}/ has no tests; put it into the room of the product that it tests")
        if folders == ["live"] and name not in {"__init__.py", "conftest.py"} and not name.startswith("test_"):
            wrong.append(f"{file}: tests/live/ has only tests; {', '.join(WITHOUT_TESTS)} are for the rest")
    return wrong


def test_tests_are_in_the_rooms_of_the_product() -> None:
    folders = [path for layer in LAYERS for path in (ROOT / layer, *(ROOT / layer).rglob("*/"))]
    rooms = frozenset(str(path.relative_to(ROOT)) for path in folders)
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py")]
    assert misplaced_tests(files, rooms) == []


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("tests/sources/elsewhere/test_a.py", "the product has no room sources/elsewhere/"),
        ("tests/servers/test_a.py", "tests/servers/ has no tests"),
        ("tests/live/helper.py", "tests/live/ has only tests"),
    ],
)
def test_a_misplaced_test_is_told(file: str, words: str) -> None:
    [wrong] = misplaced_tests(
        [file, "tests/sources/kafka/test_a.py", "tests/live/test_b.py"], frozenset({"sources/kafka"})
    )
    assert wrong.startswith(f"{file}: ")
    assert words in wrong
