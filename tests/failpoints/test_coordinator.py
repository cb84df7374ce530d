"""An error inside `lowmark serve` while it handles a message, or inside an application's link.

A coordinator recovers by itself, or it ends with the error and recovers after a restart; a link recovers, or all its
tasks fail with the error. No low watermark ever falls or rises too far.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from tests.failpoints.coordinated import PLACES, World, in_a_client, in_the_server
from tests.failpoints.inject import Fault, Injector, draw
from tests.integration.coordinator.serving import private_folder
from tests.laws.strategies import draws

# A fault may reach a thread of gRPC, or an object during its destruction.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{warning}")
    for warning in (
        "pytest.PytestUnhandledThreadExceptionWarning",
        "pytest.PytestUnraisableExceptionWarning",
        "ResourceWarning",
    )
]
SIDES = {"serve": in_the_server, "link": in_a_client}


# An ended process releases the lock of its journal and its socket; a coordinator in a thread of this test does not.
OF_A_PROCESS = ("Door._open_unix", "Journal.__init__", "Journal._open", "Journal.close", "serve")


def play(fault: Fault | None, threads: Callable[[str], bool]) -> tuple[World, Injector]:
    with private_folder() as folder, Injector(PLACES, fault, threads=threads) as injector:
        world = World(folder)
        try:
            world.play()
            world.check()
        except Exception as wrong:
            raise AssertionError(f"{fault}: {wrong}") from wrong
        return world, injector


def what_became_of(world: World) -> str:
    if world.given_up:
        return "given up with a reason"
    return "went on" if world.ended is None else "ended loudly, and went on when it was started again"


def test_without_a_fault_the_two_go_on() -> None:
    world, _ = play(None, in_the_server)
    assert what_became_of(world) == "went on"
    assert [lows[-1] for lows in world.heard_us.values()] == [6_000, 6_000]


@functools.cache
def functions_called(threads: Callable[[str], bool]) -> dict[str, int]:
    _, seen = play(None, threads)
    return {name: calls for name, calls in seen.calls.items() if name.rpartition(" ")[2] not in OF_A_PROCESS}


@pytest.mark.parametrize("seed", range(draws(8)))
@pytest.mark.parametrize("side", sorted(SIDES))
def test_an_error_at_a_random_call_leaves_nothing_behind(side: str, seed: int) -> None:
    threads, random = SIDES[side], Random(seed)
    calls = functions_called(threads)
    for _ in range(20):
        if play(draw(calls, random), threads)[1].raised:
            return
    pytest.fail(f"{side}, seed {seed}: no fault of 20 was reached")  # a run may call less than the previous one


@pytest.mark.torture
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("side", sorted(SIDES))
def test_an_error_in_every_function_leaves_nothing_behind(side: str) -> None:
    threads, random, ends, broken = SIDES[side], Random(f"torture {side}"), Counter[str](), list[str]()
    calls = functions_called(threads)
    for function in sorted(calls):
        for _ in range(2):
            fault = draw({function: calls[function]}, random)
            try:
                world, injector = play(fault, threads)
            except AssertionError as wrong:
                broken.append(str(wrong))
                continue
            ends[what_became_of(world) if injector.raised else "not reached"] += 1
    print(f"{side}: {sum(ends.values())} faults in {len(calls)} functions: {dict(ends)}")
    assert not broken, "\n".join(broken)
    assert ends["not reached"] < sum(ends.values()) / 4
