"""A checkpoint that is not on this machine's file system: native, adopted and left, on a real HDFS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from lowmark import adopt, leave
from lowmark.integration.errors import AdoptionRefused
from lowmark.integration.spark.checkpoint_store import HadoopStore
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.integration.feed import Feed, start
from tests.integration.test_adopted_queries import COUNTED, PHASES, counted_windows, expected_windows, in_turns, native
from tests.live.hdfs_server import hdfs_server

pytestmark = [pytest.mark.live, pytest.mark.slow]


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with hdfs_server(tmp_path_factory.mktemp("hdfs")) as address:
        yield address


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    return Feed(spark, tmp_path / "feed")


def test_windows_in_turns(spark: SparkSession, hdfs: str, feed: Feed) -> None:
    rows, dropped = in_turns(spark, feed, counted_windows, f"{hdfs}/windows", through=spark)
    assert sorted(rows) == expected_windows(COUNTED)
    assert dropped == [1, 0, 0, 0, 0]


def test_a_command_that_is_cut_short_is_gone_on_with_and_undone(
    spark: SparkSession, hdfs: str, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = f"{hdfs}/cut"
    ran = start(counted_windows(native(feed.df)), checkpoint)
    for batch in PHASES[0][:2]:
        feed.put(*batch)
        ran.settle()
    ran.query.stop()
    with pytest.raises(AdoptionRefused, match=r"call lowmark\.adopt\('hdfs:.*spark=spark\)"):
        adopt(checkpoint, "orders", stopped=True)

    store = HadoopStore(spark, checkpoint)
    entries = {name: store.read(f"offsets/{name}") for name in store.names("offsets")}
    assert not adopt(checkpoint, "orders", spark=spark, stopped=True, dry_run=True).done
    write, writes = HadoopStore.write, 0
    with monkeypatch.context() as patched:

        def stopped(self: HadoopStore, path: str, text: str) -> None:
            nonlocal writes
            write(self, path, text)
            writes += 1
            if writes == 2:
                raise KeyboardInterrupt

        patched.setattr(HadoopStore, "write", stopped)
        with pytest.raises(KeyboardInterrupt):
            adopt(checkpoint, "orders", spark=spark, stopped=True)
    with pytest.raises(StreamingQueryException, match="lowmark is changing this checkpoint and was stopped"):
        start(counted_windows(native(feed.df)), checkpoint).query.awaitTermination(60)

    assert adopt(checkpoint, "orders", spark=spark).done, "the same command goes on"
    assert {name: store.read(f"offsets/{name}") for name in entries} != entries
    assert adopt(checkpoint, spark=spark, stopped=True, undo=True).done
    assert {name: store.read(f"offsets/{name}") for name in entries} == entries
    assert leave(checkpoint, spark=spark, stopped=True).why_nothing is not None
