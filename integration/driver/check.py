"""Checks the arguments of a service and of its streams before anything is started with them."""

from __future__ import annotations

import os
from typing import cast

from lowmark.integration.errors import ServiceRefused, SessionUnfit, WrapRefused
from lowmark.integration.spark import versions
from lowmark.sources.spark.source import is_connect
from lowmark.watermark import WatermarkStrategy
from lowmark.watermark.names import MOST_NAME, unfit_character
from lowmark.watermark.printable import printable
from lowmark.watermark.tasks.message_check import MOST_TASKS
from pyspark.sql import SparkSession


def session(spark: object) -> None:
    """Raise `SessionUnfit` for an object that is no session of Spark."""
    if hasattr(spark, "_jsparkSession") or is_connect(spark):
        versions.check_session(cast("SparkSession", spark))
        return
    raise SessionUnfit(
        "LowWatermarkService needs a SparkSession",
        f"{spark!r:.100}",
        "pass spark, as SparkSession.builder.getOrCreate() returns it.",
    )


def service(
    *, coordinator: str | None, require_coordinator: bool, job: str | None, job_queries: int, job_away: object = None
) -> None:
    """Raise `ServiceRefused` for arguments of `LowWatermarkService` that do not go together, or are no texts."""
    for what, given, example in (("coordinator", coordinator, "unix:/run/c.sock"), ("job", job, "billing")):
        text: object = given  # callers may ignore the types
        if text is not None and not isinstance(text, str):
            fact = f"LowWatermarkService: {what} is {text!r:.100}, expected a text"
            raise ServiceRefused(fact, f'pass {what}="{example}", or leave it out.')
    if job is not None and coordinator is None:
        raise ServiceRefused(
            f"LowWatermarkService: job={job!r} is shared through a coordinator, and none is named",
            'start one (`lowmark serve`) and pass coordinator="unix:...", or leave job out.',
        )
    if job is None and (job_queries != 1 or job_away is not None):  # each query would go alone, without a word
        what = "job_queries" if job_away is None else "job_away"
        raise ServiceRefused(
            f"LowWatermarkService: {what} has no meaning without job", f'pass job="billing", too, or leave {what} out.'
        )
    if job == "":
        raise ServiceRefused("LowWatermarkService: job is empty", 'pass a name such as job="billing", or leave it out.')
    if job is not None and (unfit := unfit_character(job)) is not None:
        raise ServiceRefused(f"LowWatermarkService: job={job!r} holds {unfit}", "pass a name of one line.")
    if job is not None and len(job) > MOST_NAME:
        fact = f"LowWatermarkService: job has {len(job):,} characters, expected {MOST_NAME:,} at most"
        raise ServiceRefused(fact, 'pass a name such as job="billing".')
    if require_coordinator and coordinator is None:
        raise ServiceRefused(
            "LowWatermarkService: require_coordinator is set, and no coordinator is named",
            'start one (`lowmark serve`) and pass coordinator="unix:...".',
        )
    if type(job_queries) is not int or not 1 <= job_queries <= MOST_TASKS:
        raise ServiceRefused(
            f"LowWatermarkService: expected job_queries of 1 to {MOST_TASKS:,}, got {job_queries!r}",
            "leave it out.",
        )


def name(name: object) -> None:
    """Raise `WrapRefused` for an object that cannot be the name of a stream."""
    if not isinstance(name, str):
        raise WrapRefused(str(name), f"the name is {name!r}, expected a text", 'pass a name such as name="orders".')
    if not name:
        raise WrapRefused(name, "the name is empty", 'pass a name such as name="orders".')
    if (unfit := unfit_character(name)) is not None:
        fact = f"the name holds {unfit}, which would break log lines and metrics"
        raise WrapRefused(printable(name), fact, 'pass a name of one line, such as name="orders".')
    if len(name) > MOST_NAME:
        fact = f"the name has {len(name):,} characters, expected {MOST_NAME:,} at most"
        raise WrapRefused(f"{name[:80]}...", fact, 'pass a name such as name="orders".')


def function(name: str, what: str, given: object, hint: str = "pass the function itself, not its result.") -> None:
    """Raise `WrapRefused` for an object that cannot be called, such as the result of a function."""
    if not callable(given):
        raise WrapRefused(name, f"{what} is {given!r:.100}, expected a function", hint)


def listener(given: object) -> None:
    """Raise `ServiceRefused` for an object that cannot hear a new low watermark, such as a function."""
    if not callable(getattr(given, "on_new_low_watermark", None)):
        fact = f"add_listener: {given!r:.100} has no method on_new_low_watermark"
        raise ServiceRefused(fact, "pass an object with this method; it takes the message.")


def folder(name: str, what: str, given: object, hint: str) -> None:
    """Raise `WrapRefused` for an object that is no path, and for an empty path."""
    if not isinstance(given, str | os.PathLike) or not os.fspath(given):
        raise WrapRefused(name, f"{what} is {given!r:.100}, expected the path of a folder", hint)


def strategy_of(name: str, strategy: object, max_splits: object) -> WatermarkStrategy:
    """Return the given strategy, by default monotonous timestamps.

    Raises `WrapRefused` for another object, and for `max_splits` out of range.
    """
    if type(max_splits) is not int or not 1 <= max_splits <= 1 << 25:
        raise WrapRefused(name, f"max_splits is {max_splits!r}", "pass a number from 1 to 33554432.")
    if strategy is None:
        return WatermarkStrategy.for_monotonous_timestamps()
    if not isinstance(strategy, WatermarkStrategy):
        raise WrapRefused(
            name,
            f"the strategy is {strategy!r}, expected a WatermarkStrategy",
            'pass one, such as strategy=WatermarkStrategy.for_bounded_out_of_orderness("10 seconds").',
        )
    return strategy
