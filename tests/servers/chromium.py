"""Debian's Chromium, driven by playwright, shows the page as a person sees it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.servers.local import require_binary

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# The browser connects to the page only, and runs as the user of the tests, which may be root.
FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Yield a running browser; skip or fail the test if none is installed."""
    program = require_binary("chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS, chromium_sandbox=False)
        try:
            yield browser
        finally:
            browser.close()


def watched(page: Page) -> list[str]:
    """Collect a page's errors, warnings and refusals by its own policy from now on."""
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    return wrong
