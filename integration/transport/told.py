"""The heartbeat's other wire: answers that a client of Spark Connect leaves for a reader on the server's host.

The client's service hears of a batch through Spark's listener, and tells its answer by the analysis of a data source:

    client   spark.read.format("lowmark_tell").options(secret=..., token=..., reply=...).schema
    server   `TellSource.schema` runs in a Python process beside the driver, and writes the file
             <folder of sockets>/<seal>-<token>.told
    reader   `ToldClient.heartbeat` reads the file, each time Spark asks for new offsets

The seal is the hash of a secret, which only the client that made the stream has. The plan of the query shows the seal
alone, and only the secret's owner finds the name of the file, so no other client can move the watermark. Code that
runs under the same user on the server's host can write any of the user's files, so it cannot be kept apart.

The reader never invents: without a newer answer the watermark holds. Each answer makes the file new, also an unchanged
answer, so the file's time shows when the client was last there. A reader whose file is old says so in its offset.
"""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
import re
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
from lowmark.integration.errors import ServiceUnreachable
from lowmark.integration.process import sockets
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import BooleanType, StructType

from .driver_rpc import HeartbeatReply, HeartbeatRequest

FORMAT = "lowmark_tell"
SCHEME = "told:"
SIGN_SECONDS = 5.0  # a client tells an unchanged answer again after this time, as a sign that it lives
SILENT_SECONDS = 20.0  # without a sign, until a reader says that its client is silent
_NAME = re.compile(r"[0-9a-f]{32}")
_ABANDONED_SECONDS = 7 * 86_400.0  # then files of clients that never came back are removed
_LAST_WORD_SECONDS = 10.0  # for the answer to the newest batch, if the query ends when nothing is new
_LOOK_SECONDS = 0.005


class Told(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An answer to a reader."""

    reply: HeartbeatReply
    batches: int  # of the reader, whose reports the answer knows

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()


def seal_of(secret: str) -> str:
    """Return the name under which the answers of a stream lie: 32 hexadecimal digits.

    >>> seal_of("a")
    'ca978112ca1bbdcafac231b39a23dc4d'
    """
    return hashlib.sha256(secret.encode()).hexdigest()[:32]


def _file(seal: str, token: str) -> Path:
    if not _NAME.fullmatch(seal) or not _NAME.fullmatch(token):
        raise ValueError(f"expected a seal and a token of 32 hexadecimal digits, got {seal!r:.40} and {token!r:.40}")
    return _folder() / f"{seal}-{token}.told"


@functools.cache
def _folder() -> Path:
    """The private folder of this user's sockets."""
    return Path(sockets.new_address().removeprefix(sockets.UNIX)).parent


class TellSource(DataSource):
    """A source without rows whose analysis takes an answer to the server's host.

    Options: `secret`, `token` and `reply`, a `Told` as JSON; without a reply the file is removed. Without options, the
    schema alone tells that lowmark is on the server, with the modules that its heartbeat's reader needs.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        if "secret" in self.options:
            _take(self.options)
        return StructType().add("told", BooleanType())


def _take(options: Mapping[str, str]) -> None:
    path = _file(seal_of(options["secret"]), options["token"])
    if "reply" not in options:
        path.unlink(missing_ok=True)
        return
    text = options["reply"].encode()
    msgspec.json.decode(text, type=Told)  # so a reader never meets a text that is none
    if not path.exists():
        _remove_abandoned(path.parent)
    part = path.with_name(f".{uuid.uuid4().hex}.part")
    try:
        part.touch(mode=0o600)
        part.write_bytes(text)
        part.replace(path)
    finally:  # a full disk must not get a further file with each attempt
        part.unlink(missing_ok=True)


def _remove_abandoned(folder: Path) -> None:
    before = time.time() - _ABANDONED_SECONDS
    for path in (*folder.glob("*.told"), *folder.glob(".*.part")):  # the second: of tellers that were killed
        with suppress(FileNotFoundError):  # another client has just removed it
            if path.stat().st_mtime < before:
                path.unlink()


class ToldClient:
    """Answers a heartbeat reader from the file that the stream's client has it told; see `driver_rpc.Client`."""

    def __init__(self, address: str) -> None:
        self._seal = address.removeprefix(SCHEME)
        self._batches = 0  # batches that this reader planned
        self._planned_at_us: int | None = None  # the newest of them
        self._waits = True  # False after a wait in vain
        self._stamp: tuple[int, int] | None = None  # of the file that was read last
        self._told: Told  # the newest answer, since the reader has attached
        self._sign = time.time()  # of the client

    @property
    def silent_since(self) -> str | None:
        """The time of the client's last sign, if that was too long ago; None: the client is there."""
        if time.time() - self._sign <= SILENT_SECONDS:
            return None
        return dt.datetime.fromtimestamp(int(self._sign), dt.timezone.utc).isoformat()

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatReply:
        """Return the newest answer to this reader, or the last one again. Raises ServiceUnreachable."""
        if request.looks:
            return HeartbeatReply(low_watermark_us=None, epoch=0, state="")  # a client sees no checkpoint
        if request.first:
            # The first offset repeats the checkpoint's under a new token, by which the client learns of this reader.
            known = HeartbeatReply(request.low_watermark_us, request.epoch, request.state or "", wake_at_us=0)
            self._told, self._sign = Told(known, batches=0), time.time()
            return known
        if request.planned_at_us != self._planned_at_us:
            self._batches, self._planned_at_us = self._batches + 1, request.planned_at_us
            if self._batches == 1:
                self._sign = time.time()  # only the first batch, which is over now, tells the client of this reader
        told = self._last_word(request.token) if request.available_now else self._newest(request.token)
        return msgspec.structs.replace(told.reply, wake_at_us=0)  # time 0 is over, so each poll asks again

    def _last_word(self, token: str) -> Told:
        """Wait for the answer that knows the newest batch, because the query ends when there is none."""
        until = time.monotonic() + (_LAST_WORD_SECONDS if self._waits else 0)
        while (told := self._newest(token)).batches < self._batches:
            if time.monotonic() >= until:
                self._waits = False
                return told
            time.sleep(_LOOK_SECONDS)
        self._waits = True
        return told

    def _newest(self, token: str) -> Told:
        path = _file(self._seal, token)
        try:
            found = path.stat()
            self._sign = found.st_mtime
            stamp = found.st_mtime_ns, found.st_ino
            if stamp != self._stamp:
                self._told, self._stamp = msgspec.json.decode(path.read_bytes(), type=Told), stamp
        except FileNotFoundError:
            return self._told
        except (OSError, msgspec.DecodeError) as broken:
            raise ServiceUnreachable(f"{SCHEME}{self._seal}", "read the answer of the client", str(broken)) from broken
        return self._told
