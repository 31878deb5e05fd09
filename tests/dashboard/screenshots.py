"""`python -m tests.dashboard.screenshots` takes the pictures in docs/dashboard, of the built-in model at work."""

from __future__ import annotations

import socket
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, ViewportSize, expect
from tests.server.running import Running

from holdfast.hub import find_model

from .browser import find_browser, open_browser

HERE = Path(__file__).parents[2] / "docs" / "dashboard"
SPECULATION = '{"method": "mtp", "num_speculative_tokens": 3, "adaptive": true}'
FLAGS = ("--max-num-seqs", "6", "--num-pages", "100", "--num-checkpoints", "8", "--sanitizer", "stamps")
SYSTEM = "You are a small and friendly model. You like ships, the sea, and short sentences. " * 6
WIDE, NARROW = ViewportSize(width=1360, height=920), ViewportSize(width=390, height=844)
SUBJECTS = ("ships", "tides", "kelp", "crabs", "gulls")
MOST_BYTES = 200_000


def main() -> None:
    path = find_browser() or sys.exit("there is no Chromium here: make install-browser")
    HERE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        flags = (*FLAGS, "--speculative-config", SPECULATION)
        server = Running(find_model(None), *flags, "--drain-timeout", "0", log=f"{scratch}/log")
        try:
            server.wait_for(200)
            with open_browser(path) as browser:
                page = browser.new_page(viewport=WIDE, color_scheme="light")
                page.goto(server.url)
                picture(page, server)
        finally:
            server.stop()


def picture(page: Page, server: Running) -> None:
    expect.set_options(timeout=120_000)
    say(page, "What is 2 + 3?")
    expect(page.locator(".message[data-role=assistant] .meta")).not_to_be_empty()
    stories = [ask(server, f"Tell me a long story about {what}.") for what in SUBJECTS]
    page.wait_for_timeout(15_000)
    stories += [ask(server, f"How far is it from {place}?", 60) for place in ("here", "there", "port")]
    page.wait_for_timeout(5_000)
    page.fill("#temperature", "0")
    say(page, "Tell me a short story about a cat.")
    expect(page.locator(".message[data-role=assistant]").nth(1).locator(".text")).not_to_be_empty()
    shoot(page, "chatting")
    expect(page.locator(".message[data-role=assistant]").nth(1).locator(".meta")).not_to_be_empty()
    page.evaluate("scrollTo(0, 800)")
    shoot(page, "light")
    page.evaluate("scrollTo(0, 0)")
    page.emulate_media(color_scheme="dark")
    shoot(page, "dark")
    page.set_viewport_size(NARROW)
    shoot(page, "narrow")
    for story in stories:
        story.close()


def ask(server: Running, text: str, tokens: int = 1200) -> socket.socket:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    body = {"messages": messages, "max_tokens": tokens, "ignore_eos": True}
    return server.open_stream(body, "/v1/chat/completions")


def say(page: Page, text: str) -> None:
    page.fill("#prompt", text)
    page.keyboard.press("Enter")


def shoot(page: Page, name: str) -> None:
    page.wait_for_timeout(600)  # bars move to their places
    size = len(page.screenshot(path=HERE / f"{name}.png"))
    assert size < MOST_BYTES, f"{name}.png has {size:,} bytes"


if __name__ == "__main__":
    main()
