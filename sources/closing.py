"""Closes what was opened for work that raises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def closed_on_error(close: Callable[[], object]) -> Iterator[None]:
    """Close what was opened if the work with it raises. An error of the closing is dropped: the first says more."""
    try:
        yield
    except BaseException:
        with suppress(Exception):
            close()
        raise
