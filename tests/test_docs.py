"""The pages build without a warning, all pages can be reached, and the picture equals the output of its command."""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
import sys
from collections.abc import Collection
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import lowmark
import pytest
import typer
from lowmark.integration.cli.main import app
from lowmark.sources.spark.options import FORMATS
from lowmark.watermark import WatermarkStrategy

from tests import hashes
from tests.test_house import project_files

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
MOST_LINES_OF_README = 180
MOST_LINES_OF_ARCHITECTURE = 150


def build(folder: Path, docs: Path = DOCS) -> subprocess.CompletedProcess[str]:
    """Run `mkdocs build --strict` on these pages, into a folder."""
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    config = config.replace("docs_dir: docs", f"docs_dir: {docs}").replace("[docs/", f"[{DOCS}/")
    (folder / "mkdocs.yml").write_text(config, encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(folder / "mkdocs.yml")]
    return subprocess.run(
        [*command, "--site-dir", str(folder / "site")], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_the_pages_build_strictly_and_need_no_internet(tmp_path: Path) -> None:
    done = build(tmp_path)
    assert done.returncode == 0, done.stderr
    pages = {page.stem for page in DOCS.glob("*.md")}
    built = {page.stem: page.read_text(encoding="utf-8") for page in (tmp_path / "site").glob("*.html")}
    assert pages <= set(built)
    fetched = [
        (name, address)
        for name, page in built.items()
        for address in re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"(https?:[^\"]+)", page)
    ]
    assert fetched == []
    assert "&gt;&gt;&gt;" in built["reference"]  # doctests stay sessions;
    assert "<blockquote>" not in built["reference"]  # Markdown would make quotations of them


def test_what_a_program_imports_is_in_the_reference() -> None:
    listed = re.findall(r"^::: lowmark\.(\S+)$", (DOCS / "reference.md").read_text(encoding="utf-8"), re.MULTILINE)
    names = {name for name in lowmark.__all__ if not name.startswith("_")}
    assert names - {path.rpartition(".")[2] for path in listed} == set()
    sources = re.findall(r"^\| `lowmark\.(\S+)` \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(sources) > 4
    assert set(sources) - set(listed) == set()


def test_a_link_to_nowhere_fails(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    for page in DOCS.glob("*.md"):
        (docs / page.name).write_text("# A page\n", encoding="utf-8")
    (docs / "wrap.md").write_text("[there](nowhere.md)", encoding="utf-8")
    done = build(tmp_path, docs)
    assert done.returncode != 0
    assert "nowhere.md" in done.stderr


def test_every_source_is_on_the_pages_that_list_sources() -> None:
    readme, read = ((ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/read.md"))
    for name in FORMATS:
        package = f"lowmark.sources.{name.removeprefix('lowmark_')}"
        assert f"`{name}`" in read or f'"{name}"' in read
        assert f"`{package}." in read
        assert f"`{package}." in readme or f"`{name}`" in readme, package


def test_every_page_is_in_the_menu() -> None:
    menu = set(re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert menu == {page.name for page in DOCS.glob("*.md")}


def test_links_of_the_pages_beside_the_house_lead_somewhere() -> None:
    broken = [
        (page.name, target)
        for page in (ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md")
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
        if not (ROOT / target).exists()
    ]
    assert broken == []


def missing_files(text: str, files: Collection[str]) -> list[str]:
    """List the files and folders that a page names and the project lacks; a name may leave out its first folders.

    Names that begin with `lowmark/` are in a checkpoint, and names with three capitals are placeholders.
    """
    paths = [f"/{file}" for file in files]
    named = [
        each for each in re.findall(r"`([\w.*/-]+)`", text) if "/" in each or each.endswith(".py") or "test_" in each
    ]
    return [
        each
        for each in named
        if not each.startswith("lowmark/") and not re.search("[A-Z]{3}", each)
        if not any(fnmatch(path, f"*/{each.rstrip('/')}{end}") for path in paths for end in ("", "*.py", "/*"))
    ]


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_file_that_the_hallway_names_is_there(page: str) -> None:
    text, files = (ROOT / page).read_text(encoding="utf-8"), project_files()
    assert missing_files(text, files) == []
    wrong = "`driver/stream_runs.py` `sources/elsewhere/` `test_nothing*`"
    assert missing_files(text + wrong, files) == wrong.replace("`", "").split()  # the check can fail


def test_the_hallway_is_read_in_one_sitting() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()) <= MOST_LINES_OF_ARCHITECTURE


def test_the_readme_is_read_in_one_sitting() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= MOST_LINES_OF_README


def test_what_the_readme_shows_of_an_audit_is_what_an_audit_printed() -> None:
    """Another test compares the whole page with the output of the command."""
    shown = re.search(r"<!-- from docs/audit.md -->\n```\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert shown is not None
    table, *rest = shown[1].split("\n\n")
    page = (DOCS / "audit.md").read_text(encoding="utf-8")
    assert [part for part in rest if part.strip() not in page] == []
    figures = [re.findall(r"[\w.,-]*\d[\w.,-]*", line.replace("5 more", "")) for line in table.splitlines()[1:]]
    assert all(
        any(all(figure.rstrip(",") in line for figure in row) for line in page.splitlines()) for row in figures
    ), table
    assert len(figures) == 2


def pages() -> list[Path]:
    """The README and every page of docs/."""
    return [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]


def commands(program: str) -> list[tuple[str, list[str]]]:
    """Find the program's commands on a line of their own: (place, words); text after two spaces explains them."""
    found = []
    for page in pages():
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            if match := re.match(rf"(?: {{4}}|\$ ){program} (.+?)(?: {{2,}}|$)", line):
                found.append((f"{page.name}:{number}", shlex.split(match[1].removesuffix("\\"))))
    return found


@functools.cache
def command_line() -> Any:
    """The command line with all its commands and options, made once."""
    return typer.main.get_command(app)


def unknown(words: list[str]) -> str | None:
    """Return the first word of a `lowmark` command that the command line does not know."""
    command = command_line()
    for at, word in enumerate(words):
        inner = getattr(command, "commands", None)
        if inner is None:
            known = {name for option in command.params for name in [*option.opts, *option.secondary_opts]}
            return next(
                (each for each in words[at:] if each.startswith("--") and each.split("=")[0] not in known), None
            )
        if word not in inner:
            return word
        command = inner[word]
    return None


def test_every_command_of_the_pages_is_one() -> None:
    written = commands("lowmark")
    assert len(written) > 4
    assert [(where, what) for where, words in written if (what := unknown(words))] == []
    assert unknown(["serve", "--adress", "unix:/tmp/x"]) == "--adress"  # the check can fail
    assert unknown(["statsu"]) == "statsu"


def test_every_target_of_the_pages_is_one() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    written = commands("make")
    assert len(written) > 4
    assert [(where, words) for where, words in written if words[0] not in targets] == []


def placeholders(text: str) -> list[str]:
    """Find lines that still wait for a figure or a table, such as a lone TABLE."""
    return re.findall(r"^[^\w\n]*[A-Z]{3,}[^\w\n]*$", text, re.MULTILINE)


def test_no_page_has_a_placeholder() -> None:
    found = [(page.name, line) for page in pages() for line in placeholders(page.read_text(encoding="utf-8"))]
    assert found == []
    assert placeholders("as multiples of it:\n\nTABLE\n\nWhat follows") == ["TABLE"]  # the check can fail


def test_the_strategy_page_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "strategy.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "strategy.md", "exec"), names)
    strategy = names["strategy"]
    assert isinstance(strategy, WatermarkStrategy)
    assert (strategy.out_of_orderness_us, strategy.idle_timeout_us) == (10_000_000, 60_000_000)


def test_the_strategy_page_has_every_setting() -> None:
    page = (DOCS / "strategy.md").read_text(encoding="utf-8")
    settings = {name for name in vars(WatermarkStrategy) if name.startswith(("for_", "with_", "no_watermarks"))}
    assert {name for name in settings if f"`{name}" not in page and f".{name}" not in page} == set()


@pytest.mark.parametrize("picture", sorted((DOCS / "pictures").glob("*.svg")), ids=lambda path: path.name)
def test_a_picture_is_what_its_command_draws(picture: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, DOCS / "pictures.py", "--out", tmp_path], check=True)
    assert (tmp_path / picture.name).read_text(encoding="utf-8") == picture.read_text(encoding="utf-8")


def test_the_picture_and_the_demo_lose_the_same_rows() -> None:
    lost = re.search(r"in windows +125,167 +[\d,]+ +([\d,]+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    drawn = (DOCS / "pictures" / "problem.svg").read_text(encoding="utf-8")
    assert lost is not None
    assert f"native Spark: {lost[1]} rows dropped" in drawn
    assert "lowmark: no row dropped" in drawn


def test_each_promise_of_security_md_names_tests_that_there_are() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| What ")]
    assert len(rows) > 12
    assert [row for row in rows if "::test_" not in row.rpartition(" | ")[2]] == []
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", text)
    assert text.count("::test_") == len(named)
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not re.search(rf"^def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert missing == []
    assert "(SECURITY.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_pin_has_its_hashes_and_none_is_left_over() -> None:
    """Run `python -m tests.hashes` after a pin has changed."""
    pinned = hashes.pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    text = hashes.HASHED.read_text(encoding="utf-8")
    assert hashes.pins(text) == pinned
    assert len(re.findall(r"\\\n    --hash=sha256:[0-9a-f]{64}", text)) >= len(pinned)
    assert not re.search(r"==[^\n]*[^\\\n]\n", text), "a pin without a hash"
    assert "://" not in text
    tools = hashes.TOOLS.read_text(encoding="utf-8")
    assert {pin.partition("==")[0] for pin in hashes.pins(tools)} == {"pip", "setuptools", "wheel", "packaging"}
    assert hashes.pins(tools).items() <= pinned.items()
