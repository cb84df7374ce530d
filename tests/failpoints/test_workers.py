"""An error inside a planner's thread or the service's loop: no caller waits for ever."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random
from typing import Any

import pytest
from lowmark.integration.process.loop import Loop
from lowmark.sources import SourceSplit, SplitEnumeratorContext
from lowmark.sources.coordinator import CoordinatorHangs, SourceCoordinator
from lowmark.sources.worker import WorkerDied

from tests.failpoints.inject import Fault, Injector, draw
from tests.sources.coordinator.coordinating import Gateway, ListEnumerator, ListSource, ManualClock, Ping, State

BACK_WITHIN_SECONDS = 10.0
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def ours(thread: str) -> bool:
    return thread.startswith("lowmark ")


def injected(error: BaseException | None) -> bool:
    """Whether the fault caused an error."""
    while error is not None and "injected: " not in str(error):
        error = error.__cause__
    return error is not None


# -- the queue of a planner


class Looks(ListEnumerator):
    """Finds two more splits on a worker."""

    def start(self) -> None:
        super().start()
        self.context.call_async(lambda: (6, 7), self._found)

    def _found(self, numbers: Any, error: BaseException | None) -> None:
        if error is not None:
            raise error
        new = [number for number in numbers if str(number) not in self.known]
        self.discover(*new)


class LooksSource(ListSource):
    def create_enumerator(self, context: SplitEnumeratorContext[SourceSplit]) -> ListEnumerator:
        return self._kept(Looks(self, context, None))

    def restore_enumerator(self, context: SplitEnumeratorContext[SourceSplit], state: State) -> ListEnumerator:
        return self._kept(Looks(self, context, state))

    def _kept(self, enumerator: ListEnumerator) -> ListEnumerator:
        self.made.append(enumerator)
        return enumerator


def plan(fault: Fault | None) -> tuple[str, Injector]:
    """Let a coordinator run all its actions. Returns the result."""
    source, gateway = LooksSource(), Gateway()
    with Injector(["sources/coordinator", "sources/worker.py"], fault, threads=ours) as injector:
        coordinator: SourceCoordinator[SourceSplit, State] = SourceCoordinator(
            source,
            name="orders",
            gateway=gateway,
            num_subtasks=3,
            clock=ManualClock(leaps=True),
            timeout_seconds=BACK_WITHIN_SECONDS,
        )

        def found() -> bool:
            return coordinator.run("look", lambda: "7" in gateway.ids(1))

        errors: list[BaseException] = []

        def attempt(action: Any) -> Any:
            try:
                return action()
            except CoordinatorHangs as hangs:
                raise AssertionError(f"{fault}: {hangs}") from hangs
            except BaseException as error:  # noqa: BLE001  # looked at below
                errors.append(error)

        def settle() -> None:
            deadline = time.monotonic() + BACK_WITHIN_SECONDS
            while coordinator.failure is None and not attempt(found):
                assert time.monotonic() < deadline, f"{fault}: the last splits are not found; errors {errors}"

        attempt(coordinator.start)
        for subtask in range(3):
            attempt(partial(coordinator.register_reader, subtask))
        attempt(lambda: coordinator.wait(coordinator.checkpoint(1), "take it"))
        attempt(lambda: coordinator.handle_source_event(1, Ping(7)))
        attempt(lambda: coordinator.wait(coordinator.request_splits(), "hand out"))
        settle()
        attempt(lambda: coordinator.wait(coordinator.checkpoint(2), "take it"))
        attempt(lambda: coordinator.notify_checkpoint_complete(2))
        settle()
        began = time.monotonic()
        attempt(coordinator.close)
        assert time.monotonic() - began < BACK_WITHIN_SECONDS, f"{fault}: closing took too long"
    if coordinator.failure is not None:
        assert injected(coordinator.failure), f"{fault}: {coordinator.failure!r}"
        return "failed with the error", injector
    assert all(injected(error) for error in errors), f"{fault}: {errors}"
    given = Counter(each for subtask in range(3) for each in gateway.ids(subtask))
    assert given == Counter(map(str, range(8))), f"{fault}: {given}"
    return "went on" if not errors else "told its caller, and went on", injector


# -- the loop of the service


def loop(fault: Fault | None) -> tuple[str, Injector]:
    """Let a loop run its calls, and wait for them. Returns the result."""
    with Injector(["integration/process", "sources/worker.py"], fault, threads=ours) as injector:
        one, ran = Loop("lowmark loop"), list[int]()
        died: list[WorkerDied] = []
        began = time.monotonic()
        with ThreadPoolExecutor(2) as pool:
            for number in range(6):
                one.post(partial(ran.append, number))
                waits = [pool.submit(one.call, lambda: len(ran), "count", seconds=60) for _ in range(2)]
                for each in waits:
                    error = each.exception(BACK_WITHIN_SECONDS)
                    if isinstance(error, WorkerDied):
                        died.append(error)
                    else:
                        assert error is None or injected(error), f"{fault}: {error!r}"
        one.stop()
        assert time.monotonic() - began < BACK_WITHIN_SECONDS, f"{fault}: somebody waited"
    assert all(injected(error) or "ended without a word" in str(error) for error in died), f"{fault}: {died}"
    assert one.failed is not None or ran == [*range(6)], f"{fault}: {ran}"
    assert died or one.failed is None or one.failed.__class__.__name__ == getattr(fault, "error", None), f"{fault}"
    return "went on" if one.failed is None else "ended with the error", injector


SUPERVISOR = " Worker._supervise"  # with an error before its first line the thread never ran
WORLDS = {"queue": plan, "loop": loop}


@pytest.mark.parametrize("world", sorted(WORLDS))
def test_without_a_fault_it_goes_on(world: str) -> None:
    assert WORLDS[world](None)[0] == "went on"


@pytest.mark.slow
@pytest.mark.parametrize("world", sorted(WORLDS))
def test_an_error_in_every_function_is_told_to_all_who_wait(world: str) -> None:
    random, ends = Random(f"workers {world}"), Counter[str]()
    calls = {name: calls for name, calls in WORLDS[world](None)[1].calls.items() if not name.endswith(SUPERVISOR)}
    for function in sorted(calls):
        for _ in range(3):
            what, injector = WORLDS[world](draw({function: calls[function]}, random))
            ends[what if injector.raised else "not reached"] += 1
    assert ends["not reached"] < sum(ends.values()) / 4, ends
