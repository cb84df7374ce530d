"""Servers for the live tests, one of each for the whole run. Topics are per test: `kafka.create_topic()`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.servers import Broker, kafka_broker, require_binary, require_jars


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker for all tests. A test that stops or kills one takes its own: `with kafka_broker(tmp_path)`."""
    with kafka_broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka_jars() -> list[Path]:
    """The jars of Spark's Kafka connector: on the class path of `spark` when they are here; this insists."""
    return require_jars("spark-kafka")


@pytest.fixture(scope="session")
def prometheus_binary() -> Path:
    return require_binary("prometheus")


@pytest.fixture(scope="session")
def promtool_binary() -> Path:
    return require_binary("promtool")
