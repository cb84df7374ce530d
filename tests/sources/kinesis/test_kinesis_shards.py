"""The planner of Kinesis, on a scripted service: shards that split, whose records expire, or that wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any, cast

import pytest
from lowmark.sources.kinesis import KinesisDataLost, KinesisPosition, KinesisStreamMissing
from lowmark.sources.kinesis.client import Page, ShardGone
from lowmark.sources.kinesis.connections import KinesisSettings
from lowmark.sources.kinesis.enumerator import _check_listed, create_enumerator
from lowmark.sources.kinesis.look import AHEAD_RECORDS, ShardLook
from lowmark.sources.kinesis.pace import Pace
from lowmark.sources.kinesis.planner import KinesisPlanner
from lowmark.sources.kinesis.split import TRIM_HORIZON, KinesisLosses, KinesisSplit, after, at, at_time
from lowmark.sources.kit.discovery import DiscoveredSplits
from lowmark.sources.kit.subscription import Subscription
from lowmark.sources.metric_group import MetricGroup
from lowmark.sources.serializer import UnreadableState
from lowmark.sources.slicing import SliceLimits, plan_slices
from lowmark.sources.testing import ManualEnumeratorContext

SETTINGS = KinesisSettings(region="eu-west-1")
NOW_MS = 1_767_225_600_000
HOUR_MS = 3_600_000


class Service:
    """A client of a stream in memory: shards by name, each with its records' (sequence number, arrival time)."""

    settings, throttled, pace = SETTINGS, 0, Pace(SETTINGS, lambda: 0.0)

    def __init__(self, **records: list[tuple[int, int]]) -> None:
        self.records_of, self.closed = records, set[str]()
        self.listed = [listed(name) for name in records]
        self.children: list[str] = []  # the children that the last answer of a closed shard names
        self.deleted = False
        self.gone = set[str]()  # shards that are listed and cannot be read any more

    def now_ms(self) -> int:
        return NOW_MS

    def shards(self, stream: str) -> list[dict[str, Any]]:
        self._check()
        return self.listed

    def created_ms(self, stream: str) -> int:
        self._check()
        return 0

    def _check(self) -> None:
        if self.deleted:
            raise KinesisStreamMissing("eu-west-1", "stream 'orders'", "list the shards of 'orders'")

    def retention_ms(self, stream: str) -> int:
        return 24 * HOUR_MS

    def iterator(self, stream: str, shard: str, cursor: str, **options: Any) -> str:
        if shard in self.gone:
            raise ShardGone(f"ResourceNotFoundException: Shard {shard} does not exist")
        return cursor

    def records(self, stream: str, shard: str, iterator: str, limit: int, **options: Any) -> Page:
        kind, _, where = iterator.partition(" ")
        there = self.records_of[shard]
        if kind == "AT_TIMESTAMP":
            there = [each for each in there if each[1] >= int(where)]
        elif kind != TRIM_HORIZON:
            there = [each for each in there if each[0] >= int(where) + (kind == "AFTER_SEQUENCE_NUMBER")]
        page = there[:limit]
        more = len(page) < len(there)
        found = [
            {"SequenceNumber": str(number), "Data": b"x",
             "ApproximateArrivalTimestamp": datetime.fromtimestamp(time_ms / 1_000, timezone.utc)}
            for number, time_ms in page
        ]  # fmt: skip
        behind_ms = max(1, there[-1][1] - page[-1][1]) if more else 0
        again = f"AFTER_SEQUENCE_NUMBER {page[-1][0]}" if page else iterator
        if shard in self.closed and not more:
            return Page(found, None, 0, frozenset(self.children))
        return Page(found, again, behind_ms)


def listed(shard: str, *, parent: str | None = None, closed: bool = False) -> dict[str, Any]:
    """A shard in an answer of ListShards."""
    numbers = {"StartingSequenceNumber": "0"} | ({"EndingSequenceNumber": "9"} if closed else {})
    return {"ShardId": shard, "SequenceNumberRange": numbers} | ({"ParentShardId": parent} if parent else {})


def split_of(shard: str, **changes: Any) -> KinesisSplit:
    return KinesisSplit(**{"split_id": f"orders/{shard}", "stream": "orders", "shard": shard} | changes)


@contextmanager
def planner_of(service: Any, **options: Any) -> Iterator[KinesisPlanner]:
    planner = KinesisPlanner(SETTINGS, **{"go_on": False, "client": service} | options)
    try:
        yield planner
    finally:
        planner.close()


def test_a_record_that_arrives_late_is_read_before_a_later_time_is_claimed() -> None:
    """It is 150 milliseconds late; a plan that did not read it claimed 500 milliseconds more than its time."""
    service = Service(a=[(1, NOW_MS), (2, NOW_MS - 150), (3, NOW_MS + 2_000)])
    split = split_of("a", cursor=after(1), start=NOW_MS + 1)
    with planner_of(service, disorder_us=300_000) as planner:
        limits = SliceLimits(now_us=0, read_before_us=(NOW_MS + 650) * 1_000)
        cut = plan_slices(planner, [split], limits, previous_time_us=None).slices["orders/a"]
        [(part, rest)] = planner.cut([(split, cut.stop)])
    assert (cut.claim_us, part.until, rest.cursor) == ((NOW_MS + 350) * 1_000, after(2), at(3))


@pytest.mark.parametrize("cursor", [TRIM_HORIZON, at_time(NOW_MS - 23 * HOUR_MS)])
def test_records_of_a_shard_that_waits_do_not_expire_unseen(cursor: str) -> None:
    """A child waits for its parent, or alignment holds a shard. The query restarts after the first records expired."""
    service = Service(
        parent=[(1, NOW_MS - 2), (2, NOW_MS - 1)], child=[(n, NOW_MS - 22 * HOUR_MS + n) for n in range(10, 20)]
    )
    service.closed = {"parent"}
    family = [split_of("parent"), split_of("child", parents=("orders/parent",), cursor=cursor)]
    with planner_of(service) as planner:
        slices = plan_slices(planner, family, SliceLimits(now_us=NOW_MS * 1_000, rows=1), previous_time_us=None).slices
        [_, (nothing, child)] = planner.cut([(split, slices[split.split_id].stop) for split in family])
    assert (nothing.cursor, nothing.until, child.cursor) == (cursor, cursor, at(10))
    service.records_of["child"] = service.records_of["child"][6:]
    with planner_of(service) as planner, pytest.raises(KinesisDataLost, match="the first that is there is 16"):
        planner.latest([child])
    with planner_of(service, go_on=True) as planner:
        assert planner.latest([child])["orders/child"].rows == 4
        assert planner.metric_values()["data_losses"] == 1


@pytest.mark.parametrize("names", [True, False])
def test_a_shard_that_was_split_waits_for_its_children_though_the_list_of_shards_is_older(names: bool) -> None:
    """GetRecords has ended, and ListShards still shows the parent open: without a child, but not without children."""
    service = Service(parent=[(1, NOW_MS - 1)], child=[])
    service.closed, service.listed = {"parent"}, [listed("parent")]
    service.children = ["child"] if names else []
    parent, child = split_of("parent"), split_of("child", parents=("orders/parent",))
    now = [0.0]
    with planner_of(service, now_seconds=lambda: now[0]) as planner:

        def finished(*splits: KinesisSplit) -> bool:
            now[0] += 1.0
            return planner.latest(splits)["orders/parent"].finished

        assert not finished(parent)
        assert not finished(parent), "the list is as old as before"
        assert finished(parent, child) == names, "a child that the service names needs no list"
        for closed in (False, True):
            service.listed = [listed("parent", closed=closed), listed("child", parent="parent")]
            assert not finished(parent)
            assert finished(parent, child)


def test_a_shard_whose_children_have_expired_is_finished() -> None:
    service = Service(parent=[(1, NOW_MS - 1)])
    service.closed, service.listed, service.children = {"parent"}, [listed("grandchild", parent="child")], ["child"]
    with planner_of(service) as planner:
        assert planner.latest([split_of("parent")])["orders/parent"].finished


@pytest.mark.parametrize("named", [True, False])
def test_a_stream_that_is_deleted_while_the_children_of_a_shard_are_unknown_ends(named: bool) -> None:
    service = Service(parent=[(1, NOW_MS - 1)])
    service.closed = {"parent"}
    with planner_of(service, named=named, go_on=True) as planner:
        assert not planner.latest([split_of("parent")])["orders/parent"].finished
        service.deleted = True
        planner._now_seconds = lambda: float("inf")
        if named:
            with pytest.raises(KinesisStreamMissing):
                planner.latest([split_of("parent")])
        else:
            assert planner.latest([split_of("parent")])["orders/parent"].finished
            assert planner.metric_values()["data_losses"] == 1


def test_a_stream_of_a_pattern_that_is_deleted_is_told_with_one_hint() -> None:
    """The hint for a missing stream stood in the middle of the error for lost records, with other advice."""
    service = Service(parent=[(1, NOW_MS - 1)])
    service.closed = {"parent"}
    with planner_of(service, named=False) as planner:
        assert not planner.latest([split_of("parent")])["orders/parent"].finished
        service.deleted = True
        planner._now_seconds = lambda: float("inf")
        with pytest.raises(KinesisDataLost, match="the stream is not there any more") as lost:
            planner.latest([split_of("parent")])
    assert str(lost.value).count("Hint: ") == 1
    assert str(lost.value).endswith(f"Hint: {KinesisDataLost._hint}")


def test_metrics_are_read_while_a_look_adds_its_shard() -> None:
    """A look that was not waited for began meanwhile: "dictionary changed size during iteration"."""
    with planner_of(Service()) as planner:

        class Look(ShardLook):
            @property
            def behind_ms(self) -> int:
                planner._looks["orders/late"] = ShardLook(TRIM_HORIZON, 0)
                return 7

            @behind_ms.setter
            def behind_ms(self, value: int) -> None:
                pass

        planner._looks["orders/busy"] = Look(TRIM_HORIZON, 0)
        assert planner.metric_values()["millis_behind_latest"] == 7


@pytest.mark.parametrize("moved", [True, False])
def test_a_shard_that_goes_while_a_batch_is_planned_is_told_or_passed(moved: bool) -> None:
    """The planner's own error for a missing shard ended the query, without a name of the shard, in either case."""
    begin_ms = NOW_MS - HOUR_MS
    service = Service(busy=[(n, begin_ms + n) for n in range(5_000)])

    def cut(planner: KinesisPlanner) -> tuple[KinesisSplit, KinesisSplit]:
        service.gone, split = set(), split_of("busy")
        assert planner.latest([split])["orders/busy"].position == begin_ms + 5_000
        service.gone = {"busy"}
        if moved:  # to a place that was not looked at
            split = split_of("busy", cursor=at(900), start=begin_ms + 900)
            planner.rows_before(split, begin_ms + 2_000)
        [cut] = planner.cut([(split, begin_ms + 2_000)])
        return cut

    with planner_of(service) as planner, pytest.raises(KinesisDataLost, match=r"'orders/busy'.* not there any more"):
        cut(planner)
    with planner_of(service, go_on=True) as planner:
        nothing, rest = cut(planner)
        assert (nothing.cursor, nothing.until, rest.start) == (rest.cursor, rest.cursor, begin_ms + 2_000)
        assert planner.latest([rest])["orders/busy"].finished
        assert planner.metric_values()["data_losses"] == 1


@pytest.mark.parametrize("name", ["shardId-000000000000", "shardid-000000000001"])
def test_a_shard_to_go_on_in_that_is_not_there_is_told_or_passed(name: str) -> None:
    """A wrong name had the shard read from its beginning; unread records of an expired shard were lost unseen."""
    splits = [split_of("shardId-000000000001")]
    arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
    start = KinesisPosition.of({(arn, name): "7", ("orders", "shardId-000000000001"): "8"})
    metrics = MetricGroup()
    with pytest.raises(KinesisDataLost, match=rf"orders/{name}': records from AFTER_SEQUENCE_NUMBER 7 on .*no such"):
        _check_listed(splits, start, KinesisLosses(go_on=False, metrics=metrics))
    _check_listed(splits, start, KinesisLosses(go_on=True, metrics=metrics))
    assert metrics.values() == {"data_losses": 1}


def test_the_first_look_at_shards_checks_where_to_go_on_and_later_ones_do_not() -> None:
    calls: list[Any] = []
    context: Any = SimpleNamespace(metric_group=MetricGroup(), call_async=lambda *given, **options: calls.append(given))
    shard = {"ShardId": "1", "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"}}
    client: Any = SimpleNamespace(streams=list, shards=lambda stream: [shard], now_between_ms=lambda: (NOW_MS, NOW_MS))
    start = KinesisPosition.of({("orders", "0"): "7"})
    for known in (DiscoveredSplits[KinesisSplit](), DiscoveredSplits[KinesisSplit](discovered=True)):
        enumerator = create_enumerator(
            context, SETTINGS, Subscription({"orders": "orders"}), start=start, stop=None, go_on=False,
            period_seconds=1.0, known=known, client=client,
        )  # fmt: skip
        enumerator.start()
        discover, handle = calls.pop()
        handle(discover(), None)
    first, later = (prepare for prepare, _ in calls)
    with pytest.raises(KinesisDataLost):
        first()
    assert [split.cursor for split in later()] == [TRIM_HORIZON]


def test_a_stream_that_is_subscribed_again_is_read_again() -> None:
    """The shards of the stream were known as finished, so a second subscription read no row."""
    shard = {"ShardId": "1", "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"}}
    client: Any = SimpleNamespace(streams=list, shards=lambda stream: [shard], now_between_ms=lambda: (NOW_MS, NOW_MS))
    state, read = DiscoveredSplits[KinesisSplit](), list[list[str]]()
    for names in (["orders", "returns"], ["orders"], ["orders", "returns"]):
        context = ManualEnumeratorContext[KinesisSplit]()
        context.register(0)
        enumerator = create_enumerator(
            context, SETTINGS, Subscription({name: name for name in names}), start=KinesisPosition("LATEST"), stop=None,
            go_on=False, period_seconds=1.0, known=state, client=client,
        )  # fmt: skip
        enumerator.start()
        for _ in range(2):
            context.run_async()
        state = enumerator.snapshot_state(1)
        read.append([f"{split.split_id} {split.cursor}" for _, split in context.assigned])
    assert read == [[f"orders/1 {at_time(NOW_MS)}", f"returns/1 {at_time(NOW_MS)}"], [], ["returns/1 TRIM_HORIZON"]]


def test_another_end_is_refused_because_known_shards_keep_theirs() -> None:
    context, stop = ManualEnumeratorContext[KinesisSplit](), KinesisPosition.at_timestamp(5_000_000)

    def enumerator(stop: KinesisPosition | None, known: DiscoveredSplits[KinesisSplit]) -> Any:
        return create_enumerator(
            context, SETTINGS, Subscription({"orders": "orders"}), start=KinesisPosition("LATEST"), stop=stop,
            go_on=False, period_seconds=1.0, known=known, client=cast("Any", None),
        )  # fmt: skip

    state = replace(enumerator(stop, DiscoveredSplits()).snapshot_state(1), discovered=True)
    for now, said in ((None, "None"), (KinesisPosition("LATEST"), "LATEST")):
        with pytest.raises(UnreadableState, match=rf"the end 1970-01-01 00:00:05\.000 UTC, .* given {said}\."):
            enumerator(now, state)
    assert enumerator(stop, state).snapshot_state(2).end == state.end


def test_the_look_at_a_shard_that_is_not_read_does_not_grow() -> None:
    """Each poll had read one more record of a shard that alignment held, and kept all of them."""
    service = Service(held=[(n, NOW_MS - HOUR_MS + n) for n in range(2_000)])
    split, now = split_of("held"), [0.0]
    with planner_of(service, now_seconds=lambda: now[0]) as planner:
        for now[0] in range(100):
            assert planner.latest([split])["orders/held"].position == NOW_MS - HOUR_MS + 2_000
        look = planner._looks["orders/held"]
        assert (len(look.ahead), len(look._read)) == (AHEAD_RECORDS, AHEAD_RECORDS)
        service.records_of["held"].append((2_000, NOW_MS - 1))
        now[0] += 1
        assert planner.latest([split])["orders/held"].position == NOW_MS, "its end is known all the same"
        assert planner.metric_values()["millis_behind_latest"] == HOUR_MS - AHEAD_RECORDS
        [(_, rest)] = planner.cut([(split, look.ahead[99].end)])
        now[0] += 1
        planner.latest([rest])
        assert [look.ahead[0].sequence, look.ahead[-1].sequence] == [100, 599], "it looks on when the shard is read"


@pytest.mark.parametrize("size_bytes", [50_000, 1_000_000])
def test_a_look_at_large_records_takes_some_seconds(size_bytes: int) -> None:
    """It read 500 records, however large: at 2 MB a second for minutes, and the query gave up in the middle."""
    apart_ms = size_bytes // 1_000  # a shard takes 1 MB a second
    service = Service(busy=[(n, NOW_MS - HOUR_MS + n * apart_ms) for n in range(2_000)])
    page_of, answers_bytes = service.records, [0]

    def records(stream: str, shard: str, iterator: str, limit: int, **options: Any) -> Page:
        page = page_of(stream, shard, iterator, min(limit, 10_000_000 // size_bytes), **options)
        for record in page.records:
            record["Data"] = b"x" * size_bytes
        answers_bytes[-1] += len(page.records) * size_bytes
        return page

    service.records = records  # type: ignore[method-assign]
    split, now = split_of("busy"), [0.0]
    with planner_of(service, now_seconds=lambda: now[0]) as planner:
        for now[0] in range(5):
            end = planner.latest([split])["orders/busy"]
            stop = planner.after_rows(split, 100, end)
            assert split.start < stop < end.position
            [(_, split)] = planner.cut([(split, stop)])
            answers_bytes.append(0)
    assert max(answers_bytes) < 40_000_000, "the first look does not know yet how large records are"
    assert max(answers_bytes[1:]) < 10_000_000


def test_a_query_that_looked_at_a_silent_shard_for_days_lost_nothing() -> None:
    """A silent shard wrote no offset, so a restart after a weekend did not know that the query had looked."""
    service, split, now = Service(silent=[(1, NOW_MS - 1)]), split_of("silent"), [0.0]
    parts: list[KinesisSplit] = []
    service.now_ms = lambda: NOW_MS + round(now[0] * 1_000)  # type: ignore[method-assign]
    for _ in range(2):
        with planner_of(service, now_seconds=lambda: now[0]) as planner:
            for _ in range(60 * 4):
                now[0] += 900.0
                limits = SliceLimits(now_us=service.now_ms() * 1_000)
                stop = plan_slices(planner, [split], limits, previous_time_us=None).slices["orders/silent"].stop
                if stop > split.start:
                    [(part, split)] = planner.cut([(split, stop)])
                    parts.append(part)
        service.records_of["silent"] = []  # it has expired
    assert {(part.cursor, part.until) for part in parts[1:]} == {(after(1), after(1))}
    assert len(parts) <= 120, "one an hour"


def test_a_stream_whose_shards_have_all_been_split_is_listed_once_a_plan() -> None:
    """Each of a thousand shards that had ended listed all shards again, with every plan until the children came."""
    names = [f"p{n}" for n in range(50)]
    service, lists = Service(**{name: [] for name in names}), list[str]()
    service.closed = set(names)
    service.listed = [listed(name, closed=True) for name in names]
    service.listed += [listed(f"c{name}", parent=name) for name in names]

    def listing(stream: str) -> list[dict[str, Any]]:
        lists.append(stream)
        return service.listed

    service.shards = listing  # type: ignore[method-assign]
    with planner_of(service) as planner:
        for _ in range(2):
            assert not any(end.finished for end in planner.latest([split_of(name) for name in names]).values())
        assert lists == ["orders"] * 2
        family = [split_of(name) for name in (*names, *(f"c{name}" for name in names))]
        service.records_of |= {f"c{name}": [] for name in names}
        assert sum(end.finished for end in planner.latest(family).values()) == 50
