"""Errors in a Python process of Spark's: the user reads the one line that matters.

What ends such a process reaches the user as text, by default the traceback of everything that led to it, thousands of
characters whose last line says what happened. Spark can leave it out (its own `hideTraceback`, told to the process by
an environment variable); then the error's own words stand in the first line of the `StreamingQueryException`.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from lowmark.watermark import LowmarkError

__all__ = ["briefly", "hide_traceback", "saying_briefly"]

P = ParamSpec("P")
ResultT = TypeVar("ResultT")

_log = logging.getLogger("lowmark")


def hide_traceback() -> None:
    """Have Spark hand on the words alone of the error that ends this process."""
    os.environ["SPARK_HIDE_TRACEBACK"] = "1"


@contextmanager
def saying_briefly() -> Iterator[None]:
    """Let Spark hand on the words of an error of ours alone; its traceback goes to this process's log.

    For what Spark calls in a process that ends with the error: a data source's planner, or a task. Other errors are
    nobody's words, and keep their traceback.
    """
    try:
        yield
    except LowmarkError as error:
        _log.error("%s", type(error).__name__, exc_info=error)
        hide_traceback()
        raise


def briefly(method: Callable[P, ResultT]) -> Callable[P, ResultT]:
    """As `saying_briefly`, for a method that is no generator."""

    @functools.wraps(method)
    def said(*args: P.args, **kwargs: P.kwargs) -> ResultT:
        with saying_briefly():
            return method(*args, **kwargs)

    return said
