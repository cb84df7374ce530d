"""No user or password of an address is in a text of a source, its settings, its errors or its status."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from lowmark.sources import MetricGroup
from lowmark.sources.files import FileSource
from lowmark.sources.kafka import KafkaSource
from lowmark.sources.kafka.settings import KafkaSettings
from lowmark.sources.kinesis import KinesisSource, KinesisUnavailable
from lowmark.sources.kinesis.client import KinesisClient
from lowmark.sources.kinesis.connections import KinesisSettings
from lowmark.sources.kit.discovery import DiscoveryFailed
from lowmark.sources.kit.unanswered import Unanswered
from lowmark.sources.pravega import PravegaSource
from lowmark.sources.pravega.settings import PravegaSettings
from lowmark.watermark import LowmarkError
from lowmark.watermark.errors import shown, without_login

KINESIS: dict[str, Any] = {"streams": ["orders"], "region": "eu-west-1"}
KAFKA: dict[str, Any] = {"bootstrap_servers": "me:hunter2@broker:9092", "topics": ["orders"]}
PRAVEGA: dict[str, Any] = {"controller": "tcp://me:hunter2@pravega:9090", "scope": "shop", "streams": ["orders"]}


def hides(text: str, *, keeps: str) -> None:
    assert "hunter2" not in text
    assert "me:" not in text
    assert keeps in text


@pytest.mark.parametrize(
    ("made", "keeps"),
    [
        (lambda: KinesisSource(**KINESIS, endpoint_url="https://me:hunter2@here:443/x"), "https://here:443/x"),
        (lambda: KinesisSettings(endpoint_url="https://me:hunter2@here"), "https://here"),
        (lambda: KafkaSource(**KAFKA), "broker:9092"),
        (lambda: KafkaSettings("me:hunter2@broker:9092", {}, 1.0, read_committed=True), "broker:9092"),
        (lambda: PravegaSource(**PRAVEGA), "tcp://pravega:9090"),
        (lambda: PravegaSettings("tcp://me:hunter2@pravega:9090", "shop"), "tcp://pravega:9090"),
        (lambda: FileSource("s3://me:hunter2@bucket/orders"), "s3://bucket/orders"),
        (lambda: FileSource("hdfs://me:hunter2@node:8020/orders"), "hdfs://node:8020/orders"),
    ],
)
def test_what_a_source_shows_of_itself(made: Callable[[], object], keeps: str) -> None:
    hides(repr(made()), keeps=keeps)
    hides(repr(copy.deepcopy(made())), keeps=keeps)


@pytest.mark.parametrize(
    "refused",
    [
        lambda: KafkaSource.from_options(
            {"kafka.bootstrap.servers": "b:9092", "subscribe": "o", "startingOffsets": "http://me:hunter2@host/o"}
        ),
        lambda: PravegaSource(**{**PRAVEGA, "controller": "me:hunter2@pravega:9090"}),
        lambda: PravegaSource(**{**PRAVEGA, "controller": "tcp://me:hunter2@pravega"}),
        lambda: FileSource("s3://me:hunter2@bucket/orders", format="xml").schema,
        lambda: FileSource("nothing://me:hunter2@bucket/orders").discover(),
        lambda: KinesisSource(**KINESIS, start="https://me:hunter2@here"),
    ],
)
def test_what_an_error_shows_of_an_option(refused: Callable[[], object]) -> None:
    with pytest.raises(LowmarkError) as error:
        refused()
    for text in (str(error.value), repr(error.value), repr(pickle.loads(pickle.dumps(error.value)))):  # noqa: TID251
        assert "hunter2" not in text


def test_what_a_client_says_of_an_address_that_does_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    """The error of AWS's client contains the whole address."""
    settings = KinesisSettings(region="eu-west-1", endpoint_url="http://me:hunter2@127.0.0.1:9", give_up_seconds=30.0)
    now = [0.0]

    def pause(seconds: float) -> bool:
        now[0] += 5.0
        return False

    client = KinesisClient(settings, pause=pause, now_seconds=lambda: now[0])
    with caplog.at_level(logging.DEBUG, logger="lowmark"), pytest.raises(KinesisUnavailable) as silent:
        client.shards("orders")
    hides(str(silent.value), keeps="http://127.0.0.1:9")
    hides(caplog.text, keeps="and tries again for 30 seconds")


def test_what_is_waited_for_and_what_failed(caplog: pytest.LogCaptureFixture) -> None:
    unanswered = Unanswered("Pravega at tcp://me:hunter2@pravega:9090", "segments", MetricGroup())
    unanswered.see(1, 2, "0", "cannot reach http://me:hunter2@node:1")
    hides(str(unanswered.text), keeps="http://node:1")
    hides(caplog.text, keeps="http://node:1")
    error = DiscoveryFailed("FileSource(s3://me:hunter2@b)", "list", 1, "OSError: s3://me:hunter2@b is not there")
    hides(str(error) + repr(error) + repr(error.args), keeps="OSError: s3://b is not there")


@pytest.mark.parametrize(
    ("text", "shows"),
    [
        ("s3://AKIA:a/b/c@bucket/x", "s3://bucket/x"),
        ("s3://AKIA:a@b@bucket/x", "s3://bucket/x"),
        ("'tcp://u:p@h:1,tcp://u:p@i:2'", "'tcp://h:1,tcp://i:2'"),
        ("u:p@h:1,u:p@i:2", "h:1,i:2"),
        # These contain no login: ports, places in a file's name, splits of a recreated topic.
        ("hdfs://node:8020/orders/a:b@c", "hdfs://node:8020/orders/a:b@c"),
        ("split '0:orders/3@qX1'", "split '0:orders/3@qX1'"),
        ("me@example.org wrote 12:30", "me@example.org wrote 12:30"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
    ],
)
def test_logins_and_what_is_none(text: str, shows: str) -> None:
    assert without_login(text) == shows


def test_half_a_password_is_not_shown_either() -> None:
    assert "hunter2" not in shown("s3://me:hunter2" + "x" * 200 + "@bucket/orders")
