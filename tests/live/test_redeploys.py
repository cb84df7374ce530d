"""A job of two applications loses no row at a redeploy, whoever goes, comes back and is killed meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.live import torture
from tests.live.redeploys import BOTH, Result, cases, redeployed

pytestmark = torture.MARKS


def test_both_are_redeployed_one_after_the_other_and_no_row_is_late() -> None:
    result = redeployed(BOTH, BOTH, 1, serve_killed=True)
    assert (result.rows > 0, result.late) == (True, 0), result


@pytest.mark.torture
@pytest.mark.timeout(600)
@pytest.mark.parametrize("play", cases(long=True))
def test_in_every_order_however_they_go_no_row_is_late(play: Callable[[], Result]) -> None:
    result = play()
    print(result)
    assert (result.rows > 0, result.late) == (True, 0), result
