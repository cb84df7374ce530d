"""A coordinator's server on a virtual clock, and gRPC calls to a server, for the tests of the coordinator."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from lowmark.integration.coordinator import messages
from lowmark.integration.coordinator.journal import Journal
from lowmark.integration.coordinator.messages import News, Refused, Say, Statement, Taken, WatchNews
from lowmark.integration.coordinator.server import CoordinatorServer
from lowmark.integration.errors import JournalRefused
from lowmark.watermark import LowmarkError, TaskId
from lowmark.watermark.protocol import TaskForgotten
from lowmark.watermark.tasks.coordinator import LowWatermarkCoordinator
from lowmark.watermark.tasks.snapshot import Key

from tests.integration.coordinator.serving import task

SECOND = 1_000_000


def who(number: int = 0, source: str = "orders") -> TaskId:
    return task(number, source)


class SlowJournal(Journal):
    """Counts its writes, and holds each write until the test releases it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.changes: list[Mapping[Key, str | None]] = []
        self.begun, self.go = threading.Semaphore(0), threading.Semaphore(0)
        self.fails = False

    def write(self, changes: Mapping[Key, str | None]) -> None:
        self.begun.release()
        assert self.go.acquire(timeout=20)
        if self.fails:
            raise JournalRefused(str(self.path), "it is full", "make room.")
        super().write(changes)
        self.changes.append(changes)


class FullJournal(Journal):
    """A journal whose first writes fail for lack of room."""

    def __init__(self, path: Path, times: int) -> None:
        super().__init__(path)
        self.times = times

    def write(self, changes: Mapping[Key, str | None]) -> None:
        self.times -= 1
        if self.times >= 0:
            full = sqlite3.OperationalError("database or disk is full")
            raise JournalRefused(str(self.path), "it cannot be used", "make room.") from full
        super().write(changes)


class Scene:
    """A coordinator on a virtual clock, in its own loop, and the messages that its watchers heard."""

    def __init__(self, journal: Journal) -> None:
        self.now_us = 0
        self.coordinator = CoordinatorServer(LowWatermarkCoordinator(), lambda: self.now_us, journal=journal)
        self.watches: dict[str, AsyncIterator[WatchNews]] = {}

    async def watch(self, application: str) -> None:
        """Begin a watch, and wait until it has begun."""
        self.watches[application] = aiter_ = self.coordinator.watch(application)
        assert (await anext_(aiter_)).messages == []

    async def hear(self, application: str) -> list[News]:
        return (await asyncio.wait_for(anext_(self.watches[application]), 20)).messages

    async def say(
        self, application: str, *statements: Statement | TaskForgotten | LowmarkError
    ) -> list[Taken | Refused]:
        return (await asyncio.wait_for(self.coordinator.say(Say(application, list(statements))), 20)).answers

    def pass_time(self, us: int) -> None:
        self.now_us += us
        self.coordinator.tick()

    async def written(self) -> None:
        """Wait until the journal has every change and the watchers are told of it."""
        while self.coordinator._durable < self.coordinator._coordinator.epoch:
            await asyncio.wait([self.coordinator._writing or asyncio.ensure_future(a_turn())])
        while self.coordinator._untold:  # some at once
            await a_turn()

    async def close(self) -> None:
        await self.coordinator.close()
        for watch in self.watches.values():
            await watch.aclose()  # type: ignore[attr-defined]


async def anext_(told: AsyncIterator[WatchNews]) -> WatchNews:
    return await told.__anext__()


def play(script: Callable[[Scene], Coroutine[Any, Any, None]], journal: Journal | None = None) -> None:
    if journal is None:
        with tempfile.TemporaryDirectory() as folder, closing(Journal(Path(folder) / "j")) as kept:
            return play(script, kept)

    async def run(kept: Journal) -> None:
        scene = Scene(kept)
        try:
            await script(scene)
        finally:
            await scene.close()

    return asyncio.run(run(journal))


async def a_turn() -> None:
    """Let the other tasks of the loop run for one turn."""
    passed = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(passed.set_result, None)
    await passed


async def until(semaphore: threading.Semaphore) -> None:
    assert await asyncio.get_running_loop().run_in_executor(None, lambda: semaphore.acquire(timeout=20))


def say(channel: grpc.Channel, message: Say, **options: Any) -> list[Any]:
    call: Any = channel.unary_unary(
        messages.SAY.path, request_serializer=messages.encode, response_deserializer=messages.SAY.decode_answer
    )
    return list(call(message, timeout=20, **options).answers)


def raw(channel: grpc.Channel, data: bytes, path: str = messages.SAY.path) -> grpc.RpcError:
    call: Any = channel.unary_unary(path)
    with pytest.raises(grpc.RpcError) as failed:
        call(data, timeout=20)
    return failed.value


def status_of(failed: Any) -> grpc.StatusCode:
    code = failed.code()
    assert isinstance(code, grpc.StatusCode)
    return code


class Talk:
    """A call of Say that stays open."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._unsaid: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        begin: Any = channel.stream_stream(messages.SAY.path, response_deserializer=messages.SAY.decode_answer)
        self.call = begin(iter(self._unsaid.get, None), timeout=40)

    def send(self, *messages: bytes) -> None:
        for data in messages:
            self._unsaid.put(data)

    def end(self) -> None:
        self._unsaid.put(None)
