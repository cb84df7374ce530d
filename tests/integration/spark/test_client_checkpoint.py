"""A client of Spark Connect remembers the last reports of its queries. These tests need no server."""

from __future__ import annotations

from lowmark.integration.spark.checkpoint import Farewell
from lowmark.integration.spark.client_checkpoint import _REMEMBERED, ClientCheckpoint


def test_the_last_report_of_a_long_run_outlives_those_of_shorter_runs() -> None:
    left = ClientCheckpoint({})
    for number in range(_REMEMBERED):
        left.write(Farewell(f"run{number}", 1, 1, "state"))
    left.write(Farewell("run0", 2, 99, "newer"))
    left.write(Farewell("another", 1, 1, "state"))
    kept = left.read("run0")
    assert kept is not None, "it was written last but one"
    assert kept.batch_id == 99
    assert left.read("run1") is None, "the memory is bounded, and the oldest report goes"
