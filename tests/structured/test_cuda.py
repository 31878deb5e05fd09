"""On a GPU: masks are made while it runs the pass, and answers are the same with drafts and without overlap."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from holdfast import LLM, SamplingParams, Structured

from .test_schemas import SCHEMAS

pytestmark = pytest.mark.gpu
NAMES = list(SCHEMAS)[::12]
ENGINE: dict[str, Any] = dict(device="cuda", dtype="float32", max_num_seqs=8, max_model_len=512)


@pytest.mark.parametrize("method", [None, "ngram", "mtp"])
def test_every_answer_is_valid_and_overlap_changes_nothing(method: str | None) -> None:
    """Every other one is free."""
    spec = {"speculative_config": {"method": method, "num_speculative_tokens": 2}} if method else {}
    answers = []
    for overlap in (True, False):
        llm = LLM(overlap=overlap, **ENGINE, **spec)
        messages = [[{"role": "user", "content": f"Write a {name.split()[0]} as JSON."}] for name in NAMES]
        params = [
            SamplingParams(
                max_tokens=400, structured=Structured(json=SCHEMAS[name]) if place % 2 == 0 else None
            )
            for place, name in enumerate(NAMES)
        ]
        outputs = llm.chat(messages, params)
        for name, output in list(zip(NAMES, outputs, strict=True))[::2]:
            assert output.finish_reason == "stop", f"{name}: {output.text}"
            jsonschema.validate(json.loads(output.text), _without_multiples(SCHEMAS[name]))
        answers.append([output.token_ids for output in outputs])
    assert answers[0] == answers[1]


def _without_multiples(schema: Any) -> Any:
    """Which are not exact in floating point."""
    if isinstance(schema, dict):
        return {key: _without_multiples(value) for key, value in schema.items() if key != "multipleOf"}
    return [_without_multiples(part) for part in schema] if isinstance(schema, list) else schema
