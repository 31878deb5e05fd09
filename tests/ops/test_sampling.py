"""Choosing tokens: the right distribution, and nobody's choice depends on anybody else."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from holdfast.ops.sampling.reference import (
    SamplingRows,
    descending,
    gumbel,
    most_likely,
    permit,
    sample,
    truncate,
)

from .steps import seeded

VOCAB = 12
LOGITS = torch.tensor([2.0, 1.9, 1.0, 0.9, 0.5, 0.0, -0.3, -0.5, -1.0, -1.2, -3.0, -6.0])


def rows(
    count: int,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 7,
) -> SamplingRows:
    """The same request at `count` positions."""
    return SamplingRows(
        temperature=torch.full((count,), temperature),
        top_k=torch.full((count,), top_k),
        top_p=torch.full((count,), top_p),
        min_p=torch.full((count,), min_p),
        seed=torch.full((count,), seed),
        position=torch.arange(count),
    )


def distribution(
    logits: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> NDArray[np.float64]:
    """What a token's chance should be, sorted and summed by hand in float64."""
    scaled = logits.double().numpy() / temperature
    chance = np.exp(scaled - scaled.max())
    order = sorted(range(len(chance)), key=lambda token: -chance[token])
    kept = order[: top_k or len(order)]
    total, mass, nucleus = sum(chance[token] for token in kept), 0.0, []
    for token in kept:
        if top_p < 1.0 and mass >= top_p:
            break
        nucleus.append(token)
        mass += chance[token] / total
    likely = [token for token in nucleus if token == order[0] or chance[token] >= min_p * chance[order[0]]]
    result = np.zeros(len(chance))
    result[likely] = chance[likely] / chance[likely].sum()
    return result


def assert_drawn_from(tokens: Tensor, chance: NDArray[np.float64]) -> None:
    """Chi-square over what can happen; what cannot happen never did."""
    counts = np.bincount(tokens.numpy().ravel(), minlength=len(chance)).astype(float)
    assert not counts[chance == 0].any(), "a token was chosen that had been cut off"
    expected = chance[chance > 0] * counts.sum()
    degrees = len(expected) - 1
    statistic = ((counts[chance > 0] - expected) ** 2 / expected).sum()
    assert statistic <= degrees + 5 * math.sqrt(2 * degrees) + 5 * (degrees > 0), f"{statistic} at {degrees}"


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"top_k": 1},
        {"top_k": 4},
        {"top_k": 100},
        {"top_p": 0.5},
        {"top_p": 0.01},
        {"min_p": 0.3},
        {"min_p": 1.0},
        {"temperature": 1.5, "top_k": 8, "top_p": 0.8, "min_p": 0.1},
    ],
    ids=str,
)
def test_choices_follow_the_distribution(params: dict[str, float]) -> None:
    count = 20_000
    tokens = sample(LOGITS.expand(count, VOCAB), rows(count, **params))  # type: ignore[arg-type]
    assert_drawn_from(tokens, distribution(LOGITS, **params))  # type: ignore[arg-type]


def test_temperature_zero_takes_the_most_likely() -> None:
    logits = torch.randn(50, VOCAB, generator=seeded(1))
    assert torch.equal(sample(logits, rows(50, temperature=0.0)), logits.argmax(-1))


def test_greedy_and_drawing_rows_share_a_step() -> None:
    logits = torch.randn(40, VOCAB, generator=seeded(2))
    mixed = rows(40)
    mixed.temperature[::2] = 0.0
    tokens = sample(logits, mixed)
    assert torch.equal(tokens[::2], logits.argmax(-1)[::2])
    assert torch.equal(tokens[1::2], sample(logits, rows(40))[1::2])
    assert not torch.equal(tokens[1::2], logits.argmax(-1)[1::2])


def test_seeds_and_positions_draw_anew_and_can_be_repeated() -> None:
    logits = LOGITS.expand(3000, VOCAB)
    first, second = sample(logits, rows(3000, seed=1)), sample(logits, rows(3000, seed=2))
    assert torch.equal(first, sample(logits, rows(3000, seed=1)))
    chance = distribution(LOGITS)
    independent = np.outer(chance, chance).ravel()
    assert_drawn_from(first * VOCAB + second, independent)  # neighbouring seeds
    assert_drawn_from(first[:-1] * VOCAB + first[1:], independent)  # neighbouring positions


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, -(2**63)])
def test_any_seed_is_a_seed(seed: int) -> None:
    assert_drawn_from(sample(LOGITS.expand(5000, VOCAB), rows(5000, seed=seed)), distribution(LOGITS))


def test_the_noise_is_gumbel_noise() -> None:
    noise = gumbel(torch.arange(300), torch.full((300,), 5), 1000).double()
    assert noise.isfinite().all()
    assert abs(float(noise.mean()) - np.euler_gamma) < 0.01
    assert abs(float(noise.var()) - math.pi**2 / 6) < 0.02


@st.composite
def requests(draw: st.DrawFn) -> tuple[Tensor, SamplingRows]:
    count = draw(st.integers(1, 9))
    share = st.integers(1, 20).map(lambda n: n / 20)

    def column(strategy: st.SearchStrategy[Any]) -> Tensor:
        return torch.tensor(draw(st.lists(strategy, min_size=count, max_size=count)))

    logits = 3 * torch.randn(count, 31, generator=seeded(draw(st.integers(0, 99))))
    return logits, SamplingRows(
        temperature=column(st.just(0.0) | share),
        top_k=column(st.integers(0, 40)),
        top_p=column(share),
        min_p=column(st.just(0.0) | share),
        seed=column(st.integers(-(2**63), 2**63 - 1)),
        position=column(st.integers(0, 10**6)),
    )


def take(given_rows: SamplingRows, index: list[int]) -> SamplingRows:
    tensors = {name: x[index] for name, x in vars(given_rows).items() if isinstance(x, Tensor)}
    return SamplingRows(**tensors)  # type: ignore[arg-type]


@settings(derandomize=True, max_examples=60, deadline=None)
@given(requests(), st.randoms(use_true_random=False))
def test_a_choice_depends_on_its_own_row_alone(request: tuple[Tensor, SamplingRows], random: Random) -> None:
    """Alone, in another order, and beside rows of NaN, which is what padding holds."""
    logits, params = request
    together = sample(logits, params)
    order = list(range(len(logits)))
    random.shuffle(order)
    assert torch.equal(sample(logits[order], take(params, order)), together[order])
    for index in order:
        assert sample(logits[[index]], take(params, [index])).tolist() == [int(together[index])]
    padded = torch.cat((logits, torch.full((3, logits.shape[1]), torch.nan)))
    last = [*range(len(logits)), 0, 0, 0]
    assert torch.equal(sample(padded, take(params, last))[: len(logits)], together)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(requests())
def test_truncation_keeps_the_right_tokens(request: tuple[Tensor, SamplingRows]) -> None:
    logits, params = request
    kept = truncate(logits, params.top_k, params.top_p, params.min_p)
    for row in range(len(logits)):
        top_k, top_p, min_p = (float(x[row]) for x in (params.top_k, params.top_p, params.min_p))
        chance = distribution(logits[row], 1.0, int(top_k), top_p, min_p)
        assert torch.equal(kept[row].isfinite(), torch.from_numpy(chance > 0)), f"row {row} of {params}"
        assert torch.equal(kept[row][chance > 0], logits[row][chance > 0])


def test_no_rows_give_no_tokens() -> None:
    assert sample(torch.zeros(0, VOCAB), rows(0)).shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [1, 8, 37, 64])
def test_what_is_not_permitted_is_out_of_the_question(vocab: int, dtype: torch.dtype) -> None:
    generator = seeded(vocab)
    logits = torch.randn(5, vocab, generator=generator).to(dtype)
    bits = torch.rand(2, -(-vocab // 32) * 32, generator=generator) < 0.5
    packed = torch.from_numpy(np.packbits(bits.numpy(), axis=1, bitorder="little"))
    found = permit(logits, torch.tensor([3, 1]), packed)
    for row, allowed in {3: bits[0], 1: bits[1]}.items():
        kept = allowed[:vocab]
        assert torch.equal(found[row][kept], logits[row][kept]) and (found[row][~kept] == -torch.inf).all()
    assert torch.equal(found[[0, 2, 4]], logits[[0, 2, 4]]), "others are as they were"


def few_values(seed: int) -> Tensor:
    """Logits of which many are equal, with both infinities and both zeros."""
    values = torch.tensor([-torch.inf, -2.5, -1e-40, -0.0, 0.0, 1e-40, 0.5, 2.0, torch.inf])
    return values[torch.randint(len(values), (5, 300), generator=seeded(seed))]


def test_logits_are_ordered_as_a_stable_sort_orders_them() -> None:
    for seed in range(3):
        logits = few_values(seed)
        expected = logits.sort(dim=-1, descending=True, stable=True)
        for found, wanted in zip(descending(logits), expected, strict=True):
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_first_of_the_largest_is_the_most_likely(dtype: torch.dtype) -> None:
    logits = few_values(3).to(dtype)
    logits[0] = -torch.inf
    logits[1, 7] = torch.nan
    first = [
        next(i for i, x in enumerate(row) if x == max(row)) for row in logits.nan_to_num(math.inf).tolist()
    ]
    first[1] = 7  # nobody should overlook it
    assert most_likely(logits).tolist() == first
