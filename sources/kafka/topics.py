"""Topics as the brokers describe them, and whether a pattern names them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic on the brokers."""

    name: str
    topic_id: str  # distinguishes it from an earlier topic of that name (KIP-516); "" if brokers are too old for ids
    partitions: tuple[int, ...]

    @classmethod
    def of(cls, name: str, description: Any) -> Topic:
        """Return the topic in an answer to `AdminClient.describe_topics`."""
        topic_id = getattr(description, "topic_id", None)
        text = "" if topic_id is None else str(topic_id)
        known = "" if set(text) <= {"A"} else text  # all zero in base64 means unknown
        return cls(name, known, tuple(sorted(partition.id for partition in description.partitions)))


def matches(pattern: str, topic: str) -> bool:
    """Whether a pattern matches a whole name; internal topics (`__...`) only if the pattern begins so too.

    >>> matches("ord.*", "orders"), matches(".*", "__consumer_offsets")
    (True, False)
    """
    return re.fullmatch(pattern, topic) is not None and (pattern.startswith("__") or not topic.startswith("__"))
