"""The cases as a whole: all families are present, and the table of deviations has ids of cases only."""

from __future__ import annotations

from collections import Counter

from tests.cases.deviations import DEVIATIONS
from tests.cases.reader import every

FAMILIES = {
    "AGG": 3, "ALN": 9, "SPL": 6, "OPA": 4, "MUX": 15, "IDL": 5, "VAL": 7, "SMP": 3, "CLK": 2, "TRK": 4, "KIN": 3,
    "BUG": 8, "EVT": 5, "SRC": 10, "BOO": 7, "STR": 5,
    "CRD": 10, "CTX": 5, "NOT": 4, "PRV": 2, "RTL": 5, "HYB": 4,
    "H": 18, "HK": 4, "HM": 7, "HP": 9, "BK": 6, "BS": 5, "BE": 5, "BM": 6, "BP": 4, "BG": 5,
    "A": 5, "M": 4, "S": 6, "P": 9,
}  # fmt: skip


def test_every_family_of_coordination_is_in_the_data() -> None:
    counted = Counter(case["family"] for case in every())

    assert {name: counted[name] for name in FAMILIES} == FAMILIES


def test_every_deviation_is_of_a_case_and_has_a_reason() -> None:
    ids = [case["id"] for case in every()]

    assert len(ids) == len(set(ids))
    assert DEVIATIONS.keys() <= set(ids)
    for reason in DEVIATIONS.values():
        assert len(reason.split()) > 2 or reason.removeprefix("see ") in DEVIATIONS
