"""Databricks' option names for a Kinesis stream: `format("kinesis")` becomes `format("lowmark_kinesis")`.

| option | meaning |
|---|---|
| streamName, streamARN | `streams`, separated by commas; exactly one of these and streamPattern |
| streamPattern | `stream_pattern` (Python's syntax); ours |
| region, endpoint | `region`, `endpoint_url` |
| roleArn, roleSessionName, roleExternalId | a role to assume |
| profile | of the shared credentials file; ours |
| initialPosition | `start`: TRIM_HORIZON (or earliest), LATEST (if none is given, as in Databricks), or JSON |
| | {"at_timestamp": "2026-01-01T00:00:00Z"} |
| endingPosition | `stop`: LATEST or JSON as above; ours |
| failOnDataLoss | `on_data_loss`: true is "error" |
| shardFetchInterval | `discover_every` |
| maxRecordsPerFetch | `records_per_read` |
| discoverEvery, pollEvery, giveUpAfter, columns, fetchers, disorder | as the arguments of `KinesisSource`; ours |
| readsPerSecond, bytesPerSecond | likewise; "none" does not limit |

Keys are no options: credentials come from boto3's own chain, or a role, and stand in no plan and no log.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from lowmark.sources.kit.spark_options import SparkOptions
from lowmark.watermark.errors import shown
from lowmark.watermark.moment import datetime_from_iso

from .errors import InvalidKinesisOption
from .positions import KinesisPosition

TEXTS = {
    "streamPattern": "stream_pattern",
    "region": "region",
    "endpoint": "endpoint_url",
    "profile": "profile",
    "roleArn": "role_arn",
    "roleSessionName": "role_session_name",
    "roleExternalId": "role_external_id",
    "shardFetchInterval": "discover_every",
    "discoverEvery": "discover_every",
    "pollEvery": "poll_every",
    "giveUpAfter": "give_up_after",
    "disorder": "disorder",
}
COUNTS = {"fetchers": "fetchers", "maxRecordsPerFetch": "records_per_read"}
RATES = {"readsPerSecond": "reads_per_second", "bytesPerSecond": "bytes_per_second"}
OTHERS = ("streamName", "streamARN", "initialPosition", "endingPosition", "failOnDataLoss", "columns")
SECRETS = frozenset({"awsaccesskey", "awssecretkey", "awsaccesskeyid", "sessiontoken", "awssessiontoken"})


def arguments(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of `KinesisSource`. Raises InvalidKinesisOption.

    >>> arguments({"streamName": "orders", "initialPosition": "earliest"})["start"].kind
    'TRIM_HORIZON'
    """
    for name in given:
        if name.lower() in SECRETS:
            raise InvalidKinesisOption(
                name,
                "a secret",
                "no keys",
                "use boto3's own chain (environment, profile, role of the machine) or roleArn.",
            )
        if name.lower() == "threads":
            raise InvalidKinesisOption(name, "a value", "an option of a Kinesis stream", "did you mean 'fetchers'?")
    known = (*TEXTS, *OTHERS, *COUNTS, *RATES)
    options = SparkOptions(given, known, InvalidKinesisOption, "an option of a Kinesis stream")
    wanted = options.given(TEXTS, options.text) | options.given({"columns": "columns"}, options.names)
    for option in ("streamName", "streamARN"):
        if (names := options.names(option)) is not None:
            wanted.setdefault("streams", []).extend(names)
    begin = options.text("initialPosition")
    wanted["start"] = _position("initialPosition", "LATEST" if begin is None else begin)
    if (end := options.text("endingPosition")) is not None:
        wanted["stop"] = _position("endingPosition", end)
    wanted["on_data_loss"] = "go_on" if options.flag("failOnDataLoss") is False else "error"
    return wanted | _numbers(options)


def _numbers(options: SparkOptions) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for option, argument in COUNTS.items():
        if (text := options.text(option)) is not None:
            number = _number(option, text)
            if not number.is_integer():
                raise InvalidKinesisOption(option, shown(text), "a whole number", "or leave it out.")
            found[argument] = int(number)
    for option, argument in RATES.items():
        if (text := options.text(option)) is not None:
            found[argument] = None if text.lower() == "none" else _number(option, text)
    return found


def _number(option: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidKinesisOption(option, shown(text), "a number", "or leave it out.")
    return number


def _position(option: str, text: str) -> KinesisPosition:
    word = {"EARLIEST": "TRIM_HORIZON"}.get(text.strip().upper(), text.strip())
    if not word.startswith("{"):
        return KinesisPosition.of(word, option=option)
    try:
        found: Any = json.loads(word)
        time_of = datetime_from_iso(found["at_timestamp"])
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise InvalidKinesisOption(
            option, shown(text), 'TRIM_HORIZON, LATEST or {"at_timestamp": "2026-01-01T00:00:00Z"}', "as JSON."
        ) from None
    return KinesisPosition.of(time_of, option=option)
