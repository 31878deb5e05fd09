"""What is sent to a browser, before any browser runs it."""

from __future__ import annotations

import re

from holdfast.server.dashboard import HERE

SCRIPTS = sorted(HERE.glob("*.js"))


def test_no_markup_is_made_of_text() -> None:
    """The policy would refuse it; no line of the page even tries."""
    makes = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b|new Function|srcdoc"
    )
    assert len(SCRIPTS) >= 5
    for script in SCRIPTS:
        assert not makes.search(script.read_text()), script.name


def test_nothing_is_inline_and_nothing_comes_from_elsewhere() -> None:
    page = (HERE / "index.html").read_text()
    assert not re.search(r"<style|style=|\son\w+=|javascript:|<script(?![^>]*\ssrc=)", page)
    for path in HERE.glob("*.*"):
        if path.suffix != ".py":
            found = re.findall(r"https?://[^\s\"')]+|[\"'(]//\w", path.read_text())
            assert set(found) <= {"http://www.w3.org/2000/svg"}, path.name
