"""The log of librdkafka, the errors of its callbacks, the errors that waiting may cure, and what a message tells."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import KafkaUnavailable
from .offsets import TopicPartitionId
from .settings import KafkaSettings

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

AnswerT = TypeVar("AnswerT")

_log = logging.getLogger("lowmark")


class LibrdkafkaLog:
    """Passes librdkafka's log to the logger `lowmark`: at most one line of a kind in ten seconds, none to `drop`."""

    QUIET_SECONDS = 10.0

    def __init__(
        self,
        redact: Callable[[str], str] = str,
        drop: frozenset[str] = frozenset(),
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redact, self._drop, self._now_seconds = redact, drop, now_seconds
        self._last: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def dropping(self, kinds: frozenset[str]) -> LibrdkafkaLog:
        """The log of another client, which drops these kinds; both together pass at most one line of a kind."""
        other = copy(self)
        other._drop = kinds  # noqa: SLF001  # of its own class
        return other

    def log(self, level: int, text: str, kind: str, client: str, message: str) -> None:
        """Log one line, as the client calls it with the text "%s [%s] %s"."""
        if kind in self._drop:
            return
        now, last = self._now_seconds(), self._last.get(kind)
        if last is not None and now - last < self.QUIET_SECONDS:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return
        self._last[kind] = now
        left_out = self._left_out.pop(kind, 0)
        more = f" ({left_out} more lines of this kind were left out)" if left_out else ""
        # An absent broker's error in librdkafka's log is a warning for us, because we retry, and raise if that fails.
        _log.log(min(level, logging.WARNING), "%s%s", self._redact(text % (kind, client, message)), more)


_LOST = "mechanism handshake failed: Local: "
"""Librdkafka's text of a connection that was lost before the broker answered; the error has the code of a refusal."""


class ClientErrors:
    """Takes the errors of a client's callbacks, such as an absent broker or a refused login; logs and keeps them.

    Attributes:
        unreachable: whether no connection can be made, by the last error, in contrast to a silent broker.
    """

    def __init__(self, settings: KafkaSettings, log: LibrdkafkaLog) -> None:
        self.log, self._settings = log, settings
        self.said: str | None = None  # the last error
        self._why = ""  # the text of the last error, which `said` has unless another was put there since
        self.refused: str | None = None  # the error of a refused login
        self.unreachable = False

    def __call__(self, error: KafkaError) -> None:
        from confluent_kafka import KafkaError as Codes

        # The error that all brokers are down follows the error that says why.
        if error.code() != Codes._ALL_BROKERS_DOWN or self.said != self._why:  # noqa: SLF001
            self.said = self._why = error.str()
        self.unreachable = error.code() in (Codes._RESOLVE, Codes._TRANSPORT, Codes._ALL_BROKERS_DOWN, Codes._SSL)  # noqa: SLF001
        denied = error.code() in (Codes._AUTHENTICATION, Codes.SASL_AUTHENTICATION_FAILED)  # noqa: SLF001  # its own codes
        if denied and _LOST not in error.str():
            self.refused = error.str()
        self.log.log(logging.WARNING, "%s [%s] %s", error.name(), self._settings.place, error.str())


def created(make: Callable[[], AnswerT], settings: KafkaSettings) -> AnswerT:
    """Make a client. Raises KafkaUnavailable with the name of an invalid property."""
    from confluent_kafka import KafkaException

    try:
        return make()
    except KafkaException as wrong:
        why = str(wrong.args[0].str() if wrong.args else wrong)
        hint = (
            "call oauth_cb on this host and look why it returns no token, because librdkafka drops what it raises."
            if "OAuth token" in why  # the error has no code of its own
            else "check the names and values of the options; they are librdkafka's, not the Java client's."
        )
        # The cause may quote a secret.
        raise KafkaUnavailable(settings.place, "make a client", 0.0, settings.redact(why), hint) from None


def parted(messages: list[Message]) -> tuple[list[Message], list[tuple[Message, KafkaError]]]:
    """Return the records among messages, and the other messages about partitions, each with its error or end.

    A message without a topic is about the coordinator of the consumer group, such as a denied right to the group, and
    no group is joined.
    """
    from confluent_kafka import Message

    if not any(map(Message.error, messages)):  # as almost always, and without a loop over records
        return messages, []
    good = [message for message in messages if message.error() is None]
    return good, [(m, error) for m in messages if (error := m.error()) is not None and m.topic() is not None]


def partition_of(message: Message) -> TopicPartitionId:
    """The topic and partition of a message; partition -1 for an error that is of none."""
    number = message.partition()
    return str(message.topic()), -1 if number is None else number


def offset_of(message: Message) -> int:
    """The offset of a record or of an end."""
    return int(message.offset() or 0)


def may_pass(error: Any) -> bool:
    """Whether waiting may cure an error."""
    from confluent_kafka import KafkaError

    codes = {
        KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE,  # noqa: SLF001
        KafkaError._MSG_TIMED_OUT, KafkaError._WAIT_COORD, KafkaError._SSL, KafkaError._DESTROY,  # noqa: SLF001
        KafkaError.REQUEST_TIMED_OUT, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR,
        KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
        KafkaError.REPLICA_NOT_AVAILABLE, KafkaError.NETWORK_EXCEPTION, KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,  # a disk of the leader is broken, so the partition gets another leader
        KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH,  # a leader has just moved
        KafkaError._NOENT, KafkaError.BROKER_NOT_AVAILABLE,  # noqa: SLF001  # none of the partitions has a leader
        -137,  # _DESTROY_BROKER, a name that older clients lack: the client dropped a broker that it was asking
    }  # fmt: skip
    return error.code() in codes or bool(error.retriable())
