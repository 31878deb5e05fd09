"""Texts of others stay texts: what a model says, what a user types, what a label or a name holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from tests.server.running import KEY, Running

from .models import MARKUP, NAME

OpenPage = Callable[..., Page]

FOREIGN = (
    "img:not(header img), script:not(head script), iframe, a:not(header a), svg:not(.plot svg), style, b"
)


def unharmed(page: Page) -> None:
    assert page.evaluate("window.pwned") is None
    assert page.locator(FOREIGN).count() == 0
    assert page.evaluate("Object.getOwnPropertyNames(Object.prototype).length") == 12


def test_what_a_model_says(new_page: OpenPage, hostile_server: Running) -> None:
    page = new_page(hostile_server)
    expect(page.locator("#model")).to_have_text(NAME)
    assert page.title() == f"{NAME} · Holdfast"
    page.fill("#max-tokens", "60")
    page.fill("#prompt", MARKUP[0])
    page.click("#send")
    answer = page.locator(".message[data-role=assistant]")
    expect(answer.locator(".meta")).to_contain_text("60 tokens")
    said = answer.locator(".text").text_content() or ""
    assert sum(markup in said for markup in MARKUP) >= 5
    expect(page.locator(".message[data-role=user] .text")).to_have_text(MARKUP[0])
    assert page.locator("#messages *").count() == 2 * 4
    page.wait_for_timeout(300)  # an image that cannot be had would say so by now
    unharmed(page)


def spoiled(value: Any) -> Any:
    """Every text in it with markup behind it."""
    match value:
        case dict():
            return {key: spoiled(item) for key, item in value.items()}
        case list():
            return [spoiled(item) for item in value]
        case str():
            return value + MARKUP[0]
    return value


def test_what_the_server_tells(new_page: OpenPage, server: Running) -> None:
    """Plans, requests and labels are the server's own words. They are not trusted either."""
    page = new_page(server, key=KEY)
    outcome = json.dumps("".join(MARKUP[:6]))  # quotes and backslashes as in a label
    labels = f'__proto__="x",outcome={outcome}'
    hostile = f'\nholdfast:prefix_cache_requests_total{{{labels}}} 7.0\n__proto__{{a="}} 1"}} 5\n'
    numbers = (
        "row",
        "position",
        "tokens",
        "prompt_tokens",
        "cached_tokens",
        "priority",
        "preemptions",
        "seconds",
    )
    live = dict.fromkeys(numbers, 1) | {"id": NAME, "cache_reason": NAME, "waits_for": MARKUP[1]}

    def metrics(route: Route) -> None:
        route.fulfill(body=route.fetch().text() + hostile)

    def plan(route: Route) -> None:
        route.fulfill(json=spoiled(route.fetch().json()) | {"notes": list(MARKUP)})

    page.route("**/metrics", metrics)
    page.route("**/plan", plan)
    page.route("**/requests", lambda route: route.fulfill(json={"requests": [live]}))
    page.route("**/health", lambda route: route.fulfill(json={"status": "ok", "reason": MARKUP[0]}))
    page.reload()
    expect(page.locator("#requests tr")).to_contain_text([MARKUP[1]])
    expect(page.locator("#reuse-why")).to_contain_text(MARKUP[1])
    expect(page.locator("#plan-fits")).to_contain_text(MARKUP[4])
    expect(page.locator("#status")).to_have_text(MARKUP[0])
    expect(page.locator("#plan-total")).to_contain_text(MARKUP[0])
    unharmed(page)


def test_what_goes_wrong_in_a_chat(new_page: OpenPage, server: Running) -> None:
    page = new_page(server, key=KEY)
    events = [{"choices": [{"delta": {"content": MARKUP[1], "reasoning_content": MARKUP[0]}}]}]
    events += [{"error": {"message": MARKUP[4]}}]
    stream = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    page.route(
        "**/v1/chat/completions", lambda route: route.fulfill(body=stream, content_type="text/event-stream")
    )
    page.fill("#prompt", "hello")
    page.click("#send")
    expect(page.locator(".message.failed .meta")).to_contain_text(MARKUP[4])
    expect(page.locator(".message.failed .text")).to_have_text(MARKUP[1])
    expect(page.locator(".message.failed .thought")).to_have_text(MARKUP[0])
    unharmed(page)


@pytest.mark.parametrize(
    ("attempt", "refusal"),
    [
        (
            "document.getElementById('messages').innerHTML = '<img src=x onerror=\"window.pwned=1\">'",
            "TrustedHTML",
        ),
        (
            "document.head.append(Object.assign(document.createElement('script'), {textContent: 'window.pwned=1'}))",
            "",
        ),
        ("setTimeout('window.pwned=1')", "TrustedScript"),
    ],
)
def test_the_policy_is_the_second_wall(browser: Browser, server: Running, attempt: str, refusal: str) -> None:
    """If a line of the page did make markup of a text, the browser would refuse it."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(server.url)
    told = page.evaluate(f"() => {{ try {{ {attempt} }} catch (error) {{ return String(error) }} }}")
    assert refusal in (told or "")
    page.wait_for_timeout(200)
    pwned = page.evaluate("window.pwned")
    context.close()
    assert pwned is None


def test_no_other_page_can_frame_it(browser: Browser, server: Running) -> None:
    context = browser.new_context()
    page = context.new_page()
    with page.expect_event("requestfailed") as failed:
        page.set_content(f"<iframe src='{server.url}'></iframe>")
    refused = failed.value.url, failed.value.failure
    context.close()
    assert refused == (f"{server.url}/", "net::ERR_BLOCKED_BY_RESPONSE")
