"""Reader groups: their checkpoints, and batches of a query that end at them, through crashes and scalings."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest
from lowmark.sources.planning.offset import BatchOffset
from lowmark.sources.planning.options import PlanOptions
from lowmark.sources.planning.planner import BatchPlanner, PlanningFailed
from lowmark.sources.pravega import PravegaSource, PravegaSplit
from lowmark.sources.pravega.client import StreamCut
from lowmark.sources.pravega.errors import PravegaUnavailable
from lowmark.sources.pravega.group import PravegaGroup
from lowmark.sources.pravega.jvm import java_class
from lowmark.sources.pravega.segment import split_of
from lowmark.sources.reading.slices import read_slices

from tests.drivers.pravega_group import Application, set_to, standing
from tests.servers.local import wait_until
from tests.servers.pravega import Pravega
from tests.worlds.pravega_reading import events_of

MOST_MS = 2_000


class Group:
    """A reader group over one stream, with manual checkpoints only."""

    def __init__(self, pravega: Pravega, stream: str) -> None:
        self.pravega, self.name = pravega, f"g{uuid.uuid4().hex[:8]}"
        config = pravega.client.java_config
        self.manager = java_class("io.pravega.client.admin.ReaderGroupManager").withScope(pravega.scope, config)
        self.manager.createReaderGroup(self.name, self._described(stream))
        self.group = self.manager.getReaderGroup(self.name)

    def _described(self, stream: str) -> Any:
        builder = java_class("io.pravega.client.stream.ReaderGroupConfig").builder()
        return builder.stream(self.pravega.client.java_stream(stream)).disableAutomaticCheckpoints().build()

    def reader(self, name: str) -> Any:
        serializer = java_class("io.pravega.client.stream.impl.ByteArraySerializer")()
        config = java_class("io.pravega.client.stream.ReaderConfig").builder().build()
        return self.pravega._writers.createReader(name, self.name, serializer, config)

    def set_to(self, stream: str) -> None:
        """Set the group that has the name now to the head of a stream."""
        self.manager.getReaderGroup(self.name).resetReaderGroup(self._described(stream))

    def close(self) -> None:
        self.group.close()
        self.manager.close()

    def checkpoint(self, name: str) -> Any:
        return self.group.initiateCheckpoint(name, self.pravega.client.executor)


@pytest.fixture
def stream(pravega: Pravega) -> str:
    name = pravega.create_stream(1)
    pravega.write(name, [("k", b"%04d" % n) for n in range(20)])  # 12 bytes each, with their headers
    return name


@pytest.fixture
def group(pravega: Pravega, stream: str) -> Iterator[Group]:
    made = Group(pravega, stream)
    yield made
    made.close()


def byte_of(checkpoint: Any) -> int:
    [positions] = [cut.asImpl().getPositions() for cut in dict(checkpoint.asImpl().getPositions()).values()]
    [byte] = dict(positions).values() if hasattr(positions, "values") else positions.values()
    return int(byte)


def test_a_checkpoint_waits_until_readers_have_read_and_says_where_they_are(group: Group) -> None:
    reader = group.reader("one")
    first = [str(bytes(reader.readNextEvent(MOST_MS).getEvent()), "ascii") for _ in range(3)]
    assert first == ["0000", "0001", "0002"]
    due = group.checkpoint("c1")
    with pytest.raises(Exception, match="TimeoutException"):
        due.get(MOST_MS, java_class("java.util.concurrent.TimeUnit").MILLISECONDS)
    seen = 3
    while not (event := reader.readNextEvent(MOST_MS)).isCheckpoint():
        seen += 1
    reader.readNextEvent(MOST_MS)  # a reader confirms the events before a checkpoint only by the next read
    done = wait_until(lambda: due.getNow(None), "the checkpoint", seconds=20)
    assert byte_of(done) == seen * 12, "the position that was read, which nobody knew when the batch was planned"
    assert str(event.getCheckpointName()) == "c1"
    reader.close()


def test_a_checkpoint_without_readers_moves_nothing(group: Group) -> None:
    due = group.checkpoint("c1")
    done = wait_until(lambda: due.getNow(None), "the checkpoint", seconds=20)
    assert byte_of(done) == 0, "20 events are there, and the batch would be empty for ever"


def plan_of(source: PravegaSource) -> BatchPlanner[PravegaSplit]:
    return BatchPlanner(source, name="orders", options=PlanOptions(slots=2), now_us=lambda: time.time_ns() // 1_000)


def next_batch(planner: BatchPlanner[PravegaSplit], at: BatchOffset) -> BatchOffset:
    """Plan until a batch has rows, and write its offset, as Spark does."""

    def planned() -> BatchOffset | None:
        end = planner.plan(at, None)
        return None if end == at else end

    end = wait_until(planned, "a batch", seconds=60)
    written = BatchOffset.find(json.loads(json.dumps(end.to_json())))
    assert written is not None
    return written


def rows_of(source: PravegaSource, planner: BatchPlanner[PravegaSplit], at: BatchOffset, end: BatchOffset) -> list[int]:
    parts = [part for task in planner.tasks(at, end) for part in read_slices(source, task.splits)]
    return [int(event) for part in parts for event in events_of(pa.Table.from_batches([part.rows]))]


def test_batches_end_at_the_checkpoints_of_a_group_that_an_application_shares(pravega: Pravega) -> None:
    """A killed process closes nothing: its reader stays in the group, and delays the group's checkpoints."""
    seed = 11
    rng, stream, name = random.Random(seed), pravega.create_stream(2), f"g{uuid.uuid4().hex[:8]}"
    source, sent, got = pravega.source(stream, reader_group=name), 0, list[int]()
    left: list[BatchPlanner[PravegaSplit]] = []
    planner = plan_of(source)
    at = planner.initial()
    scale = iter([pravega.split_one, pravega.merge_two])
    with Application(pravega, name) as application:
        for round_ in range(7):
            pravega.write(stream, ((f"k{n % 31}", b"%d" % n) for n in range(sent, sent + 100)))
            sent += 100
            if round_ in {1, 4}:
                next(scale)(stream)
            end = next_batch(planner, at)
            crash = rng.choice(["planned", "read", None]) if round_ else "planned"
            if crash is None:
                got += rows_of(source, planner, at, end)
                planner.committed(end)
            else:
                if crash == "read":
                    rows_of(source, planner, at, end)
                left.append(planner)
                planner = plan_of(source)
                got += rows_of(source, planner, at, end)
                before, _ = set_to(pravega, name)
                planner.plan(end, None)
                times, position = set_to(pravega, name)
                assert times > before, f"seed {seed}, round {round_}"
                assert position == standing(pravega, end), f"seed {seed}, round {round_}"
            at = end
        while len(got) < sent:
            end = next_batch(planner, at)
            got += rows_of(source, planner, at, end)
            planner.committed(end)
            at = end
    assert sorted(got) == list(range(sent)), f"seed {seed}"
    assert application.resets >= len(left), "each restart has set the group back"
    assert application.events, "it shared the reading"
    assert any(each.startswith("lowmark-") for each in application.checkpoints)
    for each in (planner, *left):
        each.close()


def test_a_run_of_all_there_is_ends_though_rows_go_on_to_come(pravega: Pravega) -> None:
    stream = pravega.create_stream(1)
    pravega.write(stream, (("k", b"%d" % n) for n in range(50)))
    source = pravega.source(stream, reader_group=f"g{uuid.uuid4().hex[:8]}")
    planner, got = plan_of(source), list[int]()
    planner.stop_at_present()
    at = planner.initial()
    for more in range(50, 1_000):
        end = planner.plan(at, None)
        if end == at:
            break
        got += rows_of(source, planner, at, end)
        at = end
        pravega.write(stream, [("k", b"%d" % more)])
    planner.close()
    assert set(range(50)) <= set(got), "what was there when it began"
    assert len(got) < 100, "and then it ends"


def test_a_subscriber_is_told_what_was_committed_and_is_nobody_elses(
    pravega: Pravega, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, other, name = pravega.create_stream(1), pravega.create_stream(1), f"g{uuid.uuid4().hex[:8]}"
    pravega.write(stream, (("k", b"%d" % n) for n in range(50)))
    source = pravega.source(stream, subscriber=name)
    planner = plan_of(source)
    at = next_batch(planner, planner.initial())
    subscribers = pravega.client._controller.listSubscribers(pravega.scope, stream).get()
    assert [str(each).rpartition("/")[2] for each in subscribers] == [name]
    released: list[Mapping[str, StreamCut]] = []
    release = PravegaGroup.release

    def released_too(group: PravegaGroup, splits: Collection[PravegaSplit], kept: frozenset[str]) -> None:
        release(group, splits, kept)
        released.append(group._cuts(splits))

    monkeypatch.setattr(PravegaGroup, "release", released_too)
    planner.committed(at)
    assert [{each: dict(cut.positions) for each, cut in cuts.items()} for cuts in released] == [standing(pravega, at)]
    planner.close()
    planner = plan_of(pravega.source(other, subscriber=name))
    with pytest.raises(Exception, match=rf"{name} reads {stream}; expected a group of {other} alone"):
        next_batch(planner, at=BatchOffset("orders"))
    planner.close()


@pytest.mark.parametrize("option", ["subscriber", "reader_group"])
def test_a_stream_that_is_added_to_a_query_is_kept_and_released_at_once(
    pravega: Pravega, option: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Pravega refused each release of the query, because the group had the first stream alone."""
    one, other, name = pravega.create_stream(1), pravega.create_stream(1), f"g{uuid.uuid4().hex[:8]}"
    pravega.write(one, (("k", b"%d" % n) for n in range(5)))
    planner = plan_of(pravega.source(one, **{option: name}))
    at = next_batch(planner, planner.initial())
    planner.committed(at)
    planner.close()
    source = pravega.source(one, other, **{option: name})
    planner, got = plan_of(source), 0
    for rounds in (1, 2, 3):
        for stream in (one, other):
            pravega.write(stream, [("k", b"7")] * 5)
        while got < 10 * rounds:
            end = next_batch(planner, at)
            got += len(rows_of(source, planner, at, end))
            planner.committed(end)
            at = end
    subscribers = pravega.client._controller.listSubscribers(pravega.scope, other).get()
    assert [str(each).rpartition("/")[2] for each in subscribers] == [name]
    assert "is not released" not in caplog.text
    planner.close()


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_group_that_releases_nothing_by_hand_becomes_a_subscriber(
    pravega: Pravega, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Java's default is no retention: Pravega kept nothing for the query, and each batch waited for `give_up_after`."""
    stream = pravega.create_stream(1)
    others = Group(pravega, stream)
    if when == "meanwhile":
        others.manager.deleteReaderGroup(others.name)
    planner = plan_of(pravega.source(stream, subscriber=others.name))
    at = planner.initial()
    for rounds in (1, 2, 3):
        pravega.write(stream, [("k", b"7")] * 5)
        at = next_batch(planner, at)
        began = time.monotonic()
        planner.committed(at)
        assert time.monotonic() - began < 30, "a release waits for no answer that cannot come"
        if when == "meanwhile" and rounds == 1:
            others.set_to(stream)
    planner.close()
    subscribers = pravega.client._controller.listSubscribers(pravega.scope, stream).get()
    assert [str(each).rpartition("/")[2] for each in subscribers] == [others.name]
    assert caplog.text.count("keeps no events") == (when == "meanwhile")
    others.close()


def test_a_group_that_others_read_becomes_no_subscriber(pravega: Pravega, stream: str) -> None:
    """A reset would set its readers to the position of the query."""
    others = Group(pravega, stream)
    reader = others.reader("app-1")
    planner = plan_of(pravega.source(stream, subscriber=others.name))
    with pytest.raises(PlanningFailed, match=f"PravegaGroupTaken: .* reads {stream} with the readers app-1; expected"):
        next_batch(planner, planner.initial())
    reader.close()
    assert next_batch(planner, planner.initial()) != planner.initial()
    planner.close()
    others.close()


def test_a_group_that_somebody_has_set_to_fewer_streams_is_set_back(
    pravega: Pravega, caplog: pytest.LogCaptureFixture
) -> None:
    """Pravega kept the other stream no more for the query, and no line of the log said so."""
    one, other = pravega.create_stream(1), pravega.create_stream(1)
    for stream in (one, other):
        pravega.write(stream, [("k", b"7")] * 5)
    name = f"g{uuid.uuid4().hex[:8]}"
    planner = plan_of(pravega.source(one, other, subscriber=name))
    at = next_batch(planner, planner.initial())
    planner.committed(at)
    others = PravegaGroup(pravega.client, name, [one, other])
    others.join([split_of(one, 0)])
    others.close()
    for _ in range(2):
        pravega.write(one, [("k", b"7")] * 5)
        at = next_batch(planner, at)
        planner.committed(at)
    planner.close()
    for stream in (one, other):
        subscribers = pravega.client._controller.listSubscribers(pravega.scope, stream).get()
        assert [str(each).rpartition("/")[2] for each in subscribers] == [name]
    assert f"keeps no events of {other} " in caplog.text


def test_a_group_that_somebody_has_set_to_other_streams_ends_the_query(pravega: Pravega) -> None:
    """The query went on, and Pravega kept nothing for it."""
    stream, elsewhere = pravega.create_stream(1), pravega.create_stream(1)
    name = f"g{uuid.uuid4().hex[:8]}"
    planner = plan_of(pravega.source(stream, subscriber=name))
    pravega.write(stream, [("k", b"7")] * 5)
    at = next_batch(planner, planner.initial())
    others = PravegaGroup(pravega.client, name, [stream, elsewhere])
    others.join([split_of(elsewhere, 0)])
    planner.committed(at)
    pravega.write(stream, [("k", b"7")] * 5)
    with pytest.raises(Exception, match=rf"{name} reads {elsewhere}; expected a group of {stream} alone"):
        next_batch(planner, at)
    planner.close()
    others.close()


@pytest.mark.parametrize("option", ["subscriber", "reader_group"])
def test_a_group_that_somebody_has_deleted_is_made_again_at_once(
    pravega: Pravega, option: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Events were kept for the query no more until its restart, and the stream that was there was called missing."""
    stream, name, got = pravega.create_stream(1), f"g{uuid.uuid4().hex[:8]}", 0
    source = pravega.source(stream, **{option: name})
    planner = plan_of(source)
    at = planner.initial()
    for rounds in (1, 2, 3):
        pravega.write(stream, [("k", b"7")] * 5)
        while got < 5 * rounds:
            before, at = at, next_batch(planner, at)
            got += len(rows_of(source, planner, before, at))
            planner.committed(at)
        if rounds == 1:
            PravegaGroup(pravega.client, name, [stream])._manager.deleteReaderGroup(name)
    planner.close()
    subscribers = pravega.client._controller.listSubscribers(pravega.scope, stream).get()
    assert [str(each).rpartition("/")[2] for each in subscribers] == [name]
    assert got == 15
    assert f"reader group {pravega.scope}/{name} was deleted" in caplog.text
    assert "is not there" not in caplog.text


def test_a_stream_that_a_batch_has_found_is_released_when_the_group_has_it(pravega: Pravega) -> None:
    """A batch may end with splits of a stream that was found after the plan had asked for the ends."""
    one, other = pravega.create_stream(1), pravega.create_stream(1)
    start, end = ({stream: split_of(stream, 0, byte) for stream in (one, other)} for byte in (0, 60))
    for stream in (one, other):
        pravega.write(stream, (("k", b"%04d" % n) for n in range(5)))
    group = PravegaGroup(pravega.client, f"g{uuid.uuid4().hex[:8]}", [one, other])
    group.subscribe([start[one]])
    group.release(end.values())
    with pytest.raises(PravegaUnavailable, match="StreamCut not valid"):  # Pravega refuses to go back
        group.release([start[one]])
    group.release([end[other]])
    group.subscribe(end.values())
    group.release(end.values())
    with pytest.raises(PravegaUnavailable, match="StreamCut not valid"):
        group.release([start[other]])
    group.close()


@pytest.mark.torture
@pytest.mark.timeout(600)
def test_pravega_truncates_what_a_subscriber_has_committed_and_nothing_that_it_has_not(pravega: Pravega) -> None:
    """Pravega applies retention once a minute; a stream without a subscriber loses unread events."""
    ours, nobodys = [pravega.create_stream(1, keep_bytes=1) for _ in range(2)]
    for stream in (ours, nobodys):
        pravega.write(stream, (("k", b"%04d" % n) for n in range(100)))
    source = pravega.source(ours, subscriber=f"g{uuid.uuid4().hex[:8]}")
    planner = plan_of(source)
    at = planner.plan(planner.initial(), 40)
    planner.committed(at)
    half = dict(standing(pravega, at)[ours])
    assert 0 < half[0] < 1_200

    def heads() -> list[int]:
        return [pravega.client.head(stream).positions[0] for stream in (ours, nobodys)]

    with pravega.writer(ours) as to_ours, pravega.writer(nobodys) as to_nobodys:

        def truncated() -> bool:
            for writer in (to_ours, to_nobodys):  # Pravega truncates only before kept bytes
                writer.write([("k", b"more")])
            return min(heads()) > 0

        wait_until(truncated, "both truncated", seconds=400)
    assert heads()[0] == half[0], "up to where the query stands, and no further"
    assert heads()[1] >= 1_200, "nobody has read these events"
    planner.close()
