"""The options of the Kafka source, ours and Spark's, without a broker."""

from __future__ import annotations

import logging
import pickle
from datetime import datetime, timezone
from typing import Any

import pytest
from lowmark.sources.kafka import (
    InvalidKafkaOption,
    InvalidUtf8,
    KafkaDataLost,
    KafkaOffsets,
    KafkaSource,
    KafkaTopicMissing,
    KafkaUnavailable,
)
from lowmark.sources.kafka.client import KafkaClient
from lowmark.sources.kafka.columns import COLUMNS
from lowmark.sources.kafka.librdkafka import LibrdkafkaLog
from lowmark.sources.kafka.settings import KafkaSettings
from lowmark.sources.kafka.source import OWNED
from lowmark.watermark import LowmarkError

SETTINGS = KafkaSettings("b:9092", {}, 60.0, read_committed=True)
PLAIN: dict[str, Any] = {"bootstrap_servers": "b:9092", "topics": ["orders"]}
SPARK = {"kafka.bootstrap.servers": "b:9092", "subscribe": "orders"}
EARLIEST, LATEST = KafkaOffsets.earliest(), KafkaOffsets.latest()


# -- options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topics": None}, "option topics, topic_pattern, partitions: expected exactly one of them, got none of them"),
        ({"topic_pattern": "a"}, "got topics and topic_pattern"),
        ({"topics": []}, "option topics: expected at least one"),
        ({"topics": ["a", "a"]}, "each once"),
        ({"topics": "orders"}, r"write \['orders'\]"),
        ({"topics": None, "topic_pattern": "("}, "option topic_pattern: expected a regular expression"),
        ({"topics": None, "partitions": ["orders/0"]}, r"expected \(topic, partition\) pairs"),
        ({"topics": None, "partitions": [("orders", -1)]}, r"expected \(topic, partition\) pairs"),
        ({"topics": None, "partitions": [("orders", True)]}, r"expected \(topic, partition\) pairs"),
        ({"topics": 5}, "topics: expected a list of names, got .* Hint: 5 is no name of a topic"),
        ({"topics": None, "topic_pattern": b"a"}, "topic_pattern: expected a regular expression, got b'a'"),
        ({"topics": None, "partitions": 5}, r"expected \(topic, partition\) pairs, got 5"),
        ({"bootstrap_servers": " "}, "option bootstrap_servers"),
        ({"bootstrap_servers": None}, 'bootstrap_servers: expected "host:port", got None'),
        ({"bootstrap_servers": b"b:9092"}, "bootstrap_servers: expected \"host:port\", got b'b:9092'"),
        ({"bootstrap_servers": ["b:9092", None]}, 'bootstrap_servers: expected "host:port"'),
        ({"consumer_options": "client.id=me"}, "consumer_options: expected a mapping of properties, got a str"),
        ({"consumer_options": [("client.id", "me")]}, "expected a mapping of properties, got a list"),
        ({"consumer_options": {1: "me"}}, "consumer_options: expected texts as names, got 1"),
        ({"start": 17}, "a bare number has no unit"),
        ({"start": "newest"}, 'option start: expected "earliest"'),
        ({"start": {("orders", 0): -2}}, "expected an offset of 0 or more, got -2"),
        (
            {"start": {("orders", 0): 2**63}},
            "775808. Hint: .* the largest offset is 9223372036854775807",
        ),
        ({"topics": ["orders", 1]}, "topics: expected a list of names, got .* Hint: 1 is no name of a topic"),
        ({"topics": [["orders"]]}, "topics: expected a list of names"),
        ({"topics": [""]}, "topics: expected a list of names"),
        ({"topics": None, "topic_pattern": 5}, "topic_pattern: expected a regular expression, got 5"),
        ({"start": {"orders": 3}}, r"expected \(topic, partition\) as key"),
        (
            {"start": {("ordres", 0): 3}},
            "option start: expected positions of partitions that are read, got one of ordres/0. Hint: read the topic",
        ),
        ({"stop": {("ordres", 0): "latest"}}, "option stop: expected positions of partitions that are read"),
        ({"topics": None, "partitions": [("orders", 1)], "start": {("orders", 0): 3}}, "got one of orders/0"),
        ({"start": "committed"}, 'give consumer_options={"group.id"'),
        ({"stop": "earliest"}, "nothing would be read"),
        ({"stop": {("orders", 0): "earliest"}}, "nothing would be read"),
        ({"stop": "committed"}, "expected a group.id"),
        ({"discover_every": "often"}, "option discover_every: expected a duration"),
        ({"discover_every": "0 seconds"}, "expected a duration above 0"),
        ({"give_up_after": 5}, "option give_up_after: expected a duration"),
        ({"on_data_loss": "ignore"}, 'expected "error" or "go_on"'),
        ({"isolation": "committed"}, 'expected "read_committed" or "read_uncommitted"'),
        ({"columns": ["value", "time"]}, "got 'time'"),
        ({"columns": []}, "option columns"),
        ({"columns": None}, "columns: expected some of key, .*, each once, got None"),
        ({"columns": [["value"]]}, r"columns: expected some of key, .*, each once, got \['value'\]"),
        ({"columns": "value"}, r"columns: expected some of key, .*, got 'value'. Hint: write \['value'\]"),
        ({"columns": ["value", "value"]}, "each once"),
        ({"value_type": "json"}, 'option value_type: expected "binary" or "string"'),
        ({"transactional": "false"}, "option transactional: expected True, False or None, got 'false'"),
        ({"transactional": 1}, "option transactional: expected True, False or None, got 1"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidKafkaOption, match=text):
        KafkaSource(**{**PLAIN, **options})


def test_consumer_options_that_are_no_mapping_are_not_shown_because_they_may_have_a_password() -> None:
    options: Any = "sasl.password=hunter2"
    with pytest.raises(InvalidKafkaOption) as refused:
        KafkaSource(**PLAIN, consumer_options=options)
    assert "hunter2" not in str(refused.value)


def test_offsets_that_are_no_mapping_are_refused() -> None:
    positions: Any = [("orders", 0)]
    with pytest.raises(InvalidKafkaOption, match=r"offsets: expected offsets by \(topic, partition\), got \["):
        KafkaOffsets.offsets(positions)


@pytest.mark.parametrize("time", [2**63, "2026-01-01", datetime(2026, 1, 1, tzinfo=timezone.utc), 1.5])
def test_a_time_that_is_no_number_of_microseconds_is_refused(time: Any) -> None:
    with pytest.raises(InvalidKafkaOption, match="timestamp: expected microseconds since the epoch"):
        KafkaOffsets.timestamp(time)


@pytest.mark.parametrize("name", [*OWNED, "sasl.jaas.config", "ssl.truststore.location"])
def test_what_the_source_sets_itself_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(InvalidKafkaOption, match=r"Hint: [a-z]") as refused:
        KafkaSource(**PLAIN, consumer_options={name: "secret-value"})

    assert "secret-value" not in str(refused.value)


def test_a_source_can_be_sent_and_shows_no_secret() -> None:
    source = KafkaSource(
        **PLAIN, consumer_options={"sasl.password": "hunter2", "client.id": "me"}, start={("orders", 0): 0}
    )

    again = pickle.loads(pickle.dumps(source))  # noqa: TID251  # our own

    assert "hunter2" not in repr(source) + repr(again._settings) + str(vars(source))
    assert again._settings.properties({})["sasl.password"] == "hunter2"
    assert again._start == KafkaOffsets.offsets({("orders", 0): 0})


def test_errors_can_be_sent() -> None:
    for error in (
        InvalidKafkaOption("a", "b", "c", "d"),
        KafkaTopicMissing(("a", "b"), "x:1"),
        KafkaUnavailable("x:1", "read", 1.0, "no answer", "wait."),
        KafkaDataLost("a/0", "a", 0, 3, None, "gone", "wait"),
        InvalidUtf8("value", "a", 0, 3),
    ):
        again = pickle.loads(pickle.dumps(error))  # noqa: TID251  # our own
        assert (str(again), isinstance(again, LowmarkError)) == (str(error), True)


def test_secrets_are_taken_out_of_texts() -> None:
    secret = {"sasl.password": "pw1", "ssl.key.pem": "pw2", "sasl.oauthbearer.client.secret": "pw3", "client.id": "pw4"}
    settings = KafkaSettings("b:1", secret, 1.0, read_committed=True)

    assert settings.redact("pw1 pw2 pw3 pw4") == "*** *** *** pw4"


def test_a_wrong_property_is_named_and_no_secret_with_it() -> None:
    settings = KafkaSettings("b:1", {"sasl.pasword": "hunter2", "ssl.key.pem": "hunter3"}, 1.0, read_committed=True)

    with pytest.raises(KafkaUnavailable, match=r"(?s)cannot make a client.*librdkafka's, not the Java") as wrong:
        KafkaClient(settings).topics(["orders"])

    assert "hunter3" not in str(wrong.value)


def test_a_login_by_token_without_a_token_is_not_blamed_on_the_options() -> None:
    def endpoint_is_away(_: object) -> tuple[str, float]:
        raise OSError("the endpoint is away")

    options = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", "oauth_cb": endpoint_is_away}

    with pytest.raises(KafkaUnavailable, match=r"(?s)OAuth token not set.*call oauth_cb on this host"):
        KafkaClient(KafkaSettings("b:1", options, 1.0, read_committed=True)).topics(["orders"])


@pytest.mark.parametrize(
    ("options", "argument", "expected"),
    [
        ({}, "start", LATEST),
        ({"startingOffsets": "EARLIEST"}, "start", EARLIEST),
        ({"startingoffsets": '{"orders": {"0": 0, "1": -1, "2": -2}}'}, "start",
         KafkaOffsets.offsets({("orders", 0): 0, ("orders", 1): LATEST, ("orders", 2): EARLIEST})),
        ({"startingTimestamp": "5", "startingOffsets": "earliest"}, "start", KafkaOffsets.timestamp(5_000)),
        ({"startingTimestamp": "0"}, "start", KafkaOffsets.timestamp(0)),
        ({"startingOffsetsByTimestamp": '{"orders": {"0": 7}}'}, "start",
         KafkaOffsets.offsets({("orders", 0): KafkaOffsets.timestamp(7_000)})),
        ({}, "stop", None),
        ({"endingOffsets": "latest"}, "stop", LATEST),
        ({"endingTimestamp": "0"}, "stop", KafkaOffsets.timestamp(0)),
        ({"failOnDataLoss": "false"}, "on_data_loss", "go_on"),
        ({"failOnDataLoss": "TRUE"}, "on_data_loss", "error"),
        ({"includeHeaders": "true"}, "columns", (*[name for name in COLUMNS if name != "headers"], "headers")),
        ({"columns": "value, offset"}, "columns", ("value", "offset")),
        ({"kafka.isolation.level": "read_uncommitted"}, "isolation", "read_uncommitted"),
        ({"kafka.sasl.username": "me"}, "consumer_options", {"sasl.username": "me"}),
        ({"groupIdPrefix": "x", "minPartitions": "3"}, "consumer_options", {}),
        ({"discoverEvery": "1 hour"}, "discover_every", "1 hour"),
        ({"transactional": "true"}, "transactional", True),
        ({"Transactional": "False"}, "transactional", False),
    ],
)  # fmt: skip
def test_the_options_of_spark(options: dict[str, str], argument: str, expected: object) -> None:
    from lowmark.sources.kafka.spark_options import arguments

    assert arguments({**SPARK, **options})[argument] == expected
    KafkaSource.from_options({**SPARK, **options})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kafka.bootstrap.servers": None}, "option kafka.bootstrap.servers"),
        ({"failOnDataLos": "false"}, "did you mean 'failOnDataLoss'"),
        ({"failOnDataLoss": "no"}, "expected true or false"),
        ({"transactional": "auto"}, "option transactional: expected true or false"),
        ({"startingOffsets": "newest"}, "option startingOffsets"),
        ({"startingOffsets": '{"a": {"0": -3}}'}, r"expected an offset, -1 \(latest\) or -2"),
        ({"startingOffsets": '{"a": [1]}'}, "as JSON"),
        ({"endingTimestamp": "today"}, "option endingTimestamp: expected milliseconds"),
        ({"subscribe": None, "assign": '{"a": 1}'}, "option assign"),
        ({"assign": '{"a": [1]}'}, "exactly one of them"),
        ({"subscribe": None, "assign": '{"a": [Infinity]}'}, "option assign"),
        ({"subscribe": None, "assign": '{"a": [1.5]}'}, "option assign"),
        ({"subscribe": None, "assign": '{"a": [-1]}'}, "option assign"),
        ({"subscribe": None, "assign": '{"a":' * 100_000}, r"option assign: .*, got '[^ ]{79}\.\.\.\. Hint"),
        ({"startingOffsets": '{"a": {"0": Infinity}}'}, r"expected an offset, .*, got inf"),
        ({"startingOffsets": '{"a": {"0": 9223372036854775808}}'}, r"expected an offset, .*, got 9223372036854775808"),
        ({"startingOffsets": '{"a": {"2²": 1}}'}, "option startingOffsets"),
        ({"startingOffsets": '{"a":' * 100_000}, "option startingOffsets"),
        ({"startingOffsetsByTimestamp": '{"a": {"0": Infinity}}'}, "expected milliseconds since the epoch, got inf"),
        ({"startingTimestamp": "9" * 5_000}, "expected milliseconds since the epoch"),
        ({"endingTimestamp": "9223372036854775807"}, "expected milliseconds since the epoch"),
        ({"subscribe": None, "subscribePattern": "a{99999999999999999999}"}, "expected a regular expression"),
        ({"subscribe": None, "subscribePattern": f"a{{{'9' * 5_000}}}"}, "expected a regular expression"),
        ({"kafka.auto.offset.reset": "latest"}, "the connector sets it itself"),
    ],
)
def test_the_options_of_spark_that_make_no_sense(options: dict[str, str | None], text: str) -> None:
    with pytest.raises(InvalidKafkaOption, match=text):
        KafkaSource.from_options({name: value for name, value in {**SPARK, **options}.items() if value is not None})


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("some time ago: me.example.com:9092 timed out", "some time ago: me.example.com:9092 timed out"),
        ('denied: user "me", me@REALM, User:me.', 'denied: user "***", ***@REALM, User:***.'),
        ("key=k3 of k3y", "key=*** of k3y"),
        ("jaas%3Dcorrect-horse%20", "jaas%3D***%20"),
        ("me-and-all-the-others", "***"),
        ("a word of them", "a word of them"),
    ],
)
def test_a_user_name_and_a_short_secret_are_hidden_where_they_stand_as_values(text: str, redacted: str) -> None:
    options = {
        "sasl.username": "me",
        "ssl.key.password": "k3",
        "sasl.password": "correct-horse",
        "sasl.oauthbearer.client.secret": "me-and-all-the-others",
        "ssl.keystore.password": "",
        "client.id": "a",
    }
    settings = KafkaSettings("me.example.com:9092", options, 60.0, read_committed=True)

    assert settings.redact(text) == redacted
    assert pickle.loads(pickle.dumps(settings)).redact(text) == redacted  # noqa: TID251  # our own


def test_a_log_line_of_a_kind_is_not_repeated_at_once(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = LibrdkafkaLog(lambda text: text.replace("secret", "***"), frozenset({"CONFWARN"}), lambda: now[0])

    with caplog.at_level(logging.INFO, "lowmark"):
        for kind, at in (("FAIL", 0.0), ("FAIL", 9.9), ("FAIL", 9.9), ("SSL", 9.9), ("CONFWARN", 9.9), ("FAIL", 10.0)):
            now[0] = at
            log.log(logging.ERROR, "%s [%s] %s", kind, "c-1", "a secret")

    held = " (2 more lines of this kind were left out)"
    assert [record.getMessage() for record in caplog.records] == [
        "FAIL [c-1] a ***", "SSL [c-1] a ***", "FAIL [c-1] a ***" + held,
    ]  # fmt: skip
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
