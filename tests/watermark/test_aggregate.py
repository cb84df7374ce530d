from __future__ import annotations

from lowmark.watermark import WatermarkAggregator


def test_values_may_regress_and_the_minimum_follows() -> None:
    aggregator = WatermarkAggregator[str]()

    assert [aggregator.aggregate(*step) for step in (("a", 12), ("b", 12), ("b", 9), ("b", 10))] == [12, None, 9, 10]


def test_an_idle_key_takes_no_part_until_its_next_value() -> None:
    aggregator = WatermarkAggregator[str]()
    aggregator.aggregate("a", 0)

    assert (aggregator.aggregate("a", None), aggregator.minimum_us) == (None, None)
    assert aggregator.aggregate("a", 0) == 0


def test_a_removed_key_no_longer_holds() -> None:
    aggregator = WatermarkAggregator[str]()
    aggregator.aggregate("a", 1)
    aggregator.aggregate("b", 2)

    assert [aggregator.remove("a"), aggregator.remove("a"), aggregator.remove("x")] == [2, None, None]


def test_keys_need_not_be_comparable() -> None:
    aggregator = WatermarkAggregator[object]()
    for key in (object(), "a", 1, (2,)):
        aggregator.aggregate(key, 5)

    assert aggregator.minimum_us == 5


def test_outdated_values_do_not_pile_up() -> None:
    aggregator = WatermarkAggregator[int]()
    aggregator.aggregate(0, -1)
    for value in range(10_000):
        aggregator.aggregate(1, value)

    assert len(aggregator._heap) < 100
