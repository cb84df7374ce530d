"""`lowmark audit kafka` on a real broker: the rows it reads, their order, and its messages on trouble."""

from __future__ import annotations

import io
import json
import re
import shlex
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from lowmark.integration.audit import kafka_range
from lowmark.integration.audit.audit import Question
from lowmark.integration.audit.event_time import TimeReader, json_path
from lowmark.integration.audit.kafka import KafkaAudit
from lowmark.integration.audit.kafka_range import Topics
from lowmark.integration.cli import main
from lowmark.integration.errors import AuditImpossible
from lowmark.watermark.replay.report import AuditReport
from pyarrow import csv
from typer.testing import CliRunner

from tests.integration.cli import test_cli
from tests.servers.kafka import Broker, Record, kafka_broker, kafka_pair
from tests.servers.local import LOWMARK, free_ports, wait_until
from tests.servers.secure_broker import RIGHTS, let_read, secure_broker
from tests.snippets import block


def call(*arguments: str) -> tuple[int, str, str]:
    return test_cli.call("audit", "kafka", *arguments)


def told(broker: Broker, topic: str, *arguments: str) -> dict[str, Any]:
    code, out, err = call("--bootstrap-servers", broker.bootstrap, "--topic", topic, "--json", *arguments)
    assert code == 0, err
    answer: dict[str, Any] = json.loads(out)
    return answer


def audited(broker: Broker, topic: str, path: str | None = None, **given: Any) -> AuditReport:
    options: Mapping[str, object] = given.pop("options", {})
    return KafkaAudit(
        broker.bootstrap,
        Topics((topic,)),
        given.pop("question", Question()),
        None if path is None else json_path(path),
        TimeReader(),
        options,
        time.time_ns() // 1_000,
        **given,
    ).run()


def orders(count: int, partitions: int = 4, pad: int = 0) -> Iterator[Record]:
    """One row per second and partition, an hour ago; partition 1 is ten minutes behind."""
    start_ms = (int(time.time()) - 3_600) * 1_000
    for number in range(count):
        partition = number % partitions
        at_ms = start_ms + number // partitions * 1_000 - (600_000 if partition == 1 else 0)
        yield Record(json.dumps({"paid_at": at_ms, "pad": "x" * pad}), partition, timestamp_ms=at_ms)


@pytest.fixture(scope="module")
def created(kafka: Broker) -> str:
    """Timestamps by the producer."""
    topic = kafka.create_topic(partitions=4)
    kafka.produce(topic, orders(4_000))
    return topic


def without_silences(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        name: {key: value for key, value in split.items() if "silen" not in key}
        for name, split in answer["splits"].items()
    }


def test_a_backlog_is_read_as_spark_shares_it_out(kafka: Broker, created: str) -> None:
    answer = told(kafka, created, "--rows-per-batch", "400", "--delay", "1 minute", "--delay", "20 minutes")
    assert "no append time" in answer["order"]
    assert (answer["rows"], answer["batches"], answer["complete"]) == (4_000, 10, True)
    minute, more = answer["native"]
    # 100 rows of each partition per batch: from the third batch on all rows of the slow partition are late.
    assert minute["splits"] == {f"{created}/1": 800}
    assert more["rows_dropped"] == 0
    assert answer["native_smallest_delay_us"] == (600 - 101) * 1_000_000 + 1_000
    assert [bound["rows_dropped"] for bound in answer["lowmark"]] == [0, 0]
    paid = told(kafka, created, "--rows-per-batch", "400", "--event-time", "$.paid_at")
    assert without_silences(paid) == without_silences(answer)  # silences are by Kafka's time, which differs


def test_several_topics_are_audited_as_one_stream(kafka: Broker) -> None:
    name = kafka.create_topic(partitions=1)
    other = kafka.create_topic(f"{name}-late", partitions=2)
    kafka.produce(name, (Record(json.dumps({"at": 1_700_000_000_000 + row * 1_000})) for row in range(1_000)))
    # Ten minutes behind; the second partition's times are in seconds.
    late = [1_700_000_000_000 + row * 1_000 - 600_000 for row in range(500)]
    kafka.produce(other, [Record(json.dumps({"at": at}), 0) for at in late])
    kafka.produce(other, [Record(json.dumps({"at": at // 1_000}), 1) for at in late])
    question = ("--rows-per-batch", "200", "--event-time", "$.at", "--delay", "1m")
    answer = told(kafka, name, "--topic", other, *question)
    assert answer["rows"] == 2_000
    assert set(answer["splits"]) == {f"{name}/0", f"{other}/0", f"{other}/1"}
    assert answer["native"][0]["splits"] == {f"{other}/0": 400}  # the first two of ten batches are not late
    assert answer["splits"][f"{other}/1"]["unreadable_rows"] == 500
    assert any("500 rows have a time that looks like seconds among milliseconds" in note for note in answer["notes"])
    code, out, err = call("--bootstrap-servers", kafka.bootstrap, "--topic-pattern", f"{name}.*", "--json", *question)
    assert code == 0, err
    assert json.loads(out)["native"] == answer["native"]
    code, out, err = call("--bootstrap-servers", kafka.bootstrap, "--topic-pattern", "no-such-.*")
    assert (code, out) == (2, "")
    assert "there are no topics like 'no-such-.*'" in err


def test_event_time_may_stand_in_a_header(kafka: Broker) -> None:
    topic = kafka.create_topic(partitions=2)
    kafka.produce(
        topic,
        (
            Record(b"\x00binary", row % 2, headers=[("at", b"0"), ("at", str(1_700_000_000 + row).encode())])
            for row in range(1_000)
        ),
    )
    kafka.produce(topic, [Record(b"", 0, headers=[("at", b"\xff")]), Record(b"", 1)])
    answer = told(kafka, topic, "--event-time", "header:at")
    assert answer["event_time"] == "header:at"
    first, second = answer["splits"].values()
    assert (first["first_us"], second["last_us"]) == (1_700_000_000_000_000, 1_700_000_999_000_000)
    assert (first["unreadable_rows"], second["null_rows"]) == (1, 1)


def test_values_of_a_schema_registry_are_decoded_or_refused_for_what_they_are(kafka: Broker, tmp_path: Path) -> None:
    schema = {"type": "record", "name": "Order", "fields": [{"name": "at", "type": "long"}]}
    (tmp_path / "order.avsc").write_text(json.dumps(schema))
    parsed, topic = fastavro.parse_schema(schema), kafka.create_topic()

    def value(at: int, number: int) -> bytes:
        out = io.BytesIO(struct.pack(">bI", 0, number))
        out.seek(5)
        fastavro.schemaless_writer(out, parsed, {"at": at})
        return out.getvalue()

    kafka.produce(topic, (Record(value(1_700_000_000_000 + row, 7 + row // 500)) for row in range(1_000)))
    code, out, err = call("--bootstrap-servers", kafka.bootstrap, "--topic", topic, "--event-time", "$.at")
    assert (code, out) == (2, "")
    assert "the first record is Avro or Protobuf of schema 7 of a schema registry" in err
    assert "--schema FILE" in err
    answer = told(kafka, topic, "--event-time", "$.at", "--schema", str(tmp_path / "order.avsc"), "--trigger", "10s")
    [split] = answer["splits"].values()
    assert (split["rows"], split["last_us"]) == (1_000, 1_700_000_000_999_000)
    assert any("values name 2 schemas (ids 7, 8)" in note for note in answer["notes"])
    assert any("--trigger has no effect" in note for note in answer["notes"])
    framed = kafka.create_topic()
    kafka.produce(framed, [Record(struct.pack(">bI", 0, 7) + b'{"at": 1700000000}')])
    assert told(kafka, framed, "--event-time", "$.at")["rows"] == 1


def test_append_times_order_all_partitions(kafka: Broker) -> None:
    topic = kafka.create_topic(partitions=4, message_timestamp_type="LogAppendTime")
    for _ in range(3):  # three bursts, written one after the other
        kafka.produce(topic, orders(800))
    answer = told(kafka, topic, "--event-time", "$.paid_at", "--trigger", "10 milliseconds", "--window", "1 minute")
    assert "LogAppendTime" in answer["order"]
    assert answer["rows"] == 2_400
    assert answer["batches"] >= 3
    assert answer["splits"][f"{topic}/0"]["out_of_orderness_us"]["max"] == 199_000_000  # all bursts have the same hour
    by_broker = told(kafka, topic)
    assert any("no row can be late" in note for note in by_broker["notes"])
    assert by_broker["native"][0]["rows_dropped"] == 0


@pytest.mark.parametrize("kinds", [("CreateTime", "LogAppendTime"), ("LogAppendTime", "CreateTime")])
def test_a_topic_that_got_another_kind_of_timestamps_is_told(kafka: Broker, kinds: tuple[str, str]) -> None:
    topic = kafka.create_topic(message_timestamp_type=kinds[0])
    kafka.produce(topic, orders(100, partitions=1))
    other = ConfigEntry("message.timestamp.type", kinds[1], incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[other])
    kafka.admin.incremental_alter_configs([resource])[resource].result(30)

    def notes() -> list[str]:
        kafka.produce(topic, orders(100, partitions=1))  # a broker may apply the setting after its answer
        return [note for note in told(kafka, topic)["notes"] if "the others" in note]

    [note] = wait_until(notes, "the records of the other kind are there")
    assert note == "some records have append times, the others only their producers' timestamps"


def test_the_newest_rows_begin_at_one_time_in_all_partitions(kafka: Broker) -> None:
    topic = kafka.create_topic(partitions=2)
    start_ms = (int(time.time()) - 3_600) * 1_000
    fast = (Record("{}", 0, timestamp_ms=start_ms + number * 100) for number in range(10_000))
    slow = (Record("{}", 1, timestamp_ms=start_ms + number * 10_000) for number in range(100))
    kafka.produce(topic, [*fast, *slow])
    report = audited(kafka, topic, question=Question(rows=1_010))
    fast_rows, slow_rows = (split.profile.rows for split in report.splits)
    assert 900 <= fast_rows + slow_rows <= 1_010
    assert 9 <= slow_rows <= 11
    assert all((split.behind_us or 0) <= 10_000_000 for split in report.splits)


def test_the_commands_of_the_pages(kafka: Broker, created: str, tmp_path: Path) -> None:
    """The commands in README.md and audit.md, changed only in addresses and paths."""
    table = {"partition": [0, 1] * 50, "event_time": [1_700_000_000 + n for n in range(100)]}
    csv.write_csv(pa.table(table), tmp_path / "a.csv")
    written = block("README.md", "make venv") + "\n" + block("audit.md", "lowmark audit")
    commands = [shlex.split(line) for line in written.splitlines() if line.startswith("lowmark ")]
    here = {"orders": created, "/data/bronze/orders": str(tmp_path), "$.at": "$.paid_at"}
    here |= dict.fromkeys(("localhost:9092", "broker:9092"), kafka.bootstrap)
    assert len(commands) == 3
    for command in commands:
        words = [here.get(word, word) for word in command]
        result = CliRunner().invoke(main.app, words[1:], prog_name="lowmark")
        assert result.exit_code == 0, result.stderr
        assert "WatermarkStrategy" in result.stdout


def test_nothing_is_left_behind(kafka: Broker, created: str) -> None:
    before = kafka.end_offsets(created)
    told(kafka, created)
    assert kafka.end_offsets(created) == before
    groups = kafka.admin.list_consumer_groups().result(30).valid
    assert not [group.group_id for group in groups if group.group_id == "lowmark"]


def test_the_properties_of_an_application_neither_commit_nor_skip_rows(
    kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, group = kafka.create_topic(), "an-application"
    kafka.produce(topic, orders(1_000, partitions=1))
    find = kafka_range.TopicRange.find

    def found_before_records_are_deleted(part: kafka_range.TopicRange) -> tuple[kafka_range.Offsets, ...]:
        found = find(part)
        before = TopicPartition(topic, 0, 400)
        kafka.admin.delete_records([before])[before].result(30)
        return found

    monkeypatch.setattr(kafka_range.TopicRange, "find", found_before_records_are_deleted)
    report = audited(
        kafka,
        topic,
        options={
            "group.id": group,
            "enable.auto.commit": "true",
            "enable.auto.offset.store": "true",
            "auto.offset.reset": "latest",
        },
    )
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
    [committed] = consumer.committed([TopicPartition(topic, 0)], timeout=30)
    consumer.close()

    assert report.rows == 600
    assert f"offsets 0 to 399 of {topic}/0 were deleted before they were read" in report.notes
    assert committed.offset == OFFSET_INVALID


def test_a_user_audits_what_may_be_read_without_a_right_to_a_consumer_group(tmp_path: Path) -> None:
    with secure_broker(tmp_path, RIGHTS) as (broker, address, login):
        topic, closed = broker.create_topic(), broker.create_topic(partitions=2)
        broker.produce(topic, orders(30_000, partitions=1))
        broker.produce(closed, orders(100, partitions=2))
        let_read(broker, topic)
        let_read(broker, closed, "DESCRIBE")

        client = AdminClient({"bootstrap.servers": address, "log_level": 0, **login})
        wait_until(
            lambda: all(client.list_topics(each, timeout=5).topics[each].error is None for each in (topic, closed)),
            "the rights",
        )

        def audited(*topics: str) -> AuditReport:
            now_us = time.time_ns() // 1_000
            return KafkaAudit(address, Topics(topics), Question(), None, TimeReader(), dict(login), now_us).run()

        whole, part = audited(topic), audited(closed, topic)
        with pytest.raises(AuditImpossible, match=f"nothing of topic '{closed}' could be read: .*authorization failed"):
            audited(closed)

    assert (whole.rows, whole.complete) == (30_000, True), whole.notes
    assert (part.rows, part.complete) == (30_000, False)
    [note] = [note for note in part.notes if "authorization" in note]
    names, _, reason = note.removeprefix("not all was read: ").partition(": ")
    assert sorted(names.split(", ")) == [f"{closed}/0", f"{closed}/1"]
    assert reason.endswith("Broker: Topic authorization failed")


def _aborted(kafka: Broker) -> str:
    """A topic whose only transaction was aborted: the broker runs, and the topic may be read."""
    topic = kafka.create_topic()
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"tx-{topic}"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"{}")
    producer.flush()
    producer.abort_transaction()
    return topic


@pytest.mark.parametrize(
    ("make", "arguments", "words"),
    [
        (lambda kafka: kafka.create_topic(), [], "no record that can be read"),
        (_aborted, [], "Hint: audit it once rows were committed to it"),
        (lambda kafka: "not-there", [], "there is no topic 'not-there'"),
        (lambda kafka: _filled(kafka, "no json"), ["--event-time", "$.at"], "begins with 'no json'"),
        (lambda kafka: _filled(kafka, '{"at": null}'), ["--event-time", "$.at"], "3 have none"),
        (lambda kafka: _filled(kafka, "{}"), ["--property", "no.such=1"], "no.such"),
        (lambda kafka: _filled(kafka, "{}"), ["--last", "1 millisecond"], "nothing was written"),
    ],
)
def test_what_cannot_be_audited_is_told_in_one_line(
    kafka: Broker, make: Callable[[Broker], str], arguments: list[str], words: str
) -> None:
    code, out, err = call("--bootstrap-servers", kafka.bootstrap, "--topic", make(kafka), *arguments)
    assert (code, out) == (2, ""), err
    assert words in err
    assert len(err.splitlines()) == 1
    assert "Hint:" in err


def _filled(kafka: Broker, value: str) -> str:
    topic = kafka.create_topic()
    kafka.produce(topic, [Record(value, 0, timestamp_ms=1_700_000_000_000)] * 3)
    return topic


def test_a_broker_that_is_not_there_is_told_soon() -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    began = time.monotonic()
    code, out, err = call("--bootstrap-servers", address, "--topic", "orders")
    assert (code, out) == (2, "")
    assert address in err
    assert "Traceback" not in err
    assert time.monotonic() - began < 30


# The client prefetches little, so that a change of the topic reaches its reader.
SLOWLY = {
    "fetch.message.max.bytes": 2_000,
    "queued.min.messages": 1,
    "queued.max.messages.kbytes": 4,
    "fetch.queue.backoff.ms": 1_000,
}


def test_a_topic_that_is_deleted_meanwhile_leaves_an_answer(kafka: Broker) -> None:
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, orders(30_000, partitions=2, pad=500))

    def delete(read: int, total: int) -> None:
        if read and kafka.admin.list_topics(timeout=5).topics.get(topic):
            kafka.admin.delete_topics([topic])[topic].result(30)
            assert read < total

    report = audited(
        kafka, topic, progress=delete, options=SLOWLY, give_up_after_seconds=10.0,
        question=Question(rows_per_batch=100),
    )  # fmt: skip
    assert not report.complete
    assert 0 < sum(split.profile.rows for split in report.splits) < 30_000
    assert any("deleted" in note or "nothing came" in note for note in report.notes), report.notes


def test_records_that_are_deleted_meanwhile_are_named_and_the_rest_is_read(kafka: Broker) -> None:
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, orders(30_000, partitions=2, pad=500))
    read_before: list[int] = []

    def delete(read: int, _total: int) -> None:
        if read and not read_before:
            read_before.append(read)
            before = [TopicPartition(topic, partition, 10_000) for partition in (0, 1)]
            for deleted in kafka.admin.delete_records(before).values():
                deleted.result(30)

    report = audited(kafka, topic, progress=delete, options=SLOWLY, question=Question(rows_per_batch=100))
    rows = {split.name: split.profile.rows for split in report.splits}
    lost = [re.search(rf"offsets (\d+) to 9999 of {topic}/[01] were deleted before", note) for note in report.notes]

    assert sorted(rows) == [f"{topic}/0", f"{topic}/1"]
    assert sum(rows.values()) == 30_000 - sum(10_000 - int(each[1]) for each in lost if each is not None)
    assert min(rows.values()) >= 5_000


def test_a_partition_that_is_shorter_than_before_is_named(kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader with fewer records was elected since the audit asked where the partitions end."""
    topic = kafka.create_topic(partitions=3)
    kafka.produce(topic, orders(150, partitions=3))
    begins, ends = {(topic, n): at for n, at in enumerate((0, 0, 70))}, {(topic, n): 90 for n in range(3)}
    ends[topic, 0] = 50
    monkeypatch.setattr(kafka_range.TopicRange, "find", lambda _: (begins, ends))
    report = audited(kafka, topic)

    assert {split.name: split.profile.rows for split in report.splits} == {
        f"{topic}/0": 50,
        f"{topic}/1": 50,
        f"{topic}/2": 0,
    }
    assert sorted(note for note in report.notes if "has no record" in note) == [
        f"{topic}/1 ended at offset 90 and has no record from offset 50 on now",
        f"{topic}/2 ended at offset 90 and has no record from offset 70 on now",
    ]


def test_no_row_is_read_twice_after_a_leader_with_fewer_records_was_elected(
    kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka's error of a shorter log has no offset, in contrast to its error of deleted records."""
    topic = kafka.create_topic()
    kafka.produce(topic, orders(30_000, partitions=1, pad=500))
    kafka.admin.delete_records([TopicPartition(topic, 0, 100)])[TopicPartition(topic, 0)].result(30)
    shorter = [Message(topic=topic, partition=0, error=KafkaError(KafkaError._AUTO_OFFSET_RESET))]

    class Shortened(Consumer):
        def consume(self, *given: Any) -> list[Message]:
            messages = super().consume(*given)
            return messages + [shorter.pop() for _ in messages[-1:] if shorter]

    monkeypatch.setattr("confluent_kafka.Consumer", Shortened)
    report = audited(kafka, topic, options=SLOWLY)

    rows = report.rows
    assert 0 < rows < 29_900
    assert f"{topic}/0 ended at offset 30000 and has no record from offset {100 + rows} on now" in report.notes
    assert not any("deleted" in note for note in report.notes)


def test_a_broker_that_dies_meanwhile_leaves_an_answer(tmp_path: Path) -> None:
    with kafka_broker(tmp_path) as broker:
        topic = broker.create_topic(partitions=2)
        broker.produce(topic, orders(30_000, partitions=2, pad=500))  # a fetch returns a producer's whole batch, 1 MB
        killed: list[int] = []

        def kill(read: int, _total: int) -> None:
            if read and not killed:
                broker.kill()
                killed.append(read)

        report = audited(broker, topic, progress=kill, options=SLOWLY, give_up_after_seconds=5.0)
    assert not report.complete
    assert any("not all was read" in note for note in report.notes)


def test_a_partition_without_a_leader_is_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_range, "LEADER_SECONDS", 2.0)
    with kafka_pair(tmp_path) as (first, second):
        topic, lost = first.create_topic(replicas=[[1], [2]]), first.create_topic(replicas=[[2]])
        for each, partitions in ((topic, 2), (lost, 1)):
            first.produce(each, orders(100, partitions))
        second.kill()
        report = audited(first, topic)
        with pytest.raises(AuditImpossible, match=f"cannot ask where topic '{lost}' end, tried for 2 s: .*leader"):
            audited(first, lost)

    assert [each.name for each in report.splits] == [f"{topic}/0"]
    assert not report.complete
    assert any(note.startswith(f"not all was read: {topic}/1: ") and "leader" in note for note in report.notes)


def test_a_record_that_the_disk_of_a_broker_has_changed_ends_the_reading_and_is_named(tmp_path: Path) -> None:
    with kafka_broker(tmp_path) as broker:
        topic = broker.create_topic()
        for at in (1_700_000_001, 1_700_000_002, 1_700_000_003):
            broker.produce(topic, [Record(f'{{"at": {at}}}')])  # a batch of its own
        broker.damage(topic, b"1700000002", b"1700009002")
        report = audited(broker, topic, "$.at")

    assert [split.profile.rows for split in report.splits] == [1]
    assert not report.complete
    assert any(f"not all was read: {topic}/0: " in note and "failed CRC32C check" in note for note in report.notes)


def test_ctrl_c_gives_the_answer_so_far(kafka: Broker) -> None:
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, orders(20_000, partitions=2, pad=500))
    slowly = [f"--property={name}={value}" for name, value in SLOWLY.items()]
    command = subprocess.Popen(
        [*LOWMARK, "audit", "kafka", "--bootstrap-servers", kafka.bootstrap, "--topic", topic, "--json", "--debug",
         *slowly],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert command.stderr is not None
    assert any("read " in line for line in command.stderr), "it ended before it had read a row"
    command.send_signal(signal.SIGINT)
    out, _ = command.communicate(timeout=60)
    answer = json.loads(out)
    assert command.returncode == 130
    assert answer["interrupted"]
    assert not answer["complete"]
    assert 0 < sum(split["rows"] for split in answer["splits"].values()) < 20_000


def test_an_audit_that_is_stopped_before_its_first_row_is_interrupted(kafka: Broker, created: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        audited(kafka, created, stop=lambda: True)
