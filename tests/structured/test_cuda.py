"""On a GPU: masks are made while it runs the pass, and answers are the same with drafts and without overlap."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import LLM, SamplingParams

from .test_schemas import SCHEMAS, check, messages_and_params

pytestmark = pytest.mark.gpu
NAMES = list(SCHEMAS)[::15]
ENGINE: dict[str, Any] = dict(device="cuda", dtype="float32", max_num_seqs=8, max_model_len=768)


@pytest.mark.parametrize("method", [None, "ngram", "mtp"])
def test_every_answer_is_valid_and_overlap_changes_nothing(method: str | None) -> None:
    """Every other one is free."""
    spec = {"speculative_config": {"method": method, "num_speculative_tokens": 2}} if method else {}
    answers = []
    for overlap in (True, False):
        llm = LLM(overlap=overlap, **ENGINE, **spec)
        messages, params = messages_and_params(llm, NAMES)
        params[1::2] = [SamplingParams(max_tokens=100, ignore_eos=True)] * len(params[1::2])
        outputs = llm.chat(messages, params)
        check(NAMES[::2], outputs[::2])
        answers.append([output.token_ids for output in outputs])
    assert answers[0] == answers[1]
