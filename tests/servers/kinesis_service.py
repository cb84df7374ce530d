"""moto's server, corrected where its Kinesis differs from AWS: `python -m tests.servers.kinesis_service PORT`.

moto has the API, its errors and its formats. This module adds properties that readers rely on:

    sequence numbers    56 digits, growing along a shard and from parents to children, with gaps
    resharding          a parent keeps its records; new records go to open shards only (in moto to the parent)
    the end of a shard  GetRecords of a closed shard ends without an iterator, and names the children
    retention           `POST /_service/expire` takes a shard's records away, and a closed shard without any is gone
    the clock           `POST /_service/clock` sets it ahead or back, with the Date of answers and arrival times
    speed               GetRecords finds its place by bisection

It refuses the same requests as production, in the same words:

    a time in its future            InvalidArgumentException: "cannot be greater than the currentTimestampInMillis"
    numbers of another stream       InvalidArgumentException: "did not come from this stream", also of one that was
                                    deleted and made anew under its name; or of another shard: "It encodes ..."
    iterators of another stream     InvalidArgumentException: "Invalid ShardIterator"
    iterators of five minutes       ExpiredIteratorException; also when `POST /_service/iterators` asks for it
    a name beside a NextToken       InvalidArgumentException; a page of ListShards has three shards

Source: the Kinesis API reference; messages of the service in public issues of its clients.
"""

from __future__ import annotations

import json
import sys
import time
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from typing import Any

BASE = 49590338271490256608559692538361571095921575989136588802
"""A real sequence number. A record's number is this one plus a multiple of the number of earlier records."""

ITERATOR_SECONDS = 300.0
SHARDS_A_PAGE = 3

_count = 0
_ahead_ms = 0  # relative to the real time
_expired: set[str] = set()  # iterators of these shards have expired, once
_issued: dict[int, Any] = {}  # sequence number -> its shard


def _now() -> datetime:
    """The service's time, without a zone, as moto has it."""
    return datetime.now(timezone.utc).replace(tzinfo=None) + timedelta(milliseconds=_ahead_ms)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000 + _ahead_ms


def _next_sequence() -> int:
    global _count
    _count += 1
    return BASE + _count * (1 << 40) + _count % 7919


def mend() -> None:  # noqa: C901  # one function of theirs after the other
    """Correct moto's Kinesis in this process."""
    from moto.core.exceptions import JsonRESTError
    from moto.core.responses import ActionResult
    from moto.core.utils import unix_time
    from moto.kinesis import models, responses, utils
    from moto.kinesis.exceptions import InvalidArgumentError, ShardNotFoundError

    class ExpiredIterator(JsonRESTError):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__("ExpiredIteratorException", "Iterator expired.")

    # Functions, not subclasses: moto registers classes by the module that they are in.
    made = models.Shard.__init__

    def init(shard: Any, *args: Any, **options: Any) -> None:
        made(shard, *args, **options)
        shard.numbers, shard.times = [], []

    def put_record(shard: Any, partition_key: str, data: str, explicit_hash_key: str) -> str:
        number = _next_sequence()
        record = models.Record(partition_key, data, number, explicit_hash_key)
        now = _now()
        record.created_at_datetime = now.replace(microsecond=now.microsecond // 1000 * 1000)
        record.created_at = unix_time(record.created_at_datetime)
        _issued[number] = shard
        shard.records[number] = record
        shard.numbers.append(number)
        shard.times.append(record.created_at)
        return str(number)

    def shard_records(shard: Any, last_sequence_id: str, limit: int | None) -> tuple[list[Any], int, int]:
        begin = bisect_right(shard.numbers, int(last_sequence_id))
        found: list[Any] = []
        size = 0
        for number in shard.numbers[begin : begin + min(limit or 10_000, 10_000)]:
            size += len(shard.records[number].data)
            if found and size > 10 << 20:
                break
            found.append(shard.records[number])
        if not found:
            return [], int(last_sequence_id), 0
        behind = shard.times[-1] - found[-1].created_at
        if found[-1].sequence_number != shard.numbers[-1]:
            behind = max(behind, 0.001)
        return found, found[-1].sequence_number, round(behind * 1000)

    def sequence_at(shard: Any, at_timestamp: Any) -> int:
        """Return the number before the first record at or after a time; moto gives the last earlier record's."""
        at = at_timestamp.timestamp() if hasattr(at_timestamp, "timestamp") else float(at_timestamp)
        place = bisect_left(shard.times, at)
        return int(shard.numbers[place] - 1 if place < len(shard.numbers) else shard.get_max_sequence_number())

    def split_shard(stream: Any, shard_id: str, new_starting_hash_key: str) -> None:
        shard = stream.shards[shard_id]
        kept, shard.records = shard.records, OrderedDict()
        split(stream, shard_id, new_starting_hash_key)
        shard.records = kept

    def merge_shards(stream: Any, one: str, other: str) -> None:
        shards = [stream.shards[one], stream.shards[other]]
        kept = [shard.records for shard in shards]
        for shard in shards:
            shard.records = OrderedDict()
        merge(stream, one, other)
        for shard, records in zip(shards, kept, strict=True):
            shard.records = records

    def open_shard(stream: Any, partition_key: str, explicit_hash_key: str) -> Any:
        key = (
            int(explicit_hash_key)
            if explicit_hash_key
            else int(models.md5_hash(partition_key.encode()).hexdigest(), 16)
        )
        return next(
            shard
            for shard in stream.shards.values()
            if shard.is_open and shard.starting_hash <= key <= shard.ending_hash
        )

    def make_stream(stream: Any, *args: Any, **options: Any) -> None:
        make(stream, *args, **options)
        stream.creation_datetime = _now()

    def check_place(backend: Any, stream: Any, shard: Any, kind: str, number: Any, at: Any) -> None:
        """Refuse a sequence number or time that is not valid for this shard."""
        used = f"shard {shard.shard_id} in stream {stream.stream_name} under account {backend.account_id}"
        if kind == "AT_TIMESTAMP":
            at_ms = round((at.timestamp() if hasattr(at, "timestamp") else float(at)) * 1_000)
            if at_ms > (now_ms := _now_ms()):
                raise InvalidArgumentError(
                    "The timestampInMillis parameter cannot be greater than the currentTimestampInMillis. "
                    f"timestampInMillis: {at_ms}, currentTimestampInMillis: {now_ms}"
                )
        elif kind in {"AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"}:
            issuer: Any = _issued.get(int(number))
            if issuer not in stream.shards.values() and issuer is not shard:
                raise InvalidArgumentError(
                    f"StartingSequenceNumber {number} used in GetShardIterator on {used} is invalid because it did "
                    "not come from this stream."
                )
            if issuer is not shard:
                raise InvalidArgumentError(
                    f"Invalid StartingSequenceNumber. It encodes {issuer.shard_id}, while it was used in a call to "
                    f"{shard.shard_id}"
                )

    def get_shard_iterator(
        backend: Any, stream_arn: Any, stream_name: Any, shard_id: str, kind: str, number: Any, at: Any
    ) -> str:
        stream = backend.describe_stream(stream_arn=stream_arn, stream_name=stream_name)
        if shard_id in stream.shards:
            check_place(backend, stream, stream.shards[shard_id], kind, number, at)
        return aged(stream, iterator_of(backend, stream_arn, stream_name, shard_id, kind, number, at))

    def aged(stream: Any, iterator: str) -> str:
        """Add the time of creation and the stream to an iterator."""
        return f"{iterator.strip()}|{_now_ms()}|{stream.creation_datetime.timestamp()}"

    def get_records(response: Any) -> Any:
        arn = response._get_param("StreamARN")
        iterator, made_ms, created = response._get_param("ShardIterator").split("|")
        name, shard_id, _ = utils.decompose_shard_iterator(iterator)
        backend = response.kinesis_backend
        stream = backend.describe_stream(arn, None if name == "None" else name)
        if created != str(stream.creation_datetime.timestamp()):
            raise InvalidArgumentError("Invalid ShardIterator.")
        if shard_id in _expired or _now_ms() > int(made_ms) + ITERATOR_SECONDS * 1_000:
            _expired.discard(shard_id)
            raise ExpiredIterator
        if shard_id not in stream.shards:
            raise ShardNotFoundError(shard_id, stream=name, account_id=backend.account_id)
        again, records, behind = backend.get_records(arn, iterator, response._get_param("Limit"))
        again = aged(stream, again)
        answer = {"Records": [record.to_json() for record in records], "MillisBehindLatest": behind}
        shard = stream.shards[shard_id]
        if not shard.is_open and (not records or records[-1].sequence_number == shard.numbers[-1]):
            answer["ChildShards"] = [
                {
                    "ShardId": child.shard_id,
                    "ParentShards": [parent for parent in (child.parent, child.adjacent_parent) if parent],
                    "HashKeyRange": {
                        "StartingHashKey": str(child.starting_hash),
                        "EndingHashKey": str(child.ending_hash),
                    },
                }
                for child in stream.shards.values()
                if shard_id in (child.parent, child.adjacent_parent)
            ]
        else:
            answer["NextShardIterator"] = again
        return ActionResult(answer)

    def list_shards(response: Any) -> Any:
        token = response._get_param("NextToken")
        if token and (response._get_param("StreamName") or response._get_param("StreamARN")):
            raise InvalidArgumentError("NextToken and StreamName cannot be provided together.")
        arn, name = response._get_param("StreamARN"), response._get_param("StreamName")
        if token:
            arn, name, seen = json.loads(token)
        else:
            seen = ""
        shards = response.kinesis_backend.list_shards(stream_arn=arn, stream_name=name, limit=None, next_token=None)[0]
        left = [shard for shard in shards if shard.shard_id > seen]
        page = left[:SHARDS_A_PAGE]
        answer: dict[str, Any] = {"Shards": [shard.to_json() for shard in page]}
        if len(left) > len(page):
            answer["NextToken"] = json.dumps([arn, name, page[-1].shard_id])
        return ActionResult(answer)

    make, iterator_of = models.Stream.__init__, models.KinesisBackend.get_shard_iterator
    models.Stream.__init__, models.KinesisBackend.get_shard_iterator = make_stream, get_shard_iterator
    responses.KinesisResponse.list_shards = list_shards
    split, merge = models.Stream.split_shard, models.Stream.merge_shards
    models.Shard.__init__, models.Shard.put_record, models.Shard.get_records = init, put_record, shard_records
    models.Shard.get_sequence_number_at = sequence_at
    models.Stream.split_shard, models.Stream.merge_shards = split_shard, merge_shards
    models.Stream.get_shard_for_key = open_shard
    responses.KinesisResponse.get_records = get_records


Start = Callable[[str, list[tuple[str, str]]], object]


class Service:
    """The tests' own requests to the service: JSON by POST to /_service/..., in front of moto."""

    def __init__(self, moto: Any) -> None:
        self._moto = moto

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if not path.startswith("/_service/"):
            answer: Iterable[bytes] = self._moto(environ, start)
            return answer
        asked = json.loads(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)) or b"{}")
        self._do(path.rpartition("/")[2], asked)
        start("204 No Content", [])
        return []

    @staticmethod
    def _do(what: str, asked: dict[str, Any]) -> None:
        global _ahead_ms
        from moto.kinesis.models import kinesis_backends

        if what == "iterators":
            _expired.add(asked["shard"])
        elif what == "clock":
            _ahead_ms = asked["ahead_ms"]
        elif what == "expire":
            Service._expire(kinesis_backends, asked)

    @staticmethod
    def _expire(kinesis_backends: Any, asked: dict[str, Any]) -> None:
        for backends in kinesis_backends.values():
            for backend in backends.values():
                stream = backend.streams.get(asked.get("stream"))
                if stream is not None:
                    shard = stream.shards[asked["shard"]]
                    for number in shard.numbers[: asked["records"]]:
                        del shard.records[number]
                    shard.times, shard.numbers = shard.times[asked["records"] :], shard.numbers[asked["records"] :]
                    if not shard.numbers and not shard.is_open:
                        del stream.shards[asked["shard"]]


def main(port: int) -> None:
    """Serve until the process ends."""
    mend()
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, run_simple

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept

        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string(time.time() + _ahead_ms / 1_000 if timestamp is None else timestamp)

        def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002  # werkzeug's name
            """Log nothing, because thousands of requests would fill the log."""

    moto = DomainDispatcherApplication(create_backend_app)
    run_simple("127.0.0.1", port, Service(moto), threaded=True, request_handler=Quiet)


if __name__ == "__main__":
    main(int(sys.argv[1]))
