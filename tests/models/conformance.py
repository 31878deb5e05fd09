"""Tiny random models in hub format, what transformers makes of them, and when two answers count as the same.

The oracle sees one request at a time: one prefill of the whole prompt, then one token a step. When it goes on
from a cache by several tokens at once it is wrong for some recurrent models, and so it is with padding.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from holdfast import LLM, SamplingParams
from holdfast.request import RequestOutput

VOCAB, ANSWER, TOP, CONTEXT = 256, 64, 4, 384
TOLERANCE = 1e-4
"""Of a log-probability in float32; and a margin of the oracle below this is a tie."""

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
    for name, weight in sorted(model.named_parameters()):
        weight.copy_(_drawn(name, torch.randn(weight.shape, generator=generator)))
    loudness = 2.5 / math.sqrt(model.config.hidden_size)
    if tied:
        _final_norm(model).weight.mul_(-loudness)
    else:  # away from the token just read, which would be its own most likely successor
        model.lm_head.weight.sub_(model.get_input_embeddings().weight).mul_(loudness / math.sqrt(2))
    if "Qwen3_5" in type(model).__name__:  # its norms multiply by 1 + weight, but for the one before the gate
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
                weight.sub_(1.0)


def _final_norm(model: transformers.PreTrainedModel) -> Any:
    names = ("backbone.norm_f", "model.embedding_norm", "model.norm")
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


@dataclass(frozen=True)
class Answer:
    """tokens [n]; logprobs [n, VOCAB]"""

    tokens: list[int]
    logprobs: Tensor

    def margin(self, place: int) -> float:
        best = self.logprobs[place].topk(2).values
        return float(best[0] - best[1])


class Oracle:
    def __init__(self, tiny: Tiny, directory: Path) -> None:
        self.model, self.directory = tiny.build(), directory
        self.model.save_pretrained(directory)
        self._answers: dict[tuple[int, ...], Answer] = {}

    @torch.no_grad()
    def feed(self, tokens: Sequence[int], cache: Any = None) -> tuple[Tensor, Any]:
        """Log-probabilities after each token [n, VOCAB], and the cache; one that is given takes one token."""
        assert cache is None or len(tokens) == 1
        given = torch.tensor([tokens])
        name = "cache_params" if hasattr(self.model, "backbone") else "past_key_values"
        mask = torch.ones_like(given) if cache is None else None
        result = self.model(given, attention_mask=mask, use_cache=True, **{name: cache})
        return result.logits[0].double().log_softmax(-1), result[name]

    def answer(self, prompt: Sequence[int], count: int = ANSWER) -> Answer:
        key = (*prompt, -count)
        if key not in self._answers:
            logprobs, cache = self.feed(prompt)
            tokens, found = [], []
            for _ in range(count):
                found.append(logprobs[-1])
                tokens.append(int(found[-1].argmax()))
                logprobs, cache = self.feed(tokens[-1:], cache)
            self._answers[key] = Answer(tokens, torch.stack(found))
        return self._answers[key]

    def read(self, prompt: Sequence[int], answer: Sequence[int]) -> Answer:
        """What one prefill of the whole text says of each token of the answer."""
        logprobs, _ = self.feed([*prompt, *answer])
        found = logprobs[len(prompt) - 1 : -1]
        return Answer(found.argmax(-1).tolist(), found)

    def sabotaged(self, prompt: Sequence[int], other: Sequence[int]) -> Iterator[tuple[str, float]]:
        """For each state of each layer and each way to spoil it: how far some log-probability moves."""
        _, cache = self.feed(prompt)
        (_, before), (_, others) = self.feed(prompt[:-1]), self.feed(other)
        healthy, _ = self.feed([7], copy.deepcopy(cache))
        for layer, kinds in enumerate(_states(cache)):
            for kind, state in kinds.items():
                foreign, earlier = _states(others)[layer][kind], _states(before)[layer][kind]
                for how, spoilt in {
                    "zeroed": torch.zeros_like(state),
                    "swapped": foreign,
                    "late": earlier if earlier.shape == state.shape else state.roll(1, -2),
                }.items():
                    broken = copy.deepcopy(cache)
                    _states(broken)[layer][kind].copy_(spoilt)
                    moved, _ = self.feed([7], broken)
                    yield f"layer {layer} {kind} {how}", float((moved - healthy).abs().max())


def _states(cache: Any) -> list[dict[str, Tensor]]:
    """Of each layer, by name; the cache's own tensors."""
    return [
        _recurrent_states(layer)
        if hasattr(layer, "recurrent_states")
        else {"keys": layer.keys, "values": layer.values}
        for layer in cache.layers
    ]


def _recurrent_states(layer: Any) -> dict[str, Tensor]:
    held = {"conv": layer.conv_states, "temporal": layer.recurrent_states}
    return {name: states[0] for name, states in held.items() if states and states[0] is not None}


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


@dataclass
class Agreement:
    """What was compared, how far apart it was, and how often the oracle itself could not decide."""

    positions: int = 0
    ties: int = 0
    worst: float = 0.0

    def add(self, output: RequestOutput, answer: Answer) -> None:
        assert output.logprobs is not None and len(output.token_ids) == len(answer.tokens)
        for place, (token, found) in enumerate(zip(output.token_ids, output.logprobs, strict=True)):
            self.positions += 1
            for alternative, logprob in ((token, found.logprob), *found.top):
                self.worst = max(self.worst, abs(logprob - float(answer.logprobs[place, alternative])))
            if token != answer.tokens[place]:
                margin, wanted = answer.margin(place), answer.tokens[place]
                assert margin < TOLERANCE, f"token {place} is {token}, not {wanted}, which leads by {margin}"
                self.ties += 1
                return  # from here on the two read different texts

    def check(self) -> None:
        assert self.positions and self.ties <= 0.01 * self.positions, f"{self.ties} ties of {self.positions}"
        assert self.worst < TOLERANCE, f"a log-probability is {self.worst} off"


def assert_equal_to_oracle(oracle: Oracle, given: list[list[int]], outputs: list[RequestOutput]) -> float:
    """Tokens but for ties, and log-probabilities. Returns the largest difference of one."""
    agreement = Agreement()
    for prompt, output in zip(given, outputs, strict=True):
        assert list(output.prompt_token_ids) == prompt
        agreement.add(output, oracle.answer(prompt, len(output.token_ids)))
    agreement.check()
    return agreement.worst


def farthest(oracle: Oracle, given: list[list[int]], outputs: list[RequestOutput]) -> float:
    """The largest difference of a log-probability, whatever the tokens: for numbers rounded on purpose."""
    worst = 0.0
    for prompt, output in zip(given, outputs, strict=True):
        wanted = oracle.read(prompt, output.token_ids).logprobs
        for place, found in enumerate(output.logprobs or ()):
            worst = max(worst, abs(found.logprob - float(wanted[place, found.token_id])))
    return worst


def worst_kl_in_bfloat16(tiny: Tiny, directory: Path) -> float:
    """Of any position, against the same rounded weights in float32. All of 20 tokens can be asked for."""
    oracle = Oracle(replace(tiny, options={**tiny.options, "vocab_size": 20}), directory)
    for weight in oracle.model.parameters():
        weight.data = weight.data.bfloat16().float()
    given = prompts(100, 7, vocab=20)
    llm = LLM(directory, dtype="bfloat16", max_num_seqs=2, max_model_len=CONTEXT)
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
    for what, moved in oracle.sabotaged(*prompts(150, 150, seed=1)):
        assert moved >= 1e-2, f"{what}: no log-probability moves by more than {moved}"
    for prompt in given:
        assert len(set(oracle.answer(prompt).tokens)) >= 16, "an answer that repeats itself shows little"


def slow_but(fast: Sequence[Any], everything: Iterable[Any]) -> list[Any]:
    """Parameters of a test: all of them, of which only some are for every day."""
    each = ((item, item if isinstance(item, tuple) else (item,)) for item in everything)
    return [pytest.param(*values, marks=() if item in fast else pytest.mark.slow) for item, values in each]


def bits(outputs: list[RequestOutput]) -> list[Any]:
    """All that must be the same to the last bit between variants of one exact computation."""
    return [(output.token_ids, output.logprobs) for output in outputs]
