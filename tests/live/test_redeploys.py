"""A job of two applications loses no row at a redeploy, whoever goes, comes back and is killed meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.live import torture
from tests.live.redeploys import BOTH, Drivers, Result, cases, redeployed, two_drivers

pytestmark = torture.MARKS


@pytest.fixture(scope="module")
def drivers() -> Iterator[Drivers]:
    with two_drivers() as both:
        yield both


def test_both_are_redeployed_one_after_the_other_and_no_row_is_late(drivers: Drivers) -> None:
    result = redeployed(drivers, BOTH, BOTH, 1, serve_killed=True)
    assert (result.rows > 0, result.late) == (True, 0), result


@pytest.mark.torture
@pytest.mark.timeout(600)
@pytest.mark.parametrize("play", cases(long=True))
def test_in_every_order_however_they_go_no_row_is_late(drivers: Drivers, play: Callable[[Drivers], Result]) -> None:
    result = play(drivers)
    print(result)
    assert (result.rows > 0, result.late) == (True, 0), result
