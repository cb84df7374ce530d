"""Random walks over one checkpoint: native or wrapped queries; adopt and leave, right, wrong, undone or interrupted.

After any steps in any order, a refusal has changed nothing, and each window comes out once and whole. A failure names
its seed: `LOWMARK_SEED=...` repeats the walk.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from lowmark.integration import LowWatermarkService
from lowmark.integration.errors import AdoptionRefused
from lowmark.integration.spark.adoption import Adoption, adopt, leave
from lowmark.integration.spark.checkpoint_store import LocalStore
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.integration.feed import Feed, Row, lose_commit, windows
from tests.integration.spark.test_adopted_queries import TEN_SECONDS, expected_windows, native
from tests.integration.spark.test_adoption import contents, cut_short
from tests.worlds.kafka_scenarios import seed
from tests.worlds.torture import newest

END = 5_000
MOMENTS = 16
"""Number of moments at which a command may be interrupted; some commands have fewer writes and moves."""
WRONG_WAY_ROUND = {
    True: "it lacks the heartbeat",
    False: "in the checkpoint offsets and now there are",
}
"""Whether the query is wrapped -> the error if the checkpoint is of the other kind."""


class Walk:
    """One checkpoint, from its first native query on.

    Attributes:
        wraps: whether the checkpoint is of a wrapped query now.
        undoable: the command whose --undo would work now.
    """

    def __init__(self, spark: SparkSession, folder: Path, rng: random.Random) -> None:
        self.spark, self.rng = spark, rng
        self.checkpoint = folder / "checkpoint"
        streams = [f"stream {n}" for n in range(rng.randint(1, 3))]
        self.feeds = {
            name: [Feed(spark, folder / f"{name}.{n}") for n in range(rng.choice([1, 1, 2]))] for name in streams
        }
        self.wraps = False
        self.undoable: str | None = None
        self.story: list[str] = [str({name: len(feeds) for name, feeds in self.feeds.items()})]
        self.through = spark if rng.random() < 0.3 else None
        self._now = 100
        self._rows: list[Row] = []
        self._batches: dict[int, list[Row]] = {}

    # --- queries ---

    def start(self, service: LowWatermarkService, *, wraps: bool) -> StreamingQuery:
        events = [
            service.wrap(df, name=name, event_time="ts", split="split", strategy=TEN_SECONDS) if wraps else native(df)
            for name, df in ((name, _union([feed.df for feed in feeds])) for name, feeds in self.feeds.items())
        ]

        def collect(batch: DataFrame, batch_id: int) -> None:
            self._batches[batch_id] = [tuple(row) for row in batch.collect()]

        writer = windows(_union(events), "split").writeStream.foreachBatch(collect).outputMode("append")
        return writer.option("checkpointLocation", str(self.checkpoint)).start()

    def run(self, rounds: int = 1, *, at: int | None = None, share: float = 0.7) -> None:
        """Give some sources a row; every source has its own split, and event time rises, so no row is late."""
        with LowWatermarkService(self.spark) as service:
            query = self.start(service, wraps=self.wraps)
            try:
                for _ in range(rounds):
                    feeds = list(itertools.chain(*self.feeds.values()))
                    for feed in [feed for feed in feeds if self.rng.random() < share] or [self.rng.choice(feeds)]:
                        self._rows.append((feed.folder.name, 1, at or self._now + self.rng.randrange(3)))
                        feed.put(self._rows[-1])
                    self._now += self.rng.choice([3, 5, 20])
                    query.processAllAvailable()
            finally:
                query.stop()
        self.undoable = None

    def fail(self, why: str, *, wraps: bool) -> None:
        before = contents(self.checkpoint)
        with LowWatermarkService(self.spark) as service:
            query = self.start(service, wraps=wraps)
            with pytest.raises(StreamingQueryException, match=why):
                query.awaitTermination(60)
        assert contents(self.checkpoint) == before

    # --- commands ---

    @property
    def sources(self) -> dict[str, list[int]]:
        """The numbers of each stream's sources."""
        numbers = itertools.count()
        return {name: [next(numbers) for _ in feeds] for name, feeds in self.feeds.items()}

    @property
    def command(self) -> str:
        """The command that changes the kind of query."""
        return "leave" if self.wraps else "adopt"

    def do(self, command: str, **options: Any) -> Adoption:
        options |= {"spark": self.through, "stopped": True}
        if command == "adopt":
            return adopt(self.checkpoint, None if options.get("undo") else self.sources, **options)
        return leave(self.checkpoint, **options)

    def done(self) -> None:
        self.undoable, self.wraps = self.command, not self.wraps

    # --- steps ---

    def goes_on(self) -> None:
        self.run(self.rng.choice([1, 2]))

    def is_killed_before_it_commits(self) -> None:
        self.run()
        if newest(self.checkpoint / "commits") == newest(self.checkpoint / "offsets"):
            lose_commit(self.checkpoint)

    def starts_the_wrong_way_round(self) -> None:
        self.fail(WRONG_WAY_ROUND[not self.wraps], wraps=not self.wraps)

    def is_shown_what_would_be_done(self) -> None:
        before = contents(self.checkpoint)
        assert not self.do(self.command, dry_run=True).done
        assert contents(self.checkpoint) == before

    def changes(self) -> None:
        assert self.do(self.command).done
        self.done()

    def is_cut_short(self) -> None:
        before, changes = contents(self.checkpoint), len(self._changes())
        with cut_short(LocalStore, self.rng.randrange(MOMENTS)) as was_cut:
            self.do(self.command)
        if not was_cut():
            self.done()
            return
        if "lowmark is changing" in (self.checkpoint / f"offsets/{newest(self.checkpoint / 'offsets')}").read_text():
            self.story.append("...and is started in the middle")
            self.fail("lowmark is changing this checkpoint and was stopped", wraps=self.rng.random() < 0.5)
        if self.rng.random() < 0.5 and len(self._changes()) > changes:
            self.story.append("...and undone")
            self.do(self.command, undo=True)
            assert contents(self.checkpoint) == before
            self.undoable = None
        else:
            self.story.append("...and done again")
            again = self.do(self.command)
            assert again.done or again.why_nothing is not None, "it was cut short after its last write"
            self.done()

    def is_adopted_for_other_sources(self) -> None:
        total = sum(map(len, self.sources.values()))
        if self.wraps or total == 1:
            return
        names = self.rng.sample(list(self.feeds), len(self.feeds))
        edges = [0, *sorted(self.rng.sample(range(1, total), len(names) - 1)), total]
        if len(names) == 1:
            edges[1] = 1
        wrong = {name: list(range(*edge)) for name, edge in zip(names, itertools.pairwise(edges), strict=True)}
        if list(wrong.items()) == list(self.sources.items()):
            return
        before = contents(self.checkpoint)
        adopt(self.checkpoint, wrong, spark=self.through, stopped=True)
        self.fail("over other sources than this query|in this order, and this query has", wraps=True)
        leave(self.checkpoint, spark=self.through, stopped=True)
        assert contents(self.checkpoint) == before
        self.run()

    def undoes(self) -> None:
        before = contents(self.checkpoint)
        for command in self.rng.sample(["adopt", "leave"], 2):
            if command == self.undoable:
                self.do(command, undo=True)
                self.wraps, self.undoable = not self.wraps, None
                return
            with pytest.raises(AdoptionRefused):
                self.do(command, undo=True)
            assert contents(self.checkpoint) == before

    def _changes(self) -> list[Path]:
        return list((self.checkpoint / "lowmark/changes").glob("*.json"))

    # --- the walk ---

    def walk(self, steps: int) -> None:
        self.run(2, share=1)
        for _ in range(steps):
            step = self.rng.choice(STEPS)
            self.story.append(f"{'wrapped' if self.wraps else 'native'}: {step.__name__}")
            step(self)
        self.run(share=1)
        self.run(2, at=END, share=1)

    def check(self) -> None:
        emitted = sorted(row for batch in self._batches.values() for row in batch)
        assert emitted == expected_windows([row for row in self._rows if row[2] < END])


STEPS = [
    Walk.goes_on, Walk.goes_on, Walk.is_killed_before_it_commits, Walk.starts_the_wrong_way_round,
    Walk.is_shown_what_would_be_done, Walk.changes, Walk.changes, Walk.is_cut_short, Walk.is_cut_short,
    Walk.is_adopted_for_other_sources, Walk.undoes,
]  # fmt: skip


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return functools.reduce(DataFrame.union, frames)


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    ("walks", "steps"), [pytest.param(1, 5, id="one walk"), pytest.param(20, 8, id="many", marks=pytest.mark.torture)]
)
def test_each_window_comes_once_whatever_is_done_to_a_checkpoint(
    spark: SparkSession, tmp_path: Path, walks: int, steps: int
) -> None:
    first = int(os.environ.get("LOWMARK_SEED", seed()))
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    for n in range(first, first + walks):
        walk = Walk(spark, tmp_path / str(n), random.Random(n))
        try:
            walk.walk(steps)
            walk.check()
        except BaseException:
            print(f"LOWMARK_SEED={n}", *walk.story, sep="\n")
            raise
