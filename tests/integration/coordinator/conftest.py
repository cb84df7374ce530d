"""A folder for sockets, for all tests of the coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.coordinator.serving import private_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    with private_folder() as made:
        yield made
