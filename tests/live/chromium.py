"""Debian's Chromium, driven by playwright: what a person sees of the page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.live.servers import require_binary

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# It asks nobody but the page, and runs as whoever runs the tests, root too.
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
    """A running browser; skips or fails the test where there is none."""
    program = require_binary("chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS, chromium_sandbox=False)
        try:
            yield browser
        finally:
            browser.close()


def watched(page: Page) -> list[str]:
    """What goes wrong in a page from now on: errors, warnings, refusals by its own policy."""
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    return wrong
