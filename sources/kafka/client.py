"""The driver's questions to the brokers: the partitions, their begins and ends, and the offsets of times.

Every question goes to all partitions at once. If a broker is away, the question is repeated with growing pauses, until
the allowed time is over. A client must not be used after a fork: clients are made on first use.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FuturesTimeout
from typing import TYPE_CHECKING, Any, TypeVar

from lowmark.sources.kit.patience import Patience
from lowmark.watermark.moment import first_ms_from

from .errors import KafkaTopicMissing, KafkaUnavailable
from .librdkafka import ClientErrors, LibrdkafkaLog, created, may_pass
from .offsets import KafkaOffsets, TopicPartitionId
from .settings import KafkaSettings
from .topics import Topic, matches

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

AnswerT = TypeVar("AnswerT")
Ask = Callable[[Collection[Any], float], Mapping[Any, Future[AnswerT]]]
"""Sends a question about some keys, given the seconds for a request, and returns the future answers by key."""
Positions = tuple[dict[TopicPartitionId, int | None], dict[TopicPartitionId, Exception]]
"""Offsets, None if no record has that timestamp or a later one, or if the partition does not exist; and the errors of
partitions that did not answer in time."""

REQUEST_SECONDS = 3.0
"""How long one request may take before a new client sends it again. A request waits for a broker that died, while its
partitions have new leaders within seconds. The time grows up to `LONGEST_REQUEST_SECONDS` while brokers are slow."""
LONGEST_REQUEST_SECONDS = 10.0
GREETING_SECONDS = 2.0
"""How long a new client may take to hear of the cluster, after an earlier client has failed. Without this, a question
asked while no broker can be reached would wait until its time is over, even if a broker comes back. The time doubles,
up to `LONGEST_REQUEST_SECONDS`, because brokers that are slow or far away take several answers to be reached."""
FIRST_ANSWER_SECONDS = 5.0
"""An address that refuses or cannot be found for this long, and never answered, is wrong."""


Described = tuple[dict[str, Topic], dict[str, Exception]]
"""The existing topics by name, and the errors of names without an answer in time."""


class KafkaClient:
    """Asks the brokers. A second thread may ask meanwhile, as an enumerator does that looks for partitions again.

    Args:
        reached: whether the brokers were reached before, perhaps by an earlier process. Otherwise an address that
            refuses or cannot be found is an error within ten seconds, because waiting does not mend a wrong address.
        patience_seconds: how long a question may take; None: the settings' time.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        reached: bool = True,
        patience_seconds: float | None = None,
        log: LibrdkafkaLog | None = None,
        now_seconds: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings, self._now_seconds, self.pause = settings, now_seconds, wait
        self._reached, self._greet = reached, False
        self._request_limit_seconds, self._greeting_limit_seconds = REQUEST_SECONDS, GREETING_SECONDS
        self._patience_seconds = settings.give_up_seconds if patience_seconds is None else patience_seconds
        self._admin: AdminClient | None = None
        # The options are for consumers; an admin client warns of options without meaning for it.
        log = LibrdkafkaLog(settings.redact) if log is None else log
        self._errors = ClientErrors(settings, log.dropping(frozenset({"CONFWARN"})))

    # -- questions

    def topics(self, names: Sequence[str], action: str = "describe topics") -> dict[str, Topic]:
        """Return the existing topics among these names."""
        return self.describe(names, action)()[0]

    def describe(
        self, names: Sequence[str], action: str = "describe topics", *, patience_seconds: float | None = None
    ) -> Callable[[], Described]:
        """Send the question of `topics`, and return a function that waits for the answer; meanwhile ask others.

        `patience_seconds` is as in `positions`.
        """
        from confluent_kafka import KafkaError, TopicCollection

        if not names:
            return lambda: ({}, {})

        sent: list[dict[str, Future[Any]]] = []

        def ask(left: Collection[str], seconds: float) -> dict[str, Future[Any]]:
            if sent:
                return sent.pop()
            return dict(self._connected().describe_topics(TopicCollection(list(left)), request_timeout=seconds))

        if not self._greet:  # a new client greets first
            sent.append(ask(names, self._request_seconds(self._patience_seconds)))

        def answer() -> Described:
            absent = {KafkaError.UNKNOWN_TOPIC_OR_PART}
            found, failed = self._ask_each(action, names, ask, absent=absent, patience_seconds=patience_seconds)
            return {name: Topic.of(name, each) for name, each in found.items() if each is not None}, failed

        return answer

    def topics_like(self, pattern: str) -> dict[str, Topic]:
        """Return the topics whose whole name matches; internal topics (`__...`) only if the pattern begins so too."""
        from confluent_kafka import KafkaException

        action = f"list the topics that match {pattern!r}"

        def ask(_: object, seconds: float) -> dict[str, Future[Any]]:
            answer: Future[Any] = Future()
            try:
                answer.set_result(self._connected().list_topics(timeout=seconds))
            except KafkaException as failed:
                answer.set_exception(failed)
            return {pattern: answer}

        answers, _ = self._ask_each(action, [pattern], ask)
        listed: Any = answers[pattern]
        return self.topics([name for name in sorted(listed.topics) if matches(pattern, name)], action)

    def positions(
        self,
        wanted: Sequence[Mapping[TopicPartitionId, KafkaOffsets]],
        action: str,
        *,
        patience_seconds: float | None = None,
        stable: bool = True,
    ) -> list[Positions]:
        """Look up "earliest", "latest" and timestamps, with the requests of all questions under way together.

        Args:
            wanted: the questions. The partitions of a question are asked about in one request.
            patience_seconds: how long partitions without an answer are asked again; the answer then leaves them out.
                None: for the whole allowed time.
            stable: whether "latest" is the last stable offset if only committed records are read.
        """
        from confluent_kafka import IsolationLevel, KafkaError, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        committed = self._settings.read_committed and stable
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        keys = [(which, partition) for which, asked in enumerate(wanted) for partition in asked]

        def spec(position: KafkaOffsets) -> Any:
            if position.kind == "timestamp" and position.time_us is not None:
                # A negative number would mean "earliest" or "latest" to a broker; no record has one.
                return OffsetSpec.for_timestamp(first_ms_from(position.time_us))
            return OffsetSpec.earliest() if position.kind == "earliest" else OffsetSpec.latest()

        def ask(left: Collection[Any], seconds: float) -> dict[tuple[int, TopicPartitionId], Future[Any]]:
            asked: dict[tuple[int, TopicPartitionId], Future[Any]] = {}
            for which, positions in enumerate(wanted):
                request = {TopicPartition(*key): spec(positions[key]) for key in positions if (which, key) in left}
                if request:
                    answers = self._connected().list_offsets(request, isolation_level=level, request_timeout=seconds)
                    asked |= {(which, (each.topic, each.partition)): future for each, future in answers.items()}
            return asked

        absent = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC}  # noqa: SLF001  # librdkafka's own codes
        answers, failed = self._ask_each(action, keys, ask, absent=absent, patience_seconds=patience_seconds)
        results: list[Positions] = [({}, {}) for _ in wanted]
        for (which, partition), found in answers.items():
            results[which][0][partition] = None if found is None or found.offset < 0 else int(found.offset)
        for (which, partition), error in failed.items():
            results[which][1][partition] = error
        return results

    def committed(self, partitions: Iterable[TopicPartitionId]) -> dict[TopicPartitionId, int | None]:
        """Return the offsets committed by the settings' consumer group; None: it committed none."""
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

        group = self._settings.group_id
        assert group is not None, "KafkaSource asks for committed offsets with a group.id only"
        asked, action = sorted(partitions), f"look up the committed offsets of group {group!r}"

        def ask(_: object, seconds: float) -> dict[str, Future[Any]]:
            request = ConsumerGroupTopicPartitions(group, [TopicPartition(*each) for each in asked])
            return dict(self._connected().list_consumer_group_offsets([request], request_timeout=seconds))

        answers, _ = self._ask_each(action, [group], ask)
        answer: Any = answers[group]
        found = {(each.topic, each.partition): each for each in answer.topic_partitions}
        for each in found.values():
            if each.error is not None:
                raise self.unavailable(action, each.error, 0.0)
        return {each: found[each].offset if each in found and found[each].offset >= 0 else None for each in asked}

    def resolve(
        self, partitions: Sequence[TopicPartitionId], position: KafkaOffsets, otherwise: KafkaOffsets, action: str
    ) -> dict[TopicPartitionId, int]:
        """Turn a user's position into an offset for every partition. Raises KafkaTopicMissing, KafkaUnavailable."""
        given: Mapping[TopicPartitionId, int | KafkaOffsets | None]
        if position.kind == "committed":
            given = self.committed(partitions)
        elif position.kind == "offsets":
            of_partitions = dict(position.by_partition)
            given = {partition: of_partitions.get(partition) for partition in partitions}
        else:
            given = dict.fromkeys(partitions, position)
        fallback = position.otherwise if position.otherwise is not None else otherwise
        found = {partition: at for partition, at in given.items() if isinstance(at, int)}
        ask = {partition: fallback if at is None else at for partition, at in given.items() if not isinstance(at, int)}
        simple = {each: spec for each, spec in ask.items() if spec.kind in ("earliest", "latest", "timestamp")}
        timed = {each: KafkaOffsets.latest() for each, spec in simple.items() if spec.kind == "timestamp"}
        [(ends, _)] = self.positions([timed], action)  # first, because a record that comes meanwhile may have the time
        [(answers, _)] = self.positions([simple], action)
        for offsets in (ends, answers):
            found |= {partition: offset for partition, offset in offsets.items() if offset is not None}
        # The remaining partitions have a fallback that has to be looked up.
        again: dict[KafkaOffsets, list[TopicPartitionId]] = {}
        for partition, spec in ask.items():
            if partition not in simple:
                again.setdefault(spec, []).append(partition)
            elif partition not in found:
                raise KafkaTopicMissing((f"{partition[0]}/{partition[1]}",), self._settings.place)
        for spec, those in again.items():
            found |= self.resolve(those, spec, otherwise, action)
        return found

    def unavailable(self, action: str, failed: object, seconds: float) -> KafkaUnavailable:
        """Return the error of a question that failed for so long."""
        hint = (
            "check user, password and certificates, the rights of the user, and the names of the topics."
            if self._refused(failed)
            else "check that the brokers run and can be reached from here, also by the addresses they advertise, "
            "and that security.protocol and the certificates are right for their port."
        )
        return KafkaUnavailable(self._settings.place, action, seconds, self.cause(failed), hint)

    def cause(self, failed: object) -> str:
        """Say without secrets why a question failed, and how librdkafka's log puts it."""
        said = self._errors.refused if self._errors.refused is not None else self._errors.said
        error = _kafka_error(failed)
        text = str(error.str() if hasattr(error, "str") else error) or type(error).__name__
        return self._settings.redact(text + (f"; librdkafka said: {said}" if said else ""))

    def close(self) -> None:
        self._admin = None  # librdkafka ends with the last reference

    # -- asking again

    def _ask_each(
        self,
        action: str,
        keys: Collection[Any],
        ask: Ask[AnswerT],
        *,
        absent: Collection[int] = (),
        patience_seconds: float | None = None,
    ) -> tuple[dict[Any, AnswerT | None], dict[Any, Exception]]:
        """Ask until every key has an answer; the answer None means that the key does not exist.

        `ask` is called for the keys that have no answer yet. The second mapping has the errors of the keys without an
        answer after `patience_seconds`; None: the mapping is empty.
        """
        answers: dict[Any, AnswerT | None] = {}
        left = set(keys)
        if not left:
            return answers, {}
        system, now_seconds = f"Kafka at {self._settings.place}", self._now_seconds
        patience = Patience(system, action, self._patience_seconds, now_seconds=now_seconds, pause=self.pause)
        while True:
            greeted, unreached = self._greet, self._greeting()
            if unreached is None:
                seconds = self._request_seconds(patience.left_seconds)
                found, failed = self._wait_for(ask, left, seconds, absent, greeted=greeted)
                answers |= found
                left.difference_update(found)
            else:
                failed = dict.fromkeys(left, unreached)
            if not failed:
                self._errors.said = self._errors.refused = None  # they would be the cause of a later failure
                return answers, failed
            self.renew()
            error, spent_seconds = next(iter(failed.values())), patience.spent_seconds
            leaves_out = patience_seconds is not None and spent_seconds >= patience_seconds
            hopeless = self._hopeless(error, spent_seconds)
            if leaves_out and (answers or not hopeless):
                return answers, failed
            if hopeless or not patience.goes_on(self.cause(error)):
                raise self.unavailable(action + _example(keys, failed), error, spent_seconds) from error

    def _wait_for(
        self, ask: Ask[AnswerT], left: Collection[Any], seconds: float, absent: Collection[int], *, greeted: bool
    ) -> tuple[dict[Any, AnswerT | None], dict[Any, Exception]]:
        from confluent_kafka import KafkaException

        answers, failed, began_seconds = dict[Any, AnswerT | None](), dict[Any, Exception](), self._now_seconds()
        for key, future in ask(left, seconds).items():
            try:
                answers[key] = _with_lost_error(future.result(seconds + 1.0))
            except KafkaException as error:
                if error.args[0].code() in absent:
                    answers[key] = None
                else:
                    failed[key] = error
            except FuturesTimeout as error:
                failed[key] = error
        self._poll()
        self._reached = self._reached or bool(answers)
        limit_seconds, took_seconds = self._request_limit_seconds, self._now_seconds() - began_seconds
        if took_seconds < seconds:  # the limit falls slowly, because other questions may take longer than this one
            limit_seconds = max(2 * took_seconds, 0.9 * limit_seconds)
        elif failed and greeted:  # a broker answered just before, so the brokers are slow and not away
            limit_seconds *= 2
        self._request_limit_seconds = min(LONGEST_REQUEST_SECONDS, max(REQUEST_SECONDS, limit_seconds))
        return answers, failed

    def renew(self) -> None:
        """Ask through a new client from now on.

        The old client remembers the leaders of partitions, their epochs and the controller, and goes on asking these
        brokers for minutes after they were replaced. A new client asks any broker that answers.
        """
        self.close()
        self._greet = True

    def _greeting(self) -> Exception | None:
        """After a client has failed, ask the new client any question; return why there is no answer."""
        from confluent_kafka import KafkaException

        if not self._greet:
            return None
        seconds, began_seconds = self._greeting_limit_seconds, self._now_seconds()
        try:
            self._connected().describe_cluster(request_timeout=seconds).result(seconds + 1.0)
        except (KafkaException, FuturesTimeout) as failed:
            self._poll()
            self._greeting_limit_seconds = min(LONGEST_REQUEST_SECONDS, 2 * seconds)
            return failed
        self._greeting_limit_seconds = max(GREETING_SECONDS, 2 * (self._now_seconds() - began_seconds))
        self._greet, self._reached = False, True
        return None

    def _request_seconds(self, left_seconds: float) -> float:
        # A greeting takes four answers or more, so a part of its time is enough for one.
        least_seconds = self._greeting_limit_seconds / 4
        return min(self._request_limit_seconds if self._reached else REQUEST_SECONDS, max(least_seconds, left_seconds))

    def _hopeless(self, failed: Exception, spent_seconds: float) -> bool:
        """Whether asking again cannot help: the login was refused, the error stays, or the address is wrong."""
        wrong_address = not self._reached and self._errors.unreachable and spent_seconds >= FIRST_ANSWER_SECONDS
        return wrong_address or self._refused(failed)

    def _refused(self, failed: object) -> bool:
        error = _kafka_error(failed)
        return self._errors.refused is not None or (hasattr(error, "code") and not may_pass(error))

    def _connected(self) -> AdminClient:
        admin = self._admin
        if admin is None:
            from confluent_kafka.admin import AdminClient

            properties = self._settings.properties({"error_cb": self._errors})
            admin = self._admin = created(lambda: AdminClient(properties, logger=self._errors.log), self._settings)
        admin.poll(0)  # confluent-kafka before 2.13 calls the user's `oauth_cb` for a login in `poll` only
        return admin

    def _poll(self) -> None:
        if (admin := self._admin) is not None:
            admin.poll(0)  # delivers errors and log lines by callbacks


def _example(keys: Collection[Any], failed: Collection[Any]) -> str:
    """Name a topic or partition without an answer, if several were asked about and some of them answered."""
    asked, silent = ({key[1] if isinstance(key, tuple) else (key,) for key in each} for each in (keys, failed))
    return f", such as {'/'.join(map(str, min(silent)))}" if len(silent) < len(asked) else ""


def _with_lost_error(answer: AnswerT) -> AnswerT:
    """Raise the error of an offset that librdkafka leaves invalid, because no broker sends such an offset.

    If a request to a leader fails, `rd_kafka_ListOffsets_response_merge` of librdkafka (2.16) drops the error.
    """
    from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException

    if getattr(answer, "offset", None) == OFFSET_INVALID:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "the leader of the partition gave no answer"))  # noqa: SLF001
    return answer


def _kafka_error(failed: Any) -> Any:
    """Return the KafkaError in an exception of confluent_kafka; else what was given."""
    first = failed.args[0] if isinstance(failed, Exception) and failed.args else None
    return first if hasattr(first, "code") else failed
