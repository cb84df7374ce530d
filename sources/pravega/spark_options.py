"""What `format("lowmark_pravega")` understands: the arguments of `PravegaSource`, in Spark's spelling.

Lists are separated by commas, and `jvmOptions` by blanks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lowmark.sources.kit.spark_options import SparkOptions

from .errors import InvalidPravegaOption

_TEXTS = {
    "controller": "controller",
    "scope": "scope",
    "streamPattern": "stream_pattern",
    "eventTime": "event_time",
    "eventTimeUnit": "event_time_unit",
    "discoverEvery": "discover_every",
    "giveUpAfter": "give_up_after",
    "onDataLoss": "on_data_loss",
    "readerGroup": "reader_group",
    "subscriber": "subscriber",
    "username": "username",
    "password": "password",
    "trustStore": "trust_store",
}
_LISTS = ("streams", "columns", "jars", "start", "stop")
_FLAGS = {"validateHostName": "validate_host_name", "notedTime": "noted_time"}


def arguments(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of `PravegaSource`. Raises InvalidPravegaOption.

    >>> arguments({"controller": "tcp://h:9090", "scope": "shop", "streams": "orders, returns", "start": "tail"})
    {'controller': 'tcp://h:9090', 'scope': 'shop', 'streams': ['orders', 'returns'], 'start': 'tail'}
    """
    known = (*_TEXTS, *_LISTS, *_FLAGS, "fetchers", "jvmOptions")
    options = SparkOptions(given, known, InvalidPravegaOption, "an option of a Pravega stream")
    for option in ("controller", "scope"):
        if options.text(option) is None:
            raise InvalidPravegaOption(option, "nothing", "a value", "it says where the streams are.")
    made = options.given(_TEXTS, options.text) | options.given(_FLAGS, options.flag)
    for option in _LISTS:
        if (names := options.names(option)) is not None:
            made[option] = names[0] if option in {"start", "stop"} and len(names) == 1 else names
    if (jvm_options := options.text("jvmOptions")) is not None:
        made["jvm_options"] = jvm_options.split()
    if (fetchers := options.text("fetchers")) is not None:
        # The source refuses a text. Python makes no number of thousands of digits.
        made["fetchers"] = int(fetchers) if fetchers.isdecimal() and len(fetchers) < 10 else fetchers
    return made
