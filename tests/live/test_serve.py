"""`lowmark serve` as a real process: killed, restarted, terminated; over a socket, and over TCP with TLS and token."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import grpc
import grpc.aio
import pytest
from lowmark.integration.coordinator import messages
from lowmark.integration.coordinator.access import Caller
from lowmark.integration.coordinator.ask import ask_status
from lowmark.integration.coordinator.client import CoordinatorClient
from lowmark.integration.coordinator.journal import Journal
from lowmark.integration.errors import AddressRefused, CoordinatorUnreachable
from lowmark.watermark import TaskId
from lowmark.watermark.protocol import TaskDeregistered, TaskRegistered
from lowmark.watermark.strategy import AlignmentParams
from lowmark.watermark.tasks.cap import Cap, CapKind
from lowmark.watermark.tasks.restored import decode
from lowmark.watermark.tasks.snapshot import Rows
from lowmark.watermark.tasks.status import TaskStatus, run_mark

from tests.integration.cli.test_cli import call
from tests.integration.coordinator.serving import (
    beginning,
    certificate,
    private_folder,
    reply,
    report,
    task,
    token_file,
)
from tests.integration.feed import Feed, us
from tests.servers.coordinator import Served, served
from tests.servers.local import LOWMARK, require_java, wait_until
from tests.worlds.strangers import endless, indexed, knock, silent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = 60  # the limit for waits of one second, on a busy machine


def rows_of(journal: Path) -> Rows:
    """Return the rows of a copy of a journal, as it would be read after a kill; its process has the journal's lock."""
    with tempfile.TemporaryDirectory() as folder:
        for file in journal.parent.glob(f"{journal.name}*"):
            shutil.copy(file, folder)
        copy = Journal(Path(folder) / journal.name)
        try:
            return copy.read()
        finally:
            copy.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    with private_folder() as made:
        yield made


@dataclass
class Lows:
    """Every low watermark that each task received, in order."""

    heard: dict[TaskId, list[int]] = field(default_factory=dict)

    def __call__(self, who: TaskId, low_us: int) -> None:
        self.heard.setdefault(who, []).append(low_us)

    def has(self, low_us: int) -> bool:
        return any(low_us in lows for lows in self.heard.values())

    def newest(self) -> list[int]:
        return [lows[-1] for lows in self.heard.values()]


def test_a_coordinator_that_is_killed_resumes_and_no_low_watermark_goes_back(folder: Path) -> None:
    lows = Lows()
    tasks = [task(n, source=f"source-{n % 2}") for n in range(20)]
    with (
        CoordinatorClient(Caller(f"unix:{folder}/c.sock"), on_low=lows) as one,
        CoordinatorClient(Caller(f"unix:{folder}/c.sock"), on_low=lows) as two,
    ):
        clients = [one if n < 10 else two for n in range(20)]
        for each, client in zip(tasks, clients, strict=True):
            client.register(beginning(each))
        for life in range(1, 3):
            with served(folder) as coordinator:

                def risen(to_us: int) -> bool:
                    for n, (each, client) in enumerate(zip(tasks, clients, strict=True)):
                        report(client, each, to_us + n)
                    return len(lows.heard) == 20 and min(lows.newest()) >= to_us

                wait_until(partial(risen, 1_000 * life), f"life {life}", seconds=SECONDS)
                # Kill during reports; the journal already has every published value.
                for n, (each, client) in enumerate(zip(tasks, clients, strict=True)):
                    report(client, each, 1_000 * life + 500 + n)
                coordinator.kill()
            told = lows.newest()
            wait_until(lambda: not one.connected and not two.connected, "they notice", seconds=SECONDS)
            assert [client.low_us(each) for each, client in zip(tasks, clients, strict=True)] == [
                lows.heard[each][-1] for each in tasks
            ]
            assert min(told) >= 1_000 * life
    for each in tasks:
        assert lows.heard[each] == sorted(set(lows.heard[each])), each


def test_what_was_told_is_published_still_after_a_kill_at_once(folder: Path) -> None:
    for number in range(1, 4):
        lows = Lows()
        with served(folder) as coordinator:
            sources = ask_status(Caller(coordinator.address)).coordinator.sources
            assert [source.low_watermark_us for source in sources] == [10 * (number - 1)] * (number > 1)
            with CoordinatorClient(Caller(coordinator.address), on_low=lows) as client:
                client.register(beginning(task(0)))
                report(client, task(0), 10 * number)
                wait_until(partial(lows.has, 10 * number), f"{number} is told", seconds=SECONDS)
                coordinator.kill()


@contextmanager
def member(address: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has reported a low watermark of 10 for task 0."""
    program = (
        "import sys\n"
        "from lowmark.integration.coordinator.access import Caller\n"
        "from lowmark.integration.coordinator.client import CoordinatorClient\n"
        "from tests.integration.coordinator.serving import beginning, task, report\n"
        f"client = CoordinatorClient(Caller({address!r}))\n"
        "client.register(beginning(task(0)))\n"
        "report(client, task(0), 10)\n"
        "print('here', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "here\n"
            yield process
        finally:
            process.kill()


def test_a_member_that_dies_is_pruned_after_its_lease_and_holds_nothing_any_more(folder: Path) -> None:
    address = f"unix:{folder}/c.sock"
    with served(folder, lease="1 second"), CoordinatorClient(Caller(address)) as alive:
        alive.register(beginning(task(1)))
        report(alive, task(1), 5)
        with member(address):
            wait_until(
                lambda: len(ask_status(Caller(address)).coordinator.sources[0].tasks) == 2, "both", seconds=SECONDS
            )
            report(alive, task(1), 99)
            wait_until(lambda: alive.low_us(task(1)) == 10, "the other one holds it", seconds=SECONDS)
        wait_until(lambda: alive.low_us(task(1)) == 99, "the dead one is left out", seconds=SECONDS)
        seen = ask_status(Caller(address)).coordinator
        assert (seen.lost, [each.task for each in seen.sources[0].tasks]) == (1, [task(1)])


@pytest.mark.slow
def test_a_member_that_is_cut_off_without_a_word_is_hung_up_on_in_half_a_minute(folder: Path) -> None:
    address = f"unix:{folder}/c.sock"
    with served(folder), member(address) as other:
        wait_until(lambda: ask_status(Caller(address)).applications == 1, "it watches", seconds=SECONDS)
        other.send_signal(signal.SIGSTOP)
        wait_until(lambda: ask_status(Caller(address)).applications == 0, "it is hung up on", seconds=50)


@contextmanager
def driver(folder: Path, coordinator: str) -> Iterator[None]:
    """A Spark application, killed at the end: its Python and its JVM at once, like a lost machine."""
    with (folder / "driver.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.drivers.job", str(folder), coordinator],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield
        assert process.poll() is None, (folder / "driver.log").read_text()[-4_000:]
    except TimeoutError as late:
        raise AssertionError((folder / "driver.log").read_text()[-4_000:]) from late
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.slow
@pytest.mark.spark
def test_a_spark_driver_that_is_killed_takes_its_own_task_again(folder: Path, tmp_path: Path) -> None:
    require_java()
    feed, rest = Feed(cast("SparkSession", None), tmp_path / "feed"), TaskId("billing", "orders", "another query")

    def drivers_task() -> TaskStatus:
        [source] = ask_status(Caller(coordinator.address)).coordinator.sources
        [found] = [each for each in source.tasks if each.task != rest]
        return found

    def drivers_run() -> str:
        """Return the run from a copy of the journal, because no status has it."""
        runs = decode(rows_of(coordinator.journal))["run"]
        return next(str(run) for *_, task_id, run in runs if task_id != rest.task_id)

    # The lease is longer than the test, so the task does not continue because of an expired run.
    with served(folder, lease="1 hour") as coordinator, CoordinatorClient(Caller(coordinator.address)) as client:
        client.register(beginning(rest, expected_tasks=2))
        report(client, rest, us(1_000))
        feed.put(("a", 1, 100))
        with driver(tmp_path, coordinator.address):
            wait_until(
                lambda: client.low_us(rest) == us(100) - 1_000, "the driver's low watermark", seconds=2 * SECONDS
            )
            before, token = drivers_task(), drivers_run()
        feed.put(("a", 1, 300))
        report(client, rest, us(2_000))
        assert drivers_task().mark == before.mark
        with driver(tmp_path, coordinator.address):
            wait_until(lambda: client.low_us(rest) == us(300) - 1_000, "it goes on", seconds=2 * SECONDS)
            after = drivers_task()
        assert before.task == after.task == TaskId("billing", "orders", query_id(tmp_path / "checkpoint"))
        assert before.mark == run_mark(token) != after.mark
        assert ask_status(Caller(coordinator.address)).coordinator.lost == 0
        with Caller(coordinator.address).channel() as channel:
            say = channel.unary_unary(
                messages.SAY.path, request_serializer=messages.encode, response_deserializer=messages.SAY.decode_answer
            )
            late = reply(before.task, token, us(0), us(5_000))
            [answer] = say(messages.Say("the one that was killed", [late]), timeout=10).answers
        assert getattr(answer, "error", None) == "StaleRun"
        assert client.low_us(rest) == us(300) - 1_000


def query_id(checkpoint: Path) -> str:
    """Spark's own id of the query, constant over its restarts."""
    found = json.loads((checkpoint / "metadata").read_text())["id"]
    assert isinstance(found, str)
    return found


def capped(client: CoordinatorClient, each: TaskId, us: int) -> bool:
    return client.cap(each) == Cap.up_to(us)


def has_risen(client: CoordinatorClient, low_us: int) -> bool:
    return client.low_us(task(0)) == low_us


def test_two_applications_of_one_group_hear_one_cap(folder: Path) -> None:
    params = AlignmentParams("g", max_drift_us=100, update_interval_us=50_000)
    fast, slow = task(0, job="fast"), task(0, job="slow")
    with (
        served(folder) as coordinator,
        CoordinatorClient(Caller(coordinator.address)) as one,
        CoordinatorClient(Caller(coordinator.address)) as two,
    ):
        for client, each, low_us in ((one, fast, 5_000), (two, slow, 1_000)):
            client.register(beginning(each, alignment=params))
            report(client, each, low_us)
        for client, each in ((one, fast), (two, slow)):
            wait_until(partial(capped, client, each, 1_100), "the cap", seconds=SECONDS)
        report(two, slow, 1_700)
        wait_until(lambda: one.cap(fast) == Cap.up_to(1_800), "the next cap", seconds=SECONDS)

        refused: list[str] = []
        with CoordinatorClient(
            Caller(coordinator.address), on_given_up=lambda _t, error: refused.append(str(error))
        ) as third:
            third.register(beginning(task(0, job="third"), alignment=AlignmentParams("g", 7, 50_000)))
            wait_until(lambda: refused, "the refusal", seconds=SECONDS)
        assert "DisagreeingGroup" in refused[0]
        assert "third/orders/0" in refused[0]
        assert re.search(r"task (fast|slow)/orders/0 joined with max drift 0.0001s", refused[0])  # whichever came first
        assert one.cap(fast) == Cap.up_to(1_800)
        assert one.connected
        two.deregister(slow)
        wait_until(lambda: one.cap(fast) not in (None, Cap.up_to(1_800)), "alone", seconds=SECONDS)
        cap = one.cap(fast)
        assert cap is not None
        assert cap.kind is CapKind.UP_TO


def test_over_tcp_only_those_with_certificate_and_token_come_in(folder: Path, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    good, bad = token_file(tmp_path), token_file(tmp_path, "another-token-altogether", "bad")
    options = ("--tls-cert", str(cert), "--tls-key", str(key), "--token-file", str(good))
    with served(folder, *options, address="127.0.0.1:0") as coordinator:
        address = coordinator.address
        assert not address.endswith(":0")
        with CoordinatorClient(Caller(address, tls_ca=cert, token_file=good)) as client:
            client.register(beginning(task(0)))
            report(client, task(0), 7)
            wait_until(lambda: client.low_us(task(0)) == 7, "it works", seconds=SECONDS)

            for token, code in ((good, 0), (bad, 2)):  # as a probe does
                secrets = ("--tls-ca", str(cert), "--token-file", str(token))
                probe = [*LOWMARK, "status", "--json", "--limit", "1", "--coordinator", address, *secrets]
                assert subprocess.run(probe, capture_output=True, timeout=60, check=False).returncode == code
            with pytest.raises(CoordinatorUnreachable, match=r"UNAUTHENTICATED.*token file"):
                ask_status(Caller(address, tls_ca=cert, token_file=bad))
            with CoordinatorClient(Caller(address, tls_ca=cert, token_file=bad)) as stranger:
                wait_until(lambda: "UNAUTHENTICATED" in stranger.why, "the reason", seconds=SECONDS)
                assert not stranger.connected
            with grpc.insecure_channel(address) as plain:
                call: Any = plain.unary_unary(messages.STATUS.path, request_serializer=messages.encode)
                with pytest.raises(grpc.RpcError) as failed:
                    call(messages.StatusQuestion(), timeout=10, metadata=(("authorization", "Bearer x"),))
                assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
            with pytest.raises(AddressRefused, match="tls_ca and token_file are missing"):
                CoordinatorClient(Caller(address))
            with pytest.raises(AddressRefused, match="token_file is missing"):
                ask_status(Caller(address, tls_ca=cert))

            report(client, task(0), 8)
            wait_until(lambda: client.low_us(task(0)) == 8, "and goes on working", seconds=SECONDS)


@contextmanager
def served_to_all(folder: Path, tmp_path: Path, before: tuple[str, ...] = ()) -> Iterator[tuple[Served, Path, Path]]:
    """Yield a coordinator at a TCP port, with its certificate and its token."""
    (cert, key), token = certificate(tmp_path), token_file(tmp_path)
    options = ("--tls-cert", str(cert), "--tls-key", str(key), "--token-file", str(token))
    with served(folder, *options, address="127.0.0.1:0", before=before) as coordinator:
        yield coordinator, cert, token


def test_connections_without_end_do_not_end_it_and_do_not_disturb_who_is_there(folder: Path, tmp_path: Path) -> None:
    limited = ("sh", "-c", 'ulimit -n 1024; exec "$@"', "sh")
    with ExitStack() as stack:
        coordinator, cert, token = stack.enter_context(served_to_all(folder, tmp_path, limited))
        host, _, port = coordinator.address.rpartition(":")
        client = stack.enter_context(CoordinatorClient(Caller(coordinator.address, tls_ca=cert, token_file=token)))
        client.register(beginning(task(0)))
        report(client, task(0), 1)
        wait_until(lambda: client.low_us(task(0)) == 1, "it works", seconds=SECONDS)
        for _ in range(1_500):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=20))
        for number in range(1, 4):  # each causes a write of the journal
            client.register(beginning(task(number)))
            for each in range(number + 1):
                report(client, task(each), 10 * number)
            wait_until(
                lambda: client.low_us(task(0)) == 10 * number,  # noqa: B023
                f"it goes on, {number}",
                seconds=SECONDS,
            )
        assert coordinator.process.poll() is None

        def comes_in() -> bool:
            try:
                return ask_status(Caller(coordinator.address, tls_ca=cert, token_file=token)).pid > 0
            except CoordinatorUnreachable:
                return False

        wait_until(comes_in, "who never shakes hands has to go, so others come in", seconds=SECONDS)


def test_calls_without_the_token_that_never_say_anything_are_not_kept(folder: Path, tmp_path: Path) -> None:
    with served_to_all(folder, tmp_path) as (coordinator, cert, token):
        before_mib = coordinator.peak_mib()

        async def call(times: int) -> list[grpc.StatusCode]:
            trusted = grpc.ssl_channel_credentials(cert.read_bytes())
            async with grpc.aio.secure_channel(coordinator.address, trusted) as channel:
                begin: Any = channel.stream_stream(messages.STATUS.path)
                calls = [begin() for _ in range(times)]
                return [await asyncio.wait_for(each.code(), SECONDS) for each in calls]

        codes = set(asyncio.run(call(3_000)))
        assert grpc.StatusCode.UNAUTHENTICATED in codes
        assert codes <= {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE}
        assert coordinator.peak_mib() - before_mib < 25  # 57 if the messages were kept
        assert ask_status(Caller(coordinator.address, tls_ca=cert, token_file=token)).applications == 0


def test_a_connection_that_makes_no_call_is_cut(folder: Path, tmp_path: Path) -> None:
    with served_to_all(folder, tmp_path) as (coordinator, _, _):
        ended = knock(int(coordinator.address.rpartition(":")[2]), silent, connections=1, seconds=15)
        assert ended["cut"] == 1


def test_where_callers_need_a_certificate_a_stranger_costs_no_memory_and_delays_nobody(
    folder: Path, tmp_path: Path
) -> None:
    (cert, key), token = certificate(tmp_path), token_file(tmp_path)
    options = ("--tls-cert", str(cert), "--tls-key", str(key), "--token-file", str(token), "--tls-client-ca", str(cert))
    with (
        served(folder, *options, address="127.0.0.1:0") as coordinator,
        CoordinatorClient(
            Caller(coordinator.address, tls_ca=cert, token_file=token, tls_cert=cert, tls_key=key)
        ) as client,
    ):
        client.register(beginning(task(0)))
        report(client, task(0), 1)
        wait_until(lambda: client.low_us(task(0)) == 1, "it works", seconds=SECONDS)
        before_mib = coordinator.peak_mib()
        for number, behaviour in enumerate((indexed, endless), 2):
            knock(int(coordinator.address.rpartition(":")[2]), behaviour, connections=20, seconds=2)
            assert coordinator.peak_mib() - before_mib < 100, behaviour.__name__
            report(client, task(0), number)
            wait_until(partial(has_risen, client, number), "and goes on working", seconds=SECONDS)

        with pytest.raises(CoordinatorUnreachable, match=r"UNAVAILABLE|DEADLINE_EXCEEDED"):
            ask_status(Caller(coordinator.address, tls_ca=cert, token_file=token))
        shown = ("--tls-ca", cert, "--token-file", token, "--tls-cert", cert, "--tls-key", key)
        probe = [*LOWMARK, "status", "--coordinator", coordinator.address, *map(str, shown)]
        assert subprocess.run(probe, capture_output=True, timeout=60, check=False).returncode == 0


def test_a_small_message_that_unpacks_to_much_is_refused_before_it_is_unpacked(folder: Path, tmp_path: Path) -> None:
    with served_to_all(folder, tmp_path) as (coordinator, cert, token):
        before_mib = coordinator.peak_mib()
        caller = Caller(coordinator.address, cert, token)
        trusted = grpc.ssl_channel_credentials(cert.read_bytes())
        with grpc.secure_channel(coordinator.address, trusted, compression=grpc.Compression.Gzip) as channel:
            call: Any
            for call in (channel.unary_unary(messages.STATUS.path), channel.unary_unary(messages.SAY.path)):
                with pytest.raises(grpc.RpcError) as failed:
                    call(bytes(64 << 20), timeout=SECONDS, metadata=caller.metadata())
                assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert coordinator.peak_mib() - before_mib < 32


def test_a_replayed_message_of_a_stale_run_is_refused(folder: Path) -> None:
    who = TaskId("job", "orders", "0")
    replayed = messages.Say(
        "old",
        [TaskRegistered(who, "run-1", 5), reply(who, "run-1", 1, 5), TaskDeregistered(who, "run-1")],
    )
    with served(folder) as coordinator, CoordinatorClient(Caller(coordinator.address)) as client:
        client.register(beginning(task(0), token="run-1"))
        report(client, task(0), 5)
        wait_until(lambda: client.low_us(task(0)) == 5, "the first run", seconds=SECONDS)
        client.register(beginning(task(0), token="run-2"))
        report(client, task(0), 9)
        wait_until(lambda: client.low_us(task(0)) == 9, "the second run", seconds=SECONDS)
        with Caller(coordinator.address).channel() as channel:
            say = channel.unary_unary(
                messages.SAY.path, request_serializer=messages.encode, response_deserializer=messages.SAY.decode_answer
            )
            answers = say(replayed, timeout=10).answers
        # A repeated end of a run is accepted, because it changes nothing.
        assert [getattr(answer, "error", None) for answer in answers] == ["StaleRun", "StaleRun", None]
        report(client, task(0), 12)
        wait_until(lambda: client.low_us(task(0)) == 12, "undisturbed", seconds=SECONDS)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_it_ends_cleanly_on_signals_also_while_somebody_watches(
    folder: Path, number: signal.Signals, code: int
) -> None:
    with served(folder) as coordinator, CoordinatorClient(Caller(coordinator.address)) as client:
        wait_until(lambda: client.connected, "connected", seconds=SECONDS)
        coordinator.process.send_signal(number)
        assert coordinator.process.wait(30) == code
        assert coordinator.process.stderr is not None
        assert "Traceback" not in coordinator.process.stderr.read()
        assert not (folder / "c.sock").exists()


def test_what_is_not_safe_is_refused_at_the_start(folder: Path, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)

    def refused(*options: str) -> str:
        ended = subprocess.run(
            [*LOWMARK, "serve", "--journal", str(tmp_path / "j"), *options],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (ended.returncode, ended.stdout) == (2, ""), ended
        return ended.stderr

    assert "--tls-cert and --tls-key and --token-file are missing" in refused("--address", "127.0.0.1:0")
    assert "--lease: expected at most 7d, got 8 days" in " ".join(refused("--lease", "8 days").split())
    assert "--interval: expected more than 0, got 0s" in " ".join(refused("--interval", "0s").split())
    assert "--token-file is missing" in refused(
        "--address", "127.0.0.1:0", "--tls-cert", str(cert), "--tls-key", str(key)
    )
    open_to_all = token_file(tmp_path)
    open_to_all.chmod(0o644)
    assert "its permissions are 0644, expected 0600" in refused(
        "--address", "127.0.0.1:0", "--tls-cert", str(cert), "--tls-key", str(key), "--token-file", str(open_to_all)
    )
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    shared.chmod(0o755)
    assert "its permissions are 0755, expected 0700" in refused("--address", f"unix:{shared}/c.sock")
    with served(folder) as coordinator:
        assert "somebody listens there already" in refused("--address", coordinator.address)
        assert "another coordinator writes it" in refused(
            "--address", f"unix:{folder}/other.sock", "--journal", str(coordinator.journal)
        )
    (tmp_path / "damaged").write_bytes(b"LWMC and nothing of use")
    assert "no state that can be restored" in refused(
        "--address", f"unix:{folder}/c.sock", "--journal", str(tmp_path / "damaged")
    )
    assert (tmp_path / "damaged").read_bytes() == b"LWMC and nothing of use"


def test_status_and_explain_on_the_command_line(folder: Path) -> None:
    def lowmark(*arguments: str) -> str:
        code, out, err = call(*arguments)
        assert code == 0, err
        return out

    with served(folder) as coordinator, CoordinatorClient(Caller(coordinator.address)) as client:
        for n in range(2):
            client.register(beginning(task(n), alignment=AlignmentParams("g", 100, 50_000)))
            report(client, task(n), n)
        wait_until(lambda: client.low_us(task(1)) == 0, "a low watermark", seconds=SECONDS)
        seen = json.loads(lowmark("status", "--coordinator", coordinator.address, "--json"))
        assert seen["coordinator"]["sources"][0]["low_watermark_us"] == 0
        assert seen["coordinator"]["sources"][0]["holder"]["task_id"] == "0"
        assert seen["applications"] == 1
        text = lowmark("status", "orders", "--coordinator", coordinator.address)
        assert "orders of job" in text
        assert "group g" in text
        told = lowmark("explain", "--coordinator", coordinator.address)
        assert "task 0 has the smallest low watermark of 2 tasks" in told
        assert "Group g: the cap is 1970-01-01 00:00:00.000 UTC." in told
        for n, low_us in enumerate((-(2**63), 2**63 - 1)):
            client.register(beginning(TaskId("far", "far", str(n)), alignment=AlignmentParams("far", 100, 50_000)))
            report(client, TaskId("far", "far", str(n)), low_us)

        def far_away() -> bool:
            groups = {group.group: group for group in ask_status(Caller(coordinator.address)).coordinator.groups}
            return "far" in groups and [m.low_us for m in groups["far"].members] == [-(2**63), 2**63 - 1]

        wait_until(far_away, "members at both ends of time", seconds=SECONDS)
        assert json.loads(lowmark("status", "--coordinator", coordinator.address, "--json"))["coordinator"]["groups"]
        assert "far" in lowmark("status", "--coordinator", coordinator.address)
        assert "Group far" in lowmark("explain", "--coordinator", coordinator.address)

        client.register(beginning(TaskId("pair", "orders", "here"), expected_tasks=2))
        client.register(beginning(TaskId("pair", "orders", "away"), expected_tasks=2))
        report(client, TaskId("pair", "orders", "away"), 5)
        report(client, TaskId("pair", "orders", "here"), 7)
        wait_until(lambda: client.low_us(TaskId("pair", "orders", "here")) == 5, "both are there", seconds=SECONDS)
        client.deregister(TaskId("pair", "orders", "away"))
        wait_until(
            lambda: ask_status(Caller(coordinator.address)).coordinator.sources[-1].away, "it is away", seconds=SECONDS
        )
        words = lowmark("explain", "orders", "--coordinator", coordinator.address)
        command = f"lowmark forget --coordinator {coordinator.address} pair orders QUERY"
        for part in ("Why: task away has been away since ", "2 tasks are expected and 1 live", command):
            assert part in words, words
        table = lowmark("status", "orders", "--coordinator", coordinator.address)
        assert re.search(r"away +away ", table), table
        forget = ("forget", "--coordinator", coordinator.address, "pair", "orders")
        code, _, err = call(*forget, "here")
        assert (code, "it is registered, and alive" in err) == (2, True), err
        assert json.loads(lowmark(*forget, "away", "--json"))["forgotten"]["query"] == "away"
        wait_until(lambda: client.low_us(TaskId("pair", "orders", "here")) == 7, "it is forgotten", seconds=SECONDS)

        alone = TaskId("alone", "clicks", "one")
        client.register(beginning(alone))
        report(client, alone, 5)
        wait_until(lambda: client.low_us(alone) == 5, "it is there", seconds=SECONDS)
        client.deregister(alone)
        wait_until(
            lambda: ask_status(Caller(coordinator.address)).coordinator.sources[0].away, "it is away", seconds=SECONDS
        )
        words = lowmark("explain", "clicks", "--coordinator", coordinator.address)
        assert "Why: no task lives, and the low watermark stays; task one has been away since " in words
        assert "Hint" not in words, words

        code, _, err = call("status", "order", "--coordinator", coordinator.address)
        assert (code, 'did you mean "orders"?' in err) == (1, True)
