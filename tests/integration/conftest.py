"""Fixtures for the tests of the Spark binding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.feed import Feed

if TYPE_CHECKING:
    from lowmark.integration import LowWatermarkService
    from pyspark.sql import SparkSession


@pytest.fixture
def service(spark: SparkSession) -> Iterator[LowWatermarkService]:
    """A service for one test; the queries of the test end before the service."""
    from lowmark.integration import LowWatermarkService

    with LowWatermarkService(spark) as service:
        yield service
        for query in spark.streams.active:
            query.stop()


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    """A stream of (split string, v int, ts timestamp)."""
    return Feed(spark, tmp_path / "feed")
