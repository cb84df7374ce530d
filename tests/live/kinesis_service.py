"""moto's server, with Kinesis as it is where moto's differs: `python -m tests.live.kinesis_service PORT`.

moto has the API, its errors and its formats. What it does not have, and readers stand on, is mended here:

    sequence numbers    56 digits, growing along a shard and from parents to children, with gaps
    resharding          the records of a parent stay in it; new ones go to open shards only (moto's go to the parent)
    the end of a shard  GetRecords of a closed shard ends without an iterator, and names the children
    retention           `POST /_service/expire` takes a shard's records away, and a closed shard without any is gone
    iterators           ExpiredIteratorException, when `POST /_service/iterators` asks for it
    speed               GetRecords finds its place by bisection

Source: the Kinesis API reference.
"""

from __future__ import annotations

import json
import sys
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

BASE = 49590338271490256608559692538361571095921575989136588802
"""A real one; a record's is this and how many were put before it, spread out."""

_count = 0
_expired: set[str] = set()  # iterators of these shards have expired, once


def _next_sequence() -> int:
    global _count
    _count += 1
    return BASE + _count * (1 << 40) + _count % 7919


def mend() -> None:  # noqa: C901  # one function of theirs after the other
    """Change moto's Kinesis, in this process."""
    from moto.core.exceptions import JsonRESTError
    from moto.core.responses import ActionResult
    from moto.core.utils import unix_time, utcnow
    from moto.kinesis import models, responses, utils
    from moto.kinesis.exceptions import ShardNotFoundError

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
        now = utcnow()
        record.created_at_datetime = now.replace(microsecond=now.microsecond // 1000 * 1000)
        record.created_at = unix_time(record.created_at_datetime)
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
        """moto answers with what came last before; here it is the place before the first that came then or later."""
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

    def get_records(response: Any) -> Any:
        arn, iterator = response._get_param("StreamARN"), response._get_param("ShardIterator")
        name, shard_id, _ = utils.decompose_shard_iterator(iterator)
        backend = response.kinesis_backend
        stream = backend.describe_stream(arn, None if name == "None" else name)
        if shard_id in _expired:
            _expired.discard(shard_id)
            raise ExpiredIterator
        if shard_id not in stream.shards:
            raise ShardNotFoundError(shard_id, stream=name, account_id=backend.account_id)
        again, records, behind = backend.get_records(arn, iterator, response._get_param("Limit"))
        answer = {"Records": [record.to_json() for record in records], "MillisBehindLatest": behind}
        shard = stream.shards[shard_id]
        over = not shard.is_open and (
            not shard.numbers or (records and records[-1].sequence_number == shard.numbers[-1])
        )
        if not shard.is_open and not records:
            over = True
        if over:
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

    split, merge = models.Stream.split_shard, models.Stream.merge_shards
    models.Shard.__init__, models.Shard.put_record, models.Shard.get_records = init, put_record, shard_records
    models.Shard.get_sequence_number_at = sequence_at
    models.Stream.split_shard, models.Stream.merge_shards = split_shard, merge_shards
    models.Stream.get_shard_for_key = open_shard
    responses.KinesisResponse.get_records = get_records


Start = Callable[[str, list[tuple[str, str]]], object]


class Service:
    """What tests ask of the service that no client can: JSON by POST to /_service/..., in front of moto."""

    def __init__(self, moto: Any) -> None:
        self._moto = moto

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if not path.startswith("/_service/"):
            answer: Iterable[bytes] = self._moto(environ, start)
            return answer
        asked = json.loads(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)) or b"{}")
        self._do(path.rpartition("/")[2], asked)
        start("200 OK", [("Content-Type", "application/json")])
        return [b"{}"]

    @staticmethod
    def _do(what: str, asked: dict[str, Any]) -> None:
        from moto.kinesis.models import kinesis_backends

        if what == "iterators":
            _expired.add(asked["shard"])
            return
        for backends in kinesis_backends.values():
            for backend in backends.values():
                stream = backend.streams.get(asked.get("stream"))
                if what == "expire" and stream is not None:
                    shard = stream.shards[asked["shard"]]
                    for number in shard.numbers[: asked["records"]]:
                        del shard.records[number]
                    shard.times, shard.numbers = shard.times[asked["records"] :], shard.numbers[asked["records"] :]
                    if not shard.numbers and not shard.is_open:
                        del stream.shards[asked["shard"]]


def main(port: int) -> None:
    """Serve until the process is ended."""
    mend()
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, run_simple

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept

        def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002  # werkzeug's name
            """Thousands of lines would say nothing."""

    moto = DomainDispatcherApplication(create_backend_app)
    run_simple("127.0.0.1", port, Service(moto), threaded=True, request_handler=Quiet)


if __name__ == "__main__":
    main(int(sys.argv[1]))
