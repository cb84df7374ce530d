"""The process's connections to Kinesis: boto3's clients, one for the settings of a source.

Connections are made where they are used and kept for the life of the process: making a client takes longer than many
a batch. Credentials are boto3's own (environment, profile, role of the machine or pod), found on the driver and on each
executor; a given role is assumed there, and renewed. So no secret is in a source, a split or an offset.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from lowmark.sources.worker import described
from lowmark.watermark.errors import without_login

from .errors import KinesisRefused

ANSWER_SECONDS = 30.0
CONNECT_SECONDS = 5.0


@dataclass(frozen=True, slots=True, repr=False)
class KinesisSettings:
    """How to ask the service, without secrets; made of arguments of `KinesisSource`."""

    region: str | None = None
    endpoint_url: str | None = None
    profile: str | None = None
    role_arn: str | None = None
    role_session_name: str | None = None
    role_external_id: str | None = None
    give_up_seconds: float = 60.0
    # Rates of a shard; None: no limit. Two settings that differ in rates are equal, because they share a connection.
    reads_per_second: float | None = field(default=None, compare=False)
    bytes_per_second: float | None = field(default=None, compare=False)

    @property
    def place(self) -> str:
        return without_login(self.endpoint_url or self.region or "its default region")

    def __repr__(self) -> str:
        return f"KinesisSettings({self.place})"


_clients: dict[tuple[KinesisSettings, float], Any] = {}
_making = threading.Lock()


def connected(settings: KinesisSettings, answer_seconds: float = ANSWER_SECONDS) -> Any:
    """The process's client for these settings. Many threads may use a client of boto3."""
    key = settings, answer_seconds
    client = _clients.get(key)
    if client is None:
        with _making:
            client = _clients.get(key)
            if client is None:
                client = _clients[key] = _make(settings, answer_seconds)
    return client


def forget(client: Any) -> None:
    """Have the next question make a client anew, because a client looks for credentials only when it is made."""
    with _making:
        for key, held in list(_clients.items()):
            if held is client:
                del _clients[key]


def _time_of(value: Any) -> datetime:
    """A time in an answer: a number of seconds in records, another form in other services."""
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, timezone.utc)
    from botocore.utils import parse_timestamp

    found: datetime = parse_timestamp(value)
    return found


def _make(settings: KinesisSettings, answer_seconds: float) -> Any:
    import botocore.session
    from botocore.config import Config
    from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
    from botocore.exceptions import BotoCoreError, NoCredentialsError

    try:
        session: Any = botocore.session.Session(profile=settings.profile)
        # Boto3's own parser takes longer for the time of a record than for the rest of the record.
        session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_time_of)
        if settings.role_arn is not None:
            own = session.get_credentials()
            if own is None:
                raise NoCredentialsError
            more = {"RoleSessionName": settings.role_session_name, "ExternalId": settings.role_external_id}
            fetcher: Any = AssumeRoleCredentialFetcher(
                client_creator=lambda name, **given: session.create_client(
                    name, **{"region_name": settings.region, **given}
                ),
                source_credentials=own,
                role_arn=settings.role_arn,
                extra_args={name: value for name, value in more.items() if value is not None},
            )
            session._credentials = DeferredRefreshableCredentials(  # noqa: SLF001  # as other users of boto3 do
                method="assume-role", refresh_using=fetcher.fetch_credentials
            )
        return session.create_client(
            "kinesis",
            region_name=settings.region,
            endpoint_url=settings.endpoint_url,
            config=Config(
                connect_timeout=min(CONNECT_SECONDS, answer_seconds),
                read_timeout=answer_seconds,
                max_pool_connections=64,
                retries={"mode": "standard", "total_max_attempts": 1},  # `call` repeats and counts
                user_agent_extra="lowmark",
            ),
        )
    except (BotoCoreError, ValueError) as error:
        raise KinesisRefused(settings.place, "connect", described(error)) from None
