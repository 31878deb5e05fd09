"""Between two steps in which an answer with a form grows there may be many others."""

from __future__ import annotations

import re

from holdfast import LLM, SamplingParams, Structured

FORM = SamplingParams(max_tokens=12, structured=Structured(regex="tide [0-9]{2}"))


def test_what_was_chosen_is_known_when_it_is_asked_for_much_later() -> None:
    """The first free answer runs all the time. The first with a form ends, another free one takes its place, and then
    comes the second with a form."""
    llm = LLM(max_num_seqs=2, max_model_len=128)
    prompts = ["Once upon a time", "The sea at night", "Birds", "The sea at noon"]
    params = [
        SamplingParams(max_tokens=60, ignore_eos=True),
        FORM,
        SamplingParams(max_tokens=20, ignore_eos=True),
        FORM,
    ]
    answers = llm.generate(prompts, params, progress=False)
    assert all(re.fullmatch("tide [0-9]{2}", answers[which].text) for which in (1, 3))
    alone = [
        llm.generate([prompt], one, progress=False)[0] for prompt, one in zip(prompts, params, strict=True)
    ]
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in alone]
