"""The slices of a batch, decision by decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from lowmark.sources import SourceSplit, SplitEnd, SplitPlanner
from lowmark.sources.api import EARLIEST_US
from lowmark.sources.slicing import (
    InvalidPosition,
    InvalidSliceLimits,
    NoRowsReason,
    PlannedSlice,
    SliceLimits,
    SlicePlan,
    plan_slices,
)
from lowmark.watermark.moment import LEAST_US

from tests.laws.backfill import GUARD_US, HOUR, MS, NOW_US, SECOND, YEAR_2099_US, ExactLog, Log, LogSplit

LIMITS = SliceLimits(now_us=NOW_US, future_guard_us=GUARD_US)
BEGIN_US = NOW_US - 10 * HOUR


def every_second(begin_us: int, rows: int, **fields: Any) -> LogSplit:
    split = LogSplit(**fields)
    split.append([begin_us + i * SECOND for i in range(rows)])
    return split


def of_times(times_us: Sequence[int], **fields: Any) -> LogSplit:
    split = LogSplit(**fields)
    split.append(times_us)
    return split


def plan(
    log: Log,
    starts: Mapping[str, int] | None = None,
    *,
    previous_us: int | None = None,
    limits: SliceLimits = LIMITS,
    **changes: Any,
) -> SlicePlan:
    splits = [
        SourceSplit(split_id=name, start=(starts or {}).get(name, 0), parents=split.parents)
        for name, split in log.splits.items()
    ]
    return plan_slices(log, splits, replace(limits, **changes), previous_time_us=previous_us)


def stops(planned: SlicePlan) -> dict[str, int]:
    return {name: sliced.stop for name, sliced in planned.slices.items()}


def reached(planned: SlicePlan) -> dict[str, int | None]:
    return {name: sliced.claim_us for name, sliced in planned.slices.items()}


def to_the_end(
    log: Log, starts: dict[str, int] | None = None, *, batches: int = 100, **changes: Any
) -> list[SlicePlan]:
    """Plan until all rows are read, like a caller that keeps all claims."""
    starts = dict.fromkeys(log.splits, 0) | (starts or {})
    observed: dict[str, int] = {}
    previous_us, plans = None, []
    for _ in range(batches):
        planned = plan(log, starts, previous_us=previous_us, observed_us=observed, **changes)
        plans.append(planned)
        previous_us = planned.time_us if planned.time_us is not None else previous_us
        for name, sliced in planned.slices.items():
            good = [us for us in log.splits[name].read(sliced.start, sliced.stop) if us < YEAR_2099_US]
            if good:
                observed[name] = max([*good, observed.get(name, good[0])])
            starts[name] = sliced.stop
        if all(starts[name] == split.end for name, split in log.splits.items()):
            return plans
    raise AssertionError(f"not read in {batches} batches: {starts}")


# --- rows within and beyond the budget


def test_what_fits_is_taken_to_the_end_without_a_lookup() -> None:
    log = Log({"a": every_second(BEGIN_US, 10), "b": every_second(BEGIN_US, 5)})

    planned = plan(log, rows=15)

    assert stops(planned) == {"a": 10, "b": 5}
    assert (planned.time_us, log.asked, planned.without_rows) == (None, [], {})
    assert reached(planned) == {"a": None, "b": None}, "nobody knows what a live split brings next"


def test_without_splits_there_is_an_empty_plan() -> None:
    assert plan(Log({}), rows=1) == SlicePlan({}, None, {})


def test_a_slice_takes_every_split_up_to_one_time() -> None:
    log = Log({"early": every_second(BEGIN_US, 1000), "late": every_second(BEGIN_US + 100 * SECOND, 1000)})

    planned = plan(log, rows=300)

    assert planned.time_us is not None
    assert 240 <= planned.rows <= 300
    seconds = (planned.time_us - BEGIN_US) / SECOND
    assert stops(planned)["early"] == pytest.approx(seconds, abs=1)
    assert stops(planned)["late"] == pytest.approx(seconds - 100, abs=1)
    assert reached(planned) == {"early": planned.time_us, "late": planned.time_us}


def test_a_split_without_a_row_in_the_slice_has_reached_its_time_too() -> None:
    log = Log({"early": every_second(BEGIN_US, 1000), "late": every_second(BEGIN_US + HOUR, 1000)})

    planned = plan(log, rows=100)

    assert planned.slices["late"] == PlannedSlice(0, 0, 0, planned.time_us, 1000, finished=False)


def test_the_end_of_a_live_split_is_no_proof_and_that_of_a_finished_one_is() -> None:
    log = Log(
        {
            "long": every_second(BEGIN_US, 1000),
            "live": every_second(BEGIN_US, 5),
            "finished": every_second(BEGIN_US, 5, finished=True),
        }
    )

    planned = plan(log, rows=100)

    assert reached(planned) == {"long": planned.time_us, "live": None, "finished": planned.time_us}
    assert planned.slices["finished"].finished
    assert not planned.slices["live"].finished


def test_zero_is_a_time_a_cap_and_a_position() -> None:
    log = Log({"a": every_second(-50 * SECOND, 100), "b": every_second(0, 100)})
    limits = SliceLimits(now_us=50 * SECOND, read_before_us=0, observed_us={"a": 0})

    planned = plan(log, limits=limits)

    assert planned.time_us == 0
    assert stops(planned) == {"a": 50, "b": 0}
    assert reached(planned) == {"a": 0, "b": 0}
    assert planned.without_rows == {"b": NoRowsReason.CAP}
    assert plan(log, limits=replace(limits, read_before_us=None, rows=60), previous_us=0).rows <= 60


def test_positions_without_rows_are_passed() -> None:
    holes = LogSplit()
    holes.append([BEGIN_US], hole=99)
    log = ExactLog({"holes": holes, "a": every_second(BEGIN_US, 50)})

    plans = to_the_end(log, rows=10)

    assert sum(planned.rows for planned in plans) == 51


def test_rows_are_counted_by_the_planner() -> None:
    holes = LogSplit(counted=False)
    holes.append([BEGIN_US + i * SECOND for i in range(100)], hole=9)

    assert 16 <= len(holes.read(0, plan(ExactLog({"a": holes}), rows=20).slices["a"].stop)) <= 20
    assert len(holes.read(0, plan(Log({"a": holes}), rows=20).slices["a"].stop)) == 2


def test_bytes_are_a_budget_too() -> None:
    log = Log({"small": every_second(BEGIN_US, 1000, row_bytes=1), "big": every_second(BEGIN_US, 1000, row_bytes=99)})

    planned = plan(log, size_bytes=10_000)
    assert 80 <= planned.slices["big"].rows <= 100
    assert 80 <= planned.slices["small"].rows <= 100

    assert plan(log, size_bytes=10_000, rows=10).rows <= 10
    assert plan(log, size_bytes=10_000, rows=10_000).rows <= 200
    assert plan(log, size_bytes=1).rows == 1, "a row that is larger than the budget is read nevertheless"


def test_a_budget_of_exactly_all_bytes_is_shared_whatever_the_rounding() -> None:
    """The costs of these splits have one sum in their order, and a sum smaller by a rounding when they are sorted."""
    sizes = {"0": (444, 63_048), "1": (359, 59_783), "2": (666, 96_979), "3": (103, 19_193)}

    class Sized(SplitPlanner[SourceSplit]):
        def latest(self, splits: Sequence[SourceSplit]) -> dict[str, SplitEnd]:
            return {name: SplitEnd(rows, rows, size_bytes) for name, (rows, size_bytes) in sizes.items()}

    limits = replace(LIMITS, rows=1_000_000, size_bytes=sum(size_bytes for _, size_bytes in sizes.values()))
    planned = plan_slices(Sized(), [SourceSplit(split_id=name) for name in sizes], limits, previous_time_us=None)

    left = [name for name, (rows, _) in sizes.items() if planned.slices[name].rows < rows]
    assert len(left) <= 1, "the last split may exceed the budget by the rounding, and waits for the next batch"


def test_a_split_of_unknown_size_has_rows_of_the_usual_size() -> None:
    log = Log({"known": every_second(BEGIN_US, 100, row_bytes=10), "unknown": every_second(BEGIN_US, 100)})

    assert 80 <= plan(log, size_bytes=1_000).rows <= 100
    assert plan(Log({"unknown": every_second(BEGIN_US, 100)}), size_bytes=1_000).rows == 100


# --- few lookups


@pytest.mark.parametrize("hours", [1, 24, 24 * 30, 24 * 365 * 20])
def test_a_first_search_knows_nothing_of_the_log_and_needs_few_lookups(hours: int) -> None:
    step_us = hours * HOUR // 5_000
    begin_us = NOW_US - hours * HOUR
    log = Log({f"{i}": of_times([begin_us + k * step_us for k in range(5_000)]) for i in range(4)})

    planned = plan(log, rows=200)

    assert 160 <= planned.rows <= 200
    assert log.lookups[-1] <= 10


def test_a_search_goes_on_from_the_previous_slice() -> None:
    log = Log({f"{i}": every_second(BEGIN_US, 36_000) for i in range(4)})
    starts = dict.fromkeys(log.splits, 1_000)
    previous_us = BEGIN_US + 1_000 * SECOND

    plan(log, starts, previous_us=previous_us, rows=400)
    plan(log, starts, previous_us=previous_us, previous_span_us=90 * SECOND, rows=400)

    assert log.lookups[1:] == [2, 2]


def test_a_burst_is_found_in_a_bounded_number_of_lookups() -> None:
    log = Log({"a": of_times([BEGIN_US] * 1_000 + [BEGIN_US + HOUR] * 1_000)})

    plans = to_the_end(log, rows=100)

    assert max(log.lookups) <= 40, "down to the millisecond, for there is nothing before it"
    assert len(plans) <= 22
    inside = plan(log, {"a": 300}, previous_us=BEGIN_US, previous_span_us=0, rows=100)
    assert (log.lookups[-1], inside.rows) == (3, 100), "the time did not move, so the same millisecond is tried first"


# --- bursts and gaps


def test_a_millisecond_of_more_rows_than_the_budget_is_cut_and_the_time_stays() -> None:
    burst_us = BEGIN_US + 10 * SECOND
    times = [BEGIN_US, *[burst_us] * 95, burst_us + SECOND]
    log = Log({"a": of_times(times), "b": of_times(times), "quiet": of_times([burst_us + HOUR] * 50)})

    plans = to_the_end(log, rows=40)

    cut = plan(log, {"a": 1, "b": 1}, previous_us=burst_us, rows=40)
    assert stops(cut) == {"a": 21, "b": 21, "quiet": 0}
    assert reached(cut) == dict.fromkeys(log.splits, cut.time_us)
    assert cut.time_us == burst_us
    assert all(planned.rows > 0 for planned in plans)
    assert len(plans) <= 10
    # inside the burst, without knowledge: no split is read beyond it
    inside = plan(log, {"a": 30, "b": 30}, rows=40)
    assert stops(inside) == {"a": 50, "b": 50, "quiet": 0}


def test_hours_without_a_row_are_stepped_over() -> None:
    times = [BEGIN_US + i * SECOND for i in range(50)] + [BEGIN_US + 8 * HOUR + i * SECOND for i in range(50)]
    log = Log({"a": of_times(times), "b": of_times(times)})

    plans = to_the_end(log, rows=25)

    assert all(planned.rows > 0 for planned in plans)
    assert len(plans) <= 12


def test_a_slice_spans_no_more_than_it_may_and_steps_over_a_longer_gap() -> None:
    times = [BEGIN_US + i * SECOND for i in range(50)] + [BEGIN_US + 8 * HOUR + i * SECOND for i in range(50)]
    log = Log({"a": of_times(times), "b": of_times(times)})

    plans = to_the_end(log, max_slice_us=10 * SECOND)

    assert all(planned.rows > 0 for planned in plans)
    for planned in plans:
        taken = log.splits["a"].read(planned.slices["a"].start, planned.slices["a"].stop)
        assert max(taken) - min(taken) <= 10 * SECOND
    assert 10 <= len(plans) <= 25


# --- bad clocks


@pytest.mark.parametrize("days_ago", [0, 1, 365, 3_000, 9_000])
def test_the_first_batch_spans_no_more_than_a_slice_however_long_ago_it_is(days_ago: int) -> None:
    """The first batch knows nothing of the log; the search for its beginning takes more lookups than later batches."""
    begin_us = BEGIN_US - days_ago * 24 * HOUR
    first = plan(ExactLog({"a": every_second(begin_us, 1_000)}), max_slice_us=20 * SECOND)

    assert 10 <= stops(first)["a"] <= 20
    assert first.time_us is not None
    assert begin_us < first.time_us <= begin_us + 20 * SECOND


def test_a_row_from_the_future_is_read_and_nothing_is_claimed_behind_it() -> None:
    bad = every_second(BEGIN_US, 50)
    bad.append([YEAR_2099_US])
    bad.append([BEGIN_US + i * SECOND for i in range(50, 1000)])
    log = Log({"bad": bad, "good": every_second(BEGIN_US, 1000)})

    before = plan(log, rows=60)
    assert reached(before) == dict.fromkeys(log.splits, before.time_us)
    up_to_it = plan(log, {"bad": 30, "good": 30}, rows=200)
    assert stops(up_to_it)["bad"] == 50
    assert reached(up_to_it) == {"bad": None, "good": up_to_it.time_us}
    at_it = plan(log, {"bad": 50, "good": 200}, rows=200)
    assert at_it.slices["bad"].rows > 50, "it gets its share"
    assert reached(at_it) == {"bad": None, "good": at_it.time_us}
    behind_it = plan(log, {"bad": 60, "good": 200}, rows=200)
    assert behind_it.slices["bad"].rows > 50
    assert reached(behind_it)["bad"] is None

    plans = to_the_end(log, rows=100)
    assert len(plans) <= 30
    for planned in plans:  # a split with hidden rows keeps pace, too
        taken = [log.splits[name].times[sliced.stop - 1] for name, sliced in planned.slices.items() if sliced.rows]
        assert YEAR_2099_US in taken or max(taken) - min(taken) <= 250 * SECOND


def test_a_split_with_a_hidden_time_waits_when_its_rows_are_known_to_be_ahead() -> None:
    bad = of_times([YEAR_2099_US])
    bad.append([BEGIN_US + i * SECOND for i in range(1000)])
    log = Log({"bad": bad, "good": every_second(BEGIN_US, 1000)})
    starts = {"bad": 301, "good": 100}

    waits = plan(log, starts, rows=100, observed_us={"bad": BEGIN_US + 300 * SECOND})
    assert (waits.slices["bad"].rows, waits.without_rows) == (0, {"bad": NoRowsReason.AHEAD})
    assert waits.slices["bad"].claim_us is None
    reads = plan(log, starts, rows=100, observed_us={"bad": BEGIN_US + 50 * SECOND})
    assert reads.slices["bad"].rows > 0
    no_lie = plan(log, starts, rows=100, observed_us={"bad": YEAR_2099_US})
    assert no_lie.slices["bad"].rows > 0, "what was observed is believed no more than what is found"


def test_a_row_at_the_guard_is_believed_and_one_behind_it_is_not() -> None:
    for beyond_us, claimed in ((0, True), (1, False)):
        edge = of_times([BEGIN_US, NOW_US + GUARD_US + beyond_us, BEGIN_US])
        log = Log({"edge": edge, "good": every_second(BEGIN_US, 1000)})

        planned = plan(log, rows=100)

        assert (reached(planned)["edge"] is not None) == claimed
        assert stops(planned)["edge"] == 1


def test_without_a_guard_every_time_is_believed() -> None:
    log = Log({"bad": of_times([YEAR_2099_US] * 50), "good": every_second(BEGIN_US, 1000)})

    planned = plan(log, rows=100, future_guard_us=None)

    assert reached(planned) == dict.fromkeys(log.splits, planned.time_us)
    assert stops(planned)["bad"] == 0
    assert len(to_the_end(log, rows=100, future_guard_us=None)) <= 20


def test_bad_clocks_in_every_split_do_not_stop_anything() -> None:
    rows = [BEGIN_US + i * SECOND for i in range(100)]
    log = Log({f"{i}": of_times([YEAR_2099_US, *rows, YEAR_2099_US, *rows]) for i in range(4)})

    plans = to_the_end(log, rows=40)

    assert all(planned.rows > 0 and set(reached(planned).values()) == {None} for planned in plans)
    assert len(plans) <= 30


def test_what_lies_before_the_start_proves_nothing() -> None:
    begun = of_times([BEGIN_US + 9 * HOUR])  # an earlier row, nine hours ahead
    begun.append([BEGIN_US + i * SECOND for i in range(1000)])
    log = Log({"begun": begun, "good": every_second(BEGIN_US, 1000)})
    starts = {"begun": 1}

    planned = plan(log, starts, rows=200)

    assert reached(planned) == {"begun": None, "good": planned.time_us}
    assert planned.slices["begun"].rows > 50
    waits = plan(log, starts, rows=200, observed_us={"begun": BEGIN_US + 5 * HOUR})
    assert (waits.slices["begun"].rows, waits.without_rows) == (0, {})
    assert waits.rows >= 160, "no part of the budget is kept for who waits"


def test_a_row_that_comes_while_the_plan_is_made_proves_nothing() -> None:
    log = Log({"growing": every_second(BEGIN_US, 10), "good": every_second(BEGIN_US, 1000)})

    class Growing(Log):
        def find_time(self, splits: Sequence[SourceSplit], time_us: int) -> dict[str, int | None] | None:
            found = super().find_time(splits, time_us)
            if len(self.asked) == 1:
                self.splits["growing"].append([YEAR_2099_US, BEGIN_US])
            return found

    planned = plan(Growing(log.splits), rows=100)

    assert stops(planned)["growing"] == 10
    assert reached(planned)["growing"] is None


# --- late splits


def test_a_split_that_appears_late_with_old_rows_is_waited_for() -> None:
    log = Log(
        {"old": every_second(BEGIN_US, 1000), "a": every_second(BEGIN_US, 2000), "b": every_second(BEGIN_US, 2000)}
    )
    starts = {"a": 1000, "b": 1000}

    planned = plan(log, starts, previous_us=BEGIN_US + 1000 * SECOND, rows=100)

    assert stops(planned) == {"old": planned.rows, "a": 1000, "b": 1000}
    assert reached(planned) == dict.fromkeys(log.splits, planned.time_us), "that they are further is known by a lookup"
    forgetful = plan(log, starts, rows=100)
    assert forgetful.slices["old"].rows > 20
    assert forgetful.rows <= 100
    observed = plan(log, starts, rows=100, observed_us=dict.fromkeys("ab", BEGIN_US + 999 * SECOND))
    assert stops(observed) == {"old": observed.rows, "a": 1000, "b": 1000}


# --- splits that must wait


def test_the_cap_is_one_lookup_when_everything_before_it_fits() -> None:
    log = Log({"a": every_second(BEGIN_US, 50), "b": every_second(BEGIN_US - HOUR, 50)})

    nothing_behind = plan(log, read_before_us=BEGIN_US + HOUR)
    assert (nothing_behind.time_us, log.lookups[-1], nothing_behind.rows) == (None, 1, 100)

    read_before_us = BEGIN_US + 10 * SECOND
    planned = plan(log, read_before_us=read_before_us)
    assert (planned.time_us, log.lookups[-1]) == (read_before_us, 2), "one for the cap, one for bad clocks"
    assert stops(planned) == {"a": 10, "b": 50}
    assert reached(planned) == {"a": read_before_us, "b": None}
    assert planned.without_rows == {}


def test_the_cap_holds_and_says_whom() -> None:
    log = Log({"a": every_second(BEGIN_US, 50), "b": every_second(BEGIN_US + HOUR, 50), "read": every_second(0, 3)})

    planned = plan(log, {"read": 3}, read_before_us=BEGIN_US)

    assert planned.rows == 0
    assert planned.without_rows == {"a": NoRowsReason.CAP, "b": NoRowsReason.CAP}
    assert reached(planned) == {"a": BEGIN_US, "b": BEGIN_US, "read": None}


@pytest.mark.parametrize(
    "cap_us", [-62_135_596_800_000_000, EARLIEST_US, LEAST_US], ids=["year 1", "earliest", "least"]
)
def test_a_cap_before_all_rows_holds_too_and_no_planner_is_asked_for_a_time_before_them(cap_us: int) -> None:
    """A stream with rows of the year 1, which stand for "no time" in many systems, makes such a cap."""
    log = Log({"a": every_second(BEGIN_US, 50), "b": every_second(BEGIN_US + HOUR, 50)})
    log.silent = {"b"}

    planned = plan(log, read_before_us=cap_us, observed_us={"b": BEGIN_US})

    assert planned.rows == 0
    assert planned.without_rows == {"a": NoRowsReason.CAP, "b": NoRowsReason.CAP}
    assert min(log.asked) >= EARLIEST_US


def test_a_cap_is_kept_under_a_budget() -> None:
    log = Log({"a": every_second(BEGIN_US, 1000), "b": every_second(BEGIN_US, 1000)})
    read_before_us = BEGIN_US + 100 * SECOND

    plans = [plan(log, rows=rows, read_before_us=read_before_us) for rows in (1, 50, 199, 200, 5000)]

    assert [planned.rows <= rows for planned, rows in zip(plans, (1, 50, 199, 200, 5000), strict=True)] == [True] * 5
    assert [planned.rows for planned in plans[3:]] == [200, 200]
    assert all(planned.time_us is not None and planned.time_us <= read_before_us for planned in plans)


def test_who_is_held_gets_nothing() -> None:
    log = Log({"a": every_second(BEGIN_US, 1000), "b": every_second(BEGIN_US, 1000)})
    for by_time in (True, False):
        planned = plan(log, rows=100, paused={"a"}, by_time=by_time)

        assert planned.without_rows == {"a": NoRowsReason.CAP}
        assert planned.slices["a"] == PlannedSlice(0, 0, 0, None, 1000, finished=False)
        assert planned.slices["b"].rows >= 80
    assert plan(log, paused={"a", "b"}).rows == 0


def test_a_paused_split_is_held_back_only_before_the_end_of_the_run() -> None:
    log = Log({"a": every_second(BEGIN_US, 10), "b": every_second(BEGIN_US, 10)})
    reasons = {
        start: plan(log, {"a": start}, paused={"a"}, targets={"a": 4, "b": 10}).without_rows for start in (3, 4, 5)
    }

    assert reasons == {3: {"a": NoRowsReason.CAP}, 4: {"a": NoRowsReason.TARGET}, 5: {"a": NoRowsReason.TARGET}}
    assert plan(log, paused={"a"}, targets={"b": 10}).without_rows == {"a": NoRowsReason.TARGET}


def test_shares_of_rows_obey_the_cap_by_what_was_observed() -> None:
    log = Log({"a": every_second(BEGIN_US, 100), "b": every_second(BEGIN_US, 100)}, searchable=False)
    observed = {"a": BEGIN_US, "b": BEGIN_US - 1}

    planned = plan(log, rows=10, read_before_us=BEGIN_US, observed_us=observed)

    assert stops(planned) == {"a": 0, "b": 10}
    assert (planned.without_rows, log.lookups[-1]) == ({"a": NoRowsReason.CAP}, 1)


def test_a_split_that_cannot_be_asked_has_no_slice() -> None:
    log = Log({"a": every_second(BEGIN_US, 100), "gone": every_second(BEGIN_US, 100)})
    log.unreachable = {"gone"}

    planned = plan(log, rows=50)

    assert set(planned.slices) == {"a"}
    assert planned.without_rows == {"gone": NoRowsReason.NOT_REACHABLE}


def test_children_wait_for_their_parents() -> None:
    child = every_second(BEGIN_US, 10, parents=("parent",))
    log = Log({"parent": every_second(BEGIN_US, 10, finished=True), "child": child})

    waits = plan(log)
    assert (stops(waits), waits.without_rows) == ({"parent": 10, "child": 0}, {"child": NoRowsReason.PARENTS})
    assert waits.slices["child"].backlog_rows == 10
    goes = plan(log, {"parent": 10})
    assert (stops(goes), goes.without_rows) == ({"parent": 10, "child": 10}, {})
    assert stops(plan(Log({"child": child}))) == {"child": 10}, "a parent that is not asked about is done"
    log.unreachable = {"parent"}
    assert plan(log).without_rows == {"parent": NoRowsReason.NOT_REACHABLE, "child": NoRowsReason.PARENTS}


def test_what_others_carry_on_claims_nothing_when_it_ends_for_they_begin_where_it_stands() -> None:
    """Otherwise its child would start at the plan's time, and lose its much older rows."""
    log = Log({
        "parent": every_second(BEGIN_US, 10, finished=True),
        "child": every_second(BEGIN_US + 10_000_000, 500, parents=("parent",)),
        "ahead": every_second(BEGIN_US, 10_000),
        "last": every_second(BEGIN_US, 10, finished=True),
    })  # fmt: skip
    planned = plan(log, rows=5_000)
    assert planned.time_us is not None
    assert planned.time_us > BEGIN_US + 2_000_000_000
    assert planned.slices["parent"].finished
    assert reached(planned) == {"parent": None, "child": None, "ahead": planned.time_us, "last": planned.time_us}


def test_a_parent_at_its_end_that_is_not_finished_is_waited_for() -> None:
    log = Log({"parent": every_second(BEGIN_US, 10), "child": every_second(BEGIN_US, 10, parents=("parent",))})

    assert plan(log, {"parent": 10}).without_rows == {"child": NoRowsReason.PARENTS}


def test_a_child_without_rows_is_not_finished_before_its_parent_and_its_own_children_wait() -> None:
    family = {
        "parent": every_second(BEGIN_US, 10, finished=True),
        "child": LogSplit(finished=True, parents=("parent",)),
        "grandchild": every_second(BEGIN_US, 10, parents=("child",)),
    }
    waits = plan(Log(family))
    assert {name for name, each in waits.slices.items() if each.finished} == {"parent"}
    assert (stops(waits)["grandchild"], waits.without_rows) == (0, {"grandchild": NoRowsReason.PARENTS})
    goes = plan(Log(family), {"parent": 10})
    assert {name for name, each in goes.slices.items() if each.finished} == {"parent", "child"}
    assert stops(goes)["grandchild"] == 10


def test_a_run_ends_at_its_targets() -> None:
    log = Log(
        {"a": every_second(BEGIN_US, 100, finished=True), "b": every_second(BEGIN_US, 100), "new": every_second(0, 9)}
    )
    targets = {"a": 60, "b": 5}

    planned = plan(log, {"b": 5}, targets=targets)

    assert stops(planned) == {"a": 60, "b": 5, "new": 0}
    assert planned.without_rows == {"b": NoRowsReason.TARGET, "new": NoRowsReason.TARGET}
    assert planned.slices["a"] == PlannedSlice(0, 60, 60, None, 40, finished=False)
    assert stops(plan(log, {"b": 8}, targets=targets))["b"] == 8, "a target behind the start is reached"
    sliced = plan(log, {"b": 5}, targets=targets, rows=30)
    assert reached(sliced)["a"] == sliced.time_us


def test_a_target_one_row_before_the_time_of_the_slice_leaves_the_split_without_a_claim() -> None:
    log = Log({"at": every_second(BEGIN_US, 100), "before": every_second(BEGIN_US, 100)})
    cap_us = BEGIN_US + 10 * SECOND

    planned = plan(log, read_before_us=cap_us, targets={"at": 10, "before": 9})

    assert stops(planned) == {"at": 10, "before": 9}
    assert reached(planned) == {"at": cap_us, "before": None}


def test_a_split_goes_no_further_than_its_own_stop() -> None:
    log = Log({"a": every_second(BEGIN_US, 100)})
    split = SourceSplit(split_id="a", start=3, stop=20)

    assert stops(plan_slices(log, [split], LIMITS, previous_time_us=None)) == {"a": 20}


# --- shares of rows


def test_small_backlogs_are_taken_whole_and_the_others_share_the_rest() -> None:
    log = Log(
        {
            "tiny": every_second(0, 3),
            "small": every_second(0, 10),
            "big": every_second(0, 99),
            "huge": every_second(0, 999),
        }
    )

    planned = plan(log, rows=100, by_time=False)

    assert {name: sliced.rows for name, sliced in planned.slices.items()} in (
        {"tiny": 3, "small": 10, "big": 43, "huge": 44},
        {"tiny": 3, "small": 10, "big": 44, "huge": 43},
    )
    assert (planned.time_us, log.asked) == (None, [])


def test_who_was_read_least_far_comes_first_when_there_are_fewer_rows_than_splits() -> None:
    log = Log({name: every_second(BEGIN_US, 100) for name in "abcdef"}, searchable=False)
    observed = {name: BEGIN_US + us for us, name in enumerate("fcbead")}
    firsts = 0
    for start in range(40):  # the turn changes from time to time
        starts = dict.fromkeys("abcdef", start)
        firsts += stops(plan(log, starts, rows=2, observed_us=observed)) == starts | {"f": start + 1, "c": start + 1}

    assert 20 <= firsts < 40


@pytest.mark.slow
@pytest.mark.parametrize("searchable", [True, False])
def test_nobody_starves_when_the_first_ones_never_end(searchable: bool) -> None:
    """The budget is one row, and the splits without a known time, or far behind, are endless."""
    bad = [YEAR_2099_US, *[BEGIN_US] * 3_000]
    log = Log({f"bad-{i}": of_times(bad) for i in range(3)}, searchable=searchable)
    log.splits["good"] = every_second(BEGIN_US, 30)
    starts = dict.fromkeys(log.splits, 0)
    for _ in range(3_000):
        planned = plan(log, starts, rows=1, observed_us={"good": BEGIN_US + starts["good"] * SECOND})
        assert planned.rows == 1
        starts = stops(planned)

    assert starts["good"] == 30
    assert all(starts[f"bad-{i}"] >= 100 for i in range(3))


def test_a_step_that_cannot_be_divided_is_taken_alone() -> None:
    log = Log({name: every_second(BEGIN_US, 128, step=64) for name in "ab"}, searchable=False)

    planned = plan(log, rows=10)

    assert sorted(stops(planned).values()) == [0, 64]
    assert len(to_the_end(log, rows=10)) == 4
    log.splits["a"].step = 1
    assert stops(plan(log, {"a": 1}, rows=10, observed_us={"a": 1, "b": 2})) == {"a": 6, "b": 0}


def test_shares_pass_positions_that_hold_no_row() -> None:
    log = ExactLog({"hollow": LogSplit(end=50, counted=False), "a": every_second(BEGIN_US, 100)})

    assert stops(plan(log, rows=10, by_time=False)) == {"hollow": 50, "a": 10}


def test_a_split_that_find_time_leaves_out_gets_its_share_and_no_claim() -> None:
    log = Log({"a": every_second(BEGIN_US, 1000), "silent": every_second(BEGIN_US, 1000)})
    log.silent = {"silent"}

    planned = plan(log, rows=100)

    assert planned.slices["silent"].rows == 50
    assert 40 <= planned.slices["a"].rows <= 50
    assert reached(planned) == {"a": planned.time_us, "silent": None}


def test_splits_of_both_kinds_take_no_turns_while_the_budget_is_enough_for_all() -> None:
    """A turn is a matter of the seed, so the plan is made from many starts."""
    log = Log({"large": every_second(BEGIN_US, 100, row_bytes=99), "silent": every_second(BEGIN_US, 197, row_bytes=1)})
    log.silent = {"silent"}
    cap_us = BEGIN_US + HOUR
    for start in range(99):
        planned = plan(log, {"large": 99, "silent": 99 + start}, read_before_us=cap_us, size_bytes=99 + 98)
        assert stops(planned) == {"large": 100, "silent": 197}, f"start {start}"


# --- repeated plans are equal; wrong answers raise errors


def test_the_order_of_the_splits_does_not_matter() -> None:
    log = Log({f"{i}": every_second(BEGIN_US + i * HOUR, 500, step=1 + i) for i in range(6)})
    for changes in ({"rows": 77}, {"rows": 3, "by_time": False}, {"rows": 77, "read_before_us": BEGIN_US + HOUR}):
        turned = Log(dict(reversed(log.splits.items())))

        assert plan(log, **changes) == plan(turned, **changes)  # type: ignore[arg-type]


SEARCHED = f"find_time({NOW_US + GUARD_US + 1})"


class Answering(Log):
    """A log with one wrong answer."""

    end: int | None = None
    after: int | None = None
    found: int | None = None

    def latest(self, splits: Sequence[SourceSplit]) -> dict[str, SplitEnd]:
        return super().latest(splits) if self.end is None else {"a": SplitEnd(self.end)}

    def after_rows(self, split: SourceSplit, rows: int, end: SplitEnd) -> int:
        return super().after_rows(split, rows, end) if self.after is None else self.after

    def find_time(self, splits: Sequence[SourceSplit], time_us: int) -> dict[str, int | None] | None:
        return super().find_time(splits, time_us) if self.found is None else {"a": self.found}


@pytest.mark.parametrize(
    ("wrong", "changes", "said"),
    [
        ({"end": 4}, {}, "latest() answered position 4, expected its start, 5, or more, and less than 2**63"),
        (
            {"end": 2**63},
            {},
            f"latest() answered position {2**63}, expected its start, 5, or more, and less than 2**63",
        ),
        ({"after": 5}, {"by_time": False}, "after_rows(10) answered position 5, expected 6 to 100"),
        ({"end": 6.5}, {}, "latest() answered position 6.5, expected its start, 5, or more, and less than 2**63"),
        ({"after": 5.5}, {"by_time": False}, "after_rows(10) answered position 5.5, expected 6 to 100"),
        ({"found": 7.5}, {}, f"{SEARCHED} answered position 7.5, expected 0 or more, less than 2**63, or None"),
        ({"found": "7"}, {}, f"{SEARCHED} answered position '7', expected 0 or more, less than 2**63, or None"),
        ({"after": 101}, {"by_time": False}, "after_rows(10) answered position 101, expected 6 to 100"),
        ({"found": -1}, {}, f"{SEARCHED} answered position -1, expected 0 or more, less than 2**63, or None"),
        ({"found": 2**64}, {}, f"{SEARCHED} answered position {2**64}, expected 0 or more, less than 2**63, or None"),
    ],
)
def test_a_position_that_cannot_be_is_an_error(wrong: dict[str, Any], changes: dict[str, Any], said: str) -> None:
    log = Answering({"a": every_second(BEGIN_US, 100)})
    for name, value in wrong.items():
        setattr(log, name, value)

    with pytest.raises(InvalidPosition) as raised:
        plan(log, {"a": 5}, rows=10, **changes)

    assert str(raised.value) == (
        f"split 'a': {said}; nothing was planned. Hint: positions of a split never go back. If what it reads was "
        "deleted and made anew, give it a new split id; else repair the planner."
    )


@pytest.mark.parametrize(
    ("setting", "got", "least"),
    [
        ("rows", 0, 1),
        ("size_bytes", 0, 1),
        ("future_guard_us", -1, 0),
        ("max_slice_us", 999, 1_000),
        ("previous_span_us", -1, 0),
    ],
)
def test_a_limit_that_allows_nothing_is_an_error(setting: str, got: int, least: int) -> None:
    with pytest.raises(InvalidSliceLimits) as raised:
        replace(LIMITS, **{setting: got})  # type: ignore[arg-type]

    assert str(raised.value) == (
        f"limits of a slice: {setting} is {got}, expected {least} or more, or None. Hint: None means no limit."
    )
    replace(LIMITS, **{setting: least})  # type: ignore[arg-type]


def test_a_split_that_is_named_twice_is_an_error() -> None:
    log = Log({"a": every_second(BEGIN_US, 100)})

    with pytest.raises(InvalidSliceLimits, match="one with 'a' twice"):
        plan_slices(log, [SourceSplit(split_id="a")] * 2, LIMITS, previous_time_us=None)


def test_a_trickle_is_not_stopped_by_the_backlog_of_a_split_with_a_bad_clock() -> None:
    log = Log({"bad": of_times([YEAR_2099_US] * 10_000), "good": every_second(BEGIN_US, 4)})

    planned = plan(log, rows=10)

    assert (planned.slices["good"].rows, planned.slices["bad"].rows) == (4, 6)


@pytest.mark.slow
def test_a_bad_clock_has_its_turn_even_if_its_part_of_the_budget_is_no_row() -> None:
    log = Log({"bad": of_times([YEAR_2099_US] * 50), "good": every_second(BEGIN_US, 3_000)})
    starts = dict.fromkeys(log.splits, 0)
    for _ in range(500):
        starts = stops(plan(log, starts, rows=1, future_guard_us=GUARD_US))

    assert 1 <= starts["bad"] <= 50
    assert starts["good"] >= 400


def test_a_split_that_is_left_out_may_be_all_that_did_not_fit() -> None:
    log = Log({"a": every_second(BEGIN_US, 10), "silent": every_second(BEGIN_US, 1000)})
    log.silent = {"silent"}

    planned = plan(log, rows=100, future_guard_us=None)

    assert planned.slices["a"].rows == 10
    assert 80 <= planned.slices["silent"].rows <= 90


def test_a_source_that_stops_answering_is_shared_out() -> None:
    class Tired(Log):
        def find_time(self, splits: Sequence[SourceSplit], time_us: int) -> dict[str, int | None] | None:
            return super().find_time(splits, time_us) if len(self.asked) < 2 else None

    planned = plan(Tired({"a": every_second(BEGIN_US, 1000), "b": every_second(BEGIN_US, 1000)}), rows=100)

    assert (stops(planned), planned.time_us) == ({"a": 50, "b": 50}, None)


def test_a_millisecond_is_the_finest_slice() -> None:
    times = [BEGIN_US + us for us in range(5 * MS)]
    log = Log({"a": of_times(times), "b": of_times(times)})

    plans = to_the_end(log, rows=2_500)

    assert all(planned.time_us is None or planned.time_us % MS == 0 for planned in plans)
