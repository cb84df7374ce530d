"""A checkpoint outside this machine's file system: native, adopted and left, on a real HDFS and through S3A."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lowmark import adopt, completion, leave
from lowmark.integration.errors import AdoptionRefused, CheckpointUnwritable
from lowmark.integration.spark.checkpoint_store import HadoopStore
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.integration.feed import Feed, start, us
from tests.integration.spark.test_adopted_queries import (
    END,
    PHASES,
    counted_windows,
    expected_windows,
    in_turns,
    native,
)
from tests.integration.spark.test_completion import Written
from tests.servers.hdfs import hdfs_server
from tests.servers.s3 import s3a
from tests.sparks import since

pytestmark = [pytest.mark.live, pytest.mark.slow]
S3A = since("4.2", "Hadoop 3.5, of which the S3A here is,")
BOTH = pytest.mark.parametrize("place", ["hdfs", pytest.param("bucket", marks=S3A)])


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with hdfs_server(tmp_path_factory.mktemp("hdfs")) as server:
        yield server.address


@pytest.fixture(scope="module")
def s3(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    with s3a(spark, tmp_path_factory.mktemp("s3")) as found:
        yield found


@pytest.fixture
def bucket(s3: tuple[str, Path]) -> str:
    return s3[0]


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    return Feed(spark, tmp_path / "feed")


def ran_native(feed: Feed, checkpoint: str) -> None:
    """Run a native query for two batches; the second has no rows, and takes the watermark of the first."""
    ran = start(counted_windows(native(feed.df)), checkpoint)
    feed.put(*PHASES[0][0])
    ran.settle()
    ran.query.stop()


def writing(then: Callable[[int], None]) -> Callable[[HadoopStore, str, str], None]:
    """Return a `HadoopStore.write` that calls `then` with the number of files written so far."""
    write, writes = HadoopStore.write, 0

    def written(store: HadoopStore, path: str, text: str) -> None:
        nonlocal writes
        write(store, path, text)
        writes += 1
        then(writes)

    return written


# The batches of a native, a wrapped and again a native query; in the wrapped one "slow" is three minutes behind.
STAYS = [PHASES[0][:2], PHASES[1], [PHASES[2][0], END]]


@BOTH
def test_windows_in_turns(spark: SparkSession, request: pytest.FixtureRequest, place: str, feed: Feed) -> None:
    """Adopted and left once there; `test_adopted_queries` has more turns, on local files."""
    checkpoint = f"{request.getfixturevalue(place)}/windows"
    rows, dropped = in_turns(spark, feed, counted_windows, checkpoint, phases=STAYS, through=spark)
    fed = [row for batches in STAYS for batch in batches for row in batch]
    assert sorted(rows) == expected_windows([row for row in fed if row not in END])
    assert dropped == [0, 0, 0]


@BOTH
def test_how_far_the_sink_is_complete_is_read_there(
    spark: SparkSession, request: pytest.FixtureRequest, place: str, tmp_path: Path
) -> None:
    checkpoint = f"{request.getfixturevalue(place)}/complete"
    written, store = Written(tmp_path / "cp", with_state=True), HadoopStore(spark, checkpoint)
    written.plan(9, 200, in_force=100)
    written.commit(9)
    (written.folder / "state/0/1.delta").write_text("state")
    for file in written.folder.rglob("*"):
        if file.is_file():
            store.write(str(file.relative_to(written.folder)), file.read_text())
    found = completion(checkpoint, "orders", spark=spark)
    assert (found.until_us, found.batch_id) == (us(100), 9)
    assert found.age_seconds < 600


@BOTH
def test_a_command_that_is_cut_short_is_gone_on_with_and_undone(
    spark: SparkSession, request: pytest.FixtureRequest, place: str, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = f"{request.getfixturevalue(place)}/cut"
    ran_native(feed, checkpoint)
    with pytest.raises(AdoptionRefused, match=r"call lowmark\.adopt\('(hdfs|s3a):.*spark=spark\)"):
        adopt(checkpoint, "orders", stopped=True)

    store = HadoopStore(spark, checkpoint)
    entries = {name: store.read(f"offsets/{name}") for name in store.names("offsets")}
    assert not adopt(checkpoint, "orders", spark=spark, stopped=True, dry_run=True).done
    with monkeypatch.context() as patched:

        def cut(writes: int) -> None:
            if writes == 2:
                raise KeyboardInterrupt

        patched.setattr(HadoopStore, "write", writing(cut))
        with pytest.raises(KeyboardInterrupt):
            adopt(checkpoint, "orders", spark=spark, stopped=True)
    with pytest.raises(StreamingQueryException, match="lowmark is changing this checkpoint and was stopped"):
        start(counted_windows(native(feed.df)), checkpoint).query.awaitTermination(60)

    assert adopt(checkpoint, "orders", spark=spark).done, "the same command goes on"
    assert {name: store.read(f"offsets/{name}") for name in entries} != entries
    assert adopt(checkpoint, spark=spark, stopped=True, undo=True).done
    assert {name: store.read(f"offsets/{name}") for name in entries} == entries
    assert leave(checkpoint, spark=spark, stopped=True).why_nothing is not None


@BOTH
def test_a_folder_is_moved_and_in_a_bucket_what_was_left_of_it(
    spark: SparkSession, request: pytest.FixtureRequest, place: str
) -> None:
    """In a bucket a folder is renamed object by object, so both folders exist for a while."""
    store = HadoopStore(spark, f"{request.getfixturevalue(place)}/moved")
    log = {name: f"offset {name}" for name in ("0", "1", "2")}
    for name, text in log.items():
        store.write(f"sources/1/{name}", text)
    store._files.mkdirs(store._path("sources/2"))  # as a query refused at its start does
    store.move("sources/1", "sources/2")
    assert {name: store.read(f"sources/2/{name}") for name in store.names("sources/2")} == log

    store.write("sources/3/0", "offs")
    if place == "hdfs":
        with pytest.raises(CheckpointUnwritable, match="sources/3 is there already"):
            store.move("sources/2", "sources/3")
        assert store.names("sources") == ["2", "3"]
    else:
        store.move("sources/2", "sources/3")
        assert store.names("sources") == ["3"]
        assert {name: store.read(f"sources/3/{name}") for name in store.names("sources/3")} == log


@S3A
def test_in_a_bucket_no_entry_is_missing_at_any_moment(spark: SparkSession, s3: tuple[str, Path], feed: Feed) -> None:
    """A rename there is a copy, and deletes an existing target first: Spark would start a batch too early."""
    bucket, log = s3
    checkpoint = f"{bucket}/whole"
    ran_native(feed, checkpoint)
    asked = len(log.read_text().splitlines())
    assert adopt(checkpoint, "orders", spark=spark, stopped=True).done
    assert leave(checkpoint, spark=spark, stopped=True).done
    changing = re.findall(r'"(PUT|DELETE|POST) (\S+)', "\n".join(log.read_text().splitlines()[asked:]))
    replaced = [path for method, path in changing if method == "PUT" and "/offsets/" in path]
    assert len(replaced) == 6, f"of two entries, the newest twice, in each command: {changing}"
    assert {method for method, _ in changing} == {"PUT"}, changing
