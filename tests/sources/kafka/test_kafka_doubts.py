"""Answers of brokers that have just started, or are being upgraded, are no news of a topic."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError
from lowmark.sources.kafka import KafkaDataLost

from tests.sources.kafka.test_kafka import (
    ScriptedClient,
    ScriptedConsumer,
    enumerated,
    event,
    found,
    message,
    read,
    reader_of,
    split,
)

UNKNOWN = KafkaError._UNKNOWN_TOPIC


def test_a_partition_counts_as_deleted_only_when_a_second_consumer_does_not_know_it_either() -> None:
    """A broker that has just started does not know all partitions, and rows that are there would be passed over."""
    known = ScriptedConsumer([[event(UNKNOWN), event(UNKNOWN)], *[[]] * 4, [message(2), message(3)]])
    deleted = [[event(UNKNOWN)], *[[]] * 4, [event(UNKNOWN)]]

    lenient = reader_of(known, split(start=2, stop=4), go_on=True, step=1.0)
    assert read(lenient, fetches=10)[:2] == ({"orders/0": [2, 3]}, ["orders/0"])
    assert lenient.metrics.values()["data_losses"] == 0
    with pytest.raises(KafkaDataLost, match="offsets from 2 on are lost: the topic or the partition was deleted"):
        read(reader_of(ScriptedConsumer(deleted), split(start=2, stop=4), step=1.0), fetches=10)


def test_a_topic_that_gets_an_id_when_its_brokers_are_upgraded_is_the_same_topic() -> None:
    """Its partitions are not read again from their first record, beside the splits that are read already."""
    client = ScriptedClient(orders={0: (0, 9)})
    client.ids["orders"] = ""
    enumerator, context = enumerated(client)
    before = enumerator.snapshot_state(1)

    for topic_id in ("id-1", "", "id-1"):  # while brokers are upgraded one by one
        client.ids["orders"] = topic_id
        context.next_period()
    _, restarted = enumerated(client, state=before)
    client.ids["orders"] = "id-2"
    context.next_period()

    assert found(restarted) == {}
    assert list(found(context)) == ["orders/0", "orders/0@id-2"]
