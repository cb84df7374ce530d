"""Which Spark the tests run on, where it matters to one of them: `make test SPARK=4.0.5`."""

from __future__ import annotations

import pyspark
import pytest
from lowmark.sources.spark.versions import major_minor

__all__ = ["since"]


def since(version: str, what: str) -> pytest.MarkDecorator:
    """A mark for a test of something that older Sparks have not; it is skipped there, and says what.

    >>> since("4.2", "named sources").kwargs["reason"]
    'Spark has named sources since 4.2'
    """
    older = major_minor(pyspark.__version__) < major_minor(version)
    return pytest.mark.skipif(older, reason=f"Spark has {what} since {version}")
