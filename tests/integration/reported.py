"""What Spark reports of a batch, made up: with the fields that Spark always writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lowmark.integration.spark.progress import Progress

SOURCE = {"startOffset": None, "endOffset": None, "latestOffset": None, "numInputRows": 0}


def report_text(batch_id: int, sources: Sequence[Mapping[str, Any]], **more: Any) -> str:
    """The JSON of the progress of a batch of query "q" in run "r".

    Args:
        batch_id: of the batch.
        sources: of the batch; what a source lacks of `SOURCE` is taken from there.
        more: other fields, or these with other values.
    """
    return json.dumps({
        "id": "q", "runId": "r", "batchId": batch_id, "numInputRows": 0, "stateOperators": [],
        "eventTime": {"watermark": "1970-01-01T00:00:00.000Z"}, "sources": [{**SOURCE, **source} for source in sources],
        **more,
    })  # fmt: skip


def report_of(batch_id: int, sources: Sequence[Mapping[str, Any]], **more: Any) -> Progress:
    """As `report_text`, read."""
    return Progress.from_json(report_text(batch_id, sources, **more))
