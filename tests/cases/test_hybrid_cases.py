"""Flink's own cases for hybrid sources (FLIP-150)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest
from lowmark.sources import Fetched, SourceSplit, SplitReader, SplitsAddition
from lowmark.sources.api import SplitChange
from lowmark.sources.hybrid import HybridSource, HybridSplit
from lowmark.sources.kit.simple import SimpleSplitReader

from tests.cases.deviations import DEVIATIONS
from tests.cases.reader import Case, case_id, family
from tests.sources.hybrid.test_hybrid import SCHEMA, Driver, Numbers


def many(count: int) -> Driver:
    """Make some sources, each with splits for two readers."""
    return Driver(*(Numbers("a", splits=4) for _ in range(count)))


def a_switch_waits_for_both_readers(driver: Driver, index: int) -> None:
    assert driver.index == index
    present = [split_id for split_id in driver.ids() if split_id.startswith(f"{index}:")]
    assert len(present) == 4
    driver.finish(index % 2)
    assert driver.index == index
    driver.finish(1 - index % 2)


def waiting(like: Driver) -> Driver:
    """Start an enumerator of the same sources, without a registered reader."""
    driver = Driver.__new__(Driver)
    driver.source, driver.context = like.source, type(like.context)(num_subtasks=2)
    driver.enumerator = like.source.create_enumerator(driver.context)
    driver.enumerator.start()
    driver.run()
    return driver


def high_cardinality(case: Case) -> None:
    full = many(130)
    assert waiting(full).ids() == []  # no reader is registered, which is Flink's finished(-1)
    for index in range(129):
        a_switch_waits_for_both_readers(full, index)

    assert full.index == 129
    assert len(full.ids()) == 130 * 4


def restore(case: Case) -> None:
    driver = Driver(Numbers("a", splits=4), Numbers("b"))
    without = driver.restored()
    for subtask in (0, 1):
        without.register(subtask)
    without.run()
    assert without.ids() == []  # the readers have all splits

    half = waiting(Driver(Numbers("a"), Numbers("b")))
    half.register(0)
    half.run()
    remaining = half.restored()
    for subtask in (0, 1):
        remaining.register(subtask)
    remaining.run()
    assert sorted([*half.ids(), *remaining.ids()]) == ["0:a0", "0:a4"]
    assert len(remaining.ids()) == 1  # the split waited for its reader


def multi_subtask_switch(case: Case) -> None:
    driver = many(3)
    for index in (0, 1):
        a_switch_waits_for_both_readers(driver, index)

    assert driver.index == 2


def reader_recovery(case: Case) -> None:
    """Splits of a checkpoint carry the number of their source, and reach its reader before the first fetch."""
    seen: list[str] = []

    class WatchedReader(SimpleSplitReader[SourceSplit]):
        def handle_splits_changes(self, change: SplitChange[SourceSplit]) -> None:
            seen.append("splits")
            super().handle_splits_changes(change)

        def fetch(self) -> Fetched:
            seen.append("fetch")
            return super().fetch()

    class Watched(Numbers):
        def create_split_reader(self) -> SplitReader[SourceSplit]:
            seen.append(f"create {self.name}")
            return WatchedReader(self)

    source = HybridSource(Watched("a"), Watched("b"))
    serializer = source.split_serializer
    split = HybridSplit.wrap(1, SourceSplit(split_id="b0", start=3, stop=5))
    restored = serializer.deserialize(1, serializer.serialize(split))
    assert restored == split
    reader = source.create_split_reader()
    assert seen == []  # the reader waits until the source is known
    reader.handle_splits_changes(SplitsAddition((replace(restored, stop=4),)))
    fetched = reader.fetch()
    reader.close()

    assert seen == ["create b", "splits", "fetch"]
    assert pa.Table.from_batches([one.rows for one in fetched.batches], SCHEMA)["number"].to_pylist() == [3]


HYB: dict[str, Callable[[Case], None]] = {
    "HYB-01": high_cardinality,
    "HYB-03": restore,
    "HYB-05": multi_subtask_switch,
    "HYB-07": reader_recovery,
}


@pytest.mark.parametrize("case", family("HYB"), ids=case_id)
def test_hybrid_sources(case: Case) -> None:
    HYB[case["id"]](case)


def test_no_case_is_skipped() -> None:
    assert HYB.keys() == {case["id"] for case in family("HYB")} - DEVIATIONS.keys()
