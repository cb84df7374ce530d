"""The HTTP server of the metrics and of the page, against slow, many, broken and foreign clients."""

from __future__ import annotations

import http.client
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Protocol

import pytest
from lowmark.integration.metrics.endpoint import MetricsServer
from lowmark.integration.page.app import PageServer
from lowmark.integration.process import http_server

from tests.integration.metrics.test_metrics import FakeService
from tests.integration.metrics.test_metrics import two_splits as measured
from tests.integration.page.test_page import ADDRESS, FakeServices, two_splits
from tests.servers.local import port_open, wait_until

MOST = http_server._MOST_CLIENTS


class Server(Protocol):
    port: int

    def stop(self) -> None: ...


def metrics(port: int = 0) -> Server:
    return MetricsServer(FakeService([measured()]), port=port)


def page(port: int = 0) -> Server:
    return PageServer(FakeServices({ADDRESS: [two_splits()]}), port=port)


KINDS: dict[str, tuple[Callable[..., Server], str]] = {"metrics": (metrics, "/metrics"), "page": (page, "/state")}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def path(kind: str) -> str:
    return KINDS[kind][1]


@pytest.fixture
def server(kind: str) -> Iterator[Server]:
    server = KINDS[kind][0]()
    yield server
    server.stop()


def ask(server: Server, path: str, host: str = "localhost", at: str = "127.0.0.1") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(at, server.port, timeout=20)
    try:
        connection.putrequest("GET", path, skip_host=True)
        connection.putheader("Host", host)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@contextmanager
def clients(port: int, count: int, sent: bytes = b"", source: str = "127.0.0.1") -> Iterator[list[socket.socket]]:
    """Clients that neither finish a request nor read."""
    with ExitStack() as opened:
        found = []
        for _ in range(count):
            client = opened.enter_context(
                socket.create_connection(("127.0.0.1", port), timeout=20, source_address=(source, 0))
            )
            client.sendall(sent)
            found.append(client)
        yield found


def answering() -> list[threading.Thread]:
    """The threads that answer clients."""
    return [thread for thread in threading.enumerate() if "process_request_thread" in thread.name]


def ended(client: socket.socket) -> bool:
    """Wait until the other side hangs up."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def answer_to(client: socket.socket) -> bytes:
    """Return the bytes that the server sends until it hangs up."""
    answer = b""
    with suppress(ConnectionResetError):
        while data := client.recv(65_536):
            answer += data
    return answer


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\nHost: "], ids=["silent", "in the middle"])
def test_slow_clients_take_a_bounded_number_of_threads_and_nobody_waits_for_them(
    server: Server, path: str, sent: bytes
) -> None:
    with clients(server.port, 70, sent) as slow:
        assert ask(server, path)[0] == 200
        assert all(map(ended, slow[: 70 - MOST])), "the oldest made room"
        wait_until(lambda: len(answering()) <= MOST, "the threads of the others end")


def test_a_slow_client_is_hung_up_on_though_it_sends_a_byte_now_and_then(
    monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    monkeypatch.setattr(http_server, "_CLIENT_SECONDS", 0.2)
    with clients(server.port, 3, b"GET / HTTP/1.1\r\n") as slow:

        def are_gone() -> bool:
            for client in slow:
                with suppress(OSError):
                    client.sendall(b"x")
            return not answering()

        wait_until(are_gone, "their threads end")


def test_a_peer_makes_room_from_its_own_share(server: Server) -> None:
    with clients(server.port, 2, source="127.0.0.2") as few, clients(server.port, 3 * MOST) as many:
        assert all(map(ended, many[: 2 * MOST]))
        for client in few:
            client.settimeout(0.1)
            with pytest.raises(TimeoutError):
                client.recv(1)


def test_stop_hangs_up_on_whoever_is_there_frees_the_port_and_may_come_twice(kind: str) -> None:
    server = KINDS[kind][0]()
    with clients(server.port, 3) as slow:
        wait_until(lambda: len(answering()) == 3, "they are there")
        server.stop()
        assert all(map(ended, slow))
        server.stop()
        assert not port_open(server.port)
        KINDS[kind][0](server.port).stop()


BROKEN = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a browser that tries TLS
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 101 + b"\r\n",
    b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"x" * 70_000 + b"\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n",
]


def test_no_request_of_a_client_is_a_line_on_stderr_or_in_the_log(
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(http_server, "_CLIENT_SECONDS", 1.0)  # a client that speaks TLS sends no line, and waits
    caplog.set_level(logging.INFO)
    for sent in BROKEN:
        with clients(server.port, 1, sent) as [client]:
            answer = answer_to(client)
            assert b"Traceback" not in answer
            assert b"Server:" not in answer
    for _ in range(50):
        with clients(server.port, 1, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            pass  # the client goes before the answer
    wait_until(lambda: not answering(), "their threads end")
    assert capfd.readouterr() == ("", "")
    # py4j logs on its own threads when another test of the process has had a session.
    assert [each.getMessage() for each in caplog.records if not each.name.startswith("py4j")] == []


@pytest.mark.parametrize("sent", [b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"])
def test_what_is_refused_is_answered_as_strictly_as_all(server: Server, sent: bytes) -> None:
    with clients(server.port, 1, sent) as [client]:
        assert b"content-security-policy: default-src 'none'" in answer_to(client).lower()


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_stop_under_load_prints_nothing(kind: str, path: str, capfd: pytest.CaptureFixture[str]) -> None:
    server, answered, over = KINDS[kind][0](), threading.Event(), threading.Event()

    def load() -> None:
        while not over.is_set():
            with suppress(OSError, http.client.HTTPException):
                if ask(server, path)[0] == 200:
                    answered.set()

    with ThreadPoolExecutor(8) as pool, clients(server.port, 4):
        loads = [pool.submit(load) for _ in range(8)]
        try:
            assert answered.wait(60), "the server answers under load"
            server.stop()
        finally:
            over.set()
        for each in loads:
            each.result()
    wait_until(lambda: not answering(), "the threads end")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "127.0.0.1@evil.example", "[::1", "",
        "localhost, localhost", "10.0.0.1",
    ],
)  # fmt: skip
def test_a_name_that_was_bound_anew_to_this_machine_learns_nothing(server: Server, path: str, host: str) -> None:
    status, body = ask(server, path, host)
    assert (status, b"orders" in body) == (421, False)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.1:9464", "[::1]:1", "LOCALHOST", "LOCALHOST:8080"])
def test_a_name_of_this_machine_is_answered(server: Server, path: str, host: str) -> None:
    status, body = ask(server, path, host)
    assert (status, b"orders" in body) == (200, True)


def test_metrics_that_are_opened_to_others_answer_to_every_name() -> None:
    """Prometheus may know the machine by any name, and every machine may connect."""
    server = MetricsServer(FakeService([measured()]), host="0.0.0.0")
    try:
        assert ask(server, "/metrics", "driver.example:9464")[0] == 200
    finally:
        server.stop()


def test_metrics_on_another_address_of_this_machine_answer_to_it() -> None:
    server = MetricsServer(FakeService([measured()]), host="127.0.0.2")
    try:
        assert ask(server, "/metrics", f"127.0.0.2:{server.port}", at="127.0.0.2")[0] == 200
        assert ask(server, "/metrics", "evil.example", at="127.0.0.2")[0] == 421
    finally:
        server.stop()


def test_a_fault_of_ours_is_told_in_the_log_and_not_to_the_client(caplog: pytest.LogCaptureFixture) -> None:
    server = http_server.HttpServer(lambda *_: [b"" for _ in [1 // 0]], host="127.0.0.1", port=0, name="lowmark-test")
    try:
        status, body = ask(server, "/")
    finally:
        server.stop()
    assert (status, b"ZeroDivisionError" in body) == (500, False)
    [told] = caplog.records
    assert (told.getMessage(), told.exc_info is not None) == ("a request could not be answered", True)
