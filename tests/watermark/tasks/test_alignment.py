from __future__ import annotations

import json

import pytest
from lowmark.watermark import (
    CorruptSnapshot,
    DisagreeingGroup,
    InvalidMessage,
    InvalidStrategy,
    InvalidWatermark,
    SplitState,
    TaskId,
)
from lowmark.watermark.strategy import AlignmentParams
from lowmark.watermark.tasks.alignment import AlignmentGroup, MemberStatus
from lowmark.watermark.tasks.cap import Cap, CapKind
from lowmark.watermark.tasks.restored import decode
from lowmark.watermark.tasks.snapshot import Key, nobody_keeps

from tests.watermark.tasks.coordinator_world import rows_of

ORDERS, CLICKS, VIEWS = (TaskId("job", source, "0") for source in ("orders", "clicks", "views"))
PARAMS = AlignmentParams("g", max_drift_us=10, update_interval_us=100)
FIRST_US, LAST_US = -(2**63), 2**63 - 1


def group_of(*tasks: TaskId, params: AlignmentParams = PARAMS) -> AlignmentGroup:
    group = AlignmentGroup("g")
    for task in tasks:
        group.join(task, params, now_us=0)
    return group


def member(group: AlignmentGroup, task: TaskId) -> MemberStatus:
    (found,) = (each for each in group.status().members if each.task == task)
    return found


# -- a cap


def test_a_cap_allows_what_is_equal_to_it_and_a_reader_without_watermark_always() -> None:
    assert [Cap.up_to(0).allows(us) for us in (None, -1, 0, 1)] == [True, True, True, False]
    assert [Cap.hold().allows(us) for us in (None, FIRST_US, 0)] == [True, False, False]
    assert [Cap.free().allows(us) for us in (None, 0, LAST_US)] == [True, True, True]


def test_the_tighter_cap_is_the_smaller_one() -> None:
    caps = [Cap.hold(), Cap.up_to(FIRST_US), Cap.up_to(0), Cap.up_to(LAST_US), Cap.free()]

    assert sorted((caps[2], caps[4], caps[0], caps[3], caps[1])) == caps
    assert [str(cap) for cap in caps[::2]] == ["hold", "1970-01-01 00:00:00.000 UTC", "no limit"]


def test_only_a_numeric_cap_has_a_number() -> None:
    for kind, us in ((CapKind.HOLD, 0), (CapKind.FREE, 0), (CapKind.UP_TO, None)):
        with pytest.raises(InvalidMessage, match=f"its kind is {kind.name}"):
            Cap(kind, us)


# -- membership


def test_other_parameters_than_the_groups_are_refused_and_change_nothing() -> None:
    group = group_of(ORDERS)
    group.report(ORDERS, 0, at_us=1)
    before = rows_of(group)
    with pytest.raises(DisagreeingGroup) as refused:
        group.join(CLICKS, AlignmentParams("g", 30_000_000, 100), now_us=1)

    assert str(refused.value) == (
        "alignment group 'g': task job/clicks/0 asks for max drift 30s and update interval 0.0001s, but task "
        "job/orders/0 joined with max drift 0.00001s and update interval 0.0001s. Hint: give every stream of the "
        "group the same parameters, or this one another group."
    )
    assert before == rows_of(group)


def test_the_only_member_may_come_back_with_other_parameters_and_so_may_anyone_after_the_last_left() -> None:
    other = AlignmentParams("g", 20, 20)
    group = group_of(ORDERS)
    group.report(ORDERS, 0, at_us=1)
    group.join(ORDERS, other, now_us=1)
    assert (group.cap(), group.next_us) == (Cap.up_to(20), 21)  # not at the end of the interval of before
    group.leave(ORDERS)
    group.join(CLICKS, PARAMS, now_us=2)
    assert group.status().params == PARAMS


def test_a_negative_drift_is_refused_wherever_it_comes_from() -> None:
    for drift_us, interval_us, name in ((-1, 1, "g"), (0, 0, "g"), (0, 1, "")):
        with pytest.raises(InvalidStrategy):
            AlignmentParams(name, drift_us, interval_us)


def test_joining_twice_changes_nothing() -> None:
    group = group_of(ORDERS, CLICKS)
    group.report(ORDERS, 5, at_us=1)
    before = rows_of(group)
    group.join(ORDERS, PARAMS, now_us=50)
    assert before == rows_of(group)


def test_reports_of_strangers_are_refused_and_a_message_does_not_bring_anyone_back() -> None:
    group = group_of(ORDERS, CLICKS)
    group.leave(CLICKS)
    with pytest.raises(KeyError):
        group.report(CLICKS, 0, at_us=1)
    with pytest.raises(KeyError):
        group.idle(CLICKS, at_us=1)
    group.leave(CLICKS)
    assert [each.task for each in group.status().members] == [ORDERS]


def test_a_watermark_beyond_64_bits_is_refused_and_changes_nothing() -> None:
    group = group_of(ORDERS)
    for low_us, wanted_us in ((LAST_US + 1, None), (FIRST_US - 1, None), (0, LAST_US + 1)):
        with pytest.raises(InvalidWatermark, match="job/orders/0"):
            group.report(ORDERS, low_us, at_us=1, next_wanted_us=wanted_us)
    assert group.cap() == Cap.hold()


# -- the cap


@pytest.mark.parametrize(
    ("low_us", "cap_us"), [(FIRST_US, FIRST_US + 10), (-10, 0), (0, 10), (LAST_US - 1, LAST_US), (LAST_US, LAST_US)]
)
def test_the_cap_is_the_minimum_and_the_drift_saturating(low_us: int, cap_us: int) -> None:
    group = group_of(ORDERS)
    group.report(ORDERS, low_us, at_us=1)
    assert group.cap() == Cap.up_to(cap_us)


def test_an_older_report_changes_nothing_and_a_newer_lower_one_is_followed() -> None:
    group = group_of(ORDERS)
    for at_us, low_us, cap_us in ((5, 100, 110), (4, 50, 110), (6, 90, 100), (5, 300, 100)):
        group.report(ORDERS, low_us, at_us=at_us)
        assert group.cap() == Cap.up_to(cap_us), f"report of {low_us} made at {at_us}"


def test_an_idle_member_is_left_out_until_it_reports_and_an_older_report_does_not_wake_it() -> None:
    group = group_of(ORDERS, CLICKS)
    group.report(ORDERS, 0, at_us=1)
    group.report(CLICKS, 50, at_us=1)
    group.idle(ORDERS, at_us=3)
    group.report(ORDERS, 1, at_us=2)
    assert (group.cap(), member(group, ORDERS).state) == (Cap.up_to(60), SplitState.IDLE)
    group.report(ORDERS, None, at_us=4)
    assert (group.cap(), member(group, ORDERS).low_us) == (Cap.up_to(11), 1)


def test_a_newcomer_stops_the_cap_where_it_is_and_lowers_it_when_it_speaks_from_behind() -> None:
    group = group_of(ORDERS)
    group.report(ORDERS, 100, at_us=1)
    group.announce(100)
    group.join(CLICKS, PARAMS, now_us=150)
    group.report(ORDERS, 110, at_us=150)
    assert group.cap() == Cap.up_to(110)
    group.report(CLICKS, 20, at_us=160)
    assert group.cap() == Cap.up_to(30)


def test_a_gap_in_the_data_of_all_is_jumped_by_the_smallest() -> None:
    group = group_of(ORDERS, CLICKS)
    group.report(ORDERS, 0, at_us=1, next_wanted_us=500)
    group.report(CLICKS, 5, at_us=1, next_wanted_us=300)
    assert group.cap() == Cap.up_to(300)
    assert (member(group, ORDERS).waiting, member(group, CLICKS).waiting) == (True, False)
    group.report(CLICKS, 300, at_us=2, next_wanted_us=301)
    assert group.cap() == Cap.up_to(310)


# -- announcements


def test_announcements_keep_to_their_beat_and_are_not_made_up_for() -> None:
    group = group_of(ORDERS)
    group.report(ORDERS, 0, at_us=1)
    moments_us = (99, 100, 101, 199, 205, 430, 499, 500)
    due = [(now_us, len(group.announce(now_us)), group.next_us) for now_us in moments_us]

    assert due == [
        (99, 0, 100), (100, 1, 200), (101, 0, 200), (199, 0, 200), (205, 1, 300), (430, 1, 500), (499, 0, 500),
        (500, 1, 600),
    ]  # fmt: skip


def test_reports_announce_nothing_by_themselves() -> None:
    group = group_of(ORDERS, CLICKS)
    assert (group.next_us, group.announce(100)) == (100, [])  # no member has reported (FLINK-35933)
    group.report(ORDERS, 0, at_us=150)
    assert group.announce(150) == []
    assert [(each.task, each.cap) for each in group.announce(200)] == [(CLICKS, Cap.hold()), (ORDERS, Cap.hold())]


def test_there_is_nobody_to_tell_in_an_empty_group() -> None:
    group = AlignmentGroup("g")
    assert (group.next_us, group.announce(10**9), group.cap()) == (None, [], Cap.free())
    group.join(ORDERS, PARAMS, now_us=0)
    group.leave(ORDERS)
    assert (group.next_us, group.announce(100)) == (None, [])
    group.join(CLICKS, PARAMS, now_us=1_000)
    assert group.next_us == 1_100


def test_versions_grow_also_when_the_group_comes_back_from_an_old_snapshot() -> None:
    group = group_of(ORDERS)
    group.report(ORDERS, 0, at_us=1)
    group.announce(100)
    old = rows_of(group)
    seen = [each.version for now_us in range(200, 1_000, 100) for each in group.announce(now_us)]
    again = [each.version for each in AlignmentGroup.restore(old, nobody_keeps).announce(1_000)]

    assert seen == sorted(set(seen))
    assert again[0] > seen[-1]


def test_versions_grow_when_the_clock_stands_at_nought() -> None:
    group = AlignmentGroup("g")
    group.join(ORDERS, PARAMS, now_us=-1_000)
    group.report(ORDERS, 0, at_us=-999)
    assert [each.version for now_us in (-900, -800) for each in group.announce(now_us)] == [1, 2]


# -- status for people


def test_a_status_names_the_holder_and_says_why_everyone_is_where_it_is() -> None:
    group = AlignmentGroup("g")
    sites = [TaskId("job", source, "0") for source in "abcd"]
    slow, fast, wrapped, idle = sites
    for task in sites:
        group.join(task, PARAMS, now_us=9_000_000, throttled=task != wrapped)
    for task, low_us in ((slow, 0), (fast, 11), (wrapped, 50)):
        group.report(task, low_us, at_us=9_000_001)
    group.idle(idle, at_us=9_000_001)
    status = group.status()

    assert (status.group, status.cap, status.version, status.minimum_us, status.holder) == (
        "g",
        Cap.up_to(10),
        0,
        0,
        slow,
    )
    assert status.why == "task job/a/0 has the smallest low watermark, and the others may be 0.00001s ahead of it."
    assert [(m.task, m.state.value, m.low_us, m.ahead_us, m.waiting, m.left_out, m.why) for m in status.members] == [
        (slow, "active", 0, 0, False, False, "may go on"),
        (fast, "active", 11, 11, True, False, "waits: it is beyond the cap, which task job/a/0 holds"),
        (wrapped, "active", 50, 50, False, False, "beyond the cap, and not stopped, because Spark reads this stream"),
        (idle, "idle", None, None, False, True, "idle: left out until it reports"),
    ]
    assert [m.throttled for m in status.members] == [task != wrapped for task in sites]


def test_a_status_says_why_the_cap_is_what_it_is() -> None:
    group = AlignmentGroup("g")
    assert group.status().why == "no task has joined."
    for task in (ORDERS, CLICKS):
        group.join(task, PARAMS, now_us=0)
    group.report(ORDERS, 0, at_us=1)
    assert group.status().why == "task job/clicks/0 has not reported yet, and the group waits for its first report."
    assert member(group, CLICKS).why == "has not spoken: waited for"
    group.report(CLICKS, 0, at_us=2, next_wanted_us=70)
    group.report(ORDERS, 0, at_us=2, next_wanted_us=80)
    assert group.status().why == "task job/clicks/0 has no row before the cap, so it may read across the gap."
    for task in (ORDERS, CLICKS):
        group.idle(task, at_us=3)
    assert group.status().why == "every task is left out, so there is no limit."
    forever = group_of(ORDERS).status()
    assert forever.why == "task job/orders/0 has not reported yet, and the group waits for its first report."


def test_a_group_comes_back_whole() -> None:
    group = group_of(ORDERS, CLICKS, VIEWS)
    group.report(ORDERS, 0, at_us=1, next_wanted_us=3)
    group.idle(CLICKS, at_us=1)
    group.announce(100)
    again = AlignmentGroup.restore(rows_of(group), nobody_keeps)

    assert rows_of(group) == rows_of(again)
    fields, fields_again = dict(vars(group)), dict(vars(again))
    assert fields == fields_again
    assert again.status() == group.status()


def test_what_is_no_snapshot_is_refused() -> None:
    with pytest.raises(KeyError):
        AlignmentGroup.restore({}, nobody_keeps)
    group, member, good = ("group", "g"), ("member", "g", *ORDERS.parts), group_of(ORDERS).encoded() or ""
    negative = {"group": "g", "max_drift_us": -1, "update_interval_us": 1}
    bad: list[tuple[Key, object]] = [
        (group, {"params": {"group": "g"}}),
        (group, {"params": negative}),
        (member, {"task": {}}),
        (member, 7),
    ]
    for key, value in bad:
        with pytest.raises(CorruptSnapshot):
            decode({group: good, key: json.dumps(value)})
