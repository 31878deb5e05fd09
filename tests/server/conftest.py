"""One server for all tests that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.random_model import write_random_model

from holdfast import LLM

from .running import KEY, Running

ENGINE: dict[str, Any] = dict(exact=True, max_num_seqs=16, max_model_len=512, num_pages=160)
FLAGS = ("--exact", "--max-num-seqs", "16", "--max-model-len", "512", "--num-pages", "160")
LIMITS = ("--max-queue", "48", "--max-body", "1MiB", "--max-output-tokens", "400", "--read-timeout", "2")


CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\nCall them as <tool_call>{"name": ..., "arguments": ...}</tool_call>:' }}
{%- for tool in tools %}{{- ' ' + tool.function.name }}{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' + (call.function | tojson) + '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' + ('<think>\\n' if enable_thinking else '') }}
{%- endif %}
{#- </think> -#}
"""


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny one whose tokens are bytes, whichever is built in. It can be given tools, and told to think."""
    directory = tmp_path_factory.mktemp("models") / "tiny"
    directory.mkdir()
    write_random_model(directory)
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    return directory


@pytest.fixture(scope="session")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    log = tmp_path_factory.mktemp("server") / "log.jsonl"
    running = Running(model, *FLAGS, *LIMITS, "--api-key", f"other,{KEY}", log=str(log))
    try:
        running.wait_for(200)
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="session")
def client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=60)


@pytest.fixture(scope="session")
def offline(model: Path) -> LLM:
    """The same engine without a server."""
    return LLM(model, **ENGINE)
