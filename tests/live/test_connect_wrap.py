"""The tests of `wrap` through a real Connect server in another process; this process is its client.

Each test of `MODULES` that has a session runs here once more, with the session of a client and, by `feed.start`, with
queries of a client, but for those of `NOT`, whose reasons stand there. `make test` has those of `test_wrap`. All:

    LOWMARK_CONNECT=all python -m pytest -v tests/live/test_connect_wrap.py
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

import pytest
from lowmark.integration import LowWatermarkService
from lowmark.integration.errors import StreamNameTaken
from pyspark.errors import StreamingQueryException

from tests.integration import feed as feeds
from tests.integration import test_day_one
from tests.integration.conftest import feed  # noqa: F401  # a fixture, as the next two
from tests.integration.driver import test_by_hand, test_pitfalls, test_stateful, test_wrap
from tests.integration.driver.test_by_hand import ran  # noqa: F401
from tests.integration.feed import Feed
from tests.integration.spark import test_refusals
from tests.integration.test_day_one import rocksdb  # noqa: F401
from tests.servers.connect import connect_server, start_through_connect
from tests.servers.local import no_thread_stays, wait_until
from tests.sparks import since

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.slow, since("4.2", "splits measured in the JVM")]

MODULES = (test_wrap, test_by_hand, test_day_one, test_pitfalls, test_refusals, test_stateful)
_PYTHON = "a strategy with Python of the user's is refused for a client"
_LATER = "the reader does not wait for its client, so a report may be in the second heartbeat after it"
_WAITS = "it waits for queries, and not for the client's answers"
_READ = "`read` is refused for a client"
NOT = {
    "test_a_timestamp_assigner_and_a_generator_in_python": _PYTHON,
    "test_a_batch_of_heartbeats_alone_is_not_one_that_was_not_measured": _PYTHON,
    "test_a_batch_that_is_read_in_part_is_not_measured_and_that_is_told": _PYTHON,
    "test_a_batch_that_the_users_own_threads_read_is_measured_if_they_know_it": _PYTHON,
    "test_a_task_that_computes_several_partitions_counts_the_rows_of_all": _PYTHON,
    "test_values_that_python_does_not_have_end_no_query": _PYTHON,
    "test_several_sinks_from_one_wrapped_stream": _WAITS,
    "test_pitfall_15_and_17_every_split_is_reported_whatever_foreach_batch_does": _WAITS,
    "test_pitfall_44_without_the_service_the_watermark_holds_and_the_query_lives": _WAITS,
    "test_pitfall_06_append_mode_starts_and_columns_taken_before_still_resolve": "a client does not resolve `df.v`",
    "test_pitfall_16_a_batch_that_nobody_computed_holds_the_watermark": "the function of foreachBatch is a copy there",
    "test_pitfall_25_missed_progress_is_filled_in_from_the_history": "it changes classes of a driver's session",
    "test_pitfall_35_trigger_once_moves_the_watermark_in_the_next_run": "the report waits in the checkpoint, unseen",
    "test_pitfall_48_a_checkpoint_of_another_kind_of_query_is_said_once_as_it_is": _READ,
    "test_pitfall_50_a_stream_of_another_session_is_heard": "a client hears of the queries of its own session",
    "test_wrong_arguments_of_read": _READ,
    "test_an_assigner_that_returns_nonsense": _PYTHON,
    "test_pitfall_10_joined_streams_agree_again_after_a_restart": "its splits have no names, so the new service holds "
    "for a grace: a client does not see the report in the checkpoint",
    "test_pitfall_11_the_policy_max_with_two_streams": "a client does not see the policy that the checkpoint keeps",
    "test_a_restart_with_other_split_columns_is_refused_and_the_reason_comes_first": "below, with the first batch",
    "test_a_name_is_taken_while_a_query_reads_it_and_free_again_when_it_ended": "below, after the first batch",
    "test_a_query_started_after_its_service_was_stopped": "the reader does not ask the service; it names the silence",
    "test_the_report_of_a_batch_is_in_the_next_heartbeat": _LATER,
    "test_a_checkpoint_of_before_the_last_report_loses_no_row": "a client leaves no last report in the checkpoint",
}


def through_connect(module: ModuleType) -> Iterator[tuple[str, object]]:
    """Yield the tests and fixtures of a module that run here."""
    for name, value in vars(module).items():
        test = name.startswith("test_") and inspect.isfunction(value)
        if test and name not in NOT and {"spark", "service", "feed", "ran"} & {*inspect.signature(value).parameters}:
            yield name, value


for each in MODULES if os.environ.get("LOWMARK_CONNECT") == "all" else MODULES[:1]:
    globals().update(through_connect(each))


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of a client. Python's functions of Spark are those of a client meanwhile."""
    from pyspark.logger import PySparkLogger
    from pyspark.sql.connect.session import SparkSession as ClientSession

    with connect_server(tmp_path_factory.mktemp("connect")) as (_, port), pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        patch.setattr(PySparkLogger, "addHandler", logging.Logger.addHandler)  # as in tests/conftest.py
        for module in (feeds, *MODULES):
            if hasattr(module, "start"):
                patch.setattr(module, "start", start_through_connect)
        session = ClientSession.builder.remote(f"sc://127.0.0.1:{port}").create()
        yield cast("SparkSession", session)
        session.stop()


@pytest.fixture
def service(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[LowWatermarkService]:
    port = 0 if request.function.__module__ == test_by_hand.__name__ else None
    with LowWatermarkService(spark, metrics_port=port, page_port=port) as service:
        yield service
        for query in spark.streams.active:
            query.stop()


def test_a_test_that_is_left_out_exists() -> None:
    known = {name for module in MODULES for name in vars(module)}
    assert set(NOT) <= known, "a test was renamed"


def test_other_split_columns_than_in_the_checkpoint_are_refused_with_the_first_batch(
    service: LowWatermarkService,
    feed: Feed,  # noqa: F811  # pytest gives the fixture
    checkpoint: str,
) -> None:
    feed.put(("a", 1, 100))
    before = start_through_connect(service.wrap(feed.df, **test_refusals.GOOD).select("v"), checkpoint)
    before.settle()
    before.query.stop()
    changed = test_refusals.GOOD | {"name": "again", "split": ["split", "v"]}
    after = start_through_connect(service.wrap(feed.df, **changed).select("v"), checkpoint)
    feed.put(("a", 1, 200))
    told = r'stream "again": its splits are told by \(split string, v int\), and in the checkpoint by \(split string\)'
    with pytest.raises(StreamingQueryException, match=told):
        after.query.awaitTermination(60)


def test_a_name_is_taken_once_a_query_has_had_a_batch(
    service: LowWatermarkService,
    feed: Feed,  # noqa: F811  # pytest gives the fixture
    checkpoint: str,
) -> None:
    feed.put(("a", 1, 100))
    reading = start_through_connect(service.wrap(feed.df, **test_refusals.GOOD).select("v"), checkpoint)
    reading.settle()
    with pytest.raises(StreamNameTaken, match='"orders": this service already has a stream of that name'):
        service.wrap(feed.df, **test_refusals.GOOD)
    reading.query.stop()


def test_a_failed_service_ends_its_queries_and_closes_its_socket(
    spark: SparkSession,
    feed: Feed,  # noqa: F811  # pytest gives the fixture
    checkpoint: str,
) -> None:
    dead = LowWatermarkService(spark)
    df = dead.wrap(feed.df, name="orders", event_time="ts", split="split")
    feed.put(("a", 1, 100))
    reading = start_through_connect(df.select("v"), checkpoint)
    reading.settle()
    with no_thread_stays("lowmark-door"):
        dead._loop.post(lambda: 1 / 0)
        wait_until(lambda: dead.failed is not None, "the loop has ended")
        dead.stop()  # at once, as `with` does
        feed.put(("a", 1, 200))
        with pytest.raises(StreamingQueryException, match="ZeroDivisionError"):
            reading.query.awaitTermination(30)
        wait_until(lambda: not Path(dead.address.removeprefix("unix:")).exists(), "no query needs its answer")
