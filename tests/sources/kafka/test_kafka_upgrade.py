"""A topic stays the same topic while its brokers are upgraded."""

from __future__ import annotations

from tests.sources.kafka.test_kafka import ScriptedClient
from tests.sources.kafka.test_kafka_enumerator import enumerated, found


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
