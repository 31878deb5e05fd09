"""The page as a person sees it, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tests.server.running import KEY, Running, until

OpenPage = Callable[..., Page]

WATCH_ANSWER = """() => {
  window.lengths = [];
  new MutationObserver(() => {
    const answer = document.querySelector(".message[data-role=assistant] .text");
    const meta = document.querySelector(".message[data-role=assistant] .meta");
    const length = answer?.textContent.length;
    if (answer && !meta.textContent && length !== lengths.at(-1)) lengths.push(length);
  }).observe(document.getElementById("messages"), { subtree: true, childList: true, characterData: true });
}"""

LEAST_CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (color) => {
    const [r, g, b] = rgb(color).map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (e) => {
    const color = getComputedStyle(e).backgroundColor;
    return rgb(color)[3] === 255 || !e.parentElement ? color : ground(e.parentElement);
  };
  const found = [];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.data.trim());
    if (!own || !e.checkVisibility()) continue;
    const [a, b] = [light(getComputedStyle(e).color), light(ground(e))];
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.textContent.slice(0, 30)]);
  }
  return found.sort((x, y) => x[0] - y[0]);
}"""


def say(page: Page, text: str, tokens: int | None = None) -> None:
    page.fill("#temperature", "0")  # with which the model never ends by itself
    page.fill("#max-tokens", "" if tokens is None else str(tokens))
    page.fill("#prompt", text)
    page.keyboard.press("Enter")


def held(page: Page, pool: str) -> int:
    return int(page.locator(f"#pool-{pool}").get_attribute("data-held") or 0)


# --- what it shows ---


def test_it_opens(page: Page) -> None:
    expect(page.locator("#status")).to_have_text("ok")
    expect(page.locator("#plan-bar .part")).to_have_count(8)
    for part in ("Weights", "KV", "Running slots", "Checkpoints"):
        expect(page.locator("#plan-parts")).to_contain_text(part)
    expect(page.locator("#plan-fits")).to_contain_text("bind first")
    expect(page.locator("#sanitizer-mode")).to_have_text("stamps")
    expect(page.locator("#sanitizer-told")).to_contain_text("No findings.")
    expect(page.locator("#latency figure")).to_have_count(4)
    expect(page.locator(".tile")).to_have_count(7)


def test_a_chat_streams(page: Page, server: Running) -> None:
    page.evaluate(WATCH_ANSWER)
    say(page, "Good morning, and a long answer please", tokens=80)
    answer = page.locator(".message[data-role=assistant]")
    expect(answer.locator(".meta")).to_contain_text("80 tokens")
    expect(page.locator(".message[data-role=user] .text")).to_have_text(
        "Good morning, and a long answer please"
    )
    lengths = page.evaluate("lengths")
    assert len(lengths) > 4 and lengths == sorted(lengths), "it grew before it had ended"
    expect(page.locator("#latency")).to_contain_text("p50")
    say(page, "And now?", tokens=5)
    expect(answer.nth(1).locator(".meta")).to_contain_text("of the prompt resumed")
    expect(page.locator("#reuse-why")).to_contain_text("computed before")
    page.click("#new-chat")
    expect(answer).to_have_count(0)


def test_a_chat_can_be_stopped(page: Page, server: Running) -> None:
    say(page, "Never stop")
    answer = page.locator(".message[data-role=assistant]")
    expect(answer.locator(".text")).not_to_be_empty()
    page.click("#stop")
    expect(answer.locator(".meta")).to_contain_text("stopped")
    until(lambda: server.metrics()["num_requests_running"] == 0)
    say(page, "Go on", tokens=3)
    expect(answer.nth(1).locator(".meta")).to_contain_text("3 tokens")


def test_what_the_server_refuses_is_told(page: Page) -> None:
    say(page, "x" * 5000)
    expect(page.locator(".message.failed .meta")).to_contain_text("the prompt has 50")
    say(page, "shorter", tokens=3)  # what was refused is no part of the conversation
    expect(page.locator(".message[data-role=assistant]").nth(1).locator(".meta")).to_contain_text("3 tokens")


def test_pools_and_requests_move(page: Page, server: Running) -> None:
    expect(page.locator("#pool-rows")).to_have_attribute("data-held", "0")
    before = page.locator("#pool-pages .told").text_content()
    body: dict[str, Any] = {"prompt": list(range(1, 200)), "max_tokens": 3500, "temperature": 0}
    streams = [server.open_stream(body | {"prompt": [seed, *body["prompt"]]}) for seed in range(6)]
    try:
        expect(page.locator("#pool-rows")).to_have_attribute("data-held", "4")
        expect(page.locator("#requests tr")).to_have_count(6)
        expect(page.locator("#requests tr.waiting")).to_have_count(2)
        expect(page.locator("#requests tr.waiting").first).to_contain_text("a row")
        expect(page.locator("#requests tr").first).to_contain_text("prompt 200")
        position = page.locator("#requests tr").first.locator(".told")
        first = position.text_content()
        expect(position).not_to_have_text(first or "")
        assert held(page, "pages") > 0 and page.locator("#pool-pages .told").text_content() != before
        full = page.locator("#plan-bar .part[data-key=KV] .full").evaluate(
            "e => e.style.getPropertyValue('--full')"
        )
        assert float(full) > 0
        expect(page.locator("#throughput .legend")).not_to_contain_text("answers0.0")
        page.hover("#throughput .plot")
        expect(page.locator("#throughput .cursor")).to_have_attribute("d", re.compile("^M"))
    finally:
        for stream in streams:
            stream.close()
    expect(page.locator("#pool-rows")).to_have_attribute("data-held", "0")
    expect(page.locator("#requests-more")).to_have_text("Nobody asks for anything now.")


def test_a_server_that_is_in_trouble(page: Page) -> None:
    expect(page.locator("#status")).to_have_text("ok")
    dead = {"status": "dead", "reason": "the engine ended with status 1"}
    page.route("**/health", lambda route: route.fulfill(json=dead, status=503))
    expect(page.locator("#status")).to_have_text("the engine ended with status 1")
    page.route("**/health", lambda route: route.abort())
    page.route("**/v1/chat/completions", lambda route: route.abort())
    expect(page.locator("#status")).to_have_text("the server cannot be reached")
    say(page, "Are you there?")
    expect(page.locator(".message.failed .meta")).to_have_text("the server cannot be reached")
    page.unroute_all()
    expect(page.locator("#status")).to_have_text("ok")


# --- how it looks ---


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_themes(new_page: OpenPage, server: Running, scheme: str) -> None:
    """As the system has it, until it is chosen; and every text is readable in it."""
    page = new_page(server, key=KEY, color_scheme=scheme)
    grounds = {"light": "rgb(243, 245, 246)", "dark": "rgb(14, 20, 22)"}
    other = "dark" if scheme == "light" else "light"
    expect(page.locator("body")).to_have_css("background-color", grounds[scheme])
    expect(page.locator("#plan-bar .part")).to_have_count(8)
    say(page, "Hello", tokens=3)
    expect(page.locator(".message[data-role=assistant] .meta")).to_contain_text("3 tokens")
    ratio, text = page.evaluate(LEAST_CONTRAST)[0]
    assert ratio >= 4.5, text
    while page.locator("#theme").text_content() != f"Theme: {other}":
        page.click("#theme")
    expect(page.locator("body")).to_have_css("background-color", grounds[other])
    page.reload()
    expect(page.locator("body")).to_have_css("background-color", grounds[other])


def test_nothing_sticks_out(page: Page) -> None:
    for width in (390, 820, 1440):
        page.set_viewport_size({"width": width, "height": 800})
        expect(page.locator("#plan-bar .part")).to_have_count(8)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


# --- keys ---


def test_nothing_is_shown_without_a_key(new_page: OpenPage, server: Running) -> None:
    page = new_page(server)
    answered: list[tuple[str, int]] = []
    page.on(
        "response", lambda response: answered.append((response.url.removeprefix(server.url), response.status))
    )
    expect(page.locator("#key-form")).to_be_visible()
    expect(page.locator("#main")).to_be_hidden()
    expect(page.locator("#status")).to_have_text("ok")
    page.wait_for_timeout(1500)  # it goes on asking for its health, and for nothing else
    told = {path for path, status in answered if status == 200 and not path.startswith("/dashboard/")}
    assert told == {"/health"}
    assert not re.search(r"\d", page.locator("#main").text_content() or "")
    page.fill("#key", "wrong")
    page.click("#key-form button")
    expect(page.locator("#key-wrong")).to_have_text("the API key is wrong")
    expect(page.locator("#main")).to_be_hidden()
    page.fill("#key", KEY)
    page.click("#key-form button")
    expect(page.locator("#plan-bar .part")).to_have_count(8)
    assert page.evaluate("localStorage.length") == 0 and KEY not in page.content()
    page.reload()
    expect(page.locator("#plan-bar .part")).to_have_count(8)
    page.click("#forget-key")
    expect(page.locator("#key-form")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0
    assert not re.search(r"\d", page.locator("#main").text_content() or "")
