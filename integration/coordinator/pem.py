"""The PEM files of one end of a connection with TLS: read, checked together, and followed while they are renewed."""

from __future__ import annotations

import errno
import logging
import os
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from lowmark.integration.errors import AddressRefused

log = logging.getLogger("lowmark")


@dataclass(frozen=True, slots=True)
class PemFiles:
    """A certificate, its key, and the authority that signs the certificates of the other end; None: not given.

    Every method raises AddressRefused for a file that cannot be used.
    """

    address: str  # of the coordinator, for errors
    cert: Path | None
    key: Path | None  # both or none
    authority: Path | None

    def read(self) -> list[Any]:
        """Return the bytes of certificate, key and authority; None: not given."""
        return [None if file is None else self._read(file) for file in (self.cert, self.key, self.authority)]

    def _read(self, file: Path) -> bytes:
        try:
            if pem := regular(file)[1]:
                return pem
            raise OSError(errno.ENODATA, "it is empty")  # gRPC would end the process, or take an empty CA for none
        except OSError as failed:
            raise AddressRefused(
                self.address, f"{os.fspath(file)} cannot be read ({failed.strerror})", "name a PEM file of yours."
            ) from failed

    def check(self) -> None:
        """Load the files that gRPC will use, because its own errors name no file."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            if self.cert is not None:
                # The empty password makes a key with a password fail instead of asking for the password.
                context.load_cert_chain(self.cert, self.key, password="")
            if self.authority is not None:
                context.load_verify_locations(self.authority)
        except (OSError, ValueError) as failed:  # ssl's errors are OSErrors
            given = [str(file) for file in (self.cert, self.key, self.authority) if file]
            raise AddressRefused(
                self.address,
                f"{' and '.join(given)} cannot be used ({failed})",
                "name a certificate and its key, both PEM and without a password, and a PEM file of the authority.",
            ) from failed

    def credentials_of_server(self) -> grpc.ServerCredentials:
        """Return the credentials of a port, which follow the files: a renewal counts from the next handshake on."""
        followed = _Followed(self)
        return grpc.dynamic_ssl_server_credentials(
            followed.configuration(),
            followed.renewed,  # type: ignore[arg-type]  # its types forbid None, by which gRPC goes on as before
            require_client_authentication=self.authority is not None,
        )


class _Followed:
    """The content of the files that a port uses."""

    def __init__(self, files: PemFiles) -> None:
        self._files, self._used, self._refused = files, files.read(), ""

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        cert, key, authority = self._used
        return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=authority)

    def renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the files if they have changed; gRPC asks before each handshake, in a thread of its own.

        Half a renewal does not count, such as a new certificate beside the key of the old one.
        """
        try:
            if (found := self._files.read()) == self._used:
                return None
            self._files.check()
        except AddressRefused as refused:
            if self._refused != str(refused):
                self._refused = str(refused)
                log.warning("the certificate of before stays in use: %s", refused)
            return None
        self._used = found
        return self.configuration()


def regular(file: Path) -> tuple[os.stat_result, bytes]:
    """Return the status and the content of a file. Raises OSError, also for a pipe, because reading it would wait."""
    # By an opener, because open() closes no descriptor of a folder that it was given.
    with open(file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as opened:
        status = os.fstat(opened.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no file")
        return status, opened.read()
