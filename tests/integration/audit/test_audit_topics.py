"""`lowmark audit kafka` without a broker: one reading against a scripted consumer and client."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError
from lowmark.integration.audit import kafka_range
from lowmark.integration.audit.audit import Question
from lowmark.integration.audit.event_time import TimeReader
from lowmark.integration.audit.kafka import KafkaAudit, _Reading
from lowmark.integration.audit.kafka_range import TopicRange, Topics
from lowmark.sources.kafka.client import Positions
from lowmark.sources.kafka.errors import KafkaUnavailable
from lowmark.sources.kafka.offsets import KafkaOffsets, TopicPartitionId

from tests.integration.cli.test_cli import call
from tests.sources.kafka.test_kafka import ScriptedConsumer, eof, event, message

PARTITIONS = [("orders", number) for number in range(3)]
ALL = Question.of((), None, None, None, rows=None)


class SlowClient:
    """Every partition begins at offset 8; each question takes 40 seconds."""

    def __init__(self, clock: list[float], *, away: bool) -> None:
        self.clock, self.away, self.asked = clock, away, 0

    def positions(
        self, wanted: list[Mapping[TopicPartitionId, KafkaOffsets]], action: str, *, patience_seconds: float
    ) -> list[Positions]:
        self.clock[0] += 40.0
        self.asked += 1
        if self.away:
            raise KafkaUnavailable("b:9092", action, 40.0, "no broker answers", "")
        return [(dict.fromkeys(asked, 8), {}) for asked in wanted]


def read(
    consumer: ScriptedConsumer, ends: Mapping[TopicPartitionId, int], client: Any = None, question: Question = ALL
) -> tuple[KafkaAudit, _Reading]:
    of = KafkaAudit("b:9092", Topics(("orders",)), question, None, TimeReader(), {}, now_us=10**9)
    kept: Any = SimpleNamespace(consumer=consumer, errors=SimpleNamespace(said="no route"))
    reading = _Reading(of, kept, client, dict.fromkeys(ends, 0), dict(ends))
    reading.run()
    return of, reading


@pytest.mark.parametrize("away", [False, True])
def test_records_that_are_deleted_in_many_partitions_are_looked_up_at_once(
    away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The questions together took longer than a broker is waited for, or each waited for a broker that was away."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    consumer, client = ScriptedConsumer([
        [event(KafkaError._AUTO_OFFSET_RESET, number) for _, number in PARTITIONS],
        [message(offset, partition=number) for _, number in PARTITIONS for offset in (8, 9)],
        [eof(number, 10) for _, number in PARTITIONS],
    ]), SlowClient(clock, away=away)  # fmt: skip
    of, reading = read(consumer, dict.fromkeys(PARTITIONS, 10), client)
    assert of.unread == ({"no broker answers": ["orders/0", "orders/1", "orders/2"]} if away else {})
    assert client.asked == 1
    if not away:
        assert reading.audit is not None
        assert reading.audit.rows == 6
        assert of.notes == [f"offsets 0 to 7 of orders/{n} were deleted before they were read" for n in range(3)]


def test_a_partition_that_ends_without_a_row_does_not_hold_the_watermark_of_the_replay() -> None:
    """Lowmark seemed to lose no row, because its watermark waited for the partition."""
    at_ms = [*range(100_000, 200_000, 1_000), *range(0, 100_000, 1_000)]
    rows = [message(offset, partition=0, timestamp=(1, at)) for offset, at in enumerate(at_ms)]
    consumer = ScriptedConsumer([rows[:1], [event(KafkaError.TOPIC_AUTHORIZATION_FAILED, 1)], [*rows[1:], eof(0, 200)]])
    question = Question.of(("1 second",), None, 20, None, rows=None)
    _, reading = read(consumer, {PARTITIONS[0]: 200, PARTITIONS[1]: 1}, question=question)
    assert reading.audit is not None
    report = reading.audit.report(what="", order="", event_time="", complete=False, notes=())

    assert (report.native[0].rows_dropped, report.lowmark[0].rows_dropped) == (100, 100)


def test_partitions_that_cannot_be_read_are_told_with_their_reasons_and_the_others_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A topic that was deleted ended the audit of all topics, and partitions that fell silent had no names."""
    clock = iter(range(1_000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    ends = {(topic, number): 2 for topic in ("closed", "gone", "orders") for number in range(2)}
    whole_topic = event(KafkaError.TOPIC_AUTHORIZATION_FAILED, -1, topic="closed")
    consumer = ScriptedConsumer([
        [event(KafkaError.UNKNOWN_TOPIC_OR_PART, 1, topic="gone"), whole_topic],
        [message(0), message(0, partition=1)],
        [message(1), eof(0, 2)],
    ])  # fmt: skip
    asked: Any = SimpleNamespace(topics=lambda names: {"closed": (), "orders": ()})
    of, reading = read(consumer, ends, asked)

    assert reading.audit is not None
    assert reading.audit.rows == 3
    assert of.unread == {
        "the topic was deleted while it was read": ["gone/0", "gone/1"],
        "Broker: Topic authorization failed": ["closed/0", "closed/1"],
        "nothing came for 30 s (no route)": ["orders/1"],
    }


@pytest.mark.parametrize("silent_when_searched", [False, True])
def test_a_partition_without_a_leader_is_left_out_whenever_it_is_asked_about(silent_when_searched: bool) -> None:
    """A partition that lost its leader during the search by time ended the audit."""

    class Client:
        def topics(self, names: object, action: str) -> Any:
            return {"orders": SimpleNamespace(partitions=(0, 1))}

        def positions(self, wanted: Any, action: str, *, patience_seconds: float | None = None) -> list[Positions]:
            assert patience_seconds == kafka_range.LEADER_SECONDS
            silent = {PARTITIONS[1]: OSError("no leader")} if (len(wanted) == 1) == silent_when_searched else {}
            at = {"earliest": 0, "latest": 1_000, "timestamp": 900}
            return [
                ({each: at[kind.kind] for each, kind in asked.items() if each not in silent}, dict(silent))
                for asked in wanted
            ]

        def cause(self, failed: object) -> str:
            return str(failed)

    client: Any = Client()
    unread: dict[str, list[str]] = {}
    part = TopicRange(client, "b:9092", Topics(("orders",)), Question(rows=100), 10**9, [], unread)
    assert part.find() == ({PARTITIONS[0]: 900}, {PARTITIONS[0]: 1_000})
    assert unread == {"no leader": ["orders/1"]}


def test_a_wrong_line_of_a_file_of_properties_is_named_without_its_text(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# the application's\nsecurity.protocol=SASL_SSL\n\nsasl.password hunter-2\n")

    code, _, err = call(
        "audit", "kafka", "--bootstrap-servers", "b:9092", "--topic", "orders", "--properties-file", str(file)
    )

    assert code == 2
    assert "--properties-file, line 4: expected NAME=VALUE" in err
    assert "hunter" not in err
