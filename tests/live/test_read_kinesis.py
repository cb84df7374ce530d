"""`LowWatermarkService.read` and the format `lowmark_kinesis` on a Kinesis server, as a user sees them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from lowmark.integration import LowWatermarkService
from lowmark.integration.transport.driver_rpc import Client, StatusRequest
from lowmark.sources.spark import register
from lowmark.watermark import WatermarkStrategy, format_time_us
from pyspark.sql import SparkSession

from tests.servers.http_proxy import proxied
from tests.servers.kinesis import Kinesis
from tests.servers.local import wait_until
from tests.servers.tcp_proxy import tcp_proxied
from tests.snippets import block, read_all
from tests.sources.kinesis.test_kinesis_packets import aggregated, packet
from tests.sparks import run_to_the_end
from tests.worlds.kinesis_reading import Writer, source_of

pytestmark = [pytest.mark.live]

STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds")
THROTTLED = 400, "ProvisionedThroughputExceededException"


@pytest.fixture
def service(spark: SparkSession) -> Iterator[LowWatermarkService]:
    with LowWatermarkService(spark) as service:
        yield service
        for query in spark.streams.active:
            query.stop()


def started(service: LowWatermarkService, source: Any, folder: Path) -> Any:
    writer = service.read(source, name="orders", strategy=STRATEGY).writeStream.format("noop")
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


def test_who_is_throttled_or_not_answered_waits_says_so_and_goes_on(
    service: LowWatermarkService, kinesis: Kinesis, tmp_path: Path
) -> None:
    stream = kinesis.create_stream(2)
    writer = Writer(kinesis, stream)
    with proxied(kinesis.url) as slow, tcp_proxied(slow.port, tmp_path) as killed:
        query = started(service, source_of(kinesis, stream, endpoint=killed.url, give_up_after="1 minute"), tmp_path)

        def read() -> bool:
            assert query.isActive, query.exception()
            # Rows count before their batch is over, so wait for its end. A batch that loses the server waits for a
            # minute without a status of the planner, which the test below covers.
            over = all(run.batch_since_us is None for run in service.run_statuses())
            return over and service.status("orders").counts.rows == len(writer.sent)

        def waits(why: str) -> bool:
            assert query.isActive, query.exception()
            status = service.status("orders")
            return "Waiting for the source: Kinesis at" in status.why and why in status.why

        writer.put(30)
        wait_until(read, "the first rows", seconds=150)
        slow.refuse, slow.refuse_operation = THROTTLED, "GetRecords"
        writer.put(30)
        wait_until(lambda: waits("ProvisionedThroughputExceededException"), "the status says that it is throttled")
        assert "ProvisionedThroughputExceededException" in service.explain("orders")
        [run] = [run for run in service.run_statuses() if not run.ended]
        assert run.source_metrics["throttled_requests"] > 0
        slow.refuse = None
        wait_until(read, "the rows after it was throttled")

        killed.kill()
        writer.put(30)
        wait_until(lambda: waits("Could not connect"), "the status says that nobody answers")
        killed.start()
        wait_until(read, "the rows after the server was killed and started again")
        wait_until(lambda: "Waiting" not in service.status("orders").why, "nothing is amiss")

        kinesis.client.delete_stream(StreamName=stream)
        failed = wait_until(query.exception, "the query ends with its stream")
    assert stream in str(failed)
    assert "not found" in str(failed) or "not there any more" in str(failed)


def test_what_the_page_shows(service: LowWatermarkService, kinesis: Kinesis, tmp_path: Path) -> None:
    """The program of kinesis.md, changed only in the address."""
    stream = kinesis.create_stream(2)
    Writer(kinesis, stream).put(30)
    code = block("kinesis.md", "from lowmark.sources.kinesis import")
    instead = {'["orders"]': f'["{stream}"]', "region=": f'endpoint_url="{kinesis.url}", region='}
    read_all(code, instead, {"service": service, "WatermarkStrategy": WatermarkStrategy}, tmp_path / "checkpoint")
    assert service.status("orders").counts.rows == 30


def test_packets_of_the_producer_library_are_unpacked_by_executors(
    service: LowWatermarkService, kinesis: Kinesis, spark: SparkSession, tmp_path: Path
) -> None:
    stream = kinesis.create_stream(1)
    malformed = packet([(0, 0, b"x")], [b"k"], [b"no number"])
    packed = aggregated([(f"k{n % 5}", b"%d" % n, None) for n in range(50)])
    kinesis.put(stream, [("plain", b"first"), ("a", packed), ("a", malformed), ("plain", b"last")])
    frame = service.read(source_of(kinesis, stream), name="packed", strategy=STRATEGY)
    writer = frame.select("partitionKey", "data").writeStream.format("memory").queryName("packed")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    wait_until(lambda: query.exception() or spark.table("packed").count() == 53, "all rows", seconds=120)
    rows = [(row.partitionKey, bytes(row.data)) for row in spark.table("packed").collect()]
    numbers = [(f"k{n % 5}", b"%d" % n) for n in range(50)]
    assert rows == [("plain", b"first"), *numbers, ("a", malformed), ("plain", b"last")]

    def counted() -> bool:
        return any(run.source_metrics.get("malformed_packets") == 1 for run in service.run_statuses())

    wait_until(counted, "what the executor counted")


def test_a_batch_whose_reader_waits_for_a_server_that_is_away_is_seen_to_run_and_goes_on(
    service: LowWatermarkService, kinesis: Kinesis, tmp_path: Path
) -> None:
    """The planner cannot report the outage, because it is asked again only after the batch."""
    stream = kinesis.create_stream(1)
    writer = Writer(kinesis, stream)
    writer.put(100)
    slowly = {"records_per_read": 10, "reads_per_second": 2.0, "give_up_after": "1 minute"}  # 5 seconds a batch
    with tcp_proxied(urlsplit(kinesis.url).port or 0, tmp_path) as killed:
        query = started(service, source_of(kinesis, stream, endpoint=killed.url, **slowly), tmp_path)

        def runs() -> list[Any]:
            assert query.isActive, query.exception()
            return [run for run in service.run_statuses() if run.batch_since_us is not None]

        [run] = wait_until(runs, "a batch is read")
        killed.kill()
        said = (
            f"A batch has been read since {format_time_us(run.batch_since_us)} (rows: 100; splits: 1). Hint: a reader"
        )
        wait_until(lambda: runs() and said in service.status("orders").why, "the status says that it is read yet")
        assert said in service.explain("orders")

        query.stop()
        query = started(service, source_of(kinesis, stream, endpoint=killed.url, **slowly), tmp_path)
        said = "the batch that was planned before the restart is being read since"
        wait_until(lambda: said in service.status("orders").why, "the status says that it is read again")
        assert said in service.explain("orders")
        assert [said in status.why for _, status in service.statuses()] == [True]
        with closing(Client(service.address)) as command:
            assert [said in each["why"] for each in command.status(StatusRequest()).streams] == [True]
        killed.start()
        wait_until(lambda: service.status("orders").counts.rows == 100, "all rows")
        wait_until(lambda: not runs(), "it is over")
        assert "A batch has" not in service.status("orders").why


def test_a_stream_that_is_missing_ends_the_query_with_its_name(
    service: LowWatermarkService, kinesis: Kinesis, tmp_path: Path
) -> None:
    failed = wait_until(started(service, source_of(kinesis, "nowhere"), tmp_path).exception, "the query ended")
    assert "stream 'nowhere' not found when asked to list the shards of 'nowhere'" in str(failed)
    assert "check the name, the region and the account" in str(failed)


def test_who_is_refused_hears_it_in_the_error_of_the_query(
    service: LowWatermarkService, kinesis: Kinesis, tmp_path: Path
) -> None:
    stream = kinesis.create_stream()
    with proxied(kinesis.url) as proxy:
        proxy.refuse = 400, "UnrecognizedClientException"
        query = started(service, source_of(kinesis, stream, endpoint=proxy.url), tmp_path)
        failed = wait_until(query.exception, "the query ended")
    assert f"refused to list the shards of '{stream}': UnrecognizedClientException" in str(failed)
    assert "boto3's own chain" in str(failed)


def test_a_plain_stream_reads_the_format_and_goes_on_after_a_restart(
    spark: SparkSession, kinesis: Kinesis, tmp_path: Path
) -> None:
    stream = kinesis.create_stream(2)
    writer = Writer(kinesis, stream)
    register(spark)
    options = {
        "streamName": stream, "region": "eu-west-1", "endpoint": kinesis.url, "initialPosition": "TRIM_HORIZON",
        "maxRowsPerBatch": "30", "pollEvery": "10 milliseconds", "readsPerSecond": "none",
    }  # fmt: skip
    seen: list[tuple[str, int]] = []

    def run() -> None:
        df = spark.readStream.format("lowmark_kinesis").options(**options).load()
        sink = df.writeStream.foreachBatch(
            lambda batch, _: seen.extend((r["partitionKey"], int(r["data"])) for r in batch.collect())
        )
        query = sink.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert query.awaitTermination(120)
        assert query.exception() is None

    writer.put(100)
    run_to_the_end(run, seen)
    assert len(seen) == 100
    writer.put(50)
    kinesis.split(stream, kinesis.shards(stream)[0])
    writer.put(50)
    # A run ends with the shards known at its start: a closed shard in this run, its children in the next.
    for _ in range(2):
        run_to_the_end(run, seen)
    assert sorted(number for _, number in seen) == list(range(200)), "each row once"
    by_key: dict[str, list[int]] = {}
    for key, number in seen:
        by_key.setdefault(key, []).append(number)
    assert all(numbers == sorted(numbers) for numbers in by_key.values()), "rows of a key in order"


@pytest.mark.torture
@pytest.mark.timeout(300)
def test_a_whole_minute_of_throttling_loses_nothing(
    service: LowWatermarkService, kinesis: Kinesis, tmp_path: Path
) -> None:
    stream = kinesis.create_stream(4)
    writer = Writer(kinesis, stream)
    with proxied(kinesis.url) as proxy:
        query = started(service, source_of(kinesis, stream, endpoint=proxy.url, give_up_after="2 minutes"), tmp_path)
        writer.put(100)
        wait_until(lambda: service.status("orders").counts.rows == 100, "the first rows")
        proxy.refuse = THROTTLED
        with closing(Minute()) as minute:
            while not minute.over():
                writer.put(10)
                assert query.isActive, query.exception()
            assert "Waiting for the source" in service.status("orders").why
        proxy.refuse = None
        wait_until(lambda: service.status("orders").counts.rows == len(writer.sent), "all rows")
        print(f"{proxy.refused} requests were refused in a minute, of 4 shards")
        assert proxy.refused < 60 * 4 * 5, "fewer than the service allows"


class Minute:
    """A duration of sixty seconds of the wall clock."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._timer = threading.Timer(60, self._over.set)
        self._timer.start()

    def over(self) -> bool:
        return self._over.wait(1)

    def close(self) -> None:
        self._timer.cancel()
