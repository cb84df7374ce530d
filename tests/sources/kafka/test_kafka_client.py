"""Requests to the brokers and their retries, with a scripted client and clock."""

from __future__ import annotations

import socketserver
import struct
import threading
from concurrent.futures import Future
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException
from lowmark.sources.kafka import KafkaUnavailable
from lowmark.sources.kafka.client import KafkaClient
from lowmark.sources.kafka.librdkafka import ClientErrors, LibrdkafkaLog
from lowmark.sources.kafka.offsets import KafkaOffsets
from lowmark.sources.kafka.settings import KafkaSettings
from lowmark.sources.kafka.topics import Topic

from tests.servers.local import wait_until


class Answers:
    """An admin client that answers after `failures` failures, and is unreachable `unreached` times after a failure."""

    def __init__(self, failures: int, code: int, unreached: int = 0) -> None:
        self.failures, self.code, self.asked, self.polled = failures, code, 0, 0
        self.greeted, self.unreached = 0, unreached
        self.limits_seconds = list[float]()

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Any]:
        self.asked += 1
        self.limits_seconds.append(request_timeout)
        answer: Future[Any] = Future()
        if self.asked <= self.failures:
            answer.set_exception(KafkaException(KafkaError(self.code)))
        else:
            answer.set_result(
                SimpleNamespace(topic_id="id-1", partitions=[SimpleNamespace(id=1), SimpleNamespace(id=0)])
            )
        return {"orders": answer}

    def describe_cluster(self, request_timeout: float) -> Any:
        self.greeted += 1
        answer: Future[None] = Future()
        if self.greeted <= self.unreached:
            answer.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
        else:
            answer.set_result(None)
        return answer

    def poll(self, timeout: float) -> None:
        self.polled += 1


class Asking(KafkaClient):
    """Asks scripted clients by its own clock; counts the created clients."""

    def __init__(self, admin: Answers, seconds: float = 60.0, **more: Any) -> None:
        self.now, self.made, self.pauses = 0.0, 0, list[float]()
        settings = KafkaSettings("b:1", {}, seconds, read_committed=True)
        super().__init__(settings, now_seconds=lambda: self.now, wait=self._pause, **more)
        self.admin = admin

    def _connected(self) -> Any:
        if self._admin is None:
            self.made += 1
            self._admin = self.admin  # type: ignore[assignment]
        return self._admin

    def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError._NOENT,
        KafkaError._DESTROY_BROKER,
        KafkaError.KAFKA_STORAGE_ERROR,
    ],
)
def test_a_broker_that_is_away_is_asked_again_after_growing_pauses_each_time_by_a_new_client(code: int) -> None:
    """An old client asks its known controller or leader for minutes, even if that broker is dead."""
    client = Asking(admin := Answers(7, code))

    assert client.topics(["orders"]) == {"orders": Topic("orders", "id-1", (0, 1))}
    assert client.pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0])
    assert (admin.polled, client.made) == (8, 8)


def test_a_request_waits_seconds_for_a_broker_that_died_and_longer_for_brokers_that_are_slow() -> None:
    class Slow(Answers):
        takes_seconds = 5.0

        def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Any]:
            self.failures = self.asked + (self.takes_seconds > request_timeout)
            answer = super().describe_topics(topics, request_timeout)["orders"]

            def result(_seconds: float) -> Any:
                client.now += min(self.takes_seconds, request_timeout)
                return answer.result(0)

            return {"orders": SimpleNamespace(result=result)}

    client = Asking(admin := Slow(0, KafkaError._TIMED_OUT))
    client.topics(["orders"])
    client.topics(["orders"])
    admin.takes_seconds = 100.0
    with pytest.raises(KafkaUnavailable):
        client.topics(["orders"])
    admin.takes_seconds = 0.0
    for _ in range(20):
        client.topics(["orders"])

    assert admin.limits_seconds[:4] == pytest.approx([3.0, 3.0, 6.0, 10.0]), "the first may have met a broker that died"
    assert max(admin.limits_seconds) == 10.0, "however long it was in vain"
    assert admin.limits_seconds[-1] == 3.0, "after quick answers"


@pytest.mark.parametrize("seconds", [2.0, 60.0])
def test_brokers_that_are_far_away_are_reached(seconds: float) -> None:
    """The first answer over a new connection takes four times as long as a later one."""

    class Far(Answers):
        known_client = 0

        def taking(self, takes_seconds: float, limit_seconds: float, answered: Any) -> Any:
            def result(_seconds: float) -> Any:
                client.now += min(takes_seconds, limit_seconds)
                if takes_seconds > limit_seconds:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
                return answered

            return SimpleNamespace(result=result)

        def describe_cluster(self, request_timeout: float) -> Any:
            if request_timeout > 4.8:
                self.known_client = client.made
            return self.taking(4.8, request_timeout, None)

        def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Any]:
            answered = super().describe_topics(topics, request_timeout)["orders"].result(0)
            takes_seconds = 1.2 if self.known_client == client.made else 4.8
            return {"orders": self.taking(takes_seconds, request_timeout, answered)}

    client = Asking(Far(0, KafkaError._TIMED_OUT), seconds=seconds)

    def ask() -> list[str]:
        with suppress(KafkaUnavailable):
            return list(client.topics(["orders"]))
        return []

    assert ["orders"] in [ask() for _ in range(5)]
    client.renew()
    assert ask() == ["orders"], "the next new client is given as much time"


def test_topics_are_listed_again_by_a_new_client_until_a_broker_answers() -> None:
    class Lists(Answers):
        def list_topics(self, timeout: float) -> Any:
            self.asked += 1
            if self.asked <= self.failures:
                raise KafkaException(KafkaError(self.code))
            return SimpleNamespace(topics=dict.fromkeys(("orders", "orders-2", "others", "__orders")))

    client = Asking(Lists(3, KafkaError._TRANSPORT, unreached=1))

    assert client.topics_like("orders") == {"orders": Topic("orders", "id-1", (0, 1))}
    assert client.pauses == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert client.made == 5
    with pytest.raises(KafkaUnavailable, match=r"cannot list the topics that match 'ord\.\*', .*check user, password"):
        Asking(Lists(1, KafkaError.CLUSTER_AUTHORIZATION_FAILED)).topics_like("ord.*")


def test_after_a_failure_nothing_is_asked_of_a_client_that_reaches_nobody() -> None:
    client = Asking(admin := Answers(1, KafkaError._TIMED_OUT, unreached=3))

    client.topics(["orders"])
    client.topics(["orders"])

    assert (admin.asked, admin.greeted, client.made) == (3, 4, 5)


@pytest.mark.parametrize("code", [KafkaError._RESOLVE, KafkaError._TRANSPORT])
def test_an_address_that_never_answered_is_an_error_within_ten_seconds(code: int) -> None:
    client = Asking(Answers(10_000, code, unreached=10_000), reached=False)
    known = Asking(Answers(10_000, code, unreached=10_000))
    for each in (client, known):
        each._errors(KafkaError(code))
        # Brokers also hang up on a client without their protocol or certificate.
        with pytest.raises(KafkaUnavailable, match=r"check that the brokers run.*, and that security\.protocol"):
            each.topics(["orders"])

    assert client.now <= 10
    assert known.now == pytest.approx(60)


def test_the_cause_of_lost_brokers_is_told_and_not_only_that_they_are_lost() -> None:
    client = Asking(Answers(10_000, KafkaError._TIMED_OUT), seconds=5.0)
    client._errors(KafkaError(KafkaError._BAD_MSG, "increase receive.message.max.bytes"))
    client._errors(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))

    with pytest.raises(KafkaUnavailable, match=r"librdkafka said: increase receive.message.max.bytes\."):
        client.topics(["orders"])
    client._errors.said = "the readable records end at offset 3"
    client._errors(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    assert client._errors.said == "1/1 brokers are down"


def test_an_address_that_answered_once_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    client = Asking(admin := Answers(0, KafkaError._TRANSPORT), reached=False)
    client.topics(["orders"])
    admin.failures = 40
    client._errors(KafkaError(KafkaError._TRANSPORT))

    assert client.topics(["orders"]) != {}
    assert client.now > 30
    assert caplog.text.count("cannot describe topics for 6 seconds by now, and tries again for 60 seconds in all") == 1


def test_an_offset_that_no_broker_sent_is_no_answer() -> None:
    """librdkafka gives an invalid offset, and no error, if a request to the leader of a partition fails."""

    class Offsets(Answers):
        def __init__(self, *offsets: int) -> None:
            super().__init__(0, 0)
            self.offsets = list(offsets)

        def list_offsets(self, wanted: Any, *, isolation_level: Any, request_timeout: float) -> Any:
            answers = {partition: Future[Any]() for partition in wanted}
            for answer in answers.values():
                answer.set_result(SimpleNamespace(offset=self.offsets.pop(0)))
            return answers

    client = Asking(admin := Offsets(OFFSET_INVALID, OFFSET_INVALID, -1, 7))
    partition, by_time = ("orders", 0), KafkaOffsets.timestamp(5)

    assert client.positions([{partition: by_time}], "find a time") == [({partition: None}, {})]
    assert client.made == 3
    assert client.pauses == pytest.approx([0.1, 0.2])
    assert client.positions([{partition: by_time}], "find a time") == [({partition: 7}, {})]
    admin.offsets = [OFFSET_INVALID] * 99
    [(found, failed)] = client.positions([{partition: by_time}], "find a time", patience_seconds=2.0)
    assert (found, list(failed)) == ({}, [partition])
    assert "the leader of the partition gave no answer" in str(failed[partition])


def test_a_topic_that_is_refused_is_named_among_those_that_are_not() -> None:
    class OneIsRefused(Answers):
        def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Any]:
            refused: Future[Any] = Future()
            refused.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
            return super().describe_topics(topics, request_timeout) | {"returns": refused}

    with pytest.raises(KafkaUnavailable, match="cannot describe topics, such as returns, tried for 0 s"):
        Asking(OneIsRefused(0, 0)).topics(["orders", "returns"])


def test_a_first_look_up_that_fails_names_a_partition_without_an_answer() -> None:
    class OneIsSilent(Answers):
        def list_offsets(self, wanted: Any, *, isolation_level: Any, request_timeout: float) -> Any:
            answers = {partition: Future[Any]() for partition in wanted}
            for partition, answer in answers.items():
                answer.set_result(SimpleNamespace(offset=OFFSET_INVALID if partition.partition == 3 else 7))
            return answers

    client, earliest = Asking(OneIsSilent(0, 0), seconds=5.0), KafkaOffsets.earliest()
    with pytest.raises(
        KafkaUnavailable, match="cannot look up where partitions begin, such as orders/3, tried for 5 s"
    ):
        client.resolve([("orders", 0), ("orders", 3)], earliest, earliest, "look up where partitions begin")


def test_asking_ends_with_the_time_that_is_allowed() -> None:
    client = Asking(Answers(10_000, KafkaError._TRANSPORT), seconds=5.0)

    with pytest.raises(
        KafkaUnavailable, match=r"Kafka at b:1: cannot describe topics, tried for 5 s: .*check that the brokers run"
    ):
        client.topics(["orders"])
    assert client.now == pytest.approx(5.0)


def test_a_refusal_is_not_asked_again_and_a_missing_topic_is_no_error() -> None:
    refused = Asking(Answers(1, KafkaError.TOPIC_AUTHORIZATION_FAILED))
    missing = Asking(Answers(1, KafkaError.UNKNOWN_TOPIC_OR_PART))

    with pytest.raises(KafkaUnavailable, match=r"check user, password .*, and the names of the topics\."):
        refused.topics(["orders"])
    assert refused.pauses == []
    assert missing.topics(["orders"]) == {}


def test_a_login_by_callback_has_its_token_before_each_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before version 2.13, confluent-kafka calls `oauth_cb` in `poll` only, for the first token and each renewal."""
    made: list[LogsInByPoll] = []

    def make(properties: object, logger: object) -> LogsInByPoll:
        made.append(LogsInByPoll())
        return made[-1]

    monkeypatch.setattr("confluent_kafka.admin.AdminClient", make)
    client = KafkaClient(KafkaSettings("b:1", {}, 5.0, read_committed=True), wait=lambda _: None)
    for _ in range(2):
        assert list(client.topics(["orders"])) == ["orders"]
        made[-1].token = False

    assert len(made) == 1


def test_two_threads_may_ask_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The enumerator looks for partitions while another thread waits for the offsets of new ones, and renews."""

    class Renewed(Answers):
        def poll(self, timeout: float) -> None:
            super().poll(timeout)
            client.renew()  # the other thread makes a new client meanwhile

    monkeypatch.setattr("confluent_kafka.admin.AdminClient", lambda *_, **__: Renewed(0, KafkaError._TIMED_OUT))
    client = KafkaClient(KafkaSettings("b:1", {}, 5.0, read_committed=True), wait=lambda _: None)

    assert list(client.topics(["orders"])) == ["orders"]


class LogsInByPoll(Answers):
    """An admin client that gets its token in `poll`, and answers nobody without a token."""

    def __init__(self) -> None:
        super().__init__(failures=0, code=KafkaError._TIMED_OUT)
        self.token = False

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Any]:
        self.failures = 0 if self.token else self.asked + 1
        return super().describe_topics(topics, request_timeout)

    def poll(self, timeout: float) -> None:
        self.token = True


def test_a_login_that_was_refused_once_and_then_taken_leaves_no_trace() -> None:
    """As while the brokers' directory of users is restarted."""
    client = Asking(admin := Answers(1, KafkaError._TRANSPORT))
    client._errors(KafkaError(KafkaError._AUTHENTICATION, "the directory of users is away"))
    with pytest.raises(KafkaUnavailable, match="the directory of users is away"):
        client.topics(["orders"])
    client.topics(["orders"])
    admin.failures = admin.asked + 3

    assert client.topics(["orders"]) != {}, "a broker that is away later is asked again"
    admin.failures, admin.code = admin.asked + 1, KafkaError.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(KafkaUnavailable) as failed:
        client.topics(["orders"])
    assert "directory of users" not in str(failed.value)


class HangsUp(socketserver.BaseRequestHandler):
    """A broker that tells its versions (request 18), and closes the connection at SASL's handshake (request 17)."""

    def handle(self) -> None:
        while len(size := self.request.recv(4)) == 4:
            asked = self.request.recv(int.from_bytes(size, "big"))
            request, version, number = struct.unpack(">hhi", asked[:8])
            if request != 18:
                return
            requests = ((17, 0, 1), (18, 0, 0), (36, 0, 0), (3, 0, 4))  # each with its first and last version
            told = struct.pack(">ihi", number, 35 if version else 0, len(requests))  # 35: another version, please
            told += b"".join(struct.pack(">hhh", *each) for each in requests)
            self.request.sendall(struct.pack(">i", len(told)) + told)


def test_a_connection_that_is_lost_while_one_logs_in_is_no_refused_login() -> None:
    """Librdkafka gives the error the code of a refusal."""
    options = {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "reader",
        "sasl.password": "hunter-2", "group.id": "lowmark",
    }  # fmt: skip
    told: list[KafkaError] = []
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), HangsUp) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        settings = KafkaSettings(f"127.0.0.1:{server.server_address[1]}", options, 6.0, read_committed=True)
        errors = ClientErrors(settings, LibrdkafkaLog(settings.redact))

        def hear(error: KafkaError) -> None:
            told.append(error)
            errors(error)

        def denied() -> bool:
            consumer.poll(0.1)
            return any(error.code() == KafkaError._AUTHENTICATION for error in told)

        consumer = Consumer(settings.properties({"error_cb": hear}), logger=errors.log)
        wait_until(denied, "the error of the handshake")
        consumer.close()
        server.shutdown()
        thread.join()

    assert errors.refused is None, errors.refused
    errors(KafkaError(KafkaError._AUTHENTICATION, "SASL PLAIN mechanism handshake failed: Broker: Unsupported"))
    assert errors.refused is not None
