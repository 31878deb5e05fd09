"""Requests made from the OpenAPI document, right and wrong ones: none may be answered with a server's error."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode

from .running import KEY, Running

PATHS = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("path", PATHS)
def test_no_server_errors(server: Running, path: str, mode: GenerationMode) -> None:
    explore(server, path, mode, examples=10)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("path", PATHS)
def test_no_server_errors_at_length(server: Running, path: str, mode: GenerationMode) -> None:
    explore(server, path, mode, examples=150)


def explore(server: Running, path: str, mode: GenerationMode, examples: int) -> None:
    status, document = server.ask("GET", "/openapi.json")
    assert status == 200
    operation: Any = schemathesis.openapi.from_dict(document)[path]["POST"]
    seen = []

    @hypothesis.settings(
        max_examples=examples,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode), short=st.integers(0, 8))
    def check(case: Any, short: int) -> None:
        if mode is GenerationMode.POSITIVE and path.endswith("completions"):
            case.body |= {"max_tokens": short}  # this is about what is asked, not about how long it takes
            case.body.pop("max_completion_tokens", None)
        response = case.call(base_url=server.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=60)
        seen.append(response.status_code)
        assert response.status_code < 500, response.text
        if response.status_code >= 400:
            assert response.json()["error"]["message"]

    check()
    assert seen
