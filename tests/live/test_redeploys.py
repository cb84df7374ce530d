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
    back_and_gone,
    cases,
    one_after_the_other,
    redeployed,
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
        # In the other order no row can be late: rows of "ahead" are newer than all that "behind" reads alone.
        partial(redeployed, away=BOTH, back=BOTH, between=1, serve_killed=True),
        partial(back_and_gone, between=3),
        partial(one_after_the_other, serve_killed=True),
    ],
    ids=["both", "one, then for good", "available now"],
)
def test_no_row_is_late(drivers: Drivers, play: Callable[[Drivers], Result]) -> None:
    result = play(drivers)
    assert (result.rows > 0, result.late) == (True, 0), result


@pytest.mark.torture
@pytest.mark.timeout(10_800)
def test_no_row_is_late_in_any_order_with_up_to_two_minutes_in_between(drivers: Drivers) -> None:
    results = [play(drivers) for play in cases(long=True)]
    assert [result for result in results if result.late] == []
