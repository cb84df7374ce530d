"""The settings for reaching Kafka's brokers. Picklable; their texts have no secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lowmark.watermark.errors import without_login

DEFAULTS: Mapping[str, object] = {
    "reconnect.backoff.max.ms": 1_000,  # instead of 10 s, to notice soon when a broker is back
    "socket.keepalive.enable": True,
}
_SECRET = re.compile(r"password|secret|token|jaas|\.pem$|username|oauthbearer\.config|assertion", re.IGNORECASE)
_USER = re.compile(r"username", re.IGNORECASE)
_SHORT_SECRET = 6  # characters


class KafkaSettings:
    """How to reach the brokers; the arguments are those of `KafkaSource`, with `give_up_after` in seconds.

    >>> settings = KafkaSettings("b:9092", {"sasl.password": "hunter2"}, 60.0, read_committed=True)
    >>> settings
    KafkaSettings('b:9092', options: sasl.password)
    >>> settings.redact("denied: hunter2")
    'denied: ***'
    """

    def __init__(
        self, bootstrap_servers: str, options: Mapping[str, object], give_up_seconds: float, *, read_committed: bool
    ) -> None:
        self.bootstrap_servers, self.give_up_seconds = bootstrap_servers, give_up_seconds
        self.read_committed = read_committed
        self._options = dict(options)
        self._secrets = _secrets(self._options)

    def __repr__(self) -> str:
        names = f", options: {', '.join(sorted(self._options))}" if self._options else ""
        return f"KafkaSettings({self.place!r}{names})"

    @property
    def place(self) -> str:
        return without_login(self.bootstrap_servers)

    @property
    def group_id(self) -> str | None:
        group = self._options.get("group.id")
        return None if group is None else str(group)

    def properties(self, more: Mapping[str, object]) -> dict[str, Any]:
        """Return librdkafka's properties: the user's replace ours, except for the address of the brokers."""
        return {**DEFAULTS, **more, **self._options, "bootstrap.servers": self.bootstrap_servers}

    def redact(self, text: str) -> str:
        """Return the text without values of secrets and without logins in addresses."""
        return without_login(text if self._secrets is None else self._secrets.sub("***", text))


def _secrets(options: Mapping[str, object]) -> re.Pattern[str] | None:
    """Make a pattern for the values of secrets in a text, the longest first; None without secrets.

    User names and short secrets match only as whole words, because inside a word they are there by chance. Longer
    secrets match everywhere.
    """
    secrets = [(name, str(value)) for name, value in options.items() if _SECRET.search(name) and str(value)]
    anywhere = {value for name, value in secrets if len(value) >= _SHORT_SECRET and not _USER.search(name)}
    patterns = [
        re.escape(value) if value in anywhere else rf"(?<!\w)(?<!\w[.-]){re.escape(value)}(?!\w)(?![.-]\w)"
        for value in sorted({value for _, value in secrets}, key=len, reverse=True)
    ]
    return re.compile("|".join(patterns)) if patterns else None
