"""Asks Kinesis. Calls are repeated with back-off and jitter for errors that waiting cures; others raise."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from lowmark.sources.kit.patience import Patience
from lowmark.sources.worker import described
from lowmark.watermark import LowmarkError
from lowmark.watermark.errors import without_login
from lowmark.watermark.moment import MILLISECOND_US, datetime_of, us_of

from .clock import ServiceClock
from .connections import ANSWER_SECONDS, KinesisSettings, connected, forget
from .errors import KinesisRefused, KinesisStreamMissing, KinesisUnavailable
from .pace import Pace
from .split import TRIM_HORIZON, stream_name

LONGEST_PAUSE_SECONDS = 5.0
SAY_AFTER_SECONDS = 10.0
"""Longer than elsewhere, because the service refuses reads now and then as a matter of course."""

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
"""Errors that pass. ResourceInUseException means that a stream is being made or changed."""
ANSWERS = {
    "list_shards": "Shards",
    "list_streams": "StreamNames",
    "describe_stream_summary": "StreamDescriptionSummary",
    "get_shard_iterator": "ShardIterator",
    "get_records": "Records",
}
"""The field that every answer to a question has; the page of a proxy or of another server lacks the field."""


class Expired(LowmarkError):
    """An iterator, or the next page of a list, was not used for five minutes. The caller catches it and begins anew."""

    _fact = "it has expired"
    _hint = "a new one is asked for."


class ShardGone(LowmarkError):
    """A shard or a stream does not exist. The caller that knows the lost records catches this error."""


class PlaceRefused(LowmarkError):
    """A sequence number does not belong to the asked shard. The caller that knows the split catches this error."""


@dataclass(frozen=True, slots=True)
class Page:
    """One answer of GetRecords."""

    records: list[dict[str, Any]]
    iterator: str | None  # for the next page; None at the end of a closed shard
    behind_ms: int  # how far behind the newest record of the shard it ends; 0: no more records are there now
    children: frozenset[str] = frozenset()  # the shards after a closed one; empty if the service does not name them


class KinesisClient:
    """Asks the service. Several threads may use one client.

    Args:
        pause: waits a number of seconds; returns True to end the wait.

    Attributes:
        pace: when a shard may be read next.
        throttled: how often the service refused for too many or too large requests.
    """

    def __init__(
        self,
        settings: KinesisSettings,
        *,
        pause: Callable[[float], bool] | None = None,
        now_seconds: Callable[[], float] = time.monotonic,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self.settings, self._now_seconds, self._answer_seconds = settings, now_seconds, answer_seconds
        self.pace = Pace(settings, now_seconds)
        self._pause = pause if pause is not None else threading.Event().wait
        self.throttled = 0
        self._clock = ServiceClock()

    def now_ms(self) -> int:
        """The service's time, or up to a second earlier: never its future."""
        return self.now_between_ms()[0]

    def now_between_ms(self) -> tuple[int, int]:
        """Return two times between which the service's time lies, at most a second and a round trip apart.

        Before the first answer, both are the time of this machine.
        """
        bounds = self._clock.bounds_ms(at_ms=self._own_ms())
        return (time.time_ns() // 1_000_000,) * 2 if bounds is None else bounds

    def _own_ms(self) -> int:
        return int(self._now_seconds() * 1_000)

    def shards(self, stream: str) -> list[dict[str, Any]]:
        asked, found = _stream(stream), list[dict[str, Any]]()
        while True:
            try:
                answer = self.call("list_shards", asked, f"list the shards of {stream_name(stream)!r}")
            except Expired:
                asked, found = _stream(stream), []
                continue
            found += answer["Shards"]
            if not answer.get("NextToken"):
                return found
            asked = {"NextToken": answer["NextToken"]}

    def streams(self) -> list[str]:
        asked, found = dict[str, Any](), list[str]()
        while True:
            answer = self.call("list_streams", asked, "list the streams")
            found += answer["StreamNames"]
            if not answer.get("HasMoreStreams") or not found:
                return found
            asked = {"ExclusiveStartStreamName": found[-1]}

    def retention_ms(self, stream: str) -> int:
        """How long a stream keeps a record."""
        return int(self._summary(stream)["RetentionPeriodHours"]) * 3_600_000

    def created_ms(self, stream: str) -> int:
        """When a stream was made, milliseconds since the epoch. Raises KinesisStreamMissing."""
        return milliseconds(self._summary(stream)["StreamCreationTimestamp"])

    def _summary(self, stream: str) -> Mapping[str, Any]:
        action = f"describe {stream_name(stream)!r}"
        answer = self.call("describe_stream_summary", _stream(stream), action)
        summary: Mapping[str, Any] = answer["StreamDescriptionSummary"]
        return summary

    def iterator(self, stream: str, shard: str, cursor: str, *, patience_seconds: float | None = None) -> str:
        """Return an iterator at a place. Waits for a time in the service's future. Raises ShardGone, PlaceRefused."""
        kind, _, where = cursor.partition(" ")
        asked = {**_stream(stream), "ShardId": shard, "ShardIteratorType": kind}
        if kind == "AT_TIMESTAMP":
            asked["Timestamp"] = datetime_of(int(where) * MILLISECOND_US)
        elif kind != TRIM_HORIZON:
            asked["StartingSequenceNumber"] = where
        action = f"find a place in {stream_name(stream)}/{shard}"
        answer = self.call("get_shard_iterator", asked, action, patience_seconds=patience_seconds)
        return str(answer["ShardIterator"])

    def records(
        self, stream: str, shard: str, iterator: str, limit: int, *, patience_seconds: float | None = None
    ) -> Page:
        """Read records, as soon as the shard's pace allows it. Raises Expired, ShardGone."""
        asked: dict[str, Any] = {"ShardIterator": iterator, "Limit": limit}
        if stream.startswith("arn:"):
            asked["StreamARN"] = stream
        action = f"read {stream_name(stream)}/{shard}"
        wait_seconds = self.pace.wait_seconds(stream, shard)
        if wait_seconds > 0:
            self._pause(wait_seconds)
        began_seconds = self._now_seconds()
        answer = self.call("get_records", asked, action, patience_seconds=patience_seconds)
        size_bytes = sum(len(record["Data"]) for record in answer["Records"])
        self.pace.took(stream, shard, began_seconds=began_seconds, size_bytes=size_bytes)
        behind_ms = int(answer.get("MillisBehindLatest") or 0)
        children = frozenset(str(child["ShardId"]) for child in answer.get("ChildShards") or ())
        return Page(answer["Records"], answer.get("NextShardIterator"), behind_ms, children)

    def call(
        self, operation: str, asked: Mapping[str, Any], action: str, *, patience_seconds: float | None = None
    ) -> dict[str, Any]:
        """Ask until there is an answer; `patience_seconds` is for all attempts, None: the time of the settings."""
        from botocore import exceptions

        patience = Patience(
            f"Kinesis at {self.settings.place}",
            action,
            self.settings.give_up_seconds if patience_seconds is None else patience_seconds,
            say_after_seconds=SAY_AFTER_SECONDS,
            longest_pause_seconds=LONGEST_PAUSE_SECONDS,
            jitter=True,
            now_seconds=self._now_seconds,
            pause=self._pause,
        )
        while True:
            asked_ms = self._own_ms()
            client = connected(self.settings, self._answer_seconds)
            try:
                answer: dict[str, Any] = getattr(client, operation)(**asked)
            except exceptions.ClientError as error:
                self._set_clock(error.response, asked_ms)
                if _code(error) in REFUSED:
                    forget(client)
                cause = self._passing_cause(error, action, asked)
            except (exceptions.HTTPClientError, exceptions.ConnectionError, exceptions.IncompleteReadError) as error:
                cause = without_login(described(error))
            except exceptions.BotoCoreError as error:
                forget(client)
                raise KinesisRefused(self.settings.place, action, described(error)) from None
            except (AttributeError, TypeError, ValueError) as error:  # botocore takes any JSON for an object
                cause = f"the answer is not one of Kinesis ({described(error)})"
            else:
                if ANSWERS[operation] in answer:
                    self._set_clock(answer, asked_ms)
                    return answer
                cause = f"the answer is not one of Kinesis: it has no {ANSWERS[operation]}"
            if not patience.goes_on(cause):
                raise KinesisUnavailable(self.settings.place, action, patience.spent_seconds, cause)

    def _passing_cause(self, error: Any, action: str, asked: Mapping[str, Any]) -> str:
        """Return the cause if waiting may cure the error; otherwise raise."""
        code, text = _code(error), error.response.get("Error", {}).get("Message", "")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        cause = without_login(f"{code}: {text}")
        if code in THROTTLED or status == 429:
            self.throttled += 1
            return cause
        if code in {"ExpiredIteratorException", "ExpiredNextTokenException"}:
            raise Expired from None
        if code == "ResourceNotFoundException" and not asked.keys().isdisjoint({"ShardId", "ShardIterator"}):
            raise ShardGone(cause) from None
        if code == "InvalidArgumentException":
            # The request tells the cases apart, because the service does not promise its texts.
            if asked.get("ShardIteratorType") == "AT_TIMESTAMP":
                return cause  # the time is in the service's future, so waiting helps
            if "StartingSequenceNumber" in asked:
                raise PlaceRefused(cause) from None
            if "ShardIterator" in asked:
                raise Expired from None  # the stream was deleted
        if code == "ResourceNotFoundException":
            stream = asked.get("StreamName") or asked.get("StreamARN") or "what was listed"
            raise KinesisStreamMissing(self.settings.place, f"stream {stream!r}", action) from None
        if (status >= 500 or code in PASSING) and code not in REFUSED and status not in {401, 403}:
            return cause
        raise KinesisRefused(self.settings.place, action, cause) from None

    def _set_clock(self, answer: Mapping[str, Any], asked_ms: int) -> None:
        said = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        try:
            date_ms = milliseconds(parsedate_to_datetime(said))
        except (ValueError, TypeError):
            return  # the answer has no date
        self._clock.hear(date_ms, asked_ms=asked_ms, answered_ms=self._own_ms())


def milliseconds(time_of: datetime) -> int:
    """Milliseconds since the epoch, exactly."""
    return us_of(time_of) // MILLISECOND_US


def parents_of(shard: Mapping[str, Any]) -> list[str]:
    """The ids of the shards of which a shard was made: none, one that was split, or two that were merged."""
    named = (shard.get("ParentShardId"), shard.get("AdjacentParentShardId"))
    return [str(parent) for parent in named if parent]


def sequence_of(record: Mapping[str, Any]) -> int:
    """The sequence number of a record."""
    return int(record["SequenceNumber"])


def arrived_ms(record: Mapping[str, Any]) -> int:
    """The arrival time of a record, milliseconds since the epoch."""
    return milliseconds(record["ApproximateArrivalTimestamp"])


def _stream(stream: str) -> dict[str, Any]:
    return {"StreamARN": stream} if stream.startswith("arn:") else {"StreamName": stream}


def _code(error: Any) -> str:
    """The service's name of an error."""
    return str(error.response.get("Error", {}).get("Code", ""))
