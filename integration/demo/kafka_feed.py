"""The demo's rows on a real Kafka broker: one partition per split, read by Spark's own connector."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lowmark.integration.console import print_error
from lowmark.integration.errors import DemoImpossible, ExtraMissing
from lowmark.sources.generator import StreamScript

from .feed import SteppedFeed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ANSWER_SECONDS = 10.0
_FLUSH_SECONDS = 60.0
# A consumer of Spark's asks where a partition ends before each batch, over the connection on which its fetch waits for
# new rows: half a second by default, which is what a batch would take.
_FETCH_WAIT_MS = 20


class KafkaFeed(SteppedFeed):
    """Creates a topic, fills it batch by batch, and reads it. Use as a context manager around the queries.

    Args:
        bootstrap: a broker, HOST:PORT.
        topic: a name that does not exist yet and is kept; None: a new one, deleted at the end.

    Raises ExtraMissing; DemoImpossible, if the broker does not answer, or refuses the topic.
    """

    split = "partition"

    def __init__(self, script: StreamScript, seed: int, *, bootstrap: str, topic: str | None = None) -> None:
        super().__init__(script, seed)
        self._bootstrap, self._keep = bootstrap, topic is not None
        self._topic = f"lowmark-demo-{uuid.uuid4().hex[:8]}" if topic is None else topic
        try:
            from confluent_kafka import Producer
            from confluent_kafka.admin import AdminClient
        except ImportError as missing:
            raise ExtraMissing("the demo on Kafka", "confluent-kafka", "kafka") from missing
        # log_level 0: librdkafka writes to stderr on its own otherwise.
        settings: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap, "log_level": 0}
        self._admin = AdminClient(settings)
        self._producer = Producer({**settings, "enable.idempotence": True, "linger.ms": 20})

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._keep:
            return
        deleted = self._admin.delete_topics([self._topic], request_timeout=_ANSWER_SECONDS)[self._topic]
        try:
            deleted.result(_ANSWER_SECONDS)
        except Exception:  # noqa: BLE001  # an error of the demo is on its way, or none
            print_error(
                f"the Kafka broker at {self._bootstrap} has not confirmed the deletion of topic {self._topic}; delete "
                "the topic if it is still there"
            )

    def read(self, spark: SparkSession) -> DataFrame:
        options = {
            "kafka.bootstrap.servers": self._bootstrap,
            "subscribe": self._topic,
            "startingOffsets": "earliest",
            "kafka.fetch.max.wait.ms": str(_FETCH_WAIT_MS),
        }
        return self.rows(spark.readStream.format("kafka").options(**options).load(), "value")

    def splits(self) -> Sequence[object] | None:
        return None  # Kafka's offsets name them

    def name(self, value: object) -> str:
        return self.script.splits[int(str(value))].name

    def create(self) -> None:
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import NewTopic

        try:
            self._admin.list_topics(timeout=_ANSWER_SECONDS)
        except KafkaException as silent:
            raise DemoImpossible(
                f"no Kafka broker answers at {self._bootstrap} within {_ANSWER_SECONDS:g} seconds",
                "check host, port and the broker's advertised.listeners.",
            ) from silent
        # Yesterday's event times are no reason to delete anything.
        wanted = NewTopic(self._topic, num_partitions=len(self.script.splits), config={"retention.ms": "-1"})
        try:
            self._admin.create_topics([wanted])[self._topic].result(_ANSWER_SECONDS)
        except KafkaException as refused:
            reason: Any = refused.args[0]
            if reason.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                raise DemoImpossible(
                    f"topic {self._topic} exists already", "the demo fills a topic of its own: choose another name."
                ) from refused
            raise DemoImpossible(
                f"the broker refused topic {self._topic}: {reason.str()}", "the demo creates a topic of 8 partitions."
            ) from refused
        except FutureTimeout as silent:
            raise DemoImpossible(
                f"the Kafka broker at {self._bootstrap} did not say within {_ANSWER_SECONDS:g} seconds whether topic "
                f"{self._topic} is created",
                "look at the broker's log, and delete the topic if it is there.",
            ) from silent

    def write(self, batch: Sequence[Sequence[str]]) -> None:
        refused: list[str] = []

        def delivered(error: object, _message: object) -> None:
            if error is not None:
                refused.append(str(error))

        for partition, rows in enumerate(batch):
            for row in rows:
                self._producer.produce(self._topic, row, partition=partition, on_delivery=delivered)
            self._producer.poll(0)
        left = self._producer.flush(_FLUSH_SECONDS)
        if left or refused:
            why = refused[0] if refused else "no answer"
            raise DemoImpossible(
                f"{left + len(refused)} rows did not reach topic {self._topic}: {why}", "look at the broker's log."
            )
