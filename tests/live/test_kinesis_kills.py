"""A reader of a Kinesis stream is killed between planning, reading and commit, while shards split and merge.

The test runs without Spark to make kills cheap: `kinesis_loop` imitates Spark, and only its offsets survive. The
output has every row once, those of a key in order. `test_kinesis_torture.py` is the same with Spark.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.drivers.kinesis_loop import newest
from tests.servers.kinesis import Kinesis
from tests.servers.local import ROOT, tail, wait_until
from tests.worlds.kinesis_reading import Writer, reshard

pytestmark = [pytest.mark.live]


def start(server: Kinesis, stream: str, folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "loop.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.drivers.kinesis_loop", server.url, stream, str(folder)],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


def kill(server: Kinesis, folder: Path, *, kills: int) -> None:
    seed = int(os.environ.get("LOWMARK_SEED", random.randrange(2**32)))
    print(f"LOWMARK_SEED={seed}")
    rng = random.Random(seed)
    stream = server.create_stream(2)
    writer = Writer(server, stream)
    offsets, commits, output = (folder / name for name in ("offsets", "commits", "output"))
    moments: list[str] = []
    process = None
    try:
        for _ in range(kills):
            writer.put(rng.randrange(60, 150))
            process = start(server, stream, folder)
            alive = process

            def more(where: Path, than: int, running: subprocess.Popen[bytes] = alive) -> bool:
                assert running.poll() is None, tail(folder / "loop.log")
                return newest(where) > than

            before = newest(commits)
            wait_until(lambda than=before: more(commits, than), "a batch")  # type: ignore[misc]
            reshard(server, stream, rng)
            writer.put(rng.randrange(60, 150))
            # Kill between the offset and the rows, between the rows and the commit, or right after the commit.
            where = rng.choice([offsets, output, commits])
            known, until = newest(where), time.monotonic() + 60
            while not more(where, known):
                assert time.monotonic() < until, f"nothing new in {where.name}"
            process.kill()
            process.wait(20)
            moments.append(f"{where.name}: planned {newest(offsets)}, read {newest(output)}, done {newest(commits)}")
        process = start(server, stream, folder)

        def rows() -> list[tuple[str, str, int]]:
            read = [json.loads(file.read_text()) for file in sorted(output.glob("*.json"))]
            return [tuple(row) for batch in read for row in batch]

        wait_until(lambda: len(rows()) >= len(writer.sent), "all rows")
        found = rows()
        assert sorted(number for _, _, number in found) == list(range(len(writer.sent))), "each row once"
        by_key: dict[str, list[int]] = {}
        for _, key, number in found:
            by_key.setdefault(key, []).append(number)
        assert all(numbers == sorted(numbers) for numbers in by_key.values()), "rows of a key in order"
        assert len({shard for shard, _, _ in found}) > kills
    except BaseException as failed:
        failed.args = (f"{failed}\n  LOWMARK_SEED={seed}\n  " + "\n  ".join(moments),)
        raise
    finally:
        if process is not None:
            process.kill()
            process.wait(20)
    print("\n".join(moments))


def test_kills_between_planning_reading_and_commit_lose_nothing(kinesis: Kinesis, tmp_path: Path) -> None:
    kill(kinesis, tmp_path, kills=3)


@pytest.mark.torture
@pytest.mark.timeout(1_800)
def test_many_kills_between_planning_reading_and_commit_lose_nothing(kinesis: Kinesis, tmp_path: Path) -> None:
    kill(kinesis, tmp_path, kills=int(os.environ.get("LOWMARK_KILLS", "20")))
