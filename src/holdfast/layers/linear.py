"""Linear layers and embeddings, with their sharding."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..distributed.group import Shard
from .batch import Build


def parameter(shape: tuple[int, ...], dtype: torch.dtype, shard: Shard | None = None) -> nn.Parameter:
    made = nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
    made.shard = shard  # type: ignore[attr-defined]  # the loader asks for it
    return made


class Linear(nn.Module):
    """y = x W^T + b on this rank's part.

    split="out": the output's sections `parts` are divided among ranks, and the result stays divided.
    split="in":  the input is divided, and the ranks' results are added up.
    """

    def __init__(
        self,
        build: Build,
        inputs: int,
        outputs: int,
        *,
        bias: bool = False,
        split: str | None = None,
        parts: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__()
        self.ops, self.group, self.split = build.ops, build.group, split
        shard = None
        if split == "out":
            shard = Shard(axis=0, parts=parts or (outputs,), group=build.group)
            outputs = shard.local_size
        elif split == "in":
            shard = Shard(axis=1, parts=parts or (inputs,), group=build.group)
            inputs = shard.local_size
        self.weight = parameter((outputs, inputs), build.dtype, shard)
        self.bias = parameter((outputs,), build.dtype, shard if split == "out" else None) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        if self.split != "in" or self.group.size == 1:
            return self.ops.linear(x, self.weight, self.bias)
        summed = self.group.all_reduce(self.ops.linear(x, self.weight, None))
        return summed if self.bias is None else summed + self.bias  # once, not once per rank


class Embedding(nn.Module):
    def __init__(self, build: Build, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = parameter((vocab_size, hidden_size), build.dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.weight)


class RMSNorm(nn.Module):
    def __init__(self, build: Build, size: int, eps: float, *, zero_centred: bool = False) -> None:
        super().__init__()
        self.ops, self.eps, self.zero_centred = build.ops, eps, zero_centred
        self.weight = parameter((size,), build.dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.ops.rms_norm(x, self.weight, self.eps, zero_centred=self.zero_centred)
