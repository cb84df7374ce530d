"""The promises of an adaptive bound: the share of late rows on data that stays as it is, and after a change."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from lowmark.watermark import InvalidStrategy, InvalidWatermark, SplitId, SplitState, WatermarkStrategy
from lowmark.watermark.lateness import SliceLateness, buckets_of, upper_edges
from lowmark.watermark.replay.advice import SHARE, advise
from lowmark.watermark.replay.profile import SplitProfile
from lowmark.watermark.replay.replay import Batches, Replay
from lowmark.watermark.splits.adaptive import ENOUGH_BATCHES, ENOUGH_ROWS, AdaptiveBounds
from lowmark.watermark.splits.events import BatchPlanned, BatchReported, SplitColumn
from lowmark.watermark.splits.snapshot import StreamSnapshot, decode, encode
from lowmark.watermark.splits.stream import SplitWatermarks
from lowmark.watermark.strategy import AdaptiveBound

from tests.laws.late_streams import START_US, STREAMS, LateStream, drive
from tests.laws.strategies import draws

SECOND_US = 1_000_000
PARAMS = AdaptiveBound(0.99, 0, 600 * SECOND_US)
SLACK = 1.5
"""Largest share of late rows on steady data after the first batches, as a multiple of 1 - coverage."""
UP_BATCHES, UP_SLACK = 8, 2.0
"""Number of batches after which lateness that grew is covered, and the largest share then, in units of 1 - coverage."""
DOWN_BATCHES = 9_500
"""Number of batches after which the bound has followed lateness that shrank."""

Micros = npt.NDArray[np.int64]


class Rows:
    """A split that is seen row by row; lateness is exponential with a mean that the test changes."""

    def __init__(self, seed: int, rows: int) -> None:
        self.chance, self.rows = np.random.default_rng(seed), rows
        self.bounds, self.batch = AdaptiveBounds(PARAMS, {}, {}), 0

    def run(self, batches: int, mean_us: float) -> float:
        """Run some batches; return the share of rows that were later than the bound before their batch."""
        late = 0
        for _ in range(batches):
            lateness = self.chance.exponential(mean_us, self.rows).astype(np.int64)
            late += int((lateness > self.bounds.bound_us("a")).sum())
            counted: dict[int, int] = dict(Counter(buckets_of(lateness).tolist()))
            self.bounds.learn(BatchReported(self.batch, self.batch, {"a": 0}, lateness={"a": counted}))
            self.batch += 1
        return late / (batches * self.rows)


class Worst:
    """A split of which only the largest and the smallest time of each batch are seen."""

    def __init__(self, seed: int, rows: int) -> None:
        self.chance, self.rows = np.random.default_rng(seed), rows
        self.bounds, self.batch, self.top_us = AdaptiveBounds(PARAMS, {}, {}), 0, 0

    def run(self, batches: int, mean_us: float) -> tuple[float, float]:
        """Run some batches; return the shares of late batches and of late rows."""
        late, late_batches = 0, 0
        for _ in range(batches):
            front_us = self.batch * SECOND_US
            times_us = front_us - self.chance.exponential(mean_us, self.rows).astype(np.int64)
            beyond = int((times_us < self.top_us - self.bounds.bound_us("a")).sum()) if self.batch else 0
            late, late_batches = late + beyond, late_batches + (beyond > 0)
            watermark_us = (int(times_us.max()) - 1_000) // 1_000 * 1_000
            report = BatchReported(self.batch, 0, {"a": watermark_us}, first_us={"a": int(times_us.min())})
            self.bounds.learn(report)
            self.top_us = max(self.top_us, int(times_us.max()))
            self.batch += 1
        return late_batches / batches, late / (batches * self.rows)


@pytest.mark.parametrize("rows", [20, 400])
@pytest.mark.parametrize("seed", range(draws(4)))
def test_of_rows_that_stay_as_they_are_no_more_than_that_are_late(seed: int, rows: int) -> None:
    split = Rows(seed, rows)
    split.run(100, 2e6)
    assert split.run(400, 2e6) <= SLACK * (1 - PARAMS.coverage), f"seed {seed}"
    assert split.bounds.bound_us("a") < 3 * 2e6 * np.log(100), f"seed {seed}: it only waits"


@pytest.mark.parametrize("seed", range(draws(4)))
def test_of_batches_that_stay_as_they_are_no_more_than_that_are_late(seed: int) -> None:
    split = Worst(seed, 50)
    split.run(300, 2e6)
    batches, rows = split.run(1_000, 2e6)
    assert batches <= SLACK * (1 - PARAMS.coverage), f"seed {seed}"
    assert rows <= batches, f"seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_after_a_change_the_share_is_there_again(seed: int) -> None:
    split = Rows(seed, 200)
    split.run(300, 1e6)
    calm_us = split.bounds.bound_us("a")
    assert split.run(1, 20e6) > 0.5, f"seed {seed}: nothing has changed"
    split.run(UP_BATCHES - 1, 20e6)
    assert split.run(100, 20e6) <= UP_SLACK * (1 - PARAMS.coverage), f"seed {seed}"
    assert split.bounds.bound_us("a") > 10 * calm_us
    split.run(DOWN_BATCHES, 1e6)
    assert split.bounds.bound_us("a") < 2 * calm_us, f"seed {seed}"
    worst = Worst(seed, 50)
    worst.run(300, 1e6)
    worst.run(UP_BATCHES, 20e6)
    assert worst.run(100, 20e6)[1] <= UP_SLACK * (1 - PARAMS.coverage), f"seed {seed}"


def test_before_enough_was_seen_the_bound_is_the_largest() -> None:
    split = Rows(0, 10)
    for batch in range(1, ENOUGH_ROWS // 10 + 1):
        assert split.bounds.bound_us("a") == PARAMS.at_most_us, batch
        split.run(1, 1e6)
    assert split.bounds.bound_us("a") < PARAMS.at_most_us
    worst = Worst(0, 10)
    for batch in range(1, ENOUGH_BATCHES + 2):
        assert worst.bounds.bound_us("a") == PARAMS.at_most_us, batch
        worst.run(1, 1e6)
    assert worst.bounds.bound_us("a") < PARAMS.at_most_us


@pytest.mark.parametrize("late_us", [0, 1, 999, 1_000, 1_500, 15_999, 1_000_000, 31_234_567])
def test_a_bound_is_the_edge_of_its_bucket_in_whole_milliseconds(late_us: int) -> None:
    bounds = AdaptiveBounds(PARAMS, {}, {})
    bucket = int(buckets_of(np.array([late_us]))[0])
    edge_us = int(upper_edges(np.array([bucket]))[0])
    for batch in range(3):
        bounds.learn(BatchReported(batch, batch, {"a": 0}, lateness={"a": {0: 99, bucket: 101}}))
    assert bounds.bound_us("a") == -(-edge_us // 1_000) * 1_000 >= late_us
    assert bounds.beyond("a") == 0


def test_rows_are_late_against_the_largest_time_of_all_batches_before() -> None:
    bounds = AdaptiveBounds(AdaptiveBound(0.9, 0, 600 * SECOND_US), {}, {})
    for batch in range(40):
        at_us = (100 if batch == 0 else 90) * SECOND_US
        bounds.learn(BatchReported(batch, batch, {"a": at_us}, {"a": at_us}, {"a": 10}))
    assert bounds.bound_us("a") >= 10 * SECOND_US


# --- streams that are late in different ways

BATCHES = {0.9: (100, 600), 0.99: (2_000, 2_000), 0.999: (2_000, 3_000)}
"""Coverage -> (number of first batches, number of counted batches)."""


@pytest.mark.slow
@pytest.mark.parametrize("stream", STREAMS, ids=[stream.name for stream in STREAMS])
@pytest.mark.parametrize("coverage", [0.9, 0.99, 0.999])
def test_of_every_stream_no_more_than_that_is_late(stream: LateStream, coverage: float) -> None:
    warm, batches = BATCHES[coverage]
    assert drive(stream, coverage, by_rows=True, warm=warm, batches=batches).rows <= SLACK
    chance = 2 / (batches * (1 - coverage)) ** 0.5  # an allowance, because few batches are late
    assert drive(stream, coverage, by_rows=False, warm=warm, batches=batches).batches <= SLACK + chance


@pytest.mark.slow
@pytest.mark.parametrize("by_rows", [True, False])
def test_restarts_take_nothing_from_that(*, by_rows: bool) -> None:
    found = drive(STREAMS[2], 0.99, by_rows=by_rows, warm=400, batches=1_500, restart_every=60)
    assert (found.rows if by_rows else found.batches) <= SLACK


@pytest.mark.parametrize("told", [True, False])
def test_a_batch_that_is_late_as_a_whole_weighs_as_many_rows_as_it_has(*, told: bool) -> None:
    """The batch is in order, so only earlier batches show its lateness; without row times, all its rows are late."""
    bounds, rows = AdaptiveBounds(PARAMS, {}, {}), 200
    for batch in range(60):
        at_us = 0 if batch % 20 == 19 else batch * SECOND_US
        times: dict[SplitId, Mapping[int, int]] = {"a": {at_us: rows}} if told else {}
        report = BatchReported(batch, batch, {"a": at_us}, {"a": at_us}, {"a": rows}, lateness={"a": {0: rows}})
        bounds.learn(replace(report, times=times))
    assert bounds.bound_us("a") >= 58 * SECOND_US
    assert bounds.beyond("a") == 3 * rows


@pytest.mark.parametrize("seed", range(4))
def test_rows_are_told_to_be_as_late_as_they_are_or_a_sixteenth_of_the_way_to_the_first_later(seed: int) -> None:
    chance = np.random.default_rng(seed)
    times_us = 10**15 + chance.integers(-(10**9), 10**9, 3_000)
    seen = SliceLateness()
    for portion in np.split(times_us, [1, 700, 700, 2_000]):
        seen.add(portion)
    assert sum(seen.times.values()) == sum(seen.behind.values()) == len(times_us)
    told_us = np.repeat(np.fromiter(seen.times, np.int64), np.fromiter(seen.times.values(), np.int64))
    told_us, exact_us = np.sort(told_us), np.sort(times_us)
    off_us = exact_us - told_us
    assert (off_us >= 0).all(), f"seed {seed}"
    assert (off_us <= np.abs(exact_us - times_us[0]) // 16 + 1).all(), f"seed {seed}"


@pytest.mark.slow
def test_a_split_takes_a_few_kilobytes_whatever_it_shows() -> None:
    bounds = AdaptiveBounds(WatermarkStrategy.for_adaptive_out_of_orderness().adaptive, {}, {})  # type: ignore[arg-type]
    chance, splits = np.random.default_rng(1), range(500)
    tracemalloc.start()
    for batch in range(3):
        counted = {int(bucket): 1 for bucket in buckets_of(chance.integers(0, 2**62, 500))}
        times = {int(at_us): 1 for at_us in chance.integers(0, 2**62, 500)}
        watermarks_us: dict[SplitId, int] = dict.fromkeys(splits, 2**60)
        every = dict.fromkeys(splits, counted), dict.fromkeys(splits, times)
        bounds.learn(BatchReported(batch, batch, watermarks_us, lateness=every[0], times=every[1]))  # type: ignore[arg-type]
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / len(splits) < 4_000


@pytest.mark.slow
@pytest.mark.parametrize("stream", STREAMS, ids=[stream.name for stream in STREAMS])
def test_the_bound_that_an_audit_advises_covers_what_it_says_when_it_is_replayed(stream: LateStream) -> None:
    rows, count = 50, 1_500
    times_us = np.concatenate([at_us for _, at_us in zip(range(count), stream.batches(1, rows), strict=False)])
    every, clock_us = np.ones(len(times_us), np.bool_), START_US + np.arange(count) * SECOND_US
    profile = SplitProfile()
    profile.add(times_us, every, latest_us=np.full(len(times_us), 2**62))
    advised = advise({"a": (profile, None)}, 60 * SECOND_US).strategy
    replay = Replay(
        ["a"], delays_us=[advised.out_of_orderness_us], window_us=None, strategy=WatermarkStrategy(), now_us=START_US
    )
    ends, none = np.arange(1, count + 1) * rows, np.zeros(count, np.int64)
    replay.take(Batches(np.zeros(len(times_us), np.int64), times_us, every, ends, clock_us, none))
    assert replay.lowmark.dropped.sum() <= (1 - SHARE) * len(times_us)


# --- in the coordinator

STRATEGY = WatermarkStrategy.for_adaptive_out_of_orderness(coverage=0.9, at_least="1 second", at_most="1 minute")


def watermarks() -> SplitWatermarks:
    return SplitWatermarks(STRATEGY, job_id="j", source_id="s", task_id="t")


def batch_of(number: int, chance: random.Random, splits: list[str], spread_s: float) -> BatchReported:
    """Make a report as our sources do: the watermark is made with the smallest bound."""
    tops: dict[SplitId, int] = {}
    firsts: dict[SplitId, int] = {}
    lateness: dict[SplitId, Mapping[int, int]] = {}
    for split in splits:
        top_us = number * 10 * SECOND_US - chance.randrange(5 * SECOND_US)
        behind_us = np.array([int(chance.expovariate(1 / spread_s) * SECOND_US) for _ in range(40)])
        tops[split] = STRATEGY.watermark_of_max(top_us)
        firsts[split] = top_us - int(behind_us.max())
        lateness[split] = dict(Counter(buckets_of(behind_us).tolist()))
    return BatchReported(number, number, tops, firsts, lateness=lateness)


@pytest.mark.parametrize("seed", range(draws(10)))
def test_no_watermark_goes_back_when_a_bound_grows(seed: int) -> None:
    chance, stream = random.Random(seed), watermarks()
    low_us, watermarks_us, grew = -(2**63), dict.fromkeys("abc", -(2**63)), 0
    for number in range(150):
        before = {name: split.bound_us or 0 for name, split in stream.status(number).splits.items()}
        if number % 7 == 3:
            claims: dict[SplitId, int] = {
                "b": STRATEGY.watermark_of_max(number * 10 * SECOND_US + chance.randrange(SECOND_US))
            }
            stream.handle(BatchPlanned(number, claims), number)
        spread_s = 10.0 if 60 <= number < 90 else 0.5
        splits = [split for split in "abc" if number < 5 or chance.random() < 0.8]
        report = batch_of(number, chance, splits, spread_s)
        stream.handle(report, number)
        told = stream.status(number)
        stream.handle(report, number)  # a repeated batch changes no bound
        assert stream.status(number).splits == told.splits, f"seed {seed}"
        for name, split in told.splits.items():
            assert split.watermark_us is None or split.watermark_us >= watermarks_us[name], f"seed {seed}, {number}"
            watermarks_us[name] = split.watermark_us if split.watermark_us is not None else watermarks_us[name]
            grew += (split.bound_us or 0) > before.get(name, 0)
        now_us = told.low_watermark_us
        assert now_us is None or now_us >= low_us, f"seed {seed}, batch {number}"
        low_us = low_us if now_us is None else now_us
        assert told.regressions == 0, f"seed {seed}: a bound that grows is no fault of the split"
    assert low_us > (149 * 10 - 75) * SECOND_US, f"seed {seed}: it does not go on"
    assert grew > 3, f"seed {seed}: nothing was tried"
    assert any(split.beyond_bound for split in stream.status(0).splits.values())


def test_bounds_come_back_after_a_restart_and_fade_like_the_batches_they_came_of() -> None:
    chance, stream = random.Random(1), watermarks()
    for number in range(100):
        stream.handle(batch_of(number, chance, ["a", "b"], 3.0), number)
    saved = stream.snapshot()
    bound_us = stream.status(0).splits["a"].bound_us
    assert decode(saved).bounds_us["a"] == bound_us
    assert bound_us is not None
    assert SECOND_US < bound_us < 60 * SECOND_US
    restored = SplitWatermarks.restore(saved, STRATEGY, job_id="j", source_id="s", task_id="t", now_us=0)
    assert restored.snapshot() == saved
    assert restored.status(0).splits["a"].bound_us == bound_us
    restored.handle(batch_of(100, chance, ["a", "b"], 3.0), 100)
    after_us = restored.status(0).splits["a"].bound_us
    assert after_us is not None
    assert bound_us <= after_us <= bound_us * 1.2
    for number in range(101, 500):
        restored.handle(batch_of(number, chance, ["a", "b"], 0.2), number)
    assert restored.status(0).splits["a"].bound_us == SECOND_US


def test_a_bound_of_an_unknown_number_of_rows_holds_until_enough_was_seen_anew() -> None:
    old = encode(StreamSnapshot(0, {"a": (SplitState.ACTIVE, 0)}, bounds_us={"a": 7 * SECOND_US}))
    stream = SplitWatermarks.restore(old, STRATEGY, job_id="j", source_id="s", task_id="t", now_us=0)
    assert decode(stream.snapshot()).bounds_us["a"] >= 7 * SECOND_US
    chance = random.Random(2)
    for number in range(1, 5 + ENOUGH_ROWS // 40):
        assert (stream.status(0).splits["a"].bound_us or 0) >= 7 * SECOND_US or number > ENOUGH_ROWS // 40
        stream.handle(batch_of(number, chance, ["a"], 0.2), number)
    assert stream.status(0).splits["a"].bound_us == SECOND_US
    assert decode(stream.snapshot()).bound_rows["a"] > ENOUGH_ROWS // 2


def test_what_adaptive_bounds_left_can_be_read_by_a_strategy_without() -> None:
    stream = watermarks()
    for number in range(60):
        stream.handle(batch_of(number, random.Random(number), ["a"], 1.0), number)
    assert decode(stream.snapshot()).bounds_us
    back = SplitWatermarks.restore(
        stream.snapshot(), WatermarkStrategy(), job_id="j", source_id="s", task_id="t", now_us=0
    )
    assert back.low_watermark_us == stream.low_watermark_us
    assert back.status(0).splits["a"].bound_us is None


LOWEST_US = STRATEGY.watermark_of_max(-(2**63))


@pytest.mark.parametrize("earliest_us", [-(2**63), -(2**63) + 59 * SECOND_US])
@pytest.mark.parametrize("column", [True, False])
def test_a_time_at_the_beginning_of_64_bits_is_taken_as_the_bounded_strategy_takes_it(
    earliest_us: int, *, column: bool
) -> None:
    """`CAST(long AS timestamp)` saturates at these times, so sentinels become them."""

    def report(number: int, top_us: int, first_us: int) -> BatchReported:
        at_us: Mapping[SplitId, int] = {7: STRATEGY.watermark_of_max(top_us)}
        if column:
            at_us = SplitColumn(np.array([7], np.uint64), np.array(list(at_us.values())))
        return BatchReported(number, number, at_us, {7: first_us}, {7: 2})

    stream = watermarks()
    stream.handle(report(0, earliest_us, earliest_us), 0)  # only sentinels
    assert stream.low_watermark_us == LOWEST_US
    for number in range(1, 30):  # a sentinel among good rows
        stream.handle(report(number, number * SECOND_US, earliest_us), number)
        stream.handle(BatchPlanned(number, {7: LOWEST_US}), number)
    stream.handle(report(30, 100 * SECOND_US, earliest_us), 30)
    assert stream.low_watermark_us == 100 * SECOND_US - STRATEGY.delay_ms * 1_000 - 1_000
    assert SplitWatermarks.restore(
        stream.snapshot(), STRATEGY, job_id="j", source_id="s", task_id="t", now_us=0
    ).low_watermark_us == stream.low_watermark_us  # fmt: skip


@pytest.mark.parametrize("at_us", [2**63, -(2**63) - 1])
def test_a_watermark_beyond_64_bits_is_refused_and_nothing_is_applied(at_us: int) -> None:
    for event in (BatchReported(0, 0, {"a": 5, "b": at_us}), BatchPlanned(0, {"a": 5, "b": at_us})):
        stream = watermarks()
        with pytest.raises(InvalidWatermark):
            stream.handle(event, 0)
        assert stream.splits == ()


def test_the_future_guard_looks_at_a_claim_before_the_bound_is_taken_off() -> None:
    guard_us = STRATEGY.future_guard_us
    assert guard_us is not None
    most_us = STRATEGY.watermark_of_max(10 * SECOND_US + guard_us)  # watermark of the last row that passes the guard
    stream = watermarks()
    stream.handle(BatchPlanned(10 * SECOND_US, {"a": most_us, "b": most_us + 1_000}), 0)
    found = stream.status(0).splits
    assert found["a"].watermark_us == most_us - (STRATEGY.delay_ms - 1_000) * 1_000
    assert found["b"].watermark_us is None


@pytest.mark.parametrize(
    "given",
    [
        {"coverage": 0}, {"coverage": 1}, {"coverage": 99.9}, {"coverage": True}, {"at_least": "11 minutes"},
        {"at_most": "0.0005 seconds", "at_least": "0 seconds"},
    ],
)  # fmt: skip
def test_bounds_that_cannot_be_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(InvalidStrategy, match="for_adaptive_out_of_orderness"):
        WatermarkStrategy.for_adaptive_out_of_orderness(**given)  # type: ignore[arg-type]
