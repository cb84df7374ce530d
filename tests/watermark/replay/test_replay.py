"""The replay against its definition, row by row, and the histogram against sorting."""

from __future__ import annotations

import random

import numpy as np
import pytest
from lowmark.watermark import WatermarkStrategy
from lowmark.watermark.lateness import LatenessHistogram, buckets_of, upper_edges
from lowmark.watermark.replay.advice import advise
from lowmark.watermark.replay.open_rows import OpenRows
from lowmark.watermark.replay.profile import Silence, SplitProfile
from lowmark.watermark.replay.replay import Batches, Replay
from lowmark.watermark.splits.events import BatchReported, SplitsDiscovered, Tick
from lowmark.watermark.splits.stream import SplitWatermarks

SECOND_US = 1_000_000
NOW_US = 1_700_000_000 * SECOND_US
Row = tuple[int, int]  # split, event time
NO_TIME_US = NOW_US - 1  # stands for a row without an event time, and is later than all others that are believed


def random_batches(seed: int) -> list[list[Row]]:
    """Return batches of three splits out of order: one behind, one with a bad clock, one finally silent."""
    chance = random.Random(seed)
    batches = []
    for batch in range(chance.randint(1, 40)):
        front_us = NOW_US - 3_600 * SECOND_US + batch * 10 * SECOND_US
        rows = []
        for _ in range(chance.randint(0, 20)):
            split = chance.randrange(3 if batch < 20 else 2)
            behind_us = chance.randrange(20 * SECOND_US) + (60 * SECOND_US if split == 1 else 0)
            rows.append((split, front_us - behind_us))
        if chance.random() < 0.1:
            rows.append((0, NOW_US + chance.choice([1, 1_000]) * 60 * SECOND_US))
        if chance.random() < 0.1:
            rows.append((1, -chance.randrange(100 * SECOND_US)))
        if chance.random() < 0.2:
            rows += [(chance.randrange(3), NO_TIME_US)] * 2
        batches.append(rows)
    return batches


def random_pauses(seed: int, count: int) -> list[int]:
    """Return how many triggers before each batch find no row."""
    chance = random.Random(f"pauses {seed}")
    return [chance.choice((0, 0, 0, 1, 2, 5)) for _ in range(count)]


def with_empty_batches(batches: list[list[Row]], pauses: list[int], most: int) -> list[list[Row]]:
    """Put up to this many batches without rows where triggers find no row."""
    empty: list[list[Row]] = [[]]
    return [each for pause, batch in zip(pauses, batches, strict=True) for each in [*empty * min(pause, most), batch]]


def replayed(
    batches: list[list[Row]],
    delays_us: list[int],
    window_us: int | None,
    cuts: int = 1,
    pauses: list[int] | None = None,
) -> Replay:
    """Replay all batches in this many calls."""
    pauses = [0] * len(batches) if pauses is None else pauses
    replay = Replay(
        ["a", "b", "c"], delays_us=delays_us, window_us=window_us, strategy=WatermarkStrategy(), now_us=NOW_US
    )
    size = -(-len(batches) // cuts)
    for first in range(0, len(batches), size):
        some = batches[first : first + size]
        rows = [row for batch in some for row in batch]
        replay.take(
            Batches(
                np.array([split for split, _ in rows], np.int64),
                np.array([time_us for _, time_us in rows], np.int64),
                np.array([time_us != NO_TIME_US for _, time_us in rows], np.bool_),
                np.cumsum([len(batch) for batch in some]),
                NOW_US + np.arange(first, first + len(some)),
                np.array(pauses[first : first + size], np.int64),
            )
        )
    replay.finish()
    return replay


def timed(batch: list[Row]) -> list[Row]:
    return [row for row in batch if row[1] != NO_TIME_US]


def late_natively(batches: list[list[Row]], delay_us: int, window_us: int | None) -> list[int]:
    """Count by Spark's rule: batch n drops by the watermark of batch n - 1, computed from batches up to n - 2."""
    late = [0, 0, 0]
    for number, batch in enumerate(batches):
        seen_ms = [time_us // 1_000 for before in batches[: max(0, number - 1)] for _, time_us in timed(before)]
        watermark_ms = max(0, max(seen_ms) - delay_us // 1_000) if seen_ms else 0
        for split, time_us in timed(batch):
            end_us = time_us if window_us is None else (time_us // window_us + 1) * window_us
            late[split] += end_us <= watermark_ms * 1_000
    return late


def late_under_lowmark(batches: list[list[Row]], bound_us: int, window_us: int | None) -> list[int]:
    """Count by the coordinator's low watermark with this bound, three batches later; a guarded row reports nothing."""
    strategy = WatermarkStrategy(out_of_orderness_us=bound_us)
    of_splits = SplitWatermarks(strategy, job_id="j", source_id="s", task_id="t")
    of_splits.handle(SplitsDiscovered((0, 1, 2)), NOW_US)
    lows: list[int | None] = []
    late = [0, 0, 0]
    for number, batch in enumerate(batches):
        in_force = lows[number - 3] if number >= 3 else None
        watermark_us = 0 if in_force is None else max(0, in_force)
        tops: dict[int | str, int] = {}
        for split, time_us in timed(batch):
            end_us = time_us if window_us is None else (time_us // window_us + 1) * window_us
            late[split] += end_us <= watermark_us
            if time_us <= NOW_US + number + 300 * SECOND_US:
                tops[split] = max(time_us, tops.get(split, time_us))
        watermarks = {split: strategy.watermark_of_max(top_us) for split, top_us in tops.items()}
        of_splits.handle(BatchReported(number, NOW_US + number, watermarks), NOW_US + number)
        of_splits.handle(Tick(), NOW_US + number)
        lows.append(of_splits.low_watermark_us)
    return late


@pytest.mark.parametrize("window_us", [None, 7 * SECOND_US, 60 * SECOND_US])
@pytest.mark.parametrize("seed", range(12))
def test_a_replay_drops_what_the_rules_say(seed: int, window_us: int | None) -> None:
    batches = random_batches(seed)
    pauses = random_pauses(seed, len(batches)) if seed % 2 else [0] * len(batches)
    delays_us = [0, 5 * SECOND_US, 15_123_000, 90 * SECOND_US]
    replay = replayed(batches, delays_us, window_us, 1 + seed % 4, pauses)
    natively, under_lowmark = with_empty_batches(batches, pauses, 1), with_empty_batches(batches, pauses, 2)
    for row, delay_us in enumerate(delays_us):
        told = f"seed {seed}, window {window_us}, delay {delay_us}"
        assert replay.native.dropped[row].tolist() == late_natively(natively, delay_us, window_us), told
        assert replay.lowmark.dropped[row].tolist() == late_under_lowmark(under_lowmark, delay_us, window_us), told


@pytest.mark.parametrize("seed", range(12))
def test_the_smallest_delay_is_the_smallest(seed: int) -> None:
    batches = random_batches(seed)
    before_1970 = sum(time_us <= 0 for batch in batches for _, time_us in timed(batch))
    smallest_us = replayed(batches, [0], None).native.smallest_delay_us
    assert sum(late_natively(batches, smallest_us, None)) == before_1970, f"seed {seed}"
    if smallest_us:
        assert sum(late_natively(batches, smallest_us - 1_000, None)) > before_1970, f"seed {seed}"


def test_state_is_what_is_open_at_most_at_once() -> None:
    # One split in order, a row per second, batches of ten: a delay of a minute keeps a minute and the batches not yet
    # in force.
    rows = [(0, NOW_US - 10_000 * SECOND_US + second * SECOND_US) for second in range(6_000)]
    batches = [rows[first : first + 10] for first in range(0, len(rows), 10)]
    kept = replayed(batches, [60 * SECOND_US], None).native.kept_at(60 * SECOND_US)
    assert kept is not None
    assert 60 <= kept <= 90


def test_an_idle_split_does_not_hold_where_the_clock_goes_on() -> None:
    replay = Replay(
        ["a", "silent"],
        delays_us=[0],
        window_us=None,
        strategy=WatermarkStrategy().with_idleness("1 minute"),
        now_us=NOW_US,
    )
    count = 100
    replay.take(
        Batches(
            np.array([1] + [0] * (count - 1)),
            NOW_US + np.arange(count) * 10 * SECOND_US,
            np.ones(count, np.bool_),
            np.arange(1, count + 1),
            NOW_US + np.arange(count) * 10 * SECOND_US,
            np.zeros(count, np.int64),
        )
    )
    replay.finish()
    low_us = replay.moments[-1].low_us
    assert low_us is not None
    assert low_us > NOW_US + 900 * SECOND_US


@pytest.mark.parametrize("seed", range(5))
def test_a_quantile_never_says_too_little_and_at_most_a_sixteenth_too_much(seed: int) -> None:
    chance = np.random.default_rng(seed)
    values = (chance.lognormal(10, 4, 5_000)).astype(np.int64)
    lateness, other = LatenessHistogram(), LatenessHistogram()
    lateness.add(values[:2_000])
    other.add(values[2_000:])
    lateness.merge(other)
    in_order = np.sort(values)
    for share in (0.01, 0.5, 0.9, 0.999, 0.9999, 1.0):
        exact = in_order[max(1, int(np.ceil(len(values) * share - 1e-9))) - 1]
        assert exact <= lateness.quantile_us(share) <= exact + exact // 16, f"seed {seed}, share {share}"


def test_buckets_are_in_order_over_all_of_64_bits() -> None:
    values = np.unique([0, *(2**k + d for k in range(1, 63) for d in (-1, 0, 1)), 2**63 - 1])
    assert (np.diff(buckets_of(values)) >= 0).all()
    assert (upper_edges(buckets_of(values)) >= values).all()


def test_open_rows_stay_few_bins_whatever_comes() -> None:
    rows = OpenRows(1)
    rows.add(np.arange(0, 10_000_000, 50, dtype=np.int64))
    assert len(rows._bins) <= 1 << 16
    assert abs(int(rows.above(np.array([5_000_000]))[0]) - 100_000) < 200


def test_an_advised_bound_covers_the_rows_that_it_names_also_with_times_of_1970_among_them() -> None:
    profile, times_us = SplitProfile(), NOW_US + np.arange(1_000) * SECOND_US
    times_us[::100] = 0  # a missing time that a producer wrote as 0
    profile.add(times_us, np.ones(1_000, np.bool_), latest_us=np.full(1_000, 2**62))
    advised = advise({"a": (profile, None)}, 60 * SECOND_US)

    assert advised.strategy.out_of_orderness_us >= profile.disorder.largest_us
    assert "all rows; a comes up to" in advised.code()


def test_a_profile_is_the_same_however_its_rows_are_cut() -> None:
    chance = np.random.default_rng(3)
    times_us = NOW_US + chance.integers(-(10**9), 10**9, 1_000)
    times_us[[5, 500]] = [NOW_US + 10**15, -7]
    latest_us = np.full(1_000, NOW_US + 10**10)
    written_us = NOW_US + np.cumsum(chance.integers(0, 10**6, 1_000))
    timed = np.arange(1_000) % 97 != 0
    whole, cut = SplitProfile(), SplitProfile()
    whole.add(times_us, timed, latest_us=latest_us, written_us=written_us)
    for part in np.split(np.arange(1_000), [1, 2, 300, 301, 900]):
        cut.add(times_us[part], timed[part], latest_us=latest_us[part], written_us=written_us[part])
    for share in (0.5, 0.9, 1.0):
        assert whole.disorder.quantile_us(share) == cut.disorder.quantile_us(share)
    assert (whole.rows, whole.future_rows, whole.before_epoch_rows) == (1_000, 1, 1)
    assert (whole.first_us, whole.last_us, whole.silence) == (cut.first_us, cut.last_us, cut.silence)


def test_a_bad_clock_of_a_producer_is_no_silence() -> None:
    profile = SplitProfile()
    # No time of writing, the present, a year ahead, then a silence of 90 seconds.
    written_us = np.array(
        [-1_000, NOW_US, NOW_US + 365 * 86_400 * SECOND_US, NOW_US + SECOND_US, NOW_US + 91 * SECOND_US]
    )
    latest_us = np.full(5, NOW_US + 300 * SECOND_US)
    profile.add(written_us, np.ones(5, np.bool_), latest_us=latest_us, written_us=written_us)
    profile.add(written_us[:1], np.ones(1, np.bool_), latest_us=latest_us[:1], written_us=written_us[:1])

    assert profile.silence == Silence(NOW_US + SECOND_US, 90 * SECOND_US)
    assert profile.written_us == (NOW_US, NOW_US + 91 * SECOND_US)
