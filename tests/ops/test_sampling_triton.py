"""The Triton kernels that choose tokens against the reference: the same tokens, ties included."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from holdfast.ops.sampling import reference
from holdfast.ops.sampling.reference import SamplingRows

from .steps import seeded

pytest.importorskip("triton")
from holdfast.ops.sampling import triton as twin

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NARROW = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16  # the interpreter has no right bfloat16
everywhere = pytest.mark.gpu if DEVICE.type == "cuda" else pytest.mark.slow
LIMITS = [
    {},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 1000},
    {"top_p": 0.6},
    {"top_p": 0.0},
    {"min_p": 0.23},
    {"top_k": 20, "top_p": 0.45},
    {"top_k": 9, "top_p": 0.999, "min_p": 0.04},
]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small vocabulary has several."""
    if DEVICE.type == "cpu":
        monkeypatch.setattr(twin, "PART", 64)
        monkeypatch.setattr(twin, "LOOKED_AT", 64)


def rows(
    limits: list[dict[str, float]], *, heat: float = 0.7, seed: int = 5, position: int = 11
) -> SamplingRows:
    def each(name: str, off: float, dtype: torch.dtype) -> Tensor:
        return torch.tensor([limit.get(name, off) for limit in limits], dtype=dtype, device=DEVICE)

    count = len(limits)
    return SamplingRows(
        temperature=each("temperature", heat, torch.float32),
        top_k=each("top_k", 0, torch.int64),
        top_p=each("top_p", 1.0, torch.float32),
        min_p=each("min_p", 0.0, torch.float32),
        seed=torch.arange(count, device=DEVICE) * -7046029254386353131 + seed,
        position=torch.arange(count, device=DEVICE) + position,
    )


def logits_like(vocab: int, count: int, *, seed: int, coarse: bool = False) -> Tensor:
    """coarse: many are equal, as after a projection in bfloat16"""
    made = 3 * torch.randn(count, vocab, generator=seeded(seed))
    return (made.round() if coarse else made).to(DEVICE)


def kept_by(logits: Tensor, given: SamplingRows) -> Tensor:
    """[S, vocab]: what the cut leaves, told of each token alone as `choose` does"""
    key, last, best = (part[:, None] for part in twin.cut(logits, given))
    sign = 1 << 8 * logits.element_size() - 1
    integers = torch.int16 if logits.element_size() == 2 else torch.int32
    bits = torch.where(logits == 0, 0.0, logits).to(logits.dtype).view(integers).long() & (2 * sign - 1)
    ordered = torch.where(bits >= sign, bits ^ (2 * sign - 1), bits | sign)
    lowest, token = key.long() & 0xFFFFFFFF, torch.arange(logits.shape[1], device=DEVICE)
    kept = (ordered > lowest) | ((ordered == lowest) & (token <= last))
    return kept & (((logits.float() - best) / given.temperature[:, None]).exp() >= given.min_p[:, None])


@pytest.mark.parametrize("dtype", [torch.float32, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("coarse", [False, True], ids=["distinct", "ties"])
def test_what_is_kept_is_what_the_sorted_order_keeps(coarse: bool, dtype: torch.dtype) -> None:
    given = rows(LIMITS)
    logits = logits_like(100, len(LIMITS), seed=1, coarse=coarse).to(dtype)
    wanted = reference.truncate(
        logits / given.temperature[:, None], given.top_k, given.top_p, given.min_p
    ).isfinite()
    limited = [i for i, limit in enumerate(LIMITS) if limit]
    assert torch.equal(kept_by(logits, given)[limited], wanted[limited])


@pytest.mark.parametrize("coarse", [False, True], ids=["distinct", "ties"])
def test_rows_of_all_kinds_choose_the_same_tokens(coarse: bool) -> None:
    """Greedy rows among those that draw."""
    limits = [*LIMITS, {"temperature": 0.0}, {"temperature": 0.0, "top_k": 3}, {"temperature": 30.0}]
    given = rows(limits)
    logits = logits_like(100, len(limits), seed=3, coarse=coarse)
    assert torch.equal(twin.sample(logits, given), reference.sample(logits, given))


def test_greedy_rows_alone_choose_the_first_of_the_largest() -> None:
    given = replace(rows([{}, {}, {}, {}]), draws=False)
    logits = logits_like(150, 4, seed=2, coarse=True).half()
    logits[3] = -torch.inf
    largest = logits == logits.max(-1, keepdim=True).values
    assert torch.equal(twin.sample(logits, given), largest.int().argmax(-1))


def test_rows_that_keep_everything() -> None:
    given = replace(rows([{}, {"temperature": 0.0}, {"temperature": 1.5}]), truncates=False)
    for seed in range(3):
        logits = logits_like(150, 3, seed=seed)
        assert torch.equal(twin.sample(logits, given), reference.sample(logits, given))


def test_forbidden_tokens_stay_forbidden() -> None:
    given = rows([{"top_k": 5}, {"top_p": 0.9}, {}, {"temperature": 0.0}])
    logits = torch.full((4, 130), -torch.inf, device=DEVICE)
    logits[:, 77], logits[:, 5], logits[:, 6] = 1.0, -0.0, 0.0
    assert torch.equal(twin.sample(logits, given), reference.sample(logits, given))


def test_zero_has_one_sign() -> None:
    logits = torch.tensor([[-1.0, -0.0, 0.0, 2.0]], device=DEVICE)
    assert kept_by(logits, rows([{"top_k": 2}])).tolist() == [[False, True, False, True]]


def test_no_rows() -> None:
    assert twin.sample(logits_like(150, 0, seed=0), rows([])).shape == (0,)


def test_a_row_of_a_wider_tensor() -> None:
    given = rows([{"top_k": 4}] * 3)
    logits = logits_like(140, 3, seed=4)[:, :100]
    assert torch.equal(twin.sample(logits, given), reference.sample(logits, given))
    assert torch.equal(kept_by(logits, given), kept_by(logits.clone(), given))


def test_min_p_alone() -> None:
    given = rows([{"min_p": 0.23}] * 16)
    logits = logits_like(100, 16, seed=6)
    assert torch.equal(twin.sample(logits, given), reference.sample(logits, given))


@everywhere
@pytest.mark.parametrize("seed", range(5))
def test_many_draws(seed: int) -> None:
    given = rows(LIMITS * 4, heat=1.1, seed=seed, position=seed * 100)
    logits = logits_like(300, len(LIMITS) * 4, seed=seed, coarse=seed % 2 == 0)
    assert torch.equal(twin.sample(logits, given), reference.sample(logits, given))


@pytest.mark.gpu
def test_a_real_vocabulary() -> None:
    given = rows(LIMITS * 8)
    for seed in range(4):
        logits = logits_like(248_320, len(LIMITS) * 8, seed=seed).bfloat16()
        assert torch.equal(twin.sample(logits, given), reference.sample(logits, given))
