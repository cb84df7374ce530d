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
from difflib import get_close_matches
from typing import Any

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


def arguments(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of `KinesisSource`.

    Args:
        options: Databricks'; names in any case, as Spark takes them.

    Raises:
        InvalidKinesisOption: an option is not what it can be, is missing, or is not known.

    >>> arguments({"streamName": "orders", "initialPosition": "earliest"})["start"].kind
    'TRIM_HORIZON'
    """
    given = {name.lower(): value for name, value in options.items()}
    known = {name.lower(): name for name in (*TEXTS, *OTHERS, *COUNTS, *RATES)}
    for name in given:
        if name in SECRETS:
            raise InvalidKinesisOption(
                name,
                "a secret",
                "no keys",
                "use boto3's own chain (environment, profile, role of the machine) or roleArn.",
            )
        if name not in known:
            near = ["fetchers"] if name == "threads" else get_close_matches(name, known, n=1)
            hint = f"did you mean {known[near[0]]!r}?" if near else f"known are {', '.join(sorted(known.values()))}."
            raise InvalidKinesisOption(name, "a value", "an option of a Kinesis stream", hint)
    named = [given[name] for name in ("streamname", "streamarn") if name in given]
    wanted: dict[str, Any] = {
        argument: given[name.lower()] for name, argument in TEXTS.items() if name.lower() in given
    }
    if named:
        wanted["streams"] = [name.strip() for value in named for name in value.split(",") if name.strip()]
    wanted["start"] = _position("initialPosition", given.get("initialposition", "LATEST"))
    if "endingposition" in given:
        wanted["stop"] = _position("endingPosition", given["endingposition"])
    if "failondataloss" in given:
        if given["failondataloss"].lower() not in {"true", "false"}:
            raise InvalidKinesisOption(
                "failOnDataLoss", shown(given["failondataloss"]), "true or false", "write one of them."
            )
        wanted["on_data_loss"] = "error" if given["failondataloss"].lower() == "true" else "go_on"
    if "columns" in given:
        wanted["columns"] = [name.strip() for name in given["columns"].split(",") if name.strip()]
    return wanted | _numbers(given)


def _numbers(given: Mapping[str, str]) -> dict[str, Any]:
    """The arguments that are numbers; names of options in small letters."""
    found: dict[str, Any] = {}
    for name, argument in COUNTS.items():
        if name.lower() in given:
            found[argument] = int(_number(name, given[name.lower()]))
    for name, argument in RATES.items():
        if (text := given.get(name.lower())) is not None:
            found[argument] = None if text.lower() == "none" else _number(name, text)
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
