"""Lost records are counted once, whoever meets them: a planner before a batch, a reader in it, a planner after it."""

from __future__ import annotations

from confluent_kafka import KafkaError

from tests.sources.kafka.test_kafka import (
    ScriptedClient,
    ScriptedConsumer,
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
