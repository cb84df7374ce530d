"""A user's begin and end of reading; resolved to offsets once, when a partition is discovered.

Source: `OffsetsInitializer` of Flink's Kafka connector; Spark's `startingOffsets` and `endingOffsets`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral

from lowmark.watermark.errors import shown
from lowmark.watermark.moment import INT64, format_time_us

from .errors import InvalidKafkaOption

TopicPartitionId = tuple[str, int]
"""(topic, partition)"""

_LAST = INT64[-1]
"""The largest number that Kafka's protocol has for an offset or a time."""

EXPECTED = (
    '"earliest", "latest", "committed", a timestamp as KafkaOffsets.timestamp(us), or offsets by (topic, partition)'
)


@dataclass(frozen=True, slots=True)
class KafkaOffsets:
    """A position in every partition. Make it by a factory method, not by the fields.

    Attributes:
        kind: the name of the factory method.
        time_us: for "timestamp": event time, microseconds since the epoch.
        by_partition: for "offsets": ((topic, partition), offset or another position of that partition), sorted.
        otherwise: the position for the remaining partitions.

    >>> KafkaOffsets.of({("orders", 0): 17}, otherwise="latest").otherwise
    KafkaOffsets(kind='latest', time_us=None, by_partition=(), otherwise=None)
    """

    kind: str
    time_us: int | None = None
    by_partition: tuple[tuple[TopicPartitionId, int | KafkaOffsets], ...] = ()
    otherwise: KafkaOffsets | None = None

    def __str__(self) -> str:
        if self.kind == "timestamp":
            return f"timestamp {format_time_us(self.time_us)}"
        named = [f"{topic}/{partition}: {position}" for (topic, partition), position in self.by_partition]
        parts = named if self.kind == "offsets" else [self.kind]
        return ", ".join(parts if self.otherwise is None else [*parts, f"otherwise {self.otherwise}"])

    @classmethod
    def earliest(cls) -> KafkaOffsets:
        """Return the position of the first present record."""
        return cls("earliest")

    @classmethod
    def latest(cls) -> KafkaOffsets:
        """Return the end: after the last record, or after the last stable record if only committed records are read."""
        return cls("latest")

    @classmethod
    def timestamp(cls, time_us: int) -> KafkaOffsets:
        """Return the position of the first record at that time (microseconds) or later; the end without one.

        Raises InvalidKafkaOption.
        """
        given: object = time_us
        if not isinstance(given, Integral) or not -_LAST <= int(given) <= _LAST:
            raise InvalidKafkaOption(
                "timestamp", shown(given), "microseconds since the epoch", "write a whole number of at most 64 bits."
            )
        return cls("timestamp", time_us=int(given), otherwise=cls.latest())

    @classmethod
    def offsets(
        cls,
        by_partition: Mapping[TopicPartitionId, int | str | KafkaOffsets],
        otherwise: str | KafkaOffsets | None = None,
    ) -> KafkaOffsets:
        """Return a position with an offset, or another position, for each of some partitions.

        Args:
            by_partition: (topic, partition) -> offset, 0 or more, or another position.
            otherwise: for other partitions; by default "earliest" for a start and "latest" for a stop.

        Raises:
            InvalidKafkaOption: a key is no (topic, partition), or an offset is negative or has more than 64 bits.
        """
        given: object = by_partition
        if not isinstance(given, Mapping):
            expected = "offsets by (topic, partition)"
            raise InvalidKafkaOption("offsets", shown(given), expected, 'write {("orders", 0): 17}.')
        named: list[tuple[TopicPartitionId, int | KafkaOffsets]] = []
        for key, position in by_partition.items():
            match key:
                case (str(topic), int(partition)) if partition >= 0:
                    named.append(((topic, partition), _offset(position)))
                case _:
                    raise InvalidKafkaOption(
                        "offsets", shown(key), "(topic, partition) as key", 'write {("orders", 0): 17}.'
                    )
        remaining = None if otherwise is None else cls.of(otherwise)
        return cls("offsets", None, tuple(sorted(named, key=lambda item: item[0])), remaining)

    @classmethod
    def committed(cls, otherwise: str | KafkaOffsets = "earliest") -> KafkaOffsets:
        """Return the position committed by the consumer group of `group.id`; `otherwise` without a commit."""
        return cls("committed", otherwise=cls.of(otherwise))

    @classmethod
    def of(
        cls,
        given: str | KafkaOffsets | Mapping[TopicPartitionId, int | str | KafkaOffsets],
        *,
        otherwise: str | KafkaOffsets | None = None,
        option: str = "start",
    ) -> KafkaOffsets:
        """Return the position for a user's value; `otherwise` as in `offsets`. Raises InvalidKafkaOption."""
        if isinstance(given, KafkaOffsets):
            return given
        if isinstance(given, Mapping):
            return cls.offsets(given, otherwise)
        simple = {"earliest": cls.earliest, "latest": cls.latest, "committed": cls.committed}
        name: object = given
        if not isinstance(name, str) or name not in simple:
            raise InvalidKafkaOption(option, shown(given), EXPECTED, "a bare number has no unit; say what it is.")
        return simple[name]()


def _offset(given: object) -> int | KafkaOffsets:
    if isinstance(given, str | KafkaOffsets):
        return KafkaOffsets.of(given, option="offsets")
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= _LAST:
        return given
    raise InvalidKafkaOption(
        "offsets", shown(given), "an offset of 0 or more", f'use "earliest" or "latest"; the largest offset is {_LAST}.'
    )
