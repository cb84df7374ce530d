"""Short errors of Spark's Python processes.

An error that ends such a process reaches the user as text, by default with the whole traceback, thousands of
characters with the reason in the last line. Without the traceback (Spark's own `hideTraceback`), the error's text is in
the first line of the `StreamingQueryException`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from lowmark.watermark import LowmarkError

_log = logging.getLogger("lowmark")


def hide_traceback() -> None:
    """Let Spark pass on only the text of the error that ends this process."""
    os.environ["SPARK_HIDE_TRACEBACK"] = "1"


@contextmanager
def saying_briefly() -> Iterator[None]:
    """Let Spark pass on only the text of our own errors; their tracebacks go to this process's log.

    A decorator for calls of Spark in a process that ends with the error, such as a data source's planner; a task, whose
    reader is a generator, enters it. Other errors keep their tracebacks, because their texts are not written for users.
    """
    try:
        yield
    except LowmarkError as error:
        _log.error("%s", type(error).__name__, exc_info=error)
        hide_traceback()
        raise
