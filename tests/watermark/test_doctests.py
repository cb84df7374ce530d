"""Every example in a docstring is run, also when only ``tests`` is collected."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import lowmark.watermark
import pytest

MODULES = sorted(module.name for module in pkgutil.iter_modules(lowmark.watermark.__path__))


@pytest.mark.parametrize("name", ["", *MODULES])
def test_examples_in_docstrings_run(name: str) -> None:
    module = importlib.import_module("lowmark.watermark" + (f".{name}" if name else ""))

    assert doctest.testmod(module).failed == 0


def test_every_public_name_is_exported_once_and_described() -> None:
    exported = lowmark.watermark.__all__

    assert len(exported) == len(set(exported))
    for name in exported:
        item = getattr(lowmark.watermark, name)
        assert isinstance(item, int) or getattr(item, "__doc__", None), f"{name} has no docstring"
