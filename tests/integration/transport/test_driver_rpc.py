"""Errors of a service reach its caller with beginning and hint."""

from __future__ import annotations

import pytest
from lowmark.integration.errors import MalformedMessage, ServiceFailed, UnknownStream
from lowmark.integration.process import sockets
from lowmark.integration.transport.driver_rpc import STATUS, Client, Server, StatusReply, StatusRequest, handler


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
    told = told_of(UnknownStream("clicks", tuple(f"{name} of shop {n}" for n in range(2_000))))
    assert f'NOT_FOUND: no stream "clicks"; there is "{name} of shop 0"' in told
    assert "Hint: wrap or read a stream under that name, and start its query." in told


def test_an_error_with_a_long_stack_of_java_comes_with_its_beginning_and_is_whole_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stack = "\n".join(f"\tat org.apache.spark.sql.Dataset.withAction({n})" for n in range(1_000))
    told = told_of(RuntimeError(f"o7.lastProgress failed\n{stack}"))
    assert "UNKNOWN: Exception calling application: o7.lastProgress failed" in told
    assert all(f"Dataset.withAction({n})" in caplog.text for n in range(1_000))
