"""Batches that end at a reader group's checkpoints, without Pravega: positions of splits, and waits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from lowmark.sources.api import InputStatus, SplitEnd, SplitPlanner
from lowmark.sources.metric_group import MetricGroup
from lowmark.sources.planning.extent import Extent
from lowmark.sources.planning.options import PlanOptions
from lowmark.sources.planning.peer import Guidance
from lowmark.sources.pravega import InvalidPravegaOption, PravegaSource, PravegaUnavailable
from lowmark.sources.pravega import group as group_module
from lowmark.sources.pravega import group_reader as group_reader_module
from lowmark.sources.pravega.client import Answer, PravegaClient, SegmentState, Silent, StreamCut
from lowmark.sources.pravega.group import GroupReset, PravegaGroup
from lowmark.sources.pravega.group_reader import GroupReader, standing_after
from lowmark.sources.pravega.planner import PravegaPlanner
from lowmark.sources.pravega.retention import Retention
from lowmark.sources.pravega.segment import PravegaSplit, split_of
from lowmark.sources.pravega.settings import PravegaSettings
from lowmark.sources.pravega.spark_options import arguments

GIVEN: dict[str, Any] = {"controller": "tcp://pravega:9090", "scope": "shop", "streams": ["orders"]}
LEFT, RIGHT, MERGED = 1 << 32 | 1, 1 << 32 | 2, 2 << 32 | 3


def standing(splits: Sequence[PravegaSplit], reached: dict[int, int], ends: dict[int, SplitEnd]) -> Any:
    after = standing_after(
        splits, {("orders", segment): at for segment, at in reached.items()},
        {split_of("orders", segment).split_id: end for segment, end in ends.items()},
    )  # fmt: skip
    return after and {split.segment: (split.start, split.stop) for split in after.values()}


def test_a_segment_that_the_group_has_read_to_its_end_is_over_once_its_successors_are_known() -> None:
    parent = split_of("orders", 0, 40)
    children = [split_of("orders", LEFT, parents=(0,)), split_of("orders", RIGHT, parents=(0,))]
    sealed = {0: SplitEnd(100), LEFT: SplitEnd(70), RIGHT: SplitEnd(0)}
    assert standing([parent], {LEFT: 30, RIGHT: 0}, sealed) == {0: (100, None)}, "its children are not found yet"
    known = {**sealed, 0: SplitEnd(100, finished=True)}
    assert standing([parent, *children], {LEFT: 30, RIGHT: 0}, known) == {
        0: (100, 100), LEFT: (30, None), RIGHT: (0, None),
    }  # fmt: skip
    assert standing([parent, *children], {0: 90}, known) == {0: (90, None), LEFT: (0, None), RIGHT: (0, None)}


def test_a_segment_waits_for_all_that_it_carries_on_and_several_may_end_at_once() -> None:
    splits = [
        split_of("orders", LEFT, 10),
        split_of("orders", RIGHT, 20),
        split_of("orders", MERGED, parents=(LEFT, RIGHT)),
    ]
    ends = {
        LEFT: SplitEnd(50, finished=True),
        RIGHT: SplitEnd(60, finished=True),
        MERGED: SplitEnd(80, finished=True),
    }
    waits = {LEFT: (50, 50), RIGHT: (60, None), MERGED: (0, None)}
    assert standing(splits, {RIGHT: 60}, ends) == waits, "one of two is over"
    assert standing(splits, {}, ends) == {LEFT: (50, 50), RIGHT: (60, 60), MERGED: (80, 80)}


def test_nothing_goes_back_and_nothing_is_guessed() -> None:
    assert standing([split_of("orders", 0, 40)], {0: 10}, {}) == {0: (40, None)}, "somebody has set the group back"
    assert standing([split_of("orders", 0, 40)], {}, {}) is None, "nobody says where the segment ends"


class FakeGroup(PravegaGroup):
    """A group with given checkpoints or errors."""

    def __init__(self) -> None:
        self.refusals: list[PravegaUnavailable] = []  # of the next joins
        self.joined: list[list[PravegaSplit]] = []
        self.answers: list[Mapping[tuple[str, int], int] | GroupReset | None] = []
        self.closed = False

    def join(self, splits: Collection[PravegaSplit]) -> None:
        if self.refusals:
            raise self.refusals.pop()
        self.joined.append(list(splits))

    def checkpoint(self, seconds: float) -> Mapping[tuple[str, int], int] | None:
        answer = self.answers.pop(0)
        if isinstance(answer, GroupReset):
            raise answer
        return answer

    def readers(self) -> list[str]:
        return ["app-1", "lowmark-2"]

    def close(self) -> None:
        self.closed = True


class Tails(SplitPlanner[PravegaSplit]):
    def __init__(self) -> None:
        self.tail = 0

    def latest(self, splits: Sequence[PravegaSplit]) -> Mapping[str, SplitEnd]:
        return {split.split_id: SplitEnd(max(self.tail, split.start)) for split in splits}


class Bench:
    def __init__(self) -> None:
        self.group, self.tails, self.now = FakeGroup(), Tails(), 0.0
        self.reader = GroupReader(
            PravegaSource(**GIVEN), name="g", group=lambda: self.group, metrics=MetricGroup(),
            now_seconds=lambda: self.now,
        )  # fmt: skip
        self.reader.use_planner(self.tails)
        self.reader.add_splits([split_of("orders", 0, 40)])


def test_the_group_is_set_to_where_the_query_stands_and_asked_only_where_something_is_new() -> None:
    bench = Bench()
    assert bench.reader.should_trigger_checkpoint() is None, "no checkpoint of an idle stream"
    assert bench.group.joined == [[split_of("orders", 0, 40)]]
    bench.tails.tail = 100
    bench.group.answers = [None, {("orders", 0): 70}]
    assert bench.reader.should_trigger_checkpoint() is None, "it is not complete"
    due = bench.reader.should_trigger_checkpoint()
    assert due is not None
    [after] = bench.reader.snapshot_state(due)
    assert (after.start, after.stop) == (70, None)
    bench.reader.close()
    assert bench.group.closed


def test_the_group_is_set_anew_when_a_split_of_another_stream_comes() -> None:
    group = FakeGroup()
    source = PravegaSource(**{**GIVEN, "streams": ["orders", "returns"]})
    reader = GroupReader(source, name="g", group=lambda: group, metrics=MetricGroup())
    reader.use_planner(Tails())
    for stream in ("orders", "orders", "returns", "returns"):
        reader.add_splits([split_of(stream, 0, 40)])
        assert reader.should_trigger_checkpoint() is None
    assert [[split.stream for split in splits] for splits in group.joined] == [["orders"], ["orders", "returns"]]


def test_a_stream_that_is_left_out_is_not_of_the_group() -> None:
    """The query made the group with the stream, found that the group was not its own, and asked for another name."""

    class LeftOut(Tails):
        def latest(self, splits: Sequence[PravegaSplit]) -> Mapping[str, SplitEnd]:
            there = super().latest(splits)
            return {name: replace(end, finished=name.startswith("returns")) for name, end in there.items()}

    bench = Bench()
    bench.reader.use_planner(LeftOut())
    bench.reader.add_splits([split_of("returns", 0, 70)])
    bench.group.answers = [{("orders", 0): 40}]
    due = bench.reader.should_trigger_checkpoint()
    assert bench.group.joined == [[split_of("orders", 0, 40)]]
    assert due is not None
    assert {(split.stream, split.start, split.stop) for split in bench.reader.snapshot_state(due)} == {
        ("orders", 40, None),
        ("returns", 70, 70),
    }


def test_a_subscriber_subscribes_anew_when_a_split_of_another_stream_comes() -> None:
    """Without the second subscription, Pravega truncated the other stream and refused each release of both."""
    told: list[list[str]] = []
    group: Any = SimpleNamespace(
        subscribe=lambda splits: told.append(["keep", *(split.stream for split in splits)]),
        release=lambda splits, kept: told.append(["release", *(split.stream for split in splits)]),
    )
    retention = Retention(lambda: group, subscribes=True)
    orders, returns = split_of("orders", 0, 5), split_of("returns", 0, 6)
    for splits in ([], [orders], [orders], [orders, returns], [returns], [orders, returns]):
        retention.keep(splits)
    retention.release([orders, returns])
    assert told == [["keep", "orders"], ["keep", "orders", "returns"], ["release", "orders", "returns"]]


def test_a_group_that_somebody_else_resets_is_set_back(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.tails.tail = 100
    bench.group.answers = [GroupReset("ReinitializationRequiredException"), {("orders", 0): 100}]
    assert bench.reader.should_trigger_checkpoint() is None
    assert len(bench.group.joined) == 2
    assert "only one query may have the group" in caplog.text
    assert bench.reader.should_trigger_checkpoint() is not None


def test_a_group_that_is_deleted_while_a_checkpoint_waits_for_its_readers_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A person who reads that readers have died may delete the group, and the query asks for their names."""

    def deleted(_group: FakeGroup) -> list[str]:
        raise GroupReset("reader group shop/g was deleted")

    bench = Bench()
    bench.tails.tail = 100
    bench.group.answers = [None, None, {("orders", 0): 100}]
    assert bench.reader.should_trigger_checkpoint() is None
    bench.now = 20.0
    monkeypatch.setattr(FakeGroup, "readers", deleted)
    assert bench.reader.should_trigger_checkpoint() is None
    assert len(bench.group.joined) == 2
    assert bench.reader.should_trigger_checkpoint() is not None


GONE = PravegaUnavailable("tcp://pravega:9090", "join a group", 1.0, "gone")


def test_a_group_whose_first_join_fails_is_closed() -> None:
    bench = Bench()
    bench.group.refusals = [GONE]
    with pytest.raises(PravegaUnavailable):
        bench.reader.should_trigger_checkpoint()
    bench.reader.close()
    assert bench.group.closed


def test_a_group_that_could_not_be_set_back_is_set_back_by_the_next_plan() -> None:
    bench = Bench()
    bench.reader.should_trigger_checkpoint()
    bench.tails.tail = 100
    bench.group.answers = [GroupReset("ReinitializationRequiredException"), {("orders", 0): 100}]
    bench.group.refusals = [GONE]
    with pytest.raises(PravegaUnavailable):
        bench.reader.should_trigger_checkpoint()
    assert bench.reader.should_trigger_checkpoint() is not None
    assert len(bench.group.joined) == 2, "at the start, and again before the checkpoint"


class Unanswered(Exception):
    """Stands for an error of Java that says that Pravega is away."""


class Patient(PravegaClient):
    """A client that asks twice; it keeps what had no answer."""

    def __init__(self) -> None:
        self.unanswered: list[str] = []

    def ask(self, action: str, call: Callable[[], Answer], *, missing: Callable[[], Answer]) -> Answer:
        try:
            return call()
        except Unanswered:
            self.unanswered.append(action)
            return call()


class Forgetful:
    """Java's reader group and its manager. The first question for its streams has no answer."""

    def __init__(self) -> None:
        self.did: list[str] = []

    def createReaderGroup(self, name: str, config: object) -> None:  # Java's names
        self.did.append("create")

    def getReaderGroup(self, name: str) -> Forgetful:
        return self

    def getStreamNames(self) -> list[str]:
        self.did.append("streams")
        if self.did.count("streams") == 1:
            raise Unanswered
        return ["shop/orders"]

    def resetReaderGroup(self, config: object) -> None:
        self.did.append("reset")


class FirstJoin(PravegaGroup):
    def __init__(self, client: PravegaClient, java: Forgetful) -> None:
        self._client, self._name, self._streams, self._manager = client, "g", ("orders",), java
        self._group = self._reader = self._due = None

    def _config(self, cuts: Mapping[str, StreamCut]) -> Any:
        return cuts


def test_every_question_of_a_join_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader of a try without an answer stays in the group until the group is reset."""
    client, java = Patient(), Forgetful()

    def reader(client: PravegaClient, group: str) -> SimpleNamespace:
        java.did.append(f"reader of {group}")
        if java.did.count("reader of g") == 1:
            raise Unanswered
        return SimpleNamespace()

    monkeypatch.setattr(group_module, "_Reader", reader)
    FirstJoin(client, java).join([])
    assert java.did == ["create", "streams", "streams", "reset", "reader of g", "reset", "reader of g"]
    assert client.unanswered == ["look up the streams of reader group g", "join reader group g"]


def test_a_reader_that_cannot_be_made_leaves_no_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    class Java(SimpleNamespace):
        """Each class of Java; each of its methods gives itself."""

        closed = 0

        def __call__(self, *_: object) -> Java:
            return self

        builder = build = withScope = __call__  # noqa: N815  # Java's names

        def createReader(self, *_: object) -> Any:
            raise Unanswered

        def close(self) -> None:
            self.closed += 1

    java, client = Java(), SimpleNamespace(settings=SimpleNamespace(scope="shop"), java_config=None)
    monkeypatch.setattr(group_module, "java_class", lambda name: java)
    with pytest.raises(Unanswered):
        group_module._Reader(client, "g")  # type: ignore[arg-type]
    assert java.closed == 1


def test_a_checkpoint_that_waits_for_a_reader_is_said(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.tails.tail = 100
    bench.group.answers = [None, None, None, {("orders", 0): 100}]
    for bench.now in (0.0, 20.0, 30.0):
        assert bench.reader.should_trigger_checkpoint() is None
    told = bench.reader.trouble()
    assert told is not None
    assert told.startswith("reader group g: a checkpoint waits since 30 seconds for its readers app-1. Hint:")
    assert caplog.text.count("waits since") == 1, "once in the log"
    assert bench.reader.should_trigger_checkpoint() is not None
    assert bench.reader.trouble() is None


def test_a_reset_ends_the_wait_of_the_checkpoint_before_it(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.tails.tail = 100
    bench.group.answers = [None, None, GroupReset("ReinitializationRequiredException"), None, None]
    said = list[bool]()
    for bench.now in (0.0, 20.0, 30.0, 31.0, 40.0):
        assert bench.reader.should_trigger_checkpoint() is None
        said.append(bench.reader.trouble() is not None)
    assert said == [False, True, False, False, False], "the next checkpoint has waited 9 seconds"
    assert caplog.text.count("waits since") == 1


class Scripted(PravegaClient):
    """A client of one open segment whose states a test sets; None: no segment store answers."""

    def __init__(self) -> None:
        self.settings = PravegaSettings("tcp://pravega:9090", "shop", give_up_seconds=60.0)
        self.state: SegmentState | None = None

    def states(self, segments: Any, *, patience_seconds: float) -> dict[tuple[str, int], SegmentState | None]:
        if self.state is None:
            raise Silent("TimeoutException")
        return dict.fromkeys(segments, self.state)


def test_losses_and_silence_are_those_of_the_planner_that_the_status_shows() -> None:
    """A second planner had asked Pravega, and counted for nobody."""
    client, group = Scripted(), FakeGroup()

    class Grouped(PravegaSource):
        def create_planner(self) -> PravegaPlanner:
            return PravegaPlanner(client.settings, event_time=None, go_on=True, client=lambda: client)

        def create_reader(self, context: Any) -> GroupReader:
            return GroupReader(self, name="g", group=lambda: group, metrics=context.metric_group)

    split = split_of("orders", 0, 1_000)
    ask: dict[str, Any] = {"max_rows": None, "now_us": 0, "to_present": False}
    extent = Extent(Grouped(**GIVEN, reader_group="g"), "orders", PlanOptions(), [split], None)
    assert extent.planner.metric_values()["lost_bytes"] == 0
    client.state, group.answers = SegmentState(500_000, 10_500_000, False), [{("orders", 0): 10_500_000}]
    plan = extent.plan([split], Guidance(), checkpoint=1, **ask)
    assert plan.slices[split.split_id].stop == 10_500_000
    assert extent.planner.metric_values().items() >= {"lost_bytes": 499_000, "data_losses": 1}.items()
    assert extent.trouble() is None
    client.state = None
    extent.plan([split], Guidance(), checkpoint=2, **ask)
    assert "no answer for 1 of 1 segments" in str(extent.trouble())
    extent.close()
    assert group.closed


def test_losses_that_a_task_meets_are_counted_by_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(source: Any, splits: Any, *, count: Any) -> Iterator[Any]:
        count({"lost_bytes": 70, "data_losses": 1})
        count({"lost_bytes": 30, "data_losses": 1})
        return iter(())

    monkeypatch.setattr(group_reader_module, "read_slices", read)
    metrics = MetricGroup()
    reader = GroupReader(PravegaSource(**GIVEN), name="g", group=FakeGroup, metrics=metrics)
    nowhere: Any = None
    assert reader.poll_next(nowhere) is InputStatus.END_OF_INPUT
    assert metrics.values() == {"lost_bytes": 100, "data_losses": 2}


def test_a_task_that_ends_early_closes_the_segments_that_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[str] = []

    def read(source: Any, splits: Any, *, count: Any) -> Iterator[Any]:
        try:
            yield SimpleNamespace(split_id="orders/0.#epoch.0", rows="rows")
        finally:
            did.append("closed")

    monkeypatch.setattr(group_reader_module, "read_slices", read)
    output: Any = SimpleNamespace(collect=lambda split_id, rows: did.append(rows))
    reader = GroupReader(PravegaSource(**GIVEN), name="g", group=FakeGroup, metrics=MetricGroup())
    assert reader.poll_next(output) is InputStatus.MORE_AVAILABLE
    reader.close()
    assert did == ["rows", "closed"]


def test_what_cannot_be_released_now_is_released_with_a_later_batch(caplog: pytest.LogCaptureFixture) -> None:
    class Releasing(PravegaGroup):
        def __init__(self) -> None:
            self.told: list[list[PravegaSplit]] = []
            self.away = True

        def subscribe(self, splits: Collection[PravegaSplit]) -> None:
            self.told.append(list(splits))

        def release(self, splits: Collection[PravegaSplit], kept: frozenset[str] = frozenset()) -> None:
            if self.away:
                raise PravegaUnavailable("tcp://pravega:9090", "move the retention", 60.0, "nobody there")
            self.told.append(list(splits))

        def close(self) -> None: ...

    group = Releasing()
    retention = Retention(lambda: group, subscribes=True)
    for start in (5, 6):
        retention.keep([split_of("orders", 0, start)])
        retention.release([split_of("orders", 0, start)])
    assert caplog.text.count("is not released") == 1, "said once"
    group.away = False
    retention.release([split_of("orders", 0, 7)])
    assert [[split.start for split in splits] for splits in group.told] == [[5], [7]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"reader_group": "g", "subscriber": "h"}, "reader_group, subscriber: expected one of them"),
        ({"reader_group": "a/b"}, "reader_group: expected a name of letters"),
        ({"reader_group": "g", "stop": "tail"}, "reader_group: expected no stop beside it"),
        ({"reader_group": "g", "noted_time": True}, "reader_group: expected no noted_time beside it"),
        ({"subscriber": "g", "streams": None, "stream_pattern": "o.*"}, "subscriber: expected no stream_pattern"),
    ],
)
def test_a_group_that_cannot_be_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidPravegaOption, match=said):
        PravegaSource(**{**GIVEN, **change})


def test_a_source_with_a_group_decides_itself_where_batches_end() -> None:
    made = arguments({"controller": "tcp://h:9090", "scope": "shop", "streams": "orders", "readerGroup": "g"})
    assert PravegaSource(**made).externally_induced
    assert not PravegaSource(**GIVEN, subscriber="g").externally_induced
