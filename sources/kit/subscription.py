"""The streams that a user chose, by name or by a pattern."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .options import Refusal, check_just_one, checked_pattern, listed


@dataclass(frozen=True, slots=True)
class Subscription:
    """Named streams, or all streams whose whole name matches a pattern, also streams that are made later.

    Attributes:
        named: name -> the given name or ARN of a stream; empty with a pattern.
        pattern: a regular expression; None: the streams are named.

    >>> Subscription(pattern="o.*").find(lambda: ["orders", "returns"])
    ['orders']
    """

    named: Mapping[str, str] = field(default_factory=dict)
    pattern: str | None = None

    @classmethod
    def of(
        cls,
        streams: Sequence[str] | None,
        stream_pattern: str | None,
        refusal: Refusal,
        *,
        name_of: Callable[[str], str | None],
        expected: str,
        hint: str,
    ) -> Subscription:
        """Take a user's values, of which exactly one is given.

        Args:
            name_of: returns the name of a given stream, None for any other value, which is refused.
        """
        check_just_one({"streams": streams, "stream_pattern": stream_pattern}, refusal)
        if stream_pattern is not None:
            return cls(pattern=checked_pattern(stream_pattern, "stream_pattern", refusal))
        if isinstance(streams, str):
            raise refusal("streams", repr(streams), "a list of names", f"write [{streams!r}].")
        given = sorted(listed(streams), key=str)
        named = {name: each for each in given if isinstance(each, str) and (name := name_of(each)) is not None}
        if not named or len(named) < len(given):
            raise refusal("streams", repr(streams), expected, hint)
        return cls(named)

    def wants(self, name: str) -> bool:
        """Whether a stream is subscribed, be it there or not."""
        return name in self.named if self.pattern is None else re.fullmatch(self.pattern, name) is not None

    def find(self, there: Callable[[], Sequence[str]]) -> Sequence[str]:
        """Return the named streams, without a look whether they exist, or the existing names that match."""
        return list(self.named.values()) if self.pattern is None else [name for name in there() if self.wants(name)]
