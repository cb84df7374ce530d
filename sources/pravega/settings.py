"""The settings for reaching Pravega. Picklable; their texts have no secrets."""

from __future__ import annotations

from dataclasses import dataclass

from lowmark.watermark.errors import without_login


@dataclass(frozen=True)
class PravegaSettings:
    """How to reach the streams of a scope; made of arguments of `PravegaSource`.

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
