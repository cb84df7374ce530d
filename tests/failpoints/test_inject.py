"""The injector itself: it raises once at the given place, and nowhere else."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from random import Random

import pytest
from lowmark.watermark.duration import duration_us

from tests.failpoints.inject import ERRORS, Failpoint, Fault, Injector, draw, name_of
from tests.servers.local import ROOT

PLACES = ["watermark/duration.py"]


def name_of_the_function(run: Injector, name: str) -> str:
    [found] = [function for function in run.calls if function.endswith(f" {name}")]
    return found


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", sorted(ERRORS))
def test_a_fault_is_raised_once_at_its_call(error: str, *, after: bool) -> None:
    with Injector(PLACES, here=True) as seen:
        for _ in range(3):
            duration_us("1 second", what="test")
    function = name_of_the_function(seen, "duration_us")
    assert seen.calls[function] == 3
    raised_at = []
    with Injector(PLACES, Fault(function, 2, error, after), here=True) as injector:
        for number in (1, 2, 3):
            try:
                assert duration_us("1 second", what="test") == 1_000_000
            except ERRORS[error]:
                raised_at.append(number)
    assert injector.raised
    assert raised_at == [2]


def test_threads_are_picked_by_name_and_other_files_are_left_alone() -> None:
    def call() -> None:
        duration_us("1 second", what="test")

    with Injector(PLACES, threads=lambda name: name == "hit") as seen:
        for name in ("hit", "other"):
            thread = threading.Thread(target=call, name=name)
            thread.start()
            thread.join(10)
        call()  # this thread is not traced
    assert seen.calls[name_of_the_function(seen, "duration_us")] == 1
    assert {function.split(":")[0] for function in seen.calls} == set(PLACES)


def test_a_seed_draws_the_same_fault_again() -> None:
    calls = {"a.py:1 one": 3, "b.py:2 two": 1}
    assert [draw(calls, Random(seed)) for seed in range(9)] == [draw(calls, Random(seed)) for seed in range(9)]
    assert {draw(calls, Random(seed)).function for seed in range(9)} == set(calls)


ARMED = """
from lowmark.watermark.duration import duration_us
from tests.failpoints.inject import Fault, Failpoint
injector = {failpoint}.arm()
for _ in range({times}):
    try:
        duration_us("1 second", what="test")
    except KeyError:
        print("raised")
"""


def test_a_failpoint_counts_the_calls_of_processes_and_raises_in_one_of_them(tmp_path: Path) -> None:
    def run(failpoint: Failpoint, times: int) -> str:
        command = [sys.executable, "-c", ARMED.format(failpoint=failpoint, times=times)]
        return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout

    function = name_of(duration_us)
    counting = Failpoint((*PLACES,), None, str(tmp_path))
    assert [run(counting, times) for times in (3, 2)] == ["", ""]
    assert counting.calls[function] == 3
    raising = Failpoint((*PLACES,), Fault(function, 2, "KeyError"), str(tmp_path))
    assert not raising.raised
    assert [run(raising, times) for times in (1, 3, 3)] == ["", "raised\n", ""]
    assert raising.raised
