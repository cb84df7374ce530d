"""Which partitions are over and to be marked: in order, none twice without a crash, none early, none lost."""

from __future__ import annotations

import random

import pytest
from lowmark.integration.driver import partitions as of_driver
from lowmark.integration.driver.partitions import Due, Kept, Partitions

from tests.worlds.kafka_scenarios import seed

NOW = 10_000


def marked(partitions: Partitions) -> list[Due]:
    """Mark everything that is due."""
    found = []
    while (due := partitions.due()) is not None:
        partitions.mark(due.number)
        found.append(due)
    return found


def test_a_jump_marks_each_partition_that_has_rows_in_order_and_names_the_others() -> None:
    hours = Partitions(Kept(10), 0)
    hours.report(0, {0: 1, 2: 1, 5: 1, 6: 1}, until_us=None, now_us=NOW)
    assert hours.due() is None
    hours.report(1, {7: 1}, until_us=70, now_us=NOW)
    assert marked(hours) == [Due(0, True), Due(2, True, (1, 1)), Due(5, True, (3, 4)), Due(6, True)]
    assert hours.due() is None, "the partition 7 ends at 80"


def test_the_delay_counts_and_no_partition_is_early() -> None:
    hours = Partitions(Kept(10), 3)
    hours.report(0, {0: 1}, until_us=12, now_us=NOW)
    assert hours.due() is None
    hours.report(1, {}, until_us=13, now_us=NOW)
    assert marked(hours) == [Due(0, True)]


def test_a_slow_split_may_bring_earlier_partitions_before_the_first_mark() -> None:
    hours = Partitions(Kept(10), 0)
    hours.report(0, {5: 1}, until_us=None, now_us=NOW)
    assert hours.report(1, {3: 1}, until_us=None, now_us=NOW) == {}
    hours.report(2, {}, until_us=60, now_us=NOW)
    assert [due.number for due in marked(hours)] == [3, 5]


def test_late_rows_are_counted_and_mark_only_what_was_never_marked() -> None:
    hours = Partitions(Kept(10), 0)
    hours.report(0, {0: 1, 3: 1}, until_us=30, now_us=NOW)
    assert marked(hours) == [Due(0, True)]
    assert hours.report(1, {0: 7, 1: 2}, until_us=30, now_us=NOW) == {0: 7}
    assert marked(hours) == [Due(1, True)], "it had no rows when it was passed, so nobody heard of it"
    assert hours.report(1, {0: 7}, until_us=30, now_us=NOW) == {}, "a repeated batch counts once"


def test_rows_that_come_while_a_partition_is_marked_are_late() -> None:
    hours = Partitions(Kept(10), 0)
    hours.report(0, {0: 1}, until_us=10, now_us=NOW)
    assert hours.due() == Due(0, True)
    assert hours.report(1, {0: 4}, until_us=10, now_us=NOW) == {0: 4}


def test_a_partition_is_due_again_after_a_crash_until_it_is_marked() -> None:
    hours = Partitions(Kept(10), 0)
    hours.report(0, {0: 1, 1: 1}, until_us=20, now_us=NOW)
    hours.due()
    again = Partitions(hours.kept, 0)
    assert [due.number for due in marked(again)] == [0, 1]
    last = Partitions(again.kept, 0)
    last.report(2, {}, until_us=20, now_us=NOW)
    assert last.due() is None


@pytest.mark.parametrize("missing", ["a report that a crash took", "a batch that was not measured"])
def test_partitions_that_nobody_told_of_are_marked_as_not_known(missing: str) -> None:
    hours = Partitions(Kept(10), 0)
    hours.report(0, {0: 1, 1: 1}, until_us=10, now_us=NOW)
    marked(hours)
    if missing == "a report that a crash took":
        hours = Partitions(hours.kept, 0)
        hours.report(2, {4: 1}, until_us=10, now_us=55)
    else:
        hours.report(1, None, until_us=10, now_us=55)
        hours.report(2, {4: 1}, until_us=10, now_us=55)
    hours = Partitions(hours.kept, 0)
    hours.report(3, {}, until_us=80, now_us=55)
    assert marked(hours) == [Due(1, True), Due(2, False), Due(3, False), Due(4, True), Due(5, False)]
    hours.report(4, {8: 1}, until_us=90, now_us=55)
    assert marked(hours) == [Due(8, True, (6, 7))], "from the clock's partition on all are known again"


def test_partitions_that_nobody_told_of_are_marked_also_if_the_clock_was_set_back() -> None:
    """The sink was complete until 42 before the crash, and after it the clock says 15."""
    hours = Partitions(Kept(10), 0)
    hours.report(0, {3: 1}, until_us=42, now_us=55)
    marked(hours)
    hours = Partitions(hours.kept, 0)
    hours.report(2, {}, until_us=42, now_us=15)
    hours.report(3, {}, until_us=90, now_us=15)
    assert marked(hours) == [Due(4, False)]


def test_a_marking_that_is_added_to_a_running_query_begins_where_the_sink_stands() -> None:
    hours = Partitions(Kept(10, 40, until_us=25, unsure=(2, 3)), 0)
    hours.report(41, {3: 1}, until_us=25, now_us=35)
    hours.report(42, {}, until_us=40, now_us=35)
    assert marked(hours) == [Due(2, False), Due(3, True)]


def test_a_row_of_1970_and_a_lost_report_make_one_mark_of_half_a_million_hours() -> None:
    hours = Partitions(Kept(10), 0)
    hours.report(0, {0: 1}, until_us=None, now_us=5_000_000)
    hours.report(2, {499_990: 1}, until_us=None, now_us=5_000_000)  # the report of batch 1 was lost
    hours = Partitions(hours.kept, 0)
    hours.report(3, {}, until_us=6_000_000, now_us=5_000_000)
    first, many, *newest = marked(hours)
    assert (first, many) == (Due(0, True), Due(489_989, False, since=1))
    assert [due.number for due in newest] == [*range(489_990, 500_001)], "the newest are marked one by one"
    assert [due.number for due in newest if due.has_rows] == [499_990]
    assert hours.report(4, {489_989: 1}, until_us=6_000_000, now_us=5_000_000) == {489_989: 1}, "it is marked"


@pytest.mark.timeout(20)
def test_a_backfill_that_brings_years_in_one_batch_is_marked_at_a_constant_price_for_each_partition() -> None:
    hours = Partitions(Kept(10), 0)
    hours.report(0, dict.fromkeys(range(60_000), 1), until_us=600_000, now_us=600_000)
    assert marked(hours) == [Due(n, True) for n in range(60_000)]


@pytest.mark.parametrize("most", [10_000, 2])
def test_random_streams_with_crashes_lose_no_partition(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(of_driver, "_MOST_ONE_BY_ONE", most)

    def of(due: Due) -> range:
        return range(due.number if due.since is None else due.since, due.number + 1)

    for draw in range(300):
        rng = random.Random(f"{seed()}-{draw}")
        saved = Kept(10, until_us=0)
        hours, committed, acts = Partitions(saved, 0), dict[int, set[int]](), list[tuple[int, int]]()
        until = 0
        for batch in range(40):
            rows = {rng.randrange(until // 10, until // 10 + 6): 1 for _ in range(rng.randrange(3))}
            until += rng.choice([0, 0, 5, 10, 70])
            rows = {number: count for number, count in rows.items() if number * 10 + 9 >= until - 70}
            committed[batch] = set(rows)
            if rng.random() < 0.15:  # killed between the commit and the report, or before the file was written
                hours = Partitions(saved, 0)
                continue
            hours.report(batch, rows, until_us=until, now_us=until + 60)
            while (due := hours.due()) is not None:
                acts += [(batch, number) for number in of(due)]
                assert (due.number + 1) * 10 <= until, f"early: seed {seed()}-{draw}"
                if rng.random() < 0.1:
                    break  # killed during the mark
                hours.mark(due.number)
            if rng.random() < 0.8:
                saved = hours.kept
        hours.report(40, {}, until_us=until + 1_000, now_us=until + 60)
        acts += [(40, number) for due in marked(hours) for number in of(due)]
        wanted = set().union(*committed.values())
        missing = wanted - {number for _, number in acts}
        assert not missing, f"never marked: {missing}, seed {seed()}-{draw}"
