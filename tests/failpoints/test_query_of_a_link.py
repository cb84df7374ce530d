"""A query that shares a low watermark does not wait for ever after the end of its application's link."""

from __future__ import annotations

from pathlib import Path

import pytest
from lowmark.integration import LowWatermarkService
from lowmark.integration.coordinator.access import Door
from lowmark.integration.errors import ServiceStopped
from pyspark.sql import SparkSession

from tests.integration.coordinator.serving import private_folder, serving
from tests.integration.feed import Feed, start
from tests.servers.local import wait_until


def test_a_query_that_shares_a_low_watermark_ends_with_the_error_that_ended_its_link(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("in the middle")

    feed = Feed(spark, tmp_path / "feed")
    with (
        private_folder() as folder,
        serving(Door(f"unix:{folder}/c.sock")) as address,
        LowWatermarkService(spark, coordinator=address, job="billing", beside=True) as service,
    ):
        member = service._client
        assert member is not None
        df = service.wrap(feed.df, name="orders", event_time="ts", split="split").select("v")
        feed.put(("a", 1, 100))
        ran = start(df, str(tmp_path / "checkpoint"))
        ran.query.processAllAvailable()
        monkeypatch.setattr(member, "_begin_again", fail)
        member._work.put(fail)
        wait_until(lambda: member.failed is not None, "the link has ended", seconds=20)
        feed.put(("a", 2, 200))
        wait_until(lambda: not ran.query.isActive, "the query has ended", seconds=60)
        assert "the query failed" in service.status("orders").why, "the service still answers"
    with pytest.raises(ServiceStopped):
        service.status("orders")
    assert "the thread lowmark-client was ended by an error: MemoryError: in the middle" in str(ran.query.exception())
