"""`make screenshots`: the pictures of docs/pictures, of the real page beside queries that run."""

from __future__ import annotations

import datetime as dt
import random
import tempfile
from pathlib import Path

from lowmark.integration import LowWatermarkService
from lowmark.integration.spark.session import clean_environment
from lowmark.watermark import WatermarkStrategy
from pyspark.sql import SparkSession

from tests.integration.feed import Feed
from tests.live.chromium import chromium, watched
from tests.live.servers import ROOT, wait_until

PICTURES = ROOT / "docs" / "pictures"
BATCHES = 14
DEVICES = 5_000
STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("10 seconds").with_idleness("1 minute")


def orders(chance: random.Random, start: dt.datetime, batch: int) -> list[tuple[object, ...]]:
    """Eight partitions: one ten minutes behind, one that falls silent, six regular."""
    rows: list[tuple[object, ...]] = []
    for split in range(8):
        if split == 0 and batch > 3:
            continue
        behind = dt.timedelta(minutes=10) if split == 1 else dt.timedelta(seconds=chance.randint(0, 90))
        rows += [(f"orders-{split}", n, _time(start + batch * dt.timedelta(seconds=20) - behind)) for n in range(20)]
    return rows


def devices(chance: random.Random, start: dt.datetime, batch: int) -> list[tuple[object, ...]]:
    """Thousands of devices, some of them far behind."""
    rows: list[tuple[object, ...]] = []
    for device in range(DEVICES):
        behind = dt.timedelta(seconds=min(3_600, chance.expovariate(1 / 120)))
        rows.append((f"device-{device:04}", 1, _time(start + batch * dt.timedelta(seconds=20) - behind)))
    return rows


def _time(at: dt.datetime) -> str:
    return at.isoformat()


def main() -> None:
    clean_environment()
    PICTURES.mkdir(parents=True, exist_ok=True)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    chance, start = random.Random(42), dt.datetime.now(dt.timezone.utc) - dt.timedelta(minutes=6)
    with (
        tempfile.TemporaryDirectory() as folder,
        LowWatermarkService(spark, page_port=0) as service,
        chromium() as browser,
    ):
        feeds = {name: Feed(spark, Path(folder, name)) for name in ("orders", "devices")}
        for name, feed in feeds.items():
            events = service.wrap(
                feed.df,
                name=name,
                event_time="ts",
                split="split",
                strategy=STRATEGY,
                max_splits=4 * DEVICES,
                detail=True,
            )
            query = events.writeStream.format("noop").queryName(f"{name} by minute")
            query.option("checkpointLocation", str(Path(folder, f"checkpoint-{name}"))).start()
        views = {
            "page-light": ("orders", browser.new_page(viewport={"width": 1280, "height": 980}, color_scheme="light")),
            "page-dark": ("orders", browser.new_page(viewport={"width": 1280, "height": 980}, color_scheme="dark")),
            "page-narrow": ("orders", browser.new_page(viewport={"width": 390, "height": 980}, color_scheme="light")),
            "page-5000": ("devices", browser.new_page(viewport={"width": 1280, "height": 980}, color_scheme="light")),
        }
        wrong = [watched(page) for _, page in views.values()]
        for batch in range(BATCHES):
            feeds["orders"].put(*orders(chance, start, batch))
            if batch < 2:
                feeds["devices"].put(*devices(chance, start, batch))
            for running in spark.streams.active:
                running.processAllAvailable()
            if batch == 0:
                for name, page in views.values():
                    page.goto(str(service.page_address))
                    page.locator("#streams a", has_text=name).click()
            seen = service.status("orders").batches
            for name, page in views.values():  # each has drawn this batch: the history is whole
                what = f"document.querySelector('#stream-name').textContent === '{name}'"
                wait_until(lambda page=page, what=what: page.evaluate(what), "the stream in view")  # type: ignore[misc]
            wait_until(lambda seen=seen: service.status("orders").batches >= seen, "the report")  # type: ignore[misc]
            views["page-light"][1].wait_for_timeout(2_000)
        for file, (_, page) in views.items():
            page.screenshot(path=PICTURES / f"{file}.png")
        assert not any(wrong), wrong
        for running in spark.streams.active:
            running.stop()
    spark.stop()
    for picture in sorted(PICTURES.glob("*.png")):
        print(f"{picture.relative_to(ROOT)}: {picture.stat().st_size // 1024} KB")


if __name__ == "__main__":
    main()
