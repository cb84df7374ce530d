"""Spark's option names for a Kafka stream: `format("kafka")` becomes `format("lowmark_kafka")`, and no more changes.

| option | meaning |
|---|---|
| kafka.bootstrap.servers | `bootstrap_servers` |
| subscribe, subscribePattern, assign | `topics`, `topic_pattern` (Python's syntax), `partitions`; exactly one |
| startingOffsets, startingTimestamp, startingOffsetsByTimestamp | `start`; "latest" if none is given, as in Spark |
| endingOffsets, endingTimestamp, endingOffsetsByTimestamp | `stop` |
| failOnDataLoss | `on_data_loss`: true is "error" |
| includeHeaders | whether there is a column `headers` |
| kafka.isolation.level | `isolation`; "read_committed" if not given, where Spark reads what is not committed |
| kafka.group.id, kafka.* | `consumer_options`; librdkafka's properties, not the Java client's |
| discoverEvery, giveUpAfter, columns, keyType, valueType | as the arguments of `KafkaSource`; ours |
| transactional | true or false; as the argument of `KafkaSource`, looked at if not given; ours |

Spark's names for things that do not exist here are taken and have no effect: see `WITHOUT_EFFECT`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from lowmark.sources.kit.spark_options import SparkOptions
from lowmark.watermark.errors import shown

from .columns import DEFAULT_COLUMNS, LATEST_MS
from .errors import InvalidKafkaOption
from .offsets import KafkaOffsets, TopicPartitionId

WITHOUT_EFFECT = frozenset(
    {
        "groupidprefix", "kafkaconsumer.polltimeoutms", "fetchoffset.numretries", "fetchoffset.retryintervalms",
        "minpartitions", "maxrecordsperpartition", "startingoffsetsbytimestampstrategy",
    }
)  # fmt: skip
"""Lower-case names of Spark's options that tune what Spark's connector does and this one does another way."""

TEXTS = {
    "discoverEvery": "discover_every",
    "giveUpAfter": "give_up_after",
    "keyType": "key_type",
    "valueType": "value_type",
}
KNOWN = (
    "subscribe", "subscribePattern", "assign", "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp",
    "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "failOnDataLoss", "includeHeaders",
    "columns", "transactional", *TEXTS,
)  # fmt: skip
_EARLIEST, _LATEST = -2, -1
_NUMBER = re.compile(r"\s*[+-]?[0-9]{1,19}\s*", re.ASCII)


def arguments(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of `KafkaSource`. Raises InvalidKafkaOption.

    >>> arguments({"kafka.bootstrap.servers": "b:9092", "subscribe": "orders", "failOnDataLoss": "false"})["topics"]
    ['orders']
    """
    lower = {name.lower(): value for name, value in given.items() if name.lower() not in WITHOUT_EFFECT}
    consumer = {name.removeprefix("kafka."): lower.pop(name) for name in list(lower) if name.startswith("kafka.")}
    hint = "librdkafka's own properties begin with kafka."
    options = SparkOptions(lower, KNOWN, InvalidKafkaOption, "an option of Spark's Kafka source", hint)
    brokers = consumer.pop("bootstrap.servers", None)
    if brokers is None:
        raise InvalidKafkaOption("kafka.bootstrap.servers", "nothing", '"host:port"', "name the brokers.")
    columns, assigned = options.names("columns"), options.text("assign")
    return {
        "bootstrap_servers": brokers,
        "topics": options.names("subscribe"),
        "topic_pattern": options.text("subscribePattern"),
        "partitions": None if assigned is None else _assigned(assigned),
        "start": _position(options, "starting") or KafkaOffsets.latest(),
        "stop": _position(options, "ending"),
        "on_data_loss": "go_on" if options.flag("failOnDataLoss") is False else "error",
        "isolation": consumer.pop("isolation.level", "read_committed"),
        "columns": (
            *(DEFAULT_COLUMNS if columns is None else columns),
            *(("headers",) if options.flag("includeHeaders") else ()),
        ),
        "consumer_options": consumer,
        **options.given(TEXTS, options.text),
        **options.given({"transactional": "transactional"}, options.flag),
    }


def _position(options: SparkOptions, side: str) -> KafkaOffsets | None:
    """The position by Spark's three options; the more exact one wins, as in Spark: time, times, offsets."""
    if (one := options.text(f"{side}Timestamp")) is not None:
        return KafkaOffsets.timestamp(_milliseconds(f"{side}Timestamp", one) * 1_000)
    option = f"{side}OffsetsByTimestamp"
    if (times := options.text(option)) is not None:
        return _by_partition(option, times, lambda at: KafkaOffsets.timestamp(_milliseconds(option, at) * 1_000))
    option = f"{side}Offsets"
    offsets = options.text(option)
    if offsets is None:
        return None
    if offsets.strip().lower() in ("earliest", "latest"):
        return KafkaOffsets.of(offsets.strip().lower(), option=option)
    return _by_partition(option, offsets, lambda at: _spark_offset(option, at))


def _by_partition(option: str, text: str, read: Callable[[Any], int | KafkaOffsets]) -> KafkaOffsets:
    try:
        topics: Any = json.loads(text)
        pairs: dict[TopicPartitionId, Any] = {
            (topic, _partition(number)): at for topic, numbers in topics.items() for number, at in numbers.items()
        }
    except (ValueError, AttributeError, RecursionError):
        raise InvalidKafkaOption(
            option, shown(text), '"earliest", "latest" or {"topic": {"0": ...}}', "as JSON."
        ) from None
    return KafkaOffsets.offsets({pair: read(at) for pair, at in pairs.items()})


def _spark_offset(option: str, at: Any) -> int | KafkaOffsets:
    if type(at) is int and at in range(_EARLIEST, 2**63):
        return {_EARLIEST: KafkaOffsets.earliest(), _LATEST: KafkaOffsets.latest()}.get(at, at)
    raise InvalidKafkaOption(option, shown(at), "an offset, -1 (latest) or -2 (earliest)", "see Spark's Kafka guide.")


def _milliseconds(option: str, at: Any) -> int:
    """Milliseconds as a number of JSON, or as the text of one."""
    given = at if type(at) is int else _whole(at)
    if given is None or given not in range(-LATEST_MS, LATEST_MS):
        raise InvalidKafkaOption(option, shown(at), "milliseconds since the epoch", "write a whole number.")
    return given


def _assigned(text: str) -> list[TopicPartitionId]:
    try:
        topics: Any = json.loads(text)
        return [(topic, _partition(number)) for topic, numbers in topics.items() for number in numbers]
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise InvalidKafkaOption("assign", shown(text), '{"topic": [0, 1]}', "as JSON.") from None


def _partition(number: Any) -> int:
    """A partition, as a number of JSON or as the text of one. Raises ValueError."""
    given = number if type(number) is int else _whole(number)
    if given is None or given not in range(2**31):
        raise ValueError("no partition has that number")
    return given


def _whole(text: Any) -> int | None:
    """Return the whole number that a text writes; None for any other text, and for JSON's fractions and infinity."""
    return int(text) if isinstance(text, str) and _NUMBER.fullmatch(text) else None
