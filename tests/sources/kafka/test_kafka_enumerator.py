"""Which partitions the Kafka source finds, and what its states and consumers keep, without a broker."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError
from lowmark.sources import DataclassSerializer, SplitEnd
from lowmark.sources.coordinator import SuppressRestarts
from lowmark.sources.kafka import (
    KafkaOffsets,
    KafkaSource,
    KafkaSplit,
)
from lowmark.sources.kafka.consumers import MOST_IDLE, ConsumerCache
from lowmark.sources.kafka.enumerator import (
    KafkaEnumerator,
    KafkaEnumeratorState,
    PartitionSet,
    Subscriber,
    TopicList,
    TopicPattern,
)
from lowmark.sources.kafka.planner import KafkaPlanner
from lowmark.sources.kafka.settings import KafkaSettings
from lowmark.sources.kafka.topics import Topic
from lowmark.sources.kit.discovery import DiscoveredSplits, DiscoveryFailed, PackedSerializer
from lowmark.sources.serializer import UnreadableState
from lowmark.sources.testing import ManualEnumeratorContext

from tests.sources.kafka.test_kafka import EARLIEST, LATEST, NEW, SETTINGS, ScriptedClient, split


def enumerated(
    client: ScriptedClient,
    *,
    start: KafkaOffsets = EARLIEST,
    stop: KafkaOffsets | None = None,
    state: KafkaEnumeratorState = NEW,
    subscriber: Subscriber | None = None,
) -> tuple[KafkaEnumerator, ManualEnumeratorContext[KafkaSplit]]:
    context = ManualEnumeratorContext[KafkaSplit](num_subtasks=2)
    enumerator = KafkaEnumerator(
        context, SETTINGS, subscriber if subscriber is not None else TopicList(frozenset({"orders"})),
        start=start, stop=stop, period_seconds=300.0, state=state, client=client,
    )  # fmt: skip
    enumerator.start()
    for subtask in (0, 1):
        context.register(subtask)
        enumerator.add_reader(subtask)
    context.run_async()
    return enumerator, context


def found(context: ManualEnumeratorContext[KafkaSplit]) -> dict[str, tuple[int, int | None]]:
    return {split.split_id: (split.start, split.stop) for _, split in context.assigned}


def test_partitions_go_to_the_readers_in_turn() -> None:
    _, context = enumerated(ScriptedClient(orders=dict.fromkeys(range(6), (0, 0))))

    readers = {split.partition: subtask for subtask, split in context.assigned}
    assert [readers[n] for n in range(6)] in ([0, 1] * 3, [1, 0] * 3)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (EARLIEST, [2, 0]),
        (LATEST, [9, 4]),
        (KafkaOffsets.timestamp(5_000_000), [5, 4]),
        (KafkaOffsets.offsets({("orders", 0): 0, ("orders", 1): LATEST}), [0, 4]),
        (KafkaOffsets.offsets({("orders", 0): 7}), [7, 0]),
        (KafkaOffsets.offsets({("orders", 0): 7}, "latest"), [7, 4]),
        (KafkaOffsets.offsets({("orders", 0): KafkaOffsets.timestamp(10**9)}), [9, 0]),
        (KafkaOffsets.committed(), [2, 0]),
        (KafkaOffsets.committed("latest"), [9, 0]),
        (KafkaOffsets.committed(KafkaOffsets.timestamp(3_000_000)), [3, 0]),
    ],
)
def test_first_partitions_begin_where_they_shall(start: KafkaOffsets, expected: list[int]) -> None:
    client = ScriptedClient(orders={0: (2, 9), 1: (0, 4)})
    client.group[("orders", 1)] = 0

    _, context = enumerated(client, start=start)

    assert [found(context)[f"orders/{n}"][0] for n in (0, 1)] == expected


def test_a_record_that_comes_while_its_time_is_looked_up_is_read() -> None:
    """The record at offset n is of second n, and one comes after each question."""

    class Growing(ScriptedClient):
        def positions(self, wanted: Any, action: str, **more: Any) -> Any:
            answers = super().positions(wanted, action, **more)
            begin, end = self.there["orders"][0]
            self.there["orders"][0] = begin, end + bool(wanted[0])
            return answers

    _, context = enumerated(Growing(orders={0: (0, 5)}), start=KafkaOffsets.timestamp(5_000_000))

    assert found(context)["orders/0"][0] == 5


def test_later_partitions_begin_at_their_first_record_also_after_a_restart() -> None:
    client = ScriptedClient(orders={0: (0, 9)})
    enumerator, context = enumerated(client, start=LATEST)
    state = enumerator.snapshot_state(1)
    client.there["orders"][1] = (2, 7)

    context.next_period()
    _, restarted = enumerated(client, start=LATEST, state=state)

    assert found(context) == {"orders/0": (9, None), "orders/1": (0, None)}
    assert found(restarted) == {"orders/1": (0, None)}


def test_a_partition_whose_age_is_not_known_begins_at_its_first_record_because_nothing_of_it_was_lost() -> None:
    """A topic that is subscribed later, and a partition that is named later, may be older than the query."""
    client = ScriptedClient(orders={0: (0, 9), 1: (2, 7)})
    one, both = (PartitionSet(frozenset(("orders", n) for n in numbers)) for numbers in ((0,), (0, 1)))
    enumerator, _ = enumerated(client, subscriber=one)
    _, named = enumerated(client, subscriber=both, state=enumerator.snapshot_state(1))
    enumerator, _ = enumerated(client)
    client.ids["returns"], client.there["returns"] = "id-9", {0: (5, 9), 1: (3, 7)}
    client.silent.add(("returns", 1))
    topics = TopicList(frozenset({"orders", "returns"}))
    _, added = enumerated(client, subscriber=topics, state=enumerator.snapshot_state(1))
    client.silent.clear()
    added.next_period()

    assert found(named) == {"orders/1": (2, None)}
    assert found(added) == {"returns/0": (5, None), "returns/1": (3, None)}


def test_a_later_partition_without_a_leader_holds_up_no_other_and_is_found_by_the_next_discovery(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = ScriptedClient(orders={0: (0, 9)})
    enumerator, context = enumerated(client)
    client.there["orders"] |= {1: (2, 7), 2: (3, 7)}
    client.silent.add(("orders", 1))

    for _ in range(4):
        context.next_period()
    without_leader = found(context)
    client.silent.clear()
    context.next_period()

    assert without_leader == {"orders/0": (0, None), "orders/2": (0, None)}
    assert found(context) == without_leader | {"orders/1": (0, None)}
    assert (
        "1 new partition is not read yet and asked about again by the next discovery, such as orders/1" in caplog.text
    )
    assert enumerator.snapshot_state(1).splits.assigned == ("orders/0", "orders/1", "orders/2")


def test_a_topic_that_is_subscribed_no_more_is_finished_where_it_stands_and_new_if_it_comes_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = ScriptedClient(orders={0: (0, 9)}, returns={0: (0, 9)})
    both, one = TopicList(frozenset({"orders", "returns"})), TopicList(frozenset({"orders"}))
    enumerator, _ = enumerated(client, subscriber=both)
    fewer, context = enumerated(client, subscriber=one, state=enumerator.snapshot_state(1))
    _, again = enumerated(client, subscriber=both, state=fewer.snapshot_state(2))
    planner = KafkaPlanner(SETTINGS, go_on=False, client=client, subscribes=one.wants)

    for _ in range(2):
        assert planner.latest([split(), split(start=3, topic="returns")]) == {
            "orders/0": SplitEnd(9, rows=9),
            "returns/0": SplitEnd(3, rows=0, finished=True),
        }

    assert caplog.text.count("returns/0 are not subscribed any more: they are read no further") == 1
    assert found(context) == {}
    assert found(again) == {"returns/0": (0, None)}


@pytest.mark.parametrize(
    ("subscriber", "wanted"),
    [
        (TopicList(frozenset({"orders"})), [("orders", 0), ("orders", 1)]),
        (TopicPattern("o.*"), [("orders", 0), ("orders", 1)]),
        (PartitionSet(frozenset({("orders", 1), ("returns", 0)})), [("orders", 1), ("returns", 0)]),
    ],
)
def test_what_a_subscription_means(subscriber: Subscriber, wanted: list[tuple[str, int]]) -> None:
    asked = [("orders", 0), ("orders", 1), ("returns", 0), ("__consumer_offsets", 0)]
    assert [each for each in asked if subscriber.wants(*each)] == wanted


class Name(str):
    """A name that counts its comparisons."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


def test_a_partition_is_looked_up_among_thousands_of_named_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Name, "compared", 0)
    many = range(2_000)
    topics = KafkaSource(bootstrap_servers="b:9092", topics=[Name(f"t-{n}") for n in many])._subscriber
    partitions = PartitionSet(frozenset((Name("orders"), n) for n in many))

    assert all(topics.wants(Name(f"t-{n}"), 0) for n in many)
    assert all(partitions.wants(Name("orders"), n) for n in many)
    assert Name.compared < 10 * len(many)


def test_a_topic_created_anew_gives_new_splits_once_whatever_restarts() -> None:
    client = ScriptedClient(orders={0: (0, 9)})
    enumerator, context = enumerated(client, start=LATEST)
    client.ids["orders"], client.there["orders"] = "id-2", {0: (0, 3)}
    before = enumerator.snapshot_state(1)

    context.next_period()
    context.next_period()
    _, restarted = enumerated(client, start=LATEST, state=before)
    _, again = enumerated(client, start=LATEST, state=enumerator.snapshot_state(2))

    assert found(context) == {"orders/0": (9, None), "orders/0@id-2": (0, None)}
    assert found(restarted) == {"orders/0@id-2": (0, None)}
    assert found(again) == {}


def test_a_topic_is_missing_only_when_brokers_say_so_again_and_again() -> None:
    """A broker that has just started does not know all topics, and no restart of the enumerator cures this error."""

    class Late(ScriptedClient):
        known_after = 2

        def topics(self, names: Sequence[str], action: str = "") -> dict[str, Topic]:
            return super().topics(names, action) if len(self.pauses) >= self.known_after else {}

    client, never = Late(orders={0: (0, 9)}), Late(orders={0: (0, 9)})
    never.known_after = 1_000

    _, context = enumerated(client)
    with pytest.raises(DiscoveryFailed, match=r"'orders' not found.*Hint: check the spelling") as failed:
        enumerated(never)

    assert found(context) == {"orders/0": (0, None)}
    assert SuppressRestarts.is_behind(failed.value)
    assert sum(never.pauses) < 10


def test_a_topic_that_a_broker_which_is_cut_off_does_not_know_is_asked_for_by_a_new_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = ScriptedClient()
    monkeypatch.setattr(client, "renew", lambda: client.there.update(orders={0: (0, 9)}))
    client.ids["orders"] = "id-1"

    _, context = enumerated(client)

    assert found(context) == {"orders/0": (0, None)}


def test_a_bounded_source_looks_once_and_stops_where_it_shall() -> None:
    client = ScriptedClient(orders={0: (2, 9), 1: (4, 4)})

    for stop, stops in (
        (LATEST, [9, 4]),
        (KafkaOffsets.timestamp(5_000_000), [5, 4]),
        (KafkaOffsets.offsets({("orders", 0): 0}), [2, 4]),
    ):
        enumerator, context = enumerated(client, stop=stop)
        assert [found(context)[f"orders/{n}"] for n in (0, 1)] == [(2, stops[0]), (4, stops[1])]
        assert (context.periods, context.no_more_splits) == ([], {0, 1})
        _, restarted = enumerated(client, stop=stop, state=enumerator.snapshot_state(1))
        assert (restarted.assigned, restarted.no_more_splits) == ([], {0, 1})


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (None, LATEST, "the checkpoint has the end None, and the source is given latest"),
        (LATEST, None, "the checkpoint has the end latest, and the source is given None"),
        (LATEST, KafkaOffsets.timestamp(5_000_000), "given timestamp 1970-01-01 00:00:05.000 UTC"),
        (
            KafkaOffsets.of({("orders", 0): 5}, otherwise="committed"),
            KafkaOffsets.of({("orders", 0): 7}),
            "the end orders/0: 5, otherwise committed, otherwise earliest, and the source is given orders/0: 7",
        ),
    ],
)
def test_another_end_is_refused_because_known_partitions_keep_theirs(
    before: KafkaOffsets | None, now: KafkaOffsets | None, said: str
) -> None:
    """A query with a new end never ended, and a query without one read nothing more."""
    client = ScriptedClient(orders={0: (2, 9)})
    state = enumerated(client, stop=before)[0].snapshot_state(1)
    with pytest.raises(UnreadableState, match=re.escape(said)):
        enumerated(client, stop=now, state=state)
    enumerated(client, stop=before, state=state)
    enumerated(client, stop=now, state=replace(state, splits=replace(state.splits, end=None)))  # of earlier versions


def test_what_is_named_must_be_there_at_first_and_may_go_later() -> None:
    client = ScriptedClient(orders={0: (0, 9)}, returns={0: (0, 1)})
    both = TopicList(frozenset({"orders", "returns"}))

    found, missing = both.find(client, ())
    assert ([topic.name for topic in found], missing) == (["orders", "returns"], [])
    del client.there["returns"]
    assert both.find(client, {"orders"})[1] == ["returns"]
    found, missing = both.find(client, {"returns"})
    assert ([topic.name for topic in found], missing) == (["orders"], [])
    pairs = PartitionSet(frozenset({("orders", 0), ("orders", 3)}))
    assert pairs.find(client, ())[1] == ["orders/3"]
    found, missing = pairs.find(client, {"orders"})
    assert (found[0].partitions, missing) == ((0,), [])


def test_states_and_splits_survive_their_formats() -> None:
    one = split(3, 0, stop=7, split_id="orders/3@q")
    state = KafkaEnumeratorState(
        DiscoveredSplits(discovered=True, assigned=("a/0",), pending=(one,)), {"orders": "id-1"}
    )
    states, splits = PackedSerializer(KafkaEnumeratorState), DataclassSerializer(KafkaSplit)

    assert states.deserialize(1, states.serialize(state)) == state
    assert splits.deserialize(1, splits.serialize(one)) == one
    assert states.serialize(state) == states.serialize(states.deserialize(1, states.serialize(state)))
    with pytest.raises(ValueError, match="version 2"):
        states.deserialize(2, states.serialize(state))


# -- pooled consumers ----------------------------------------------------------------------------------------


def test_a_consumer_that_heard_of_trouble_while_it_was_idle_is_not_used_again() -> None:
    cache, settings = ConsumerCache(), KafkaSettings("127.0.0.1:1", {}, 1.0, read_committed=True)
    first = cache.take(settings, {"group.id": "a"})
    cache.give_back(first)
    first.errors(KafkaError(KafkaError._ALL_BROKERS_DOWN))

    assert cache.take(settings, {"group.id": "a"}) is not first
    assert len(cache._idle) == 0


def test_consumers_are_kept_by_their_properties_and_not_over_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "lowmark.sources.kafka.librdkafka.ClientErrors.__call__", lambda *_: None
    )  # an address without a broker
    monkeypatch.setattr("lowmark.sources.kafka.consumers.MOST_IDLE", 2)
    cache = ConsumerCache()
    settings = KafkaSettings("127.0.0.1:1", {}, 1.0, read_committed=True)
    first = cache.take(settings, {"group.id": "a"})
    cache.give_back(first)

    assert cache.take(settings, {"group.id": "b"}) is not first
    assert cache.take(settings, {"group.id": "a"}) is first
    assert cache.take(settings, {"group.id": "a"}) is not first
    for group in ("a", "b", "c"):
        cache.give_back(cache.take(settings, {"group.id": group}))
    assert len(cache._idle) == 2
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert cache.take(settings, {"group.id": "c"}).key != first.key
    assert len(cache._idle) == 0
    cache.close()


def test_tasks_that_unpickle_a_callback_leave_few_logs_behind() -> None:
    cache = ConsumerCache()
    for _ in range(20):
        options = {"stats_cb": lambda _: None, "group.id": "lowmark"}  # another object each time, as if unpickled
        settings = KafkaSettings("127.0.0.1:1", options, 1.0, read_committed=True)
        cache.take(settings, {}).close()

    assert len(cache._logs) <= MOST_IDLE
