from __future__ import annotations

import json
from typing import Any

import pytest
from lowmark.watermark import LowmarkError, StaleRun, TaskId, UnknownTask
from lowmark.watermark.tasks.leases import RETIRED_RUNS, Leases

A, B = TaskId("job", "orders", "a"), TaskId("job", "orders", "b")
LEASE_US = 30


def leases_of(*tasks: TaskId, most_gap_us: int = 1_000) -> Leases:
    leases = Leases(lease_us=LEASE_US, most_gap_us=most_gap_us)
    for task in tasks:
        leases.register(task, "run-1", now_us=0)
    return leases


def test_exactly_the_lease_is_in_time_and_longer_is_not() -> None:
    leases = leases_of(A, B)
    leases.renew(B, "run-1", now_us=1)

    assert leases.expired(30) == []
    assert (leases.next_deadline_us(30), leases.lease_left_us(A, 30)) == (31, 0)
    assert leases.expired(31) == [A]
    assert leases.expired(31) == []  # each expiry is returned once
    assert (A in leases, B in leases) == (False, True)
    assert leases.expired(32) == [B]
    assert leases.next_deadline_us(32) is None


def test_a_newer_run_ends_the_older_one() -> None:
    leases = leases_of(A)

    assert leases.check_registration(A, "run-2")
    leases.register(A, "run-2", now_us=1)
    for refused in (
        lambda: leases.renew(A, "run-1", 2),
        lambda: leases.check(A, "run-1"),
        lambda: leases.check_registration(A, "run-1"),
        lambda: leases.check(A, "never heard of"),
    ):
        with pytest.raises(StaleRun):
            refused()
    assert leases.token(A) == "run-2"


def test_the_same_registration_again_is_no_new_run() -> None:
    assert not leases_of(A).check_registration(A, "run-1")


@pytest.mark.parametrize("ended", ["expired", "left"])
def test_a_deleted_task_is_not_brought_back_by_what_it_says(ended: str) -> None:
    """NL4 of Numaflow: a deleted task stays deleted. Here it may register again, with a new run."""
    leases = leases_of(A)
    if ended == "expired":
        assert leases.expired(31) == [A]
    else:
        leases.leave(A)

    with pytest.raises(UnknownTask):
        leases.renew(A, "run-1", 32)
    with pytest.raises(StaleRun):
        leases.check_registration(A, "run-1")
    assert A not in leases
    assert leases.check_registration(A, "run-2")


def test_silence_counts_only_while_somebody_listens() -> None:
    """The process was suspended for an hour, or the clock was set; the tasks' messages are still in the queue."""
    leases = leases_of(A, most_gap_us=20)

    assert leases.expired(3_600) == []  # only 20 of the gap count
    assert leases.next_deadline_us(3_600) == 3_611
    assert leases.expired(3_610) == []
    assert leases.expired(3_611) == [A]


def test_a_caller_that_keeps_to_the_deadlines_loses_no_silence() -> None:
    leases = leases_of(A, most_gap_us=7)
    calls, now_us = [], 0
    while A in leases:
        deadline_us = leases.next_deadline_us(now_us)
        assert deadline_us is not None
        now_us = deadline_us
        calls.append(now_us)
        leases.expired(now_us)

    assert calls == [7, 14, 21, 28, 31]


def test_time_that_goes_back_is_no_time() -> None:
    leases = leases_of(A)
    leases.expired(20)
    leases.renew(A, "run-1", 10)  # counts as heard at 20, the latest known time

    assert leases.expired(50) == []
    assert leases.expired(51) == [A]


def rows(leases: Leases, kind: str) -> list[list[Any]]:
    keys = [(task,) for task in leases._leases] if kind == "run" else list(leases._retired)
    return [json.loads(leases.encoded(kind, *key) or "") for key in keys]


def test_memory_is_bounded() -> None:
    leases = leases_of(B)
    for token in range(3 * RETIRED_RUNS):
        leases.register(A, str(token), now_us=0)

    assert RETIRED_RUNS <= len(rows(leases, "retired")) <= RETIRED_RUNS + 2
    assert leases.is_over(A, str(3 * RETIRED_RUNS - 2))
    assert len(leases._looks._in_order) == len(leases)


def test_a_restart_keeps_tokens_and_begins_leases_anew() -> None:
    leases = leases_of(A)
    leases.register(A, "run-2", now_us=0)
    again = Leases(lease_us=LEASE_US, most_gap_us=1_000)
    again.restore(rows(leases, "run"), rows(leases, "retired"), now_us=1_000_000)

    with pytest.raises(LowmarkError):
        again.check_registration(A, "run-1")
    assert all(rows(leases, kind) == rows(again, kind) for kind in ("run", "retired"))
    assert again.expired(1_000_030) == []
    assert again.expired(1_000_031) == [A]
