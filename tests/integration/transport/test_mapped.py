"""Rows of a wrapped stream that Python measures, before Spark 4.2 and for strategies with functions; no Spark here."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lowmark.integration.errors import TooManySplits
from lowmark.integration.transport.accumulated import BatchTrack, TrackParam
from lowmark.integration.transport.mapped import BatchMap, MappedMeasure, _Reduction, _text
from lowmark.integration.transport.split_key import SplitKey
from lowmark.watermark import InvalidStrategy, WatermarkStrategy
from lowmark.watermark.generator import BoundedOutOfOrderness, NoWatermarks
from lowmark.watermark.splits.events import BatchCounts

KEY = SplitKey(("topic", "partition"), ("string", "int"))
SECOND_US = 1_000_000
NOW_US = 1_700_000_000 * SECOND_US
ATTEMPTS = itertools.count(1_000)


def batch_of(*rows: tuple[str | None, int | None, int | None]) -> Any:
    """An Arrow batch of (topic, partition, microseconds)."""
    import pyarrow as pa

    topics, partitions, times = zip(*rows, strict=True) if rows else ((), (), ())
    columns = [
        pa.array(topics, pa.string()),
        pa.array(partitions, pa.int32()),
        pa.array(times, pa.timestamp("us", tz="Europe/Berlin")),
    ]
    return pa.record_batch(columns, names=["topic", "partition", "ts"])


def task_of(strategy: WatermarkStrategy, key: SplitKey = KEY, *, cell: int = 0) -> _Reduction:
    nobody: Any = None  # nothing is sent
    return _Reduction(BatchMap("orders", key.columns, key.integral, "ts", strategy, nobody), cell=cell)


def reduced(
    *batches: Sequence[tuple[str | None, int | None, int | None]], cell: int = 0, attempt: int | None = None
) -> BatchTrack:
    """Return a task's track of Arrow batches of (topic, partition, microseconds); by default, of a new attempt."""
    reduction = task_of(WatermarkStrategy.for_monotonous_timestamps().with_future_guard("1 minute"), cell=cell)
    reduction._future_limit_us = NOW_US
    for rows in batches:
        batch = batch_of(*rows)
        assert reduction.see(batch) is batch
    return reduction.track(attempt=next(ATTEMPTS) if attempt is None else attempt)


def measured(*tracks: BatchTrack, key: SplitKey = KEY, **options: Any) -> Any:
    accumulator: Any = SimpleNamespace(value={})
    for track in tracks:
        TrackParam().addInPlace(accumulator.value, {("query", 7): track})
    strategy = options.pop("strategy", WatermarkStrategy.for_monotonous_timestamps())
    options = {"max_splits": 16, "detail": True, **options}
    return MappedMeasure(accumulator, "orders", key, **options).report("query", 7, {}, strategy)


def test_batches_are_reduced_to_the_largest_time_of_each_split() -> None:
    a, b = KEY.split_id(("orders", 0)), KEY.split_id(("orders", 1))
    first = reduced([("orders", 0, 5_000), ("orders", 1, 9_000)], [], [("orders", 0, 7_000), ("orders", 0, 1_000)])
    other = reduced([("orders", 1, 4_000)], cell=1)
    found = measured(first, other)

    assert dict(found.watermarks_us) == {a: 6_000, b: 8_000}
    assert (found.first_us, found.rows) == ({a: 1_000, b: 4_000}, {a: 3, b: 2})
    assert found.counts == BatchCounts(rows=5)
    assert found.names == {a: "orders/0", b: "orders/1"}
    again = reduced([("orders", 0, 5_000), ("orders", 1, 9_000)], [("orders", 0, 7_000), ("orders", 0, 1_000)])
    assert measured(first, other, again) == found, "a task that ran again changes nothing"


def test_partitions_that_one_task_coalesces_add_up() -> None:
    """Spark computes the partitions of `coalesce(1)` in a single task, under a single task number."""

    def tracks(attempt: int) -> list[BatchTrack]:
        return [
            reduced([("orders", 0, 5_000), ("orders", 0, 6_000), ("orders", 1, NOW_US + 1)], attempt=attempt),
            reduced([("orders", 0, 4_000), ("orders", 1, None)], attempt=attempt),
            reduced([("orders", 2, 9_000)], attempt=attempt),
        ]

    found = measured(*tracks(7))
    a, c = KEY.split_id(("orders", 0)), KEY.split_id(("orders", 2))
    assert found.counts == BatchCounts(6, future_rows=1, null_time_rows=1)
    assert (found.rows, dict(found.watermarks_us)) == ({a: 3, c: 1}, {a: 5_000, c: 8_000})
    one, two = tracks(7), tracks(8)
    assert measured(*one, *two) == measured(*itertools.chain(*zip(one, two, strict=True))) == found, "speculation"


def test_late_rows_of_coalesced_partitions_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowmark.integration.transport.mapped.of_this_batch", lambda: 5_000)
    merged: dict[tuple[str, int], BatchTrack] = {}
    for attempt in (7, 7, 8, 8):
        task = task_of(WatermarkStrategy.for_monotonous_timestamps())
        task.see(batch_of(("orders", 0, 4_000), ("orders", 0, 6_000)))
        TrackParam().addInPlace(merged, {("query", 7): task.track(attempt=attempt)})
    assert list((merged["query", 7].late_rows() or {}).values()) == [2]
    assert merged["query", 7].tracker.counts() == BatchCounts(4)


@pytest.mark.parametrize("kind", ["int", "string"])
def test_a_generator_sees_the_rows_that_have_a_split(kind: str) -> None:
    """As in the JVM, null is a split of a text, and none of a number."""
    import pyarrow as pa

    key, strategy = SplitKey(("n",), (kind,)), WatermarkStrategy.for_generator(lambda: BoundedOutOfOrderness(0))
    task = task_of(strategy, key)
    values: Any = pa.array([7, None], pa.int32()) if kind == "int" else pa.array(["7", None])
    task.see(pa.record_batch([values, pa.array([5_000, 9_000], pa.timestamp("us", "UTC"))], names=["n", "ts"]))

    found = measured(task.track(attempt=0), key=key, strategy=strategy)
    seven = key.split_id((7 if kind == "int" else "7",))
    null = {} if kind == "int" else {key.split_id((None,)): 8_000}
    assert found.watermarks_us == {seven: 4_000, **null}
    assert found.counts == BatchCounts(2, null_split_rows=1)
    assert len(task._generators._of) == 1 + len(null)


@pytest.mark.parametrize("call", ["mark_idle", "mark_active"])
def test_a_generator_that_marks_its_split_idle_is_told_what_to_use_instead(call: str) -> None:
    class Idle(NoWatermarks):
        def on_event(self, event: object, timestamp_us: int, output: object) -> None:
            del event, timestamp_us
            getattr(output, call)()

    task = task_of(WatermarkStrategy.for_generator(Idle))
    with pytest.raises(InvalidStrategy, match=r"mark_idle\(\) or mark_active\(\)\. Hint: .* with_idleness\(\)"):
        task.see(batch_of(("orders", 0, 5_000)))


class Emits(NoWatermarks):
    value: Any = None

    def on_event(self, event: object, timestamp_us: int, output: Any) -> None:
        del event, timestamp_us
        output.emit_watermark(self.value)


def emitted(value: Any) -> BatchTrack:
    strategy = WatermarkStrategy.for_generator(type("Emits", (Emits,), {"value": value}))
    task = task_of(strategy)
    task.see(batch_of(("orders", 0, 5_000), ("orders", 0, 5_000)))
    return task.track(attempt=0)


@pytest.mark.parametrize("value", [5e6, 2**63, float("nan"), float("inf"), None, "1"], ids=repr)
def test_a_watermark_that_is_no_int_is_refused_in_the_task(value: Any) -> None:
    """The driver would look for a float in a range of 64 bits, number by number."""
    with pytest.raises(InvalidStrategy, match=r"expected microseconds since the epoch as an int, .* got emit_waterm"):
        emitted(value)


def test_a_generator_may_emit_integers_of_numpy() -> None:
    (found,) = emitted(np.int64(7_000)).watermarks_us.values()
    assert (type(found), found) == (int, 7_000)


def test_rows_that_move_nothing_are_counted_by_what_is_wrong_with_them() -> None:
    found = measured(
        reduced([
            ("orders", 0, 5_000), ("orders", 0, NOW_US + 1), ("orders", 0, None), (None, None, 3_000),
            (None, 1, None), ("orders", 0, -1), ("orders", 1, NOW_US + 2),
        ])
    )  # fmt: skip

    assert found.counts == BatchCounts(7, future_rows=2, null_time_rows=1, null_split_rows=2, before_epoch_rows=1)
    assert dict(found.watermarks_us)[KEY.split_id(("orders", 0))] == 4_000
    assert KEY.split_id(("orders", 1)) not in found.watermarks_us, "its only row is ahead of the clock"
    assert {KEY.split_id(("orders", n)): 1 for n in (0, 1)} == found.future_rows, "whose clocks are wrong"
    assert found.newest_us == NOW_US + 2


def test_more_groups_than_are_kept_are_grouped_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowmark.integration.transport.mapped._MOST_GROUPS", 3)
    found = measured(reduced(*([("orders", n, 1_000 * at) for n in range(4)] for at in range(1, 6))))

    assert sorted(found.watermarks_us.values()) == [4_000] * 4
    assert set(found.rows.values()) == {5}


def test_more_splits_than_declared_end_the_query() -> None:
    with pytest.raises(TooManySplits, match="17"):
        measured(reduced([("orders", n, 1_000) for n in range(17)]))


@pytest.mark.parametrize("strategy", [
    WatermarkStrategy.for_monotonous_timestamps().with_future_guard("106751991 days"),  # the largest that is a guard
    WatermarkStrategy.for_generator(lambda: BoundedOutOfOrderness(0)),
])  # fmt: skip
def test_values_to_which_spark_gives_one_id_are_one_split_as_in_the_jvm(strategy: WatermarkStrategy) -> None:
    """Spark's hash passes over nulls: the last of the values was the whole split."""
    import pyarrow as pa

    key = SplitKey(("a", "b"), ("string", "string"))
    task = task_of(strategy, key)
    columns: list[Any] = [pa.array(["x", None]), pa.array([None, "x"]), pa.array([9_000, 5_000], pa.timestamp("us"))]
    task.see(pa.record_batch(columns, names=["a", "b", "ts"]))

    found, split = measured(task.track(attempt=0), key=key, strategy=strategy), key.split_id(("x", None))
    assert split == key.split_id((None, "x"))
    assert dict(found.watermarks_us) == {split: 8_000}
    assert (found.first_us, found.rows) == ({split: 5_000}, {split: 2})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("string", 'a"b'), ("string", ""), ("bigint", 2**62), ("date", dt.date(2024, 2, 29)), ("binary", b"\0\xff"),
        ("boolean", True), ("tinyint", -1),
    ],
)  # fmt: skip
def test_ids_of_splits_are_those_that_the_jvm_makes(kind: str, value: Any) -> None:
    key = SplitKey(("device", "kind"), (kind, "string"))
    accumulator: Any = None  # nothing is read
    made = MappedMeasure(accumulator, "s", key, 16, detail=False)
    assert made._split(_text((value, None))) == (key.split_id((value, None)), key.name((value, None)))


def test_ids_of_splits_are_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file that a source of ours reads is a split, and a query may read files for months."""
    monkeypatch.setattr("lowmark.integration.transport.mapped._MOST_KNOWN", 100)
    accumulator: Any = None  # nothing is read
    made = MappedMeasure(accumulator, "s", KEY, 16, detail=False)
    found = [made._split(_text(("orders", number))) for number in range(1_000)]

    assert found == [(KEY.split_id(("orders", number)), f"orders/{number}") for number in range(1_000)]
    assert len(made._known) <= 100
