"""An Airflow 3 sensor that waits, without a worker, until a query's sink is complete to the end of the data interval.

    with DAG("report", schedule="@hourly", ...):
        CompleteSensor(task_id="orders", checkpoint="s3a://bucket/orders", stream="orders") >> report

The trigger reads Spark's checkpoint: it needs no Spark and no way to the driver. Tried by hand with Airflow 3.3.2; no
test of lowmark runs it, because Airflow brings more than 100 packages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk.bases.sensor import BaseSensorOperator
from airflow.triggers.base import BaseTrigger, TriggerEvent
from lowmark import LowmarkError, completion


class CompleteTrigger(BaseTrigger):
    """Fires once a sink is complete up to a time.

    Args:
        checkpoint: the query's checkpointLocation.
        stream: the name of the stream.
        past_us: the time, microseconds since 1970.
        every_seconds: how often to read the checkpoint.
    """

    def __init__(self, checkpoint: str, stream: str, past_us: int, every_seconds: float = 30.0) -> None:
        super().__init__()
        self.checkpoint, self.stream, self.past_us, self.every_seconds = checkpoint, stream, past_us, every_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("checkpoint", "stream", "past_us", "every_seconds")
        kind = type(self)
        return f"{kind.__module__}.{kind.__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        while True:
            try:
                found = await asyncio.to_thread(completion, self.checkpoint, self.stream)
            except LowmarkError as failed:
                self.log.warning("%s", failed)  # the storage may be away; the sensor's timeout bounds the wait
            else:
                if found.has_passed(self.past_us):
                    yield TriggerEvent({"until_us": found.until_us})
                    return
                self.log.info("not complete: %s", found.why)
            await asyncio.sleep(self.every_seconds)


class CompleteSensor(BaseSensorOperator):
    """Waits until a sink is complete up to the end of the data interval; deferred, so it holds no worker.

    Args:
        checkpoint: the query's checkpointLocation.
        stream: the name of the stream.
        every_seconds: how often to read the checkpoint.
    """

    def __init__(self, *, checkpoint: str, stream: str, every_seconds: float = 30.0, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.checkpoint, self.stream, self.every_seconds = checkpoint, stream, every_seconds

    def execute(self, context: Any) -> None:
        end: datetime = context["data_interval_end"]
        past_us = round(end.timestamp() * 1_000_000)
        self.defer(
            trigger=CompleteTrigger(self.checkpoint, self.stream, past_us, self.every_seconds),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )

    def execute_complete(self, context: Any, event: dict[str, Any]) -> int:  # noqa: ARG002  # Airflow's signature
        """Return the time until which the sink is complete, microseconds."""
        return int(event["until_us"])
