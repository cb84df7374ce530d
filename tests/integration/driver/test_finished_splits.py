"""Finished splits are forgotten: a batch costs the same after thousands of them, and none of them is read again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
from lowmark.integration.driver.planned_splits import FINISHED_KEPT, PlannedSplits
from lowmark.integration.driver.stream import Stream
from lowmark.watermark import SplitState
from lowmark.watermark.splits.stream import SplitWatermarks

from tests.integration.driver.passing import ROWS, SECOND, Folder, Passing, calls_of, name_of
from tests.servers.local import wait_until

FILES = 40  # files of a batch
REMEMBERED = 200


@pytest.fixture
def open_queries() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.slow
def test_a_batch_costs_the_same_however_many_splits_have_ended(open_queries: ExitStack) -> None:
    folder = Folder(remember=REMEMBERED, listed=2 * REMEMBERED)
    folder.add(FILES)
    query = open_queries.enter_context(closing(Passing(folder)))
    query.batch()
    offsets, states, calls = [], [], []
    for _ in range(100):
        folder.add(FILES)
        query.look()
        sizes: list[tuple[int, int]] = []
        calls.append(calls_of(lambda into=sizes: into.append(query.batch())))  # type: ignore[misc]
        offsets.append(sizes[0][0])
        states.append(sizes[0][1])

    assert len(query.read) == len(set(query.read)) == folder.made == 101 * FILES
    for what, costs in (("offset", offsets), ("heartbeat", states), ("calls", calls)):
        early, late = max(costs[20:40]), max(costs[80:])
        assert late <= 1.05 * early, f"{what}: {early} at first, {late} after {folder.made} files: {costs}"
    assert len(query.run.watermarks.splits) <= FINISHED_KEPT
    assert len(query.run.stream.names) <= FINISHED_KEPT
    assert query.run.splits.observed_us == {}


def test_nothing_is_read_again_after_a_restart_from_any_offset(open_queries: ExitStack) -> None:
    folder = Folder(remember=REMEMBERED, listed=10_000)
    folder.add(FILES)
    query = open_queries.enter_context(closing(Passing(folder)))
    query.batch()
    for _ in range(30):
        folder.add(FILES)
        query.look()
        query.batch()
    made, offset, state = folder.made, json.loads(json.dumps(query.at.to_json())), query.run.state()
    folder.add(3)
    again = open_queries.enter_context(closing(Passing(folder, at=offset, state=state)))
    again.batch()
    again.batch()

    assert again.read == [name_of(number) for number in range(made, made + 3)]
    low_us, before_us = again.run.low_watermark_us, query.run.low_watermark_us
    assert low_us is not None
    assert before_us is not None
    assert low_us >= before_us


def test_the_last_splits_that_ended_are_shown_and_older_ones_are_not(open_queries: ExitStack) -> None:
    folder = Folder(remember=REMEMBERED, listed=10_000)
    folder.add(FINISHED_KEPT // 2)
    query = open_queries.enter_context(closing(Passing(folder)))
    query.batch()
    first = query.run.status(query.now_us).splits[name_of(0)]
    assert first.state is SplitState.FINISHED
    for _ in range(2):
        folder.add(FINISHED_KEPT // 2)
        query.look()
        query.batch()
    shown = query.run.status(query.now_us).splits

    assert set(shown) == {name_of(number) for number in range(FINISHED_KEPT // 2, 3 * FINISHED_KEPT // 2)}


def test_late_rows_are_counted_of_known_splits_only(open_queries: ExitStack) -> None:
    folder = Folder(remember=REMEMBERED, listed=10_000)
    folder.add(FILES)
    query = open_queries.enter_context(closing(Passing(folder)))
    query.batch(late_rows=2)
    for _ in range(10):
        folder.add(FILES)
        query.look()
        query.batch(late_rows=2)
    shown = query.run.status(query.now_us).splits

    assert {split.late_rows for split in shown.values()} == {2}
    assert query.run._late_rows is not None
    assert len(query.run._late_rows) == len(shown) == FINISHED_KEPT


def test_splits_that_ended_in_a_state_from_before_are_forgotten(open_queries: ExitStack) -> None:
    """Older versions forgot no split, so their checkpoints hold every split that ever finished."""
    folder = Folder(remember=REMEMBERED, listed=10_000)
    folder.add(1_000)
    query = open_queries.enter_context(closing(Passing(folder)))
    assert isinstance(query.run.splits, PlannedSplits)
    query.run.splits._forget_finished = lambda: iter(())  # type: ignore[method-assign]
    query.batch()
    assert len(query.run.watermarks.splits) == 1_000
    folder.add(1)
    again = open_queries.enter_context(closing(Passing(folder, at=query.at.to_json(), state=query.run.state())))
    again.batch()

    assert again.read == [name_of(1_000)]
    assert len(again.run.watermarks.splits) <= FINISHED_KEPT


def test_the_largest_watermark_of_splits_that_ended_stands_in_the_end_also_after_a_restart(
    open_queries: ExitStack,
) -> None:
    """The file of the furthest device may be read first, and its last windows wait for the end of the run."""
    folder = Folder(remember=REMEMBERED, listed=10_000)
    folder.add(1)
    folder.there.append(furthest := 5_000)
    query = open_queries.enter_context(closing(Passing(folder)))
    query.batch()
    folder.add(FINISHED_KEPT + 50)
    query.look()
    query.batch()
    assert len(query.run.watermarks.splits) == FINISHED_KEPT
    folder.add(1)
    again = open_queries.enter_context(closing(Passing(folder, at=query.at.to_json(), state=query.run.state())))
    again.run.splits.ends = True  # Trigger.AvailableNow
    again.batch()

    assert len(again.read) == 1
    assert again.run.low_watermark_us == ((furthest + 1) * ROWS - 1) * SECOND - 1_000


def test_splits_of_an_input_that_is_over_end_after_a_restart_if_their_last_report_was_lost(
    open_queries: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No later batch has rows, so nobody else would tell that no newer row of these splits comes."""
    folder = Folder(remember=REMEMBERED, listed=10)
    folder.bounded = True
    folder.add(3)
    query = open_queries.enter_context(closing(Passing(folder)))
    monkeypatch.setattr(query.run, "report", lambda *_, **__: None)  # the driver is killed right after the commit
    query.batch()
    assert query.run.watermarks.states[SplitState.FINISHED] == 0
    again = open_queries.enter_context(closing(Passing(folder, at=query.at.to_json(), state=query.run.state())))

    def over() -> bool:
        again.batch()
        return again.run.watermarks.states[SplitState.FINISHED] == 3

    wait_until(over, "all splits have ended")
    at = again.at
    again.batch()
    assert (again.at, again.read) == (at, []), "one batch without rows, and no more"


def test_the_state_is_encoded_once_an_epoch(open_queries: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(remember=REMEMBERED, listed=100)
    folder.add(3)
    query = open_queries.enter_context(closing(Passing(folder)))
    query.batch()
    encoded: list[int] = []
    encode = Stream.state_of

    def counted(stream: Stream, of_splits: SplitWatermarks) -> str:
        encoded.append(of_splits.epoch)
        return encode(stream, of_splits)

    monkeypatch.setattr(Stream, "state_of", counted)
    query.run._encoded = None
    states = {query.run.state() for _ in range(5)}
    assert (len(encoded), len(states)) == (1, 1)
    folder.add(1)
    query.look()
    query.batch()

    assert len(encoded) == 2
    assert query.run.state() not in states
