"""Short errors of Spark's Python processes, with only the important line.

An error that ends such a process reaches the user as text, by default with the whole traceback, thousands of
characters with the reason in the last line. Spark can leave the traceback out (its own `hideTraceback`, set by an
environment variable of the process); then the error's text is in the first line of the `StreamingQueryException`.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from lowmark.watermark import LowmarkError

P = ParamSpec("P")
ResultT = TypeVar("ResultT")

_log = logging.getLogger("lowmark")


def hide_traceback() -> None:
    """Let Spark pass on only the text of the error that ends this process."""
    os.environ["SPARK_HIDE_TRACEBACK"] = "1"


@contextmanager
def saying_briefly() -> Iterator[None]:
    """Let Spark pass on only the text of our own errors; their tracebacks go to this process's log.

    For calls of Spark in a process that ends with the error: a data source's planner, or a task. Other errors keep
    their tracebacks, because their texts are not written for users.
    """
    try:
        yield
    except LowmarkError as error:
        _log.error("%s", type(error).__name__, exc_info=error)
        hide_traceback()
        raise


def briefly(method: Callable[P, ResultT]) -> Callable[P, ResultT]:
    """Wrap a method that is no generator in `saying_briefly`."""

    @functools.wraps(method)
    def said(*args: P.args, **kwargs: P.kwargs) -> ResultT:
        with saying_briefly():
            return method(*args, **kwargs)

    return said
