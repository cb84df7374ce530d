"""Fuzzes every decoder of the table for seconds; `make fuzz` does the same for minutes."""

from __future__ import annotations

import pytest
from lowmark.sources.spark.options import FORMATS

from .decoders import DECODERS
from .run import fuzz

INPUTS = 200
SEED = 1


def test_the_options_of_every_format_are_decoded() -> None:
    assert {name for name in DECODERS if name.startswith("options of ")} == {f"options of {name}" for name in FORMATS}


@pytest.mark.parametrize("name", DECODERS)
def test_it_reads_what_is_good(name: str) -> None:
    DECODERS[name].decode(DECODERS[name].good)


@pytest.mark.parametrize("name", DECODERS)
def test_it_raises_nothing_but_its_own_error(name: str) -> None:
    findings = fuzz(name, seed=SEED, first=0, count=INPUTS)

    assert not findings, "\n".join(map(str, findings.values()))
