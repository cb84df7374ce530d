"""For every block of the pages, the test that runs it, or the reason why no test does.

A new block needs an entry here. The tests also check that the calls in all blocks exist and accept their arguments;
`tests/test_docs.py` checks commands and their options.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from lowmark.integration import LowWatermarkService
from lowmark.sources.pravega import PravegaSource
from lowmark.sources.spark.options import FormatOptions
from lowmark.watermark import WatermarkStrategy

from tests.snippets import ROOT, Block, block, blocks_of
from tests.test_docs import pages, unknown


@dataclass(frozen=True)
class Unrun:
    """A block that no test runs as it stands."""

    why: str


SETS_UP = Unrun("it sets up what all tests run in")
SERVES = Unrun(
    "it runs until it is ended: tests/live/test_serve.py and tests/integration/page/test_page.py start the same"
)
LOOKS = Unrun("the tutorial's test runs the same, of its stream; tests/integration/cli/test_cli.py has all their ways")
CHAIN = "tests/live/test_chain.py::test_the_chain_of_the_tutorial"
AUDITS = "tests/live/test_audit_kafka.py::test_the_commands_of_the_pages"
LINE = "tests/integration/test_snippets.py::test_one_line_is_all_that_changes"
READS = "tests/live/test_readme.py::test_reading_through_our_source_runs"
ADOPTS = "tests/integration/spark/test_adoption.py::test_what_the_pages_run"

# Page -> its blocks in order: (the beginning of the block, the test that runs it, or the reason why none does).
BLOCKS: dict[str, list[tuple[str, str | Unrun]]] = {
    "README.md": [
        ("-events = orders.withWatermark(", LINE),
        ("make venv && source", SETS_UP),
        (
            "delay  native Spark drops",
            "tests/test_docs.py::test_what_the_readme_shows_of_an_audit_is_what_an_audit_printed",
        ),
        ("make demo", Unrun("tests/integration/demo/test_demo.py runs `lowmark demo`, which is what it does")),
        ("The same rows, the same query", "tests/integration/demo/test_demo.py::test_the_readme_shows_these_figures"),
        ("make wheel && pip install", Unrun("tests/test_wheel.py makes it and installs it")),
        ("from lowmark import LowWatermarkService", "tests/live/test_readme.py::test_the_example_runs"),
        ("lowmark status ", LOOKS),
        ("from lowmark.sources.kafka import", READS),
        ("make check ", Unrun("tests/test_make.py and tests/test_docs.py know the targets")),
    ],
    "adopt.md": [
        ("-events = orders.withWatermark(", LINE),
        ("lowmark adopt /path/of/checkpoint --stream orders --stream", ADOPTS),
        ("from lowmark import adopt, leave", ADOPTS),
        ("spark.conf.set(", "tests/integration/test_snippets.py::test_sources_are_named_in_sparks_own_way"),
        (
            "lowmark offsets /path/of/old/checkpoint",
            "tests/integration/spark/test_checkpoint.py::test_a_new_query_beside_an_old_one_tears_no_window",
        ),
        (
            '{"orders": {"0": 12}}',
            "tests/integration/spark/test_checkpoint.py::test_a_new_query_beside_an_old_one_tears_no_window",
        ),
    ],
    "audit.md": [
        ("lowmark audit kafka ", AUDITS),
        (
            "from lowmark import audit_table",
            "tests/integration/audit/test_audit_docs.py::test_the_page_s_audit_of_a_table_runs",
        ),
        ("orders, 125,167 rows", "tests/integration/audit/test_audit_docs.py::test_the_page_shows_what_is_printed"),
        (
            "from lowmark import LowWatermarkService",
            "tests/integration/audit/test_audit_docs.py::test_the_page_s_watched_query_runs",
        ),
    ],
    "complete.md": [
        ("event time   10:00", Unrun("a drawing")),
        (
            "lowmark wait orders ",
            Unrun("tests/integration/spark/test_completion.py runs both commands, on other places"),
        ),
        ("10 * * * *  lowmark wait", Unrun("its command is checked below")),
        (
            "import lowmark",
            Unrun("tests/integration/driver/test_mark_done.py and test_completion.py call all three"),
        ),
        (
            "lowmark wait --checkpoint webhdfs:",
            Unrun("tests/live/test_hdfs.py runs the command, with the address of another HDFS"),
        ),
        ("orders = service.wrap(", "tests/integration/driver/test_mark_done.py::test_what_the_page_runs"),
        ("def write(rows, batch_id):", Unrun("tests/drivers/completion.py has this function")),
        ("def write(rows, batch_id):", Unrun("tests/drivers/completion.py has this function, too")),
    ],
    "connectors.md": [("import sqlite3", "tests/sources/test_readme_connector.py::test_it_is_short")],
    "how-it-works.md": [("┌── observe:", Unrun("a drawing"))],
    "jobs.md": [
        ("lowmark serve ", SERVES),
        ("lowmark serve --address 0.0.0.0:7461", SERVES),
        ("lowmark serve --address 0.0.0.0:7461", SERVES),
        ("livenessProbe:", Unrun("its command is checked below")),
    ],
    "kinesis.md": [
        ("from lowmark.sources.kinesis import", "tests/live/test_read_kinesis.py::test_what_the_page_shows")
    ],
    "metrics.md": [
        (
            "*/5 * * * *  lowmark check",
            "tests/integration/cli/test_cli_check.py::test_the_probe_of_the_page_leaves_a_stuck_driver_alone",
        )
    ],
    "operating.md": [
        ("lowmark status ", LOOKS),
        (
            "lowmark idle orders ",
            "tests/integration/driver/test_by_hand.py::test_the_command_line_marks_and_takes_back",
        ),
        (
            "lowmark set orders ",
            "tests/integration/driver/test_set_by_hand.py::test_the_command_line_sets_and_takes_back",
        ),
    ],
    "page.md": [
        ("lowmark page ", SERVES),
        ("LowWatermarkService(spark, page_port=8466)", Unrun("the tutorial's program has the same argument")),
    ],
    "pravega.md": [
        ("pip install ", Unrun("the extra is checked below; tests/test_wheel.py makes the wheel")),
        ("from lowmark.sources.pravega import", "tests/live/test_read_pravega.py::test_what_the_page_shows"),
        ("mvn dependency:copy-dependencies", Unrun("tests/servers/jars does the same, with the version checked below")),
        ("spark.readStream.format(", "tests/test_snippets.py::test_the_options_of_the_format_are_options"),
    ],
    "public.md": [("python -m tests.public", Unrun("tests/test_public.py compares what it would write"))],
    "read.md": [
        ("from lowmark.sources.kafka import", READS),
        (
            "from lowmark.sources.files import",
            "tests/live/test_readme.py::test_files_and_then_kafka_are_read_as_one_stream",
        ),
    ],
    "spark-versions.md": [
        ("export PYSPARK_DRIVER_PYTHON=", Unrun("needs YARN, which the page calls not tested")),
        ("FROM apache/spark:", Unrun("needs Kubernetes, which the page calls not tested")),
    ],
    "strategy.md": [("from lowmark.watermark import", "tests/test_docs.py::test_the_strategy_page_runs")],
    "tutorial.md": [
        ("make venv && source", SETS_UP),
        ("import json", CHAIN),
        ("lowmark audit kafka ", CHAIN),
        ("topic payments, 12,000 rows", CHAIN),
        ("from lowmark import LowWatermarkService", CHAIN),
        ("spark-submit --conf", Unrun("the test runs the program in its own session")),
        ("lowmark status payments", CHAIN),
        ("Stream payments: low watermark", CHAIN),
        ("import json", CHAIN),
        ("lowmark check payments", CHAIN),
        ("lowmark grafana --out monitoring", CHAIN),
        ("global: {scrape_interval", CHAIN),
        ("promtool check config", CHAIN),
        ("import json", CHAIN),
    ],
    "wrap.md": [
        ("-events = orders.withWatermark(", LINE),
        ("events = service.wrap(", "tests/integration/transport/test_late.py::test_what_the_page_runs"),
        ("events = service.wrap(", "tests/integration/transport/test_late.py::test_what_the_page_runs"),
    ],
}


def mismatches(page: str, found: list[Block], named: list[tuple[str, str | Unrun]]) -> list[str]:
    """List blocks without an entry, and entries without a block."""
    wrong = []
    for at in range(max(len(found), len(named))):
        if at >= len(named) or at >= len(found) or not found[at].begins.startswith(named[at][0].strip()):
            is_there = f"{page}:{found[at].line} {found[at].begins!r}" if at < len(found) else f"{page}: no block"
            wrong.append(f"{is_there}, expected {named[at][0] if at < len(named) else 'none'!r}")
            break  # the following ones are only shifted
    return wrong


def test_every_block_is_run_by_a_test_or_named_with_a_reason() -> None:
    wrong = []
    for page in pages():
        found = blocks_of(page.read_text(encoding="utf-8"))
        wrong += mismatches(page.name, found, BLOCKS.get(page.name, []))
    assert wrong == []
    assert set(BLOCKS) <= {page.name for page in pages()}
    new = blocks_of((ROOT / "README.md").read_text("utf-8") + "\n```python\nprint()\n```\n")
    assert mismatches("README.md", new, BLOCKS["README.md"]) != []  # the check can fail


@pytest.mark.parametrize("page", sorted(BLOCKS))
def test_who_runs_a_block_takes_it_from_its_page(page: str) -> None:
    for begins, how in BLOCKS[page]:
        if isinstance(how, Unrun):
            for path in re.findall(r"tests/[\w/.-]+", how.why):
                assert (ROOT / path).exists(), f"{page} {begins!r}: {how.why}"
            continue
        path, test = how.split("::")
        text = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"def {test}\b", text), f"{page} {begins!r}: there is no {how}"
        assert page in text, f"{page} {begins!r}: {path} does not read the page"


# -- the calls in snippets


SERVICE_METHODS = {"service": LowWatermarkService, "strategy": WatermarkStrategy}
KNOWN: dict[str, Any] = {"LowWatermarkService": LowWatermarkService, "WatermarkStrategy": WatermarkStrategy}


def imported(tree: ast.AST) -> dict[str, Any]:
    """Map names to the objects of lowmark that a program imports; an import of an unknown name raises."""
    names: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lowmark"):
            module = importlib.import_module(str(node.module))
            names |= {alias.asname or alias.name: getattr(module, alias.name) for alias in node.names}
    return names


def called(func: ast.expr, names: dict[str, Any]) -> tuple[Any, bool] | None:
    """Resolve a call of lowmark: (the object, whether it is a method of an instance); None for other calls."""
    if isinstance(func, ast.Name):
        return (names[func.id], False) if func.id in names else None
    if not isinstance(func, ast.Attribute):
        return None
    base = func.value
    if isinstance(base, ast.Name) and base.id in SERVICE_METHODS:
        return getattr(SERVICE_METHODS[base.id], func.attr), True
    if isinstance(base, ast.Name) and inspect.isclass(names.get(base.id)):
        return getattr(names[base.id], func.attr), False
    if isinstance(base, ast.Call) and (inner := called(base.func, names)) is not None:
        made = inner[0] if inspect.isclass(inner[0]) else WatermarkStrategy
        if inspect.isclass(inner[0]) or getattr(inner[0], "__qualname__", "").startswith("WatermarkStrategy."):
            return getattr(made, func.attr), True
    return None


def misused(code: str) -> list[str]:
    """List calls of lowmark in a program that would fail because of their name or their arguments."""
    tree = ast.parse(code)
    names = {**KNOWN, **imported(tree)}
    wrong = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        try:
            found = called(node.func, names)
        except AttributeError as missing:
            wrong.append(str(missing))
            continue
        if found is None:
            continue
        function, on_object = found
        given = [None] * (len(node.args) + on_object)
        keywords = {each.arg: None for each in node.keywords if each.arg is not None}
        try:
            inspect.signature(function).bind(*given, **keywords)
        except TypeError as refused:
            wrong.append(f"{ast.unparse(node.func)}: {refused}")
    return wrong


def is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def test_what_snippets_call_is_there_and_takes_what_it_is_given() -> None:
    wrong, seen = [], 0
    for page in pages():
        for each in blocks_of(page.read_text(encoding="utf-8")):
            lines = "\n".join(line[1:] for line in each.text.splitlines()) if each.language == "diff" else each.text
            programs = [lines] if is_python(lines) else [line for line in lines.splitlines() if is_python(line)]
            assert each.language != "python" or programs == [each.text], f"{page.name}:{each.line} is no Python"
            seen += len(programs)
            wrong += [f"{page.name}:{each.line}: {what}" for code in programs for what in misused(code)]
    assert wrong == []
    assert seen > 20
    assert misused("service.wrap(orders, name='orders', event_tim='ts', split='p')") != []  # the check can fail
    assert misused("WatermarkStrategy.for_monotonous_timestamps().with_idlenes('1 minute')") != []
    assert misused("service.raed(orders)") != []


def inline() -> Iterator[tuple[str, str]]:
    """Yield (page, code) of all code in backticks within sentences."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for each in blocks_of(text):
            text = text.replace(each.text, "")
        for code in re.findall(r"`([^`\n]+)`", text):
            yield page.name, code


def test_what_sentences_call_is_there() -> None:
    wrong = []
    for page, code in inline():
        if is_python(code) and re.match(r"(service\.|WatermarkStrategy\.|LowWatermarkService\()", code):
            # A sentence leaves arguments out.
            wrong += [(page, code, what) for what in misused(code) if "missing a required" not in what]
    assert wrong == []


def test_the_commands_within_sentences_are_commands() -> None:
    written = [(page, code) for page, code in inline() if re.match(r"lowmark [a-z]", code)]
    assert len(written) > 20
    assert [(page, code, what) for page, code in written if (what := unknown(shlex.split(code)[1:]))] == []


def test_the_commands_of_probes_are_commands() -> None:
    [command] = re.findall(r"command: \[([^]]+)\]", block("jobs.md", "livenessProbe:"))
    program, *words = (word.strip(' "') for word in command.split(","))
    assert program == "lowmark"
    assert unknown(words) is None
    [command] = re.findall(r"\* +lowmark (.+?) \|\|", block("metrics.md", "*/5 * * * *"))
    assert unknown(shlex.split(command)) is None


def test_the_options_of_the_format_are_options() -> None:
    text = block("pravega.md", "spark.readStream.format(")
    [name] = re.findall(r"\.format\(\"(\w+)\"\)", text)
    given = dict(re.findall(r"\.option\(\"(\w+)\", \"([^\"]*)\"\)", text))
    assert text.rstrip().endswith(".load()")
    assert is_python(f"({text})")
    source = FormatOptions.read(name, given).source
    assert isinstance(source, PravegaSource)
    assert len(given) == 5


def test_what_is_installed_is_what_is_tested() -> None:
    extras = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for page in pages():
        for extra in re.findall(r"(?:lowmark|\.whl\))\[(\w+)\]", page.read_text(encoding="utf-8")):
            assert re.search(rf"^{extra} = \[", extras, re.MULTILINE), f"{page.name}: {extra}"
    [version] = re.findall(r"pravega-client ([\d.]+)", block("pravega.md", "mvn dependency"))
    jars = (ROOT / "tests" / "servers" / "jars" / "pravega-client.xml").read_text(encoding="utf-8")
    assert f"<artifactId>pravega-client</artifactId><version>{version}</version>" in jars
