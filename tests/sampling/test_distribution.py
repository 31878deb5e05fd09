"""What is drawn has the distribution that the definitions give."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from holdfast import SamplingParams
from holdfast.ops.sampling.reference import SamplingRows, gumbel, sample, truncate

from . import oracle

DRAWS = 100_000
LOGITS = torch.tensor([1.7, -0.4, 2.1, 0.3, -2.2, 1.1, 0.9, -0.9, 0.0, 1.4])

CASES = [
    dict(zip(("temperature", "top_k", "top_p", "min_p"), values, strict=True))
    for values in (
        (1.0, 0, 1.0, 0.0),
        (0.3, 0, 1.0, 0.0),
        (3.0, 0, 1.0, 0.0),
        (1.0, 1, 1.0, 0.0),
        (1.0, 4, 1.0, 0.0),
        (1.0, 50, 1.0, 0.0),
        (1.0, 0, 0.55, 0.0),
        (1.0, 0, 0.95, 0.0),
        (1.0, 0, 1e-6, 0.0),
        (1.0, 0, 1.0, 0.35),
        (1.0, 0, 1.0, 1.0),
        (1.6, 6, 0.8, 0.0),
        (1.6, 6, 0.9, 0.4),
        (0.6, 0, 0.9, 0.1),
    )
]


def rows_of(params: SamplingParams, seed: Tensor, position: Tensor) -> SamplingRows:
    count = len(seed)
    return SamplingRows(
        temperature=torch.full((count,), params.temperature),
        top_k=torch.full((count,), params.top_k),
        top_p=torch.full((count,), params.top_p),
        min_p=torch.full((count,), params.min_p),
        seed=seed,
        position=position,
        draws=params.draws,
        truncates=params.truncates,
    )


def draw(params: SamplingParams, seed: Tensor, position: Tensor, logits: Tensor = LOGITS) -> Tensor:
    chosen = [
        sample(logits.expand(len(s), -1), rows_of(params, s, p))
        for s, p in zip(seed.split(100_000), position.split(100_000), strict=True)
    ]
    return torch.cat(chosen)


def counts_of(tokens: Tensor, size: int = len(LOGITS)) -> np.ndarray:
    return np.bincount(tokens.numpy(), minlength=size)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_many_seeds_give_the_distribution(case: dict[str, float]) -> None:
    params = SamplingParams(**case)
    chosen = draw(params, torch.arange(DRAWS), torch.full((DRAWS,), 17))
    assert oracle.chi_square(counts_of(chosen), oracle.distribution(LOGITS.numpy(), params)) < 1


@pytest.mark.parametrize("seed", [0, 1, -(2**63), 2**63 - 1])
def test_the_positions_of_one_seed_give_it_too(seed: int) -> None:
    params = SamplingParams(temperature=1.2, top_p=0.97)
    chosen = draw(params, torch.full((DRAWS,), seed), torch.arange(DRAWS))
    assert oracle.chi_square(counts_of(chosen), oracle.distribution(LOGITS.numpy(), params)) < 1


def test_a_shift_of_one_percent_would_be_seen() -> None:
    params = SamplingParams(temperature=1.0)
    counts = counts_of(draw(params, torch.arange(DRAWS), torch.zeros(DRAWS, dtype=torch.int64)))
    chances = oracle.distribution(LOGITS.numpy(), params)
    for more, less in itertools.permutations(np.argsort(chances)[-4:], 2):
        shifted = chances.copy()
        shifted[more] += 0.01
        shifted[less] -= 0.01
        assert oracle.chi_square(counts, shifted) > 1
    assert oracle.chi_square(counts, oracle.distribution(LOGITS.numpy(), SamplingParams(temperature=1.1))) > 1


@pytest.mark.parametrize("step", [(1, 0), (0, 1), (1, -1), (256, 0), (0, 256), (2**32, 0)])
def test_neighbouring_draws_know_nothing_of_each_other(step: tuple[int, int]) -> None:
    """Two draws that are one step apart in seed and position: all pairs, as often as chance has it."""
    params = SamplingParams(temperature=1.0)
    seed, position = torch.arange(DRAWS) // 700, torch.arange(DRAWS) % 700 + 1
    first, second = draw(params, seed, position), draw(params, seed + step[0], position + step[1])
    chances = oracle.distribution(LOGITS.numpy(), params)
    pairs = counts_of(first * len(LOGITS) + second, len(LOGITS) ** 2)
    assert oracle.chi_square(pairs, np.outer(chances, chances).ravel()) < 1


def test_noise_is_finite_and_of_the_right_shape() -> None:
    noise = gumbel(torch.arange(2000), torch.arange(2000) * 7, 500).double()
    assert noise.isfinite().all()
    assert abs(noise.mean() - 0.5772157) < 0.005
    assert abs(noise.var() - torch.pi**2 / 6) < 0.01


def test_what_is_left_is_what_transformers_leaves() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(40, 300, generator=generator) * 3
    for case in CASES[4:]:
        params = SamplingParams(**case)
        scaled = logits / params.temperature
        warpers = [transformers.MinPLogitsWarper(params.min_p)]
        warpers[:0] = [transformers.TopPLogitsWarper(params.top_p)] if params.top_p < 1 else []
        warpers[:0] = [transformers.TopKLogitsWarper(params.top_k)] if params.top_k else []
        wanted = scaled
        for warper in warpers:
            wanted = warper(None, wanted)
        limits = (torch.full((40,), value) for value in (params.top_k, params.top_p, params.min_p))
        assert torch.equal(truncate(scaled, *limits), wanted), case


def test_rows_of_one_batch_do_not_see_each_other() -> None:
    generator = torch.Generator().manual_seed(5)
    cases = [SamplingParams(**case) for case in CASES] + [SamplingParams()] * 3
    logits = torch.randn(len(cases), 50, generator=generator) * 2
    each = [rows_of(p, torch.tensor([i * 31]), torch.tensor([i])) for i, p in enumerate(cases)]
    names = [field.name for field in dataclasses.fields(SamplingRows) if field.type == "Tensor"]
    together = SamplingRows(**{name: torch.cat([getattr(rows, name) for rows in each]) for name in names})
    alone = [sample(logits[i : i + 1], rows) for i, rows in enumerate(each)]
    assert torch.equal(sample(logits, together), torch.cat(alone))
    back = torch.arange(len(cases) - 1, -1, -1)
    turned = SamplingRows(**{name: getattr(together, name)[back] for name in names})
    assert torch.equal(sample(logits[back], turned)[back], torch.cat(alone))


def test_greedy_rows_are_not_sorted_and_get_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Tensor:
        raise AssertionError("this is not for free")

    monkeypatch.setattr("holdfast.ops.sampling.reference.truncate", refuse)
    some = torch.arange(5)
    logits = torch.randn(5, 30)
    assert draw(SamplingParams(temperature=1.0), some, some, logits[0]).shape == (5,)
    monkeypatch.setattr("holdfast.ops.sampling.reference.gumbel", refuse)
    assert torch.equal(sample(logits, rows_of(SamplingParams(), some, some)), logits.argmax(-1))
