"""`make screenshots`: makes docs/pictures from the real page beside running queries, and from an audit."""

from __future__ import annotations

import datetime as dt
import random
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowmark.integration import LowWatermarkService
from lowmark.integration.spark.session import local_session
from lowmark.watermark import WatermarkStrategy

from tests.commands.audit_example import write
from tests.integration.feed import Feed
from tests.servers.chromium import chromium, watched
from tests.servers.local import LOWMARK, ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PICTURES = ROOT / "docs" / "pictures"
BATCHES = 12
DEVICES = 5_000
WIDE: dict[str, Any] = {"viewport": {"width": 1280, "height": 980}}
VIEWS: dict[str, tuple[str, dict[str, Any]]] = {
    "page-light": ("orders", {**WIDE, "color_scheme": "light"}),
    "page-dark": ("orders", {**WIDE, "color_scheme": "dark"}),
    "page-narrow": ("orders", {"viewport": {"width": 390, "height": 980}, "color_scheme": "light"}),
    "page-5000": ("devices", {**WIDE, "color_scheme": "light"}),
}
NAMES = {
    "orders": [f"orders/{number}" for number in range(8)],
    "devices": [f"device-{number:04}" for number in range(DEVICES)],
}
STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("10 seconds").with_idleness("1 minute")


def orders(chance: random.Random, start: dt.datetime, batch: int) -> list[tuple[object, ...]]:
    """Eight partitions: one ten minutes behind, one that becomes silent, six regular."""
    rows: list[tuple[object, ...]] = []
    for split, name in enumerate(NAMES["orders"]):
        if split == 0 and batch > 3:
            continue
        behind = dt.timedelta(minutes=10) if split == 1 else dt.timedelta(seconds=chance.randint(0, 90))
        rows += [(name, n, _time(start + batch * dt.timedelta(seconds=20) - behind)) for n in range(20)]
    return rows


def devices(chance: random.Random, start: dt.datetime, batch: int) -> list[tuple[object, ...]]:
    """Thousands of devices, some far behind."""
    rows: list[tuple[object, ...]] = []
    for name in NAMES["devices"]:
        behind = dt.timedelta(seconds=min(3_600, chance.expovariate(1 / 120)))
        rows.append((name, 1, _time(start + batch * dt.timedelta(seconds=20) - behind)))
    return rows


def _time(at: dt.datetime) -> str:
    return at.isoformat()


def audited(browser: Browser, folder: Path) -> None:
    """The two pictures of `lowmark audit files --html`, over the rows of docs/audit.md."""
    html = folder / "audit.html"
    command = [*LOWMARK, "audit", "files"]
    command += [str(write(folder / "bronze")), "--window", "1 minute", "--html", str(html)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    page = browser.new_page(viewport={"width": 1040, "height": 900}, color_scheme="light")
    page.goto(html.as_uri())
    progress, disorder = page.locator("figure").all()
    progress.screenshot(path=PICTURES / "audit-progress.png")
    disorder.screenshot(path=PICTURES / "audit-disorder.png")


def main() -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    chance, start = random.Random(42), dt.datetime.now(dt.timezone.utc) - dt.timedelta(minutes=6)
    settings = {"spark.sql.shuffle.partitions": "1"}
    with (
        local_session("screenshots", settings=settings) as (spark, folder),
        LowWatermarkService(spark, page_port=0) as service,
    ):
        feeds = {name: Feed(spark, folder / name) for name in ("orders", "devices")}
        for (name, feed), made in zip(feeds.items(), (orders, devices), strict=True):
            wrapped = service.wrap(
                feed.df, name=name, event_time="ts", split="split", splits=NAMES[name], strategy=STRATEGY,
                max_splits=4 * DEVICES, detail=True,
            )  # fmt: skip
            writer = wrapped.writeStream.format("noop").queryName(f"{name} by minute")
            feed.put(*made(chance, start, 0))
            writer.option("checkpointLocation", str(folder / f"checkpoint-{name}")).start().processAllAvailable()
        with chromium() as browser:
            audited(browser, folder)
            pages = {file: browser.new_page(**how) for file, (_, how) in VIEWS.items()}
            wrong = [watched(page) for page in pages.values()]
            for file, page in pages.items():
                page.goto(str(service.page_address))
                page.locator("#streams a", has_text=VIEWS[file][0]).click()
                page.mouse.move(0, 0)  # away from the streams, because the page shows the stream under the mouse
            for batch in range(1, BATCHES):
                feeds["orders"].put(*orders(chance, start, batch))
                if batch == 1:
                    feeds["devices"].put(*devices(chance, start, batch))
                for query in spark.streams.active:
                    query.processAllAvailable()
                pages["page-light"].wait_for_timeout(1_500)  # so that every page has asked
            for file, page in pages.items():
                assert page.locator("#stream-name").inner_text() == VIEWS[file][0]
                page.screenshot(path=PICTURES / f"{file}.png")
            assert not any(wrong), wrong
        for query in spark.streams.active:
            query.stop()
    for picture in sorted(PICTURES.glob("*.png")):
        print(f"{picture.relative_to(ROOT)}: {picture.stat().st_size // 1024} KB")


if __name__ == "__main__":
    main()
