"""The page in a real Chromium: beside a query that runs, and over fake services with thousands of splits."""

from __future__ import annotations

import random
import re
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
from lowmark.integration import LowWatermarkService
from lowmark.integration.audit.audit import Question
from lowmark.integration.audit.event_time import TimeReader
from lowmark.integration.audit.files import FilesAudit
from lowmark.integration.audit.page import page as audit_page
from lowmark.integration.errors import PageUnavailable
from lowmark.integration.metrics.collector import StreamCollector
from lowmark.integration.page.app import PageServer, application
from lowmark.integration.page.look import Look, all_services
from lowmark.integration.page.picture import Picture
from lowmark.integration.process.http_server import HttpServer
from lowmark.integration.transport.driver_rpc import StatusReply, StatusRequest
from lowmark.watermark import WatermarkStrategy
from lowmark.watermark.moment import datetime_of
from lowmark.watermark.printable import printable
from lowmark.watermark.splits.events import BatchCounts
from lowmark.watermark.tasks.status import run_mark
from prometheus_client.parser import text_string_to_metric_families

from tests.commands.audit_example import write
from tests.integration.feed import Feed, Ran, start, windows
from tests.integration.metrics.test_metrics import SECOND_US, FakeRun, FakeService
from tests.integration.page.test_page import ADDRESS, Clock, FakeServices, two_splits
from tests.servers.chromium import watched
from tests.servers.local import http_get, no_thread_stays, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Page, Route
    from pyspark.sql import SparkSession

HOSTILE = (
    "<img src=x onerror=\"window.harmed='img'\">",
    "</script><script>window.harmed='script'</script>",
    "\"quoted\" & 'single' &amp; {{braces}} ${dollar}",
    "line\nbreak\ttab\x1b[2J",
    "long " * 2_000,
    "cart 🛒 and 👩‍👩‍👧",
    "\u202eright to left",
    "__proto__",
    "constructor",
)
PAGE_MS = 100.0
SCRAPE_SECONDS = 0.2


def holder_of(service: LowWatermarkService) -> str | None:
    """The split in the metric `lowmark_holder_info`."""
    _, metrics = http_get(f"http://127.0.0.1:{service.metrics_port}/metrics")
    found = [
        sample.labels["split"]
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if sample.name == "lowmark_holder_info"
    ]
    assert len(found) <= 1
    return found[0] if found else None


def without_ages(explanation: str) -> list[str]:
    """Leave out the line with the duration of the hold, because time goes on."""
    return [line for line in explanation.split("\n") if not line.startswith("  held ")]


def text(page: Page, selector: str) -> str:
    return page.locator(selector).inner_text()


def shows(page: Page, selector: str, wanted: str) -> None:
    """Wait until an element's text contains this text."""
    page.wait_for_function(
        "([selector, wanted]) => document.querySelector(selector)?.textContent.includes(wanted)",
        arg=[selector, wanted],
        timeout=30_000,
    )


@contextmanager
def opened(browser: Browser, address: str, **options: Any) -> Iterator[Page]:
    """A page of the browser; an error in it fails the test."""
    page = browser.new_page(**options)
    wrong = watched(page)
    try:
        page.goto(address)
        page.wait_for_selector("#connection[data-state=live]")
        yield page
    finally:
        page.close()
    assert wrong == []


@contextmanager
def page_of(browser: Browser, look: Look, fragment: str = "", **options: Any) -> Iterator[Page]:
    """The page of a server that shows what `look` finds, opened at a fragment of its address."""
    server = PageServer(look)
    try:
        with opened(browser, server.address + fragment, **options) as page:
            yield page
    finally:
        server.stop()


# --- beside a query that runs ---


@contextmanager
def running(
    spark: SparkSession, feed: Feed, checkpoint: str, *rows: tuple[Any, ...]
) -> Iterator[tuple[LowWatermarkService, Ran]]:
    """A service with its page and its metrics, and a query on the stream "orders"."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("10 seconds")
    with LowWatermarkService(spark, metrics_port=0, page_port=0) as service:
        names = [row[0] for row in rows]  # otherwise only the names in a sample of the rows are known
        events = service.wrap(feed.df, name="orders", event_time="ts", split="split", splits=names, strategy=strategy)
        feed.put(*rows)
        ran = start(windows(events, "split"), checkpoint, name="totals")
        try:
            ran.settle()
            wait_until(lambda: service.status("orders").batches > 0, "the first report")
            yield service, ran
        finally:
            ran.query.stop()


def test_page_explain_and_metric_name_one_holder_and_follow_it(
    spark: SparkSession, browser: Browser, feed: Feed, checkpoint: str
) -> None:
    hostile = HOSTILE[0]
    rows = (("a", 1, 100), (hostile, 1, 40), ("c", 1, 300))
    with running(spark, feed, checkpoint, *rows) as (service, ran), opened(browser, str(service.page_address)) as page:
        shows(page, "#holder", hostile)
        assert holder_of(service) == text(page, "#holder") == hostile
        assert f"split {text(page, '#holder')} has the smallest watermark" in service.explain("orders")
        assert text(page, "#why")[1:] in service.explain("orders")
        assert text(page, "#next") in service.explain("orders")
        told = str(page.locator("#explanation").text_content())
        assert without_ages(told) == without_ages(service.explain("orders"))
        assert page.locator("#rows th").all_inner_texts() == [hostile, "a", "c"]

        feed.put((hostile, 2, 200))
        ran.settle()
        shows(page, "#holder", "a")  # the page updates itself
        assert holder_of(service) == "a"
        page.wait_for_selector("#rows tr.holds th:has-text('a')")

        ran.query.stop()
        shows(page, "#stream-verdict", "ended")
        assert "This query has ended" in text(page, "#beside")
        assert "ended" in text(page, "#queries")


def test_a_service_that_ends_is_told_on_its_own_page_and_on_that_of_all(
    spark: SparkSession, browser: Browser, feed: Feed, checkpoint: str
) -> None:
    everyone = PageServer(all_services)
    try:
        with opened(browser, everyone.address) as page:
            assert "No lowmark service of this user runs" in text(page, "main"), text(page, "body")
            own = browser.new_page()
            with running(spark, feed, checkpoint, ("a", 1, 100)) as (service, _):
                own.goto(str(service.page_address))
                shows(own, "#holder", "a")
                shows(page, "#holder", "a")  # it appeared by itself
            shows(own, "#connection", "does not answer since")
            assert text(own, "#holder") == "a"  # the last known state is still shown
            shows(page, "#stream-verdict", "gone")
            assert "does not answer any more" in text(page, "#beside")
            own.close()
    finally:
        everyone.stop()


def test_a_service_whose_page_cannot_be_served_leaves_nothing_behind(spark: SparkSession) -> None:
    with no_thread_stays("lowmark"):
        taken = PageServer(all_services)
        try:
            with pytest.raises(PageUnavailable, match="another service of this process"):
                LowWatermarkService(spark, metrics_port=0, page_port=taken.port)
        finally:
            taken.stop()


# --- its functions, over fake services ---


def small() -> FakeRun:
    run = FakeRun("t1", strategy=WatermarkStrategy().with_idleness("1 minute", clock="time"))
    run.discover("mute")
    at = {f"s{n}": (100 + 10 * n) * SECOND_US for n in range(7)}
    run.report(at, backlog_rows={"s1": 5})
    run.report({}, BatchCounts())  # native Spark judges the next batch by the batch before the last
    run.report({"s1": 120 * SECOND_US}, backlog_rows={"s1": 5}, first_us={"s1": 115 * SECOND_US})  # s6 is at 160
    return run


@pytest.fixture
def served() -> Iterator[tuple[FakeServices, str]]:
    services = FakeServices({ADDRESS: [small()]})
    server = PageServer(services)
    yield services, server.address
    server.stop()


def test_hostile_names_are_text_everywhere(browser: Browser) -> None:
    run = FakeRun("t1", stream=HOSTILE[1], query=HOSTILE[0])
    run.report({name: (100 + n) * SECOND_US for n, name in enumerate(HOSTILE)})
    with page_of(browser, FakeServices({ADDRESS: [run]})) as page:
        shows(page, "#splits-count", str(len(HOSTILE)))
        assert text(page, "#holder") == printable(HOSTILE[0])
        told = page.locator("#rows th button").all_text_contents()
        assert sorted(name for name in told if len(name) < 300) == sorted(
            printable(name) for name in HOSTILE if len(name) < 300
        )
        for at in range(len(HOSTILE)):
            page.locator("#rows tr:not(.more) th button").nth(at).click()
            assert page.locator("#rows tr.more").count() == 1
        assert page.evaluate("window.harmed") is None
        assert page.locator("main img, main script").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_service_that_gives_no_status_is_told_and_hides_no_other(browser: Browser) -> None:
    silent, services = dict[str, str](), FakeServices()

    def look(request: StatusRequest, address: str | None) -> dict[str, StatusReply | str]:
        return {**services(request, address), **silent}

    why = "the service at unix:/x.sock answers with an error: <b>NOT_FOUND</b>"
    with page_of(browser, look) as page:
        shows(page, "#nothing", "No lowmark service of this user runs")
        services.silent["unix:/x.sock"] = why
        shows(page, "#connection", why)
        shows(page, "#nothing", "No lowmark service of this user gives a status")
        services.runs[ADDRESS] = [two_splits()]
        shows(page, "#holder", "b")
        assert (text(page, "#connection"), page.locator("body.stale").count()) == (why, 0)
        services.silent.clear()
        shows(page, "#connection", "live")


def test_it_can_be_used_with_the_keyboard_alone(browser: Browser, served: tuple[FakeServices, str]) -> None:
    with opened(browser, served[1]) as page:
        shows(page, "#splits-count", "8")
        page.locator("#order").focus()
        for _ in range(12):  # past the buttons of the states, which are off if no split has the state
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.closest('#rows') !== null"):
                break
        assert page.evaluate("document.activeElement.textContent") == "mute"  # the neediest first
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        assert page.evaluate("document.activeElement.textContent") == "s1"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
        assert text(page, "#rows tr.more").startswith("s1 is active: delivered rows.")
        assert "5 rows unread" in text(page, "#rows tr.more")
        assert "At least 1 row of it came behind native Spark's one watermark" in text(page, "#rows tr.more")
        page.keyboard.press("Tab")  # one stop for all rows
        assert not page.evaluate("document.activeElement.closest('#rows') !== null")


def test_a_screen_reader_finds_a_table_headings_and_words(browser: Browser, served: tuple[FakeServices, str]) -> None:
    with opened(browser, served[1]) as page:
        shows(page, "#splits-count", "8")
        table = page.get_by_role("table", name=re.compile("Splits 1 to 8 of 8"))
        assert table.get_by_role("row").count() == 9
        assert table.get_by_role("columnheader").count() == 7  # of eight, at this width
        assert table.get_by_role("rowheader", name="mute").count() == 1
        assert [cell.inner_text() for cell in table.locator("tbody .c-state").all()[:2]] == [
            "pending, holds",
            "active",
        ]
        assert page.get_by_role("heading", level=1).inner_text() == "orders"
        assert page.get_by_role("navigation", name="Streams").get_by_role("link").count() == 1
        assert "The low watermark" in page.locator("#history-words").inner_text() or page.locator(
            "#history-words"
        ).inner_text().startswith("Seen for")
        assert page.locator("[role=status]").count() == 1  # the only part that a screen reader reads by itself
        assert page.evaluate("document.getAnimations().length") == 0


def test_on_a_phone_no_column_is_cut_and_a_wrong_clock_is_named(browser: Browser) -> None:
    run = FakeRun("t1")
    names = [f"orders/{n}" for n in range(8)]
    for at in range(3):
        watermarks_us = {name: (1_000 * at + 97 * n) * SECOND_US for n, name in enumerate(names[1:])}
        run.report({**watermarks_us, **({} if at else {names[0]: 0})}, future_rows={names[0]: 5}, newest_us=10**17)
    with page_of(browser, FakeServices({ADDRESS: [run]}), viewport={"width": 390, "height": 980}) as page:
        shows(page, "#splits-count", "8")
        cut = page.evaluate(
            "[...document.querySelectorAll('#table th, #table td')].filter((cell) => cell.offsetParent !== null"
            " && cell.scrollWidth > cell.clientWidth).map((cell) => cell.textContent)"
        )
        assert cut == []
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert text(page, "#holder-lead") + text(page, "#holder") == "Wrong clock oforders/0"
        assert "wrong clock" in text(page, "#rows tr.holds")


def test_the_list_of_the_splits_that_are_left_out_says_how_many_are_not_in_it(browser: Browser) -> None:
    run = FakeRun("t1", strategy=WatermarkStrategy().with_idleness("1 minute", clock="time"))
    names = [f"s{n:02}" for n in range(25)]
    run.report(dict.fromkeys(names, 100 * SECOND_US), backlog_rows=dict.fromkeys(names, 0))
    run.now_us += 100 * SECOND_US
    run.report({"s00": 200 * SECOND_US})
    with page_of(browser, FakeServices({ADDRESS: [run]})) as page:
        shows(page, "#left-out-heading", "24 idle splits are left out")
        told = page.locator("#left-out li").all_text_contents()
        assert [each.partition(":")[0] for each in told] == [*names[1:11], "and 14 more"]


def test_a_split_with_late_reports_is_called_what_explain_calls_it(browser: Browser) -> None:
    run = FakeRun("t1")
    run.report({"a": 100 * SECOND_US, "b": 100 * SECOND_US})
    run.report({"a": 200 * SECOND_US}, first_us={"a": 90 * SECOND_US})
    with page_of(browser, FakeServices({ADDRESS: [run]})) as page:
        shows(page, "#splits-count", "2")
        assert "active, late reports" in text(page, "#rows")
        page.locator("#rows tr:not(.more) th button").nth(1).click()
        assert "since its query started" in text(page, "#rows tr.more")
        assert "In 1 batch it delivered rows at or below the watermark in force." in text(page, "#rows tr.more")


@pytest.mark.parametrize("hours", [-3, 3])
def test_ages_go_by_the_service_s_own_clock_when_the_wall_clock_was_set(browser: Browser, hours: int) -> None:
    now_us = time.time_ns() // 1_000 - hours * 3_600 * SECOND_US
    run = FakeRun("t1", now_us=now_us - 700 * SECOND_US)
    run.report({"a": 100 * SECOND_US, "b": 100 * SECOND_US})
    run.now_us = now_us
    services = FakeServices({ADDRESS: [run]})

    def look(request: StatusRequest, address: str | None) -> dict[str, StatusReply | str]:
        answers = services(request, address)
        [answer] = answers.values()
        assert isinstance(answer, StatusReply)
        for stream in answer.streams:
            stream["run"]["now"] = datetime.fromtimestamp(run.now_us / 1e6, timezone.utc).isoformat()
        return answers

    with page_of(browser, look) as page:
        shows(page, "#splits-count", "2")
        assert "the low watermark has stood for 11m 40s" in text(page, "#holder-since")
        assert page.locator("#rows .c-last").all_text_contents() == ["11m 40s", "11m 40s"]
        assert re.match("Seen for 1[12]m", str(page.locator("#history-words").text_content()))


@pytest.mark.parametrize("width", [1_400, 390])
def test_long_names_are_whole_and_fifty_holders_do_not_bury_the_page(browser: Browser, width: int) -> None:
    run = FakeRun("t1")
    names = [f"payments-eu-central-1-orders/{n}" for n in range(8)]
    for at in range(60):
        run.report({name: (1_000 + 10 * at + (n + at) % 8) * SECOND_US for n, name in enumerate(names)})
    with page_of(browser, FakeServices({ADDRESS: [run]}), viewport={"width": width, "height": 980}) as page:
        shows(page, "#splits-count", "8")
        cut = page.evaluate(
            "[...document.querySelectorAll('#rows th button')].filter((name) => name.scrollWidth > name.clientWidth"
            " || name.scrollHeight > name.clientHeight).map((name) => name.textContent)"
        )
        assert cut == []
        assert page.locator("#held li").count() == 50
        assert page.locator("#held").evaluate("(list) => list.clientHeight") < 300
        assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("width", [1_400, 390])
def test_streams_whose_long_names_differ_at_the_end_can_be_told_apart(browser: Browser, width: int) -> None:
    runs = [FakeRun(f"t{n}", f"payments-eu-central-1-orders-{n}", f"nightly settlement of shop {n}") for n in range(8)]
    for run in runs:
        run.report({"a": SECOND_US})
    with page_of(browser, FakeServices({ADDRESS: runs}), viewport={"width": width, "height": 980}) as page:
        shows(page, "#services", "8 queries")
        cut = page.evaluate(
            "[...document.querySelectorAll('#streams b, #streams small')].filter((name) =>"
            " name.scrollWidth > name.clientWidth || name.scrollHeight > name.clientHeight)"
            ".map((name) => name.textContent)"
        )
        assert cut == []
        assert page.evaluate("document.documentElement.scrollWidth") == width
        beside = page.locator("#streams a").first.evaluate(
            "(link) => link.querySelector('.verdict').offsetTop - link.querySelector('b').offsetTop"
        )
        assert abs(beside) < 12, "the word stands beside the name"


def test_search_order_and_states_choose_what_is_listed(browser: Browser, served: tuple[FakeServices, str]) -> None:
    with opened(browser, served[1]) as page:
        shows(page, "#splits-count", "8")
        page.get_by_label("Search").fill("S3")
        assert page.locator("#rows th").all_inner_texts() == ["s3"]
        assert text(page, "#splits-count") == "1 of 8"
        page.get_by_label("Search").fill("<nobody>")
        assert text(page, "#range") == "no split fits"
        page.get_by_label("Search").fill("")
        page.get_by_role("button", name="1 pending").click()
        assert page.locator("#rows th").all_inner_texts() == ["mute"]
        page.get_by_role("button", name="1 pending").click()
        page.get_by_label("First").select_option("backlog")
        assert page.locator("#rows th").first.inner_text() == "s1"


def test_an_address_that_names_no_stream_shows_the_neediest(browser: Browser, served: tuple[FakeServices, str]) -> None:
    with opened(browser, f"{served[1]}#50%") as page:
        shows(page, "#stream-name", "orders")
        page.evaluate("location.hash = '#%zz'")
        page.evaluate("location.hash = '#t1'")
        shows(page, "#stream-name", "orders")


def test_a_stream_in_view_stays_in_view_when_its_query_begins_again(browser: Browser) -> None:
    """Another stream needs attention more, and the same stream runs in another query."""
    failed, other, orders = FakeRun("t1", stream="clicks", failed=True), FakeRun("t2", query="other"), FakeRun("t3")
    for run, split in ((failed, "click"), (other, "elsewhere"), (orders, "before")):
        run.report({split: 100 * SECOND_US})
    services = FakeServices({ADDRESS: [failed, other, orders]})
    with page_of(browser, services, f"#{run_mark('t3')}") as page:
        shows(page, "#holder", "before")
        orders.ended = True
        shows(page, "#stream-verdict", "ended")
        again = FakeRun("t4", query=None)
        again.report({"after": 200 * SECOND_US})
        services.runs[ADDRESS].append(again)
        shows(page, "#streams", "before its first batch")
        again.query = "q"
        services.runs[ADDRESS].remove(orders)
        page.wait_for_function("() => document.querySelector('#holder').textContent !== 'before'")
        assert (text(page, "#stream-name"), text(page, "#holder")) == ("orders", "after")
        assert page.url.endswith(run_mark("t4")), "a reload shows the same"


@contextmanager
def page_at(browser: Browser, look: Look, clock: Clock, fragment: str = "") -> Iterator[Page]:
    """The page of a server with a clock of its own."""
    server = HttpServer(application(Picture(look, clock)), host="127.0.0.1", port=0, name="lowmark-page")
    try:
        with opened(browser, f"http://127.0.0.1:{server.port}/{fragment}") as page:
            yield page
    finally:
        server.stop()


def seen_minutes(page: Page) -> str | None:
    """Return the sentence of the page that names the time span of its picture of the last hour."""
    return str(page.locator("#history-words").text_content()).partition(".")[0]


def test_the_last_hour_of_a_service_that_is_gone_stays_at_its_time(browser: Browser) -> None:
    run = FakeRun("t1")
    run.report({"a": 100 * SECOND_US})
    services, clock = FakeServices({ADDRESS: [run]}), Clock(run.now_us)

    def look(request: StatusRequest, address: str | None) -> dict[str, StatusReply | str]:
        answers = services(request, address)
        for answer in answers.values():
            assert isinstance(answer, StatusReply)
            for stream in answer.streams:
                stream["run"]["now"] = datetime_of(run.now_us).isoformat()
        return answers

    with page_at(browser, look, clock) as page:
        shows(page, "#holder", "a")
        del services.runs[ADDRESS]
        clock.us += 1_200 * SECOND_US
        shows(page, "#stream-verdict", "gone")
        page.reload()
        shows(page, "#stream-verdict", "gone")
        assert seen_minutes(page) == "Seen for 20m 1s"


_TAB = """shown => {
    Object.defineProperty(document, "hidden", {value: !shown, configurable: true});
    document.dispatchEvent(new Event("visibilitychange"));
}"""


@pytest.mark.parametrize("way", ["hidden", "another stream"])
def test_the_last_hour_has_what_rose_while_nobody_looked(browser: Browser, way: str) -> None:
    """Otherwise a flat line would say that the low watermark stood."""
    run, other = FakeRun("t1"), FakeRun("t2", stream="clicks")
    for each in (run, other):
        each.report({"a": 100 * SECOND_US})
    clock = Clock(run.now_us)

    def look(page: Page, stream: str) -> None:
        if way == "hidden":
            page.evaluate(_TAB, stream == "orders")
        else:
            page.evaluate(f"location.hash = '{run_mark('t1' if stream == 'orders' else 't2')}'")
            shows(page, "#stream-name", stream)

    services = FakeServices({ADDRESS: [run, other]})
    with page_at(browser, services, clock, f"#{run_mark('t1')}") as page:
        shows(page, "#stream-name", "orders")
        page.locator("#rows th button").click()
        look(page, "clicks")
        for minute in range(120):
            run.now_us = clock.us + 60 * SECOND_US
            run.report({"a": (200 + 60 * minute) * SECOND_US})
            clock.us = run.now_us
        look(page, "orders")
        shows(page, "#history-words", "Seen for 1h. The low watermark rose by 59m.")
        assert page.locator("#rows tr.more").count() == (way == "hidden"), "a split stays open"


def test_an_answer_that_comes_behind_that_to_a_later_question_changes_nothing(browser: Browser) -> None:
    runs = [FakeRun("t1"), FakeRun("t2", stream="clicks")]
    for run, split in zip(runs, ("of orders", "of clicks"), strict=True):
        run.report({split: 100 * SECOND_US})
    kept: list[Route] = []
    with page_of(browser, FakeServices({ADDRESS: runs}), f"#{run_mark('t1')}") as page:
        shows(page, "#rows", "of orders")
        page.route(lambda url: "/state" in url, lambda route: route.continue_() if kept else kept.append(route))
        wait_until(lambda: page.evaluate("1") == 1 and bool(kept), "the next question")
        late = kept[0].fetch()
        page.evaluate(f"location.hash = '{run_mark('t2')}'")
        shows(page, "#rows", "of clicks")
        page.evaluate(
            "new MutationObserver(() => { window.changed = true; })"
            ".observe(document.querySelector('#stream-name'), {childList: true, characterData: true, subtree: true})"
        )
        with page.expect_response(lambda response: run_mark("t2") in response.url):  # to the next question
            kept[0].fulfill(response=late)
        assert page.evaluate("window.changed") is None


def test_nothing_is_kept_of_a_stream_that_is_gone(browser: Browser, served: tuple[FakeServices, str]) -> None:
    services, address = served

    def seen_seconds() -> int:
        return int(text(page, "#history-words").removeprefix("Seen for ").partition("s")[0])

    with opened(browser, address) as page:
        wait_until(lambda: seen_seconds() >= 3, "a few moments were seen")
        runs, services.runs = services.runs, {ADDRESS: []}
        page.wait_for_selector("#stream", state="hidden")
        services.runs = runs
        page.wait_for_selector("#stream", state="visible")
        assert seen_seconds() < 3


@pytest.mark.parametrize("width", [320, 390, 768, 1024, 1920])
def test_it_fits_every_screen(browser: Browser, served: tuple[FakeServices, str], width: int) -> None:
    with opened(browser, served[1], viewport={"width": width, "height": 900}) as page:
        shows(page, "#splits-count", "8")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        before = page.locator("#strips").evaluate("strips => [strips.offsetLeft, strips.offsetWidth]")
        page.locator("#rows th button").first.click()  # the row with details takes no width
        assert page.locator("#strips").evaluate("strips => [strips.offsetLeft, strips.offsetWidth]") == before
        assert before[1] > 40
        assert page.locator("#rows .c-name").first.bounding_box()["width"] > 60  # type: ignore[index]


def test_light_and_dark_are_drawn_anew_when_the_system_changes(
    browser: Browser, served: tuple[FakeServices, str]
) -> None:
    def ground() -> str:
        return str(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))

    with opened(browser, served[1], color_scheme="light") as page:
        shows(page, "#splits-count", "8")
        light, drawn = ground(), page.locator("#strips").screenshot()
        page.emulate_media(color_scheme="dark")
        page.wait_for_function(
            "before => getComputedStyle(document.documentElement).backgroundColor !== before", arg=light
        )
        assert page.locator("#strips").screenshot() != drawn


def test_it_asks_nobody_but_its_own_server_and_works_without_internet(
    browser: Browser, served: tuple[FakeServices, str]
) -> None:
    asked: set[str] = set()
    page = browser.new_page()
    page.on("request", lambda request: asked.add(request.url.split("?")[0]))
    page.goto(served[1])
    shows(page, "#splits-count", "8")
    assert page.context.cookies() == []
    page.close()
    files = ("", "elements.js", "format.js", "icon.svg", "page.css", "page.js", "paint.js", "splits.js", "state")
    assert asked <= {served[1] + file for file in files}


def test_a_page_of_somebody_else_may_not_frame_it(browser: Browser, served: tuple[FakeServices, str]) -> None:
    page = browser.new_page()
    page.set_content(f'<iframe src="{served[1]}"></iframe>')
    frame = page.frames[1]
    page.wait_for_timeout(300)
    assert frame.locator("#stream").count() == 0
    page.close()


def test_one_line_for_all_splits_of_a_stream_that_has_many(browser: Browser) -> None:
    run = FakeRun("t1")
    run.report({f"device-{n:05}": (1_000 + n) * SECOND_US for n in range(5_000)}, backlog_rows={"device-00007": 3})
    with page_of(browser, FakeServices({ADDRESS: [run]})) as page:
        shows(page, "#splits-count", "5,000")
        assert page.locator("#rows tr").count() == 50
        assert text(page, "#range") == "1 to 50 of 5,000"
        assert page.locator("#profile").is_visible()
        page.get_by_role("button", name="Next").click()
        assert text(page, "#rows tr:first-child th") == "device-00050"
        page.get_by_label("Search").fill("04321")
        assert page.locator("#rows th").all_inner_texts() == ["device-04321"]
        page.get_by_label("Search").fill("")


def test_an_update_of_five_thousand_splits_takes_the_main_thread_less_than_100_ms(browser: Browser) -> None:
    """Updates with layout and paint, in the thread's time. One of eight may take longer, because the thread's clock
    goes on while a hypervisor gives the processor to another machine.
    """
    chance, run = random.Random(7), FakeRun("t1")
    updates = "performance.getEntriesByName('lowmark-update').length"

    def change() -> None:
        """Change all splits and their order."""
        begin = 2_000 + run.batch_id * 10
        run.report({f"device-{n:05}": (begin + chance.randrange(5_000)) * SECOND_US for n in range(5_000)})

    change()
    with page_of(browser, FakeServices({ADDRESS: [run]}), viewport={"width": 1920, "height": 1200}) as page:
        shows(page, "#splits-count", "5,000")
        thread = page.context.new_cdp_session(page)
        thread.send("Performance.enable", {"timeDomain": "threadTicks"})

        def spent_ms() -> float:
            metrics = thread.send("Performance.getMetrics")["metrics"]
            return float(1_000 * next(each["value"] for each in metrics if each["name"] == "TaskDuration"))

        took_ms = []
        for _ in range(8):
            change()
            before, seen = spent_ms(), page.evaluate(updates)
            page.wait_for_function(f"seen => {updates} > seen", arg=seen, polling=100)
            page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
            took_ms.append(spent_ms() - before)
        wall_ms = page.evaluate("performance.getEntriesByName('lowmark-update').map(each => each.duration)")
        told = f"{statistics.median(took_ms):.0f} ms of the main thread, {max(took_ms):.0f} ms at most"
        print(f"page update of 5,000 splits: {told}; by the clock, scripts alone: {[round(each) for each in wall_ms]}")
        assert sorted(took_ms)[-2] < PAGE_MS, told


def test_a_scrape_of_five_thousand_splits_takes_less_than_200_ms() -> None:
    run = FakeRun("t1")
    run.report({f"device-{n:05}": (1_000 + n) * SECOND_US for n in range(5_000)})
    collector = StreamCollector(FakeService([run]))
    took = []
    for _ in range(5):
        [seconds] = [
            sample.value
            for family in collector.collect()
            for sample in family.samples
            if sample.name == "lowmark_collect_duration_seconds"
        ]
        took.append(seconds)
    print(f"scrape of 5,000 splits: {min(took) * 1_000:.0f} ms")
    assert min(took) < SCRAPE_SECONDS


@pytest.mark.parametrize("width", [1_400, 390])
def test_the_page_of_an_audit_fits_the_window(browser: Browser, tmp_path: Path, width: int) -> None:
    write(tmp_path / "orders")
    found = FilesAudit(
        tmp_path / "orders", Question(), None, ("topic", "partition"), TimeReader(), 1_800_000_000_000_000
    ).run()
    (tmp_path / "audit.html").write_text(audit_page(found), encoding="utf-8")
    opened = browser.new_page(viewport={"width": width, "height": 800})
    opened.goto((tmp_path / "audit.html").as_uri())
    size = opened.evaluate("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
    assert size[0] == width  # a wide table scrolls within itself
    assert size[1] < 3_500
    heights = opened.evaluate("[...document.querySelectorAll('tbody tr')].slice(-8).map(row => row.clientHeight)")
    assert max(heights) < 45  # one line each
    if width == 1_400:
        beyond = "[...document.querySelectorAll('.wide')].map((each) => each.scrollWidth - each.clientWidth)"
        assert set(opened.evaluate(beyond)) == {0}, "no column lies beyond the edge"
    opened.close()
