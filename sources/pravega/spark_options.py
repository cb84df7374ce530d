"""What `format("lowmark_pravega")` understands: the arguments of `PravegaSource`, in Spark's spelling.

controller, scope, streams (separated by commas) or streamPattern
start, stop         head, tail, or texts of StreamCuts, separated by commas
eventTime           a field of JSON such as $.order.at
eventTimeUnit       s, ms or us
notedTime           true or false
readerGroup, subscriber
columns             separated by commas
discoverEvery, giveUpAfter, onDataLoss, fetchers
jars                separated by commas
jvmOptions          separated by blanks
username, password, trustStore, validateHostName
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import InvalidPravegaOption

_TEXTS = {
    "controller": "controller",
    "scope": "scope",
    "streampattern": "stream_pattern",
    "eventtime": "event_time",
    "eventtimeunit": "event_time_unit",
    "discoverevery": "discover_every",
    "giveupafter": "give_up_after",
    "ondataloss": "on_data_loss",
    "readergroup": "reader_group",
    "subscriber": "subscriber",
    "username": "username",
    "password": "password",
    "truststore": "trust_store",
}
_LISTS = {"streams": "streams", "columns": "columns", "jars": "jars", "start": "start", "stop": "stop"}
_FLAGS = {"validatehostname": "validate_host_name", "notedtime": "noted_time"}


def arguments(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of `PravegaSource` for options, whatever the case of their names.

    Raises:
        InvalidPravegaOption: an option is missing, unknown or wrong.

    >>> arguments({"controller": "tcp://h:9090", "scope": "shop", "streams": "orders, returns", "start": "tail"})
    {'controller': 'tcp://h:9090', 'scope': 'shop', 'streams': ['orders', 'returns'], 'start': 'tail'}
    """
    given = {name.lower(): value for name, value in options.items()}
    made: dict[str, Any] = {}
    for option in ("controller", "scope"):
        if option not in given:
            raise InvalidPravegaOption(option, "nothing", "a value", "it says where the streams are.")
    for name, value in given.items():
        if name in _TEXTS:
            made[_TEXTS[name]] = value
        elif name in _LISTS:
            parts = [part.strip() for part in value.split(",") if part.strip()]
            made[_LISTS[name]] = value.strip() if name in {"start", "stop"} and len(parts) == 1 else parts
        elif name == "jvmoptions":
            made["jvm_options"] = value.split()
        elif name == "fetchers":
            if not value.isdecimal():
                raise InvalidPravegaOption(
                    "fetchers", repr(value), "a whole number, 1 or more", "each is a thread of a task."
                )
            made["fetchers"] = int(value)
        elif name in _FLAGS:
            if value.lower() not in {"true", "false"}:
                raise InvalidPravegaOption(name, repr(value), "true or false", "write one of them.")
            made[_FLAGS[name]] = value.lower() == "true"
        else:
            known = sorted({*_TEXTS, *_LISTS, *_FLAGS, "fetchers", "jvmoptions"})
            raise InvalidPravegaOption(name, "an option that there is not", f"one of {', '.join(known)}", "mend it.")
    return made
