"""Lost records are counted once, whoever meets them: a planner before a batch, a reader in it, a planner after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition
from lowmark.sources.api import SplitEnd
from lowmark.sources.kafka import KafkaDataLost, KafkaUnavailable
from lowmark.sources.kafka.reader import KafkaSplitReader
from lowmark.sources.kafka.topics import Topic

from tests.sources.kafka.test_kafka import (
    SETTINGS,
    ScriptedCache,
    ScriptedClient,
    ScriptedConsumer,
    StillClock,
    eof,
    event,
    message,
    planner_of,
    read,
    reader_of,
    split,
)

OUT_OF_RANGE = KafkaError._AUTO_OFFSET_RESET


def test_a_reader_counts_no_loss_that_its_planner_has_counted() -> None:
    planner = planner_of(ScriptedClient(orders={0: (4, 10)}), go_on=True)
    planner.latest([split()])
    [(part, _)] = planner.cut([(split(), 7)])
    chunks = [[event(OUT_OF_RANGE)], [message(n) for n in range(4, 8)]]
    same = reader_of(ScriptedConsumer(chunks, (4, 10)), part, go_on=True)
    grown = reader_of(ScriptedConsumer([chunks[0], chunks[1][2:]], (6, 10)), part, go_on=True)

    assert read(same)[0] == {"orders/0": [4, 5, 6]}
    assert read(grown)[0] == {"orders/0": [6]}
    assert planner.metric_values()["lost_offsets"] == 4
    assert [each.metric_values()["lost_offsets"] for each in (same, grown)] == [0, 2]


def test_a_loss_that_grows_before_it_is_planned_and_one_that_takes_several_batches() -> None:
    client = ScriptedClient(orders={0: (4, 100)})
    planner = planner_of(client, go_on=True)
    planner.latest([split()])
    client.there["orders"][0] = (60, 100)
    planner.latest([split()])
    [(_, rest)] = planner.cut([(split(), 20)])
    planner.latest([rest])
    restarted = planner_of(client, go_on=True)
    restarted.latest([rest])

    assert (rest.start, rest.lost_before) == (20, 60)
    assert planner.metric_values()["lost_offsets"] == 60
    assert restarted.metric_values()["lost_offsets"] == 0


def test_a_bounded_partition_that_became_shorter_than_its_position_ends_because_its_rows_are_lost() -> None:
    planner = planner_of(ScriptedClient(orders={0: (0, 9)}), go_on=True, now_seconds=(clock := StillClock()))

    assert planner.latest([split(start=12, stop=20)]) == {}
    clock.now += SETTINGS.give_up_seconds
    assert planner.latest([split(start=12, stop=20)])["orders/0"] == SplitEnd(12, rows=0, finished=True)
    assert planner.metric_values()["lost_offsets"] == 8


def test_a_range_in_which_another_topic_has_no_record_is_lost_and_not_passed() -> None:
    reader = reader_of(ScriptedConsumer([[eof(0, 8)]]), split(start=2, stop=5), step=0.5)
    client_of(reader).ids["orders"] = "id-2"

    with pytest.raises(KafkaDataLost, match="from 2 on are lost: the topic was deleted and created anew"):
        read(reader, 20)


def test_a_broker_that_still_knows_the_topic_of_before_loses_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is cut off from its controller does not hear that a topic was deleted and created anew."""
    planner = planner_of(asked := ScriptedClient(orders={0: (0, 10)}), go_on=True)
    reader = reader_of(ScriptedConsumer([[message(2), message(3)]]), split(start=2, stop=4), go_on=True, step=0.5)
    for client in (asked, client_of(reader)):
        client.ids["orders"] = "id-0"
        monkeypatch.setattr(client, "renew", lambda ids=client.ids: ids.update(orders="id-1"))

    assert planner.latest([split()]) == {"orders/0": SplitEnd(10, rows=10)}
    assert read_to_the_end(reader) == [2, 3]
    assert planner.metric_values()["data_losses"] == reader.metric_values()["data_losses"] == 0


@pytest.mark.parametrize("trouble", ["no answer", "no topic"])
def test_rows_wait_until_a_broker_says_whose_they_are(monkeypatch: pytest.MonkeyPatch, trouble: str) -> None:
    """A broker that has just started does not know all topics."""
    reader = reader_of(ScriptedConsumer([[message(2), message(3)]]), split(start=2, stop=4))
    answers: list[Any] = [{}, {}]

    def topics(names: Sequence[str], action: str = "") -> Any:
        if answers and trouble == "no answer":
            raise KafkaUnavailable("b:9092", "describe topics", 2.0, answers.pop() or "nobody", "wait.")
        return answers.pop() if answers else {"orders": Topic("orders", "id-1", (0,))}

    monkeypatch.setattr(client_of(reader), "topics", topics)

    assert read(reader, 2) == ({}, [], {})
    assert read(reader, 1) == ({"orders/0": [2, 3]}, ["orders/0"], {"orders/0": 4})


@pytest.mark.parametrize("go_on", [False, True])
def test_rows_of_a_topic_that_stays_unknown_are_not_handed_out(go_on: bool) -> None:
    reader = reader_of(ScriptedConsumer([[message(2), message(3)]]), split(start=2, stop=9), go_on=go_on, step=0.5)
    client_of(reader).there.clear()

    if not go_on:
        with pytest.raises(KafkaDataLost, match="from 2 on are lost: the topic does not exist any more"):
            read(reader, 20)
    else:
        assert read(reader, 20)[:2] == ({}, ["orders/0"])
        assert reader.metric_values() == {"data_losses": 1, "lost_offsets": 7}


UNKNOWN_PARTITION = event(KafkaError._UNKNOWN_PARTITION)


@pytest.mark.parametrize("knows", [(0,), ()])
def test_a_partition_that_one_broker_does_not_know_yet_is_read_when_it_is_known(
    monkeypatch: pytest.MonkeyPatch, knows: tuple[int, ...]
) -> None:
    """A broker with old metadata answers with the number of partitions before partitions were added."""
    consumer = ScriptedConsumer([[UNKNOWN_PARTITION], *[[]] * 20, [message(2)], [UNKNOWN_PARTITION], [message(3)]])
    reader = reader_of(consumer, split(start=2, stop=4), go_on=True, step=0.5)
    answers = [knows]
    monkeypatch.setattr(
        client_of(reader),
        "topics",
        lambda names: {"orders": Topic("orders", "id-1", answers.pop() if answers else (0,))},
    )

    assert read_to_the_end(reader) == [2, 3]
    assert reader.metric_values() == {"data_losses": 0, "lost_offsets": 0}


@pytest.mark.parametrize("go_on", [False, True])
def test_a_partition_that_stays_away_is_lost(go_on: bool) -> None:
    consumer = ScriptedConsumer([[message(2)], [], [UNKNOWN_PARTITION]])
    reader = reader_of(consumer, split(start=2, stop=9), go_on=go_on, step=0.5)
    client_of(reader).there["orders"] = {1: (0, 9)}

    if not go_on:
        with pytest.raises(KafkaDataLost, match="from 3 on are lost: the partition does not exist any more"):
            read_to_the_end(reader)
    else:
        assert read_to_the_end(reader) == [2], "a row of the planned topic is handed out"
        assert reader.metric_values() == {"data_losses": 1, "lost_offsets": 6}


def read_to_the_end(reader: KafkaSplitReader) -> list[int]:
    """Return the offsets of the rows of one split."""
    offsets: list[int] = []
    for _ in range(300):
        fetched = reader.fetch()
        offsets += [int(offset) for part in fetched.batches for offset in part.rows["offset"].to_numpy()]
        if fetched.finished_splits:
            return offsets
    raise AssertionError(f"the split is not finished after {offsets}")


class EndsAt(ScriptedConsumer):
    """A consumer that finds the same end of the partition again with each assignment."""

    def __init__(self, end: int, *chunks: Sequence[Message]) -> None:
        super().__init__(chunks)
        self.end = end

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self.chunks.append([eof(0, self.end)])


@pytest.mark.parametrize("high", [2, 3])
def test_the_rest_of_a_range_is_lost_if_its_partition_stays_shorter(high: int) -> None:
    """A leader with fewer records was elected, or the topic was made anew on brokers without ids of topics."""
    for go_on in (False, True):
        reader = reader_of(EndsAt(3, [message(1)]), split(start=1, stop=6), go_on=go_on, step=0.5)
        client_of(reader).there["orders"] = {0: (0, high)}
        if not go_on:
            why = f"from 3 on are lost: the partition ends at offset {high} now. Hint: .* let no replica that lacks rec"
            with pytest.raises(KafkaDataLost, match=why):
                read_to_the_end(reader)
        else:
            assert read_to_the_end(reader) == [1]
            assert reader.metric_values() == {"data_losses": 1, "lost_offsets": 3}


class Beyond(ScriptedConsumer):
    """Each assignment of this consumer is answered by an error: the position is out of range."""

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self.chunks.append([event(OUT_OF_RANGE)])


def test_records_beyond_the_end_of_a_partition_are_lost_after_several_consumers_have_found_the_same_end() -> None:
    for go_on in (False, True):
        reader = reader_of(Beyond([]), split(start=2, stop=8), go_on=go_on, step=0.1)
        client_of(reader).there["orders"] = {0: (0, 1)}
        if not go_on:
            with pytest.raises(KafkaDataLost, match="from 2 on are lost: the partition ends at offset 1 now"):
                read_to_the_end(reader)
        else:
            assert read_to_the_end(reader) == []
            assert reader.metric_values() == {"data_losses": 1, "lost_offsets": 6}
        assert discards(reader) >= 3


def test_a_broker_that_is_cut_off_from_the_others_and_has_fewer_records_loses_nothing() -> None:
    """The broker does not hear that another broker leads the partition now."""
    consumer = ScriptedConsumer([[event(OUT_OF_RANGE)], *[[]] * 20, [message(2), message(3)]])
    reader = reader_of(consumer, split(start=2, stop=4), go_on=True, step=0.5)
    client_of(reader).there["orders"] = {0: (0, 1)}

    assert read_to_the_end(reader) == [2, 3]
    assert discards(reader) >= 1


def test_records_of_an_open_transaction_and_records_that_cannot_be_fetched_are_not_lost() -> None:
    """An earlier query that read what is not committed may have planned the range."""
    open_transaction = reader_of(EndsAt(3), split(start=1, stop=6), go_on=True, step=0.5)
    silent = reader_of(ScriptedConsumer([]), split(start=1, stop=6), go_on=True, step=0.5)
    client_of(silent).there["orders"] = {0: (0, 3)}

    with pytest.raises(KafkaUnavailable, match=r"from offset 3 to 6, .*: the readable records of .* end at offset 3"):
        read_to_the_end(open_transaction)
    with pytest.raises(KafkaUnavailable, match=r"from offset 1 to 6, .*: no answer"):
        read_to_the_end(silent)


def test_an_end_that_moves_on_while_it_is_waited_for_loses_nothing() -> None:
    """The new leader of a partition may know the end of the records late."""
    consumer = EndsAt(3, [message(2)], *[[]] * 20, [message(3), message(4), message(5)])

    assert read_to_the_end(reader_of(consumer, split(start=2, stop=6), step=0.5)) == [2, 3, 4, 5]


def discards(reader: KafkaSplitReader) -> int:
    """Return how many consumers of a reader were replaced by new ones."""
    cache = reader._consumers
    assert isinstance(cache, ScriptedCache)
    return cache.discarded


def client_of(reader: KafkaSplitReader) -> ScriptedClient:
    cache = reader._consumers
    assert isinstance(cache, ScriptedCache)
    return cache.client
