"""Runs a scene on the real engine and says what came of it."""

from __future__ import annotations

import functools
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tests.host.restless import Restless
from tests.models.conformance import Tiny
from tests.spec.drafters import Following, correct_drafts, spoil_drafts
from tests.spec.formats import WRITERS, Target

from holdfast.config import EngineConfig
from holdfast.corruption import Finding, StateCorruption
from holdfast.engine import Engine, build_engine
from holdfast.models.base import CausalLM
from holdfast.request import Request, SamplingParams

from .fault import LFM2, MAMBA2, QWEN, QWEN3, Ask, Scene

VOCAB = 256
MODELS = {
    QWEN: Tiny(
        "Qwen3_5ForCausalLM",
        dict(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=4,
            layer_types=["linear_attention", "linear_attention", "full_attention", "full_attention"],
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            max_position_embeddings=512,
        ),
    ),
    LFM2: Tiny(
        "Lfm2ForCausalLM",
        dict(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=4,
            layer_types=["conv", "full_attention", "conv", "full_attention"],
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=512,
        ),
    ),
    QWEN3: Tiny(
        "Qwen3ForCausalLM",
        dict(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            max_position_embeddings=512,
        ),
    ),
    MAMBA2: Tiny(
        "Mamba2ForCausalLM",
        dict(hidden_size=32, num_heads=4, head_dim=16, state_size=8, n_groups=1, num_hidden_layers=2),
    ),
}
OPTIONS = dict(max_num_seqs=4, max_model_len=192, page_size=16, num_pages=64, num_slots=10)


@dataclass(frozen=True)
class Outcome:
    tokens: tuple[tuple[int, ...], ...]
    errors: tuple[StateCorruption | None, ...]

    @property
    def findings(self) -> list[Finding]:
        return [finding for error in self.errors if error for finding in error.findings]


@functools.cache
def model_dir(name: str) -> Path:
    directory = Path(tempfile.mkdtemp(prefix="holdfast-faults-"))
    MODELS[name].build().save_pretrained(directory)
    return directory


@functools.cache
def head_dir(method: str, name: str) -> Path:
    """A drafter for that model."""
    return WRITERS[method](Target.of(model_dir(name)), model_dir(name) / method)


@functools.cache
def weights(name: str, device: str) -> CausalLM:
    return build_engine(model_dir(name), EngineConfig(**OPTIONS, device=device)).runner.model


def make_engine(scene: Scene, sanitizer: str) -> Engine:
    options = {**OPTIONS, **scene.options}
    if scene.drafts:
        options["speculative_config"] = speculation(scene)
    config = EngineConfig(**options, sanitizer=sanitizer)
    engine = build_engine(model_dir(scene.model), config, weights_of=weights(scene.model, config.device))
    if scene.drafts and scene.drafter == "standalone":
        spoil_drafts(engine)
    elif scene.drafts:
        correct_drafts(engine, following(scene))
    if scene.depths:
        engine.scheduler._depth = Restless(scene.depths)
    return engine


def speculation(scene: Scene) -> dict[str, object]:
    method = "eagle" if scene.drafter == "tree" else scene.drafter
    made = model_dir(scene.model) if method == "standalone" else head_dir(method, scene.model)
    asked: dict[str, object] = {"method": method, "model": str(made), "num_speculative_tokens": scene.drafts}
    if scene.drafter == "tree":
        asked |= {"topk": 3, "num_draft_tokens": 2 * scene.drafts + 2}
    return asked | ({"adaptive": {"candidate_steps": scene.depths}} if scene.depths else {})


def following(scene: Scene) -> Following:
    """What each request goes on with when nobody drafts."""
    plain = healthy(replace(scene, drafts=0, depths=()))
    texts = [[*r.prompt, *tokens] for r, tokens in zip(make_requests(scene.asks), plain.tokens, strict=True)]

    def known(row: int, tokens: list[int]) -> list[int]:
        return next((text[len(tokens) :] for text in texts if text[: len(tokens)] == tokens), [])

    return known


def make_requests(asks: tuple[Ask, ...]) -> list[Request]:
    generator = torch.Generator().manual_seed(7)
    common = torch.randint(VOCAB, (256,), generator=generator).tolist()
    made = []
    for number, ask in enumerate(asks):
        own = torch.randint(VOCAB, (ask.length,), generator=generator).tolist()
        prompt = tuple((common[: ask.shared] + own)[: ask.length])
        params = SamplingParams(max_tokens=ask.answer, temperature=0.0, ignore_eos=True)
        made.append(Request(id=str(number), prompt=prompt, params=params))
    return made


def run(scene: Scene, sanitizer: str = "off") -> Outcome:
    engine, requests = make_engine(scene, sanitizer), make_requests(scene.asks)
    waiting = dict(enumerate(zip(scene.asks, requests, strict=True)))
    step = 0
    while waiting or engine.has_work:
        for number, (ask, request) in list(waiting.items()):
            if ask.after <= step:
                engine.submit(request)
                del waiting[number]
        for ask, request in zip(scene.asks, requests, strict=True):
            if ask.cancelled == step:
                engine.cancel(request.id)
        engine.step()
        step += 1
        assert step < 2000, "the engine does not come to an end"
    return Outcome(tuple(tuple(r.output) for r in requests), tuple(r.error for r in requests))


@functools.cache
def _healthy(key: tuple[object, ...], sanitizer: str) -> Outcome:
    model, asks, options, *drafting = key
    return run(Scene(model, asks, dict(options), *drafting), sanitizer)  # type: ignore[arg-type, call-overload]


def healthy(scene: Scene, sanitizer: str = "off") -> Outcome:
    """Without any fault; the same scene is run once."""
    return _healthy(scene.key, sanitizer)
