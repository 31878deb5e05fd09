"""Tests that catch faults in what an operation means, in a form that can be run with a fault planted."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.memory.case import Setup
from tests.memory.driver import Driver
from tests.memory.traffic import drive
from tests.models.conformance import prompts
from tests.random_model import random_model
from tests.spec.formats import PlainDFlash, PlainEagle1, PlainEagle3, PlainEagleMulti
from tests.spec.spied import Drafting, assert_drafts, spied

from holdfast import LLM, SamplingParams, Structured

from .fault import QWEN
from .harness import head_dir, model_dir


def mixed_traffic() -> None:
    """Windows, rejections, runs, new tenants and padding over a state pool equal the plain recurrence."""
    drive(Driver(Setup(16, 5, 32), seed=1), 25)


def answers_have_their_form() -> None:
    """Several at once, some free, with drafts that the form permits and others."""
    forms = [r"(ab){5}", r"[0-9]{4}-[0-9]{4}", None, r"(yes|no)( (yes|no)){3}", r"(ba){5}", r"x{9}"]
    params = [
        SamplingParams(max_tokens=40, structured=None if form is None else Structured(regex=form))
        for form in forms
    ]
    speculative = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
    llm = LLM(random_model(), max_num_seqs=4, max_model_len=96, speculative_config=speculative)
    for form, output in zip(forms, llm.generate(["Tide"] * len(forms), params), strict=True):
        assert form is None or re.fullmatch(form, output.text), f"{output.text!r} is no {form}"
    assert llm.speculation_stats().accepted > 5


def _drafts_of(method: str, plain: Callable[[Path, Any], Drafting]) -> Callable[[], None]:
    def drafts_are_those_of_plain_torch() -> None:
        """Also after a hit."""
        head = head_dir(method, QWEN)
        asked = {"method": method, "model": str(head), "num_speculative_tokens": 3}
        llm = LLM(model_dir(QWEN), page_size=16, max_model_len=96, speculative_config=asked)
        _, seen = spied(llm)
        params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
        first = llm.generate(prompts(40, 9), params)
        again = llm.generate([[*o.prompt_token_ids, *o.token_ids, 7] for o in first[:1]], params)
        assert again[0].cached_tokens >= 32
        assert_drafts(plain(head, llm._engine.runner.model), seen)

    return drafts_are_those_of_plain_torch


def _several(head: Path, model: Any) -> PlainEagleMulti:
    kinds = (PlainEagle3, PlainEagle1, PlainEagle1)
    return PlainEagleMulti([kind(head / str(number), model) for number, kind in enumerate(kinds)])


eagle_drafts = _drafts_of("eagle", PlainEagle3)
eagle_multi_drafts = _drafts_of("eagle_multi", _several)
dflash_drafts = _drafts_of("dflash", PlainDFlash)
