"""What every architecture must show, in a company small enough for every day."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import transformers
from tests import evidence
from tests.evidence import assert_evidence, compare
from tests.models.conformance import (
    TOLERANCE,
    TOP,
    Oracle,
    OracleOf,
    Tiny,
    assert_equal_to_oracle,
    bits,
    prompts,
    slow_but,
)

from holdfast import LLM, SamplingParams
from holdfast.blueprint import Blueprint
from holdfast.config import EngineConfig
from holdfast.request import RequestOutput

COMPANY = prompts(90, 33, 7, 1, seed=2)
ANSWER, CONTEXT = 48, 160
TIGHT: Mapping[str, Any] = dict(page_size=16, num_pages=11)
"""One request of full length fits, and not the whole company."""

WAYS: Mapping[str, Mapping[str, Any]] = {
    "whole": {},
    "chunks-of-5": dict(max_num_batched_tokens=5),
    "chunks-of-64": dict(max_num_batched_tokens=64),
    "opposite-axis-order": dict(backend="reference_kv"),
    "pre-empted": TIGHT,
    "windows-of-5": dict(
        speculative_config=dict(method="ngram", num_speculative_tokens=4), max_num_batched_tokens=40
    ),
    "all-at-once": dict(TIGHT, overlap=False, backend="reference_kv", max_num_batched_tokens=5),
}


def answers(oracle: Oracle, **options: Any) -> list[RequestOutput]:
    llm = LLM(oracle.directory, **{"max_num_seqs": 4, "max_model_len": CONTEXT, "num_pages": 64, **options})
    asked = SamplingParams(
        max_tokens=ANSWER, temperature=0.0, ignore_eos=True, logprobs=TOP, prompt_logprobs=TOP
    )
    return llm.generate(COMPANY, asked)


def assert_served(oracle: Oracle, way: str) -> float:
    """Equal to transformers at every position of prompt and answer. Returns the largest difference."""
    outputs = answers(oracle, **WAYS[way])
    worst = assert_equal_to_oracle(oracle, COMPANY, outputs)
    if "num_pages" in WAYS[way]:
        assert sum(output.metrics.preemptions for output in outputs)
    return max(worst, *(_prompt_difference(oracle, output) for output in outputs))


def _prompt_difference(oracle: Oracle, output: RequestOutput) -> float:
    prompt, found = output.prompt_token_ids, output.prompt_logprobs
    wanted = oracle.run(prompt, ANSWER).prompt_logprobs
    assert found is not None and len(found) == len(prompt) and found[0] is None
    worst = 0.0
    for place, scored in enumerate(found[1:]):
        assert scored is not None and scored.token_id == prompt[place + 1]
        for token, logprob in (*scored.top, (scored.token_id, scored.logprob)):
            worst = max(worst, abs(logprob - float(wanted[place, token])))
    assert worst < TOLERANCE, f"a log-probability of the prompt is {worst} off"
    return worst


IN_FLOAT32 = ("A_log", "dt_bias", "dt_proj.bias", ".D")
IN_FLOAT32 += ("expert_bias", "e_score_correction_bias", "mixer.gate.weight")
"""Here, whatever the others are in."""


def assert_weights_are_counted(
    directory: Path, config: Mapping[str, Any], *, in_float32: tuple[str, ...] = ()
) -> None:
    """The plan of a published config has the bytes of the model that transformers makes of it, and loads none.

    in_float32: further weights that are so whatever the others are in
    """
    (directory / "config.json").write_text(json.dumps(config))
    planned = Blueprint(directory, EngineConfig(memory="400GiB", dtype="bfloat16", device="cuda")).capacity
    text = transformers.AutoConfig.from_pretrained(directory).get_text_config()
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(text)
    corrections = ((name, bias) for name, bias in model.named_buffers() if name.endswith("bias"))
    weights = {id(tensor): (name, tensor) for name, tensor in (*model.named_parameters(), *corrections)}
    wide = {key: name.endswith((*IN_FLOAT32, *in_float32)) for key, (name, _) in weights.items()}
    assert planned.parts.weights == sum(
        tensor.numel() * (4 if wide[key] else 2) for key, (_, tensor) in weights.items()
    )


def assert_state_matters(oracle: Oracle) -> None:
    """The negative control, and answers that vary: else `assert_served` would prove little."""
    evidence.assert_state_matters(oracle, *prompts(40, 40, seed=1))
    runs = [oracle.run(prompt, ANSWER) for prompt in COMPANY]
    assert_evidence(compare(run, run.tokens, run.token_logprobs) for run in runs)


class Served:
    """Tests that a module inherits, with a fixture `oracle_of`. `families`: models that stand for the others."""

    models: ClassVar[Mapping[str, Tiny]]
    families: ClassVar[Sequence[str]]
    every_day: ClassVar[Sequence[tuple[str, str]]]
    exact_every_day: ClassVar[Sequence[str]] = ()
    uncontrolled: ClassVar[Sequence[str]] = ()
    """Which transformers decodes one request at a time only: the control is a batch."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        controlled = [name for name in self.models if name not in self.uncontrolled]
        cases: Mapping[str, tuple[Sequence[str], Iterable[Any]]] = {
            "test_state_matters": (self.families, controlled),
            "test_exact_mode_gives_the_same_bits": (self.exact_every_day, self.families),
        }
        if metafunc.function.__name__ == "test_equal_to_transformers":
            ways = slow_but(self.every_day, product(self.models, WAYS))
            metafunc.parametrize(("name", "way"), ways)
        else:
            metafunc.parametrize("name", slow_but(*cases[metafunc.function.__name__]))

    def test_state_matters(self, oracle_of: OracleOf, name: str) -> None:
        assert_state_matters(oracle_of(name))

    def test_equal_to_transformers(self, oracle_of: OracleOf, name: str, way: str) -> None:
        assert_served(oracle_of(name), way)

    def test_exact_mode_gives_the_same_bits(self, oracle_of: OracleOf, name: str) -> None:
        oracle = oracle_of(name)
        together = answers(oracle, exact=True)
        assert bits(answers(oracle, exact=True, **WAYS["all-at-once"])) == bits(together)
