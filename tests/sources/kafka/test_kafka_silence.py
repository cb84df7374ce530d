"""A reader waits for rows that do not come, asks through new consumers, and gives up."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, Message
from lowmark.sources import SplitsAddition
from lowmark.sources.kafka import KafkaUnavailable

from tests.sources.kafka.test_kafka import (
    Clock,
    ScriptedCache,
    ScriptedConsumer,
    event,
    message,
    read,
    reader_of,
    split,
)


@pytest.fixture(autouse=True)
def _scripts_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowmark.sources.kafka.reader.BLOCK_SECONDS", 0.05)


def test_silence_is_an_error_when_it_lasts_and_names_the_split() -> None:
    reader = reader_of(ScriptedConsumer([[message(0)]]), split(stop=9), step=5.0)

    with pytest.raises(
        KafkaUnavailable,
        match=r"Kafka at b:9092: cannot read split 'orders/0' from offset 1 to 9, tried for \d+ s: no answer",
    ):
        read(reader, 40)


def test_a_consumer_that_brings_nothing_gives_way_to_a_new_one_after_pauses_that_grow() -> None:
    """The old consumer may keep asking a former leader, or use an old epoch."""
    going, silent = split(0, stop=9), split(1, stop=9)
    consumer = ScriptedConsumer([[message(0)], *[[]] * 10, [message(1)], *[[]] * 3])
    reader = reader_of(consumer, going, silent, step=0.5)
    consumer.calls.clear()

    offsets, _, _ = read(reader, 30)
    cache = reader._consumers
    assert isinstance(cache, ScriptedCache)
    renewed = [at for call, at in consumer.calls if call == "assign"]

    assert offsets == {"orders/0": [0, 1]}
    assert renewed[:2] == [[("orders", 0, 1), ("orders", 1, 0)]] * 2
    assert renewed[-1] == [("orders", 0, 2), ("orders", 1, 0)]
    assert 4 <= len(renewed) == cache.discarded <= 8
    reader.close()
    assert (cache.discarded, cache.given_back) == (len(renewed) + 1, 0)


def test_a_consumer_that_was_closed_is_not_used_again_if_no_other_can_be_made() -> None:
    class Exhausted(ScriptedCache):
        def discard(self, kept: Any) -> None:
            super().discard(kept)
            self.take = self.fail  # type: ignore[method-assign]

        def fail(self, settings: object, properties: object) -> Any:
            raise KafkaUnavailable("b:9092", "make a client", 0.0, "no thread is left", "stop other programs.")

    reader = reader_of(ScriptedConsumer([[message(0)]]), split(stop=9), step=0.5)
    assert isinstance(reader._consumers, ScriptedCache)
    cache = reader._consumers = Exhausted(reader._consumers.scripted)

    with pytest.raises(KafkaUnavailable, match="no thread is left"):
        read(reader, 30)
    reader.close()

    assert (cache.discarded, cache.given_back) == (1, 0)


def test_time_that_the_caller_takes_is_no_silence_of_the_brokers() -> None:
    """Slow Python behind the read takes minutes for the rows of a fetch, and meanwhile a broker starts again."""
    consumer = ScriptedConsumer([[message(0)], [event(KafkaError._TRANSPORT)], *[[]] * 3, [message(1)]])
    reader = reader_of(consumer, split(stop=9), step=0.1)
    clock, cache = reader._now_seconds, reader._consumers
    assert isinstance(clock, Clock)
    assert isinstance(cache, ScriptedCache)
    offsets: list[int] = []
    for _ in range(6):
        offsets += [int(offset) for part in reader.fetch().batches for offset in part.rows["offset"].to_numpy()]
        clock.now += 100.0
    assert (offsets, cache.discarded) == ([0, 1], 0)

    reader.handle_splits_changes(SplitsAddition((split(1, stop=9),)))
    began = clock.now
    with pytest.raises(KafkaUnavailable, match=r"tried for 6\d s"):
        read(reader, 1_000)
    assert 60.0 < clock.now - began < 90.0


def test_a_look_at_the_ends_that_fails_is_no_sign_of_life() -> None:
    """A broker that says "out of range" and does not answer where the partition ends would be asked for ever."""
    out_of_range = event(KafkaError._AUTO_OFFSET_RESET)
    reader = reader_of(ScriptedConsumer([[message(0)], *[[out_of_range]] * 40]), split(stop=9), step=5.0)
    assert isinstance(reader._consumers, ScriptedCache)
    reader._consumers.client.silent.add(("orders", 0))

    with pytest.raises(KafkaUnavailable, match=r"cannot read split 'orders/0' from offset 1 to 9, tried for \d+ s"):
        read(reader, 40)


def test_an_error_of_the_group_s_coordinator_is_no_sign_of_life() -> None:
    """Each new consumer of a user without a right to the group says so, also while the leader is away."""
    denied = Message(error=KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED), partition=0)
    reader = reader_of(ScriptedConsumer([[message(0)], *[[denied]] * 40]), split(stop=9), step=5.0)

    with pytest.raises(KafkaUnavailable, match=r"cannot read split 'orders/0' from offset 1 to 9, tried for \d+ s"):
        read(reader, 40)
