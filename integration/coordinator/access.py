"""Addresses of a coordinator and access to it, for both ends: sockets, TLS and tokens.

    unix:/path/of/socket     the folder's permissions, 0700, are the only access control
    host:port                only with TLS, and with a token that every call carries

Mutual TLS is for ports that strangers can reach: the handshake then refuses every caller without a certificate of the
named authority, before gRPC reads a byte of a call.

A weaker setup is refused before a port is opened. A token is compared in constant time, and never shown.
"""

from __future__ import annotations

import errno
import hmac
import os
import resource
import shlex
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from lowmark.integration.errors import AddressRefused, SocketsRefused, TokenRefused
from lowmark.integration.process import sockets
from lowmark.sources.worker import described

from .pem import PemFiles, regular

_LEAST_TOKEN = 16  # characters: a token that people make up is shorter
_HEADER = "authorization"
_LAST_PORT = 65_535
_MOST_CONNECTIONS = 8_192  # per server, at most 100 KB each
_OWN_DESCRIPTORS = 128  # for files, pipes and libraries, and for connections during their refusal

# A status of 100,000 tasks must fit into an answer. Keepalive notices a connection that is cut without a message.
_CLIENT_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", 256 << 20),
    ("grpc.use_local_subchannel_pool", 1),  # otherwise failures of other connections would delay this one
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
]


def cause_of(failed: Any) -> str:
    """The cause of a failed call, in words."""
    if isinstance(failed, grpc.Call):
        if failed.code() is grpc.StatusCode.UNIMPLEMENTED:
            return "a server is there that is no coordinator, such as the service of a driver"
        return f"{failed.code().name}: {failed.details()}"
    return described(failed)


def default_address() -> str:
    """The default address of `lowmark serve`: always the same, so that callers find it again. Raises SocketsRefused."""
    return sockets.new_address("coordinator.sock")


def read_token(file: Path) -> str:
    """Read a token: the stripped text of a file that no other user can read. Raises TokenRefused.

    The owner of another user's file may let this user read the file by its group, as Kubernetes does with a Secret.
    """
    try:
        status, text = regular(file)
    except OSError as failed:
        raise TokenRefused(str(file), f"it cannot be read ({failed.strerror})", "name a file of yours.") from failed
    text, mode = text.strip(), stat.S_IMODE(status.st_mode)
    expected = 0o600 if status.st_uid == os.geteuid() else 0o640
    if mode & 0o077 & ~expected:
        raise TokenRefused(
            str(file),
            f"its permissions are {mode:04o}, expected {expected:04o}",
            f"run: chmod {expected:o} {shlex.quote(str(file))}; a Secret of Kubernetes needs defaultMode: 0400.",
        )
    if len(text) < _LEAST_TOKEN or not text.isascii() or any(not 0x21 <= byte <= 0x7E for byte in text):
        raise TokenRefused(
            str(file),
            f"expected {_LEAST_TOKEN} or more plain characters without spaces",
            f"make one, for instance: (umask 077; openssl rand -hex 32 > {shlex.quote(str(file))})",
        )
    return text.decode("ascii")


@dataclass(frozen=True, slots=True)
class Door:
    """The access of callers to a coordinator. All files but the token's are PEM."""

    address: str  # unix:/path or host:port
    tls_cert: Path | None = None
    tls_key: Path | None = None  # both or none
    token_file: Path | None = None  # has the token that every call must carry; needed with host:port
    client_ca: Path | None = None  # only callers with a certificate of this authority finish the TLS handshake

    def token(self) -> str | None:
        """The token that every call must carry. Raises TokenRefused."""
        return None if self.token_file is None else read_token(self.token_file)

    def check(self) -> None:
        """Raise the errors of `open` and `token`, before any file is made for the coordinator."""
        self.token()
        if self.address.startswith(sockets.UNIX):
            self._check_unix()
        else:
            self._try_tcp(self._check_tcp())

    def open(self, server: grpc.aio.Server) -> str:
        """Make a server listen; return the address for callers, with the real port in place of 0.

        Raises:
            AddressRefused: protection is missing, another process listens there, or the address cannot be used.
            SocketsRefused: other users can enter the folder of the socket.
        """
        if self.address.startswith(sockets.UNIX):
            return self._open_unix(server)
        credentials = self._check_tcp().credentials_of_server()
        try:
            bound = server.add_secure_port(self.address, credentials)
        except RuntimeError as failed:
            raise AddressRefused(
                self.address,
                f"cannot listen there ({failed})",
                "name a free port of this machine, and a certificate and key that belong together.",
            ) from failed
        return f"{self.address.rpartition(':')[0]}:{bound}"

    def _check_tcp(self) -> PemFiles:
        """Check address and options; return the files of the port."""
        _check_host_port(self.address)
        missing = _missing({"--tls-cert": self.tls_cert, "--tls-key": self.tls_key, "--token-file": self.token_file})
        if self.tls_cert is None or self.tls_key is None or missing:
            raise AddressRefused(
                self.address,
                f"over TCP everybody could read and say anything, and {missing}",
                "pass --tls-cert, --tls-key and --token-file, or a unix:/path address for callers on this machine.",
            )
        files = PemFiles(self.address, self.tls_cert, self.tls_key, self.client_ca)
        files.read()
        return files

    def _try_tcp(self, files: PemFiles) -> None:
        """Bind and release the port, and load the certificate, so that errors come before the coordinator is made."""
        host, _, port = self.address.rpartition(":")
        refusals: list[OSError] = []
        try:
            found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except OSError as failed:
            found, refusals = [], [failed]
        for family, kind, _, _, at in found:
            try:
                _listen_for_a_moment(family, kind, at)
            except OSError as failed:
                refusals.append(failed)
        taken = any(refused.errno == errno.EADDRINUSE for refused in refusals)
        if taken or len(refusals) >= max(1, len(found)):  # gRPC needs only one of several addresses
            why = refusals[0].strerror
            raise AddressRefused(
                self.address, f"cannot listen there ({why})", "name a free port of this machine."
            ) from refusals[0]
        files.check()

    def _check_unix(self) -> Path:
        """Check the address; return the path of the socket."""
        if (self.tls_cert, self.tls_key, self.client_ca) != (None, None, None):
            raise AddressRefused(
                self.address, "TLS is for host:port; a socket's folder is its lock", "leave the TLS options out."
            )
        path = _socket_path(self.address)
        try:
            path.parent.lstat()
        except FileNotFoundError:
            return path  # `open` makes the folder
        except OSError as failed:
            raise SocketsRefused(
                str(path.parent), f"it cannot be reached ({failed.strerror})", "name a folder of yours."
            ) from failed
        sockets.check_private(path.parent)
        if path.exists() and not path.is_socket():
            raise AddressRefused(self.address, "a file or folder is there, which is no socket", "name another path.")
        if sockets.answers(path):  # gRPC itself would take the socket from the listening process
            raise AddressRefused(
                self.address, "somebody listens there already", "stop that one, or serve at another --address."
            )
        return path

    def _open_unix(self, server: grpc.aio.Server) -> str:
        path = self._check_unix()
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
        except OSError as failed:
            raise SocketsRefused(
                str(path.parent), f"it cannot be made ({failed.strerror})", "name a folder of yours."
            ) from failed
        sockets.check_private(path.parent)
        try:
            server.add_insecure_port(sockets.target(self.address))
        except RuntimeError as failed:
            raise AddressRefused(
                self.address, f"cannot listen there ({failed})", "see that its folder is writable, or name another one."
            ) from failed
        return self.address


@dataclass(frozen=True, slots=True)
class Caller:
    """The connection of an application to a coordinator. All files but the token's are PEM.

    Raises:
        AddressRefused: the address is none, or a file that it needs is missing.
    """

    address: str  # unix:/path or host:port
    tls_ca: Path | None = None  # the coordinator's certificate or that of its authority; needed with host:port
    token_file: Path | None = None  # needed with host:port
    tls_cert: Path | None = None  # of the caller itself, for a coordinator with --tls-client-ca; both or none
    tls_key: Path | None = None

    def __post_init__(self) -> None:
        if self.address.startswith(sockets.UNIX):
            _socket_path(self.address)  # nobody can listen at another path, and gRPC would try it for ever
        else:
            _check_host_port(self.address)
            if missing := _missing({"tls_ca": self.tls_ca, "token_file": self.token_file}):
                raise AddressRefused(
                    self.address,
                    f"over TCP a coordinator is reached by TLS and token only, and {missing}",
                    "name the file of the coordinator's certificate and the token file it was started with.",
                )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise AddressRefused(
                self.address, "tls_cert and tls_key belong together, and one is missing", "name both files, or none."
            )

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of every call. Raises TokenRefused."""
        return () if self.token_file is None else ((_HEADER, f"Bearer {read_token(self.token_file)}"),)

    def channel(self) -> grpc.Channel:
        """A new connection, opened at its first call. Raises AddressRefused: a file cannot be used."""
        if self.address.startswith(sockets.UNIX):
            return grpc.insecure_channel(sockets.target(self.address), options=_CLIENT_OPTIONS)
        files = PemFiles(self.address, self.tls_cert, self.tls_key, self.tls_ca)
        cert, key, authority = files.read()
        files.check()
        trusted = grpc.ssl_channel_credentials(authority, key, cert)
        return grpc.secure_channel(self.address, trusted, options=_CLIENT_OPTIONS)


class TokenCheck(grpc.aio.ServerInterceptor):
    """Lets only calls with the token through."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    async def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        carried = [value for name, value in handler_call_details.invocation_metadata or () if name == _HEADER]
        if len(carried) == 1:
            value = carried[0].encode() if isinstance(carried[0], str) else carried[0]
            if hmac.compare_digest(value, self._expected):
                return await continuation(handler_call_details)
        # A handler of streams reads nothing by itself, so a call whose message never comes ends at once, too.
        return grpc.stream_stream_rpc_method_handler(_unknown_caller)


async def _unknown_caller(_requests: Any, context: Any) -> None:
    await context.abort(
        grpc.StatusCode.UNAUTHENTICATED,
        "the call does not carry this coordinator's token. Hint: use the token file it was started with.",
    )


def room_for_connections() -> int:
    """Number of connections that a server of this process may have at once, with descriptors left for other uses.

    Raises the soft limit of descriptors as far as the hard limit allows.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_CONNECTIONS + _OWN_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return max(min(_MOST_CONNECTIONS, soft - _OWN_DESCRIPTORS), 1)


def _missing(files: dict[str, Path | None]) -> str:
    """Say which of these files are not given; empty if all are."""
    names = [name for name, file in files.items() if file is None]
    return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} missing" if names else ""


def _socket_path(address: str) -> Path:
    """Return the path of the socket at an address. Raises AddressRefused for one at which no process can listen."""
    path = Path(address.removeprefix(sockets.UNIX))
    if not path.is_absolute():
        raise AddressRefused(address, "the path is relative", "write unix:/path/of/socket.")
    if (length := len(os.fsencode(path))) > sockets.LONGEST_PATH_BYTES:
        most = f"a socket's path has {sockets.LONGEST_PATH_BYTES} bytes at most"
        raise AddressRefused(address, f"{most}, this one {length}", "name a shorter one.")
    return path


def _check_host_port(address: str) -> None:
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit()):
        raise AddressRefused(address, "it is neither unix:/path nor host:port", "write it as one of the two.")
    try:
        host.encode("idna")  # as Python does before it asks the system for the host
    except UnicodeError:
        raise AddressRefused(address, "its host cannot be a name", "see that no part of it is empty or long.") from None
    if len(port) > 5 or int(port) > _LAST_PORT:
        raise AddressRefused(address, f"a port is at most {_LAST_PORT}", "name one from 1, or 0 for any.")


def _listen_for_a_moment(family: socket.AddressFamily, kind: socket.SocketKind, at: Any) -> None:
    with socket.socket(family, kind) as probe:
        # As gRPC does, because leftovers of closed connections are no listener.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        probe.bind(at)
        probe.listen()  # with that option a second process can bind, but not listen
