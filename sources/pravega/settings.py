"""The settings for reaching Pravega. Picklable; their texts have no secrets."""

from __future__ import annotations

from dataclasses import dataclass

from lowmark.watermark.errors import without_login


@dataclass(frozen=True)
class PravegaSettings:
    """How to reach the streams of a scope.

    Attributes:
        controller: "tcp://host:port", or "tls://host:port".
        jars: places of Pravega's client, see `jvm.resolve_jars`.
        jvm_options: options of the Java in this process; None: a small machine.
        give_up_seconds: how long Pravega may be away before an error.
        username, password: for Pravega's basic authentication; "" without it.
        trust_store: a PEM file with the authority of Pravega's certificates; "" for the authorities that Java trusts.
        validate_host_name: whether a certificate must name the host.

    >>> PravegaSettings("tls://h:9090", "shop", username="me", password="s3cret")
    PravegaSettings(controller='tls://h:9090', scope='shop', username='me')
    """

    controller: str
    scope: str
    jars: tuple[str, ...] = ()
    jvm_options: tuple[str, ...] | None = None
    give_up_seconds: float = 60.0
    username: str = ""
    password: str = ""
    trust_store: str = ""
    validate_host_name: bool = True

    @property
    def place(self) -> str:
        return without_login(self.controller)

    def __repr__(self) -> str:
        user = f", username={self.username!r}" if self.username else ""
        return f"PravegaSettings(controller={self.place!r}, scope={self.scope!r}{user})"
