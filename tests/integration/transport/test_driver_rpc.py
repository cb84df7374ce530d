"""What a caller is told of an error in the service."""

from __future__ import annotations

import pytest
from lowmark.integration.errors import ServiceFailed, UnknownStream
from lowmark.integration.process import sockets
from lowmark.integration.transport.driver_rpc import STATUS, Client, Server, StatusReply, StatusRequest, handler


@pytest.mark.parametrize("name", ["orders", "受注"])
def test_a_long_error_comes_with_its_beginning_and_its_hint(name: str) -> None:
    unknown = UnknownStream("clicks", tuple(f"{name} of shop {n}" for n in range(2_000)))

    def fail(_: StatusRequest) -> StatusReply:
        raise unknown

    server = Server(sockets.new_address(), handler(STATUS, fail))
    client = Client(server.address)
    try:
        with pytest.raises(ServiceFailed) as failed:
            client.status(StatusRequest(stream="clicks"))
    finally:
        client.close()
        server.stop()
    assert f'NOT_FOUND: no stream "clicks" in this service, which has: "{name} of shop 0"' in str(failed.value)
    assert "Hint: wrap a DataFrame under that name first." in str(failed.value)
