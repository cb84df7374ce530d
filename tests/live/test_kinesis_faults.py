"""Faults of the service: refused, missing, deleted, throttled, absent and back; and no secrets in texts."""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from lowmark.sources import SplitsAddition
from lowmark.sources.coordinator import SourceFailed
from lowmark.sources.kinesis import (
    InvalidKinesisOption,
    KinesisDataLost,
    KinesisRefused,
    KinesisStreamMissing,
    KinesisStreamReplaced,
    KinesisUnavailable,
)
from lowmark.sources.kinesis import pace as pace_module
from lowmark.sources.kinesis.client import KinesisClient
from lowmark.sources.kinesis.columns import KinesisColumns
from lowmark.sources.kinesis.connections import KinesisSettings, connected
from lowmark.sources.kinesis.planner import KinesisPlanner
from lowmark.sources.kinesis.reader import KinesisSplitReader
from lowmark.sources.kinesis.split import KinesisSplit, at_time
from lowmark.sources.planning.offset import BatchOffset
from lowmark.sources.planning.planner import PlanningFailed

from tests.servers.http_proxy import Proxy, proxied
from tests.servers.kinesis import KINESIS_ACCESS, Kinesis
from tests.servers.local import no_thread_stays, wait_until
from tests.worlds.kinesis_reading import Reading, Writer, source_of

pytestmark = [pytest.mark.live]

READS_PER_SECOND = 5  # of one shard, for GetRecords and for GetShardIterator: the limit of the service


@pytest.fixture
def proxy(kinesis: Kinesis) -> Iterator[Proxy]:
    with proxied(kinesis.url) as proxy:
        yield proxy


def failure_of(read: Reading) -> BaseException:
    """Plan until the planner fails; return the cause."""

    def failed() -> BaseException | None:
        try:
            read.batch()
        except (SourceFailed, PlanningFailed) as error:
            return error
        return None

    error: BaseException = wait_until(failed, "an error", seconds=30)
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def test_a_stream_that_is_missing_is_named_at_once(kinesis: Kinesis) -> None:
    with closing(Reading(source_of(kinesis, "nowhere"))) as read:
        assert isinstance(failure := failure_of(read), KinesisStreamMissing)
    assert "stream 'nowhere' not found when asked to list the shards of 'nowhere'" in str(failure)


@pytest.mark.parametrize("code", ["UnrecognizedClientException", "AccessDeniedException", "ExpiredTokenException"])
def test_who_is_refused_hears_what_is_needed(kinesis: Kinesis, proxy: Proxy, code: str) -> None:
    stream = kinesis.create_stream()
    proxy.refuse = 400, code
    with closing(Reading(source_of(kinesis, stream, endpoint=proxy.url))) as read:
        assert isinstance(failure := failure_of(read), KinesisRefused)
    assert code in str(failure)
    assert "boto3's own chain" in str(failure)
    assert proxy.refused < 5, "no waiting cures it"


def test_rights_that_are_taken_while_it_runs_end_the_query_with_the_reason(kinesis: Kinesis, proxy: Proxy) -> None:
    stream = kinesis.create_stream()
    writer = Writer(kinesis, stream)
    writer.put(5)
    with closing(Reading(source_of(kinesis, stream, endpoint=proxy.url))) as read:
        read.until(5)
        proxy.refuse, proxy.refuse_operation = (400, "AccessDeniedException"), "GetRecords"
        assert isinstance(failure_of(read), KinesisRefused)
        proxy.refuse = None
        writer.put(5)
        read.restart()
        read.until(10)


def test_a_stream_that_is_deleted_while_it_is_read_is_told(kinesis: Kinesis) -> None:
    stream = kinesis.create_stream(2)
    writer = Writer(kinesis, stream)
    writer.put(10)
    with closing(Reading(source_of(kinesis, stream))) as read:
        read.until(10)
        kinesis.client.delete_stream(StreamName=stream)
        failure = failure_of(read)
    assert isinstance(failure, KinesisDataLost | KinesisStreamMissing)
    assert stream in str(failure)


@pytest.mark.parametrize("ahead_ms", [-1_900, -600, 0, 1_900])
@pytest.mark.parametrize("on_data_loss", ["error", "go_on"])
def test_a_clock_that_is_not_the_services_loses_nothing(kinesis: Kinesis, ahead_ms: int, on_data_loss: str) -> None:
    """Kinesis refuses a time in its future; once, a driver with a fast clock took that for lost records."""
    with kinesis.clock(ahead_ms):
        stream = kinesis.create_stream(2)
        options: dict[str, Any] = {"start": "LATEST", "on_data_loss": on_data_loss}
        with closing(Reading(source_of(kinesis, stream, **options), max_rows=700)) as read:
            wait_until(lambda: read.batch() or read.live, "the shards in an offset")
            writer = Writer(kinesis, stream)
            writer.put(2_000)  # more than a planner's look-ahead, so it searches for the end by times
            read.until(2_000)
            assert read.told[-1].metrics["data_losses"] == 0
        assert sorted(map(int, read.values())) == list(range(2_000))
        with closing(Reading(source_of(kinesis, stream, stop="LATEST"))) as bounded:
            wait_until(lambda: bounded.batch() or (bounded.rows and not bounded.live), "its end")
        assert len(bounded.values()) == 2_000, "all that was there"


def test_a_time_in_the_services_future_is_waited_for(kinesis: Kinesis, proxy: Proxy) -> None:
    """A driver with a fast clock may have written such a time to the checkpoint."""
    stream = kinesis.create_stream(1)
    Writer(kinesis, stream).put(3)
    settings = KinesisSettings(region="eu-west-1", endpoint_url=kinesis.url)
    client = KinesisClient(settings)
    client.shards(stream)
    assert client.iterator(stream, "shardId-000000000000", at_time(client.now_ms() + 1_500))
    with pytest.raises(KinesisUnavailable, match="cannot be greater than the current"):
        client.iterator(stream, "shardId-000000000000", at_time(client.now_ms() + 60_000), patience_seconds=0.1)


def test_a_start_in_the_future_is_refused(kinesis: Kinesis) -> None:
    stream = kinesis.create_stream()
    start = datetime.now(timezone.utc) + timedelta(minutes=5)
    with closing(Reading(source_of(kinesis, stream, start=start))) as read:
        assert isinstance(failure := failure_of(read), InvalidKinesisOption)
    assert "a time that is not in the future: for the service it is" in str(failure)


@pytest.mark.parametrize("on_data_loss", ["error", "go_on"])
@pytest.mark.parametrize("while_it_runs", [True, False])
def test_a_stream_that_was_made_anew_needs_a_new_checkpoint(
    kinesis: Kinesis, on_data_loss: str, while_it_runs: bool
) -> None:
    stream = kinesis.create_stream()
    Writer(kinesis, stream).put(5)
    with closing(Reading(source_of(kinesis, stream, on_data_loss=on_data_loss))) as read:
        read.until(5)
        kinesis.client.delete_stream(StreamName=stream)
        kinesis.create_stream(name=stream)
        Writer(kinesis, stream).put(5)
        if not while_it_runs:
            read.restart()
        assert isinstance(failure := failure_of(read), KinesisStreamReplaced)
        assert "did not come from this stream" in str(failure)
        assert "new checkpoint" in str(failure)


@pytest.mark.parametrize("anew", [True, False])
def test_a_stream_that_is_not_there_or_has_other_shards_is_not_read_for_ever(kinesis: Kinesis, anew: bool) -> None:
    """The query had read child shards; the new stream has no shards of these names."""
    stream = kinesis.create_stream()
    writer = Writer(kinesis, stream)
    writer.put(5)
    with closing(Reading(source_of(kinesis, stream, on_data_loss="go_on"))) as read:
        read.until(5)
        kinesis.split(stream, "shardId-000000000000")
        writer.put(20)
        read.until(25)
        wait_until(lambda: read.batch() or len(read.live) == 2, "the children")
        later = time.monotonic() + 2.2
        wait_until(lambda: time.monotonic() > later, "later than a time of the service may be wrong")
        kinesis.client.delete_stream(StreamName=stream)
        if anew:
            kinesis.create_stream(name=stream)
        failure = failure_of(read)
    assert isinstance(failure, KinesisStreamReplaced if anew else KinesisStreamMissing)
    assert "new checkpoint" in str(failure)


def test_records_that_expired_between_plan_and_read_are_not_the_end_of_a_shard(kinesis: Kinesis) -> None:
    stream = kinesis.create_stream()
    Writer(kinesis, stream).put(5)
    with closing(Reading(source_of(kinesis, stream))) as read:
        end = read.plan()
        kinesis.split(stream, "shardId-000000000000")
        kinesis.expire(stream, "shardId-000000000000", 5)
        with pytest.raises(KinesisDataLost, match="not there any more"):
            read.read(end)
    other = kinesis.create_stream()
    writer = Writer(kinesis, other)
    writer.put(5)
    with closing(Reading(source_of(kinesis, other, records_per_read=2))) as read:
        end = read.plan()
        writer.put(5)
        kinesis.expire(other, "shardId-000000000000", 5)
        with pytest.raises(KinesisDataLost, match="that record expired: the first that is there is"):
            read.read(end)


def test_an_iterator_that_expires_while_the_end_is_searched_is_renewed(kinesis: Kinesis, proxy: Proxy) -> None:
    stream = kinesis.create_stream()
    writer = Writer(kinesis, stream)
    with kinesis.clock(60_000):  # so that all records are among the last arrivals also if the machine is slow
        writer.put(1_500)
    reads = 0

    def expire(operation: str) -> None:
        nonlocal reads
        if operation == "GetRecords":
            reads += 1
            if reads > 1 and reads % 2:  # the first read looks at the next records, the second at the end
                kinesis.expire_iterator("shardId-000000000000")

    proxy.heard = expire
    with closing(Reading(source_of(kinesis, stream, endpoint=proxy.url))) as read:
        end = read.plan()
        proxy.heard = lambda operation: None
        read.rows += read.read(end).items()
        read.commit(end)
        read.until(1_500)
    assert reads > 3
    assert sorted(map(int, read.values())) == list(range(1_500))


def test_a_shard_that_hangs_is_told_soon_and_holds_up_no_other(kinesis: Kinesis, proxy: Proxy) -> None:
    stream, other = kinesis.create_stream(), kinesis.create_stream()
    writer, quick = Writer(kinesis, stream), Writer(kinesis, other)
    writer.put(5)
    quick.put(5)
    settings = KinesisSettings(region="eu-west-1", endpoint_url=proxy.url)
    hangs = threading.Event()

    class Hanging(KinesisClient):
        def call(self, operation: str, asked: Mapping[str, Any], action: str, **options: Any) -> dict[str, Any]:
            if stream in action:
                hangs.wait(30)
            return super().call(operation, asked, action, **options)

    splits = [KinesisSplit(split_id=f"{name}/0", stream=name, shard="shardId-000000000000") for name in (stream, other)]
    with closing(KinesisPlanner(settings, go_on=False, poll_seconds=0.001, client=Hanging(settings))) as planner:
        began = time.monotonic()
        assert list(planner.latest(splits)) == [f"{other}/0"]
        assert time.monotonic() - began < 5.0
        assert "no answer for 1 of 2 shards" in str(planner.trouble())
        began = time.monotonic()
        quick.put(5)
        assert planner.latest(splits)[f"{other}/0"].rows == 10
        assert time.monotonic() - began < 1.5, "the others do not wait for it again"
        hangs.set()
        wait_until(lambda: len(planner.latest(splits)) == 2, "it is answered")
        assert planner.trouble() is None


@pytest.mark.parametrize("one_process", [True, False])
def test_planner_and_reader_of_a_shard_together_keep_to_its_limits(
    kinesis: Kinesis, monkeypatch: pytest.MonkeyPatch, one_process: bool
) -> None:
    stream = kinesis.create_stream()
    writer = Writer(kinesis, stream)
    writer.put(300)
    # Judged by when a request leaves: a busy machine may hold one back, so that it arrives together with the next.
    left_seconds: dict[str, list[float]] = {"get_records": [], "get_shard_iterator": []}
    call = KinesisClient.call

    def noted(client: KinesisClient, operation: str, *asked: Any, **options: Any) -> dict[str, Any]:
        left_seconds.setdefault(operation, []).append(time.monotonic())
        return call(client, operation, *asked, **options)

    monkeypatch.setattr(KinesisClient, "call", noted)
    own: dict[str, Any] = {"poll_every": "1 second", "reads_per_second": 3.5}
    with closing(Reading(source_of(kinesis, stream, records_per_read=40, **own))) as read:
        reads = read.read
        if not one_process:
            planners = pace_module._next_seconds

            def elsewhere(end: BatchOffset) -> dict[str, pa.Table]:
                """An executor knows the planner's reads only from its slice."""
                monkeypatch.setattr(pace_module, "_next_seconds", {})
                rows = reads(end)
                monkeypatch.setattr(pace_module, "_next_seconds", planners)
                return rows

            monkeypatch.setattr(read, "read", elsewhere)
        read.until(300)
        for _ in range(4):
            writer.put(20)
            read.until(len(writer.sent))
    for operation in ("get_records", "get_shard_iterator"):
        times = left_seconds[operation]
        assert len(times) > READS_PER_SECOND
        soonest = min(later - first for first, later in zip(times, times[READS_PER_SECOND:], strict=False))
        assert soonest >= 1.0, f"{operation}: {READS_PER_SECOND + 1} requests in {soonest} s of {times}"


def test_who_is_throttled_waits_shows_it_and_loses_nothing(kinesis: Kinesis, proxy: Proxy) -> None:
    stream = kinesis.create_stream(2)
    writer = Writer(kinesis, stream)
    writer.put(20)
    with closing(Reading(source_of(kinesis, stream, endpoint=proxy.url, give_up_after="1 minute"))) as read:
        read.until(20)
        proxy.refuse, proxy.refuse_operation = (400, "ProvisionedThroughputExceededException"), "GetRecords"
        writer.put(20)
        for _ in range(2):
            assert not read.batch(), "nothing is known, so nothing is planned"
        shown = read.told[-1]
        assert (shown.backlog_rows, shown.metrics["unanswered_shards"] >= 2) == ({}, True), "the status says so"
        assert shown.metrics["throttled_requests"] > 4
        assert shown.trouble is not None
        assert "no answer for 2 of 2 shards since 20" in shown.trouble
        assert "ProvisionedThroughputExceededException: the proxy says so" in shown.trouble
        asked = proxy.refused
        proxy.refuse = None
        end = read.plan()
        # The same while a batch is read.
        proxy.refuse = 400, "ProvisionedThroughputExceededException"
        proxy.refused = 0
        threading.Timer(3.0, lambda: setattr(proxy, "refuse", None)).start()
        read.rows += read.read(end).items()
        read.commit(end)
        assert 2 < proxy.refused < 200, "it backs off"
        assert asked < 400
        read.until(40)
        wait_until(lambda: read.batch() or read.told[-1].trouble is None, "nothing is amiss")
    assert sorted(map(int, read.values())) == list(range(40))


class Clock:
    """A clock that only waiting advances; `due` is called at its time."""

    def __init__(self, at_seconds: float, due: Callable[[], object]) -> None:
        self.now, self._at_seconds, self._due = 0.0, at_seconds, due

    def seconds(self) -> float:
        return self.now

    def pause(self, seconds: float) -> bool:
        self.now += seconds
        if self.now >= self._at_seconds:
            self._due()
        return False


def test_a_minute_of_throttling_is_waited_for_when_reading_and_is_an_error_where_less_is_allowed(
    kinesis: Kinesis, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    stream = kinesis.create_stream(1)
    writer = Writer(kinesis, stream)
    writer.put(50)
    with closing(Reading(source_of(kinesis, stream, endpoint=proxy.url))) as read:
        [part] = read.slices(read.plan())
    settings = KinesisSettings(region="eu-west-1", endpoint_url=proxy.url, give_up_seconds=90.0)
    clock = Clock(60.0, lambda: setattr(proxy, "refuse", None))
    columns = KinesisColumns(["data"])
    for allowed_seconds in (90.0, 45.0):
        clock.now, proxy.refused = 0.0, 0
        proxy.refuse = 400, "ProvisionedThroughputExceededException"
        settings = replace(settings, give_up_seconds=allowed_seconds)
        client = KinesisClient(settings, pause=clock.pause, now_seconds=clock.seconds)
        reader = KinesisSplitReader(settings, columns, go_on=False, client=client, now_seconds=clock.seconds)
        reader.handle_splits_changes(SplitsAddition((part,)))
        if allowed_seconds < 60:
            with pytest.raises(KinesisUnavailable, match=r"tried for 4[0-5] s: ProvisionedThroughputExceededException"):
                reader.fetch()
            assert "five reads a second" in KinesisUnavailable._hint
        else:
            fetched = reader.fetch()
            assert [rows.rows.num_rows for rows in fetched.batches] == [50]
            assert 60 <= clock.now < 70
        assert 10 < proxy.refused < 150, "it backs off, whatever the dice say"
        [said] = [each for each in caplog.messages if "and tries again" in each]
        assert f"tries again for {allowed_seconds:g} seconds in all: ProvisionedThroughputExceeded" in said
        caplog.clear()
        reader.close()


def test_a_planner_that_is_throttled_for_a_minute_says_so_all_the_while_and_then_gives_up(
    kinesis: Kinesis, proxy: Proxy
) -> None:
    stream = kinesis.create_stream(2)
    Writer(kinesis, stream).put(20)
    with closing(Reading(source_of(kinesis, stream, endpoint=proxy.url))) as read:
        splits = [KinesisSplit(split_id=name, stream=stream, shard=name.rpartition("/")[2]) for name in
                  sorted(read.plan().positions)]  # fmt: skip
    settings = KinesisSettings(region="eu-west-1", endpoint_url=proxy.url, give_up_seconds=60.0)
    clock = Clock(1_000.0, lambda: None)
    client = KinesisClient(settings, pause=clock.pause, now_seconds=clock.seconds)
    planner = KinesisPlanner(settings, go_on=False, poll_seconds=0.1, client=client, now_seconds=clock.seconds)
    assert len(planner.latest(splits)) == 2
    clock.now += 1
    proxy.refuse = 400, "ProvisionedThroughputExceededException"
    answers = 0

    def ask_on() -> None:
        while clock.now < 80:
            planner.latest(splits)
            clock.now += 0.2

    with no_thread_stays("lowmark-kinesis"), closing(planner):
        while clock.now < 55:  # a look may take four seconds, two per shard
            assert planner.latest(splits) == {}, "nothing is known, so nothing is planned"
            answers += 1
            assert "2 of 2 shards" in str(planner.trouble())
            clock.now += 0.2
        with pytest.raises(KinesisUnavailable, match=r"tried for 6\d s: ProvisionedThroughputExceeded"):
            ask_on()
    assert answers > 10


def test_a_service_that_is_away_is_waited_for_and_then_told(kinesis: Kinesis, proxy: Proxy) -> None:
    stream = kinesis.create_stream()
    writer = Writer(kinesis, stream)
    writer.put(5)
    with closing(Reading(source_of(kinesis, stream, endpoint=proxy.url, give_up_after="4 seconds"))) as read:
        read.until(5)
        writer.put(5)
        proxy.stop()
        assert not read.batch()
        proxy.start()
        read.until(10)
        proxy.stop()
        failure = failure_of(read)
        assert isinstance(failure, KinesisUnavailable)
        assert "Could not connect" in str(failure)
        proxy.start()
        writer.put(5)
        read.restart()
        read.until(15)
    assert read.values() == writer.sent


def test_no_secret_is_in_what_is_kept_shown_or_sent(
    kinesis: Kinesis, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    secrets = {KINESIS_ACCESS["aws_access_key_id"], KINESIS_ACCESS["aws_secret_access_key"]}
    stream = kinesis.create_stream()
    writer = Writer(kinesis, stream)
    writer.put(5)
    source = source_of(kinesis, stream, endpoint=proxy.url)
    with caplog.at_level(logging.DEBUG, logger="lowmark"), closing(Reading(source)) as read:
        read.until(5)
        proxy.refuse = 400, "InvalidSignatureException"
        failure = failure_of(read)
        kept = [repr(source), str(read.offset), str(read.told), repr(failure), str(failure), caplog.text]
        kept += [repr(read._planner.__dict__), pickle.dumps(source).decode("latin-1")]
    for secret in secrets:
        assert not any(secret in each for each in kept)


def test_a_role_is_assumed(kinesis: Kinesis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", kinesis.url)
    stream = kinesis.create_stream()
    settings = KinesisSettings(
        region="eu-west-1", endpoint_url=kinesis.url, role_arn="arn:aws:iam::123456789012:role/reader",
        role_session_name="lowmark",
    )  # fmt: skip
    assert len(KinesisClient(settings).shards(stream)) == 1
    credentials: Any = connected(settings)._request_signer._credentials
    assert (credentials.method, credentials.access_key[:4]) == ("assume-role", "ASIA")


def test_without_region_or_with_a_profile_that_is_not_there_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(KinesisRefused, match="NoRegion"):
        KinesisClient(KinesisSettings()).shards("orders")
    with pytest.raises(KinesisRefused, match="ProfileNotFound"):
        KinesisClient(KinesisSettings(region="eu-west-1", profile="nobody")).shards("orders")
