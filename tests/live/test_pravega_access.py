"""Credentials and TLS, on a Pravega that asks for both."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from lowmark.sources.pravega import PravegaAccessDenied, PravegaSource

from tests.servers.pravega import JARS, PASSWORD, STRANGER, USER, Pravega, pravega_server
from tests.worlds.pravega_reading import Reading


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pravega]:
    with pravega_server(tmp_path_factory.mktemp("guarded"), auth=True, tls=True) as server:
        yield server


def test_who_has_the_right_reads(guarded: Pravega) -> None:
    stream = guarded.create_stream(2)
    guarded.write(stream, [(f"k{n}", b"%03d" % n) for n in range(50)])
    query = Reading(guarded.source(stream))
    assert query.events() == [b"%03d" % n for n in range(50)]


@pytest.mark.parametrize(
    "credentials",
    [{}, {"username": USER, "password": "s3cret-wrong"}, {"username": STRANGER, "password": PASSWORD}],
    ids=["none", "wrong password", "no right"],
)
def test_who_has_not_hears_it_at_once_and_no_secret_is_told(guarded: Pravega, credentials: dict[str, Any]) -> None:
    stream = guarded.create_stream(1)
    source = PravegaSource(
        controller=guarded.controller, scope=guarded.scope, streams=[stream], jars=JARS,
        trust_store=guarded.trust_store, **credentials,
    )  # fmt: skip
    with pytest.raises(Exception, match="access is denied") as refused:
        Reading(source)
    chain = [refused.value, refused.value.__cause__]
    assert any(isinstance(each, PravegaAccessDenied) for each in chain)
    error: BaseException | None = refused.value
    while error is not None:
        assert "s3cret-wrong" not in str(error)
        assert PASSWORD not in str(error)
        error = error.__cause__


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trust_store": ""}, "certificat"),
        ({"trust_store": "/nowhere/ca.pem"}, "/nowhere/ca.pem"),
        ({"controller": "tcp"}, "cannot look up"),
    ],
    ids=["unknown authority", "no such file", "without TLS"],
)
def test_who_does_not_trust_it_or_speaks_without_tls_hears_it_in_time(
    guarded: Pravega, changes: dict[str, str], words: str
) -> None:
    stream = guarded.create_stream(1)
    if "controller" in changes:
        changes = {"controller": guarded.controller.replace("tls://", "tcp://"), "trust_store": ""}
    began = time.monotonic()
    with pytest.raises(Exception, match=words) as refused:
        Reading(guarded.source(stream, give_up_after="3 seconds", **changes))
    assert time.monotonic() - began < 60
    assert PASSWORD not in str(refused.value)
