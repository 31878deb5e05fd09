"""Mixture of experts: routers against those of transformers, mixtures against every expert asked for every token."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.granitemoehybrid.modeling_granitemoehybrid import GraniteMoeHybridTopKRouter
from transformers.models.lfm2_moe.modeling_lfm2_moe import Lfm2MoeTopKRouter
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHTopkRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from holdfast.config import ConfigError
from holdfast.ops.backend import Ops, choose
from holdfast.ops.moe.reference import Routing, mix, route

from .steps import same_bits, seeded

EXPERTS, HIDDEN, TOKENS = 12, 16, 200
PLAIN = Routing(EXPERTS, 3)
SIGMOID = Routing(EXPERTS, 3, score="sigmoid", eps=1e-6, scale=2.5)
GROUPED = replace(SIGMOID, eps=1e-20, groups=4, chosen_groups=2)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=seeded(seed))


def config_of(routing: Routing) -> Any:
    """As every router of transformers names it."""
    return SimpleNamespace(
        num_experts=routing.experts,
        num_local_experts=routing.experts,
        num_experts_per_tok=routing.chosen,
        norm_topk_prob=routing.normalised,
        hidden_size=HIDDEN,
        routed_scaling_factor=routing.scale,
        n_group=routing.groups,
        topk_group=routing.chosen_groups,
        use_expert_bias=True,
    )


ROUTERS = {
    "softmax": (Qwen3MoeTopKRouter, PLAIN),
    "softmax, not normalised": (Qwen3MoeTopKRouter, replace(PLAIN, normalised=False)),
    "softmax of the chosen": (GraniteMoeHybridTopKRouter, PLAIN),
    "sigmoid": (Lfm2MoeTopKRouter, SIGMOID),
    "sigmoid, not normalised": (Lfm2MoeTopKRouter, replace(SIGMOID, normalised=False)),
    "grouped": (NemotronHTopkRouter, GROUPED),
    "grouped, not normalised": (NemotronHTopkRouter, replace(GROUPED, normalised=False)),
    "one group": (NemotronHTopkRouter, replace(GROUPED, groups=1, chosen_groups=1)),
    "all experts": (Qwen3MoeTopKRouter, replace(PLAIN, chosen=EXPERTS)),
}


def dense(experts: Tensor, weights: Tensor) -> Tensor:
    """[tokens, EXPERTS], the same for every order of the chosen"""
    return torch.zeros(len(experts), EXPERTS).scatter(1, experts, weights.float())


@torch.no_grad()
@pytest.mark.parametrize("name", ROUTERS)
def test_routers_are_those_of_transformers(name: str) -> None:
    kind, routing = ROUTERS[name]
    router = kind(config_of(routing))
    x, bias = random(TOKENS, HIDDEN), 0.3 * random(EXPERTS, seed=2)
    router.weight.copy_(random(EXPERTS, HIDDEN, seed=1) / 4)
    corrected = kind in (Lfm2MoeTopKRouter, NemotronHTopkRouter)
    if hasattr(router, "e_score_correction_bias"):
        router.e_score_correction_bias.copy_(bias)
    _, weights, experts = router(x, bias) if kind is Lfm2MoeTopKRouter else router(x)
    own = route(x @ router.weight.T, bias if corrected else None, routing)
    assert own[1].dtype == torch.float32
    torch.testing.assert_close(dense(*own), dense(experts, weights), rtol=1e-5, atol=1e-7)
    if corrected:  # or the comparison above would say nothing of the bias
        assert not torch.equal(own[0], route(x @ router.weight.T, None, routing)[0])


def test_a_bias_chooses_and_does_not_weigh() -> None:
    logits, bias = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([-9.0, 0.0, 0.0])
    experts, weights = route(logits, bias, Routing(3, 2, score="sigmoid", normalised=False))
    assert experts.tolist() == [[1, 2]]
    torch.testing.assert_close(weights, logits[:, 1:].sigmoid())


@pytest.mark.parametrize(
    ("routing", "complaint"),
    [
        (dict(experts=8, chosen=9), "num_experts_per_tok=9, but 8 are open to a token"),
        (dict(experts=8, chosen=3, groups=4), "num_experts_per_tok=3, but 2 are open to a token"),
        (dict(experts=9, chosen=1, groups=4), "9 experts cannot be in 4 groups"),
        (dict(experts=4, chosen=1, groups=4), "4 experts cannot be in 4 groups"),
        (dict(experts=8, chosen=1, groups=2, chosen_groups=3), "of which 3 are open"),
    ],
)
def test_what_cannot_be_chosen(routing: dict[str, int], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Routing(**routing)  # type: ignore[arg-type]


# --- the mixture -------------------------------------------------------------------------------------------


def activated(inner: Tensor, gated: bool) -> Tensor:
    if not gated:
        return inner.clamp(min=0) ** 2
    gate, up = inner.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def every_expert(
    x: Tensor, experts: Tensor, weights: Tensor, up: Tensor, down: Tensor, gated: bool
) -> Tensor:
    """In float64, all experts for all tokens."""
    inner = activated(torch.einsum("th,eih->tei", x.double(), up.double()), gated)
    said = torch.einsum("tei,ehi->teh", inner, down.double())
    share = torch.zeros(len(x), len(up), dtype=torch.float64).scatter(1, experts, weights.double())
    return torch.einsum("teh,te->th", said, share)


def mixture(gated: bool, seed: int = 0) -> tuple[Tensor, Tensor]:
    inner = 10
    up = random(EXPERTS, 2 * inner if gated else inner, HIDDEN, seed=seed) / HIDDEN**0.5
    return up, random(EXPERTS, HIDDEN, inner, seed=seed + 1) / inner**0.5


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("tokens", [0, 1, 2, 7, 130])
@pytest.mark.parametrize("exact", [True, False])
def test_the_mixture_is_its_definition(gated: bool, tokens: int, exact: bool) -> None:
    ops, (up, down) = choose("reference", exact=exact), mixture(gated)
    x = random(tokens, HIDDEN, seed=tokens)
    experts, weights = ops.route(random(tokens, EXPERTS, seed=9), None, PLAIN)
    got = ops.experts(x, experts, weights, up, down, gated=gated)
    wanted = every_expert(x, experts, weights, up, down, gated)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-6)


def test_an_expert_is_asked_once_and_only_if_chosen() -> None:
    asked: list[tuple[int, int]] = []

    def expert(number: int, tokens: Tensor) -> Tensor:
        asked.append((number, len(tokens)))
        return tokens * number

    x, experts = random(4, 3), torch.tensor([[5, 2], [2, 7], [5, 2], [7, 5]])
    got = mix(x, experts, torch.full((4, 2), 0.5), 9, expert)
    assert asked == [(2, 3), (5, 3), (7, 2)]
    torch.testing.assert_close(got, x * experts.float().mean(1, keepdim=True))


EXACT: Ops = choose("reference", exact=True)


@settings(derandomize=True, max_examples=40, deadline=None)
@given(data=st.data())
def test_a_token_gets_the_same_bits_in_any_company(data: st.DataObject) -> None:
    routing = data.draw(st.sampled_from([PLAIN, SIGMOID, GROUPED, replace(PLAIN, chosen=EXPERTS)]))
    gated, count = data.draw(st.booleans()), data.draw(st.integers(1, 130))
    up, down = mixture(gated, seed=3)
    router, bias = random(EXPERTS, HIDDEN, seed=5), 0.1 * random(EXPERTS, seed=6)

    def layer(x: Tensor) -> Tensor:
        experts, weights = EXACT.route(EXACT.linear(x, router), bias, routing)
        return EXACT.experts(x, experts, weights, up, down, gated=gated)

    company = random(count, HIDDEN, seed=data.draw(st.integers(0, 50)))
    place = data.draw(st.integers(0, count - 1))
    assert same_bits(layer(company)[place], layer(company[place : place + 1])[0])
