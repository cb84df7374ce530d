"""Reads the options of a Spark stream, whose names Spark takes in any case."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from lowmark.watermark.errors import shown

from .options import Refusal


class SparkOptions:
    """The given options of one stream; an unknown one is refused.

    Args:
        known: names of options, as users spell them.
        expected: what an option should be, for the refusal.
        hint: for the refusal, where no known name is like the given name.
    """

    def __init__(
        self, given: Mapping[str, str], known: Iterable[str], refusal: Refusal, expected: str, hint: str = ""
    ) -> None:
        self._given, self._refusal = {name.lower(): value for name, value in given.items()}, refusal
        spelt = {name.lower(): name for name in known}
        for name in self._given:
            if name not in spelt:
                near = get_close_matches(name, spelt, n=1)
                otherwise = hint or f"known are {', '.join(sorted(spelt.values()))}."
                raise refusal(name, "a value", expected, f"did you mean {spelt[near[0]]!r}?" if near else otherwise)

    def text(self, option: str) -> str | None:
        return self._given.get(option.lower())

    def given(self, arguments: Mapping[str, str], read: Callable[[str], object]) -> dict[str, Any]:
        """Return what `read` makes of given options, by the names of arguments; `arguments` is option -> argument."""
        return {argument: value for option, argument in arguments.items() if (value := read(option)) is not None}

    def names(self, option: str) -> list[str] | None:
        """Return the names in an option, separated by commas."""
        value = self.text(option)
        return None if value is None else [name.strip() for name in value.split(",") if name.strip()]

    def flag(self, option: str) -> bool | None:
        """Return whether an option is true."""
        value = self.text(option)
        if value is not None and value.lower() not in ("true", "false"):
            raise self._refusal(option, shown(value), "true or false", "write one of them.")
        return None if value is None else value.lower() == "true"
