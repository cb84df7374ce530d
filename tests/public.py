"""Writes docs/public.txt, which lists what lowmark promises to keep, and docs/status.schema.json.

Run `python -m tests.public` after a public name has changed, read the difference, and tell it in CHANGELOG.md.
`tests/test_public.py` fails until that is done. Starts no JVM.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lowmark
import lowmark.sources
import msgspec
import typer
from lowmark.integration.cli.main import app
from lowmark.integration.cli.schema import status_schema
from lowmark.integration.metrics.collector import StreamCollector
from lowmark.sources.spark.options import FORMATS
from lowmark.watermark.splits.snapshot import VERSION

from tests.golden import values
from tests.golden.write import batch
from tests.test_grafana import SUFFIXES, NoRuns

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "docs" / "public.txt"
SCHEMA = ROOT / "docs" / "status.schema.json"
_HEAD = "What lowmark promises to keep; docs/public.md says how. Made by `python -m tests.public`, from the code."
# For the names that users call most, the list has arguments and methods, too.
_IN_DETAIL = (
    "lowmark.LowWatermarkService", "lowmark.WatermarkStrategy", "lowmark.adopt", "lowmark.audit_table", "lowmark.leave",
    "lowmark.ship", "lowmark.sources.SimpleSource", "lowmark.sources.check_source",
    "lowmark.sources.files.FileSource", "lowmark.sources.generator.GeneratorSource",
    "lowmark.sources.hybrid.HybridSource", "lowmark.sources.kafka.KafkaSource", "lowmark.sources.kinesis.KinesisSource",
    "lowmark.sources.pravega.PravegaSource",
)  # fmt: skip
_WITH_METHODS = ("lowmark.LowWatermarkService", "lowmark.WatermarkStrategy", "lowmark.sources.SimpleSource")
_SETTINGS = ("for_", "no_", "with_", "without_")  # of a strategy; its other methods are for the code below it
# Where the keys of `--json` are written beside the command's own file.
_KEYS_ELSEWHERE = {
    "audit": ["watermark/replay/report.py"],
    "demo": ["integration/demo/result.py"],
    "status": ["integration/cli/show_coordinator.py", "integration/cli/show_streams.py"],
}


def modules() -> list[str]:
    """Every module whose `__all__` is public, by name."""
    rooms = [f"lowmark.sources.{each.name}" for each in pkgutil.iter_modules(lowmark.sources.__path__) if each.ispkg]
    return [
        "lowmark",
        "lowmark.integration",
        "lowmark.sources",
        "lowmark.sources.formats",
        *sorted(rooms),
        "lowmark.watermark",
    ]


def names() -> Iterator[str]:
    """Public names, by module."""
    for module in modules():
        exported = getattr(importlib.import_module(module), "__all__", ())
        yield from (f"{module}.{name}" for name in sorted(exported))


def _arguments(function: Any) -> str:
    called = function.__init__ if inspect.isclass(function) else function
    parameters = [each for each in inspect.signature(called).parameters.values() if each.name != "self"]
    return ", ".join(str(each.replace(annotation=each.empty, default=each.empty)) for each in parameters)


def arguments() -> Iterator[str]:
    """Arguments of what users call most, in their order, and methods and properties."""
    for path in _IN_DETAIL:
        module, _, name = path.rpartition(".")
        found = getattr(importlib.import_module(module), name)
        if name not in ("WatermarkStrategy", "SimpleSource"):  # one is made by its `for_...`, the other inherited from
            yield f"{path}({_arguments(found)})"
        if path not in _WITH_METHODS:
            continue
        room = found.__module__.rpartition(".")[0]
        own = {each for kind in found.__mro__ if kind.__module__.startswith(f"{room}.") for each in vars(kind)}
        for member in sorted(each for each in own if not each.startswith("_")):
            called = getattr(found, member)  # a class method as its caller has it
            if inspect.isfunction(called) or inspect.ismethod(called):
                if name != "WatermarkStrategy" or member.startswith(_SETTINGS):
                    yield f"{path}.{member}({_arguments(called)})"
            elif isinstance(called, property) and name != "WatermarkStrategy":
                yield f"{path}.{member}"


def commands() -> Iterator[str]:
    """Commands, their arguments, options and exit codes."""

    def walk(name: str, command: Any) -> Iterator[str]:
        inner = getattr(command, "commands", None) or {}
        if not inner:
            codes = re.findall(r"\b(\d+) [a-z]", command.epilog or "")
            words = [
                word
                for each in command.params
                for word in ([each.name.upper()] if each.param_type_name == "argument" else each.opts)
            ]
            yield f"{name} {' '.join(words)}; exit codes {' '.join(codes)}"
        for word, each in sorted(inner.items()):
            yield from walk(f"{name} {word}", each)

    yield from walk("lowmark", typer.main.get_command(app))


def _written_keys(path: Path) -> set[str]:
    """The keys of all dictionaries that functions of a file write out, but for those that are only looked up."""
    functions = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.FunctionDef)]
    nodes = [node for function in functions for node in ast.walk(function)]
    looked_up = [node.value for node in nodes if isinstance(node, ast.Attribute | ast.Subscript)]
    return {
        key.value
        for node in nodes
        if isinstance(node, ast.Dict) and node not in looked_up
        for key in node.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and key.value.isidentifier()
    }


def _any_stream() -> Any:
    """A status that has every key."""
    return defaultdict(_any_stream)


def json_keys() -> Iterator[str]:
    """Keys of `--json` by the command's file; docs/status.schema.json has those of a stream in `lowmark status`."""
    folder = ROOT / "integration" / "cli"
    for command in sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith(("show_", "schema"))):
        paths = [folder / f"{command}.py", *(ROOT / each for each in _KEYS_ELSEWHERE.get(command, []))]
        found = set().union(*(_written_keys(path) for path in paths))
        if command == "check":
            found |= set(importlib.import_module("lowmark.integration.cli.check")._json(_any_stream(), "moving"))
        if found:
            yield f"{'every command' if command == 'common' else command}: {' '.join(sorted(found))}"


def metrics() -> Iterator[str]:
    """Metrics with their kind and labels, as Prometheus gets them."""
    for family in sorted(StreamCollector(NoRuns()).collect(), key=lambda each: each.name):
        suffix = "" if family.type == "histogram" else SUFFIXES[family.type][0]
        labels = ", ".join(getattr(family, "_labelnames", ()))
        yield f"{family.name}{suffix}{{{labels}}} {family.type}"


def checkpoint() -> Iterator[str]:
    """The keys and the versions of what a checkpoint holds."""
    heartbeat = {**values.FIRST_HEARTBEAT.to_json(), **values.heartbeat("names", "").to_json(), "split": None}
    yield f"offset of a heartbeat: {' '.join(sorted(heartbeat))}; state version {VERSION}"
    yield f"last report of a run: {' '.join(sorted(msgspec.json.decode(msgspec.json.encode(values.FAREWELL))))}"
    yield f"offset of a source: {' '.join(sorted(batch('generator')))}"
    for kind, source in sorted(values.KEPT.items()):
        split, state = source.split_serializer.version, source.enumerator_state_serializer.version
        yield f"{kind}: split version {split}, enumerator version {state}"


CHAPTERS = {
    "Names": names,
    "Arguments": arguments,
    "Commands": commands,
    "Keys of --json": json_keys,
    "Metrics": metrics,
    "Formats of readStream": lambda: iter(sorted(FORMATS)),
    "Checkpoint": checkpoint,
}


def listed() -> str:
    """The whole list, as it stands in docs/public.txt."""
    parts = [f"{title}\n" + "".join(f"    {line}\n" for line in lines()) for title, lines in CHAPTERS.items()]
    return "\n".join([f"{_HEAD}\n", *parts])


def schema() -> str:
    """The JSON Schema of `lowmark status --json`, as it stands in docs/status.schema.json."""
    return json.dumps(status_schema(), indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write both files."""
    LIST.write_text(listed(), encoding="utf-8")
    SCHEMA.write_text(schema(), encoding="utf-8")


if __name__ == "__main__":
    main()
