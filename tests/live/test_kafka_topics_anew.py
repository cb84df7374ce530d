"""A topic is deleted, and perhaps created anew, after a batch of it was planned: the batch reads no other records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
from lowmark.sources import Fetched, SplitsAddition
from lowmark.sources.kafka import KafkaDataLost, KafkaSource, KafkaSplit

from tests.live.test_kafka_source_faults import create_anew, numbers
from tests.servers.kafka import Broker, Record
from tests.servers.local import wait_until
from tests.worlds.kafka_reading import Reading, source_of, text_of

Read = Callable[..., Reading]


@pytest.fixture
def reading() -> Iterator[Read]:
    with ExitStack() as opened:
        yield lambda source: opened.enter_context(closing(Reading(source)))


def delete(kafka: Broker, topic: str) -> None:
    kafka.admin.delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in kafka.admin.list_topics(timeout=5).topics, "the topic deleted")


@pytest.mark.parametrize("records", [3, 20])
def test_a_planned_batch_reads_nothing_of_a_topic_that_was_created_anew(
    kafka: Broker, reading: Read, records: int
) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, numbers(*range(10)))
    strict, lenient = reading(source_of(kafka, topic)), reading(source_of(kafka, topic, on_data_loss="go_on"))
    slices = {query: query.plan() for query in (strict, lenient)}
    before = slices[strict][0].topic_id
    create_anew(kafka, topic)
    kafka.produce(topic, numbers(*range(100, 100 + records)))

    with pytest.raises(KafkaDataLost) as lost:
        strict.read(slices[strict])
    tables = lenient.read(slices[lenient])
    [new] = lenient.discover()

    assert str(lost.value) == (
        f"Kafka split '{topic}/0' (topic '{topic}', partition 0): offsets from 0 on are lost: the topic was deleted "
        f"and created anew: the records were of the topic with id {before}, and the topic of this name has id "
        f'{lenient.splits[new].topic_id} now. Hint: to go on with what is left, use on_data_loss="go_on" '
        "(failOnDataLoss=false); to lose nothing next time, delete a topic only after the query has committed its last "
        "batch, or stop the query before."
    )
    assert [len(table) for table in tables.values()] == [0]
    assert lenient.count("lost_offsets") == 10
    assert lenient.values() == [str(n) for n in range(100, 100 + records)]
    assert lenient.count("lost_offsets") == 10


@pytest.mark.parametrize("again", [True, False], ids=["created anew", "deleted"])
def test_a_topic_that_goes_while_a_batch_is_read(kafka: Broker, again: bool) -> None:
    rows = 30_000
    topic = kafka.create_topic()
    kafka.produce(topic, [Record(f"old {n:06}" + "x" * 1_000) for n in range(rows)])
    source = source_of(kafka, topic, columns=["value"], on_data_loss="go_on")
    with closing(Reading(source)) as query:
        [part] = query.plan()
    readers = [each.create_split_reader() for each in (source, source_of(kafka, topic, columns=["value"]))]
    values: list[str] = []

    def of(fetched: Fetched) -> list[str]:
        return [text_of(value) for got in fetched.batches for value in got.rows["value"].to_pylist()]

    def to_the_end(which: int) -> list[str]:
        some: list[str] = []
        while not (fetched := readers[which].fetch()).finished_splits:
            some += of(fetched)
        return some + of(fetched)

    for which, reader in enumerate(readers):
        reader.handle_splits_changes(SplitsAddition((part,)))
        while not (some := of(reader.fetch())):
            pass
        values += [] if which else some
    if again:
        create_anew(kafka, topic)
        kafka.produce(topic, [Record(f"new {n:06}" + "x" * 1_000) for n in range(rows)])
    else:
        delete(kafka, topic)
    with pytest.raises(KafkaDataLost, match="created anew" if again else "the topic does not exist any more"):
        to_the_end(1)
    values += to_the_end(0)
    for reader in readers:
        reader.close()

    assert {value[:4] for value in values} == {"old "}
    assert readers[0].metric_values()["lost_offsets"] == rows - len(values) > 0


@pytest.mark.parametrize("give_up_after", ["1 minute", "1 second"])
def test_a_planned_batch_of_a_topic_that_was_deleted_says_so(kafka: Broker, reading: Read, give_up_after: str) -> None:
    topic, other = kafka.create_topic(), kafka.create_topic()
    kafka.produce(topic, numbers(1, 2, 3))
    kafka.produce(other, numbers(4))

    def source(**options: str) -> KafkaSource:
        return source_of(kafka, topic, other, give_up_after=give_up_after, **options)

    strict, lenient = reading(source()), reading(source(on_data_loss="go_on"))
    slices: dict[Reading, list[KafkaSplit]] = {query: query.plan() for query in (strict, lenient)}
    delete(kafka, topic)

    with pytest.raises(KafkaDataLost, match=r"from 0 on are lost: the topic does not exist any more\. Hint: to go on"):
        strict.read(slices[strict])
    tables = lenient.read(slices[lenient])

    assert [len(tables[f"{each}/0"]) for each in (topic, other)] == [0, 1]
    assert (lenient.count("data_losses"), lenient.count("lost_offsets")) == (1, 3)
