"""The rows of the demos on Kinesis and Pravega (examples/), written to real servers without the demo's queries."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from types import ModuleType

import pytest
from lowmark.integration.cli.main import app
from lowmark.integration.demo.feed import TICKS_PER_BATCH, demo_script
from lowmark.sources.pravega.client import client_of

from tests.servers.kinesis import Kinesis
from tests.servers.pravega import JARS, Pravega
from tests.worlds.pravega_reading import Reading, events_of

SEED = 42
SCRIPT = demo_script(SEED, start_us=0)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import a program of examples/; its command stays out of the command line of later tests."""
    monkeypatch.setattr(app, "registered_commands", list(app.registered_commands))
    return lambda name: importlib.import_module(f"examples.{name}")


def test_each_split_has_a_segment_of_its_own_and_the_stream_is_deleted(
    pravega: Pravega, example: Callable[[str], ModuleType]
) -> None:
    feed = example("demo_pravega").PravegaFeed(SCRIPT, SEED, controller=pravega.controller, jars=JARS)
    source = pravega.source(feed._stream, scope="lowmark-demo")
    with feed, closing(Reading(source)) as reading:
        events = {feed.name(split): events_of(table) for split, table in reading.batch().items()}
    assert {name: [json.loads(event)["number"] for event in those] for name, those in events.items()} == {
        split.name: list(range(SCRIPT.count_rows(split.name, 0, TICKS_PER_BATCH))) for split in SCRIPT.splits
    }
    assert not client_of(replace(pravega.settings, scope="lowmark-demo")).exists(feed._stream)


@pytest.mark.parametrize("stream", [None, "kept"])
def test_first_rows_that_cannot_be_put_leave_no_stream_but_one_that_is_kept(
    kinesis: Kinesis, example: Callable[[str], ModuleType], stream: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = example("demo_kinesis")
    feed = module.KinesisFeed(SCRIPT, SEED, endpoint=kinesis.url, region="eu-west-1", stream=stream)
    monkeypatch.setattr(feed, "_put_all", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError), feed:
        pass
    if stream is None:
        with pytest.raises(kinesis.client.exceptions.ResourceNotFoundException):
            kinesis.client.describe_stream_summary(StreamName=feed._stream)
    else:
        kinesis.client.delete_stream(StreamName=stream)  # an error if there is none
