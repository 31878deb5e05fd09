"""Two servers, one with a key and one with a hostile model; and pages of a browser on which nothing may go wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.server.running import KEY, Running

from .browser import find_browser, is_required, open_browser
from .models import NAME, write_endless_model, write_hostile_model

expect.set_options(timeout=60_000)  # on a busy machine; a failing test may take long

FLAGS = ("--max-num-seqs", "4", "--max-model-len", "4096", "--num-pages", "200", "--sanitizer", "stamps")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    scratch = tmp_path_factory.mktemp("dashboard")
    write_endless_model(scratch)
    yield from running(scratch, *FLAGS, "--api-key", KEY)


@pytest.fixture(scope="session")
def hostile_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    scratch = tmp_path_factory.mktemp("hostile")
    write_hostile_model(scratch)
    yield from running(scratch, *FLAGS, "--served-model-name", NAME)


def running(model: Path, *flags: str) -> Iterator[Running]:
    server = Running(model, *flags, "--drain-timeout", "1", log=str(model / "log.jsonl"))
    try:
        server.wait_for(200)
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """While it is open an event loop runs in this thread, which would be in the way of other modules' tests."""
    if (path := find_browser()) is None:
        missing = "there is no Chromium here; make install-browser installs one where there is apt-get"
        pytest.fail(missing) if is_required() else pytest.skip(missing)
    with open_browser(path) as browser:
        yield browser


@pytest.fixture
def new_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """A page of a fresh profile. Whatever it does, it asks nobody but its own server, and raises nothing."""
    contexts, asked, wrong = [], [], []

    def open_page(server: Running, *, key: str | None = None, **options: object) -> Page:
        context = browser.new_context(**options)  # type: ignore[arg-type]
        contexts.append(context)
        if key is not None:
            context.add_init_script(f"sessionStorage.setItem('holdfast-key', {key!r})")
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("request", lambda request: asked.append((server.url, request.url)))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
        page.on("console", lambda said: wrong.append(said.text) if "Content Security" in said.text else None)
        page.goto(server.url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not wrong
    assert [url for home, url in asked if not url.startswith(f"{home}/")] == []


@pytest.fixture
def page(new_page: Callable[..., Page], server: Running) -> Page:
    return new_page(server, key=KEY)
