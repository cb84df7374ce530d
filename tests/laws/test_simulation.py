"""200 worlds of the simulation; `python -m tests.laws.simulation --seeds 10000` plays more worlds by hand."""

from __future__ import annotations

import pytest

from tests.laws.simulation import END_US, Simulation, Violation
from tests.laws.strategies import draws

SEEDS, AT_ONCE = 200, 20


@pytest.mark.parametrize("first", range(0, draws(SEEDS), AT_ONCE))
def test_no_world_breaks_a_promise(first: int) -> None:
    met: dict[str, int] = {}
    for seed in range(first, first + AT_ONCE):
        simulation = Simulation(seed)
        simulation.run()
        met = {what: count + met.get(what, 0) for what, count in simulation.counts.items()}

    assert 0 not in met.values(), f"seeds from {first} met too little to prove anything: {met}"


@pytest.mark.slow
def test_a_world_of_a_thousand_readers_keeps_the_promises() -> None:
    simulation = Simulation(3, readers=1_000)
    simulation.run()

    assert len(simulation.readers) == 1_000
    assert set(simulation.published_us.values()) == {END_US}


def test_one_seed_is_one_world() -> None:
    worlds = [Simulation(7), Simulation(7)]
    for world in worlds:
        world.run()

    assert (worlds[0].now_us, worlds[0].counts) == (worlds[1].now_us, worlds[1].counts)
    assert worlds[0].journal == worlds[1].journal


def test_a_broken_promise_names_its_seed() -> None:
    simulation = Simulation(7)
    simulation.run()
    key = min(simulation.published_us)
    simulation.published_us[key] = END_US + 1  # as if a larger value had been published before

    assert simulation.coordinator is not None
    with pytest.raises(Violation, match=r"(?s)seed 7 .*went back.*--start 7"):
        simulation.judge(simulation.coordinator, [])
