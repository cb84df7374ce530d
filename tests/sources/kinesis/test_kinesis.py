"""The parts of the Kinesis source that need no server: options, positions, paces, and looks at a shard."""

from __future__ import annotations

import os
import pickle
import random
import sys
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from botocore.exceptions import ClientError
from lowmark.sources import Boundedness, Fetched, SplitsAddition
from lowmark.sources.formats import FormatOptions
from lowmark.sources.kinesis import (
    InvalidKinesisOption,
    KinesisPosition,
    KinesisRefused,
    KinesisSource,
    KinesisStreamMissing,
    KinesisUnavailable,
    connections,
)
from lowmark.sources.kinesis import client as client_module
from lowmark.sources.kinesis import pace as pace_module
from lowmark.sources.kinesis import planner as planner_module
from lowmark.sources.kinesis.client import Expired, KinesisClient, Page, milliseconds
from lowmark.sources.kinesis.columns import KinesisColumns
from lowmark.sources.kinesis.connections import KinesisSettings, _time_of
from lowmark.sources.kinesis.enumerator import _prepared, discovered
from lowmark.sources.kinesis.look import Seen, ShardLook
from lowmark.sources.kinesis.pace import Pace
from lowmark.sources.kinesis.planner import KinesisPlanner
from lowmark.sources.kinesis.reader import KinesisSplitReader
from lowmark.sources.kinesis.split import TRIM_HORIZON, KinesisSplit, after, at, at_time
from lowmark.sources.kit.subscription import Subscription

BIG = 49590338271490256608559692538361571095921575989136588802
NAMED: dict[str, Any] = {"streams": ["orders"], "region": "eu-west-1"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"streams": None}, "exactly one of them, got none of them"),
        ({"stream_pattern": "o.*"}, "exactly one of them, got streams and stream_pattern"),
        ({"streams": None, "stream_pattern": "("}, "a regular expression"),
        ({"streams": "orders"}, r"write \['orders'\]"),
        ({"streams": ["a", "arn:aws:kinesis:eu-west-1:1:stream/a"]}, "each name once"),
        ({"streams": ["a b"]}, "names or ARNs"),
        ({"start": "EARLIEST"}, '"TRIM_HORIZON", "LATEST", a datetime'),
        ({"start": datetime(2026, 1, 1)}, "start: expected a time with its zone, got datetime"),  # noqa: DTZ001
        ({"stop": datetime(2026, 1, 1)}, "stop: expected a time with its zone, got datetime"),  # noqa: DTZ001
        ({"start": {("orders", "s"): BIG}}, "sequence numbers are text"),
        ({"start": {("orders", "s"): "7" * 5_000}}, 'expected "TRIM_HORIZON", .* sequence number'),
        ({"start": {("ordres", "s"): "7"}}, "start: expected positions in streams that are read, got one in ordres"),
        ({"streams": None, "stream_pattern": "o.*", "start": {("sales", "s"): "7"}}, "got one in sales"),
        ({"stop": "TRIM_HORIZON"}, '"LATEST" or a datetime'),
        ({"on_data_loss": "ignore"}, '"error" or "go_on"'),
        ({"streams": 5}, "streams: expected names or ARNs of streams, each name once, got 5"),
        ({"streams": None, "stream_pattern": b"o.*"}, "a regular expression, got b'o"),
        ({"columns": ["data", "offset"]}, "some of partitionKey"),
        ({"columns": None}, "some of partitionKey, .*, got None"),
        ({"columns": [["data"]]}, r"some of partitionKey, .*, got \['data'\]"),
        ({"columns": "data"}, r"some of partitionKey, .* Hint: write \['data'\]"),
        ({"region": ["eu-west-1"]}, r"region: expected a text, got \['eu-west-1'\]"),
        ({"endpoint_url": b"http://h"}, "endpoint_url: expected a text"),
        ({"profile": 5}, "profile: expected a text, got 5"),
        ({"role_arn": ["arn"]}, "role_arn: expected a text"),
        ({"role_session_name": "me"}, "role_session_name: expected role_arn beside it"),
        ({"role_arn": None, "role_external_id": "7"}, "role_external_id: expected role_arn beside it"),
        ({"fetchers": 0}, "1 or more"),
        ({"fetchers": "3"}, "a whole number, 1 or more, got '3'"),
        ({"fetchers": 2.5}, "a whole number, 1 or more, got 2.5"),
        ({"records_per_read": 10_001}, "1 to 10,000"),
        ({"records_per_read": "500"}, "a whole number, 1 to 10,000, got '500'"),
        ({"records_per_read": 2.5}, "a whole number, 1 to 10,000, got 2.5"),
        ({"reads_per_second": 0}, "a number above 0"),
        ({"reads_per_second": "4"}, "a number above 0, got '4'"),
        ({"reads_per_second": True}, "a number above 0, got True"),
        ({"bytes_per_second": float("nan")}, "a number above 0, got nan"),
        ({"poll_every": "0 seconds"}, "a duration above 0"),
        ({"give_up_after": "soon"}, "a duration such as"),
    ],
)
def test_options_that_make_no_sense_are_refused_with_a_hint(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidKinesisOption, match=words):
        KinesisSource(**{**NAMED, **changes})


def test_a_rate_may_be_a_float_of_numpy() -> None:
    source = KinesisSource(**NAMED, reads_per_second=np.float64(2.5))
    assert source._settings.reads_per_second == 2.5


@pytest.mark.parametrize("time", ["2026-01-01", datetime(2026, 1, 1, tzinfo=timezone.utc), 1.5, None])
def test_a_time_that_is_no_number_of_microseconds_is_refused(time: Any) -> None:
    with pytest.raises(InvalidKinesisOption, match="at_timestamp: expected microseconds since the epoch, got "):
        KinesisPosition.at_timestamp(time)


@pytest.mark.parametrize("read", [None, {("orders", "s"): BIG}, {"s": str(BIG)}, [("orders", "s")]])
def test_sequence_numbers_that_are_none_are_refused(read: Any) -> None:
    with pytest.raises(InvalidKinesisOption, match=r"after_sequence_numbers: expected .* sequence numbers are text"):
        KinesisPosition.after_sequence_numbers(read)


def test_a_source_is_its_options() -> None:
    source = KinesisSource(**NAMED, columns=["data"], stop="LATEST", role_arn="arn:aws:iam::1:role/x")
    assert (source.schema.names, source.event_time, source.boundedness) == (["data"], None, Boundedness.BOUNDED)
    assert repr(pickle.loads(pickle.dumps(source))) == "KinesisSource(eu-west-1, streams=orders)"  # noqa: TID251
    assert Subscription(pattern="o.*").wants("orders")
    assert not Subscription(pattern="o").wants("orders")


def test_names_of_databricks_options() -> None:
    given = {
        "streamName": "orders, returns", "region": "eu-west-1",
        "initialPosition": '{"at_timestamp": "20260101T000000.00Z"}',
        "failOnDataLoss": "false", "shardFetchInterval": "1 minute", "roleArn": "arn:aws:iam::1:role/x",
        "fetchers": "3",
        "maxRecordsPerFetch": "500",
        "bytesPerSecond": "none", "maxRowsPerBatch": "10",
    }  # fmt: skip
    read = FormatOptions.read("lowmark_kinesis", given)
    source = read.source
    assert isinstance(source, KinesisSource)
    assert (repr(source), read.batches.max_rows) == ("KinesisSource(eu-west-1, streams=orders,returns)", 10)
    assert source._start == KinesisPosition.at_timestamp(1_767_225_600_000_000)
    assert (source._go_on, source._period_seconds, source.fetching.threads) == (True, 60.0, 3)
    assert (source._settings.reads_per_second, source._settings.bytes_per_second) == (4.0, None)
    assert source._records_per_read == 500
    default = FormatOptions.read("lowmark_kinesis", {"streamName": "orders"}).source
    assert isinstance(default, KinesisSource)
    assert default._start == KinesisPosition("LATEST")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"awsSecretKey": "hidden"}, "no keys, got a secret"),
        ({"stream.arn": "arn:aws:kinesis:eu-west-1:1:stream/o"}, "did you mean 'streamARN'"),
        ({"streamName": "o", "source.init.position": "LATEST"}, "an option of a Kinesis stream, got"),
        ({"streamName": "o", "initialPosition": '{"at_timestamp": "1767225600.5"}'}, "TRIM_HORIZON, LATEST or"),
        ({"streamName": "o", "initialPosition": '{"at_timestamp": "2026-01-01T00:00:00"}'}, 'zone, .* in a text "Z"'),
        ({"streamNam": "orders"}, "did you mean 'streamName'"),
        ({"streamName": "o", "initialPosition": '{"at_timestamp": 7}'}, "TRIM_HORIZON, LATEST or"),
        ({"streamName": "o", "fetchers": "many"}, "expected a number"),
        ({"streamName": "o", "maxRecordsPerFetch": "2.9"}, "expected a whole number"),
        ({"streamName": "o", "threads": "8"}, "did you mean 'fetchers'?"),
        ({"streamName": "o", "fetchers": "NaN"}, "expected a number"),
        ({"streamName": "o", "bytesPerSecond": "Infinity"}, "expected a number"),
        ({"streamName": "o", "failOnDataLoss": "no"}, "true or false"),
        ({}, "exactly one of them"),
    ],
)
def test_options_of_the_format_that_cannot_be(given: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidKinesisOption, match=words) as refused:
        FormatOptions.read("lowmark_kinesis", given)
    assert "hidden" not in str(refused.value)


def splits_of(parents: dict[str, tuple[str, ...]]) -> list[KinesisSplit]:
    return [
        KinesisSplit(
            split_id=f"orders/{name}", stream="orders", shard=name, parents=tuple(f"orders/{each}" for each in of)
        )
        for name, of in parents.items()
    ]


def test_where_shards_begin() -> None:
    family = splits_of({"0": (), "1": (), "2": ("0",), "3": ("0",), "4": ("3", "1")})
    saved = KinesisPosition.of({("orders", "3"): str(BIG)})
    begun = {split.shard: split.cursor for split in _prepared(family, saved, None, 4_000, 5_000)}
    # The parent of the saved shard is read; its sister and later shards are read from their first records.
    assert begun == {"0": at_time(4_000), "1": TRIM_HORIZON, "2": TRIM_HORIZON, "3": after(BIG), "4": TRIM_HORIZON}
    assert begun["3"].endswith(str(BIG)), "no digit is lost"
    late = _prepared(family, KinesisPosition.of(datetime(1970, 1, 1, 0, 0, 7, tzinfo=timezone.utc)), None, 8_000, 9_000)
    assert {(split.cursor, split.start) for split in late} == {(at_time(7_000), 7_000)}
    # The service's times are whole milliseconds: the first one at a start or later, the last one before a stop.
    between = KinesisPosition.of(datetime(1970, 1, 1, 0, 0, 7, 500, tzinfo=timezone.utc))
    halves = _prepared(family, between, between, 8_000, 9_000)
    assert {(split.cursor, split.stop) for split in halves} == {(at_time(7_001), 7_001)}
    now = _prepared(family, KinesisPosition("LATEST"), KinesisPosition("LATEST"), 8_000, 9_000)
    assert {(split.cursor, split.stop) for split in now} == {(at_time(8_000), 9_000)}, (
        "it begins no later, and ends no earlier, than now"
    )
    future = datetime.now(timezone.utc) + timedelta(days=1)
    ended = _prepared(family, KinesisPosition(TRIM_HORIZON), KinesisPosition.of(future), 8_000, 9_000)
    assert {(split.cursor, split.stop) for split in ended} == {(TRIM_HORIZON, 9_000)}


def test_a_shard_is_read_no_faster_than_its_pace() -> None:
    now, reads, size = 0.0, 0, 0
    pace = Pace(KinesisSettings(reads_per_second=4.0, bytes_per_second=2_000_000.0), lambda: now)
    while True:
        now += pace.wait_seconds("orders", "shard")
        if now >= 10.0:
            break
        pace.took("orders", "shard", began_seconds=now, size_bytes=1_000_000 if reads % 2 else 0)
        reads, size = reads + 1, size + (1_000_000 if reads % 2 else 0)
    assert reads <= 40
    assert size <= 21_000_000
    assert Pace(KinesisSettings(), lambda: 1.0).wait_seconds("orders", "shard") == 0.0


def test_a_shard_keeps_its_pace_however_many_others_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace_module, "MOST_SHARDS", 3)
    monkeypatch.setattr(pace_module, "_next_seconds", {})
    now = 0.0
    pace = Pace(KinesisSettings(reads_per_second=4.0), lambda: now)
    for turn in range(10):
        now = turn / 10
        pace.took("orders", str(turn), began_seconds=now, size_bytes=0)
        assert [pace.wait_seconds("orders", str(shard)) for shard in range(turn + 1)][-3:] == [0.05, 0.15, 0.25][
            -turn - 1 :
        ]
    assert len(pace_module._next_seconds) <= 5


def test_a_query_reads_at_its_own_rate_in_a_process_that_has_read_the_shard_at_another() -> None:
    """Spark's workers live on, so the rate of the first query was that of the next one, too."""
    waits = list[float]()
    for reads_per_second in (4.0, 0.5, 10.0):
        settings = KinesisSettings(region="eu-west-1", reads_per_second=reads_per_second)
        waits.append(KinesisClient(settings, now_seconds=lambda: 0.0).pace.lend("paced", "0"))
    assert waits == [0.0, 0.25, 2.25]


def look_of(*times_ms: int, start: int = 0, tip_ms: int | None = None) -> ShardLook:
    look = ShardLook(TRIM_HORIZON, start)
    look.ahead = [Seen(BIG + n, time_ms, 1, 10) for n, time_ms in enumerate(times_ms)]
    look._read = list(look.ahead)
    look.at_tip = tip_ms is None
    if tip_ms is not None:
        look.tip = Seen(BIG + 10**6, tip_ms, 1, 10)
    look.dense = 0.1
    look._renumber()
    return look


def test_positions_grow_though_arrival_times_do_not() -> None:
    look = look_of(100, 105, 103, 105, 110)
    assert [seen.end for seen in look.ahead] == [101, 106, 106, 106, 111]
    assert [look.rows_before(position) for position in (100, 101, 105, 106, 111)] == [0, 1, 1, 4, 5]
    assert [look.after_rows(rows, 111) for rows in (0, 1, 3, 4, 9)] == [101, 101, 101, 106, 111]
    # Rows that arrived before the start get the position right after the start.
    late = look_of(100, 101, start=500)
    assert [seen.end for seen in late.ahead] == [501, 501]
    assert (late.end, late.rows_before(late.end)) == (501, 2)


def test_a_place_lies_before_the_first_record_of_a_time_whatever_comes_behind_it() -> None:
    look = look_of(100, 105, 103, 105, 110)
    split = splits_of({"0": ()})[0]
    places = {stop: look.find_place(None, split, stop) for stop in (100, 101, 105, 106, 111)}  # type: ignore[arg-type]
    assert places == {100: None, 101: after(BIG), 105: after(BIG), 106: after(BIG + 3), 111: after(BIG + 4)}


def test_what_was_not_looked_at_is_estimated_and_never_nothing() -> None:
    look = look_of(100, 110, tip_ms=1_110)
    assert look.end == 1_111
    assert look.rows_before(1_111) == 2 + 100
    assert look.rows_before(112) == 3
    assert look.after_rows(2, 1_111) == 111
    assert look.after_rows(52, 1_111) == 111 + 500
    assert look.after_rows(10**6, 1_111) == 1_111


def test_a_look_goes_on_where_a_split_does() -> None:
    look = look_of(100, 105, 110)
    [split] = splits_of({"0": ()})

    def at_place(cursor: str, start: int) -> KinesisSplit:
        return KinesisSplit(split_id=split.split_id, stream=split.stream, shard=split.shard, cursor=cursor, start=start)

    look.align(at_place(after(BIG), 101))
    assert [seen.time_ms for seen in look.ahead] == [105, 110]
    look.align(at_place(TRIM_HORIZON, 0))
    assert len(look.ahead) == 3, "planned again from before"
    look.align(at_place(at(BIG + 2), 106))
    assert [seen.time_ms for seen in look.ahead] == [110]
    look.align(at_place(at(BIG + 77), 200))
    assert (look.ahead, look.at_tip, look.looked_seconds) == ([], False, None), "it was not looked at"


def test_who_stands_behind_the_last_record_before_a_time_has_nothing_left_before_it() -> None:
    look = look_of(100, 105, 103, 200, tip_ms=1_000)
    look.highest_ms = 1_000
    found = {time_ms: look.find_time(time_ms) for time_ms in (0, 50, 100, 101, 104, 106, 200, 201, 999, 1_001)}
    assert found == {0: 0, 50: 0, 100: 0, 101: 101, 104: 101, 106: 106, 200: 106, 201: 201, 999: 999, 1_001: None}


def test_records_that_arrive_late_lie_before_a_later_time() -> None:
    look = look_of(100, 600, start=500)
    look.highest_ms = 600
    assert [look.find_time(time_ms) for time_ms in (500, 501, 600, 601)] == [500, 501, 501, None]


def test_a_stream_that_is_being_made_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern finds the stream up to a minute before its shards can be listed."""
    says = {"Error": {"Code": "ResourceInUseException", "Message": "Stream orders is not ACTIVE"}}
    answers: list[Any] = [ClientError(says, "ListShards"), {"Shards": [{"ShardId": "shardId-000000000000"}]}]

    def list_shards(**asked: Any) -> Any:
        if isinstance(answer := answers.pop(0), ClientError):
            raise answer
        return answer

    monkeypatch.setattr(client_module, "connected", lambda *_: SimpleNamespace(list_shards=list_shards))
    client = KinesisClient(KinesisSettings(region="eu-west-1"), pause=lambda seconds: False)
    assert [shard["ShardId"] for shard in client.shards("orders")] == ["shardId-000000000000"]


def test_a_list_whose_next_page_has_expired_is_asked_for_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal ended the query, with advice about credentials, when the service was away for five minutes."""
    expired = ClientError({"Error": {"Code": "ExpiredNextTokenException", "Message": "expired"}}, "ListShards")
    first = {"Shards": [{"ShardId": "1"}], "NextToken": "2"}
    answers: list[Any] = [first, expired, first, {"Shards": [{"ShardId": "2"}]}]
    asked: list[dict[str, str]] = []

    def list_shards(**question: str) -> Any:
        asked.append(question)
        if isinstance(answer := answers.pop(0), ClientError):
            raise answer
        return answer

    monkeypatch.setattr(client_module, "connected", lambda *_: SimpleNamespace(list_shards=list_shards))
    assert [shard["ShardId"] for shard in KinesisClient(KinesisSettings()).shards("orders")] == ["1", "2"]
    assert asked == 2 * [{"StreamName": "orders"}, {"NextToken": "2"}]


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(connections, "_clients", {})


@pytest.mark.usefixtures("no_credentials")
def test_credentials_that_come_after_a_refusal_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process kept the client without credentials, so a query that was started again was refused, too."""
    asks = KinesisClient(KinesisSettings(region="eu-west-1", endpoint_url="http://127.0.0.1:9", give_up_seconds=0))
    with pytest.raises(KinesisRefused, match="Unable to locate credentials"):
        asks.streams()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with pytest.raises(KinesisUnavailable, match="Could not connect"):
        asks.streams()


def test_a_client_whose_credentials_have_expired_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def expired() -> Any:
        raise ClientError({"Error": {"Code": "ExpiredTokenException", "Message": "expired"}}, "ListStreams")

    clients = iter(
        [SimpleNamespace(list_streams=expired), SimpleNamespace(list_streams=lambda: {"StreamNames": ["a"]})]
    )
    monkeypatch.setattr(connections, "_clients", {})
    monkeypatch.setattr(connections, "_make", lambda settings, answer_seconds: next(clients))
    asks = KinesisClient(KinesisSettings())
    with pytest.raises(KinesisRefused, match="ExpiredTokenException"):
        asks.streams()
    assert asks.streams() == asks.streams() == ["a"], "the second client is kept"


@pytest.mark.usefixtures("no_credentials")
def test_a_role_that_no_credentials_can_assume_is_refused() -> None:
    role = KinesisSettings(region="eu-west-1", endpoint_url="http://127.0.0.1:9", role_arn="arn:aws:iam::1:role/x")
    with pytest.raises(KinesisRefused, match="refused to connect: NoCredentialsError"):
        KinesisClient(role).streams()


@contextmanager
def answering(status: int, body: bytes) -> Iterator[KinesisClient]:
    """A client whose endpoint gives the same answer to every question."""

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            yield KinesisClient(KinesisSettings(region="eu-west-1", endpoint_url=url, give_up_seconds=0))
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.usefixtures("no_credentials")
@pytest.mark.parametrize("status", [200, 502])
@pytest.mark.parametrize("body", [b"<html>Sign in</html>", b"\xff\xfe", b"", b"[]", b"null", b'"busy"'])
def test_an_answer_that_is_not_of_kinesis_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, status: int, body: bytes
) -> None:
    """A proxy's page ended the query with KeyError: 'Records'."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with answering(status, body) as asks:
        questions: list[Callable[[], object]] = [
            asks.streams,
            lambda: asks.shards("orders"),
            lambda: asks.created_ms("orders"),
            lambda: asks.iterator("orders", "1", TRIM_HORIZON),
            lambda: asks.records("orders", "1", "there", 5),
        ]
        for ask in questions:
            with pytest.raises(KinesisUnavailable, match=r"is not one of Kinesis|502"):
                ask()


@pytest.mark.usefixtures("no_credentials")
def test_a_gateway_that_throttles_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its refusal has a status and no code of Kinesis, and ended the query with advice about credentials."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with answering(429, b"") as asks:
        with pytest.raises(KinesisUnavailable, match="429"):
            asks.streams()
        assert asks.throttled == 1


def test_a_stream_of_a_pattern_that_was_deleted_since_it_was_listed_is_passed_over() -> None:
    shard = {"ShardId": "0", "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"}}

    def shards(stream: str) -> list[dict[str, Any]]:
        if stream == "orders-old":
            raise KinesisStreamMissing("here", "stream 'orders-old'", "list its shards")
        return [shard]

    client: Any = SimpleNamespace(streams=lambda: ["orders", "orders-old", "returns"], shards=shards)
    assert [split.split_id for split in discovered(Subscription(pattern="orders.*"), client)] == ["orders/0"]
    with pytest.raises(KinesisStreamMissing):
        discovered(Subscription({"orders": "orders", "orders-old": "orders-old"}), client)


class Failing:
    """A client that never gives its second answer."""

    pace = Pace(KinesisSettings(), lambda: 1e9)

    def __init__(self) -> None:
        self.asked: list[str] = []

    def now_ms(self) -> int:
        return 10_000

    def iterator(self, stream: str, shard: str, cursor: str, **options: Any) -> str:
        self.asked.append(cursor)
        return "0"

    def records(self, stream: str, shard: str, iterator: str, limit: int, **options: Any) -> Page:
        number = int(iterator)
        self.asked.append(iterator)
        if number == 1 and self.asked.count("1") == 1:
            raise KinesisUnavailable("here", "read", 2.0, "throttled")
        arrived = datetime(1970, 1, 1, 0, 0, number, tzinfo=timezone.utc)
        record = {"SequenceNumber": str(BIG + number), "Data": b"x", "ApproximateArrivalTimestamp": arrived}
        return Page([record], str(number + 1), 0 if number == 2 else 1_000)


def test_what_was_looked_at_stays_known_when_the_next_answer_does_not_come() -> None:
    client: Any = Failing()
    look, [split] = ShardLook(TRIM_HORIZON, 0), splits_of({"0": ()})
    options: dict[str, Any] = {"now_seconds": lambda: 0.0, "poll_seconds": 1.0, "patience_seconds": 1.0}
    with pytest.raises(KinesisUnavailable):
        look.refresh(client, split, **options)
    look.refresh(client, split, **options)
    assert [seen.sequence - BIG for seen in look.ahead] == [0, 1, 2]
    assert [seen.end for seen in look.ahead] == [1, 1_001, 2_001]


def test_a_first_look_that_is_throttled_goes_on_where_it_was() -> None:
    """Otherwise a look at a shard with many empty answers would never finish while other consumers read the shard."""
    client: Any = Failing()
    settings, [split] = KinesisSettings(region="eu-west-1"), splits_of({"0": ()})
    planner = KinesisPlanner(settings, go_on=False, client=client, now_seconds=lambda: 0.0)
    assert planner.latest([split]) == {}
    assert planner.latest([split])[split.split_id].rows == 3
    assert client.asked == [TRIM_HORIZON, "0", "1", "1", "2"]


def client_of(records: Callable[..., Page]) -> Any:
    """A client that answers each read by calling `records`."""
    return SimpleNamespace(
        settings=KinesisSettings(region="eu-west-1"), now_ms=lambda: 10_000, throttled=0, records=records,
        iterator=lambda *asked, **options: "0", pace=Pace(KinesisSettings(), lambda: 1e9),
    )  # fmt: skip


@pytest.mark.slow
def test_looks_that_hang_and_end_while_a_batch_is_planned_give_their_shards_no_end() -> None:
    """An end without a look gave an empty slice with a claim, and the rows up to that end came after the claim."""
    planner = KinesisPlanner(KinesisSettings(region="eu-west-1"), go_on=False, client=cast("Any", Failing()))
    splits = splits_of({f"{n}": () for n in range(200)})
    looks = {split.split_id: Future[None]() for split in splits}
    for look in looks.values():
        look.set_running_or_notify_cancel()
    go, over = threading.Event(), threading.Event()

    def end_looks() -> None:
        while not over.is_set():
            go.wait()
            go.clear()
            for name in looks:
                planner._failures.pop(name, None)

    switched = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=end_looks)
    thread.start()
    try:
        for _ in range(300):  # in one round of fourteen, a look ended at the moment that was wrong
            planner._asking, planner._failures = dict(looks), {}
            go.set()
            assert planner._look_at(splits).keys() == looks.keys()
    finally:
        over.set()
        go.set()
        thread.join()
        sys.setswitchinterval(switched)


def test_a_look_that_fails_after_a_long_batch_is_repeated() -> None:
    """A batch may take longer than the allowed outage, and a shard without requests was not silent."""
    answers, seconds = True, 0.0

    def records(*asked: Any, **options: Any) -> Page:
        if not answers:
            raise KinesisUnavailable("here", "read", 2.0, "throttled")
        return Page([], "0", 0)

    client = client_of(records)
    settings, [split] = KinesisSettings(region="eu-west-1", give_up_seconds=60.0), splits_of({"0": ()})
    planner = KinesisPlanner(settings, go_on=False, client=client, now_seconds=lambda: seconds)
    for long_ago in (0.0, 600.0):  # the patience starts anew each time
        seconds, answers = long_ago, True
        assert planner.latest([split])
        answers = False
        for since in range(300, 361, 10):
            seconds = long_ago + since
            assert planner.latest([split]) == {}, "a minute since the first look that failed, and not more"
    seconds += 1.0
    with pytest.raises(KinesisUnavailable, match=r"tried for 61 s"):
        planner.latest([split])


def test_shards_that_wait_for_their_turn_do_not_hang_and_a_hung_one_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planner_module, "THREADS", 2)
    monkeypatch.setattr(planner_module, "HUNG_SECONDS", 2)
    hangs, turn = threading.Event(), threading.Event()

    def records(stream: str, shard: str, *asked: Any, **options: Any) -> Page:
        (hangs if shard == "0" else turn).wait(0.25 if shard != "0" else 20)
        return Page([], "0", 0)

    client = client_of(records)
    planner = KinesisPlanner(KinesisSettings(region="eu-west-1"), go_on=False, client=client)
    splits = splits_of({f"{n}": () for n in range(12)})  # the last one is looked at after 2.5 seconds
    assert planner.latest(splits).keys() == {f"orders/{n}" for n in range(1, 12)}
    assert "no answer for 1 of 12 shards" in str(planner.trouble())
    hangs.set()
    turn.set()
    planner._asking["orders/0"].result(20)
    assert len(planner.latest(splits)) == 12
    planner.close()


def test_a_look_that_waits_for_its_own_pace_is_not_called_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """With bytes_per_second=, a page of large records took a minute of pause, and the query ended: no answer comes."""
    monkeypatch.setattr(planner_module, "HUNG_SECONDS", 1)
    paused, now = threading.Event(), [1e9]

    def records(*asked: Any, **options: Any) -> Page:
        client.pace.took("orders", "0", began_seconds=now[0], size_bytes=10_000_000)
        paused.wait(20)
        return Page([], "0", 0)

    client = client_of(records)
    settings, [split] = KinesisSettings(region="pace", bytes_per_second=100_000.0), splits_of({"0": ()})
    client.pace = Pace(settings, lambda: now[0])
    planner = KinesisPlanner(settings, go_on=False, client=client, now_seconds=lambda: now[0])
    for now[0] in (1e9, 1e9 + 9, 1e9 + 100):
        assert planner.latest([split]) == {}
        assert planner.trouble() is None
    now[0] += 2.0
    assert planner.latest([split]) == {}
    assert "no answer for 1 of 1 shards" in str(planner.trouble())
    paused.set()
    planner.close()


def test_a_shard_that_hangs_after_a_refusal_is_told_with_the_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner_module, "HUNG_SECONDS", 1)
    hangs, refuses = threading.Event(), True

    def records(stream: str, shard: str, *asked: Any, **options: Any) -> Page:
        if refuses:
            raise KinesisUnavailable("eu-west-1", f"read {shard}", 2.0, "ProvisionedThroughputExceeded: slow down")
        hangs.wait(20)
        return Page([], "0", 0)

    client = client_of(records)
    planner = KinesisPlanner(KinesisSettings(region="eu-west-1"), go_on=False, client=client)
    [split] = splits_of({"0": ()})
    for _ in range(2):  # refused, and then without an answer
        assert planner.latest([split]) == {}
        assert str(planner.trouble()).endswith("such as orders/0: ProvisionedThroughputExceeded: slow down")
        refuses = False
    hangs.set()
    planner._asking["orders/0"].result(20)
    assert len(planner.latest([split])) == 1
    assert planner.trouble() is None
    planner.close()


class Busy:
    """A shard with writes until `silent_ms` ago, which counts its reads."""

    NOW_MS = 1_767_225_600_000

    def __init__(self, records: int, silent_ms: int) -> None:
        last_ms = self.NOW_MS - silent_ms
        self.times = [last_ms - (records - 1 - n) for n in range(records)]  # one per millisecond
        self.reads = self.read_records = 0

    def now_ms(self) -> int:
        return self.NOW_MS

    def iterator(self, stream: str, shard: str, cursor: str, **options: Any) -> str:
        kind, _, where = cursor.partition(" ")
        if kind == TRIM_HORIZON:
            return "0"
        if kind == "AT_TIMESTAMP":
            return str(bisect_left(self.times, int(where)))
        return str(int(where) - BIG + (kind == "AFTER_SEQUENCE_NUMBER"))

    def records(self, stream: str, shard: str, iterator: str, limit: int, **options: Any) -> Page:
        begin = int(iterator)
        found = [
            {"SequenceNumber": str(BIG + n), "Data": b"x",
             "ApproximateArrivalTimestamp": datetime.fromtimestamp(self.times[n] / 1_000, timezone.utc)}
            for n in range(begin, min(begin + limit, len(self.times)))
        ]  # fmt: skip
        self.reads, self.read_records = self.reads + 1, self.read_records + len(found)
        end = begin + len(found)
        behind_ms = self.times[-1] - self.times[end - 1] if found and end < len(self.times) else 0
        return Page(found, str(end), behind_ms)


@pytest.mark.parametrize("silent_ms", [0, 900, 3_000, 60_000, 3_600_000])
def test_the_end_of_a_shard_is_found_without_reading_it(silent_ms: int) -> None:
    client: Any = Busy(100_000, silent_ms)
    look, [split] = ShardLook(TRIM_HORIZON, 0), splits_of({"0": ()})
    now = [0.0]
    options: dict[str, Any] = {"now_seconds": lambda: now[0], "poll_seconds": 1.0, "patience_seconds": 1.0}
    look.refresh(client, split, **options)
    assert look.tip is not None
    assert look.tip.sequence == BIG + 99_999
    assert client.read_records < 8_000
    assert client.reads < 30
    # The last record is still the same: the look takes a read of it, besides a read of the records ahead.
    reads, now[0] = client.reads, 2.0
    look.refresh(client, split, **options)
    assert client.reads - reads <= 2
    client.times += [client.NOW_MS + n for n in range(700)]
    now[0] = 4.0
    look.refresh(client, split, **options)
    assert look.tip.sequence == BIG + 100_699
    # After a long time without a look, new records are not read, either.
    client.times += [client.NOW_MS + 1_000 + n for n in range(100_000)]
    client.NOW_MS += 200_000
    read, now[0] = client.read_records, 300.0
    look.refresh(client, split, **options)
    assert look.tip.sequence == BIG + 200_699
    assert client.read_records - read < 8_000


def test_a_slice_from_a_time_has_no_record_that_arrived_before() -> None:
    """The service may begin a little before a time, and the planner may not have seen the first record."""

    def arrived(number: int, time_ms: int) -> dict[str, Any]:
        time = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=time_ms)
        return {"SequenceNumber": str(number), "Data": b"x", "ApproximateArrivalTimestamp": time}

    pages = {
        "0": Page([arrived(1, 4_900)], "1", 200),
        "1": Page([arrived(2, 4_999), arrived(3, 5_000), arrived(4, 4_999)], "2", 100),
        "2": Page([arrived(5, 5_100)], "3", 0),
    }
    client = client_of(lambda stream, shard, iterator, limit, **options: pages[iterator])
    reader = KinesisSplitReader(KinesisSettings(), KinesisColumns(["sequenceNumber"]), go_on=False, client=client)
    [split] = splits_of({"0": ()})
    part = replace(split, start=5_000, stop=5_101, cursor=at_time(5_000), until=after(5), records=3)
    reader.handle_splits_changes(SplitsAddition((part,)))
    fetched = [reader.fetch() for _ in pages]
    read = [number for each in fetched for rows in each.batches for number in rows.rows[0].to_pylist()]
    assert read == ["3", "4", "5"], "times may go back after the first record of the time"
    assert fetched[-1].finished_splits == {split.split_id}


def test_a_slice_whose_iterators_expire_at_once_is_asked_again_for_as_long_as_slices_may_stall() -> None:
    def records(*asked: Any, **options: Any) -> Page:
        raise Expired

    columns = KinesisColumns(["data"])
    reader = KinesisSplitReader(KinesisSettings(), columns, go_on=False, client=client_of(records))
    [split] = splits_of({"0": ()})
    reader.handle_splits_changes(SplitsAddition((replace(split, stop=9, until=after(5), records=3),)))
    assert [reader.fetch() for _ in range(3)] == [Fetched()] * 3


def test_times_of_records_are_read_as_the_client_reads_them() -> None:
    from botocore.utils import parse_timestamp

    rng = random.Random(5)
    for given in [0, 1_767_225_600, 1.5, "2026-01-01T00:00:00Z", *(rng.randrange(2**41) / 1_000 for _ in range(2_000))]:
        assert _time_of(given) == parse_timestamp(given), given
        if isinstance(given, float):
            assert milliseconds(_time_of(given)) == round(given * 1_000), "no millisecond is lost"
