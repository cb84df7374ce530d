"""Feeds decoders, and collects unexpected errors."""

from __future__ import annotations

import traceback
import warnings
from dataclasses import dataclass
from random import Random
from typing import Any

from lowmark.watermark import LowmarkError

from .decoders import DECODERS

_LONGEST_ERROR = 5_000  # characters; people have to read an error


@dataclass(frozen=True)
class Finding:
    """An unexpected error of a decoder, and the shortest input that raised it.

    Attributes:
        decoder: name of the decoder.
        seed: seed of the input, for `example`.
        error: type, text and place.
        value: the input.
    """

    decoder: str
    seed: str
    error: str
    value: Any

    def __str__(self) -> str:
        return f"{self.decoder}: {self.error}\n    seed {self.seed!r}: {self.value!r:.400}"


def example(name: str, seed: str) -> Any:
    """Return the input of a seed."""
    return DECODERS[name].inputs(Random(seed))


def fuzz(name: str, *, seed: int, first: int, count: int) -> dict[str, Finding]:
    """Feed a decoder.

    Args:
        name: name of the decoder in the table.
        seed: one seed always gives the same inputs.
        first: number of the first input.
        count: number of inputs.

    Returns:
        place of the error -> the finding with the shortest input.
    """
    findings: dict[str, Finding] = {}
    decoder = DECODERS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(first, first + count):
            its_seed = f"{seed}/{name}/{number}"
            value = example(name, its_seed)
            try:
                decoder.decode(value)
            except decoder.raises as refused:
                if not isinstance(refused, LowmarkError) or len(str(refused)) <= _LONGEST_ERROR:
                    continue
                error, place = f"an error of {len(str(refused))} characters", type(refused).__name__
            except Exception as wrong:  # noqa: BLE001  # which is what is looked for
                last = traceback.extract_tb(wrong.__traceback__)[-1]
                place = f"{type(wrong).__name__} in {last.filename.rpartition('/')[2]}:{last.lineno}"
                error = f"{place}: {wrong!s:.200}"
            else:
                continue
            known = findings.get(place)
            if known is None or len(repr(value)) < len(repr(known.value)):
                findings[place] = Finding(name, its_seed, error, value)
    return findings
