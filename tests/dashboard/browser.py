"""A real browser: Debian's Chromium, or whichever is installed, driven by Playwright."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator

from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",  # it reads only pages of the tests' own, and CI is root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
REQUIRED = "REQUIRE_BROWSER"
"""Set by CI: there, a browser that is missing is a failure. (HOLDFAST_ would make it an option of the server.)"""


def find_browser() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def is_required() -> bool:
    return bool(os.environ.get(REQUIRED))


@contextlib.contextmanager
def open_browser(path: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()
