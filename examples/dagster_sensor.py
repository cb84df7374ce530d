"""A Dagster sensor that starts a run for each hour that is complete in a query's sink.

The sensor reads Spark's checkpoint: it needs no Spark and no way to the driver. Its cursor is the end of the last hour
that it asked a run for, so each hour gets one run, in order, also after an outage. CHECKPOINT names the checkpoint.
Tried by hand with Dagster 1.13.28; no test of lowmark runs it.
"""

import os
from collections.abc import Iterator
from datetime import datetime, timezone

from dagster import Definitions, OpExecutionContext, RunRequest, SensorEvaluationContext, SkipReason, job, op, sensor
from lowmark import completion

HOUR_US = 3_600_000_000
MOST_RUNS = 100  # of one evaluation


@op
def report(context: OpExecutionContext) -> None:
    """The job of an hour."""
    context.log.info("the hour from %s is complete", context.run.tags["hour"])


@job
def hourly_report() -> None:
    report()


@sensor(job=hourly_report, minimum_interval_seconds=30)
def complete_hours(context: SensorEvaluationContext) -> Iterator[RunRequest | SkipReason]:
    """Ask for a run of each hour that was completed since the last evaluation."""
    found = completion(os.environ["CHECKPOINT"], "orders")
    if found.until_us is None:
        yield SkipReason(found.why)
        return
    last = found.until_us // HOUR_US
    first = int(context.cursor) if context.cursor else last - 1
    if first >= last:
        yield SkipReason(found.why)
        return
    last = min(last, first + MOST_RUNS)
    for number in range(first, last):
        at = datetime.fromtimestamp(number * 3_600, timezone.utc).isoformat()
        yield RunRequest(run_key=at, tags={"hour": at})
    context.update_cursor(str(last))


definitions = Definitions(jobs=[hourly_report], sensors=[complete_hours])
