from __future__ import annotations

import json

import pytest
from lowmark.watermark import LowmarkError, StaleRun, TaskId, UnknownTask
from lowmark.watermark.tasks.membership import RETIRED_RUNS, Membership

A, B = TaskId("job", "orders", "a"), TaskId("job", "orders", "b")
LEASE_US = 30


def members_of(*tasks: TaskId, most_gap_us: int = 1_000) -> Membership:
    members = Membership(lease_us=LEASE_US, most_gap_us=most_gap_us)
    for task in tasks:
        members.register(task, "run-1", now_us=0)
    return members


def test_exactly_the_lease_is_in_time_and_longer_is_not() -> None:
    members = members_of(A, B)
    members.renew(B, "run-1", now_us=1)

    assert members.expired(30) == []
    assert (members.next_deadline_us(30), members.lease_left_us(A, 30)) == (31, 0)
    assert members.expired(31) == [A]
    assert members.expired(31) == []  # each expiry is returned once
    assert (A in members, B in members) == (False, True)
    assert members.expired(32) == [B]
    assert members.next_deadline_us(32) is None


def test_a_newer_run_ends_the_older_one() -> None:
    members = members_of(A)

    assert members.register(A, "run-2", now_us=1)
    for refused in (
        lambda: members.renew(A, "run-1", 2),
        lambda: members.check(A, "run-1"),
        lambda: members.register(A, "run-1", now_us=2),
        lambda: members.check(A, "never heard of"),
    ):
        with pytest.raises(StaleRun):
            refused()
    assert members.run(A) == "run-2"


def test_the_same_registration_again_only_renews_the_lease() -> None:
    members = members_of(A)

    assert not members.register(A, "run-1", now_us=20)
    assert members.expired(50) == []


@pytest.mark.parametrize("ended", ["expired", "left"])
def test_a_deleted_member_is_not_brought_back_by_what_it_says(ended: str) -> None:
    """NL4 of Numaflow: a deleted member stays deleted. Here it may register again, with a new run."""
    members = members_of(A)
    assert members.expired(31) if ended == "expired" else members.leave(A)

    with pytest.raises(UnknownTask):
        members.renew(A, "run-1", 32)
    with pytest.raises(StaleRun):
        members.register(A, "run-1", now_us=32)
    assert A not in members
    assert members.register(A, "run-2", now_us=32)


def test_silence_counts_only_while_somebody_listens() -> None:
    """The process was suspended for an hour, or the clock was set; the tasks' messages are still in the queue."""
    members = members_of(A, most_gap_us=20)

    assert members.expired(3_600) == []  # only 20 of the gap count
    assert members.next_deadline_us(3_600) == 3_611
    assert members.expired(3_610) == []
    assert members.expired(3_611) == [A]


def test_a_caller_that_keeps_to_the_deadlines_loses_no_silence() -> None:
    members = members_of(A, most_gap_us=7)
    calls, now_us = [], 0
    while A in members:
        deadline_us = members.next_deadline_us(now_us)
        assert deadline_us is not None
        now_us = deadline_us
        calls.append(now_us)
        members.expired(now_us)

    assert calls == [7, 14, 21, 28, 31]


def test_time_that_goes_back_is_no_time() -> None:
    members = members_of(A)
    members.expired(20)
    members.renew(A, "run-1", 10)  # counts as heard at 20, the latest known time

    assert members.expired(50) == []
    assert members.expired(51) == [A]


def test_memory_is_bounded() -> None:
    members = members_of(B)
    for run in range(3 * RETIRED_RUNS):
        members.register(A, str(run), now_us=0)

    assert RETIRED_RUNS <= len(json.loads(members.encoded_retired())) <= RETIRED_RUNS + 2
    assert members.is_over(A, str(3 * RETIRED_RUNS - 2))
    assert len(members._looks) == len(members)


def test_a_restart_keeps_tokens_and_begins_leases_anew() -> None:
    members = members_of(A)
    members.register(A, "run-2", now_us=0)
    again = Membership(lease_us=LEASE_US, most_gap_us=1_000)
    again.restore(json.loads(members.encoded_runs()), json.loads(members.encoded_retired()), now_us=1_000_000)

    with pytest.raises(LowmarkError):
        again.register(A, "run-1", now_us=1_000_000)
    assert members.encoded_runs() == again.encoded_runs()
    assert members.encoded_retired() == again.encoded_retired()
    assert again.expired(1_000_030) == []
    assert again.expired(1_000_031) == [A]


def test_a_gap_is_positive() -> None:
    with pytest.raises(ValueError, match="more than 0"):
        Membership(lease_us=LEASE_US, most_gap_us=0)
