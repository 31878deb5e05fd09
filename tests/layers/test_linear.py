"""A linear layer divided among ranks is the whole one: parts side by side, or parts of a sum."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from holdfast.distributed.group import Group
from holdfast.layers.batch import Build
from holdfast.layers.linear import Linear
from holdfast.ops.backend import choose


@dataclass(frozen=True)
class Silent(Group):
    """A rank that keeps its own part of a sum, for the test to add up."""

    def all_reduce(self, x: Tensor) -> Tensor:
        return x


def build(group: Group) -> Build:
    return Build(choose("reference", exact=False), torch.float32, torch.float32, 64, group)


def filled(group: Group, whole: Linear, **options: object) -> Linear:
    """The rank's layer, with its part of the whole one's weights."""
    made = Linear(build(group), whole.weight.shape[1], whole.weight.shape[0], bias=True, **options)  # type: ignore[arg-type]
    for part, full in ((made.weight, whole.weight), (made.bias, whole.bias)):
        assert part is not None and full is not None
        part.data = full.data if part.shard is None else part.shard.take(full.data)  # type: ignore[attr-defined]
    return made


@pytest.fixture
def whole() -> Linear:
    layer = Linear(build(Group()), 12, 20, bias=True)
    generator = torch.Generator().manual_seed(0)
    for weight in layer.parameters():
        weight.data = torch.randn(weight.shape, generator=generator)
    return layer


@pytest.mark.parametrize("size", [2, 4])
def test_divided_outputs_stand_side_by_side(whole: Linear, size: int) -> None:
    x = torch.randn(3, 12)
    parts = [filled(Silent(rank, size), whole, split="out")(x) for rank in range(size)]
    torch.testing.assert_close(torch.cat(parts, -1), whole(x))


def test_each_section_is_divided_by_itself(whole: Linear) -> None:
    """A merged q | k | v projection: every rank has its share of q, of k and of v."""
    x, sections = torch.randn(3, 12), (8, 8, 4)
    parts = [filled(Silent(rank, 2), whole, split="out", parts=sections)(x) for rank in range(2)]
    shares = [part.split([4, 4, 2], -1) for part in parts]
    joined = torch.cat([torch.cat(pair, -1) for pair in zip(*shares, strict=True)], -1)
    torch.testing.assert_close(joined, whole(x))


def test_divided_inputs_add_up_and_the_bias_is_added_once(whole: Linear) -> None:
    x = torch.randn(3, 12)
    assert whole.bias is not None
    parts = [filled(Silent(rank, 2), whole, split="in")(x[:, 6 * rank : 6 * rank + 6]) for rank in range(2)]
    torch.testing.assert_close(sum(parts) - whole.bias, whole(x))


def test_a_part_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="not a multiple of the 3 ranks"):
        Linear(build(Silent(0, 3)), 12, 20, split="out")


@pytest.mark.parametrize("tokens", [0, 1, 7, 40])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("outputs", "blocks"), [(33, 1), (512, 2), (738, 3), (1031, 1)])
def test_a_packed_weight_gives_the_same_products(tokens: int, bias: bool, outputs: int, blocks: int) -> None:
    generator = torch.Generator().manual_seed(tokens)
    ops = choose("reference", exact=False)
    weight = torch.randn(outputs, 33, generator=generator)
    x = torch.randn(tokens, 66, generator=generator)[:, ::2]
    added = torch.randn(outputs, generator=generator) if bias else None
    packed = ops.packed(weight, "cpu")
    assert len(packed) == blocks and packed.nbytes == weight.nbytes
    torch.testing.assert_close(ops.linear(x, packed, added), ops.linear(x, weight, added))
    assert ops.packed(packed, "cpu") is packed


@pytest.mark.parametrize(
    ("exact", "dtype", "device"),
    [(True, torch.float32, "cpu"), (False, torch.bfloat16, "cpu"), (False, torch.float32, "cuda")],
)
def test_only_float32_on_the_cpu_is_packed_and_not_in_exact_mode(
    exact: bool, dtype: torch.dtype, device: str
) -> None:
    weight = torch.randn(8, 8).to(dtype)
    assert choose("reference", exact=exact).packed(weight, device) is weight
