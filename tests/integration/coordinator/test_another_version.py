"""A coordinator of another version of lowmark, whose messages have a field that this version does not know."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from lowmark.integration.coordinator import messages
from lowmark.integration.coordinator.access import Caller
from lowmark.integration.coordinator.ask import ask_status
from lowmark.integration.coordinator.client import CoordinatorClient
from lowmark.integration.errors import CoordinatorUnreachable

from tests.servers.local import wait_until


def test_a_field_of_another_version_is_named_to_who_asks_and_in_the_log(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def say(said: Iterator[bytes], _context: grpc.ServicerContext) -> Iterator[bytes]:
        yield from (data for data in said if not data)  # until the client hangs up

    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Watch": grpc.unary_stream_rpc_method_handler(lambda *_: iter([messages.encode({"messages": [], "newer": 1})])),
        "Say": grpc.stream_stream_rpc_method_handler(say),
        "Status": grpc.unary_unary_rpc_method_handler(lambda *_: messages.encode({"newer": 1})),
    }
    server, address = grpc.server(ThreadPoolExecutor(4)), f"unix:{folder}/c.sock"
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(messages.SERVICE, handlers)])
    server.add_insecure_port(address)
    server.start()
    try:
        with pytest.raises(CoordinatorUnreachable, match="StatusAnswer: Object contains unknown field `newer`"):
            ask_status(Caller(address))
        with caplog.at_level(logging.WARNING), CoordinatorClient(Caller(address)) as one:
            wait_until(lambda: "WatchNews: Object contains unknown field `newer`" in one.why, "it says why")
        assert "WatchNews: Object contains unknown field `newer`" in caplog.text
    finally:
        server.stop(None).wait(20)
