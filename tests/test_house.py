"""The rules of the house, checked like any other behaviour.

A rule is a function from the text of a file to a list of its faults. Each rule first has to fail on a bad snippet;
then the real files have to pass it.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYERS = ("watermark", "sources", "integration")  # imports point to the left
MAX_LINES = 1_000

Rule = Callable[[str, str], list[str]]  # (path below ROOT, text) -> faults


# --- the files ---


def project_files() -> list[str]:
    """List the files for a commit; without git (an unpacked archive) the files that `make clean` keeps."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0 and listed.stdout:
        names = [name for name in listed.stdout.split("\0") if name]
    else:
        made = {".git", ".venv", ".cache", "build", "dist", "__pycache__", ".hypothesis"}
        found = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
        names = [
            path.as_posix()
            for path in found
            if not any(part in made or part.endswith(("_cache", ".egg-info")) for part in path.parts)
        ]
    return sorted(name for name in set(names) if (ROOT / name).is_file())


def text_of(name: str) -> str | None:
    """The text of a file; None for a binary one."""
    try:
        return (ROOT / name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def modules() -> list[str]:
    """Every Python file of the three folders."""
    return [name for name in project_files() if name.startswith(LAYERS) and name.endswith(".py")]


@functools.cache
def parsed(text: str) -> ast.Module:
    """Parse a file of Python, once for all rules."""
    return ast.parse(text)


@functools.cache
def nodes(text: str) -> tuple[ast.AST, ...]:
    """All nodes of a file's syntax tree."""
    return tuple(ast.walk(parsed(text)))


# --- the rules ---


def imports(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, absolute dotted name) of every import in the file; relative imports as `lowmark.` names."""
    package = ("lowmark", *Path(path).parent.parts)
    for node in nodes(text):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) + 1 - node.level]) if node.level else []
            base += [node.module] if node.module else []
            for alias in node.names:
                yield node.lineno, ".".join([*base, alias.name])


def imports_point_one_way(path: str, text: str) -> list[str]:
    """watermark <- sources <- integration, and no import of a folder by its bare name."""
    layer = Path(path).parts[0]
    wrong = []
    for line, name in imports(path, text):
        top, _, rest = name.partition(".")
        if top in LAYERS:
            wrong.append(f"{path}:{line} imports {name} by its folder; use lowmark.{name}")
        elif top == "lowmark":
            target = rest.partition(".")[0]
            if target not in LAYERS or LAYERS.index(target) > LAYERS.index(layer):
                wrong.append(f"{path}:{line} imports {name}; {layer} may not know of it")
    return wrong


def the_core_is_pure(path: str, text: str) -> list[str]:
    """watermark/ knows Python, numpy, sortedcontainers and msgspec; no clock, thread, socket, log, process or file."""
    if not path.startswith("watermark/"):
        return []
    effects = {
        "time", "threading", "_thread", "logging", "socket", "asyncio", "concurrent", "multiprocessing", "queue",
        "selectors", "signal", "subprocess", "os", "io", "pathlib", "shutil", "tempfile", "urllib", "http", "random",
    }  # fmt: skip
    allowed = (set(sys.stdlib_module_names) - effects) | {"numpy", "sortedcontainers", "msgspec", "lowmark"}
    wrong = [
        f"{path}:{line} imports {name}; the core has no effects, pass the value in"
        for line, name in imports(path, text)
        if name.partition(".")[0] not in allowed
    ]
    for node in nodes(text):
        if isinstance(node, ast.Attribute) and node.attr in {"now", "utcnow", "today"}:
            if ast.unparse(node.value).endswith(("datetime", "date")):
                wrong.append(f"{path}:{node.lineno} reads the clock; take now_us instead")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"open", "print"}:
            wrong.append(f"{path}:{node.lineno} calls {node.func.id}; the core has no effects")
    return wrong


def spark_in_one_room_of_sources(path: str, text: str) -> list[str]:
    """sources/ imports pyspark in sources/spark/ only; the core never does."""
    if path.startswith("sources/spark/") or not path.startswith(("watermark/", "sources/")):
        return []
    return [
        f"{path}:{line} imports {name}; pyspark belongs in sources/spark/ or integration/"
        for line, name in imports(path, text)
        if name.partition(".")[0] in {"pyspark", "py4j"}
    ]


# path -> the reason why it may sleep
MAY_SLEEP = {
    "tests/servers/local.py": "wait_until, the one polling helper",
}


def no_test_sleeps(path: str, text: str) -> list[str]:
    """A test waits for a condition, with a deadline, or uses a virtual clock."""
    if not path.startswith("tests/") or path in MAY_SLEEP or "sleep" not in text:
        return []
    wrong = []
    for node in nodes(text):
        if isinstance(node, ast.ImportFrom) and any(alias.name == "sleep" for alias in node.names):
            wrong.append(f"{path}:{node.lineno} imports sleep; use tests.servers.local.wait_until")
        if isinstance(node, ast.Attribute) and node.attr == "sleep":
            wrong.append(f"{path}:{node.lineno} sleeps; use tests.servers.local.wait_until")
    return wrong


def readable_in_one_sitting(path: str, text: str) -> list[str]:
    """No file of ours is longer than MAX_LINES lines; data files may be."""
    if not path.endswith((".py", ".md", ".toml", "Makefile", ".sh")):
        return []
    count = len(text.splitlines())
    return [f"{path} has {count} lines, {MAX_LINES} at most; split it"] if count > MAX_LINES else []


# Written in pieces, because this file has to pass its own rule.
MACHINE = re.compile(
    r"(?<![\w.:/-])/(?:" + "|".join(["ro" + "ot", "wo" + "rk", "fa" + "rm", "ho" + "me", "Us" + "ers"]) + r")/[\w.]"
)
REGISTRIES = re.compile(
    "|".join(
        re.escape(".".join(parts))
        for parts in [
            ("pypi", "org"), ("pythonhosted", "org"), ("repo1", "maven"), ("repo", "maven", "apache"),
            ("maven", "org"), ("deb", "debian", "org"), ("archive", "ubuntu"), ("registry", "npmjs"),
            ("proxy", "golang"), ("crates", "io"), ("files", "pythonhosted"),
        ]
    )
)  # fmt: skip


LONG = 400


def a_long_file_says_why(path: str, text: str) -> list[str]:
    """A file of the product with more lines than `LONG` says in its docstring why it is one file."""
    described = ast.get_docstring(parsed(text)) or ""
    if text.count("\n") <= LONG or re.search(r"^One file, because \w", described, re.MULTILINE):
        return []
    return [f'{path} has more than {LONG} lines; split it, or end its docstring with "One file, because ..."']


def no_machine_and_no_registry(path: str, text: str) -> list[str]:
    """No file names the machine of an author or a package registry."""
    return [
        f"{path}:{number} names a machine's path or a registry's host: {found[0]}"
        for number, line in enumerate(text.splitlines(), 1)
        for pattern in (MACHINE, REGISTRIES)
        if (found := pattern.search(line))
    ]


def public_names_are_described(path: str, text: str) -> list[str]:
    """A module has a docstring, and each of its classes and functions whose name has no underscore."""
    tree = parsed(text)
    wrong = [] if ast.get_docstring(tree) or not text.strip() else [f"{path} has no docstring"]
    for node in tree.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if not node.name.startswith("_") and not ast.get_docstring(node):
            wrong.append(f"{path}:{node.lineno} {node.name} is public and has no docstring")
    return wrong


def one_logger(path: str, text: str) -> list[str]:
    """The package logs through the logger "lowmark", whose filter escapes names that come from outside."""
    wrong = []
    for node in nodes(text):
        if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith("getLogger"):
            continue
        # `getLogger()` without a name is the root logger, which the command line configures.
        if [ast.unparse(name) for name in node.args] not in (["'lowmark'"], []):
            wrong.append(f'{path}:{node.lineno} has a logger of its own; use logging.getLogger("lowmark")')
    return wrong


# Former name -> present name. A method that overrides a former name would never be called.
RENAMED = {"reached_us": "claim_us", "promises": "claims"}


def one_word_a_thing(path: str, text: str) -> list[str]:
    """No method, attribute or argument has a former name of `RENAMED`."""
    wrong = []
    for node in nodes(text):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name = node.name
        elif isinstance(node, ast.Attribute):
            name = node.attr
        elif isinstance(node, ast.keyword):
            name = node.arg or ""
        else:
            continue
        if name in RENAMED:
            wrong.append(f"{path}:{getattr(node, 'lineno', 0)} says {name}; today it is {RENAMED[name]}")
    return wrong


def one_version(path: str, text: str) -> list[str]:
    """The version stands in pyproject.toml only; the code asks importlib.metadata."""
    if path.startswith("tests/") or not path.endswith(".py"):
        return []
    written = re.compile(r"^\s*_{0,2}version_{0,2}\s*(?::[^=]+)?=\s*[\"']\d", re.IGNORECASE | re.MULTILINE)
    return [f"{path} writes a version; use importlib.metadata.version('lowmark')"] if written.search(text) else []


def examples_compile(path: str, text: str) -> list[str]:
    """The code blocks that a page marks as python compile."""
    if not path.endswith(".md"):
        return []
    wrong = []
    for block in re.finditer(r"^( *)```python\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE):
        line = text.count("\n", 0, block.start()) + 2
        try:
            compile("\n" * (line - 1) + re.sub(f"^{block[1]}", "", block[2], flags=re.MULTILINE), path, "exec")
        except SyntaxError as error:
            wrong.append(f"{path}:{error.lineno} is not Python: {error.msg}")
    return wrong


PYTHON_RULES: dict[Rule, list[tuple[str, str]]] = {
    # rule -> (path, text) that it must refuse
    imports_point_one_way: [
        ("watermark/a.py", "from lowmark.sources import Source"),
        ("watermark/a.py", "def f():\n    import lowmark.integration.driver.service"),
        ("watermark/a.py", "from lowmark import integration"),
        ("watermark/a.py", "from ..sources import api"),
        ("sources/a.py", "from lowmark.integration.transport.driver_rpc import call"),
        ("sources/deep/a.py", "from ...integration import rpc"),
        ("sources/a.py", "import watermark"),
        ("integration/a.py", "from watermark.state import SplitState"),
    ],
    the_core_is_pure: [
        ("watermark/a.py", "import time"),
        ("watermark/a.py", "from threading import Lock"),
        ("watermark/a.py", "def f():\n    import logging"),
        ("watermark/a.py", "import socket as s"),
        ("watermark/a.py", "import pandas"),
        ("watermark/a.py", "from pyspark.sql import DataFrame"),
        ("watermark/a.py", "from datetime import datetime\nx = datetime.now()"),
        ("watermark/a.py", "import datetime\nx = datetime.datetime.utcnow()"),
        ("watermark/a.py", "print('x')"),
    ],
    spark_in_one_room_of_sources: [
        ("sources/kafka.py", "from pyspark.sql import Row"),
        ("sources/kafka.py", "def f():\n    import pyspark.sql.datasource"),
    ],
    no_test_sleeps: [
        ("tests/a.py", "import time\ntime.sleep(1)"),
        ("tests/a.py", "from time import sleep"),
        ("tests/a.py", "import time as t\nt.sleep(1)"),
        ("tests/a.py", "import asyncio\nasync def f():\n    await asyncio.sleep(1)"),
    ],
    public_names_are_described: [
        ("watermark/a.py", '"""x."""\ndef f(): ...'),
        ("sources/a.py", '"""x."""\nclass C: ...'),
        ("sources/a.py", "x = 1"),
    ],
    one_logger: [
        ("integration/a.py", "import logging\nlog = logging.getLogger(__name__)"),
        ("sources/a.py", "from logging import getLogger\nlog = getLogger('lowmark.sources')"),
    ],
    one_word_a_thing: [
        ("sources/a.py", "class P:\n    def reached_us(self): ..."),
        ("integration/a.py", "x = stream.promises"),
        ("integration/a.py", "Stream(promises=True)"),
    ],
    a_long_file_says_why: [
        ("sources/a.py", '"""x."""\n' + "x = 1\n" * LONG),
        ("sources/a.py", '"""x."""\n# One file, because x.\n' + "x = 1\n" * LONG),
    ],
    one_version: [
        ("integration/a.py", '__version__ = "0.1.0"'),
        ("integration/a.py", "VERSION: str = '1.2'"),
    ],
}
TEXT_RULES: dict[Rule, list[tuple[str, str]]] = {
    readable_in_one_sitting: [("sources/a.py", "x = 1\n" * (MAX_LINES + 1))],
    no_machine_and_no_registry: [
        ("README.md", "see /ro" + "ot/.cache"),
        ("Makefile", "JARS = /wo" + "rk/jars"),
        ("a.json", '{"path": "/ho' + 'me/someone/x"}'),
        ("constraints.txt", "--index-url https://py" + "pi.org/simple"),
        ("pom.xml", "<url>https://repo1.ma" + "ven.org/maven2</url>"),
    ],
    examples_compile: [("README.md", "text\n```python\nx = = 1\n```\n")],
}


def label(rule: Rule) -> str:
    return rule.__name__


@pytest.mark.parametrize("rule", [*PYTHON_RULES, *TEXT_RULES], ids=label)
def test_every_rule_can_fail(rule: Rule) -> None:
    for path, text in {**PYTHON_RULES, **TEXT_RULES}[rule]:
        assert rule(path, text), f"{rule.__name__} let pass, in {path}: {text[:200]}"


@pytest.mark.parametrize("rule", [rule for rule in PYTHON_RULES if rule is not no_test_sleeps], ids=label)
def test_the_package_keeps_the_rule(rule: Rule) -> None:
    assert [
        problem for problems in (rule(name, text_of(name) or "") for name in modules()) for problem in problems
    ] == []


def test_no_test_sleeps() -> None:
    tests = [name for name in project_files() if name.startswith("tests/") and name.endswith(".py")]
    assert [
        problem for problems in (no_test_sleeps(name, text_of(name) or "") for name in tests) for problem in problems
    ] == []
    assert [name for name in MAY_SLEEP if name not in tests] == []


@pytest.mark.parametrize("rule", TEXT_RULES, ids=label)
def test_every_file_keeps_the_rule(rule: Rule) -> None:
    texts = {name: text for name in project_files() if (text := text_of(name)) is not None}
    assert [problem for problems in (rule(name, text) for name, text in texts.items()) for problem in problems] == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (
            "watermark/a.py",
            "import numpy as np\nfrom sortedcontainers import SortedList\nfrom .state import X",
        ),
        ("sources/a.py", "from lowmark.watermark import WatermarkStrategy\nfrom . import api"),
        (
            "integration/a.py",
            "import time\nfrom lowmark.sources.kafka import KafkaSource\nfrom .rpc import call",
        ),
        ("watermark/a.py", "from datetime import timedelta\nx = timedelta(1).days"),
    ],
)
def test_the_rules_let_good_imports_pass(path: str, text: str) -> None:
    rules: list[Rule] = [imports_point_one_way, the_core_is_pure, spark_in_one_room_of_sources]
    assert [problem for problems in (rule(path, text) for rule in rules) for problem in problems] == []


# --- packaging ---


def toml_value(text: str, key: str) -> str:
    """Return a value of pyproject.toml as written, a list up to its bracket (Python 3.10 has no tomllib)."""
    found = re.search(rf"^\"?{re.escape(key)}\"? = (\[.*?\]|.*?)$", text, re.MULTILINE | re.DOTALL)
    assert found, f"pyproject.toml has no {key}"
    return found[1]


def test_every_package_folder_is_installed_and_typed() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    declared = set(re.findall(r"\"(lowmark[.\w]*)\"", toml_value(text, "packages")))
    folders = {Path(name).parent for name in modules()} - {Path("integration/namespace")}
    # These two stand above the folders: the file that hands names on, and the files for Grafana.
    assert declared - {"lowmark", "lowmark.grafana"} == {"lowmark." + ".".join(folder.parts) for folder in folders}
    assert [str(folder) for folder in folders if not (ROOT / folder.parts[0] / "py.typed").exists()] == []


def test_the_installed_version_is_the_one_of_pyproject() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    written = re.match(r"\"([^\"]+)\"", toml_value(text, "version"))
    assert written
    assert importlib.metadata.version("lowmark") == written[1]


def test_the_installed_package_is_this_checkout() -> None:
    """Otherwise the tests would test another copy."""
    assert Path(importlib.import_module("lowmark.watermark").__path__[0]).resolve() == ROOT / "watermark"


def test_every_requirement_has_a_reason_and_an_exact_version() -> None:
    pins = re.findall(r"^([A-Za-z0-9-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    required = importlib.metadata.requires("lowmark") or []
    names = {re.split(r"[^\w.-]", each, maxsplit=1)[0].lower().replace("_", "-") for each in required}
    assert names
    assert names <= {pin.lower() for pin in pins}
