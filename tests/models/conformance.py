"""Models of every architecture served in every way, under the rules of tests/evidence.

The weights here are louder than those of tests/evidence: models without recurrent state repeat themselves else.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests import evidence
from tests.evidence import OracleRun, assert_evidence, compare
from torch import Tensor

from holdfast import LLM, SamplingParams
from holdfast.request import RequestOutput

VOCAB, ANSWER, TOP, CONTEXT = 256, 64, 4, 384
TOLERANCE = 1e-4
"""Of a log-probability in float32."""

TINY_POOL: Mapping[str, Any] = dict(page_size=16, num_pages=26)
"""One request of full length fits, and hardly another."""
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "whole": {},
    "chunks-of-1": dict(max_num_batched_tokens=1),
    "chunks-of-7": dict(max_num_batched_tokens=7),
    "chunks-of-64": dict(max_num_batched_tokens=64),
    "no-overlap": dict(overlap=False),
    "opposite-axis-order": dict(backend="reference_kv"),
    "pre-empted": TINY_POOL,
    "all-at-once": dict(TINY_POOL, overlap=False, backend="reference_kv", max_num_batched_tokens=50),
}


@dataclass(frozen=True)
class Tiny:
    """A configuration of transformers; `build` makes it a model whose state matters."""

    architecture: str
    options: Mapping[str, Any]

    def build(self, seed: int = 0) -> transformers.PreTrainedModel:
        family = self.architecture.removesuffix("ForCausalLM")
        kind = getattr(transformers, f"{family}TextConfig", None) or getattr(transformers, f"{family}Config")
        config = kind(**{"vocab_size": VOCAB, **self.options})
        model = getattr(transformers, self.architecture)(config).eval()
        _redraw(model, torch.Generator().manual_seed(seed))
        return model


@torch.no_grad()
def _redraw(model: transformers.PreTrainedModel, generator: torch.Generator) -> None:
    """Mixers as loud as the residual stream, decays of few tokens to hundreds, a head that does not echo."""
    tied = model.config.tie_word_embeddings
    norms = {name: weight for name, weight in model.named_parameters() if name.endswith("norm.weight")}
    zero_centred = [weight for weight in norms.values() if not weight.any()]  # these multiply by 1 + weight
    biases = [(name, bias) for name, bias in model.named_buffers() if name.endswith("bias")]
    for name, weight in sorted([*model.named_parameters(), *biases]):
        weight.copy_(_drawn(name, torch.randn(weight.shape, generator=generator)))
    loudness = 2.5 / math.sqrt(model.config.hidden_size)
    if tied:
        _final_norm(model).weight.mul_(-loudness)
    else:  # away from the token just read, which would be its own most likely successor
        model.lm_head.weight.sub_(model.get_input_embeddings().weight).mul_(loudness / math.sqrt(2))
    for weight in zero_centred:
        weight.sub_(1.0)


def _final_norm(model: transformers.PreTrainedModel) -> Any:
    names = ("backbone.norm_f", "model.norm_f", "model.embedding_norm", "model.final_layernorm", "model.norm")
    return next(module for name, module in model.named_modules() if name in names)


def _drawn(name: str, noise: Tensor) -> Tensor:
    if name.endswith("A_log"):
        return -2.5 + noise.clamp(-2, 2)
    if name.endswith("norm.weight") or name.endswith("norm_f.weight"):
        return (2.0 if "q_norm" in name else 1.0) * (1 + 0.2 * noise)
    if "embed" in name or "lm_head" in name:
        return noise
    if noise.dim() == 1:  # biases, dt_bias, D
        return 0.2 * noise
    loud = name.endswith(("q_proj.weight", "o_proj.weight", "out_proj.weight", "down_proj.weight"))
    return (2.0 if loud else 1.0) * noise / math.sqrt(noise.shape[-1])


class Oracle(evidence.Oracle):
    """transformers, asked about a tiny model that was written to `directory`."""

    def __init__(self, tiny: Tiny, directory: Path) -> None:
        tiny.build().save_pretrained(directory)
        super().__init__(directory)
        self.directory = directory

    def read(self, prompt: Sequence[int], answer: Sequence[int]) -> OracleRun:
        """What one prefill of the whole text says of each token of the answer."""
        logprobs = self.score([*prompt, *answer])
        before, found = logprobs[: len(prompt)], logprobs[len(prompt) - 1 : -1]
        return OracleRun(tuple(prompt), tuple(found.argmax(-1).tolist()), found, before)


OracleOf = Callable[[str], Oracle]


def oracles(models: Mapping[str, Tiny]) -> Any:
    """A fixture for a module of tests: the oracle of each of its models, made when it is first asked for."""

    @pytest.fixture(scope="module")
    def oracle_of(tmp_path_factory: pytest.TempPathFactory) -> OracleOf:
        return functools.cache(lambda name: Oracle(models[name], tmp_path_factory.mktemp(name)))

    return oracle_of


def prompts(*lengths: int, seed: int = 0, vocab: int = VOCAB) -> list[list[int]]:
    """Every token may occur, those that a config calls special as well."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(vocab, (length,), generator=generator).tolist() for length in lengths]


MIXED = prompts(150, 77, 64, 3, 1, 300)
"""A company of 1 to 300 tokens; in TINY_POOL the first ones grow until others must make room."""


def serve(
    directory: Path, given: list[list[int]], count: int = ANSWER, **options: Any
) -> list[RequestOutput]:
    llm = LLM(directory, **{"max_num_seqs": 8, "max_model_len": CONTEXT, "num_pages": 64, **options})
    return llm.generate(
        given, SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True, logprobs=TOP)
    )


def assert_equal_to_oracle(oracle: Oracle, given: list[list[int]], outputs: list[RequestOutput]) -> float:
    """Tokens but for ties, and log-probabilities. Returns the largest difference of one."""
    runs = [oracle.run(p, len(output.token_ids)) for p, output in zip(given, outputs, strict=True)]
    return assert_equal(runs, outputs)


def assert_equal(runs: list[OracleRun], outputs: list[RequestOutput]) -> float:
    verdicts = []
    for run, output in zip(runs, outputs, strict=True):
        logprobs = output.logprobs or ()
        verdicts.append(compare(run, output.token_ids, [found.logprob for found in logprobs]))
        for place, found in enumerate(logprobs[: verdicts[-1].positions]):
            for token, logprob in found.top:
                difference = abs(logprob - float(run.logprobs[place, token]))
                assert difference < TOLERANCE, f"place {place}: the alternative {token} is {difference} off"
    assert_evidence(verdicts)
    return max(verdict.worst for verdict in verdicts)


def farthest(oracle: Oracle, given: list[list[int]], outputs: list[RequestOutput]) -> float:
    """The largest difference of a log-probability, whatever the tokens: for numbers rounded on purpose."""
    worst = 0.0
    for prompt, output in zip(given, outputs, strict=True):
        wanted = oracle.read(prompt, output.token_ids).logprobs
        for place, found in enumerate(output.logprobs or ()):
            worst = max(worst, abs(found.logprob - float(wanted[place, found.token_id])))
    return worst


def worst_kl_in_bfloat16(tiny: Tiny, directory: Path, **options: Any) -> float:
    """Of any position, against the same rounded weights in float32. All of 20 tokens can be asked for."""
    oracle = Oracle(replace(tiny, options={**tiny.options, "vocab_size": 20}), directory)
    for weight in oracle.model.parameters():
        weight.data = weight.data.bfloat16().float()
    given = prompts(100, 7, vocab=20)
    llm = LLM(directory, dtype="bfloat16", max_num_seqs=2, max_model_len=CONTEXT, **options)
    outputs = llm.generate(
        given, SamplingParams(max_tokens=32, temperature=0.0, ignore_eos=True, logprobs=20)
    )
    worst = 0.0
    for prompt, output in zip(given, outputs, strict=True):
        wanted = oracle.read(prompt, output.token_ids).logprobs
        for place, found in enumerate(output.logprobs or ()):
            got = torch.tensor([logprob for _, logprob in sorted(found.top)]).double()
            worst = max(worst, float((wanted[place].exp() * (wanted[place] - got)).sum()))
    return worst


def assert_state_matters(oracle: Oracle, given: list[list[int]]) -> None:
    """The negative control: an engine that lost, mixed up or lagged behind one state could not pass."""
    evidence.assert_state_matters(oracle, *prompts(150, 150, seed=1))
    runs = [oracle.run(prompt, ANSWER) for prompt in given]
    assert_evidence(compare(run, run.tokens, run.token_logprobs) for run in runs)


def slow_but(fast: Sequence[Any], everything: Iterable[Any]) -> list[Any]:
    """Parameters of a test: all of them, of which only some are for every day."""
    each = ((item, item if isinstance(item, tuple) else (item,)) for item in everything)
    return [pytest.param(*values, marks=() if item in fast else pytest.mark.slow) for item, values in each]


def bits(outputs: list[RequestOutput]) -> list[Any]:
    """All that must be the same to the last bit between variants of one exact computation."""
    return [(output.token_ids, output.logprobs) for output in outputs]
