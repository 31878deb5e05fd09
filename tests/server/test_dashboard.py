"""The dashboard's files, and what they read, as a server sends them."""

from __future__ import annotations

import http.client

import pytest

from holdfast.server.dashboard import FILES

from .running import HOST, Running, until


def fetch(server: Running, path: str) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection(HOST, server.port, timeout=20)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def test_every_file_comes_without_a_key_and_under_a_policy(server: Running) -> None:
    assert {"/", "/dashboard/page.js", "/dashboard/style.css", "/dashboard/icon.svg"} <= FILES.keys()
    for path, file in FILES.items():
        status, headers, body = fetch(server, path)
        assert (status, headers["content-type"], body) == (200, file.kind, file.content), path
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy and "http" not in policy and "*" not in policy
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path", ["/dashboard", "/dashboard/", "/dashboard/__init__.py", "/dashboard/../app.py"]
)
def test_nothing_else_is_there(server: Running, path: str) -> None:
    assert fetch(server, path)[0] == 404


def test_what_the_page_reads_needs_the_key(server: Running) -> None:
    for path in ("/requests", "/plan", "/metrics", "/v1/models"):
        assert fetch(server, path)[0] == 401, path


def test_live_requests_are_numbers_and_reasons(server: Running) -> None:
    body = {
        "prompt": "the password is swordfish",
        "priority": 2,
        "max_tokens": 400,
        "n": 16,
        "ignore_eos": True,
    }
    stream = server.open_stream(body)
    try:
        request, *_ = until(lambda: server.ask("GET", "/requests")[1]["requests"])
    finally:
        stream.close()
    assert request["prompt_tokens"] == 25 and request["priority"] == 2 and request["waits_for"] is not None
    assert {type(value) for value in request.values()} <= {int, float, str, type(None)}
    assert "swordfish" not in str(request)
