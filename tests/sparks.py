"""Which Spark the tests run on, where it matters to one of them: `make test SPARK=4.0.5`."""

from __future__ import annotations

from collections.abc import Callable, Sized

import pyspark
import pytest
from lowmark.sources.spark.versions import PASSES_LIMITS, major_minor

__all__ = ["OBSERVES", "run_to_the_end", "since"]


def since(version: str, what: str) -> pytest.MarkDecorator:
    """A mark for a test of something that older Sparks have not; it is skipped there, and says what.

    >>> since("4.2", "named sources").kwargs["reason"]
    'Spark has named sources since 4.2'
    """
    older = major_minor(pyspark.__version__) < major_minor(version)
    return pytest.mark.skipif(older, reason=f"Spark has {what} since {version}")


def run_to_the_end(run: Callable[[], None], seen: Sized) -> None:
    """Run a plain stream of ours with AvailableNow until all is seen: one run, or one a batch on Spark 4.0 and 4.1."""
    before = -1
    while len(seen) > before:
        before = len(seen)
        run()
        if PASSES_LIMITS:
            return


OBSERVES = since("4.2", "the aggregate with which a service's audit observes splits")
