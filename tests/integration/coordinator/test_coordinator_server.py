"""The coordinator as a server: it writes a change before it tells the effects; its messages and its answers."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from lowmark.integration.coordinator import messages, server
from lowmark.integration.coordinator.access import Caller, Door, read_token
from lowmark.integration.coordinator.ask import ask_status
from lowmark.integration.coordinator.client import CoordinatorClient
from lowmark.integration.coordinator.journal import Journal
from lowmark.integration.coordinator.messages import News, Refused, Say, Taken
from lowmark.integration.coordinator.server import CoordinatorServer, Watcher, restore, serve
from lowmark.integration.coordinator.serving import run_coordinator
from lowmark.integration.errors import (
    AddressRefused,
    CoordinatorFailed,
    CoordinatorUnreachable,
    JournalRefused,
    SocketsRefused,
    TokenRefused,
)
from lowmark.integration.process.sockets import answers
from lowmark.watermark import NotifyNewLowWatermark, TaskId
from lowmark.watermark.protocol import LeaseRenewed, TaskDeregistered, TaskForgotten, TaskRegistered
from lowmark.watermark.strategy import AlignmentParams
from lowmark.watermark.tasks.cap import Cap, CapAnnounced
from lowmark.watermark.tasks.coordinator import LowWatermarkCoordinator, Settings

from tests.integration.coordinator.coordinator_scene import (
    SECOND,
    FullJournal,
    Scene,
    SlowJournal,
    Talk,
    a_turn,
    anext_,
    play,
    raw,
    say,
    status_of,
    until,
    who,
)
from tests.integration.coordinator.serving import (
    TOKEN,
    asked,
    beginning,
    certificate,
    reply,
    rose,
    serving,
    token_file,
)
from tests.servers.local import no_thread_stays, wait_until

# -- rounds over a watch


def test_a_round_asks_on_the_watch_and_tells_the_new_low_watermark_there() -> None:
    async def script(scene: Scene) -> None:
        await scene.watch("a")
        assert await scene.say("a", TaskRegistered(who(0), "r"), TaskRegistered(who(1), "r")) == [Taken(), Taken()]
        scene.pass_time(SECOND)
        assert await scene.hear("a") == [asked(who(0), SECOND), asked(who(1), SECOND)]
        assert await scene.say("a", reply(who(0), "r", SECOND, 0)) == [Taken()]
        assert await scene.say("a", reply(who(1), "r", SECOND, 7)) == [Taken()], "the journal has no news yet"
        assert await scene.hear("a") == [rose(who(0), SECOND, 0), rose(who(1), SECOND, 0)]
        assert await scene.say("a", LeaseRenewed(who(1), "r")) == [Taken(0)]

    play(script)


def test_the_name_of_a_lost_task_makes_no_line_of_its_own_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def script(scene: Scene) -> None:
        await scene.say("a", TaskRegistered(who(0, "orders\nlowmark: all is well\x1b[2J"), "r"))
        for _ in range(60):  # not at once: a server that was away gives every task another lease
            scene.pass_time(SECOND)

    play(script)
    [told] = [record.getMessage() for record in caplog.records if "was lost" in record.getMessage()]
    assert told.startswith(r"task job/orders\nlowmark: all is well\x1b[2J/0 was lost: ")
    assert told.isprintable()


def test_everybody_hears_what_is_for_his_own_tasks_and_a_task_may_move() -> None:
    async def script(scene: Scene) -> None:
        await scene.watch("a")
        await scene.watch("b")
        await scene.say("a", TaskRegistered(who(0), "r0"))
        await scene.say("b", TaskRegistered(who(1), "r1"))
        scene.pass_time(SECOND)
        assert await scene.hear("a") == [asked(who(0), SECOND)]
        assert await scene.hear("b") == [asked(who(1), SECOND)]
        await scene.say("b", LeaseRenewed(who(0), "r0"))
        scene.pass_time(SECOND)
        assert await scene.hear("b") == [asked(who(0), SECOND), asked(who(1), SECOND)]

    play(script)


def test_a_statement_that_is_refused_moves_nothing_and_the_others_of_the_message_count() -> None:
    async def script(scene: Scene) -> None:
        await scene.watch("a")
        await scene.watch("thief")
        await scene.say("a", TaskRegistered(who(0), "r0"))
        answers = await scene.say(
            "thief", LeaseRenewed(who(0), "wrong"), reply(who(8), "r", 1, 1), TaskRegistered(who(1), "r1")
        )
        assert [getattr(answer, "error", None) for answer in answers] == ["StaleRun", "UnknownTask", None]
        scene.pass_time(SECOND)
        assert await scene.hear("a") == [asked(who(0), SECOND)]

    play(script)


@pytest.mark.parametrize(
    ("group", "max_drift_us", "error"),
    [
        ("g", 2, "DisagreeingGroup"),
        ("g", -1, "InvalidStrategy"),
        ("", 1, "InvalidStrategy"),
        ("g", 2**63, "InvalidMessage"),
    ],
)
def test_alignment_that_cannot_be_is_refused_with_its_sentence(group: str, max_drift_us: int, error: str) -> None:
    alignment = {"group": group, "max_drift_us": max_drift_us, "update_interval_us": SECOND}
    statement = {"type": "Register", "task": who(1), "token": "r", "alignment": alignment}
    said = messages.SAY.decode_question(messages.encode({"application": "a", "statements": [statement]}))

    async def script(scene: Scene) -> None:
        await scene.say("a", TaskRegistered(who(0), "r", alignment=AlignmentParams("g", 1, SECOND)))
        [answer] = await scene.say("a", *said.statements)
        assert isinstance(answer, Refused)
        assert answer.error == error
        assert "Hint:" in answer.text

    play(script)


def test_a_cap_is_told_on_the_watch_and_again_in_answers() -> None:
    async def script(scene: Scene) -> None:
        await scene.watch("a")
        await scene.say("a", TaskRegistered(who(0), "r", alignment=AlignmentParams("g", 10, SECOND)))
        await scene.say("a", reply(who(0), "r", 1, 5))
        scene.pass_time(2 * SECOND)
        caps = [each for each in await scene.hear("a") if isinstance(each, CapAnnounced)]
        assert [each.cap for each in caps] == [Cap.up_to(15)]
        [answer] = await scene.say("a", LeaseRenewed(who(0), "r"))
        assert isinstance(answer, Taken)
        assert answer.cap == caps[0]

    play(script)


def test_a_slow_watcher_is_told_the_newest_and_what_waits_for_it_is_bounded() -> None:
    async def script(scene: Scene) -> None:
        await scene.watch("slow")
        await scene.say("slow", TaskRegistered(who(0), "r"))
        for low_us in range(1, 1_001):
            scene.pass_time(SECOND)
            await scene.say("slow", reply(who(0), "r", scene.now_us, low_us))
        await scene.written()
        heard = await scene.hear("slow")
        assert [each for each in heard if isinstance(each, NotifyNewLowWatermark)] == [
            rose(who(0), scene.now_us, 1_000)
        ]
        assert len(heard) <= 3

    play(script)


def test_a_second_watch_of_an_application_ends_the_first() -> None:
    async def script(scene: Scene) -> None:
        await scene.watch("a")
        first = scene.watches["a"]
        await scene.say("a", TaskRegistered(who(0), "r"))
        await scene.watch("a")
        with pytest.raises(StopAsyncIteration):
            await anext_(first)
        await scene.say("a", LeaseRenewed(who(0), "r"))
        scene.pass_time(SECOND)
        assert await scene.hear("a") == [asked(who(0), SECOND)]

    play(script)


def test_a_round_of_many_is_asked_in_portions_and_who_answers_before_is_not_asked() -> None:
    async def script(scene: Scene) -> None:
        await scene.watch("a")
        await scene.say("a", *(TaskRegistered(who(n), "r") for n in range(100)))
        scene.pass_time(SECOND)
        first = await scene.hear("a")
        assert len(first) == 20
        await scene.say("a", reply(who(99), "r", SECOND, 1))
        heard = list(first)
        while len(heard) < 99:
            heard += await scene.hear("a")
        assert len({each.task for each in heard}) == 99
        assert who(99) not in {each.task for each in heard}

    play(script)


def test_a_large_round_is_asked_as_fast_as_it_needs_while_a_small_one_is_being_asked() -> None:
    async def script(scene: Scene) -> None:
        await scene.watch("a")
        await scene.say("a", *(TaskRegistered(who(n), "r") for n in range(1_000)))
        await scene.say("a", *(TaskRegistered(who(n, "clicks"), "r") for n in range(20)))
        scene.pass_time(SECOND // 2)  # the beat of the small source comes first
        heard = await scene.hear("a")
        assert len(heard) < 20  # the others are asked a moment later
        scene.pass_time(SECOND // 2)
        steps = 0
        while len({each.task for each in heard}) < 1_020:
            heard += await scene.hear("a")
            steps += 1
        assert steps <= 6

    play(script)


@pytest.mark.parametrize("end", ["is lost", "has left, says the application of before"])
def test_who_comes_back_under_another_run_hears_although_the_run_before_ends_later(tmp_path: Path, end: str) -> None:
    journal = SlowJournal(tmp_path / "j")

    async def script(scene: Scene) -> None:
        await scene.watch("a")
        journal.go.release()
        await scene.say("a", TaskRegistered(who(0), "r"))
        await until(journal.begun)
        if end == "is lost":
            for _ in range(60):
                scene.pass_time(SECOND)
            await until(journal.begun)  # the loss is not in the journal, so not told either
        coming = asyncio.ensure_future(scene.say("a", TaskRegistered(who(0), "newer")))
        if end == "is lost":
            await a_turn()
        for _ in range(3):
            journal.go.release()
        await coming
        if end != "is lost":
            assert await scene.say("b", TaskDeregistered(who(0), "r")) == [Taken()]
        scene.pass_time(60 * SECOND)
        assert asked(who(0), scene.now_us) in await scene.hear("a")

    play(script, journal)
    journal.close()


def test_what_many_are_told_at_once_is_put_in_in_portions_with_others_let_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, tell = [0], Watcher.tell  # in each turn of the loop

    def counted(watcher: Watcher, message: News) -> None:
        told[-1] += isinstance(message, NotifyNewLowWatermark)
        tell(watcher, message)

    def turn() -> None:
        told.append(0)
        asyncio.get_running_loop().call_soon(turn)

    async def script(scene: Scene) -> None:
        await scene.watch("a")
        await scene.say("a", *(TaskRegistered(who(n), "r") for n in range(250)))
        scene.pass_time(SECOND)
        await scene.say("a", *(reply(who(n), "r", SECOND, 7) for n in range(249)))
        monkeypatch.setattr(Watcher, "tell", counted)
        turn()
        await scene.say("a", reply(who(249), "r", SECOND, 7))
        heard = set[TaskId]()
        while len(heard) < 250:
            heard |= {each.task for each in await scene.hear("a") if isinstance(each, NotifyNewLowWatermark)}

    play(script)
    assert [count for count in told if count] == [100, 100, 50]


def test_others_are_let_in_between_the_statements_of_a_large_message() -> None:
    async def script(scene: Scene) -> None:
        done = list[str]()

        async def say(application: str, count: int) -> None:
            await scene.say(application, *(TaskRegistered(who(n, application), "r") for n in range(count)))
            done.append(application)

        await asyncio.gather(say("large", 200), say("small", 1))
        assert done == ["small", "large"]

    play(script)


def test_who_watches_anew_during_a_large_message_hears_of_all_its_tasks() -> None:
    async def script(scene: Scene) -> None:
        await scene.watch("a")
        saying = asyncio.ensure_future(
            scene.coordinator.say(Say("a", [TaskRegistered(who(n), "r") for n in range(200)]))
        )
        await a_turn()
        taken = scene.coordinator.status().coordinator.sources[0].tasks
        assert 0 < len(taken) < 200
        await scene.watch("a")
        await saying
        await scene.say("a", *(LeaseRenewed(each.task, "r") for each in taken))  # as on a new connection
        scene.pass_time(SECOND)
        heard = set[TaskId]()
        while len(heard) < 200:
            heard |= {each.task for each in await scene.hear("a")}

    play(script)


def test_a_large_message_ends_with_the_journal() -> None:
    async def script(scene: Scene) -> None:
        saying = asyncio.ensure_future(
            scene.coordinator.say(Say("a", [TaskRegistered(who(n), "r") for n in range(200)]))
        )
        await a_turn()
        scene.coordinator.failed.set_exception(JournalRefused("j", "it is full", "make room."))
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(saying, 20)
        [source] = scene.coordinator.status().coordinator.sources
        assert len(source.tasks) < 200
        assert isinstance(scene.coordinator.failed.exception(), JournalRefused)

    play(script)


# -- the journal


def test_nothing_is_told_before_the_journal_has_it(tmp_path: Path) -> None:
    journal = SlowJournal(tmp_path / "j")

    async def script(scene: Scene) -> None:
        await scene.watch("a")
        registering = asyncio.ensure_future(scene.say("a", TaskRegistered(who(0), "r")))
        await until(journal.begun)
        assert not registering.done()
        journal.go.release()
        assert await registering == [Taken()]

        scene.pass_time(SECOND)
        assert await scene.hear("a") == [asked(who(0), SECOND)]
        # The answer ends the round. The server acknowledges it at once, but tells no effect before the write.
        assert await scene.say("a", reply(who(0), "r", SECOND, 42)) == [Taken()]
        await until(journal.begun)
        assert await scene.say("a", LeaseRenewed(who(0), "r")) == [Taken()]
        hearing = asyncio.ensure_future(scene.hear("a"))
        await asyncio.wait([hearing], timeout=0.05)
        assert not hearing.done()
        assert len(journal.changes) == 1
        journal.go.release()
        assert await hearing == [rose(who(0), SECOND, 42)]
        journal.go.release()

    play(script, journal)
    last = restore(journal, 0)
    assert last.low_watermark_us("job", "orders") == 42
    journal.close()


def test_an_answer_does_not_tell_what_the_journal_does_not_have_yet(tmp_path: Path) -> None:
    journal = SlowJournal(tmp_path / "j")
    journal.go.release()

    async def script(scene: Scene) -> None:
        await scene.watch("a")
        await scene.say("a", TaskRegistered(who(0), "r"))
        await until(journal.begun)
        scene.pass_time(SECOND)
        await scene.say("a", reply(who(0), "r", SECOND, 42))
        await until(journal.begun)
        # The write in progress has the effects of the first reply; this reply has none.
        assert await scene.say("a", reply(who(0), "r", SECOND, 42)) == [Taken()]
        journal.go.release()
        assert await scene.hear("a") == [asked(who(0), SECOND)]
        assert await scene.hear("a") == [rose(who(0), SECOND, 42)]
        assert await scene.say("a", reply(who(0), "r", SECOND, 42)) == [Taken(42)]

    play(script, journal)
    journal.close()


def test_a_write_begins_even_if_others_always_have_news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LowWatermarkCoordinator, "encode", lambda _self, _most: True)
    journal = Journal(tmp_path / "j")

    async def script(scene: Scene) -> None:
        for number in range(3):
            assert await scene.say("a", TaskRegistered(who(number), "r")) == [Taken()]

    play(script, journal)
    journal.close()


def test_many_rows_are_encoded_in_portions_with_others_let_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    portions, answered, encode = list[int](), list[int](), LowWatermarkCoordinator.encode
    begun = asyncio.Event()

    def watched(coordinator: LowWatermarkCoordinator, most: int) -> bool:
        portions.append(most)
        begun.set()
        return encode(coordinator, most)

    monkeypatch.setattr(LowWatermarkCoordinator, "encode", watched)
    journal = Journal(tmp_path / "j")

    async def script(scene: Scene) -> None:
        registering = asyncio.ensure_future(
            scene.say("a", *(TaskRegistered(who(0, f"source-{n}"), "r") for n in range(400)))
        )
        await begun.wait()
        while not registering.done():
            await scene.say("b", LeaseRenewed(who(0, "source-0"), "r"))
            answered.append(len(portions))
        await registering
        # The next write waits some time after a write, and is prepared meanwhile.
        await scene.say("a", *(TaskRegistered(who(1, f"source-{n}"), "r") for n in range(400)))

    play(script, journal)
    assert len(set(answered) & set(range(1, 8))) >= 2, answered
    assert set(portions) == {50}
    assert len(restore(journal, 0).status(0).sources) == 400
    journal.close()


def test_what_comes_while_a_write_is_under_way_is_one_more_write(tmp_path: Path) -> None:
    journal = SlowJournal(tmp_path / "j")

    async def script(scene: Scene) -> None:
        first = asyncio.ensure_future(scene.say("a", TaskRegistered(who(0), "r")))
        await until(journal.begun)
        others = [asyncio.ensure_future(scene.say("a", TaskRegistered(who(n), "r"))) for n in range(1, 50)]
        for _ in range(3):
            journal.go.release()
        await asyncio.gather(first, *others)

    play(script, journal)
    assert len(journal.changes) == 2
    assert len(restore(journal, 0).status(0).sources[0].tasks) == 50
    journal.close()


def test_a_journal_that_fails_ends_it_and_nothing_more_is_told(tmp_path: Path) -> None:
    journal = SlowJournal(tmp_path / "j")
    journal.fails = True

    async def script(scene: Scene) -> None:
        registering = asyncio.ensure_future(scene.say("a", TaskRegistered(who(0), "r")))
        await until(journal.begun)
        journal.go.release()
        with pytest.raises(asyncio.CancelledError):
            await registering
        with pytest.raises(asyncio.CancelledError):
            await scene.say("a", TaskRegistered(who(1), "r"))
        with pytest.raises(JournalRefused, match="it is full"):
            scene.coordinator.failed.result()

    play(script, journal)
    journal.close()


def why_of(scene: Scene) -> str:
    [source] = scene.coordinator.status().coordinator.sources
    return source.why


def test_while_nothing_can_be_written_everybody_waits_and_then_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(server, "_UNWRITTEN", 10)
    journal = FullJournal(tmp_path / "j", 5)

    async def script(scene: Scene) -> None:
        await scene.watch("a")
        registering = asyncio.ensure_future(scene.say("a", TaskRegistered(who(0), "r"), TaskRegistered(who(1), "r")))
        while journal.times > 3:
            await a_turn()
        for _ in range(20):  # so many questions to each, of which the newest counts
            scene.pass_time(SECOND)
        assert not registering.done()
        assert "no application hears of a rise, because the journal cannot be written" in why_of(scene)
        assert await registering == [Taken(), Taken()]
        assert why_of(scene) == "task 0 has not said a low watermark yet, as has 1 other."
        assert await scene.hear("a") == [asked(who(n), SECOND) for n in range(2)]

    play(script, journal)
    journal.close()


def test_a_disk_that_stays_full_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr("lowmark.integration.coordinator.journal._ROOM_WITHIN_SECONDS", 0.05)
    journal = FullJournal(tmp_path / "j", 10**9)

    async def script(scene: Scene) -> None:
        with pytest.raises(asyncio.CancelledError):
            await scene.say("a", TaskRegistered(who(0), "r"))
        assert isinstance(scene.coordinator.failed.exception(), JournalRefused)

    play(script, journal)
    journal.close()


def test_a_failing_journal_is_an_error_to_the_sender_and_ends_the_process(folder: Path) -> None:
    journal = folder / "state" / "j"

    async def run() -> None:
        kept = Journal(journal)
        coordinator = CoordinatorServer(restore(kept, 0), lambda: 0, journal=kept)
        (folder / "state").rename(folder / "gone")
        calls: list[asyncio.Future[grpc.StatusCode]] = []

        def register() -> grpc.StatusCode:
            with Caller(f"unix:{folder}/c.sock").channel() as channel, pytest.raises(grpc.RpcError) as failed:
                say(channel, Say("a", [TaskRegistered(who(0), "r")]))
            return status_of(failed.value)

        def ready(_address: str) -> None:
            calls.append(asyncio.ensure_future(asyncio.to_thread(register)))

        with pytest.raises(JournalRefused, match="was moved, removed, replaced or cut short"):
            await serve(coordinator, Door(f"unix:{folder}/c.sock"), stop=asyncio.Event(), ready=ready)
        assert await calls[0] is grpc.StatusCode.UNAVAILABLE
        kept.close()

    asyncio.run(run())


def test_a_task_that_left_stays_away_over_a_crash_once_that_was_answered(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")

    async def script(scene: Scene) -> None:
        await scene.say("a", TaskRegistered(who(0), "r"), reply(who(0), "r", 1, 9), TaskRegistered(who(1), "r"))
        await scene.say("a", TaskDeregistered(who(0), "r"))
        left = restore(journal, scene.now_us).status(scene.now_us).sources[0].tasks
        assert [each.away_since_us is None for each in left] == [False, True]
        await scene.say("a", TaskDeregistered(who(1), "r"))
        left = restore(journal, scene.now_us).status(scene.now_us).sources[0].tasks
        assert [each.away_since_us is None for each in left] == [False, False]

    play(script, journal)
    journal.close()


def test_a_task_that_is_forgotten_twice_is_not_waited_for_after_a_crash(tmp_path: Path) -> None:
    journal = SlowJournal(tmp_path / "j")

    async def script(scene: Scene) -> None:
        journal.go.release()
        await scene.say("a", TaskRegistered(who(0), "r", expected_tasks=2), TaskDeregistered(who(0), "r"))
        first = asyncio.ensure_future(scene.say("b", TaskForgotten(who(0))))
        await until(journal.begun)
        await until(journal.begun)
        first.cancel()  # as the command line does after its deadline
        again = asyncio.ensure_future(scene.say("c", TaskForgotten(who(0))))
        await asyncio.wait([again], timeout=0.05)
        assert not again.done()
        journal.go.release()
        journal.go.release()
        assert await again == [Taken()]
        [source] = restore(journal, scene.now_us).status(scene.now_us).sources
        assert source.away == 0

    play(script, journal)
    journal.close()


# -- over gRPC


@pytest.fixture
def channel(folder: Path) -> Iterator[grpc.Channel]:
    with serving(Door(f"unix:{folder}/c.sock")) as address, Caller(address).channel() as made:
        yield made


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (b"", "Say: "),
        (b"\xc1\xff", "Say: "),
        (messages.encode([]), "Say: Expected `object`, got `array`"),
        (messages.encode({"statements": []}), "missing required field `application`"),
        (messages.encode({"application": "", "statements": []}), "at `$.application`"),
        (messages.encode({"application": "a", "statements": [], "more": 1}), "unknown field `more`"),
        (messages.encode({"application": "a", "statements": [{"type": "Steal"}]}), "at `$.statements[0].type`"),
        (
            messages.encode({"application": "a", "statements": [{"type": "Renew", "task": {}, "token": "r"}]}),
            "at `$.statements[0].task`",
        ),
    ],
)
def test_a_malformed_message_is_answered_with_the_field_at_fault(
    channel: grpc.Channel, data: bytes, names: str
) -> None:
    failed: Any = raw(channel, data)
    assert status_of(failed) is grpc.StatusCode.INVALID_ARGUMENT
    assert names in failed.details()
    assert "Hint:" in failed.details()
    assert say(channel, Say("a", [TaskRegistered(who(0), "r")])) == [Taken()]


def test_a_call_that_stays_open_has_its_answers_in_order(channel: grpc.Channel) -> None:
    talk = Talk(channel)
    first, second = (
        Say("a", [TaskRegistered(who(0), "r"), LeaseRenewed(who(7), "r")]),
        Say("a", [reply(who(0), "r", 1, 1)]),
    )
    talk.send(messages.encode(first), messages.encode(second))
    answers = [next(talk.call).answers for _ in range(2)]
    assert [[type(each) for each in of_one] for of_one in answers] == [[Taken, Refused], [Taken]]
    talk.end()
    assert list(talk.call) == []
    assert status_of(talk.call) is grpc.StatusCode.OK


def test_a_malformed_message_ends_the_call_it_came_by_and_no_other(channel: grpc.Channel) -> None:
    one, other = Talk(channel), Talk(channel)
    for talk in (one, other):
        talk.send(messages.encode(Say("a", [TaskRegistered(who(0), "r")])))
        assert next(talk.call).answers == [Taken()]
    one.send(b"\xc1")
    with pytest.raises(grpc.RpcError):
        next(one.call)
    assert status_of(one.call) is grpc.StatusCode.INVALID_ARGUMENT
    other.send(messages.encode(Say("a", [LeaseRenewed(who(0), "r")])))
    assert next(other.call).answers == [Taken()]
    for talk in (one, other):
        talk.end()


def test_open_calls_do_not_keep_the_process_from_ending(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_GRACE_SECONDS", 60)  # `serving` waits for 20
    with ExitStack() as stack:
        with serving(Door(f"unix:{folder}/c.sock")) as address:
            talk = Talk(stack.enter_context(Caller(address).channel()))
            stack.callback(talk.end)
            talk.send(messages.encode(Say("a", [TaskRegistered(who(0), "r")])))
            assert next(talk.call).answers == [Taken()]
        with pytest.raises(grpc.RpcError):
            next(talk.call)
        assert status_of(talk.call) is grpc.StatusCode.UNAVAILABLE
        assert "the coordinator ends" in talk.call.details()


def test_a_pause_between_two_writes_does_not_keep_the_process_from_ending(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_JOURNAL_BYTES", 1)  # a second of pause for each byte; `serving` waits for 20 seconds
    journal = folder / "state" / "j"
    with serving(Door(f"unix:{folder}/c.sock"), journal=journal) as address:
        with CoordinatorClient(Caller(address)) as first:
            first.reach()
            first.register(beginning(who(0)))  # answered, and so written, before the client is closed
        with CoordinatorClient(Caller(address)) as second:
            second.register(beginning(who(1)))
            wait_until(lambda: len(ask_status(Caller(address)).coordinator.sources[0].tasks) == 2, "a write is due")
    kept = Journal(journal)
    assert restore(kept, 0).lives(who(1))
    kept.close()


def test_an_error_at_its_end_leaves_no_listener_and_no_thread(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_coordinator: CoordinatorServer) -> None:
        raise RuntimeError("planted")

    def run() -> None:
        with serving(Door(f"unix:{folder}/c.sock")) as address, CoordinatorClient(Caller(address)) as client:
            client.register(beginning(who(0)))
            wait_until(lambda: ask_status(Caller(address)).coordinator.sources, "the journal has it")

    monkeypatch.setattr(CoordinatorServer, "_hang_up", fail)
    with no_thread_stays("lowmark-journal"), pytest.raises(RuntimeError, match="planted") as failed:
        run()
    assert not answers(folder / "c.sock"), failed  # whose stack keeps the server


def test_an_oversized_message_is_refused_and_nothing_else_disturbed(channel: grpc.Channel) -> None:
    large = messages.encode(Say("a", [TaskRegistered(who(0), "x" * messages.MOST_BYTES)]))
    assert status_of(raw(channel, large)) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert say(channel, Say("a", [TaskRegistered(who(0), "r")])) == [Taken()]


def test_an_unknown_method_is_answered(channel: grpc.Channel) -> None:
    assert status_of(raw(channel, b"", f"/{messages.SERVICE}/Steal")) is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("method", ["Say", "Watch", "Status", "Unknown"])
@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", "Bearer wrong-token-of-some-length"),),
        (("authorization", TOKEN),),
        (("authorization", f"Bearer {TOKEN}x"),),
        (("authorization", f"Bearer {TOKEN}"), ("authorization", f"Bearer {TOKEN}")),
    ],
    ids=["none", "wrong", "bare", "longer", "twice"],
)
def test_without_the_token_no_method_answers(guarded: str, tmp_path: Path, method: str, metadata: Any) -> None:
    with Caller(guarded, token_file=token_file(tmp_path)).channel() as channel:
        path = f"/{messages.SERVICE}/{method}"
        call: Any = channel.unary_stream(path) if method == "Watch" else channel.unary_unary(path)
        with pytest.raises(grpc.RpcError) as failed:
            list(call(messages.encode(messages.Watch("a")), timeout=20, metadata=metadata))
    assert status_of(failed.value) is grpc.StatusCode.UNAUTHENTICATED
    assert TOKEN not in str(failed.value)


@pytest.fixture
def guarded(folder: Path, tmp_path: Path) -> Iterator[str]:
    """Served over a socket, to test the token alone."""
    with serving(Door(f"unix:{folder}/c.sock", token_file=token_file(tmp_path))) as address:
        assert ask_status(Caller(address, token_file=token_file(tmp_path))).applications == 0
        yield address


def test_a_port_is_not_shared_with_another_process(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    door = Door("127.0.0.1:0", cert, key, token_file(tmp_path))
    with serving(door) as address, pytest.raises(AddressRefused, match="cannot listen there"):
        asyncio.run(refused(Door(address, cert, key, token_file(tmp_path))))


@pytest.mark.parametrize("mutual", [False, True])
def test_renewed_certificates_count_without_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, mutual: bool
) -> None:
    """A cluster renews them on disk while the coordinator serves, and ends them days later."""
    (cert, key), token = certificate(tmp_path), token_file(tmp_path)
    with serving(Door("127.0.0.1:0", cert, key, token, client_ca=cert if mutual else None)) as address:

        def asks(cert: Path, key: Path) -> bool:
            own = {"tls_cert": cert, "tls_key": key} if mutual else {}
            try:
                return ask_status(Caller(address, tls_ca=cert, token_file=token, **own)).applications == 0
            except CoordinatorUnreachable:
                return False

        assert asks(cert, key)
        (before := tmp_path / "before").mkdir()
        (after := tmp_path / "after").mkdir()
        old = Path(shutil.copy(cert, before)), Path(shutil.copy(key, before))
        new_cert, new_key = certificate(after)
        new_cert.replace(cert)  # the key does not fit yet
        assert asks(*old), "half a renewal is none"
        assert asks(*old)
        [record] = caplog.records
        assert f"{cert} and {key}" in record.getMessage()
        new_key.replace(key)
        assert asks(cert, key)
        assert not asks(*old)


async def refused(door: Door) -> None:
    """Serve at a bad address, in the test's own loop, so that no other thread has to end."""
    nowhere: Any = None  # the journal; nothing is written
    coordinator = CoordinatorServer(LowWatermarkCoordinator(), lambda: 0, journal=nowhere)
    await serve(coordinator, door, stop=asyncio.Event(), ready=print)


@pytest.mark.parametrize(
    ("door", "says"),
    [
        (Door("127.0.0.1:70000"), "a port is at most 65535"),
        (Door(f"unix:/{'x' * 107}"), "107 bytes at most, this one 108"),
        (Door("a..b:1"), "its host cannot be a name"),
        (Door(f"{'x' * 64}.org:1"), "its host cannot be a name"),
        (Door("127.0.0.1:²"), "it is neither unix:/path nor host:port"),
        (Door("nowhere"), "it is neither unix:/path nor host:port"),
        (Door(":1"), "it is neither unix:/path nor host:port"),
        (Door("unix:relative"), "the path is relative"),
        (Door("unix:/x/y", tls_cert=Path("/c")), "TLS is for host:port"),
        (Door("127.0.0.1:0"), "--tls-cert and --tls-key and --token-file are missing"),
    ],
)
def test_an_address_that_is_not_safe_or_not_one_is_refused(door: Door, says: str) -> None:
    with pytest.raises(AddressRefused, match=says):
        asyncio.run(refused(door))


def test_a_path_with_something_else_than_a_socket_is_refused_before_a_file_is_made(folder: Path) -> None:
    (folder / "file").write_text("kept")
    (folder / "folder").mkdir()
    for name in ("file", "folder"):
        with pytest.raises(AddressRefused, match=r"a file or folder is there.*Hint: name another path\."):
            serve_once(Door(f"unix:{folder}/{name}"), folder)
    assert (folder / "file").read_text() == "kept"
    assert {each.name for each in folder.iterdir()} == {"file", "folder"}


def test_a_socket_in_a_folder_that_cannot_be_reached_is_refused_before_a_file_is_made(folder: Path) -> None:
    (folder / "file").touch()
    with pytest.raises(SocketsRefused, match=r"cannot be reached \(Not a directory\)\. Hint: name a folder of yours"):
        serve_once(Door(f"unix:{folder}/file/run/c.sock"), folder)
    (folder / "closed").mkdir(mode=0o000)
    user = os.geteuid()
    if user == 0:  # root enters every folder
        os.seteuid(65_534)
    try:
        with pytest.raises(SocketsRefused, match=r"run: it cannot be reached \(Permission denied\)"):
            Door(f"unix:{folder}/closed/run/c.sock").check()
    finally:
        os.seteuid(user)
    assert {each.name for each in folder.iterdir()} == {"file", "closed"}


def test_a_path_with_a_percent_sign_is_the_one_that_was_named(folder: Path) -> None:
    named, decoded = folder / "50%41?x#y", folder / "50A"
    for each in (named, decoded):
        each.mkdir(mode=0o755)
    named.chmod(0o700)
    with serving(Door(f"unix:{named}/c.sock")) as address:
        assert ask_status(Caller(address)).applications == 0
        assert (named / "c.sock").exists()
        assert list(decoded.iterdir()) == []


def test_a_token_that_is_a_pipe_is_refused_and_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "token", 0o600)
    with pytest.raises(TokenRefused, match="it cannot be read"):
        read_token(folder / "token")


def test_the_command_that_makes_a_token_can_be_pasted_whatever_the_name_of_the_file(folder: Path) -> None:
    token = token_file(folder, text="short", name="my token")
    with pytest.raises(TokenRefused, match=rf"rand -hex 32 > '{token}'\)"):
        read_token(token)
    token.chmod(0o644)
    with pytest.raises(TokenRefused, match=rf"run: chmod 600 '{token}'"):
        read_token(token)


def test_a_folder_in_place_of_a_token_leaves_no_descriptor_open(folder: Path) -> None:
    with pytest.raises(TokenRefused, match=r"it cannot be read \(Is a directory\)"):
        read_token(folder)
    assert folder.resolve() not in [each.resolve() for each in Path("/proc/self/fd").iterdir()]


def test_a_refused_address_leaves_no_file_behind(folder: Path, tmp_path: Path) -> None:
    for door in (
        Door("127.0.0.1:70000"),
        Door("127.0.0.1:0"),
        Door(f"unix:{folder}/c.sock", token_file=tmp_path / "none"),
        Door(f"unix:{folder}/new/c.sock", tls_cert=tmp_path / "c"),
    ):
        with pytest.raises((AddressRefused, TokenRefused)):
            serve_once(door, folder)
    assert list(folder.iterdir()) == []


def serve_once(door: Door, folder: Path) -> None:
    run_coordinator(door, Settings(), journal=folder / "state" / "j", ready=lambda *_: None)


def test_a_journal_is_told_by_a_path_that_names_it_from_every_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    told: list[Path] = []

    def ready(_: str, journal: Path) -> None:
        told.append(journal)
        signal.raise_signal(signal.SIGTERM)

    run_coordinator(Door(f"unix:{folder}/c.sock"), Settings(), journal=Path("j"), ready=ready)
    assert told == [folder / "j"]


def test_a_port_in_use_and_a_key_of_another_certificate_are_refused_before_a_file_is_made(
    folder: Path, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (cert, key), (_, other), token = certificate(tmp_path / "a"), certificate(tmp_path / "b"), token_file(tmp_path)
    with serving(Door("127.0.0.1:0", cert, key, token)) as address, pytest.raises(AddressRefused, match="in use"):
        serve_once(Door(address, cert, key, token), folder)
    with pytest.raises(AddressRefused, match="cannot be used"):
        serve_once(Door("127.0.0.1:0", cert, other, token), folder)
    with pytest.raises(AddressRefused, match="cannot listen there"):
        serve_once(Door("nowhere.invalid:1", cert, key, token), folder)
    assert list(folder.iterdir()) == []
    Door("localhost:0", cert, key, token).check()


@pytest.mark.parametrize("where", ["handle", "tell"])
def test_an_error_of_its_own_ends_it_and_does_not_leave_it_dead_and_serving(
    folder: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def wrong(*_args: Any) -> Any:
        raise AssertionError("a bug")

    def serve_until_it_ends() -> None:
        with serving(Door(f"unix:{folder}/c.sock")) as address, Caller(address).channel() as channel:
            assert say(channel, Say("a", [TaskRegistered(who(0), "r")])) == [Taken()]
            if where == "handle":
                monkeypatch.setattr(LowWatermarkCoordinator, "handle", wrong)
            else:
                monkeypatch.setattr(CoordinatorServer, "_tell", wrong)
            wait_until(lambda: not answers(Path(address.removeprefix("unix:"))), "it has ended", seconds=20)

    with pytest.raises(CoordinatorFailed, match="a bug") as failed:
        serve_until_it_ends()
    assert isinstance(failed.value.__cause__, AssertionError)


def test_a_timer_is_not_put_off_by_messages_that_keep_coming() -> None:
    async def script(scene: Scene) -> None:
        await scene.say("a", TaskRegistered(who(0), "r"))
        timer = scene.coordinator._timer
        assert timer is not None
        await scene.say("a", LeaseRenewed(who(0), "r"))
        assert scene.coordinator._timer is timer

    play(script)


def test_a_watcher_keeps_the_newest_of_each_kind() -> None:
    async def run() -> None:
        watcher = Watcher()
        watcher.tell(rose(who(0), 1, 1))
        watcher.tell(asked(who(0), 2))
        watcher.tell(rose(who(0), 3, 3))
        assert await watcher.next() == [asked(who(0), 2), rose(who(0), 3, 3)]
        watcher.end()
        assert await watcher.next() is None

    asyncio.run(run())
