"""A source that raises in the process in which Spark plans the source. The module imports little, to start fast."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from lowmark.sources.kafka import KafkaSource

if TYPE_CHECKING:
    from tests.failpoints.inject import Failpoint

_PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"


class FailingSource(KafkaSource):
    """Kafka, with a failpoint that is armed when the planner's process unpickles the source."""

    failpoint: Failpoint | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.failpoint is not None and _PLANNER in sys.orig_argv:
            self.failpoint.arm()
