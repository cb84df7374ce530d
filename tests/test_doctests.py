"""Runs the examples in all docstrings under the installed names.

`--doctest-modules` would not do: pytest imports a second copy of each module by its path, and the classes of the two
copies are unequal.
"""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

PACKAGES = ("lowmark.watermark", "lowmark.sources", "lowmark.integration")
EXAMPLES = [
    example
    for package in PACKAGES
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")
    for example in doctest.DocTestFinder().find(importlib.import_module(module.name))
    if example.examples
]


@pytest.mark.parametrize("package", PACKAGES)
def test_there_are_examples(package: str) -> None:
    assert any(example.name.startswith(package) for example in EXAMPLES)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name.removeprefix("lowmark."))
def test_example(example: doctest.DocTest) -> None:
    lines: list[str] = []
    # clear_globs=False: the module keeps its names for the other examples
    result = doctest.DocTestRunner().run(example, out=lines.append, clear_globs=False)
    assert result.failed == 0, "".join(lines)
