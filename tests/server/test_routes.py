"""What lies beside generation, and what a client may send that is not what it should be."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time
from typing import Any

import pytest

from .running import HOST, KEY, Running, pools_are_whole, until

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def test_what_needs_no_key(server: Running) -> None:
    assert server.ask("GET", "/health", key=None) == (200, {"status": "ok", "deaths": 0})
    assert server.ask("GET", "/version", key=None)[0] == 200
    for method, path in (("GET", "/metrics"), ("GET", "/plan"), ("POST", "/tokenize"), ("GET", "/v1/models")):
        status, body = server.ask(method, path, key=None)
        assert status == 401 and body["error"]["code"] == "invalid_api_key", path


def test_text_to_tokens_and_back(server: Running) -> None:
    status, found = server.ask("POST", "/tokenize", {"prompt": "Ebbe über alles"})
    assert (
        status == 200 and found["count"] == len("Ebbe über alles".encode()) and found["max_model_len"] == 512
    )
    assert server.ask("POST", "/detokenize", {"tokens": found["tokens"]})[1] == {"prompt": "Ebbe über alles"}
    chat = server.ask("POST", "/tokenize", {"messages": [{"role": "user", "content": "Hi"}]})[1]
    text = server.ask("POST", "/detokenize", {"tokens": chat["tokens"]})[1]["prompt"]
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert server.ask("POST", "/tokenize", {})[0] == 400
    assert server.ask("POST", "/detokenize", {"tokens": [-1]})[0] == 400
    assert (
        server.ask("POST", "/detokenize", {"tokens": [999_999]})[0] == 200
    )  # beyond the vocabulary: no text


def test_the_plan_is_the_engines(server: Running) -> None:
    status, plan = server.ask("GET", "/plan")
    assert status == 200 and plan["limits"]["max_num_seqs"] == 16 and plan["limits"]["num_pages"] == 160


def test_metrics_count(server: Running) -> None:
    before = server.metrics()
    assert (
        server.ask("POST", COMPLETIONS, {"prompt": [5, 6, 7], "max_tokens": 9, "ignore_eos": True})[0] == 200
    )
    after = server.metrics()
    grown = {name: after[name] - before.get(name, 0.0) for name in after}
    assert grown["prompt_tokens_total"] == 3 and grown["generation_tokens_total"] == 9
    assert grown["time_to_first_token_seconds_count"] == grown["e2e_request_latency_seconds_count"] == 1
    assert grown["inter_token_latency_seconds_count"] == 8
    assert grown['request_success_total{finished_reason="length"}'] == 1
    assert (
        grown["prefix_cache_queries_total"] == 3 and grown["steps_total"] >= 9 and grown["folds_total"] >= 0
    )
    assert grown['http_responses_total{path="/v1/completions",status="200"}'] == 1
    assert after["sanitizer_findings_total"] == 0 and after["engine_deaths_total"] == 0
    assert pools_are_whole(after)


CHARTED = """
num_requests_running num_requests_waiting kv_cache_usage_perc prefix_cache_queries_total prefix_cache_hits_total
prompt_tokens_total generation_tokens_total num_preemptions_total time_to_first_token_seconds_count
inter_token_latency_seconds_count e2e_request_latency_seconds_count request_queue_time_seconds_count
spec_decode_num_drafts_total spec_decode_num_draft_tokens_total spec_decode_num_accepted_tokens_total
"""


def test_the_names_that_others_chart_are_there(server: Running) -> None:
    assert server.metrics().keys() >= set(CHARTED.split())


def test_why_prefixes_were_not_resumed_further(server: Running) -> None:
    def counted() -> dict[str, float]:
        _, page = server.ask("GET", "/metrics")
        found = re.findall(r'prefix_cache_requests_total{outcome="([^"]*)"} (\S+)', page)
        return {outcome: float(value) for outcome, value in found}

    before = counted()
    prompt = [7, *range(150, 250)]
    for _ in range(2):
        assert server.ask("POST", COMPLETIONS, {"prompt": prompt, "max_tokens": 1})[0] == 200
    grown = {outcome: count - before.get(outcome, 0) for outcome, count in counted().items()}
    assert grown["no page of this prompt was computed before"] == 1
    assert grown["as far as the prompt was computed before"] == 1
    assert sum(grown.values()) == 2


def test_prefixes_can_be_forgotten(server: Running) -> None:
    server.ask("POST", COMPLETIONS, {"prompt": list(range(200)), "max_tokens": 1})
    assert server.metrics()["pages_free"] < 160
    assert server.ask("POST", "/reset_prefix_cache") == (200, {"status": "ok"})
    after = server.metrics()
    assert after["pages_free"] == 160 and after["slots_free"] == after["slots"] and after["rows_free"] == 16


def test_priority_runs_first(server: Running) -> None:
    assert server.ask("POST", COMPLETIONS, {"prompt": "a", "max_tokens": 1, "priority": -5})[0] == 200
    assert server.ask("POST", COMPLETIONS, {"prompt": "a", "max_tokens": 1, "priority": 2**40})[0] == 400


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence"),
    [
        (COMPLETIONS, b"{", 400, "not JSON"),
        (COMPLETIONS, b"", 400, "not JSON"),
        (COMPLETIONS, b"[]", 400, "the body must be object, got array"),
        (COMPLETIONS, b'{"prompt": "\xff\xfe"}', 400, "not JSON in UTF-8"),
        (COMPLETIONS, b'{"prompt": "\\ud800"}', 400, "not JSON in UTF-8"),
        (COMPLETIONS, b'{"prompt": "a", "max_tokens": 1e999}', 400, ""),
        (COMPLETIONS, b'{"prompt": "a", "temperature": NaN}', 400, "not JSON"),
        (COMPLETIONS, b"[" * 100_000, 400, ""),
        (COMPLETIONS, b'{"prompt": ' + b"[" * 100_000, 400, ""),
        (COMPLETIONS, {"prompt": None}, 400, "prompt must be"),
        (COMPLETIONS, {}, 400, "prompt is missing"),
        (COMPLETIONS, {"prompt": ""}, 400, "the prompt is empty"),
        (COMPLETIONS, {"prompt": []}, 400, "prompt must be"),
        (COMPLETIONS, {"prompt": [[]]}, 400, "the prompt is empty"),
        (COMPLETIONS, {"prompt": ["a", 1]}, 400, "prompt must be"),
        (COMPLETIONS, {"prompt": [True]}, 400, "prompt must be"),
        (COMPLETIONS, {"prompt": [10**30]}, 400, ""),
        (COMPLETIONS, {"prompt": [100_000]}, 400, "is not one of the 259 of the vocabulary"),
        (COMPLETIONS, {"prompt": [[1], [-4]]}, 400, "prompt 1: token -4"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": "many"}, 400, "max_tokens must be int or null, got str"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": -1}, 400, "max_tokens=-1 must be 0 or more"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 10**18}, 400, "more than this server gives"),
        (COMPLETIONS, {"prompt": "a", "seed": 2**70}, 400, "seed"),
        (COMPLETIONS, {"prompt": "a", "top_p": 0}, 400, "top_p=0"),
        (COMPLETIONS, {"prompt": "a", "logprobs": 21}, 400, "logprobs=21"),
        (COMPLETIONS, {"prompt": "a", "stop": [""]}, 400, "stop has ''"),
        (COMPLETIONS, {"prompt": "a", "stop": ["b"] * 65}, 400, "stop may have at most 64 strings"),
        (COMPLETIONS, {"prompt": "a", "stop": "b" * 1001}, 400, "of at most 1000 characters"),
        (COMPLETIONS, {"prompt": "a", "logit_bias": {"x": 1}}, 400, "logit_bias"),
        (COMPLETIONS, {"prompt": "a", "logit_bias": {"5000": 1}}, 400, "logit_bias names token 5000"),
        (COMPLETIONS, {"prompt": "a", "n": 0}, 400, "n=0"),
        (COMPLETIONS, {"prompt": "a", "best_of": 3}, 400, "best_of is not supported"),
        (COMPLETIONS, {"prompt": "a", "suffix": "b"}, 400, "suffix is not supported"),
        (COMPLETIONS, {"prompt": "a", "stream_options": {}}, 400, "stream_options is only for"),
        (CHAT, {"messages": [{"content": "a"}]}, 400, "role is missing"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "'image_url'"),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content must be"),
        (CHAT, {"messages": [{"role": "user"}]}, 400, "chat template refused"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"messages": 1}},
            400,
            "messages is not for it to set",
        ),
        ("/v1/embeddings", {}, 404, "/openapi.json lists what is"),
        ("/../../etc/passwd", {}, 404, ""),
        ("/v1/models", {}, 405, ""),
    ],
)
def test_a_wrong_request_gets_a_sentence(
    server: Running, path: str, body: Any, status: int, sentence: str
) -> None:
    found, told = server.ask("POST", path, body)
    assert found == status, told
    assert sentence in told["error"]["message"]
    assert told["error"]["type"] in ("invalid_request_error", "not_found_error")


def test_parts_of_a_content_are_joined(server: Running) -> None:
    whole = {"role": "user", "content": "high water"}
    parts = {
        "role": "user",
        "content": [{"type": "text", "text": "high "}, {"type": "text", "text": "water"}],
    }
    asked = [{"messages": [message], "max_tokens": 8, "seed": 4} for message in (whole, parts)]
    texts = [server.ask("POST", CHAT, body)[1]["choices"][0]["message"] for body in asked]
    assert texts[0] == texts[1]


def test_large_bodies(server: Running) -> None:
    status, told = server.ask("POST", COMPLETIONS, {"prompt": "x" * 900_000})
    assert status == 400 and "the prompt has 900000 tokens" in told["error"]["message"]
    with socket.create_connection((HOST, server.port), timeout=20) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        connection.sendall(head.encode() + b"Content-Length: 10000000\r\n\r\n{")
        assert b" 413 " in read_all(connection).split(b"\r\n")[0]
    with socket.create_connection((HOST, server.port), timeout=20) as connection:
        connection.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"%x\r\n%b\r\n" % (1 << 18, b" " * (1 << 18))
        try:
            for _ in range(40):  # 10 MB, that were not announced
                connection.sendall(chunk)
        except OSError:
            pass  # the server has closed it
        else:
            assert b" 413 " in read_all(connection).split(b"\r\n")[0]
    assert server.ask("GET", "/health")[0] == 200


def read_all(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def test_a_slow_sender_is_cut_off(server: Running) -> None:
    """The server waits two seconds for headers, and two for a body."""
    began = time.monotonic()
    with socket.create_connection((HOST, server.port), timeout=20) as loris:
        loris.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n")
        silent = socket.create_connection((HOST, server.port), timeout=20)
        body = socket.create_connection((HOST, server.port), timeout=20)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        body.sendall(head.encode() + b'Content-Length: 40\r\n\r\n{"pr')
        with silent, body:
            assert b" 408 " in read_all(body).split(b"\r\n")[0]
            for connection in (loris, silent):
                with contextlib.suppress(ConnectionResetError):
                    assert connection.recv(100) == b""
    assert 1.5 < time.monotonic() - began < 15


def test_endless_headers_are_cut_off(server: Running) -> None:
    with socket.create_connection((HOST, server.port), timeout=20) as connection:
        try:
            connection.sendall(b"GET /health HTTP/1.1\r\n")
            for _ in range(40):
                connection.sendall(b"X-More: " + b"x" * 8000 + b"\r\n")
            received = connection.recv(100)
        except OSError:
            received = b""
        assert received == b"" or b" 400 " in received


def test_too_many_are_told_when_to_come_again(server: Running) -> None:
    """16 may run and 48 may wait."""
    body = {"prompt": "a", "max_tokens": 300, "ignore_eos": True, "n": 32}
    streams = [server.open_stream(body) for _ in range(2)]
    until(lambda: server.metrics()["num_requests_waiting"] == 48)
    status, told = server.ask("POST", COMPLETIONS, {"prompt": "a", "max_tokens": 1})
    assert status == 429 and told["error"]["type"] == "rate_limit_error"
    connection = server.open_stream({"prompt": "a"})
    head = connection.recv(4096).lower()
    assert b" 429 " in head and b"retry-after: " in head
    for stream in (*streams, connection):
        stream.close()
    until(lambda: pools_are_whole(server.metrics()))
    assert server.ask("POST", COMPLETIONS, {"prompt": "a", "max_tokens": 1})[0] == 200


def test_logs_have_ids_and_no_text(server: Running) -> None:
    secret = "the password is swordfish"
    status, told = server.ask("POST", COMPLETIONS, {"prompt": secret, "max_tokens": 2})
    assert status == 200
    server.ask("POST", COMPLETIONS, {"prompt": "a", secret: 1})
    server.ask("GET", f"/v1/models/{secret.replace(' ', '%20')}")
    request_id = told["id"].removeprefix("cmpl-")
    [line] = until(lambda: [e for e in server.events() if e.get("id") == request_id])
    assert line["status"] == 200 and line["completion_tokens"] == 2 and line["seconds"] > 0
    assert "swordfish" not in json.dumps(server.events())
