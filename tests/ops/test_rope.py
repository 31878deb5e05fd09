"""Rotary positions, against transformers' tables and rotations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import Lfm2Config, Qwen3_5TextConfig
from transformers.models.lfm2 import modeling_lfm2 as lfm2
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen3_5

from holdfast.ops.rope.reference import RotarySpec, rotary_table, rotate

from .steps import same_bits, seeded

POSITIONS = torch.tensor([0, 1, 2, 17, 63, 64, 299])
HEAD_DIM = 16


def lfm2_positions(theta: float) -> nn.Module:
    rope = {"rope_type": "default", "rope_theta": theta}
    return lfm2.Lfm2RotaryEmbedding(
        Lfm2Config(hidden_size=2 * HEAD_DIM, num_attention_heads=2, rope_parameters=rope)
    )


def qwen3_5_positions(theta: float, fraction: float) -> nn.Module:
    rope = {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": fraction}
    return qwen3_5.Qwen3_5TextRotaryEmbedding(Qwen3_5TextConfig(head_dim=HEAD_DIM, rope_parameters=rope))


def theirs(positions: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """[n, dim] each, both halves of dim alike"""
    cos, sin = positions(x, POSITIONS[None])
    return cos[0], sin[0]


@pytest.mark.parametrize("theta", [10_000.0, 1_000_000.0])
@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.25])
def test_tables_and_rotations_are_those_of_transformers(theta: float, fraction: float) -> None:
    x = torch.randn(len(POSITIONS), 3, HEAD_DIM, generator=seeded(1))
    modules = [(qwen3_5_positions(theta, fraction), qwen3_5.apply_rotary_pos_emb)]
    if fraction == 1.0:
        modules.append((lfm2_positions(theta), lfm2.apply_rotary_pos_emb))
    cos, sin = (table[POSITIONS] for table in rotary_table(RotarySpec(theta, fraction), HEAD_DIM, 300))
    for module, apply in modules:
        their_cos, their_sin = theirs(module, x)
        half = their_cos.shape[-1] // 2
        torch.testing.assert_close(cos, their_cos[:, :half], rtol=0, atol=1e-6)
        torch.testing.assert_close(sin, their_sin[:, :half], rtol=0, atol=1e-6)
        wide = (torch.cat((table, table), -1) for table in (cos, sin))
        turned, _ = apply(x, x, *wide)
        assert same_bits(rotate(x, cos, sin), turned)


def test_a_rotation_is_a_complex_product() -> None:
    """Channel i and its partner half a head away turn together; the rest passes untouched."""
    x = torch.randn(4, 2, 10, generator=seeded(2), dtype=torch.float64)
    angles = torch.randn(4, 3, generator=seeded(3), dtype=torch.float64)
    out = rotate(x, angles.cos(), angles.sin())
    turned = torch.complex(x[..., :3], x[..., 3:6]) * torch.complex(angles.cos(), angles.sin())[:, None]
    torch.testing.assert_close(out[..., :3], turned.real)
    torch.testing.assert_close(out[..., 3:6], turned.imag)
    assert same_bits(out[..., 6:], x[..., 6:])


def test_scores_depend_on_distance_alone() -> None:
    q, k = (torch.randn(1, 1, 8, generator=seeded(seed), dtype=torch.float64) for seed in (4, 5))
    cos, sin = (table.double() for table in rotary_table(RotarySpec(10_000.0), 8, 200))

    def score(i: int, j: int) -> Tensor:
        return (rotate(q, cos[i : i + 1], sin[i : i + 1]) * rotate(k, cos[j : j + 1], sin[j : j + 1])).sum()

    torch.testing.assert_close(score(7, 3), score(107, 103), rtol=0, atol=1e-5)
    assert abs(float(score(7, 3) - score(7, 4))) > 1e-3


def test_bfloat16_goes_in_and_comes_out() -> None:
    x = torch.randn(2, 1, 8, generator=seeded(6)).bfloat16()
    cos, sin = rotary_table(RotarySpec(10_000.0), 8, 2)
    assert rotate(x, cos, sin).dtype == torch.bfloat16
