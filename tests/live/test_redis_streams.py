"""examples/redis_streams.py: a connector of a user's own, on a real redis-server."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from lowmark.sources import SourceBroken, SourceSplit, SourceUnavailable, check_source
from lowmark.sources.reading.slices import read_slices

from examples.redis_streams import RedisStreams, entry_of, position_of
from tests.servers import class_archive, last_will
from tests.servers.local import ROOT, require_java, wait_until
from tests.servers.redis import RedisServer, redis_server
from tests.sparks import WITHOUT_CODEGEN

NOW_MS = 1_700_000_040_000  # a full minute
MINUTE_MS = 60_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path / "redis") as running:
        yield running


def source_of(server: RedisServer, seconds: float = 30.0) -> RedisStreams:
    return RedisStreams(server.url, "orders:*", seconds)


def test_ids_pack_into_positions_in_their_order() -> None:
    drawn = random.Random(seed := 5)
    ids = sorted((drawn.randrange(2**43), drawn.randrange(2**20)) for _ in range(200))
    positions = [position_of(f"{ms}-{seq}") for ms, seq in ids]

    assert positions == sorted(positions), seed
    assert [entry_of(position) for position in positions] == [f"{ms}-{seq}" for ms, seq in ids], seed
    assert max(positions) < 2**63
    with pytest.raises(ValueError, match="entry 5-1048576: expected a sequence number below 1048576"):
        position_of("5-1048576")


def fill(server: RedisServer, seed: int) -> int:
    """Write three streams with bursts in one millisecond, and with holes; return the number of entries left."""
    drawn = random.Random(seed)
    for stream in ("orders:a", "orders:b", "orders:c"):
        at_ms, times = NOW_MS, list[int]()
        for _ in range(60):
            at_ms += drawn.choice((0, 0, 1, 7, 20_000))
            times.append(at_ms)
        server.add(stream, *times)
        deleted, _ = server.client.xrange(stream, count=30)[-1]
        server.client.xdel(stream, deleted)
    server.client.set("orders:none", "no stream")
    return 3 * 59


def test_it_keeps_the_laws(server: RedisServer) -> None:
    entries = fill(server, seed=7)
    checked = check_source(source_of(server))

    assert checked.splits == ("orders:a", "orders:b", "orders:c")
    assert checked.rows == entries


@pytest.mark.parametrize(("method", "law"), [("rows_before", "rows"), ("find_time", "time")])
def test_a_slip_in_it_would_be_found(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, method: str, law: str
) -> None:
    slips = {
        "rows_before": lambda *_: 0,
        "find_time": lambda _self, splits, _time_us: {each.split_id: None for each in splits},
    }
    monkeypatch.setattr(RedisStreams, method, slips[method])
    fill(server, seed=7)
    with pytest.raises(SourceBroken) as found:
        check_source(source_of(server))
    assert found.value.law == law


def test_entries_that_were_trimmed_before_they_were_read_are_no_silent_loss(server: RedisServer) -> None:
    server.add("orders:a", *(NOW_MS + n for n in range(10)))
    source = source_of(server)
    [whole] = source.discover()
    end = source.latest([whole])["orders:a"]
    middle = source.after_rows(whole, 5, end)
    rest = SourceSplit(split_id="orders:a", start=middle, stop=end.position)

    server.client.xtrim("orders:a", minid=entry_of(middle - 1), approximate=False)  # the last read entry stays
    assert sum(part.rows.num_rows for part in read_slices(source, [rest])) == 5
    server.client.xtrim("orders:a", maxlen=3, approximate=False)
    with pytest.raises(RuntimeError, match=r"stream 'orders:a': entries up to .* were deleted, perhaps before they"):
        list(read_slices(source, [rest]))
    server.client.delete("orders:a")
    with pytest.raises(RuntimeError, match="stream 'orders:a': all entries were deleted, perhaps before they"):
        source.latest([rest])


def test_a_stream_that_ends_before_what_was_read_of_it_is_no_silent_end(server: RedisServer) -> None:
    """As of a Redis that came back with an older file; entries behind the read ones would not be read."""
    server.add("orders:a", NOW_MS, NOW_MS + 5)
    source = source_of(server)
    [whole] = source.discover()
    rest = SourceSplit(split_id="orders:a", start=source.latest([whole])["orders:a"].position)
    assert source.latest([rest])["orders:a"].position == rest.start
    server.client.flushall()
    server.add("orders:a", NOW_MS, NOW_MS + 2)
    with pytest.raises(RuntimeError, match=f"'orders:a': entries from {NOW_MS + 2}-1 on were deleted"):
        source.latest([rest])


def test_a_server_that_is_away_is_waited_for_and_then_named(server: RedisServer) -> None:
    server.add("orders:a", NOW_MS)
    source = source_of(server, seconds=0.3)
    splits = source.discover()
    server.process.kill()
    with pytest.raises(SourceUnavailable, match=r"the source at redis://127.0.0.1:\d+: cannot look up the ends of str"):
        source.latest(splits)
    server.start()

    assert source.latest(splits)["orders:a"].position == position_of(f"{NOW_MS}-0") + 1


def command(server: RedisServer, out: Path, rows_per_batch: int) -> list[str]:
    program = [sys.executable, str(ROOT / "examples" / "redis_streams.py")]
    options = {"redis": server.url, "streams": "orders:*", "out": out, "rows-per-batch": rows_per_batch}
    return program + [part for option, value in options.items() for part in (f"--{option}", str(value))]


def environment() -> dict[str, str]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.host": "127.0.0.1",
        **class_archive.local_files(checksums=False),
        **WITHOUT_CODEGEN,
    }
    conf = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    return {**os.environ, "PYSPARK_SUBMIT_ARGS": f"--master local[2] {conf} pyspark-shell"}


@pytest.mark.spark
@pytest.mark.slow
def test_a_run_that_is_killed_and_started_again_counts_each_order_once(server: RedisServer, tmp_path: Path) -> None:
    """Stream b is an hour behind: by native Spark's rule its orders would be late."""
    require_java()
    server.add("orders:a", *(NOW_MS + 90 * MINUTE_MS + n * 3_000 for n in range(200)))
    server.add("orders:b", *(NOW_MS + n * 30_000 for n in range(200)))
    out, log = tmp_path / "out", tmp_path / "first.log"
    commits = out / "checkpoint" / "commits"
    with log.open("wb") as output:
        first = subprocess.Popen(
            command(server, out, 20), env=environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    last_will.end_with_us(first.pid)
    try:
        wait_until(lambda: first.poll() is not None or len([*commits.glob("[0-9]*")]) > 1, "two batches", seconds=120)
        assert first.poll() is None, log.read_text()[-3_000:]
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        last_will.ended(first.pid)
    server.add("orders:b", *(NOW_MS + n * 30_000 for n in range(200, 400)))  # b catches up, so minutes of a close, too
    ran = subprocess.run(
        command(server, out, 1_000), env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False, timeout=280,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3_000:]
    assert "low watermark" in ran.stdout

    rows = pq.read_table(out / "minutes").to_pylist()
    found = Counter({(row["split_id"], round(row["minute"].timestamp() * 1_000)): row["orders"] for row in rows})
    assert len(found) == len(rows), "each minute is written once"
    written = Counter[tuple[str, int]]()
    for n in range(400):
        written["orders:b", (NOW_MS + n * 30_000) // MINUTE_MS * MINUTE_MS] += 1
        if n < 200:
            written["orders:a", (NOW_MS + 90 * MINUTE_MS + n * 3_000) // MINUTE_MS * MINUTE_MS] += 1
    last = max(minute for _, minute in found)
    assert last >= NOW_MS + 98 * MINUTE_MS
    assert found == Counter({key: orders for key, orders in written.items() if key[1] <= last})
