"""Splits with parents, such as Kinesis' shards."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from lowmark.watermark import InvalidReshard, InvalidSplitId, SplitState, explain
from lowmark.watermark.splits.coalescer import Coalescer
from lowmark.watermark.splits.events import (
    BatchPlanned,
    Event,
    Polled,
    SplitsDiscovered,
    SplitsFinished,
    SplitsPaused,
    SplitsRemoved,
    SplitsResharded,
    SplitsResumed,
    Tick,
)
from lowmark.watermark.splits.lineage import Lineage
from lowmark.watermark.state import Signal

from tests.watermark.splits.history import BY_TIME, PLAIN, START_US, History, at, batch

IDLENESS = PLAIN.with_idleness("10 seconds", clock="time")


def history_of(**watermarks_us: int) -> History:
    history = History()
    history.on(0, batch(0, 0, {str(split): us for split, us in watermarks_us.items()}))
    return history


def split_up(parent: str, *children: str) -> SplitsResharded:
    return SplitsResharded(dict.fromkeys(children, (parent,)))


# -- inheritance


def test_children_are_pending_and_hold_at_what_their_parent_reached() -> None:
    history = history_of(p=50, other=90)

    assert history.on(1, split_up("p", "c1", "c2")) == []
    assert history.on(2, SplitsFinished(("p",))) == [("p", "finished")]
    assert (history.low_us, history.state("c1"), history.status(2).splits["c1"].watermark_us) == (50, "pending", None)
    assert history.on(3, batch(1, 3, {"c1": 70})) == [("c1", "active")]
    assert history.on(4, batch(2, 4, {"c2": 60})) == [("c2", "active"), ("low", 60)]


def test_a_parent_that_still_delivers_raises_what_its_children_inherit() -> None:
    history = history_of(p=50, other=90)
    history.on(1, split_up("p", "c"))

    assert history.on(2, batch(1, 2, {"p": 70})) == [("low", 70)]
    assert history.on(3, SplitsFinished(("p",))) == [("p", "finished")]
    assert history.on(4, batch(2, 4, {"other": 99})) == []
    assert history.low_us == 70


def test_a_child_of_two_parents_inherits_the_smaller_watermark() -> None:
    history = history_of(p1=50, p2=60, other=90)
    history.on(1, SplitsResharded({"c": ("p1", "p2")}))

    assert history.on(2, SplitsFinished(("p1",))) == [("p1", "finished")]
    assert history.on(3, SplitsFinished(("p2",))) == [("p2", "finished")]
    assert history.low_us == 50
    assert history.on(4, batch(1, 4, {"c": 55})) == [("c", "active"), ("low", 55)]


def test_a_child_waits_while_any_of_its_parents_may_deliver() -> None:
    history = History(IDLENESS)
    history.on(0, batch(0, 0, {"p1": 50, "p2": 60, "other": 90}, backlog={"p2": 1}))
    history.on(1, SplitsResharded({"c": ("p1", "p2")}))
    history.on(2, SplitsFinished(("p1",)))
    history.on(60, batch(1, 60, {"other": 99}, backlog={"p2": 1}))

    assert history.state("c") == "pending"
    assert history.low_us == 50


def test_a_child_that_is_told_of_in_two_reshards_inherits_of_the_parents_of_both() -> None:
    history = history_of(p1=50, p2=60, other=90)
    history.on(1, split_up("p1", "c"))
    history.on(2, split_up("p2", "c"))
    history.on(3, SplitsFinished(("p1", "p2")))

    assert history.low_us == 50


def test_a_silent_child_hands_on_what_it_inherited() -> None:
    history = history_of(p=50, other=90)
    history.on(1, split_up("p", "c"))
    history.on(2, split_up("c", "g"))
    history.on(3, batch(1, 3, {"p": 70}))
    history.on(4, SplitsFinished(("p", "c")))

    assert (history.low_us, history.state("g")) == (70, "pending")
    assert history.on(5, batch(2, 5, {"g": 80})) == [("g", "active"), ("low", 80)]


def test_a_child_that_was_discovered_before_its_parents_absorbs_until_it_is_told() -> None:
    history = History()
    history.on(0, SplitsDiscovered(("c",)))
    assert history.on(1, batch(0, 1, {"p": 50})) == [("p", "active")]

    assert history.on(2, split_up("p", "c")) == [("low", 50)]


def test_a_parent_that_is_not_known_yet_leaves_its_child_absorbing() -> None:
    history = history_of(other=90)
    history.on(1, split_up("p", "c"))
    assert history.on(2, batch(1, 2, {"other": 99})) == []

    assert history.on(3, batch(2, 3, {"p": 95})) == [("p", "active"), ("low", 95)]


def test_one_parent_more_takes_back_what_was_inherited_but_not_what_was_published() -> None:
    history = history_of(p1=50, other=90)
    history.on(1, split_up("p1", "c"))
    history.on(2, split_up("p2", "c"))

    assert history.on(3, batch(1, 3, {"p1": 70})) == []
    assert history.on(4, batch(2, 4, {"p2": 60})) == [("p2", "active"), ("low", 60)]


def test_a_removed_parent_leaves_what_it_stood_at() -> None:
    history = history_of(p1=50, p2=70, other=90)
    history.on(1, SplitsResharded({"c": ("p1", "p2")}))
    history.on(2, SplitsFinished(("p1", "p2")))
    history.on(3, SplitsRemoved(("p1", "p2")))

    assert history.on(4, batch(1, 4, {"other": 99})) == []
    assert (history.low_us, history.status(4).holder) == (50, "c")


def test_a_removed_parent_that_never_spoke_leaves_its_child_absorbing() -> None:
    history = history_of(other=90)
    history.on(1, SplitsDiscovered(("p",)))
    history.on(1, split_up("p", "c"))
    history.on(2, SplitsRemoved(("p",)))

    assert history.on(3, batch(1, 3, {"other": 99})) == []


def test_a_removed_child_holds_nobody() -> None:
    history = history_of(p=50, other=90)
    history.on(1, split_up("p", "c"))
    history.on(2, SplitsFinished(("p",)))

    assert history.on(3, SplitsRemoved(("c",))) == [("low", 90)]


@pytest.mark.parametrize("spoke", [True, False])
def test_a_child_that_comes_again_inherits_nothing_of_the_first_time(spoke: bool) -> None:
    history = history_of(p=50, q=95, other=90)
    history.on(1, split_up("p", "c"))
    history.on(2, SplitsFinished(("p",)))
    history.on(3, SplitsRemoved(("p",)))  # leaves 50
    history.on(4, batch(1, 4, {"c": 60} if spoke else {}))
    history.on(5, SplitsRemoved(("c",)))
    history.on(6, split_up("q", "c"))

    assert history.on(7, batch(2, 7, {"other": 99})) == [("low", 95)]


def test_a_child_that_is_idle_is_not_waited_for() -> None:
    coalescer = Coalescer()
    for split in ("p", "c"):
        coalescer.assign(split)
    coalescer.report("p", 50)
    lineage = Lineage(coalescer, {})
    lineage.reshard({"c": ("p",)})
    lineage.settle()
    seen = [(set(lineage.pending), lineage.states[SplitState.PENDING], lineage.states[SplitState.IDLE])]
    coalescer.signal("c", Signal.IDLE)
    seen.append((set(lineage.pending), lineage.states[SplitState.PENDING], lineage.states[SplitState.IDLE]))

    assert seen == [({"c"}, 1, 0), (set(), 0, 1)]
    assert lineage.states[SplitState.ACTIVE] == 1


def test_one_parent_more_of_a_known_child_is_for_the_next_snapshot() -> None:
    history = history_of(p1=50, other=90)
    history.on(1, split_up("p1", "c"))
    epochs = [history.watermarks.epoch]
    for parent in ("p2", "p2"):
        history.on(2, split_up(parent, "c"))
        epochs.append(history.watermarks.epoch)

    assert [after - before for before, after in pairwise(epochs)] == [1, 0]


def test_a_child_that_spoke_goes_by_its_own_word_even_below_what_it_inherited() -> None:
    history = history_of(p=50, low=10)
    history.on(1, split_up("p", "c"))
    history.on(2, batch(1, 2, {"c": 30, "low": 99}))

    assert (history.low_us, history.status(2).regressions) == (30, 0)
    assert history.on(3, split_up("p", "c")) == []  # repeated: nothing is left to inherit


def test_rows_of_a_child_without_a_usable_time_are_not_its_word() -> None:
    history = history_of(p=50, other=90)
    history.on(1, split_up("p", "c"))
    history.on(2, SplitsFinished(("p",)))

    assert history.on(3, batch(1, 3, {"other": 99}, rows={"c": 4})) == []
    assert (history.low_us, history.state("c")) == (50, "pending")


def test_a_child_below_the_low_watermark_is_reported_as_late() -> None:
    history = history_of(p=50)
    history.on(1, split_up("p", "c"))

    assert history.on(2, batch(1, 2, {"c": 20})) == [("c", "active"), ("c late by", 30)]


def test_a_claim_of_a_child_below_its_parents_is_no_late_return_because_a_claim_may_be_careful() -> None:
    """A planner of Kinesis claims a second less than a shard's first row, whose rows need not be in order."""
    history = history_of(p=50, other=90)
    history.on(1, split_up("p", "c"))
    history.on(2, SplitsFinished(("p",)))

    assert history.on(3, BatchPlanned(at(3), {"c": 45})) == [("c", "active")]
    assert history.on(4, batch(1, 4, {"c": 55, "other": 95})) == [("low", 55)]
    assert history.status(4).returned_late == 0


# -- time


def test_the_silence_of_a_child_counts_from_when_its_parents_are_done() -> None:
    history = History(IDLENESS)
    history.on(0, batch(0, 0, {"p": 50, "other": 90}))
    history.on(1, split_up("p", "c"))
    for second in range(20, 60, 20):
        history.on(second, batch(second, second, {"p": 50 + second, "other": 90 + second}))
    assert history.state("c") == "pending"  # its parent was read first

    history.on(60, SplitsFinished(("p",)))
    assert history.on(70, batch(70, 70, {"other": 999})) == []
    assert history.on(71, batch(71, 71, {"other": 999})) == [("c", "idle"), ("low", 999)]


def test_a_child_that_spoke_before_its_parents_were_done_is_timed_like_any_other() -> None:
    history = History(IDLENESS)
    history.on(0, batch(0, 0, {"p": 50}))
    history.on(1, split_up("p", "c"))
    history.on(5, batch(1, 5, {"p": 60, "c": 70}))

    assert history.on(15, batch(2, 15, {"p": 80})) == [("low", 70)]
    assert history.on(16, batch(3, 16, {"p": 80})) == [("c", "idle"), ("low", 80)]


def test_the_news_of_its_parents_ends_the_grace_of_a_child_although_that_time_is_over() -> None:
    """Nothing is judged while a long batch runs; the news is heard when the batch is over."""
    history = History(PLAIN.with_grace("10 seconds"))
    history.on(0, batch(0, 0, {"p": 50, "other": 90}))
    history.on(1, SplitsDiscovered(("c",)))
    assert history.on(300, split_up("p", "c")) == []
    assert history.state("c") == "pending"

    assert history.on(301, SplitsFinished(("p",))) == [("p", "finished")]
    assert history.on(312, Tick()) == [("c", "idle"), ("low", 90)]


def test_the_grace_of_an_empty_child_begins_when_its_parents_are_done() -> None:
    history = History(BY_TIME)
    history.on(0, batch(0, 0, {"p": 50, "other": 90}))
    history.on(1, SplitsResharded({"c": ("p",)}, frozenset({"c"})))
    history.on(100, batch(1, 100, {"p": 60}))
    assert history.state("c") == "pending"
    assert history.status(100).splits["c"].pending_since is not None

    history.on(100, SplitsFinished(("p",)))
    assert history.on(160, Polled(at(160))) == []
    assert history.on(160.000001, Polled(at(160.000001))) == [("c", "idle"), ("low", 90)]


def test_a_silent_child_can_be_paused_and_resumed() -> None:
    history = History(IDLENESS)
    history.on(0, batch(0, 0, {"p": 50, "other": 90}))
    history.on(1, split_up("p", "c"))
    history.on(2, SplitsFinished(("p",)))

    assert history.on(3, SplitsPaused(("c",))) == [("c", "paused")]
    assert history.on(50, batch(1, 50, {"other": 99})) == []
    assert history.on(50, SplitsResumed(("c",))) == [("c", "pending")]
    assert history.on(59, batch(2, 59, {"other": 100})) == []
    assert history.on(60, batch(3, 60, {"other": 100})) == [("c", "idle"), ("low", 100)]


def test_an_idle_child_whose_rows_are_seen_holds_again_at_what_it_inherited() -> None:
    history = History(IDLENESS)
    history.on(0, batch(0, 0, {"p": 50, "other": 90}))
    history.on(1, split_up("p", "c"))
    history.on(2, SplitsFinished(("p",)))
    history.on(20, batch(1, 20, {"other": 99}))
    assert (history.state("c"), history.low_us) == ("idle", 99)

    assert history.on(21, batch(2, 21, {"other": 120}, backlog={"c": 3})) == [("c", "pending")]
    assert (history.low_us, history.status(21).holder) == (99, "c")


# -- restart


def test_a_restart_between_any_two_events_of_a_reshard_changes_nothing() -> None:
    events: list[tuple[int, Event]] = [
        (0, batch(0, 0, {"p1": 50, "p2": 60, "other": 90})),
        (1, SplitsResharded({"c": ("p1", "p2")})),
        (2, batch(1, 2, {"p1": 70})),
        (3, SplitsFinished(("p1", "p2"))),
        (4, SplitsRemoved(("p1",))),
        (5, split_up("c", "g")),
        (6, SplitsFinished(("c",))),
        (7, batch(2, 7, {"other": 99})),
        (8, batch(3, 8, {"g": 80})),
    ]
    whole, crashed = History(), History()
    for second, event in events:
        assert whole.on(second, event) == crashed.on(second, event)
        crashed.restart(second)
        assert whole.watermarks.snapshot() == crashed.watermarks.snapshot()
        assert (whole.status(second).holder, whole.status(second).next) == (
            crashed.status(second).holder,
            crashed.status(second).next,
        )

    assert (80, {"p2", "c", "g", "other"}) == (crashed.low_us, set(crashed.watermarks.splits))


def test_a_reshard_is_worth_a_snapshot_once() -> None:
    history = history_of(p=50)
    grew = []
    for event in (split_up("p", "c"), split_up("p", "c"), Tick()):
        before = history.watermarks.epoch
        history.on(1, event)
        grew.append(history.watermarks.epoch - before)

    assert grew == [1, 0, 0]


# -- status for people


def test_the_status_says_what_a_child_inherited_and_what_it_waits_for() -> None:
    history = History()
    history.on(0, batch(0, 0, {"p": START_US, "other": START_US + 9}))
    history.on(1, split_up("p", "a"))
    status = history.status(1)

    assert (status.holder, status.states["pending"], status.states["active"]) == ("a", 1, 2)
    assert status.why == "split a has not spoken yet; it inherited 2023-11-14 22:13:20.000 UTC."
    assert status.next == (
        "Newer rows of its parents, or the first row of split a, or the end of its grace: its silence counts from when "
        "its parents are done."
    )
    assert "a: pending" in explain(status)
    assert {"a": status.splits["a"]} == dict(history.status(1, limit=1).splits)
    history.on(2, SplitsFinished(("p",)))
    assert history.status(2).next.startswith("The first row of split a, or the end of its grace: with_grace()")


def test_a_thousand_splits_that_are_divided_and_forgotten_at_once_cost_little() -> None:
    """A step for each child that looked at all of them took 18 seconds of the driver's loop, and 3 to forget them."""
    history, parents = History(), tuple(map(str, range(1_000)))
    history.on(0, batch(0, 0, dict.fromkeys(parents, 5)))
    began = time.process_time()
    history.on(1, SplitsResharded({f"{parent}-{child}": (parent,) for parent in parents for child in (0, 1)}))
    history.on(2, SplitsFinished(parents))
    history.on(3, SplitsRemoved(parents))

    assert time.process_time() - began < 2
    assert (len(history.watermarks.splits), history.low_us) == (2_000, 5)


# -- impossible events


@pytest.mark.parametrize(
    ("parents", "child", "expected"),
    [
        ((), "c", "at least one parent"),
        (("p",), "p", "no split to be its own ancestor, as 'p' is"),
        (("c",), "p", "no split to be its own ancestor"),
        (("new",), "p", "no split to be its own ancestor"),
    ],
)
def test_an_impossible_reshard_is_refused_and_nothing_is_applied(
    parents: tuple[str, ...], child: str, expected: str
) -> None:
    history = History()
    history.on(0, split_up("p", "c"))
    before = history.watermarks.snapshot()

    with pytest.raises(InvalidReshard, match=expected):
        history.on(1, SplitsResharded({"new": ("p",), child: parents}))
    assert before == history.watermarks.snapshot()


def test_an_impossible_reshard_settles_no_kind_of_ids() -> None:
    history = History()
    with pytest.raises(InvalidReshard):
        history.on(0, SplitsResharded({"c": ()}))

    history.on(1, SplitsDiscovered((7,)))
    assert history.watermarks.splits == (7,)


def test_the_ids_of_parents_are_checked_too() -> None:
    history = history_of(p=50)

    with pytest.raises(InvalidSplitId):
        history.on(1, SplitsResharded({"c": (7,)}))
    assert set(history.watermarks.splits) == {"p"}


@pytest.mark.parametrize("restart", [False, True])
def test_a_child_that_finishes_silent_leaves_no_watermark(restart: bool) -> None:
    history = history_of(p=50, other=20)
    history.on(1, split_up("p", "c"))
    history.on(2, SplitsFinished(("c",)))
    history.on(3, SplitsRemoved(("p",)))
    if restart:
        history.restart(4)

    assert history.on(5, SplitsFinished(("other",))) == [("other", "finished")]
    assert history.low_us == 20


def test_many_generations_that_never_spoke() -> None:
    history = history_of(s0=50, other=90)
    for generation in range(200):
        history.on(1, split_up(f"s{generation}", f"s{generation + 1}"))
    history.on(2, SplitsFinished(tuple(f"s{generation}" for generation in range(200))))

    assert (history.low_us, history.status(2).holder) == (50, "s200")


def test_the_silence_of_a_child_counts_from_when_its_parent_is_idle_too() -> None:
    history = History(IDLENESS)
    history.on(0, batch(0, 0, {"p": 50, "other": 90}))
    history.on(1, split_up("p", "c"))

    assert history.on(20, batch(1, 20, {"other": 99})) == [("p", "idle")]
    assert history.on(30, batch(2, 30, {"other": 100})) == []
    assert history.on(31, batch(3, 31, {"other": 101})) == [("c", "idle"), ("low", 101)]
