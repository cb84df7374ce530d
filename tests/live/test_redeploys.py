"""Some of the redeploys of `tests.worlds.redeploys`: two applications emit every row, whichever of them is absent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.servers.local import require_java
from tests.worlds.redeploys import (
    BOTH,
    Drivers,
    Result,
    cases,
    one_after_the_other,
    redeployed,
    scaled_down,
    two_drivers,
)

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.fixture(scope="module")
def drivers() -> Iterator[Drivers]:
    require_java()
    with two_drivers() as made:
        yield made


@pytest.mark.parametrize(
    "play",
    [
        partial(redeployed, away=BOTH, back=BOTH, between=0),
        partial(redeployed, away=BOTH, back=BOTH[::-1], between=1, serve_killed=True),
        partial(redeployed, away=("behind",), back=("behind",), between=3),
        partial(one_after_the_other, serve_killed=True),
        partial(scaled_down, how="forget"),
    ],
    ids=["both", "both the other way", "one", "available now", "one for good"],
)
def test_no_row_is_late(drivers: Drivers, play: Callable[[Drivers], Result]) -> None:
    result = play(drivers)
    assert (result.rows > 0, result.late) == (True, 0), result


@pytest.mark.torture
@pytest.mark.timeout(10_800)
def test_no_row_is_late_in_any_order_with_up_to_two_minutes_in_between(drivers: Drivers) -> None:
    results = [play(drivers) for play in cases(long=True)]
    assert [result for result in results if result.late] == []
