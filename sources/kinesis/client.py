"""Asks Kinesis, through boto3: what waiting cures is repeated, with back-off and jitter, everything else is an error.

Connections are made where they are used and kept for the life of the process: to make a client takes longer than many
a batch. Credentials are boto3's own (environment, profile, role of the machine or pod), found on the driver and on each
executor; a role that is to be assumed is assumed there, and renewed. So no secret is in a source, a split or an offset.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from lowmark.watermark import LowmarkError

from .errors import KinesisRefused, KinesisStreamMissing, KinesisUnavailable
from .split import TRIM_HORIZON, stream_name

__all__ = ["IteratorExpired", "KinesisClient", "KinesisSettings", "Page", "ShardGone", "milliseconds"]

ANSWER_SECONDS = 30.0
CONNECT_SECONDS = 5.0
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
SAY_AFTER_SECONDS = 10.0
CLOCK_TRUST_MS = 2_000
"""A clock that is nearer than that to the service's is taken as it is: the service says its own in whole seconds."""

THROTTLED = frozenset(
    {
        "ProvisionedThroughputExceededException", "LimitExceededException", "ThrottlingException", "Throttling",
        "KMSThrottlingException", "RequestLimitExceeded", "SlowDown", "TooManyRequestsException",
    }
)  # fmt: skip
REFUSED = frozenset(
    {
        "AccessDeniedException", "AccessDenied", "UnrecognizedClientException", "InvalidClientTokenId",
        "InvalidSignatureException", "SignatureDoesNotMatch", "IncompleteSignature", "MissingAuthenticationToken",
        "MissingAuthenticationTokenException", "ExpiredTokenException", "ExpiredToken", "OptInRequired",
        "KMSAccessDeniedException", "KMSDisabledException", "KMSNotFoundException", "KMSOptInRequired",
    }
)  # fmt: skip
PASSING = frozenset({"InternalFailure", "ServiceUnavailable", "RequestTimeout", "ResourceInUseException"})
"""The last one: a stream is being made, or changed."""
_log = logging.getLogger("lowmark")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class KinesisSettings:
    """How to reach the service: no secret is in it.

    Attributes:
        region: as "eu-west-1"; None: boto3's own.
        endpoint_url: None: the region's.
        profile: of the shared credentials file; None: boto3's own.
        role_arn: a role to assume; None: none.
        role_session_name, role_external_id: for that; None: boto3's own, none.
        give_up_seconds: how long the service may be away or throttle.
    """

    region: str | None = None
    endpoint_url: str | None = None
    profile: str | None = None
    role_arn: str | None = None
    role_session_name: str | None = None
    role_external_id: str | None = None
    give_up_seconds: float = 60.0

    @property
    def place(self) -> str:
        """Endpoint or region, for people."""
        return self.endpoint_url or self.region or "its default region"


class IteratorExpired(LowmarkError):
    """An iterator was not used for five minutes; caught where it is used."""

    _fact = "the iterator has expired"
    _hint = "a new one is asked for."


class ShardGone(LowmarkError):
    """A shard, or a stream, is not there, or a place in it is not; caught by who knows which records are lost."""

    cause: str  # the service's code and text
    _fact = "{cause}"
    _hint = ""


@dataclass(frozen=True, slots=True)
class Page:
    """One answer of GetRecords.

    Attributes:
        records: as boto3 gives them.
        iterator: for the next one; None at the end of a closed shard.
        behind_ms: how far behind the newest record of the shard it ends; 0: nothing more is there now.
    """

    records: list[dict[str, Any]]
    iterator: str | None
    behind_ms: int


class KinesisClient:
    """Asks the service. Many threads may use one.

    Args:
        settings: how to reach it.
        pause: waits so many seconds; returns True when the wait is to end.
        now_seconds: a clock that never goes back.

    Attributes:
        throttled: how often an answer was that too much was asked.
    """

    def __init__(
        self,
        settings: KinesisSettings,
        *,
        pause: Callable[[float], bool] | None = None,
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings, self._now_seconds = settings, now_seconds
        self._pause = pause if pause is not None else threading.Event().wait
        self.throttled = 0
        self._ahead_ms = 0  # how far the service's clock is ahead of ours

    def now_ms(self) -> int:
        """The service's time, as near as it is known."""
        return int(time.time() * 1_000) + self._ahead_ms

    def shards(self, stream: str) -> list[dict[str, Any]]:
        """List all shards of a stream that are not expired."""
        asked, found = _stream(stream), list[dict[str, Any]]()
        while True:
            answer = self.call("list_shards", asked, f"list the shards of {stream_name(stream)!r}")
            found += answer["Shards"]
            if not answer.get("NextToken"):
                return found
            asked = {"NextToken": answer["NextToken"]}

    def streams(self) -> list[str]:
        """List the names of all streams."""
        asked, found = dict[str, Any](), list[str]()
        while True:
            answer = self.call("list_streams", asked, "list the streams")
            found += answer["StreamNames"]
            if not answer.get("HasMoreStreams") or not found:
                return found
            asked = {"ExclusiveStartStreamName": found[-1]}

    def retention_ms(self, stream: str) -> int:
        """How long a stream keeps a record."""
        action = f"describe {stream_name(stream)!r}"
        summary = self.call("describe_stream_summary", _stream(stream), action)["StreamDescriptionSummary"]
        return int(summary["RetentionPeriodHours"]) * 3_600_000

    def iterator(self, stream: str, shard: str, cursor: str, *, patience_seconds: float | None = None) -> str:
        """Return an iterator at a place.

        Raises:
            ShardGone: there is no such shard, or no such record in it.
        """
        kind, _, where = cursor.partition(" ")
        asked = {**_stream(stream), "ShardId": shard, "ShardIteratorType": kind}
        if kind == "AT_TIMESTAMP":
            asked["Timestamp"] = _EPOCH + int(where) * _MILLISECOND
        elif kind != TRIM_HORIZON:
            asked["StartingSequenceNumber"] = where
        action = f"find a place in {stream_name(stream)}/{shard}"
        answer = self.call("get_shard_iterator", asked, action, patience_seconds=patience_seconds, gone=True)
        return str(answer["ShardIterator"])

    def records(
        self, stream: str, shard: str, iterator: str, limit: int, *, patience_seconds: float | None = None
    ) -> Page:
        """Read records.

        Raises:
            IteratorExpired: a new one is needed.
            ShardGone: the shard or the stream is gone.
        """
        asked: dict[str, Any] = {"ShardIterator": iterator, "Limit": limit}
        if stream.startswith("arn:"):
            asked["StreamARN"] = stream
        action = f"read {stream_name(stream)}/{shard}"
        answer = self.call("get_records", asked, action, patience_seconds=patience_seconds, gone=True)
        return Page(answer["Records"], answer.get("NextShardIterator"), int(answer.get("MillisBehindLatest") or 0))

    def call(
        self,
        operation: str,
        asked: Mapping[str, Any],
        action: str,
        *,
        patience_seconds: float | None = None,
        gone: bool = False,
    ) -> dict[str, Any]:
        """Ask until there is an answer.

        Args:
            operation: boto3's name of it.
            asked: its arguments.
            action: what it is, for errors.
            patience_seconds: how long it may take; None: as the settings say.
            gone: what is not there is `ShardGone`, and not an error for people.

        Raises:
            KinesisUnavailable, KinesisRefused, KinesisStreamMissing: see there.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        patience = self.settings.give_up_seconds if patience_seconds is None else patience_seconds
        began, pause_seconds, said = self._now_seconds(), FIRST_PAUSE_SECONDS, False
        while True:
            try:
                answer: dict[str, Any] = getattr(_client(self.settings), operation)(**asked)
            except ClientError as error:
                cause = self._may_pass(error, action, asked, gone=gone)
            except BotoCoreError as error:
                if not _is_transient(error):
                    raise KinesisRefused(self.settings.place, action, f"{type(error).__name__}: {error}") from None
                cause = f"{type(error).__name__}: {error}"
            else:
                self._set_clock(answer)
                return answer
            waited = self._now_seconds() - began
            # Full jitter: those that were throttled together do not come back together.
            pause = random.uniform(0.0, pause_seconds)
            if waited + pause > patience or self._pause(pause):
                raise KinesisUnavailable(self.settings.place, action, waited, cause)
            pause_seconds = min(pause_seconds * 2, LONGEST_PAUSE_SECONDS)
            if waited >= SAY_AFTER_SECONDS and not said:
                said = True
                _log.warning(
                    "Kinesis at %s: cannot %s, and tries again for %g seconds in all: %s",
                    self.settings.place, action, patience, cause,
                )  # fmt: skip

    def _may_pass(self, error: Any, action: str, asked: Mapping[str, Any], *, gone: bool) -> str:
        """Return what went wrong, if waiting may cure it, else raise."""
        code, text = error.response.get("Error", {}).get("Code", ""), error.response.get("Error", {}).get("Message", "")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        cause = f"{code}: {text}"
        if code in THROTTLED:
            self.throttled += 1
            return cause
        if code == "ExpiredIteratorException":
            raise IteratorExpired from None
        if code in {"ResourceNotFoundException", "InvalidArgumentException"} and gone:
            raise ShardGone(cause) from None
        if code == "ResourceNotFoundException":
            stream = asked.get("StreamName") or asked.get("StreamARN") or "what was listed"
            raise KinesisStreamMissing(self.settings.place, f"stream {stream!r}", action) from None
        if code in REFUSED or (status in {401, 403}):
            raise KinesisRefused(self.settings.place, action, cause) from None
        if status >= 500 or code in PASSING:
            return cause
        raise KinesisRefused(self.settings.place, action, cause) from None

    def _set_clock(self, answer: Mapping[str, Any]) -> None:
        said = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        if not said:
            return
        from email.utils import parsedate_to_datetime

        try:
            ahead_ms = milliseconds(parsedate_to_datetime(said)) + 500 - int(time.time() * 1_000)
        except (ValueError, TypeError):
            return
        self._ahead_ms = ahead_ms if abs(ahead_ms) > CLOCK_TRUST_MS else 0


def milliseconds(time_of: datetime) -> int:
    """Milliseconds since the epoch, exactly.

    >>> milliseconds(datetime(2026, 1, 1, microsecond=7_999, tzinfo=timezone.utc))
    1767225600007
    """
    return (time_of - _EPOCH) // _MILLISECOND


def _stream(stream: str) -> dict[str, Any]:
    return {"StreamARN": stream} if stream.startswith("arn:") else {"StreamName": stream}


def _is_transient(error: Any) -> bool:
    from botocore import exceptions

    return isinstance(error, exceptions.HTTPClientError | exceptions.ConnectionError | exceptions.IncompleteReadError)


_clients: dict[KinesisSettings, Any] = {}
_making = threading.Lock()


def _client(settings: KinesisSettings) -> Any:
    """The process's client for these settings; boto3's clients may be used by many threads."""
    client = _clients.get(settings)
    if client is None:
        with _making:
            client = _clients.get(settings)
            if client is None:
                client = _clients[settings] = _make(settings)
    return client


def _time_of(value: Any) -> datetime:
    """A time in an answer: a number of seconds where records have it, something else of other services."""
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, timezone.utc)
    from botocore.utils import parse_timestamp

    found: datetime = parse_timestamp(value)
    return found


def _make(settings: KinesisSettings) -> Any:
    import botocore.session
    from botocore.config import Config
    from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
    from botocore.exceptions import BotoCoreError

    try:
        session: Any = botocore.session.Session(profile=settings.profile)
        # Its own takes longer for the time of a record than for all else of it.
        session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_time_of)
        if settings.role_arn is not None:
            more = {"RoleSessionName": settings.role_session_name, "ExternalId": settings.role_external_id}
            fetcher: Any = AssumeRoleCredentialFetcher(
                client_creator=lambda name, **given: session.create_client(
                    name, **{"region_name": settings.region, **given}
                ),
                source_credentials=session.get_credentials(),
                role_arn=settings.role_arn,
                extra_args={name: value for name, value in more.items() if value is not None},
            )
            session._credentials = DeferredRefreshableCredentials(  # noqa: SLF001  # as boto3's own users do it
                method="assume-role", refresh_using=fetcher.fetch_credentials
            )
        return session.create_client(
            "kinesis",
            region_name=settings.region,
            endpoint_url=settings.endpoint_url,
            config=Config(
                connect_timeout=CONNECT_SECONDS,
                read_timeout=ANSWER_SECONDS,
                max_pool_connections=64,
                retries={"mode": "standard", "total_max_attempts": 2},
                user_agent_extra="lowmark",
            ),
        )
    except (BotoCoreError, ValueError) as error:
        raise KinesisRefused(settings.place, "connect", f"{type(error).__name__}: {error}") from None
