"""The pages: they build without a warning, all of them can be reached, and their picture is what its command draws."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
MOST_LINES_OF_README = 180


def build(folder: Path, docs: Path = DOCS) -> subprocess.CompletedProcess[str]:
    """`mkdocs build --strict` of these pages, into a folder."""
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    config = config.replace("docs_dir: docs", f"docs_dir: {docs}").replace("[docs/", f"[{DOCS}/")
    (folder / "mkdocs.yml").write_text(config, encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(folder / "mkdocs.yml")]
    return subprocess.run(
        [*command, "--site-dir", str(folder / "site")], cwd=ROOT, capture_output=True, text=True, check=False
    )


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
    assert "&gt;&gt;&gt;" in built["reference"]  # examples stay sessions,
    assert "<blockquote>" not in built["reference"]  # which Markdown would take for quotations


def test_a_link_to_nowhere_fails(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    for page in DOCS.glob("*.md"):
        (docs / page.name).write_text(page.read_text(encoding="utf-8"), encoding="utf-8")
    (docs / "pictures").symlink_to(DOCS / "pictures")
    (docs / "wrap.md").write_text("[there](nowhere.md)", encoding="utf-8")
    done = build(tmp_path, docs)
    assert done.returncode != 0
    assert "nowhere.md" in done.stderr


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


def test_the_readme_is_read_in_one_sitting() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= MOST_LINES_OF_README


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
