"""Imports the names of a package at their first use, because Spark waits for processes that need few of the names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def at_first_use(package: str, places: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package.

    Args:
        places: module below the package -> the names that the module has.

    >>> found = at_first_use("lowmark.watermark", {"duration": ("duration_us",)})
    >>> found("duration_us")("1 second", what="delay")
    1000000
    """

    def find(name: str) -> Any:
        for module, names in places.items():
            if name in names:
                found = getattr(import_module(f"{package}.{module}"), name)
                setattr(sys.modules[package], name, found)
                return found
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
