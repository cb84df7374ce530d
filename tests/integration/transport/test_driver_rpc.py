"""Errors of a service reach its caller with beginning and hint."""

from __future__ import annotations

from pathlib import Path

import pytest
from lowmark.integration.errors import MalformedMessage, ServiceFailed, SocketsRefused, UnknownStream
from lowmark.integration.process import sockets
from lowmark.integration.transport.driver_rpc import STATUS, Client, Server, StatusReply, StatusRequest, handler

from tests.servers.local import no_thread_begins


def told_of(error: Exception) -> str:
    """Return the text that a caller gets for an error in the service."""

    def fail(_: StatusRequest) -> StatusReply:
        raise error

    server = Server(sockets.new_address(), handler(STATUS, fail))
    client = Client(server.address)
    try:
        with pytest.raises(ServiceFailed) as failed:
            client.status(StatusRequest(stream="clicks"))
    finally:
        client.close()
        server.stop()
    return str(failed.value)


@pytest.mark.parametrize(
    ("error", "has_stack"),
    [
        (UnknownStream("clicks", ()), False),
        (MalformedMessage("StatusRequest", "limit is -1"), False),
        (KeyError("t7"), True),
        (TypeError("no number"), True),
    ],
)
def test_the_log_of_the_driver_says_more_as_the_hint_promises(
    error: Exception, has_stack: bool, caplog: pytest.LogCaptureFixture
) -> None:
    told = told_of(error)
    assert "the driver's log says more" in told
    [record] = caplog.records
    assert f"a question of the kind Status was refused: {error}" in record.getMessage()
    assert bool(record.exc_info) == has_stack, "an error of lowmark says itself what is wrong"


@pytest.mark.parametrize("name", ["orders", "受注"])
def test_a_long_error_comes_with_its_beginning_and_its_hint(name: str) -> None:
    told = told_of(UnknownStream("clicks", tuple(f"{name} of shop {n}" + "!" * 2_000 for n in range(20))))
    assert f'NOT_FOUND: no stream "clicks"; there is "{name} of shop 0!' in told
    assert "Hint: wrap or read a stream under that name, and start its query." in told


def test_an_error_with_a_long_stack_of_java_comes_with_its_beginning_and_is_whole_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stack = "\n".join(f"\tat org.apache.spark.sql.Dataset.withAction({n})" for n in range(1_000))
    told = told_of(RuntimeError(f"o7.lastProgress failed\n{stack}"))
    assert "UNKNOWN: Exception calling application: o7.lastProgress failed" in told
    assert all(f"Dataset.withAction({n})" in caplog.text for n in range(1_000))


def test_a_folder_in_which_no_socket_can_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(SocketsRefused) as refused:  # also on a disk that has no room for a file more
        Server(f"unix:{tmp_path}/gone/c.sock")
    assert str(refused.value) == (
        f"socket folder {tmp_path}/gone: no socket can be made in it. Hint: see that the folder is writable and its "
        "disk has room for a file, or set XDG_RUNTIME_DIR to another folder."
    )


def test_a_server_stops_also_where_the_end_of_the_process_begins_no_thread() -> None:
    server = Server(sockets.new_address())
    with no_thread_begins():
        server.stop()
    assert not sockets.answers(Path(server.address.removeprefix("unix:")))
