"""An error in the middle of a change: the server drops the half-changed state and begins again from its journal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from io import StringIO
from pathlib import Path
from typing import Any

import grpc
import pytest
from lowmark.integration.cli.show_coordinator import show_coordinator
from lowmark.integration.coordinator import messages, server
from lowmark.integration.coordinator.access import Caller, Door
from lowmark.integration.coordinator.journal import Journal
from lowmark.integration.coordinator.messages import Say, Taken
from lowmark.integration.coordinator.server import CoordinatorServer, restore
from lowmark.integration.errors import CoordinatorFailed, JournalRefused
from lowmark.sources.worker import described
from lowmark.watermark import CorruptSnapshot, InvalidWatermark, LowmarkError
from lowmark.watermark.protocol import LeaseRenewed, RetrieveLowWatermark, TaskRegistered
from lowmark.watermark.splits.coalescer import Coalescer
from lowmark.watermark.strategy import AlignmentParams
from lowmark.watermark.tasks.coordinator import LowWatermarkCoordinator
from lowmark.watermark.tasks.rounds import SourceRounds
from rich.console import Console

from tests.integration.coordinator.coordinator_scene import (
    SECOND,
    FullJournal,
    Scene,
    SlowJournal,
    Talk,
    a_turn,
    play,
    raw,
    say,
    status_of,
    until,
    who,
)
from tests.integration.coordinator.serving import asked, reply, rose, serving


def once(error: Exception, work: Callable[..., Any], *, after: bool = False) -> Callable[..., Any]:
    """The same work, with an error at the first call."""
    calls: list[None] = []

    def raises(*arguments: Any, **named: Any) -> Any:
        calls.append(None)
        if len(calls) == 1 and not after:
            raise error
        result = work(*arguments, **named)
        if len(calls) == 1:
            raise error
        return result

    return raises


async def registered(scene: Scene, run: str = "r") -> None:
    """Register one task of one application, whose source has published 5."""
    await scene.watch("a")
    await scene.say("a", TaskRegistered(who(0), run, 5))
    scene.pass_time(SECOND)
    await scene.hear("a")
    await scene.say("a", reply(who(0), run, SECOND, 5))
    assert await scene.hear("a") == [rose(who(0), SECOND, 5)]


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (SourceRounds, "begin"),  # the leases know the task, its source does not
        (SourceRounds, "__init__"),
        (Coalescer, "assign"),
        (SourceRounds, "encoded"),
        (LowWatermarkCoordinator, "wake_at_us"),
        (LowWatermarkCoordinator, "encode"),
        (LowWatermarkCoordinator, "take_changes"),
        (CoordinatorServer, "_release"),
    ],
)
@pytest.mark.parametrize("error", [KeyError("x"), MemoryError()], ids=lambda error: type(error).__name__)
def test_a_state_that_may_be_half_changed_is_dropped_and_the_journals_goes_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    place: type,
    name: str,
    error: Exception,
) -> None:
    journal = Journal(tmp_path / "j")

    async def script(scene: Scene) -> None:
        await registered(scene)
        monkeypatch.setattr(place, name, once(error, getattr(place, name)))
        with pytest.raises(asyncio.CancelledError):
            await scene.say("a", TaskRegistered(who(1, "clicks"), "r"))
        with pytest.raises(StopAsyncIteration):
            await scene.hear("a")
        assert not scene.coordinator.failed.done()
        status = scene.coordinator.status()
        assert status.begun_again is not None
        assert status.begun_again.why == described(error)
        shown = StringIO()
        show_coordinator("unix:c.sock", status, Console(file=shown), now_us=scene.now_us)
        assert "went on from its journal, because an error may have left its state half changed: 1 time" in (
            shown.getvalue()
        )
        assert status.begun_again.why in shown.getvalue()
        expected = ["clicks", "orders"] if name == "_release" else ["orders"]  # the journal had both by then
        assert [each.source_id for each in status.coordinator.sources] == expected
        await scene.watch("a")  # as an application does that has lost its connection
        assert await scene.say("a", LeaseRenewed(who(0), "r")) == [Taken(5)]
        assert await scene.say("a", TaskRegistered(who(1, "clicks"), "r")) == [Taken()]
        scene.pass_time(SECOND)
        asked_for = {each.task for each in await scene.hear("a") if isinstance(each, RetrieveLowWatermark)}
        assert asked_for == {who(0), who(1, "clicks")}

    play(script, journal)
    assert {each.source_id for each in restore(journal, 0).status(0).sources} == {"orders", "clicks"}
    [said] = [record for record in caplog.records if "began again from its journal" in record.getMessage()]
    assert said.exc_info is not None
    journal.close()


@pytest.mark.parametrize("error", [InvalidWatermark("job/orders/0", 7), CorruptSnapshot("a bug", 7)])
def test_an_error_in_the_middle_of_a_change_is_not_told_to_the_sender_as_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: LowmarkError
) -> None:
    journal = Journal(tmp_path / "j")

    async def script(scene: Scene) -> None:
        await registered(scene)
        monkeypatch.setattr(SourceRounds, "take", once(error, SourceRounds.take))
        with pytest.raises(asyncio.CancelledError):
            await scene.say("a", reply(who(0), "r", SECOND, 7))
        again = scene.coordinator.status().begun_again
        assert again is not None
        assert again.why == described(error)

    play(script, journal)
    journal.close()


def test_a_group_that_has_lost_a_member_is_a_fault_and_not_an_unknown_task() -> None:
    coordinator = LowWatermarkCoordinator()
    coordinator.handle(TaskRegistered(who(0), "r", alignment=AlignmentParams("g", 10, SECOND)), 0)
    coordinator._groups._groups["g"]._members.clear()
    with pytest.raises(KeyError):
        coordinator.handle(reply(who(0), "r", 1, 7), 1)


def test_what_a_broken_state_had_decided_is_never_told_nor_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "j")

    async def script(scene: Scene) -> None:
        await registered(scene)
        scene.pass_time(SECOND)
        assert await scene.hear("a") == [asked(who(0), 2 * SECOND)]
        monkeypatch.setattr(SourceRounds, "end", once(KeyError("x"), SourceRounds.end, after=True))
        with pytest.raises(asyncio.CancelledError):
            await scene.say("a", reply(who(0), "r", 2 * SECOND, 99))  # the low watermark has risen in the state
        await scene.watch("a")
        assert await scene.say("a", LeaseRenewed(who(0), "r")) == [Taken(5)]
        assert restore(journal, 0).low_watermark_us("job", "orders") == 5

    play(script, journal)
    journal.close()


def test_a_write_that_was_under_way_is_of_a_sound_state_and_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = SlowJournal(tmp_path / "j")

    async def script(scene: Scene) -> None:
        registering = asyncio.ensure_future(scene.say("a", TaskRegistered(who(0), "r")))
        await until(journal.begun)
        monkeypatch.setattr(SourceRounds, "begin", once(KeyError("x"), SourceRounds.begin))
        journal.go.release()  # for the write under way
        with pytest.raises(asyncio.CancelledError):
            await scene.say("b", TaskRegistered(who(1), "r"))
        with pytest.raises(asyncio.CancelledError):
            await registering
        [source] = scene.coordinator.status().coordinator.sources
        assert [each.task for each in source.tasks] == [who(0)]
        for _ in range(3):
            journal.go.release()
        assert await scene.say("b", TaskRegistered(who(1), "r")) == [Taken()]

    play(script, journal)
    assert len(restore(journal, 0).status(0).sources[0].tasks) == 2
    journal.close()


def test_a_call_whose_write_is_over_is_answered_though_the_state_is_dropped_in_the_same_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the writes of a later state answer it: a `lowmark forget` hangs, or reports what never happened."""
    journal = SlowJournal(tmp_path / "j")

    async def script(scene: Scene) -> None:
        written = asyncio.ensure_future(scene.say("a", TaskRegistered(who(0), "r")))
        await until(journal.begun)
        waiting = asyncio.ensure_future(scene.say("b", TaskRegistered(who(1), "r")))
        for _ in range(2):
            await a_turn()
        monkeypatch.setattr(LowWatermarkCoordinator, "encode", once(KeyError("x"), LowWatermarkCoordinator.encode))
        journal.go.release()
        assert await written == [Taken()]
        with pytest.raises(asyncio.CancelledError):
            await waiting

    play(script, journal)
    journal.close()


def test_rows_that_were_taken_and_not_written_are_dropped_with_their_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_AGAIN_SECONDS", 0.0)
    journal = FullJournal(tmp_path / "j", 10**9)

    async def script(scene: Scene) -> None:
        registering = asyncio.ensure_future(scene.say("a", TaskRegistered(who(0), "r")))
        while journal.times > 10**9 - 3:  # the rows were taken, and their write is tried again
            await a_turn()
        monkeypatch.setattr(SourceRounds, "begin", once(KeyError("x"), SourceRounds.begin))
        with pytest.raises(asyncio.CancelledError):
            await scene.say("b", TaskRegistered(who(1), "r"))
        with pytest.raises(asyncio.CancelledError):
            await registering
        journal.times = 0
        assert await scene.say("b", TaskRegistered(who(1), "r")) == [Taken()]
        [source] = scene.coordinator.status().coordinator.sources
        assert [each.task for each in source.tasks] == [who(1)]

    play(script, journal)
    assert [each.task for each in restore(journal, 0).status(0).sources[0].tasks] == [who(1)]
    journal.close()


def test_a_large_message_does_not_go_on_with_another_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "j")

    async def script(scene: Scene) -> None:
        large = asyncio.ensure_future(scene.say("a", *(TaskRegistered(who(n), "r") for n in range(200))))
        await a_turn()
        monkeypatch.setattr(SourceRounds, "__init__", once(KeyError("x"), SourceRounds.__init__))
        with pytest.raises(asyncio.CancelledError):
            await scene.say("b", TaskRegistered(who(0, "clicks"), "r"))
        with pytest.raises(asyncio.CancelledError):
            await large
        assert scene.coordinator.status().coordinator.sources == ()

    play(script, journal)
    journal.close()


def test_it_begins_again_three_times_in_ten_minutes_and_then_ends_with_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "j")

    async def script(scene: Scene) -> None:
        handle = LowWatermarkCoordinator.handle

        async def fail() -> None:
            monkeypatch.setattr(LowWatermarkCoordinator, "handle", once(KeyError("a bug"), handle))
            with pytest.raises(asyncio.CancelledError):
                await scene.say("a", LeaseRenewed(who(0), "r"))

        await registered(scene)
        for _ in range(3):
            await fail()
        for _ in range(10):
            scene.now_us += 60 * SECOND
        for _ in range(3):  # earlier failures count no more
            await fail()
        assert not scene.coordinator.failed.done()
        await fail()
        with pytest.raises(CoordinatorFailed) as failed:
            scene.coordinator.failed.result()
        assert isinstance(failed.value.__cause__, KeyError)
        assert str(failed.value) == (
            "the coordinator ends, because an error may have left its state half changed (it begins again from its "
            "journal 3 times within 10 minutes at most): KeyError: 'a bug'. Hint: start it again: it goes on from its "
            "journal. If the error comes again, report it with its stack, which is in the log."
        )

    play(script, journal)
    assert restore(journal, 0).low_watermark_us("job", "orders") == 5
    journal.close()


def test_a_journal_that_cannot_be_read_any_more_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "j")

    async def script(scene: Scene) -> None:
        await registered(scene)
        journal._base.execute("UPDATE part SET checksum = checksum + 1")
        monkeypatch.setattr(SourceRounds, "begin", once(KeyError("x"), SourceRounds.begin))
        with pytest.raises(asyncio.CancelledError):
            await scene.say("a", TaskRegistered(who(1), "r"))
        with pytest.raises(JournalRefused, match="no state that can be restored"):
            scene.coordinator.failed.result()

    play(script, journal)
    journal.close()


def test_an_error_of_a_timer_that_reaches_the_event_loop_is_noticed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")

    async def script(scene: Scene) -> None:
        await scene.say("a", TaskRegistered(who(0), "r"))
        before, loop = scene.coordinator._timer, asyncio.get_running_loop()
        assert before is not None
        loop.call_exception_handler({"message": "of somebody else", "exception": KeyError("x")})
        assert scene.coordinator._timer is before
        loop.call_exception_handler({"message": "of the timer", "exception": MemoryError(), "handle": before})
        assert scene.coordinator.begun_again is not None
        assert scene.coordinator._timer not in (None, before)

    play(script, journal)
    journal.close()


def test_calls_of_before_are_ended_for_their_callers_to_come_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        serving(Door(f"unix:{folder}/c.sock"), journal=folder / "state" / "j") as address,
        ExitStack() as stack,
        Caller(address).channel() as channel,
    ):
        talk = Talk(channel)
        stack.callback(talk.end)
        talk.send(messages.encode(Say("a", [TaskRegistered(who(0), "r")])))
        assert next(talk.call).answers == [Taken()]
        watch: Any = channel.unary_stream(messages.WATCH.path, response_deserializer=messages.WATCH.decode_answer)
        watching = watch(messages.encode(messages.Watch("a")), timeout=40)
        next(watching)
        monkeypatch.setattr(SourceRounds, "begin", once(KeyError("x"), SourceRounds.begin))
        failed: Any = raw(channel, messages.encode(Say("b", [TaskRegistered(who(1), "r")])))
        for call in (talk.call, watching):
            with pytest.raises(grpc.RpcError):
                list(call)
        for ended in (failed, talk.call, watching):
            assert status_of(ended) is grpc.StatusCode.UNAVAILABLE
            assert "begins again from its journal" in ended.details()
        assert say(channel, Say("a", [LeaseRenewed(who(0), "r")])) == [Taken()]
