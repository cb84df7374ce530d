"""A million files, one after the other: the cost of a batch for planner and service, as finished files accumulate.

    python -m tests.bench.ended [--files 1000000] [--a-batch 1000]

Without Spark: the planner, the enumerator's state, both offsets and the run in the driver are real, but the rows are
not read. The folder holds the newest 8,000 files, like a folder from which read files are moved away.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Sequence
from contextlib import closing

from lowmark.sources.files.source import REMEMBERED_FILES

from tests.integration.driver.passing import Folder, Passing

LISTED = 8_000
STEPS = 10


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.ended", description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--a-batch", type=int, default=1_000)
    given = parser.parse_args(arguments)
    folder = Folder(remember=REMEMBERED_FILES, listed=LISTED)
    folder.add(given.a_batch)
    print("files read  ms a batch  ms a look  offset bytes  heartbeat bytes  splits known  names  MiB (most so far)")
    with closing(Passing(folder)) as query:
        query.batch()
        for step in range(STEPS):
            looking = planning = 0.0
            batches = offset = heartbeat = 0
            while folder.made < (step + 1) * given.files // STEPS:
                folder.add(given.a_batch)
                began = time.process_time()
                query.look()
                looked = time.process_time()
                offset, heartbeat = query.batch()
                looking, planning = looking + looked - began, planning + time.process_time() - looked
                batches += 1
            assert len(query.read) == folder.made, "every file is read"
            print(
                f"{folder.made:10,}  {planning / batches * 1e3:10.1f}  {looking / batches * 1e3:9.1f}  {offset:12,}  "
                f"{heartbeat:15,}  {len(query.run.watermarks.splits):12,}  {len(query.run.stream.names):5,}  "
                f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024:17,}",
                flush=True,
            )
        assert len(set(query.read)) == folder.made, "and once"
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
